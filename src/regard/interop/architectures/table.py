"""The table of architectures."""

from typing import Any

from regard.interop.architectures.base import Architecture
from regard.interop.architectures.seq2seq import Marian, Pegasus

_ALL: tuple[Architecture[Any], ...] = (Marian(), Pegasus())
# By the model_type of config.json.
ARCHITECTURES: dict[str, Architecture[Any]] = {architecture.model_type: architecture for architecture in _ALL}
