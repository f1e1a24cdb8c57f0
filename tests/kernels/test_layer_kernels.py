"""What a GPU computes for layers and losses equals plain PyTorch, in value and gradient; here Triton interprets it."""

import os

import pytest
import torch
from torch import nn

from regard.core.sequence import SequenceOffsets
from regard.kernels import triton_launch
from regard.kernels.attention import reference, small_kv
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.layers import conv_unfold, linear, residual_norm
from regard.kernels.layers.dropout import Dropout
from regard.tasks import losses
from support.poison import poison

pytest.importorskip("triton", reason="needs Triton, which exists for Linux on x86_64")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "needs a GPU, or TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True
    )


def new(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).requires_grad_()


def both(
    monkeypatch, compute, *inputs: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and the gradients of all inputs, by the kernels and by plain PyTorch."""
    found = []
    for launched in (True, False):
        monkeypatch.setattr(
            triton_launch, "can_launch", lambda *tensors, launched=launched: launched
        )
        with pytest.MonkeyPatch.context() as patch:
            if launched:
                poison(patch)
            outputs = compute()
            torch.manual_seed(1)
            loss = sum((out * torch.randn_like(out)).sum() for out in outputs if out.requires_grad)
            found.append([*outputs, *torch.autograd.grad(loss, inputs)])
    return found[0], found[1]


@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm, residual_norm.OffsetRMSNorm])
@pytest.mark.parametrize(
    ("adds", "uses"), [(True, "both"), (True, "sum"), (True, "norm"), (False, "norm")]
)
def test_a_residual_and_its_norm(monkeypatch, make, adds, uses):
    """More rows than one program holds, and a width that is no power of two. Either output may be unused."""
    monkeypatch.setattr(residual_norm, "TILE", 16)
    monkeypatch.setattr(residual_norm, "BACKWARD_TILE", 8)
    monkeypatch.setattr(residual_norm, "PROGRAMS", 3)
    x, added, norm = new(2, 5, 6), new(2, 5, 6) if adds else None, make(6, eps=1e-3).to(DEVICE)
    nn.init.uniform_(norm.weight)
    dropout = Dropout(0.5).eval()

    def compute():
        total, normed = residual_norm.add_norm(
            residual_norm.PendingResidual(x, added), dropout, norm
        )
        return {"both": (total, normed), "sum": (total,), "norm": (normed,)}[uses]

    weights = [] if uses == "sum" else [*norm.parameters()]
    got, wanted = both(monkeypatch, compute, x, *([added] if adds else []), *weights)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", linear.KINDS)
def test_a_linear_layer_and_its_activation(activation):
    x, weight, bias = new(2, 35, 6), new(7, 6), new(7)
    got = linear._Linear.apply(x, weight, bias, activation, torch.float32)
    plain = nn.functional.linear(x, weight, bias)
    wanted = plain if activation is None else linear.ACTIVATIONS[activation](plain)
    direction = torch.randn_like(wanted)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(out, (x, weight, bias), direction) for out in (got, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_attention_of_wide_heads(masked, biased):
    """A row that may attend to nothing gives zeros."""
    inputs = query, key, value = new(2, 3, 4, 10), new(2, 3, 5, 10), new(2, 3, 5, 8)
    allowed = torch.rand(2, 1, 4, 5, device=DEVICE) > 0.4
    allowed[0, 0, 0] = False
    bias = torch.randn(1, 3, 4, 5, device=DEVICE) if biased else None
    mask = AttentionMask(allowed if masked else None)
    spec = AttentionSpec(DotScoreFunction(0.3), query, key, mask, bias)
    found = []
    for path in (small_kv, reference):
        torch.manual_seed(1)
        out, lse = path.attend(spec, value)
        found.append((out, *torch.autograd.grad(out, inputs, torch.randn_like(out))))
        seen = (
            allowed.any(-1).expand(lse.shape) if masked else torch.ones_like(lse, dtype=torch.bool)
        )
        found[-1] = (*found[-1], lse[seen])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("taps", [range(-2, 1), range(-1, 2), range(-4, 5, 2)])
def test_taps_of_a_convolution(monkeypatch, taps):
    """Sequences shorter than the distance, more rows than a tile has, and columns beyond one."""
    monkeypatch.setattr(conv_unfold, "ROWS", 4)
    monkeypatch.setattr(conv_unfold, "COLUMNS", 4)
    neighbors = conv_unfold.Neighbors(
        *(x.to(DEVICE) for x in conv_unfold.Neighbors.of(SequenceOffsets.of([3, 1, 6])))
    )
    x = new(10, 6)
    got, wanted = both(monkeypatch, lambda: (conv_unfold.unfold(x, neighbors, taps),), x)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("r_drop", [0.0, 0.7])
def test_losses_in_chunks_of_logits(monkeypatch, smoothing, r_drop):
    monkeypatch.setattr(losses, "chunk_size", lambda device: 11 * 4)  # four rows at a time
    states, weight, bias = new(10, 6), new(11, 6), new(11)
    gold = torch.randint(11, (10,), device=DEVICE)
    gold[1::2] = gold[::2]
    given = states, weight, bias, gold, smoothing, r_drop
    got, wanted = both(monkeypatch, lambda: losses._Chunked.apply(*given), states, weight, bias)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_a_loss_has_the_gradients_that_are_asked_for(monkeypatch, wanted):
    """Of states, matrix or bias alone, as where others are frozen."""
    inputs = [
        x.detach().requires_grad_(each)
        for x, each in zip((new(6, 5), new(7, 5), new(7)), wanted, strict=True)
    ]
    gold, trained = torch.randint(7, (6,), device=DEVICE), [x for x in inputs if x.requires_grad]
    got, expected = both(
        monkeypatch, lambda: losses._Chunked.apply(*inputs, gold, 0.1, 0.0), *trained
    )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
