"""Regard's attention kernels on a GPU beside PyTorch's operations: time, memory and error.

    .venv/bin/python benchmarks/gpu_kernels.py

Additive attention: 4 × 1024 queries and keys, width 512, bfloat16, forwards and backwards. Rows and summaries: one
sentence of 32,768 tokens, eight heads of 64. A time is that of one run, the median of rounds of four runs in a row
between events, after a warm-up: as in training, the host launches one while the GPU computes the one before. Memory is
the most that a run allocated beyond what was allocated before; an error is ‖got − wanted‖ / ‖wanted‖ against float64.
"""

import argparse
from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch import Tensor

import regard
from measure import grad_run
from regard.kernels import triton_launch
from regard.kernels.attention import additive, reference, sdpa, weights as exact
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import AdditiveScoreFunction, DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec

MIB = 2**20
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
IN_A_ROW = 4


def milliseconds(run: Callable[[], object], rounds: int) -> list[float]:
    """Of one run, in each round."""
    for _ in range(rounds):
        run()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(IN_A_ROW):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / IN_A_ROW)
    return times


def peak(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def row(
    name: str, run: Callable[[], object], rounds: int, base: float | None = None
) -> tuple[str, float]:
    """A line of the table, and the median."""
    held = peak(run)
    times = milliseconds(run, rounds)
    middle = median(times)
    share = "" if base is None else f"{middle / base:.2f}"
    return (
        f"| {name} | {middle:.3f} ({min(times):.3f} to {max(times):.3f}) | {held:,.1f} | {share} |",
        middle,
    )


def relative(got: Tensor, wanted: Tensor) -> float:
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).norm() / wanted.norm())


def eager(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    cube = torch.tanh(query[..., :, None, :] + key[..., None, :, :])
    return (cube @ weight[0]).softmax(-1) @ value


def ours(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, **visible: int) -> Tensor:
    return additive.attend(
        AttentionSpec(AdditiveScoreFunction(weight), query, key, AttentionMask(**visible)), value
    )[0]


def errors() -> Iterator[str]:
    """On small inputs, so that everything in float64 fits into memory."""
    sizes = ((2, 2, 300, 96), (2, 2, 200, 96), (2, 2, 200, 40), (1, 96))
    for dtype in DTYPES:
        query, key, value, weight = inputs = [
            torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in sizes
        ]
        exactly = [x.detach().double().requires_grad_() for x in inputs]
        spec = AttentionSpec(
            AdditiveScoreFunction(exactly[3]), exactly[0], exactly[1], AttentionMask(None, None, 0)
        )
        wanted = reference.attend(spec, exactly[2])[0]
        out = ours(query, key, value, weight, ahead=0)
        direction = torch.randn_like(wanted)
        found = torch.autograd.grad(out, inputs, direction.to(dtype))
        expected = torch.autograd.grad(wanted, exactly, direction)
        pairs = zip((out, *found), (wanted, *expected), strict=True)
        named = zip(("out", "query", "key", "value", "weight"), pairs, strict=True)
        found_errors = ", ".join(f"{name} {relative(*pair):.1e}" for name, pair in named)
        yield f"- additive, causal, {str(dtype).removeprefix('torch.')}: {found_errors}"


def additive_rows(rounds: int) -> Iterator[str]:
    def new(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    inputs = [new(4, 1, 1024, 512), new(4, 1, 1024, 512), new(4, 1, 1024, 512), new(1, 512)]
    line, base = row("additive, eager PyTorch", grad_run(eager, inputs), min(rounds, 5))
    yield line
    yield row(
        "the same, torch.compile", grad_run(torch.compile(eager), inputs), min(rounds, 5), base
    )[0]
    yield row("the same, Regard", grad_run(ours, inputs), rounds, base)[0]
    yield row("causal, Regard", grad_run(lambda *x: ours(*x, ahead=0), inputs), rounds, base)[0]
    with torch.no_grad():
        yield row("forward alone, Regard", lambda: ours(*inputs), rounds)[0]
    units = torch.cuda.get_device_properties(0).multi_processor_count * 16 * 1.98e9
    once = 4 * 1024 * 1024 * 512 / units * 1e3
    yield f"| floor: every tanh three times | {3 * once:.3f} | | |"


def dot_rows(rounds: int) -> Iterator[str]:
    query, key, value = (
        torch.randn(1, 8, 32768, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    spec = AttentionSpec(DotScoreFunction(64**-0.5), query, key, AttentionMask())
    picks = torch.arange(0, 32768, 512, device="cuda")
    with torch.no_grad():
        line, base = row(
            "fused forward, 32,768 tokens, 8 heads", lambda: sdpa.attend(spec, value), rounds
        )
        yield line
        lse = sdpa.attend(spec, value)[1]
        yield row("64 rows of every head", lambda: exact.weights(spec, picks, lse), rounds, base)[0]
        summarise = lambda: exact.summarize(spec, top=16, lse=lse)  # noqa: E731
        yield row("top-16, entropy and distance of every row", summarise, rounds, base)[0]
        found = exact.weights(spec, picks, lse)
        scores = query[:, :, picks].double() @ key.double().mT / 8
        yield f"\n- rows: {relative(found, scores.softmax(-1)):.1e}"
        summary = exact.summarize(spec, top=16, lse=lse)
        logs = scores.log_softmax(-1)
        wanted = -(logs.exp() * logs).sum(-1)
        best = scores.softmax(-1).topk(16)
        same = (summary.top_keys[:, :, picks] == best.indices).double().mean()
        yield (
            f"- entropy: {relative(summary.entropy[:, :, picks], wanted):.1e}; top-16: "
            f"{relative(summary.top_weights[:, :, picks], best.values):.1e}, {same:.2%} of the keys in the same place"
        )


def table(rounds: int) -> Iterator[str]:
    yield "Kernels: median milliseconds, peak memory, time as a multiple of each part's first row; relative errors."
    yield "\n| | ms | MiB | × |\n|---|---|---|---|"
    yield from additive_rows(rounds)
    yield from dot_rows(rounds)
    yield from errors()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    if not torch.cuda.is_available() or not triton_launch.available(torch.device("cuda:0")):
        raise SystemExit("needs a CUDA device, and Triton that works there")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, regard {regard.__version__}")
    for line in table(parser.parse_args().rounds):
        print(line, flush=True)
