"""Compiles the kernels of attention, training and decoding for an H200, without one. Prints how many.

A program, not a test: Triton decides once per process whether to interpret.
"""

import sys
from pathlib import Path

import torch
import triton
from torch.nn.functional import relu_
from triton.backends.compiler import GPUTarget

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from regard.core.sequence import SequenceOffsets
from regard.generation.engines.cuda.kernels import (
    beam_step_triton,
    persistent_step_triton,
    sampling_triton,
    step_triton,
)
from regard.generation.engines.cuda.kernels.step import StackedLayers, StepLinear, StepNorm
from regard.kernels import triton_launch
from regard.kernels.attention import (
    additive,
    additive_triton,
    varlen,
    varlen_triton,
    weights,
    weights_triton,
)
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.layers import (
    conv_unfold,
    conv_unfold_triton,
    cross_entropy_triton,
    linear,
    linear_fp8,
    linear_fp8_triton,
    linear_triton,
    residual_norm,
    residual_norm_triton,
)
from regard.kernels.layers.residual_norm import PendingResidual
from regard.kernels.recurrent import rnn_cuda, rnn_triton
from regard.kernels.recurrent.rnn import CELLS, StepSchedule
from regard.tasks import losses


class Device:
    """The device properties that Triton needs to compile."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *given, **constants: made.append(
            self.kernel.warmup(*given, grid=grid, **constants)
        )


made: list = []
DECODING_KERNELS = {
    "_embed", "_add_norm", "_norm_linear", "_add_linear", "_self_attention", "_cross_attention",
    "_cross_attention_beams", "_greedy_step", "_log_sum_exp", "_top_k", "_fingerprints", "_beam_step", "_follow",
}  # fmt: skip


def main() -> None:
    triton.runtime.driver.set_active(Device())
    for module, names in (
        (
            additive_triton,
            ("additive_scores", "weighted_values", "d_weighted_values", "additive_gradient"),
        ),
        (weights_triton, ("dot_weights", "dot_summary")),
    ):
        for name in names:
            setattr(module, name, Compiled(getattr(module, name)))
    for module, names in (
        (additive, ("ROWS", "KEYS", "OWN", "COLUMNS", "TILE", "WIDTH")),
        (weights, ("ROWS", "KEYS")),
    ):
        for name in names:  # small tiles compile soonest
            setattr(module, name, 16)
    n, seed = 24, torch.zeros(1, dtype=torch.int64)
    mask = torch.ones(1, 1, 1, n, dtype=torch.bool)
    for dtype, allowed, reach, dropped in (
        (torch.bfloat16, None, (None, None), 0),
        (torch.float32, mask, (3, 0), 9),
    ):
        query, key, value = (torch.zeros(1, 2, n, 20, dtype=dtype) for _ in range(3))
        launch = additive._Launch(
            reach, dropped, seed, allowed, query, key, torch.zeros(1, 20), value
        )
        launch.speed["FAST"] = dtype == torch.bfloat16
        out, lse, kept = launch.forward()
        launch.backward(out, lse, kept, out)
        spec = AttentionSpec(DotScoreFunction(1.0), query, key, AttentionMask(allowed, *reach))
        weights.triton_weights(spec, slice(0, n), lse)
        weights.triton_summary(spec, 5, torch.ones(n), lse)
    for module, names in (
        (residual_norm_triton, ("add_norm", "add_norm_backward")),
        (linear_triton, ("activation_backward",)),
        (linear_fp8_triton, ("largest_magnitude", "cast_transpose")),
        (cross_entropy_triton, ("cross_entropy", "r_drop_cross_entropy")),
        (varlen_triton, ("short_attention", "d_short_attention")),
        (conv_unfold_triton, ("unfold", "unfold_backward")),
        (rnn_triton, ("step", "d_step")),
    ):
        for name in names:
            setattr(module, name, Compiled(getattr(module, name)))
    for dtype, dropout in ((torch.bfloat16, 0.1), (torch.float32, 0.0)):
        training(dtype, dropout)
    convolutions(torch.bfloat16)
    recurrences(torch.bfloat16)
    decoding(torch.bfloat16)
    assert all(kernel.asm["cubin"] for kernel in made)
    assert all(kernel.metadata.shared <= triton_launch.SHARED for kernel in made)
    print(len(made))


class Context:
    """The context that autograd passes to a function's forward and backward."""

    needs_input_grad = (True,) * 8

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def set_materialize_grads(self, _):
        pass


@torch.no_grad()
def training(dtype, dropout) -> None:
    x, low = torch.zeros(8, 40), torch.zeros(8, 40, dtype=dtype)
    seed, weight = torch.zeros(1, dtype=torch.int64), torch.ones(40)
    for added, bias in ((low, weight), (None, None)):
        ctx = Context()
        residual_norm._AddNorm.forward(
            ctx, x, added, weight, bias, seed, 1e-5, int(dropout * 65536), dtype
        )
        residual_norm._AddNorm.backward(ctx, None if added is None else x, low)
    ends, ctx = SequenceOffsets.of([5, 3]), Context()
    varlen._Short.forward(
        ctx, False, varlen.HeadLayout(4, 2, 5, 1.0, True, dropout), ends, ends, seed, low, None
    )
    varlen._Short.backward(ctx, low[:, :20])
    linear.activation_backward(low, low, "gelu", magnitude=True)
    for float8 in (linear_fp8.E4M3, linear_fp8.E5M2):
        linear_fp8._cast_transpose(low, float8, linear_fp8.largest_magnitude(low))
    for r_drop in (0.0, 1.0):
        losses._on_gpu(
            low, low[:6], low[0, :6], torch.zeros(8, dtype=torch.int64), 0.1, r_drop, 4, (True,) * 3
        )


@torch.no_grad()
def convolutions(dtype) -> None:
    """With the largest tiles."""
    low, ends, ctx = torch.zeros(133, 3 * 512, dtype=dtype), SequenceOffsets.of([128, 5]), Context()
    seed = torch.zeros(1, dtype=torch.int64)
    varlen._Short.forward(
        ctx, True, varlen.HeadLayout(1, 1, 512, 1.0, True, 0.1), ends, ends, seed, low, None
    )
    varlen._Short.backward(ctx, low[:, :512])
    conv_unfold._Unfold.forward(
        ctx, low[:, :512].contiguous(), *conv_unfold.Neighbors.of(ends), range(-2, 3, 2)
    )
    conv_unfold._Unfold.backward(ctx, low)


@torch.no_grad()
def recurrences(dtype) -> None:
    low, steps = torch.zeros(2, 5, 24, dtype=dtype), StepSchedule([3, 2])
    for name, gates in (("elman", 1), ("gru", 3), ("lstm", 4)):
        bias = torch.zeros(2, CELLS[name].count * 20)
        weights = torch.zeros(2, gates * 20, 24), torch.zeros(2, gates * 20, 20), bias
        start = low[:, :3, :20], *((torch.zeros(2, 3, 20),) if name == "lstm" else ())
        ctx = Context()
        states = rnn_cuda._Scan.forward(ctx, name, steps, low, *weights, *start)
        rnn_cuda._Scan.backward(ctx, *states)


@torch.inference_mode()
def decoding(dtype) -> None:
    """Every part of a step, with one and with two hypotheses, with few rows and with many."""
    for module in (beam_step_triton, sampling_triton, step_triton):
        module.launch_options = lambda: {"EARLY": True, "launch_pdl": True}
        for name in DECODING_KERNELS & vars(module).keys():
            setattr(module, name, Compiled(getattr(module, name)))
    dim, heads, time, tokens = (
        64,
        4,
        torch.zeros(1, dtype=torch.int64),
        torch.zeros(4, dtype=torch.int64),
    )
    linear = StepLinear(torch.zeros(dim, dim, dtype=dtype), torch.zeros(dim, dtype=dtype))
    for rows, norm in (
        (4, StepNorm(torch.ones(dim), None, 1e-5)),
        (128, StepNorm(*torch.ones(2, dim), 1e-5)),
    ):
        pending = PendingResidual(torch.zeros(rows, dim), torch.zeros(rows, dim, dtype=dtype))
        step_triton.norm_linear(pending, norm, linear, post_norm=rows == 4, activation=relu_)
    step_triton.add_linear(
        PendingResidual(torch.zeros(4, dim)), torch.zeros(4, dim, dtype=dtype), linear
    )
    for batch, beams in ((4, 1), (2, 2)):
        admitted, parents = (
            torch.zeros(batch, dtype=torch.int64),
            torch.zeros(batch, beams, 20, dtype=torch.int32),
        )
        step_triton.embed(
            tokens, torch.zeros(100, dim, dtype=dtype), 2.0, torch.zeros(50, dim), admitted, time
        )
        cache = torch.zeros(batch, 20, beams, 2, dim, dtype=dtype)
        step_triton.self_attention(
            torch.zeros(4, 3 * dim, dtype=dtype), cache, parents, admitted, time, heads
        )
        source, mask = (
            torch.zeros(batch, 30, 2, dim, dtype=dtype),
            torch.ones(batch, 30, dtype=torch.bool),
        )
        step_triton.cross_attention(torch.zeros(4, dim, dtype=dtype), source, mask, heads)
    persistent_step(dtype)
    scores, flags = torch.zeros(4, 1, 5000, dtype=dtype), torch.zeros(4, dtype=torch.bool)
    sampling_triton.greedy_step(scores, tokens.view(4, 1, 1), *[tokens] * 3, flags, flags, 3, 0)
    sampling_triton.log_sum_exp(scores)
    sampling_triton.top_k(scores, 5)
    sampling_triton.fingerprints(tokens, tokens)
    beam_step(torch.zeros(2, 8, 16), tokens[:2], time)


def beam_step(logits, numbers, time) -> None:
    """Of as many hypotheses as the kernel is for."""
    total, history = logits[:, :, 0], logits.long()
    ended = history, logits, history[:, :, 0], total
    state = total, history, logits, numbers, numbers, numbers, numbers.bool(), *ended, logits[0, 0]
    beam_step_triton.beam_step(logits, history, total, *state, 3, False)
    beam_step_triton.follow(history.int(), history[:, :, 0], time)


def persistent_step(dtype) -> None:
    """A whole step of one row in one kernel, with all programs of an H200."""

    def linear(outputs, inputs):
        return StepLinear(
            torch.zeros(2, outputs, inputs, dtype=dtype), torch.zeros(2, outputs, dtype=dtype)
        )

    dim, time, norm = 64, torch.zeros(1, dtype=torch.int64), StepNorm(*torch.ones(2, 64), 1e-5)
    square, norms = linear(dim, dim), torch.ones(2, 3, dim)
    layers = StackedLayers(
        norms,
        norms,
        1e-5,
        linear(3 * dim, dim),
        square,
        square,
        square,
        linear(128, dim),
        linear(dim, 128),
    )
    persistent_step_triton._step = Compiled(persistent_step_triton._step)
    persistent_step_triton._programs, persistent_step_triton._bulk = (
        lambda device: 132,
        lambda device: True,
    )
    kinds, flag = torch.ones(100, dtype=torch.int8), torch.zeros(1, dtype=torch.uint8)
    choice = persistent_step_triton.Choice(
        kinds, time, time, time, time, time[None], time, flag, flag, 0
    )
    for given, steps in ((None, 1), (choice, 4)):
        persistent_step_triton.step(
            time, torch.zeros(100, dim, dtype=dtype), 8.0, torch.zeros(50, dim), layers, norm,
            StepLinear(torch.zeros(100, dim, dtype=dtype), torch.zeros(100, dtype=dtype)),
            torch.zeros(2, 1, 20, 1, 2, dim, dtype=dtype), time, torch.zeros(1, 30, 2, 2, dim, dtype=dtype),
            torch.ones(1, 30, dtype=torch.bool), time, persistent_step_triton.step_workspace(layers, 4, steps), 4,
            relu_, given, steps,
        )  # fmt: skip


if __name__ == "__main__":
    main()
