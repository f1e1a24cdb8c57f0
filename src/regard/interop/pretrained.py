"""A model folder of Hugging Face's transformers, read as the table and the weights of a model of ours."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from regard.core.config import nearest
from regard.core.errors import InvalidData
from regard.core.shapes import Tensor
from regard.inference.load import check_sizes
from regard.interop.architectures.base import (
    TARGET_KINDS,
    Architecture,
    SharedKeys,
    problem_type,
)
from regard.interop.architectures.table import ARCHITECTURES
from regard.interop.rules import Step, plan
from regard.interop.tensors import TensorFolder, read_json
from regard.model.build import build, parse_model
from regard.model.model_config import ModelConfig
from regard.model.weights import weights_of

CONFIG = "config.json"
GENERATION = "generation_config.json"
# Tasks that a table with a pool must name, by the kinds of their targets.
TASKS_OF_POOLS = {"labels": "multi_label", "number": "regress"}


class PretrainedFolder:
    """config.json and the weights of a model folder, checked: every weight is used exactly once.

    Unknown architectures and options, missing, unknown and misshapen tensors raise errors that name file and key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG)
        self.architecture: Architecture[Any] = _architecture(self.config, folder / CONFIG)
        self.head = self.architecture.head(self.config, folder / CONFIG)
        self.keys: SharedKeys = self.architecture.read(self.config, self.head, folder / CONFIG)
        self.tensors = TensorFolder(folder)
        self.table = self.architecture.table(self.keys, self.head, self.tensors)
        if "pool" in self.table or self.tags_words:
            self.table["num_labels"] = len(self.labels)
        if self.target_kind in TASKS_OF_POOLS:
            self.table["task"] = TASKS_OF_POOLS[self.target_kind]
        self._file_names = self.architecture.renamed(list(self.tensors))
        self.model = self._checked_model()
        self._check_names()

    @property
    def classifies(self) -> bool:
        """Whether it predicts labels or numbers."""
        return self.model.pool is not None

    @property
    def tags_words(self) -> bool:
        """Whether it predicts a tag for each word."""
        return self.head == "tags"

    @property
    def target_kind(self) -> str:
        """The kind of its target: "label", "labels", "number" or "tags", or "text" if it generates tokens."""
        if self.tags_words:
            return "tags"
        if "pool" in self.table:
            return TARGET_KINDS[problem_type(self.config)]
        return "text"

    @cached_property
    def labels(self) -> list[str]:
        """The names of the classes, by id."""
        given = self.config.get("id2label")
        count = self.config.get("num_labels", 2)
        where = f"{self.folder / CONFIG}: id2label"
        if given is None and isinstance(count, int) and 0 < count <= 1_000_000:
            return [f"LABEL_{i}" for i in range(count)]
        found = []
        if isinstance(given, dict):
            found = [given.get(str(i)) for i in range(len(given))]
        names = [name for name in found if isinstance(name, str) and name]
        if not found or len(set(names)) < len(found):
            wanted = "a different name for each class from 0"
            remedy = "Change it."
            raise InvalidData(where, wanted=wanted, got=repr(given)[:80], remedy=remedy)
        return names

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Our names and weights, one at a time, in the file's dtype or in this one."""
        for step, source in zip(self.steps, self._sources, strict=True):
            tensor = self.tensors[source]
            if dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(dtype)
            yield from step.to_ours(tensor).items()

    def tensors_of_ours(
        self, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, torch.Size, torch.dtype]]:
        """Name, shape and dtype of each of `weights`, in this order, without reading them."""
        for step, source in zip(self.steps, self._sources, strict=True):
            for name in step.ours:
                yield name, self._own[name].shape, dtype or self.tensors.dtype(source)

    def _checked_model(self) -> ModelConfig:
        where = self.folder / CONFIG
        try:
            check_sizes(self.table, [_numel(self.tensors.shape(name)) for name in self.tensors])
            model = parse_model(self.table)
            if isinstance(model, list):
                raise ValueError("; ".join(map(str, model)))
            with torch.device("meta"):
                self._own = weights_of(build(model))
        except (ValueError, RuntimeError, OverflowError) as error:
            remedy = "Its numbers do not belong together: use another model."
            raise InvalidData(
                where, wanted="a model", got=str(error)[:500].rstrip("."), remedy=remedy
            ) from None
        return model

    def _check_names(self) -> None:
        """Find the tensor of each step; refuse missing, misshapen and unknown ones."""
        names = self._file_names
        copies = self.architecture.copies(self.keys, self.model)
        self.steps: list[Step] = plan(self.architecture.rules(self.keys, self.model), self._own)
        self._sources: list[str] = []  # the tensor of each step
        unknown = dict(names)
        for step in self.steps:
            possible = (step.theirs, *copies.get(step.theirs, ()))
            found = [name for name in possible if name in names]
            if not found:
                wanted = f"the weight {step.theirs}"
                remedy = "The checkpoint is incomplete, or its config.json is that of another."
                raise InvalidData(self.tensors.listing, wanted=wanted, got="none", remedy=remedy)
            source = names[found[0]]
            shape = tuple(step.to_theirs(self._own).shape)
            if self.tensors.shape(source) != shape:
                got = str(self.tensors.shape(source))
                remedy = "config.json and weights are of different models."
                raise InvalidData(
                    self.tensors.where(source), wanted=f"shape {shape}", got=got, remedy=remedy
                )
            # A file may have a tied weight several times. All copies must be equal.
            for other in found[1:]:
                if not self.tensors.equal(source, names[other]):
                    where = self.tensors.where(names[other])
                    wanted = f"the same tensor as {source}, to which config.json ties it"
                    remedy = "Such a model is not imported."
                    raise InvalidData(where, wanted=wanted, got="another", remedy=remedy)
            self._sources.append(source)
            for name in found:
                del unknown[name]
        left = [name for name in unknown if not self.architecture.is_ignored(name)]
        if left:
            got = ", ".join(left[:5])
            if len(left) > 5:
                got += f" and {len(left) - 5} more"
            wanted = f"the weights of {self.architecture.model_type} and no others"
            where = self.tensors.where(unknown[left[0]]).rpartition(": ")[0]
            raise InvalidData(
                where, wanted=wanted, got=got, remedy="The model has parts that are not imported."
            )


def _architecture(config: Mapping[str, Any], where: Path) -> Architecture[Any]:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        wanted = f"one of {', '.join(ARCHITECTURES)}"
        near = nearest(str(kind), ARCHITECTURES, listed=True)
        remedy = near if near.startswith("Did you mean") else "Use another model."
        if kind == "regard":
            remedy = "This is a checkpoint of Regard: use regard.load."
        raise InvalidData(f"{where}: model_type", wanted=wanted, got=repr(kind)[:80], remedy=remedy)
    return ARCHITECTURES[kind]


def _numel(shape: tuple[int, ...]) -> int:
    numel = 1
    for size in shape:
        numel *= size
    return numel
