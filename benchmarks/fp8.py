"""Linear layers in float8 beside bfloat16 on one GPU: time and error of single layers, and whole training updates.

    .venv/bin/python benchmarks/fp8.py                      # layers, then updates
    .venv/bin/python benchmarks/fp8.py --only updates --rounds 5
    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/fp8.py --only losses

Layers: forward and backward of a linear layer with bias, 65,536 rows, replayed as a CUDA graph; errors are
‖got − wanted‖ / ‖wanted‖ of the output and of the gradients of input and weight, wanted in float32. Updates are the
training loop's own, as in gpu_training.py: an encoder-decoder (pairs of 32,768 target tokens, packed) and language
models on texts of 1,024 tokens, without dropout; the median of rounds that take both precisions in turn.
Losses: a model of the size of GPT-2 on words of WikiText-2 (from $REGARD_DATA), by the recipe `word-language-model`
otherwise, as training_options.py shortens it, with the same seed in both precisions.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

import gpu_training
import regard
from gpu_decoding import TRANSFORMER
from gpu_training import GPT2_VOCABULARY, TEXTS, packed, pairs
from regard.core.sequence import Tokens
from regard.data.batching import Batch
from regard.kernels.layers.linear import linear
from regard.kernels.layers.linear_fp8 import linear_fp8
from regard.training.validation import mean_loss
from training_options import Trial, Variant, train, words

ROWS = 65_536
LAYERS = (
    (512, 1536),
    (512, 2048),
    (2048, 512),
    (768, 2304),
    (768, 3072),
    (3072, 768),
    (1024, 4096),
    (4096, 1024),
    (2048, 2048),
    (2048, 8192),
)
# dim, layers, heads, texts of 1,024 tokens
LANGUAGE_MODELS = ((768, 12, 12, TEXTS), (1024, 12, 16, TEXTS), (2048, 6, 16, TEXTS // 2))
VOCABULARY = 32_000
UPDATES, STRIDE = 400, 50  # of a loss curve


def layer_times(dim: int, out_dim: int) -> tuple[dict[str, float], list[float]]:
    """Milliseconds of forward and backward in each precision, and the errors of float8."""
    x = torch.randn(ROWS, dim, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = (torch.randn(out_dim, dim, device="cuda") / dim**0.5).requires_grad_()
    bias = torch.randn(out_dim, device="cuda").requires_grad_()
    d_out = torch.randn(ROWS, out_dim, device="cuda", dtype=torch.bfloat16)

    def run(product: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            out = product(x, weight, bias)
        return [out, *torch.autograd.grad(out, (x, weight, bias), d_out)]

    graphs = {
        "bfloat16": replayed(lambda: run(linear)),
        "float8": replayed(lambda: run(linear_fp8)),
    }
    times = {name: [timed(graph) for _ in range(5)] for name, graph in graphs.items()}
    got, given = (
        run(linear_fp8)[:3],
        [each.detach().float().requires_grad_() for each in (x, weight, bias)],
    )
    wide = F.linear(*given)
    wanted = [wide, *torch.autograd.grad(wide, given[:2], d_out.float())]
    errors = [
        float((a.detach().float() - b.detach()).norm() / b.detach().norm())
        for a, b in zip(got, wanted, strict=True)
    ]
    return {name: median(each) for name, each in times.items()}, errors


def replayed(run: Callable[[], object]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed(run: Callable[[], object], times: int = 10) -> float:
    """Milliseconds of a run on the GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    begin.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


def layers(rounds: int) -> None:
    print(
        "| input, output dim | bfloat16, ms | float8, ms | × | errors: output, input's and weight's gradient |"
    )
    print("|---|---|---|---|---|")
    for dim, out_dim in LAYERS:
        times, errors = layer_times(dim, out_dim)
        ratio = times["bfloat16"] / times["float8"]
        cells = f"{times['bfloat16']:.3f} | {times['float8']:.3f} | {ratio:.2f}"
        print(
            f"| {dim}, {out_dim} | {cells} | {', '.join(f'{error:.1%}' for error in errors)} |",
            flush=True,
        )


@dataclass
class Model:
    name: str
    config: dict[str, Any]
    batches: list[Batch]


def encoder_decoder() -> Model:
    config = {
        "encoder": TRANSFORMER,
        "decoder": TRANSFORMER,
        "vocab_size": VOCABULARY,
        "tie_embeddings": "all",
    }
    return Model("encoder-decoder, 512", config, packed(pairs(VOCABULARY)))


def language_model(dim: int, depth: int, heads: int, texts: int) -> Model:
    shape = {"kind": "transformer", "dim": dim, "layers": depth, "heads": heads, "ffn_dim": 4 * dim}
    kinds = {
        "activation": "gelu_tanh",
        "positions": "learned",
        "max_positions": 1024,
        "dropout": 0.0,
    }
    ids = torch.randint(
        5, GPT2_VOCABULARY, (2, texts, 1025), generator=torch.Generator().manual_seed(0)
    )
    full = torch.full((texts,), 1025)
    batches = [Batch(None, Tokens(each, full), texts * 1024, torch.arange(texts)) for each in ids]
    return Model(
        f"language model, {depth} × {dim}",
        {"decoder": shape | kinds, "vocab_size": GPT2_VOCABULARY},
        batches,
    )


def updates(rounds: int) -> None:
    print("| model | bfloat16, tokens/s | float8, tokens/s | × |\n|---|---|---|---|")
    for make in (*(partial(language_model, *one) for one in LANGUAGE_MODELS), encoder_decoder):
        given = make()
        tokens = sum(batch.tokens for batch in given.batches)
        runs = {}
        for precision in ("bfloat16", "float8"):
            torch.manual_seed(0)
            runs[precision] = gpu_training.updates(
                regard.build(given.config).cuda(), given.batches, precision
            )
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(rounds + 1):
            for name, run in runs.items():
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(2):
                    run()
                torch.cuda.synchronize()
                if number:  # the first records
                    times[name].append((time.perf_counter() - begin) / 2)
        half, low = (tokens / median(each) for each in times.values())
        print(f"| {given.name} | {half:,.0f} | {low:,.0f} | {low / half:.2f} |", flush=True)
        del runs, run
        gc.collect()
        torch.cuda.empty_cache()


def losses(rounds: int) -> None:
    """The mean loss of every STRIDE updates in both precisions, and the validation loss at the end."""
    with tempfile.TemporaryDirectory() as temporary:
        trial = words(Path(os.environ["REGARD_DATA"]), Path(temporary))
        trial.table["model"]["decoder"] |= {"dim": 768, "layers": 12, "heads": 12, "ffn_dim": 3072}
        columns = {precision: curve(trial, precision) for precision in ("bfloat16", "float8")}
    print("| updates | bfloat16 | float8 | difference |\n|---|---|---|---|")
    for i, pair in enumerate(zip(*columns.values(), strict=True), start=1):
        name = (
            f"{(i - 1) * STRIDE + 1} to {i * STRIDE}"
            if i * STRIDE <= UPDATES
            else f"validation, after {UPDATES}"
        )
        print(f"| {name} | {pair[0]:.4f} | {pair[1]:.4f} | {pair[1] - pair[0]:+.4f} |")


def curve(trial: Trial, precision: str) -> list[float]:
    trainer, found = (
        trial.trainer(
            Variant(precision, {"precision": precision, "learning_rate": 6e-4}), 1, UPDATES
        ),
        [],
    )
    updates = trainer._groups()
    for _ in range(UPDATES // STRIDE):
        before = trainer.state
        train(trainer, updates, STRIDE)
        after = trainer.state
        found.append(
            (after.nll_since - before.nll_since) / (after.tokens_since - before.tokens_since)
        )
    trainer.model.eval()
    return [*found, mean_loss(trainer.model, trial.data.valid, budget=trainer.config.batch_tokens)]


PARTS: dict[str, Callable[[int], None]] = {"layers": layers, "updates": updates, "losses": losses}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name, part in PARTS.items():
        if options.only == name or (options.only is None and name != "losses"):
            part(options.rounds)


if __name__ == "__main__":
    main()
