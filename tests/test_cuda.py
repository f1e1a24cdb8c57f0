"""The same contracts on a GPU. Skipped where there is none."""

from itertools import product

import pytest
import torch

import contracts
import regard
from family import DTYPES, MASKS, SCORES, SHAPES, Case
from regard.data.augmenting import DICE, augmented

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_gpu(query, key, value, *, score=None, mask=None, bias=None, **keywords):
    """`regard.attend` on the GPU for tensors of the CPU, so that the contracts can be used as they are."""
    if isinstance(bias, regard.DistanceBias):
        bias = regard.DistanceBias(bias.values.cuda())
    out = regard.attend(
        query.cuda(),
        key.cuda(),
        value.cuda(),
        score=OnGpu(score) if score is not None else None,
        mask=None if mask is None else mask.cuda(),
        bias=bias.cuda() if isinstance(bias, torch.Tensor) else bias,
        **keywords,
    )
    return out.cpu()


class OnGpu(regard.Score):
    """A score on the GPU whose gradients reach the parameters on the CPU."""

    def __init__(self, score: regard.Score) -> None:
        super().__init__()
        self.score = score

    def queries(self, query):
        return torch.func.functional_call(_Call(self.score, "queries"), self._named(), (query,))

    def keys(self, key):
        return torch.func.functional_call(_Call(self.score, "keys"), self._named(), (key,))

    def energy(self, width):
        return torch.func.functional_call(_Call(self.score, "energy"), self._named(), (width,))

    def _named(self):
        return {f"score.{name}": parameter.cuda() for name, parameter in self.score.named_parameters()}


class _Call(torch.nn.Module):
    def __init__(self, score, method):
        super().__init__()
        self.score, self.method = score, method

    def forward(self, argument):
        return getattr(self.score, self.method)(argument)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("score", "mask"), list(product(SCORES, MASKS)))
def test_equals_definition(score, mask, dtype):
    for shape in SHAPES if score == "scaled_dot" else ["more keys"]:
        contracts.equals_definition(on_gpu, Case(score, mask, DTYPES[dtype], shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
def test_other_contracts(score, dtype):
    contracts.blind_rows_give_zeros(on_gpu, Case(score, "blind", DTYPES[dtype]))
    contracts.future_changes_nothing(on_gpu, Case(score, "causal", DTYPES[dtype], "square"))
    contracts.future_changes_nothing(on_gpu, Case(score, "causal padding", DTYPES[dtype]))
    contracts.padding_changes_nothing(on_gpu, Case(score, dtype=DTYPES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("score", "mask"), list(product(SCORES, MASKS)))
def test_weights_are_exact(score, mask, dtype):
    def heard(query, key, **keywords):
        calls = []
        with regard.listen(calls.append):
            on_gpu(query, key, torch.zeros(*key.shape[:-1], 4, dtype=key.dtype), **keywords)
        return calls[0].weights().cpu()

    # A GPU sums in another order; the projections alone are worth an ulp or two more.
    contracts.weights_are_exact(heard, Case(score, mask, DTYPES[dtype]), slack=3)


def test_pictures_are_changed_alike():
    changes, pictures = ("crop", "flip", "colour"), 2 * torch.rand(8, 3, 16, 16) - 1
    dice = torch.rand(8, DICE)
    found = augmented(pictures.cuda(), changes, dice)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), augmented(pictures, changes, dice), atol=1e-4, rtol=0)
