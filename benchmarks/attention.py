"""Time and memory of attention against length: plain, fused, ours, and PyTorch's multi-head module.

    make bench
    .venv/bin/python benchmarks/attention.py --lengths 1024 4096 --rounds 9

One batch, eight heads of 64, float32, forwards and backwards. Runs of one length take turns in rounds; a row gives the
median of the times, their spread (lowest to highest), the median over rounds of the ratio to the fused kernel in the
same round, and the most memory held over what the inputs take.
"""

import argparse
import platform
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

import regard
from measure import grad_run, peak_bytes, ratio, seconds

HEADS, WIDTH, ROWS = 8, 64, 64
PLAIN_UP_TO = (
    4096  # N × M of float32 in eight heads takes two gigabytes at 8,192, several times over
)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / WIDTH**0.5).softmax(-1) @ value


def with_rows(attend: Callable[..., Tensor], rows: range) -> Callable[..., Tensor]:
    """Attend, and compute these rows of weights of every head before going on."""

    def run(*inputs: Tensor) -> Tensor:
        with regard.capture_attention(lambda heard: heard.weights(rows=rows)):
            return attend(*inputs)

    return run


def functions(n: int) -> dict[str, Callable[[], None]]:
    inputs = [torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(3)]
    rows = range(0, n, n // ROWS)
    runs = {
        "fused (scaled_dot_product_attention)": nn.functional.scaled_dot_product_attention,
        "regard.attend": regard.attend,
        f"regard.attend, {ROWS} rows of weights": with_rows(regard.attend, rows),
        "regard.attend, causal": lambda q, k, v: regard.attend(q, k, v, causal=True),
        "regard.attend, window 256": lambda q, k, v: regard.attend(
            q, k, v, causal=True, window=256
        ),
        "regard.attend, dropout 0.1": lambda q, k, v: regard.attend(q, k, v, dropout=0.1),
    }
    if n <= PLAIN_UP_TO:
        runs["scaled_dot_product_attention, dropout 0.1"] = lambda q, k, v: (
            nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        )
        runs["plain"] = plain
    return {name: grad_run(run, inputs) for name, run in runs.items()}


def layers(n: int) -> dict[str, Callable[[], None]]:
    x = [torch.randn(1, n, HEADS * WIDTH, requires_grad=True)]
    peer, ours = (
        nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True),
        regard.MultiHead(HEADS * WIDTH, HEADS),
    )
    runs = {
        "nn.MultiheadAttention": lambda x: peer(x, x, x, need_weights=False)[0],
        "regard.MultiHead": ours,
        f"regard.MultiHead, {ROWS} rows of weights": with_rows(ours, range(0, n, n // ROWS)),
    }
    if n <= PLAIN_UP_TO:
        runs["nn.MultiheadAttention with weights"] = lambda x: peer(
            x, x, x, average_attn_weights=False
        )[0]
    return {name: grad_run(run, x) for name, run in runs.items()}


def additive() -> dict[str, Callable[[], None]]:
    score = regard.Additive(256, 256, 256)
    inputs = [torch.randn(2, 512, 256, requires_grad=True) for _ in range(3)]

    def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        cube = torch.tanh(score.queries(query)[:, :, None] + score.keys(key)[:, None])
        return (cube @ score.weight[0]).softmax(-1) @ value

    return {
        "additive, written out": grad_run(naive, inputs),
        "regard.attend, additive": grad_run(
            lambda q, k, v: regard.attend(q, k, v, score=score), inputs
        ),
    }


def table(title: str, runs: dict[str, Callable[[], None]], rounds: int) -> None:
    times = seconds(runs, rounds)
    base = next(iter(runs))
    print(
        f"\n{title}\n\n| forwards and backwards | ms | spread | ratio | peak MiB |\n|---|---|---|---|---|"
    )
    for name, run in runs.items():
        ms = [1000 * t for t in times[name]]
        spread = f"{min(ms):.0f}–{max(ms):.0f}"
        peak = peak_bytes(run) / 2**20
        print(
            f"| {name} | {median(ms):.0f} | {spread} | {ratio(times, name, base):.2f} | {peak:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}")
    for n in arguments.lengths:
        table(f"{n:,} tokens: the function", functions(n), arguments.rounds)
        table(f"{n:,} tokens: the layer", layers(n), arguments.rounds)
    table("Additive score, batch 2, 512 × 512, width 256", additive(), arguments.rounds)


if __name__ == "__main__":
    main()
