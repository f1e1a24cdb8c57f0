"""Decoding on a GPU: greedy and beam search against Hugging Face's Marian with the same sizes.

An encoder-decoder of 6 + 6 layers, dim 512, 8 heads and FFN 2,048 in bfloat16, sources of 18 to 32 tokens, outputs of
32 tokens; times are from lists of source tokens to lists of output tokens. Outputs with CUDA graphs are compared with
those of kernels that are launched one by one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import transformers

import regard
from gpu_limits import GpuLimits, timed
from regard.core.sequence import Tokens
from regard.data.special_tokens import END, PAD, START
from regard.generation import search
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.cuda import buffers, encode
from regard.generation.request import GenerationRequest, SearchTask
from regard.kernels import cuda_graphs

TRANSFORMER = {"kind": "transformer", "dim": 512, "layers": 6, "heads": 8, "ffn_dim": 2048}
NEW_TOKENS = 32
SOURCE_TOKENS = 25  # on average
SEARCHES = ((1, 1), (1, 64), (1, 512), (5, 64), (5, 512))  # beam size and batch size
FLOOR = """\
The floor is the time to read the weights of the encoder once and those of the decoder at each step, at the measured
bandwidth, or to multiply with them at the measured speed. It leaves out the keys and values of the cache and of the
source, the logits, the host's work before the first step and after the last, and the 2 to 4 µs that every kernel takes
to start and end. A step of many rows has some fifty kernels: where rows are few, that alone is many times the floor."""

Rows = list[list[int]]


def sources(count: int, vocabulary: int, seed: int = 0) -> Rows:
    generator = torch.Generator().manual_seed(count + seed)
    lengths = torch.randint(18, 33, (count,), generator=generator).tolist()
    return [
        torch.randint(5, vocabulary, (length,), generator=generator).tolist() for length in lengths
    ]


@cache  # as in a server, which keeps them too
def decode_config(beam: int) -> DecodeConfig:
    return DecodeConfig(
        beam_size=beam, max_length=NEW_TOKENS, batch_tokens=1 << 20, precision="bfloat16"
    )


@cache
def generation_config(beam: int) -> Any:
    return transformers.GenerationConfig(
        max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, num_beams=beam, do_sample=False, pad_token_id=PAD,
        eos_token_id=END, decoder_start_token_id=START,
    )  # fmt: skip


def translate(model: Any, rows: Rows, beam: int) -> Rows:
    config = decode_config(beam)
    task = SearchTask(model, lambda some: Tokens.of(some, device="cuda"), config, ends=False)
    found = dict(search.search(task, [GenerationRequest(row, len(row)) for row in rows]))
    return [list(found[number][0].tokens) for number in range(len(rows))]


@contextmanager
def patched(owner: Any, **names: Any) -> Iterator[None]:
    old = {name: getattr(owner, name) for name in names}
    for name, value in names.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in old.items():
            setattr(owner, name, value)


def launched(run: Callable[[], Rows]) -> Rows:
    """Without CUDA graphs: the kernels are launched one by one."""
    pool = patched(selection, kept_buffers=lambda decoder: buffers.BufferPool())
    with patched(encode, _encoders={}), patched(cuda_graphs, WARMUP=1 << 60), pool:
        return run()


def eager(run: Callable[[], Rows]) -> Rows:
    """With the PyTorch engine, as for decoders that the CUDA engine does not support."""
    with patched(selection, ENGINES=(selection.PyTorchEngine(),)):
        return launched(run)


def marian(vocabulary: int) -> Any:
    config = transformers.MarianConfig(
        vocab_size=vocabulary, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, activation_function="relu",
        max_position_embeddings=512, pad_token_id=PAD, bos_token_id=START, eos_token_id=END,
        decoder_start_token_id=START, forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.MarianMTModel(config).cuda().bfloat16().eval()


def marian_translate(model: Any, rows: Rows, beam: int) -> Rows:
    batch = Tokens.of(rows, device="cuda")
    with torch.inference_mode():
        mask = batch.mask.long()
        out = model.generate(
            batch.ids, attention_mask=mask, generation_config=generation_config(beam)
        )
    return out[:, 1:].tolist()  # type: ignore[no-any-return]


def floor(limits: GpuLimits, model: Any, batch: int, beam: int) -> float:
    """The least seconds of a search."""
    encoder = decoder = 0
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            of_source = (
                name.startswith("encoder")
                or ".cross_attn.k_proj" in name
                or ".cross_attn.v_proj" in name
            )
            encoder += weight.numel() if of_source else 0
            decoder += 0 if of_source else weight.numel()
    encoder -= model.encoder.embed_tokens.weight.numel()  # rows of it are read
    decoder += (
        model.decoder.project.weight.numel()
    )  # tied to the embedding, and so not among the parameters
    return limits.seconds(encoder, SOURCE_TOKENS * batch) + NEW_TOKENS * limits.seconds(
        decoder, beam * batch
    )


def table(limits: GpuLimits, rounds: int, vocabulary: int) -> list[str]:
    torch.manual_seed(0)
    sizes = {
        "encoder": TRANSFORMER,
        "decoder": TRANSFORMER,
        "vocab_size": vocabulary,
        "tie_embeddings": "all",
    }
    model, peer = regard.build(sizes).cuda().eval(), marian(vocabulary)
    size = sum(weight.numel() for weight in model.parameters()) / 1e6
    lines = [
        f"Decoding: {size:.0f} M parameters, vocabulary {vocabulary:,}, {NEW_TOKENS} new tokens; tokens per second.\n",
        "| beam, batch | Hugging Face | Regard, PyTorch engine | Regard, kernels launched | Regard, CUDA graphs "
        "| × Hugging Face | floor | floor / Regard |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for beam, batch in SEARCHES:
        rows = sources(batch, vocabulary)

        def run(rows: Rows = rows, beam: int = beam) -> Rows:
            return translate(model, rows, beam)

        seconds = timed(
            {
                "peer": lambda rows=rows, beam=beam: marian_translate(peer, rows, beam),
                "eager": lambda run=run: eager(run),
                "launched": lambda run=run: launched(run),
                "graphs": run,
            },
            rounds,
        )
        same = run() == launched(run)
        least = floor(limits, model, batch, beam)
        rate = {
            name: f"{NEW_TOKENS * batch / each:,.0f}"
            for name, each in (*seconds.items(), ("floor", least))
        }
        lines.append(
            f"| {beam}, {batch} | {rate['peer']} | {rate['eager']} | {rate['launched']} | **{rate['graphs']}** "
            f"| {seconds['peer'] / seconds['graphs']:.1f} | {rate['floor']} "
            f"| {seconds['graphs'] / least:.1f} |{'' if same else ' outputs with and without CUDA graphs DIFFER'}"
        )
        print(lines[-1], flush=True)
    return [*lines, "", FLOOR]
