"""Looks under edits, from the output without them.

Most edits change little of an output. So the output before the edits is a draft: one forward pass under the edits gives
the most likely token at every position, and where they are those of the draft, it is what greedy search would find, as
in speculative decoding (https://arxiv.org/abs/2211.17192). From the first position that differs on, the draft is
corrected and verified again; where that does not soon succeed, the output is searched for token by token.
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

PASSES = 4  # forward passes before the output is searched for
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
    special = target.special_tokens
    forced = {each.position for each in read_edits(edits) if isinstance(each, ReplaceToken) and each.side == "output"}
    for _ in range(PASSES):
        seen = look(predictor, text, output=draft, edits=edits)
        assert seen.forward is not None
        assert seen.forward.labels is not None
        assert seen.predicted is not None
        ids, best = seen.forward.labels.tolist(), seen.predicted
        wrong = [i for i, (own, other) in enumerate(zip(ids, best, strict=True)) if own != other and i not in forced]
        if not wrong:
            ends = ids[-1] == special.end or len(ids) == config.max_length
            return seen if ends and special.end not in ids[:-1] else None
        at = wrong[0]
        if best[at] in special.suppressed:
            return None
        after = () if best[at] == special.end else ids[at + 1 :]
        draft = (*ids[:at], best[at], *after)
    return None


def _is_plain(config: DecodeConfig) -> bool:
    """Whether the next token is always the most likely one: greedy search without constraints."""
    constraints = (
        config.beam_size > 1, config.sample, config.min_length, config.min_length_ratio, config.no_repeat_ngram_size,
        config.repetition_penalty != 1.0, config.max_length_ratio is not None, config.logits_processors,
        config.num_hypotheses > 1,
    )  # fmt: skip
    return not any(constraints)


def _hashable(text: object) -> bool:
    return isinstance(text, str) or (isinstance(text, tuple) and all(isinstance(each, str) for each in text))
