"""One contestant that translates, in a process of its own: `python -m peers.translators NAME FOLDER THREADS`.

FOLDER holds one model of Regard as numbers, model.json (see `export` in decoding.py) and weights.npz under our names,
and exported for CTranslate2. Each function here makes a peer's model of it and says how it translates a batch: lists of
token numbers without start and end in, lists in which an end may stand out. One library each: the environments differ.

Says that it is ready in a line of JSON; then for each line {"beam", "batch", "ratio", "rows"} translates the rows,
`batch` at a time, and says what came out, how long it took, and how long the processors were busy with it. Where the
ratio is not null, an output has at most so many tokens for each token of the longest row of its batch.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

LONGEST = 100  # tokens of an output with its end, where no ratio is given
BANNED = -1e4  # a logit that is never chosen
Rows = list[list[int]]
Translate = Callable[
    [Rows, int, int], Rows
]  # a batch, the size of the beam, and the most tokens of an output


class Exported:
    """What `export` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = json.loads((folder / "model.json").read_text())
        self.weights: dict[str, np.ndarray] = dict(np.load(folder / "weights.npz"))
        bias = self.weights["decoder.project.bias"]
        bias[self.facts["never"]] = BANNED  # so that nobody needs a step of its own to forbid them

    def __getattr__(self, name: str) -> Any:
        return self.facts[name]


def regard(model: Exported, threads: int, *, int8: bool = False) -> Translate:
    import torch

    import regard
    from regard.core.sequence import Tokens
    from regard.data.special_tokens import END
    from regard.generation.config import DecodeConfig
    from regard.generation.request import GenerationRequest, SearchTask
    from regard.generation.search import search

    torch.set_num_threads(threads)
    ours: Any = regard.load(model.run).model.eval()

    def translate(rows: Rows, beam: int, longest: int) -> Rows:
        inputs = [GenerationRequest([*row, END], len(row) + 1) for row in rows]
        config = DecodeConfig(
            beam_size=beam,
            max_length=longest,
            batch_tokens=2**20,
            quantization="int8" if int8 else None,
        )
        found = dict(search(SearchTask(ours, Tokens.of, config), inputs))
        return [list(found[i][0].tokens) for i in range(len(rows))]

    return translate


def marian(model: Exported, threads: int) -> Translate:
    import torch
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    root = Path(__file__).resolve().parents[2]
    sys.path += [str(root / "tests"), str(root / "src")]
    from support import hugging_face

    torch.set_num_threads(threads)
    ids = {"pad_token_id": model.pad, "bos_token_id": model.start, "eos_token_id": model.end}
    config = MarianConfig(
        vocab_size=model.vocab_size,
        d_model=model.dim,
        encoder_layers=model.layers,
        decoder_layers=model.layers,
        encoder_attention_heads=model.heads,
        decoder_attention_heads=model.heads,
        encoder_ffn_dim=model.ffn_dim,
        decoder_ffn_dim=model.ffn_dim,
        activation_function="relu",
        scale_embedding=model.scaled,
        max_position_embeddings=512,
        decoder_start_token_id=model.start,
        forced_eos_token_id=None,
        **ids,
    )
    peer = MarianMTModel(config).eval()
    _, places = hugging_face.translate("marian", config, peer.state_dict())
    with torch.no_grad():
        for name, place in places.items():  # views of the peer's weights
            place.copy_(torch.from_numpy(model.weights[name]))

    def translate(rows: Rows, beam: int, longest: int) -> Rows:
        source = _padded(rows, model.end, model.pad)
        settings = GenerationConfig(
            num_beams=beam,
            max_new_tokens=longest,
            decoder_start_token_id=model.start,
            early_stopping=beam
            > 1,  # at as many outputs as beams, as CTranslate2 does; otherwise it goes on longer
            **ids,
        )
        mask = (source != model.pad).long()
        return peer.generate(source, attention_mask=mask, generation_config=settings)[
            :, 1:
        ].tolist()

    return translate


def ctranslate2(model: Exported, threads: int, *, name: str) -> Translate:
    import ctranslate2

    folder = model.folder / name
    peer = ctranslate2.Translator(str(folder), "cpu", inter_threads=1, intra_threads=threads)
    words: list[str] = json.loads((folder / "shared_vocabulary.json").read_text())
    numbers = {word: number for number, word in enumerate(words)}

    def translate(rows: Rows, beam: int, longest: int) -> Rows:
        sources = [[words[token] for token in row] for row in rows]
        found = peer.translate_batch(
            sources, beam_size=beam, max_decoding_length=longest, return_end_token=True
        )
        return [[numbers[word] for word in result.hypotheses[0]] for result in found]

    return translate


def joey(model: Exported, threads: int) -> Translate:
    """Its special tokens have numbers of their own, so rows of the embedding change places."""
    import torch
    from joeynmt.model import build_model
    from joeynmt.search import search
    from joeynmt.vocabulary import Vocabulary

    torch.set_num_threads(threads)
    order = [
        model.unknown,
        model.pad,
        model.start,
        model.end,
    ]  # ours, in the order that it insists on
    order += [number for number in range(model.vocab_size) if number not in order]
    specials = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = Vocabulary([f"t{number}" for number in order[4:]], specials)
    parts = _joey_transformer(model) if model.kind == "transformer" else _joey_gru(model)
    embeddings = {"embedding_dim": model.dim, "scale": model.scaled}
    tied = {"tied_embeddings": True, "tied_softmax": True}
    peer: Any = build_model(
        {part: {**table, "embeddings": embeddings} for part, table in parts.items()} | tied,
        words,
        words,
    )
    peer.eval()
    with torch.no_grad():
        weights = {name: torch.from_numpy(weight) for name, weight in model.weights.items()}
        peer.src_embed.lut.weight.copy_(weights["decoder.embed_tokens.weight"][order])
        peer.decoder.output_layer.bias = torch.nn.Parameter(weights["decoder.project.bias"][order])
        (_put_transformer if model.kind == "transformer" else _put_gru)(peer, model, weights)
    number = {ours: place for place, ours in enumerate(order)}

    def translate(rows: Rows, beam: int, longest: int) -> Rows:
        source = _padded([[number[token] for token in row] for row in rows], 3, 1)
        batch = SimpleNamespace(
            src=source,
            src_length=(source != 1).sum(1),
            src_mask=(source != 1)[:, None],
            has_trg=False,
        )
        # Its penalty is ((5 + length) / 6)^alpha, never the length alone.
        found, _, _ = search(peer, batch, max_output_length=longest, beam_size=beam, beam_alpha=1.0)
        return [[order[int(token)] for token in row] for row in found]

    return translate


def _joey_transformer(model: Exported) -> dict[str, dict[str, Any]]:
    part = {
        "type": "transformer", "num_layers": model.layers, "num_heads": model.heads, "hidden_size": model.dim,
        "ff_size": model.ffn_dim, "layer_norm": "post",
    }  # fmt: skip
    return {"encoder": part, "decoder": part}


def _joey_gru(model: Exported) -> dict[str, dict[str, Any]]:
    part = {"type": "recurrent", "rnn_type": "gru", "num_layers": 1}
    attention = {"additive": "bahdanau", "bilinear": "luong"}[model.score]
    return {
        "encoder": {**part, "hidden_size": model.dim // 2, "bidirectional": True},
        "decoder": {
            **part,
            "hidden_size": model.dim,
            "attention": attention,
            "input_feeding": model.input_feeding,
        },
    }


def _put_transformer(peer: Any, model: Exported, weights: dict[str, Any]) -> None:
    import torch

    def put(into: Any, name: str) -> None:
        into.weight.copy_(weights[f"{name}.weight"])
        into.bias.copy_(weights[f"{name}.bias"])

    for side in ("encoder", "decoder"):
        part = getattr(peer, side)
        part.pe.pe = torch.from_numpy(waves(512, model.dim))[None]
        for index, layer in enumerate(part.layers):
            block, last = f"{side}.stack.layers.{index}", "norm2" if side == "encoder" else "norm3"
            attend = layer.src_src_att if side == "encoder" else layer.trg_trg_att
            attentions = [(attend, "self_attn")] + (
                [(layer.src_trg_att, "cross_attn")] if side == "decoder" else []
            )
            for attention, name in attentions:
                for into, ours in (
                    ("q_layer", "q_proj"),
                    ("k_layer", "k_proj"),
                    ("v_layer", "v_proj"),
                    ("output_layer", "out_proj"),
                ):
                    put(getattr(attention, into), f"{block}.{name}.{ours}")
            put(layer.layer_norm if side == "encoder" else layer.x_layer_norm, f"{block}.norm1")
            if side == "decoder":
                put(layer.dec_layer_norm, f"{block}.norm2")
            put(layer.feed_forward.pwff_layer[0], f"{block}.ffn.up")
            put(layer.feed_forward.pwff_layer[3], f"{block}.ffn.down")
            put(layer.feed_forward.layer_norm, f"{block}.{last}")
    for module in peer.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = model.norm_eps


def _put_gru(peer: Any, model: Exported, weights: dict[str, Any]) -> None:
    import torch

    for side in ("encoder", "decoder"):
        for name, place in getattr(peer, side).rnn.named_parameters():
            place.copy_(weights[f"{side}.rnn.{name}"])
    decoder, score = peer.decoder, peer.decoder.attention
    for into, name in ((decoder.bridge_layer, "begin"), (decoder.att_vector_layer, "join")):
        into.weight.copy_(weights[f"decoder.{name}.weight"])
        into.bias.copy_(weights[f"decoder.{name}.bias"])
    if model.score == "bilinear":
        score.key_layer.weight.copy_(weights["decoder.score.weight"].T)
        return
    score.query_layer.weight.copy_(weights["decoder.score.query_weight"].T)
    score.key_layer.weight.copy_(weights["decoder.score.key_weight"].T)
    score.key_layer.bias = torch.nn.Parameter(weights["decoder.score.key_bias"][0])
    score.energy_layer.weight.copy_(weights["decoder.score.weight"])


def waves(length: int, dim: int) -> np.ndarray:
    """Sines, then cosines, as Regard and Marian order them."""
    angles = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, dim, 2) / dim)
    return np.concatenate((np.sin(angles), np.cos(angles)), -1).astype(np.float32)


def _padded(rows: Rows, end: int, pad: int) -> Any:
    import torch

    longest = max(map(len, rows))
    return torch.tensor([[*row, end, *[pad] * (longest - len(row))] for row in rows])


TRANSLATORS: dict[str, Callable[[Exported, int], Translate]] = {
    "regard": regard,
    "marian": marian,
    "ctranslate2": partial(ctranslate2, name="ctranslate2"),
    "regard-int8": partial(regard, int8=True),
    "ctranslate2-int8": partial(ctranslate2, name="ctranslate2-int8"),
    "joey": joey,
}


def main(name: str, folder: Path, threads: int) -> None:
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    warnings.simplefilter("ignore")
    translate = TRANSLATORS[name](Exported(folder), threads)
    print(json.dumps({"ready": name}), file=answer)
    for line in sys.stdin:
        asked = json.loads(line)
        rows, batch, outputs = asked["rows"], asked["batch"], []
        start, busy = time.perf_counter(), time.process_time()
        for first in range(0, len(rows), batch):
            some, ratio = rows[first : first + batch], asked["ratio"]
            longest = LONGEST if ratio is None else int(ratio * max(map(len, some)))
            outputs += translate(some, asked["beam"], longest)
        took = {"seconds": time.perf_counter() - start, "busy": time.process_time() - busy}
        print(json.dumps({**took, "outputs": outputs}), file=answer)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
