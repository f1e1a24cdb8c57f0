"""What a request may ask of a search: an operator's caps, and the memory that all searches of a scheduler share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regard.core.errors import InvalidArgument
from regard.generation.config import DecodeConfig
from regard.generation.search_memory import free_bytes
from regard.inference.load import pick_device

MAX_LENGTH = 4096
MAX_BEAMS = 128
SEARCH_MEBIBYTES = 512  # on a CPU; a GPU's memory is not that of the process
GPU_SHARE = 2  # of a GPU's free memory, one part
ASIDE_SHARE = 4  # of the memory, one part is for searches that are computed aside

SMALL_SHARE = 4  # of the memory, one part is for small searches alone
SMALL_SEARCHES = 16  # that fit into that part: those that take no more are small


def reserved_search_bytes(allowed: int) -> int:
    """Of the memory of all searches, what no large one takes: small ones need not wait for those."""
    return allowed // SMALL_SHARE


def small_search_bytes(allowed: int) -> int:
    """What a search for one job takes at most, for which memory is reserved."""
    return reserved_search_bytes(allowed) // SMALL_SEARCHES


@dataclass(frozen=True)
class OptionCaps:
    """The largest values of options that a request may give. What a model's own recipe says is always allowed.

    max_length   tokens of an output
    max_beams    hypotheses of a beam, and outputs
    """

    max_length: int = MAX_LENGTH
    max_beams: int = MAX_BEAMS

    def check(self, options: Mapping[str, Any], own: DecodeConfig) -> None:
        """Refuse options beyond the caps.

        own   the [decode] table of the model's recipe
        """
        caps = {
            "max_length": ("--max-length", self.max_length),
            "beam_size": ("--max-beams", self.max_beams),
            "num_hypotheses": ("--max-beams", self.max_beams),
        }
        for name, (option, cap) in caps.items():
            value = options.get(name)
            most = max(cap, getattr(own, name))
            if isinstance(value, int) and value > most:
                wanted = f"at most {most:,} on this server ({option})"
                raise InvalidArgument(
                    name, wanted=wanted, got=f"{value:,}", remedy="Ask for fewer."
                )


DEFAULT_CAPS = OptionCaps()


def search_bytes(device: str, mebibytes: int | None) -> int:
    """Bytes that the searches of a scheduler on this device may take together."""
    if mebibytes is not None:
        return mebibytes << 20
    found = torch.device(pick_device(device))
    if found.type == "cuda":
        return free_bytes(found) // GPU_SHARE
    return SEARCH_MEBIBYTES << 20
