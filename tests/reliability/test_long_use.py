"""A process that predicts for a long time holds no more memory than at its beginning."""

import random
from pathlib import Path

import pytest

import regard
from support.forged import GOLDEN

MEBIBYTE = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_is_flat_over_20_000_predictions():
    model, chance = regard.load(GOLDEN / "transformer", device="cpu"), random.Random(0)

    def predict(count: int) -> None:
        while count > 0:
            size = min(count, chance.choice([1, 7, 64, 256]))
            texts = [
                "".join(chance.choices("abcdefgh ", k=chance.randrange(0, 24))) for _ in range(size)
            ]
            options = chance.choice([{}, {"beam_size": 3}, {"sample": True, "seed": 1}])
            assert len(list(model.predict(texts, max_length=8, **options))) == size
            count -= size

    predict(4000)  # caches fill
    before = resident()
    predict(20_000)
    assert resident() - before < 24 * MEBIBYTE
