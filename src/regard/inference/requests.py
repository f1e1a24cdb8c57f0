"""Builds the requests of a search from encoded inputs and the constraints on their outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regard.core.errors import InvalidArgument
from regard.data.tokenizer import END, START, Tokenizer
from regard.decoding.config import DecodeConfig
from regard.decoding.interfaces import LogitsProcessor
from regard.decoding.logits_processors import BannedTokens
from regard.decoding.request import Request, SearchTask
from regard.inference import phrases
from regard.inference.inputs import EncodedInput, InputEncoder, check_list
from regard.interpret.output_attention import coverage_reranker
from regard.model.seq2seq import Seq2Seq


class Constraints(NamedTuple):
    """What outputs must and must not contain, as in `Predictor.iter_outputs`."""

    prefixes: Sequence[str] | None = None
    banned: Sequence[str] = ()
    required: Sequence[Sequence[str]] | None = None
    banned_in: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True)
class RequestBuilder:
    """Makes the task and the requests of a search.

    has_source   whether the model has a source; if not, outputs continue their inputs
    documents    whether a language model was trained on running text, where the end token separates documents
    """

    model: Seq2Seq
    tokenizer: Tokenizer
    inputs: InputEncoder
    has_source: bool
    documents: bool

    def task(
        self, config: DecodeConfig, banned: Sequence[str], *, scored: bool, lines: Sequence[int] | None = None
    ) -> SearchTask:
        """What all requests share. `lines` are line numbers from 1, on which the draws of a sampling search depend."""
        processors: list[LogitsProcessor] = []
        if banned:
            processors.append(BannedTokens(phrases.banned(self.tokenizer, banned)))
        first = END if self.documents else START
        return SearchTask(
            self.model,
            self.inputs.collate,
            config,
            processors,
            first,
            ends=not self.documents,
            rerank=coverage_reranker(self.model, config, first),
            scored=scored,
            numbers=None if lines is None else [line - 1 for line in lines],
        )

    def requests(self, encoded: list[EncodedInput], constraints: Constraints) -> list[Request]:
        """One request for each input."""
        count = len(encoded)
        prefixes: Sequence[Sequence[int]] = [()] * count
        if constraints.prefixes is not None:
            prefixes = self.tokenizer.encode_batch(check_list("prefixes", constraints.prefixes, count))
        lists = _for_each("required", constraints.required, count), _for_each("banned_in", constraints.banned_in, count)
        required = [phrases.required(self.tokenizer, each) for each in lists[0]]
        banned = [phrases.banned(self.tokenizer, each) for each in lists[1]]
        rows = zip(encoded, self.inputs.sizes(encoded), prefixes, banned, required, strict=True)
        if self.has_source:
            return [Request(source, size, prefix, no, yes) for source, size, prefix, no, yes in rows]
        return [
            Request(None, 0, [*prompt, *prefix], no, yes, given=len(prompt))
            for prompt, _, prefix, no, yes in rows
            if isinstance(prompt, list)
        ]


def _for_each(name: str, lists: Sequence[Sequence[str]] | None, count: int) -> Sequence[Sequence[str]]:
    """One list for each input; empty ones where none are given."""
    if lists is None:
        return [()] * count
    if isinstance(lists, str) or len(lists) != count:
        wanted, remedy = f"{count} lists, one for each text", "Empty ones are fine."
        raise InvalidArgument(name, wanted=wanted, got=repr(lists)[:60], remedy=remedy)
    return lists
