"""Special tokens: which ids of a vocabulary pad, begin and end sequences,
and which ids surround every text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

# The first tokens of every tokenizer that Regard trains.
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
PAD, START, END, UNKNOWN, MASK = range(len(SPECIALS))
LONGEST = 64  # tokens around a text
OPTIONAL = ("start", "unknown", "mask")


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a vocabulary, by id.

    The defaults are those of the tokenizers that Regard trains.

    pad             after the end of a shorter sequence
    start           before the first token of an output (Hugging Face: decoder_start_token_id).
                    None: a language model whose texts begin with their own first token, as GPT-2's
                    and Qwen's
    end             ends an output
    unknown         stands for what has no token; None where everything has one
    mask            hides a token from a masked language model; None where there is none
    suppressed      never generated; with an end token among them, outputs end at their maximum
                    length
    source_prefix   before every source
    source_suffix   after every source
    target_prefix   that every output is forced to begin with, at log-probability 0
                    (forced_bos_token_id)
    other_ends      end an output as well (a list as eos_token_id, as Llama 3 has); targets of
                    training end with `end`
    """

    pad: int = PAD
    start: int | None = START
    end: int = END
    unknown: int | None = UNKNOWN
    mask: int | None = MASK
    suppressed: tuple[int, ...] = (PAD, START, MASK)
    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = (END,)
    target_prefix: tuple[int, ...] = ()
    other_ends: tuple[int, ...] = ()

    @staticmethod
    def of(table: object, size: int) -> "SpecialTokens":
        """From the table that `as_dict` made, of a vocabulary of this size;
        ValueError if it is not one.
        """
        if not isinstance(table, Mapping):
            raise ValueError(f"special tokens that are no table: {table!r:.80}")
        names = {field.name for field in fields(SpecialTokens)}
        if wrong := names ^ {"other_ends", *table}:
            raise ValueError(
                "special tokens with other keys than "
                f"{', '.join(sorted(names))}: {sorted(wrong)!r:.80}"
            )
        _check(table, size)
        values: dict[str, Any] = {
            key: tuple(each) if isinstance(each, list) else each for key, each in table.items()
        }
        return SpecialTokens(**values)

    def check(self, size: int) -> None:
        """ValueError unless all are ids of a vocabulary of this size."""
        _check(self.as_dict(), size)

    def as_dict(self) -> dict[str, Any]:
        """As JSON; without `other_ends` where there are none, so that earlier versions read it."""
        table = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }
        return {key: value for key, value in table.items() if key != "other_ends" or value}

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end an output."""
        return (self.end, *self.other_ends)

    @property
    def ids(self) -> frozenset[int]:
        """All of them, with those around texts, but without those that are only suppressed."""
        roles = (self.pad, self.start, *self.ends, self.unknown, self.mask)
        around = (*self.source_prefix, *self.source_suffix, *self.target_prefix)
        return frozenset(token for token in (*roles, *around) if token is not None)

    def source(self, ids: Sequence[int]) -> list[int]:
        """The tokens of a source as an encoder reads them."""
        return [*self.source_prefix, *ids, *self.source_suffix]

    def output(self, ids: Sequence[int]) -> list[int]:
        """The tokens of a whole output: with its forced prefix and its end."""
        return [*self.target_prefix, *ids, self.end]

    def target(self, ids: Sequence[int]) -> list[int]:
        """The tokens of a whole output behind the start token, where there is one."""
        tokens = self.output(ids)
        if self.start is None:
            return tokens
        return [self.start, *tokens]


def _check(table: Mapping[str, Any], size: int) -> None:
    for key, value in table.items():
        several = isinstance(getattr(SpecialTokens, key), tuple)
        if several and not isinstance(value, list):
            raise ValueError(f"special_tokens.{key} = {value!r:.80}, which is no list of ids")
        limit = size if key == "suppressed" else LONGEST
        if several and len(value) > limit:
            raise ValueError(f"special_tokens.{key} of {len(value)} tokens, which are too many")
        if several:
            values = value
        elif value is None and key in OPTIONAL:
            values = ()
        else:
            values = (value,)
        for each in values:
            if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < size:
                raise ValueError(
                    f"special_tokens.{key} = {value!r:.80}, which is no id from 0 to {size - 1}"
                )
    ends = [table["end"], *table.get("other_ends", ())]
    if len(set(ends)) < len(ends):
        raise ValueError(
            f"special_tokens.other_ends = {ends[1:]!r:.80}, which holds a "
            "token twice, or the end token"
        )


DEFAULT_TOKENS = SpecialTokens()  # of the tokenizers that Regard trains
