"""Outputs of the compiled engine do not depend on the batch, bit for bit: texts and log-probabilities."""

import random

import pytest
import torch

from regard.core.sequence import Tokens
from regard.generation.engines import selection
from regard.generation.engines.cpu import compile
from regard.generation.engines.cpu.engine import MAX_TOKENS, CpuEngine
from regard.inference.predictor import Predictor
from support import predictors
from support.predictors import TEXT, language_model, translator

pytestmark = pytest.mark.skipif(compile.library() is None, reason="no C++ compiler here")
WIDE = {
    "kind": "transformer",
    "dim": 96,
    "layers": 2,
    "heads": 3,
    "ffn_dim": 200,
}  # no multiples of a panel
WORDS = " ".join(TEXT[:3]).split()
MODES = [
    {},
    {"beam_size": 3},
    {"sample": True, "temperature": 1.5, "seed": 4},
    {"repetition_penalty": 1.2},
]


def texts(count: int) -> list[str]:
    chance = random.Random(2)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(1, 14))) for _ in range(count)]


@pytest.fixture(scope="module")
def wide() -> Predictor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(predictors.PARTS, "transformer", WIDE)
        return translator(encoder="transformer")


@pytest.mark.parametrize("options", MODES, ids=["greedy", "beam", "sampling", "processor"])
@pytest.mark.parametrize("model", ["wide", "language model"])
def test_outputs_do_not_depend_on_the_batch(request, model, options):
    model = request.getfixturevalue("wide") if model == "wide" else language_model()
    given, settings = texts(13), {**options, "max_length": 8, "min_length": 3, "scores": True}
    together = model.outputs(given, **settings)
    for count in (1, 2, 7):
        for first in range(0, len(given), count):
            some = given[first : first + count]
            numbers = [first + 1 + index for index in range(len(some))]
            assert model.outputs(some, lines=numbers, **settings) == together[first : first + count]


def test_large_batches_are_encoded_in_parts(wide):
    """Of which each fits into the cache of a processor; PyTorch is not used, which rounds otherwise."""
    chance = random.Random(1)
    rows = [[chance.randrange(5, 300) for _ in range(chance.randrange(20, 50))] for _ in range(90)]
    source = Tokens.of(rows)
    assert source.ids.numel() > 2 * MAX_TOKENS - 500
    with torch.inference_mode():
        memory = CpuEngine().encode(wide.model, source, half=False)
        torch.testing.assert_close(
            memory.states, wide.model.encode(source).states, atol=2e-5, rtol=1e-4
        )
        for row in range(0, len(rows), 17):
            alone = selection.encode(wide.model, Tokens.of([rows[row]]))
            assert torch.equal(memory.states[row, : len(rows[row])], alone.states[0])
