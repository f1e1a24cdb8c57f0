"""One contestant that captions, in a process of its own: `python -m peers.captioners NAME PICTURES.npy THREADS`.

Says how large it is in a line of JSON when it is warm; then, for each line that comes in, captions all the pictures and
says how long that took, and how long the processors were busy with it.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZE, PATCH, WIDTH, BLOCKS, HEADS, HIDDEN, VOCABULARY = 192, 16, 256, (6, 3), 4, 1024, 4000
WORDS, BEAM, BATCH = 12, 5, 16
Caption = Callable[
    [np.ndarray], list[list[int]]
]  # pictures (B, Y, X, 3) in bytes to WORDS tokens each


def regard(encoder: dict[str, Any]) -> tuple[torch.nn.Module, Caption]:
    import regard
    from regard.data.images import image_token_cost, normalize
    from regard.generation.config import DecodeConfig
    from regard.generation.request import GenerationRequest, SearchTask
    from regard.generation.search import search

    decoder = {
        "kind": "transformer",
        "dim": WIDTH,
        "layers": BLOCKS[1],
        "heads": HEADS,
        "ffn_dim": HIDDEN,
    }
    model = regard.build({"encoder": encoder, "decoder": decoder, "vocab_size": VOCABULARY}).eval()
    worth = image_token_cost(SIZE)
    config = DecodeConfig(
        beam_size=BEAM, min_length=WORDS, max_length=WORDS, batch_tokens=BATCH * worth
    )

    def caption(pictures: np.ndarray) -> list[list[int]]:
        inputs = [GenerationRequest(picture, worth) for picture in pictures]
        task = SearchTask(model, lambda some: normalize(np.stack(some)), config)
        found = dict(search(task, inputs))
        return [list(found[i][0].tokens[:WORDS]) for i in range(len(pictures))]

    return model, caption


def regard_vit() -> tuple[torch.nn.Module, Caption]:
    inner = {"dim": WIDTH, "layers": BLOCKS[0], "heads": HEADS, "ffn_dim": HIDDEN}
    return regard({"kind": "vit", "patch_size": PATCH, "transformer": inner})


def regard_efficientnet() -> tuple[torch.nn.Module, Caption]:
    return regard({"kind": "cnn", "backbone": {"kind": "efficientnet-lite0"}, "dim": WIDTH})


def hugging_face() -> tuple[torch.nn.Module, Caption]:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        VisionEncoderDecoderModel,
        ViTConfig,
        ViTModel,
    )

    sees = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=BLOCKS[0], num_attention_heads=HEADS, intermediate_size=HIDDEN,
        image_size=SIZE, patch_size=PATCH,
    )  # fmt: skip
    says = GPT2Config(
        n_embd=WIDTH, n_layer=BLOCKS[1], n_head=HEADS, n_inner=HIDDEN, vocab_size=VOCABULARY, n_positions=64,
        add_cross_attention=True, is_decoder=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model: Any = VisionEncoderDecoderModel(
        encoder=ViTModel(sees, add_pooling_layer=False), decoder=GPT2LMHeadModel(says)
    )
    model.eval()
    how = {"num_beams": BEAM, "min_new_tokens": WORDS, "max_new_tokens": WORDS, "do_sample": False,
           "decoder_start_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip

    def caption(pictures: np.ndarray) -> list[list[int]]:
        found = []
        for first in range(0, len(pictures), BATCH):
            some = (
                torch.from_numpy(pictures[first : first + BATCH])
                .permute(0, 3, 1, 2)
                .float()
                .div(127.5)
                .sub(1.0)
            )
            found += model.generate(pixel_values=some, **how)[:, 1:].tolist()
        return found

    return model, caption


CAPTIONERS = {
    "regard": regard_vit,
    "regard-efficientnet": regard_efficientnet,
    "hugging-face": hugging_face,
}


def main(name: str, file: Path, threads: int) -> None:
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, caption = CAPTIONERS[name]()
    pictures = np.load(file)
    with torch.inference_mode():
        words = caption(pictures[:BATCH])
        assert all(len(row) == WORDS for row in words), words
        print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}), file=answer)
        for _ in sys.stdin:
            start, busy = time.perf_counter(), time.process_time()
            caption(pictures)
            taken = {"seconds": time.perf_counter() - start, "busy": time.process_time() - busy}
            print(json.dumps(taken), file=answer)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
