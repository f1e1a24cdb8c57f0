"""The memory of large images: bounded while several are decoded at once, and given back."""

import pytest

from support.resident import MEBIBYTE, needs_proc, output_of

Image = pytest.importorskip("PIL.Image", reason="needs the extra `images`")

DECODE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from regard.data.images import decode_image
from support.resident import forget_peak, peak, resident

content = Path(sys.argv[1]).read_bytes()
small = Path(sys.argv[2]).read_bytes()
decode_image(small, "small", 64)
forget_peak(os.getpid())
before = resident(os.getpid())
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda number: decode_image(content, str(number), 64), range(8)))
assert all((each == found[0]).all() for each in found)
print(peak(os.getpid()) - before, resident(os.getpid()) - before)
"""


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_large_images_take_the_memory_of_one_and_give_it_back(mode, tmp_path):
    """Eight of 64 million pixels at once, whose files have some hundred kilobytes."""
    large = tmp_path / "large.png"
    Image.new(mode, (8192, 8192), "teal").save(large)
    small = tmp_path / "small.png"
    Image.new("RGB", (64, 64)).save(small)
    printed = output_of(DECODE, str(large), str(small))
    most, kept = map(int, printed.split())
    assert most < 512 * MEBIBYTE
    assert kept < 50 * MEBIBYTE
