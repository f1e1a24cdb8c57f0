"""Linear layers in bfloat16 on a GPU."""

from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import lru_cache

import torch


def autocast(half: bool) -> AbstractContextManager[object]:
    """Linear layers in bfloat16, if `half`. Cast weights are not cached: a recording would keep pointing to them."""
    return copy(_bfloat16()) if half else nullcontext()


@lru_cache(maxsize=1)
def _bfloat16() -> torch.autocast:
    """To be copied: making one looks at the device, which takes longer than the launch of a recorded step."""
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
