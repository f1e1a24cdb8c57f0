"""What the outputs of `regard predict` do not show: counted,
and reported on stderr when all are printed.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from regard.core.text_table import counted

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor
    from regard.tasks.pipeline import Output


class Losses:
    """Counts of unknown words, tabs, truncated and refused inputs, and endless outputs.

    refused   lines that were too long, and have an empty output
    """

    def __init__(self, predictor: "Predictor") -> None:
        from regard.data.fields.text import tokenizer_of

        # A language model reads what it writes.
        read = predictor.sources or (predictor.target,)
        self.sources = [tokenizer_of(vocabulary) for vocabulary in read]
        self.has_source = bool(predictor.recipe.data.source_fields)
        self.target = tokenizer_of(predictor.target)
        self.reads_one_text = len(predictor.sources) == 1 and self.sources[0] is not None
        self.lines = self.lines_with_unknown = self.unknown_words = self.lines_with_tabs = 0
        self.truncated = self.refused = self.outputs_with_unknown = 0
        self.ends = Counter[str | None]()

    @property
    def needs_tokens(self) -> bool:
        """Whether outputs are given with their tokens, so that unknown ones can be counted."""
        return self.target is not None and self.target.has_unknown

    def read(self, lines: Iterable[Any]) -> Iterator[Any]:
        """The lines, counted as they pass."""
        for line in lines:
            if isinstance(line, str):
                self._count_line(line)
            yield line

    def _count_line(self, line: str) -> None:
        self.lines += 1
        self.lines_with_tabs += self.reads_one_text and "\t" in line
        texts = line.split("\t") if len(self.sources) > 1 else [line]
        unknown = 0
        for tokenizer, text in zip(self.sources, texts, strict=False):
            if tokenizer is not None and tokenizer.has_unknown:
                unknown += tokenizer.count_unknown(tokenizer.encode(text))
        self.lines_with_unknown += unknown > 0
        self.unknown_words += unknown

    def add(self, outputs: "Sequence[Output]") -> None:
        """Count what is lost in the outputs of a line."""
        self.truncated += outputs[0].truncated
        self.ends[outputs[0].finish_reason] += 1
        if outputs[0].refused is not None:
            self.refuse(outputs[0].refused)
        if self.target is not None:
            ids = (self.target.count_unknown(each.token_ids) for each in outputs)
            self.outputs_with_unknown += sum(count > 0 for count in ids)

    def refuse(self, reason: object) -> None:
        """Count a line that has no output, and say at once why."""
        self.refused += 1
        _say(str(reason))

    def say(self) -> None:
        """A line on stderr for each kind that occurred."""
        if self.truncated:
            _say(f"{counted(self.truncated, 'line')} truncated, being too long")
        if self.lines_with_unknown:
            _say(
                f"{self.lines_with_unknown:,} of {counted(self.lines, 'line')} have words that the "
                f"model does not know: {counted(self.unknown_words, 'word')}"
            )
        if self.outputs_with_unknown:
            have = _have(self.outputs_with_unknown, "output")
            _say(f"{have} <unk>, a word that the model does not know")
        if self.lines_with_tabs:
            have = _have(self.lines_with_tabs, "line")
            _say(f"{have} a tab: this model reads one text, and the tab is part of it")
        warn_of_ends(self.ends, has_source=self.has_source)
        if self.refused:
            were = "was" if self.refused == 1 else "were"
            have = "has" if self.refused == 1 else "have"
            lines = counted(self.refused, "line")
            _say(f"{lines} {were} too long and {have} an empty output")


def warn_of_ends(ends: Counter[str | None], *, has_source: bool) -> None:
    """Say how many outputs reached their maximum length, by their finish_reason.

    Those of a language model, which has no source, do so in ordinary use.
    """
    if ends["repetition"]:
        _say(
            f"outputs that repeat themselves to the maximum length: {ends['repetition']} "
            "(--set no_repeat_ngram_size=N prevents that)"
        )
    if has_source and ends["length"]:
        _say(
            f"outputs that end at the maximum length: {ends['length']} "
            "(--set max_length=N and max_length_ratio=N allow more)"
        )


def _have(count: int, noun: str) -> str:
    have = "has" if count == 1 else "have"
    return f"{counted(count, noun)} {have}"


def _say(text: str) -> None:
    print(f"regard: {text}", file=sys.stderr)
