"""Looks under edits, from the output without them.

Most edits change little of an output. So the output before the edits is a draft: one forward pass under the edits gives
the choice of greedy search at every position, and where they are the tokens of the draft, it is what greedy search
would find, as in speculative decoding (https://arxiv.org/abs/2211.17192). Where it differs, the compiled decoder makes
the next draft, and where the edits before have changed the output, the first one, too. Without a compiled decoder, the
draft is corrected at the first position that differs and continues with the rest of the output before the edits, also
where a token was inserted. Where that proves too few tokens at a time, the output is searched for token by token. The
encoder runs once, and not at all where no edit changes what it computes.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

from regard.api.look import look_at_output, look_at_sources
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.data.fields.text import tokenizer_of
from regard.data.tokenizer import Tokenizer
from regard.generation.choose.options import options_in_use
from regard.generation.config import DecodeConfig
from regard.generation.engines.fused_options import OUTSIDE_STEPS
from regard.generation.request import TOKENS_FOR_ANY_SOURCE
from regard.inference.predictor import Predictor
from regard.interpret.editing import edits_encoder, forced_tokens
from regard.interpret.edits import Edit, read_edits
from regard.interpret.look import Look
from regard.model.seq2seq import Seq2Seq
from regard.studio.model_cache import ModelCache
from regard.studio.speculative_search import GreedyChoice, draft_search

TOKENS = 3  # least tokens that a forward pass must prove: it takes the time of about so many steps of a search
SEARCHES = (
    4  # of the compiled decoder, at most: each draft begins with what the one before it has proved
)
KEPT = 8  # drafts of a model
# The options with which a known output can be verified: the next token is the most likely one, except where it would
# repeat an n-gram.
PLAIN_OPTIONS = (OUTSIDE_STEPS - {"max_length_ratio", "num_hypotheses"}) | {
    "early_stopping",
    "length_penalty",
    "no_repeat_ngram_size",
}
LARGEST = 1 << 26  # bytes of queries, keys and values of the maps of a look that is kept


class _Kept(NamedTuple):
    ids: tuple[int, ...]  # of the output without edits
    look: Look | None  # with the maps of the encoder alone; of the last input only
    changes: bool = False  # whether edits have changed the output: the next ones probably do, too


class _Drafts:
    """The drafts of a model, by its inputs: those that were used last. Several threads may use them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[object, _Kept] = OrderedDict()

    def get(self, text: object) -> _Kept | None:
        with self._lock:
            return self._kept.get(text)

    def keep(self, text: object, draft: _Kept) -> None:
        """Keep a draft, whose look replaces that of every other: looks are large."""
        with self._lock:
            for other, kept in self._kept.items():
                self._kept[other] = kept._replace(look=None)
            self._kept[text] = draft
            self._kept.move_to_end(text)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def note_changes(self, text: object, draft: _Kept, *, changes: bool) -> None:
        """Note whether edits have changed an output, where its draft is still there."""
        with self._lock:
            if self._kept.get(text) is draft:
                self._kept[text] = draft._replace(changes=changes)


_drafts = ModelCache(_Drafts)


def keep_draft(predictor: Predictor, text: object, seen: Look) -> None:
    """Keep a look without edits: its output is the draft for edits of the same input, and its encoder ran for them."""
    forward = seen.forward
    if not _hashable(text) or forward is None or forward.targets is None or forward.labels is None:
        return
    encoded = replace(seen, maps=tuple(each for each in seen.maps if each.part == "encoder"))
    look = encoded if is_small(encoded) else None
    _drafts.of(predictor).keep(text, _Kept(_ids(seen), look))


def is_small(seen: Look) -> bool:
    """Whether a look may be kept for the next request."""
    calls = [each.call for each in seen.maps if each.call is not None]
    tensors = [
        x for call in calls for x in (call.spec.query, call.spec.key, call.value) if x is not None
    ]
    return sum(each.nbytes for each in tensors) <= LARGEST


def verified_look(
    predictor: Predictor, text: Any, edits: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> Look | None:
    """The look under edits that a search would give; None where only a search can tell."""
    config = predictor.decode_config(dict(options))
    target = tokenizer_of(predictor.target)
    model = predictor.model.generator
    kept = _drafts.of(predictor).get(text) if _hashable(text) else None
    if kept is None or target is None or model is None or not predictor.sources:
        return None
    if not _is_plain(config) or target.special_tokens.target_prefix:
        return None
    try:
        found = _Verification(predictor, text, read_edits(edits), config, model, target).look(kept)
    except (
        InvalidArgument
    ):  # of a row or token that a draft does not have: a search tells whether the output has it
        return None
    is_bounded = predictor.recipe.data.bounds_outputs
    if found is not None and is_bounded and len(_ids(found)) > TOKENS_FOR_ANY_SOURCE:
        found = None  # it may have reached the limit that its source gives it
    changes = kept.changes or found is None or _ids(found) != kept.ids
    _drafts.of(predictor).note_changes(text, kept, changes=changes)
    return found


@dataclass(frozen=True)
class _Verification:
    predictor: Predictor
    text: Any
    edits: Sequence[Edit]
    config: DecodeConfig
    model: Seq2Seq
    target: Tokenizer

    def look(self, kept: _Kept) -> Look | None:
        special, longest = self.target.special_tokens, self.config.max_length
        seen = None if edits_encoder(self.model, self.edits) else kept.look
        draft, forced = _Draft(kept.ids, longest), forced_tokens(self.edits, self.target)
        if kept.changes:
            seen = seen or look_at_sources(self.predictor, self.text, kept.ids, self.edits)
            if found := self._searched(seen, forced):
                draft = _Draft(found, longest, searches=1)
        while True:
            seen, logits = look_at_output(self.predictor, self.text, draft.tokens, self.edits, seen)
            ids, choice = _ids(seen), GreedyChoice(special, self.config.no_repeat_ngram_size)
            at, chosen = _first_difference(ids, logits, forced, choice)
            if at is None:
                ended = [each in special.ends for each in ids]
                return seen if not any(ended[:-1]) and (ended[-1] or len(ids) == longest) else None
            proved = (*ids[:at], chosen)
            if chosen in special.ends:
                draft = _Draft(proved, longest, searches=draft.searches)
            elif draft.searches < SEARCHES and (
                found := self._searched(seen, {**forced, **dict(enumerate(proved))})
            ):
                draft = _Draft(found, longest, searches=draft.searches + 1)
            elif draft.is_promising(proved):
                draft.correct(proved)
            else:
                return None

    def _searched(self, seen: Look, given: Mapping[int, int]) -> tuple[int, ...] | None:
        """The draft of the compiled decoder, which has these tokens by position."""
        if seen.memory is None:
            return None
        longest = min(self.config.max_length, 2 * len(_ids(seen)) + 32)
        config = replace(self.config, max_length=longest)
        return draft_search(
            self.model, seen.memory, self.edits, given, self.target.special_tokens, config
        )


class _Draft:
    """An output to verify, made of one that is known.

    searches   for drafts under the edits so far
    """

    def __init__(self, known: tuple[int, ...], longest: int, *, searches: int = 0) -> None:
        self.tokens = self.known = known
        self.longest, self.searches = longest, searches
        self.ahead = 0  # by how many tokens the draft is ahead of the known output
        self.corrected: list[int] = []  # positions

    def is_promising(self, proved: tuple[int, ...]) -> bool:
        """Whether it has not been corrected yet, or was right in several tokens since, or lacks a token."""
        return (
            not self.corrected
            or len(proved) - 1 - self.corrected[-1] >= TOKENS
            or self._lacks_last(proved)
        )

    def correct(self, proved: tuple[int, ...]) -> None:
        """Begin with these tokens, the last of which the draft had not, and continue with the known output."""
        place = len(proved) - 1 - self.ahead
        rest = place if self._lacks_last(proved) else place + 1
        self.tokens, self.ahead = (*proved, *self.known[rest:])[: self.longest], len(proved) - rest
        self.corrected.append(len(proved) - 1)

    def _lacks_last(self, proved: tuple[int, ...]) -> bool:
        """Whether the token before the last was inserted: the one that it seemed to replace follows."""
        place = len(proved) - 1 - self.ahead
        follows = self.corrected[-1:] == [len(proved) - 2] and 0 < place <= len(self.known)
        return follows and self.known[place - 1] == proved[-1]


def _first_difference(
    ids: Sequence[int],
    logits: Float[Tensor, "T V"],
    forced: Mapping[int, int],
    choice: GreedyChoice,
) -> tuple[int | None, int]:
    """The first position at which greedy search chooses another token, and that token; None: there is none."""
    for position, (token, likely) in enumerate(zip(ids, logits.argmax(-1).tolist(), strict=True)):
        best = token if position in forced else choice.best(logits[position], likely)
        if best != token:
            return position, best
        choice.add(token)
    return None, -1


def _ids(seen: Look) -> tuple[int, ...]:
    assert seen.forward is not None
    assert seen.forward.labels is not None
    return tuple(seen.forward.labels.tolist())


def _is_plain(config: DecodeConfig) -> bool:
    """Whether the next token is the most likely one, except where it would repeat an n-gram: greedy search."""
    return options_in_use(config) <= PLAIN_OPTIONS


def _hashable(text: object) -> bool:
    return isinstance(text, str) or (
        isinstance(text, tuple) and all(isinstance(each, str) for each in text)
    )
