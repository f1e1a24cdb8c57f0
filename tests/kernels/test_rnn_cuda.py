"""The Triton kernels of recurrent layers equal `rnn.scan`: on a GPU if there is one, else in Triton's interpreter."""

import os
from itertools import product

import pytest
import torch

from regard.core.sequence import Tokens
from regard.kernels.recurrent import rnn, rnn_cuda
from regard.kernels.recurrent.rnn import RnnWeights
from regard.model.embedding import Embedding, Projection
from regard.model.memory import Memory
from regard.model.rnn_decoder import RnnDecoder
from regard.model.rnn_decoder_config import RnnDecoderConfig
from regard.model.rnn_encoder import RnnConfig, RnnEncoder
from support.models import VOCABULARY, WIDTH, without_zeros, words
from support.poison import poison

pytest.importorskip("triton", reason="needs Triton, which exists for Linux on x86_64")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "needs a GPU, or TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True
    )

CELLS = ("elman", "gru", "lstm")
COUNTS = {"elman": 1, "gru": 3, "lstm": 4}  # of gates in PyTorch's order
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCE) if DEVICE == "cuda" else [torch.float32]
SIZES = {"one length": (3, 3, 3), "several lengths": (4, 3, 3, 1)}


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Memory that a kernel leaves unwritten holds NaN, and a state has several blocks."""
    poison(monkeypatch)
    monkeypatch.setattr(rnn_cuda, "BLOCK", 16)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def assert_near(got: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert got.shape == wanted.shape
    assert (got.double() - wanted.double()).norm() <= tolerance * wanted.double().norm() + 1e-6


def weighted_sum(*tensors: torch.Tensor) -> torch.Tensor:
    """A weighted sum in which every element has a different weight."""
    return sum(
        (x.float() * torch.linspace(-1, 1, x.numel(), device=x.device).view(x.shape)).sum()
        for x in tensors
    )


def random_leaf(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).mul_(scale).requires_grad_()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inner", [False, True], ids=["", "with gradients of the LSTM cells"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("cell", "sizes"), list(product(CELLS, SIZES)))
def test_kernels_equal_scan(cell, sizes, layers, inner, dtype):
    torch.manual_seed(3)
    counts, gates = SIZES[sizes], COUNTS[cell] * 5
    x = random_leaf(layers, sum(counts), 7)
    shapes = (gates, 7), (gates, 5), (gates,), (gates,)
    weights = [
        RnnWeights(*(random_leaf(*shape, scale=0.4) for shape in shapes)) for _ in range(layers)
    ]
    start = tuple(random_leaf(layers, counts[0], 5) for _ in range(2 if cell == "lstm" else 1))
    inputs = (x, *start, *(each for one in weights for each in one))

    def run(states):
        kept = states if inner else states[:1]
        return *kept, *torch.autograd.grad(weighted_sum(*kept), inputs)

    by_layer = [
        rnn.scan(cell, x[i], counts, tuple(s[i] for s in start), one)
        for i, one in enumerate(weights)
    ]
    wanted = run(tuple(torch.stack(each) for each in zip(*by_layer, strict=True)))
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        result = run(rnn_cuda.scan(cell, x, counts, start, weights))
    assert [each.dtype for each in result[len(result) - len(inputs) :]] == [torch.float32] * len(
        inputs
    )
    for got, right in zip(result, wanted, strict=True):
        assert_near(got, right, TOLERANCE[dtype])


@pytest.fixture
def with_and_without_kernels(monkeypatch):
    """A function that calls another twice: with the kernels only, and without them."""

    def both(run, *unused):
        with monkeypatch.context() as only:
            only.setattr(rnn_cuda, "can_launch", lambda x: True)
            for owner, name in unused:
                only.setattr(owner, name, None)
            first = run()
        monkeypatch.setattr(rnn_cuda, "can_launch", lambda x: False)
        return first, run()

    return both


@pytest.mark.parametrize(
    ("cell", "bidirectional", "layers"), list(product(CELLS, (True, False), (1, 2)))
)
def test_encoder_with_kernels_equals_pytorch(
    cell, bidirectional, layers, with_and_without_kernels, monkeypatch
):
    torch.manual_seed(3)
    module = RnnEncoder(RnnConfig(cell, WIDTH, layers, 0.0, bidirectional), words()).to(DEVICE)
    source = Tokens.of([[1, 2, 3], [], [4, 5, 6, 7, 8], [1], [3, 4, 5]]).to(DEVICE)

    def run():
        result = module(source)
        grads = torch.autograd.grad(
            weighted_sum(result.states, result.summary), list(module.parameters())
        )
        return result.states, result.summary, *grads

    for got, wanted in zip(
        *with_and_without_kernels(run, (rnn, "scan"), (RnnEncoder, "_packed")), strict=True
    ):
        assert_near(got, wanted, 3e-5)


@pytest.mark.parametrize("attention", ["none", "luong"])
@pytest.mark.parametrize(("cell", "layers"), list(product(CELLS, (1, 2))))
def test_decoder_with_kernels_equals_pytorch(cell, layers, attention, with_and_without_kernels):
    """In two segments, the second from the state after the first, with gradients through both."""
    torch.manual_seed(5)
    config = RnnDecoderConfig(
        cell, WIDTH, layers, dropout=0.0, attention=attention, score="bilinear"
    )
    module = without_zeros(RnnDecoder(config, words(), Projection(WIDTH, VOCABULARY), WIDTH)).to(
        DEVICE
    )
    targets = torch.randint(VOCABULARY, (4, 5), device=DEVICE)
    mask = torch.arange(6, device=DEVICE) < torch.tensor([6, 2, 1, 4], device=DEVICE)[:, None]
    memory = Memory(random_leaf(4, 6, WIDTH), mask, random_leaf(4, WIDTH))
    inputs = (memory.states, memory.summary, *module.parameters())

    def run():
        first, state = module.carry(targets[:, :2], module.start(memory, batch=4))
        second, state = module.carry(targets[:, 2:], state)
        grads = torch.autograd.grad(
            weighted_sum(first, second, *state.hidden), inputs, allow_unused=True
        )
        return first, second, *state.hidden, *(grad for grad in grads if grad is not None)

    for got, wanted in zip(
        *with_and_without_kernels(run, (type(module.rnn), "forward")), strict=True
    ):
        assert_near(got, wanted, 3e-5)


def test_dropout_is_applied_between_layers(with_and_without_kernels):
    """To the input of the upper layer, not to that of the lower one."""
    config = RnnDecoderConfig("gru", WIDTH, 2, dropout=0.5, attention="none")
    module = RnnDecoder(config, words(), Projection(WIDTH, VOCABULARY), None).to(DEVICE)
    given, hidden = random_leaf(4, 5, WIDTH), module.start(None, batch=4).hidden
    (first, again), _ = with_and_without_kernels(
        lambda: [module._run_layers(given, hidden)[1][0] for _ in "ab"]
    )
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[1], again[1])
    module.eval()
    (first, again), plain = with_and_without_kernels(
        lambda: [module._run_layers(given, hidden)[1][0] for _ in "ab"]
    )
    assert torch.equal(first, again)
    assert_near(first, plain[0], 3e-5)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("cell", CELLS)
def test_small_gradients_do_not_vanish(cell):
    """Gradients as small as those of one token in a large batch, which are zero in float16."""
    torch.manual_seed(3)
    module = RnnEncoder(RnnConfig(cell, 32, 2, 0.0), Embedding(VOCABULARY, 32)).to(DEVICE)
    source = Tokens.of([[1, 2, 3], [4, 5, 6, 7, 8], [3, 4, 5]]).to(DEVICE)

    def gradients(scale):
        loss = scale * weighted_sum(module(source).states)
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]
        )

    wanted = gradients(1.0)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert_near(gradients(1e-9) * 1e9, wanted, 3e-2)
