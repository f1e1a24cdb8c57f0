"""Looks under edits, from the output without them.

Most edits change little of an output. So the output before the edits is a draft: one forward pass under the edits gives
the most likely token at every position, and where they are those of the draft, it is what greedy search would find, as
in speculative decoding (https://arxiv.org/abs/2211.17192). At the first position that differs, the draft is corrected,
continues with the rest of the output before the edits, also where a token was inserted, and is verified
again. Where that proves too few tokens at a time, the output is searched for token by token.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from regard.api.look import look
from regard.data.tokenizer import Tokenizer
from regard.decoding.config import DecodeConfig
from regard.inference.predictor import Predictor
from regard.interpret.edits import ReplaceToken, read_edits
from regard.interpret.look import Look
from regard.model.seq2seq import Model

TOKENS = (
    3  # least tokens that a forward pass must prove on average: it takes the time of about so many steps of a search
)
PASSES = 3  # forward passes before that is asked
KEPT = 8  # drafts of a model

_drafts: WeakKeyDictionary[Model, "OrderedDict[object, tuple[int, ...]]"] = WeakKeyDictionary()


def keep_draft(predictor: Predictor, text: object, seen: Look) -> None:
    """Keep the output of a look without edits as the draft for edits of the same input."""
    forward = seen.forward
    if not _hashable(text) or forward is None or forward.targets is None or forward.labels is None:
        return
    kept = _drafts.setdefault(predictor.model, OrderedDict())
    kept[text] = tuple(forward.labels.tolist())
    kept.move_to_end(text)
    while len(kept) > KEPT:
        kept.popitem(last=False)


def verified_look(
    predictor: Predictor, text: Any, edits: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> Look | None:
    """The look under edits that a search would give; None where only a search can tell."""
    config, target = predictor.decode_config(dict(options)), predictor.target
    draft = _drafts.get(predictor.model, {}).get(text) if _hashable(text) else None
    if draft is None or not isinstance(target, Tokenizer) or not predictor.sources or not _is_plain(config):
        return None
    special, size = target.special_tokens, config.no_repeat_ngram_size
    forced = {each.position for each in read_edits(edits) if isinstance(each, ReplaceToken) and each.side == "output"}
    before, ahead = draft, 0  # the output before the edits, and by how many tokens the draft is ahead of it
    passes, last = 0, -1  # forward passes, and the position of the last correction
    while True:
        seen = look(predictor, text, output=draft, edits=edits)
        assert seen.forward is not None
        assert seen.forward.labels is not None
        assert seen.predicted is not None
        ids, best = seen.forward.labels.tolist(), seen.predicted
        wrong = [i for i, (own, other) in enumerate(zip(ids, best, strict=True)) if own != other and i not in forced]
        if not wrong:
            ends = ids[-1] == special.end or len(ids) == config.max_length
            return seen if ends and special.end not in ids[:-1] and not _repeats(ids, size) else None
        at, passes = wrong[0], passes + 1
        proved = (*ids[:at], best[at])
        if best[at] in special.suppressed or _repeats(proved, size):
            return None
        if passes >= PASSES and at < TOKENS * passes:
            return None
        if best[at] == special.end:
            draft = proved
            continue
        place = at - ahead  # where a token is inserted, the one that it seemed to replace follows
        inserted = last == at - 1 and 0 < place <= len(before) and before[place - 1] == best[at]
        rest = place if inserted else place + 1
        draft, ahead, last = (*proved, *before[rest:])[: config.max_length], len(proved) - rest, at


def _repeats(ids: Sequence[int], size: int) -> bool:
    """Whether a run of so many tokens occurs twice, which a search without repeated n-grams avoids; 0: never."""
    runs = [tuple(ids[first : first + size]) for first in range(len(ids) - size + 1)]
    return size > 0 and len(set(runs)) < len(runs)


def _is_plain(config: DecodeConfig) -> bool:
    """Whether the next token is the most likely one, except where it would repeat an n-gram: greedy search."""
    constraints = (
        config.beam_size > 1, config.sample, config.min_length, config.min_length_ratio,
        config.repetition_penalty != 1.0, config.max_length_ratio is not None, config.logits_processors,
        config.num_hypotheses > 1,
    )  # fmt: skip
    return not any(constraints)


def _hashable(text: object) -> bool:
    return isinstance(text, str) or (isinstance(text, tuple) and all(isinstance(each, str) for each in text))
