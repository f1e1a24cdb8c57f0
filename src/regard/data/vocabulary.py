"""Vocabularies: names by id, saved as JSON. Labels are one; `tokenizer.py` has those of texts."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidData
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens

VocabularyClass = TypeVar("VocabularyClass", bound="Vocabulary")


class Vocabulary(ABC):
    """What a field has learned from the training data, saved as JSON: names by id,
    or statistics.
    """

    file_format: str
    stored_kind: str  # its name in config.json of a checkpoint
    size: int  # the number of ids, or of the numbers of a value
    special_tokens: SpecialTokens = DEFAULT_TOKENS  # of texts; others have none

    @classmethod
    @abstractmethod
    def from_json(
        cls: type[VocabularyClass], text: str, settings: Mapping[str, Any] | None = None
    ) -> VocabularyClass:
        """From the content of a file that `save` wrote, and its `settings`;
        ValueError if it is not one.
        """

    @abstractmethod
    def to_json(self) -> str:
        """The content of the file that `save` writes."""

    @property
    def settings(self) -> dict[str, Any]:
        """What is stored beside the file, and makes another vocabulary of it;
        empty for those that Regard learns.
        """
        return {}

    @abstractmethod
    def tokens(self) -> list[str]:
        """All names, by id."""

    @property
    def number_names(self) -> tuple[str, ...]:
        """The names of the numbers of a value, or their numbers from 1; none where a value has no numbers."""
        return ()

    def for_running_text(self: VocabularyClass) -> VocabularyClass:
        """The vocabulary of running text, whose end token is a line break; of others, the same."""
        return self

    @classmethod
    def load(
        cls: type[VocabularyClass], path: str | Path, settings: Mapping[str, Any] | None = None
    ) -> VocabularyClass:
        try:
            return cls.from_json(Path(path).read_text("utf-8"), settings)
        except InvalidArgument:
            raise
        except (OSError, ValueError) as error:
            remedy = "Copy it again from where it was saved."
            raise InvalidData(
                path, wanted=cls.file_format, got=str(error)[:200], remedy=remedy
            ) from None

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), "utf-8")

    @property
    def hash(self) -> str:
        """A hash of the content and of the settings."""
        return content_hash(self.to_json(), self.settings)


def content_hash(text: str, settings: Mapping[str, Any]) -> str:
    """A hash of a vocabulary's JSON and, where it has any, its settings."""
    content = json.loads(text)
    if settings:
        content = [content, settings]
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


class Labels(Vocabulary):
    """Label names and their ids: in alphabetical order,
    or with `ordered` in the order in which they are given.
    """

    file_format = "a file of labels"
    stored_kind = "labels"

    def __init__(self, names: Iterable[str], *, ordered: bool = False) -> None:
        given = list(names)
        self.names = tuple(given if ordered else sorted(set(given)))
        if not self.names or "" in self.names or len(set(self.names)) < len(self.names):
            got = "one twice"
            if not self.names:
                got = "none"
            elif "" in self.names:
                got = "an empty one"
            raise InvalidArgument(
                "names", wanted="names of labels", got=got, remedy="Give each example a label."
            )
        self._number = {name: number for number, name in enumerate(self.names)}
        self.size = len(self.names)

    @classmethod
    def from_json(cls, text: str, settings: Mapping[str, Any] | None = None) -> "Labels":
        try:
            content = json.loads(text)
        except RecursionError:
            raise ValueError("JSON nested too deeply") from None
        if settings or not isinstance(content, dict) or not isinstance(content.get("labels"), list):
            raise ValueError("labels with special tokens" if settings else "no labels in it")
        return Labels([str(name) for name in content["labels"]], ordered=True)

    def to_json(self) -> str:
        return json.dumps({"labels": self.names}, ensure_ascii=False, indent=1)

    def tokens(self) -> list[str]:
        return list(self.names)

    def encode(self, name: str) -> int:
        if name not in self._number:
            wanted = f"one of the {self.size} labels of the training data"
            remedy = nearest(name, self.names)
            raise InvalidArgument("label", wanted=wanted, got=repr(name), remedy=remedy)
        return self._number[name]

    def decode(self, number: int) -> str:
        if not 0 <= number < self.size:
            wanted = f"a number from 0 to {self.size - 1}"
            raise InvalidArgument(
                "label", wanted=wanted, got=str(number), remedy="Use its own labels."
            )
        return self.names[number]
