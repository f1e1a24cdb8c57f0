"""Configurations: frozen dataclasses next to the components they configure, validated when they are created.

    @dataclass(frozen=True)
    class PoolConfig(Config):
        queries: Count = doc(1, "number of learned queries")
        dropout: Probability = doc(0.0, "dropout of the pooled vector")

A field's annotation gives the allowed values; `doc` its default and description, from which the JSON Schema of
recipes and their reference are generated. All problems are reported together, each with key, wanted, got and remedy.
"""

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from regard.core.errors import InvalidRecipe, Problem
from regard.core.registry import Registry


@dataclass(frozen=True)
class Range:
    """An interval from `low` to `high`, both included; `below` excludes `high`; None: no upper bound."""

    low: float
    high: float | None = None
    below: bool = False

    def __contains__(self, number: int | float) -> bool:
        at_least_low = number >= self.low
        if self.high is None or number < self.high:
            return at_least_low
        return at_least_low and number == self.high and not self.below

    def __str__(self) -> str:
        least = f"at least {self.low:g}"
        if self.high is None:
            return least
        high = f"{self.high:g}"
        if self.high >= 1e4:
            high = f"{self.high:,.0f}"
        relation = "below" if self.below else "at most"
        return f"{least} and {relation} {high}"


Count = Annotated[int, Range(1.0)]
Probability = Annotated[float, Range(0.0, 1.0, below=True)]
Seed = Annotated[int, Range(0.0, 2.0**63, below=True)]

# Keys of earlier recipes whose present name is not the one nearest in spelling.
RENAMED = {
    "steps": "max_steps over_steps", "rate": "learning_rate", "final_rate": "min_learning_rate",
    "epsilon": "eps norm_eps", "masked": "mask_probability", "agreement": "r_drop", "forcing": "scheduled_sampling",
    "keep": "keep_checkpoints", "replay": "cuda_graphs", "shard": "fsdp", "log_to": "loggers", "metric": "monitor",
    "gold": "teacher_forcing", "end": "final_teacher_forcing", "width": "dim", "hidden": "ffn_dim",
    "weight_dropout": "attention_dropout", "join": "position_mode", "longest": "max_positions max_tokens max_length",
    "normalise": "qk_norm", "unit": "cls_token", "recompute": "activation_checkpointing",
    "patch_hidden": "patch_ffn_dim", "generate": "synthetic", "joint": "shared_vocab", "stretch": "context_length",
    "tokens": "tokenizer", "size": "image_size", "nbest": "num_hypotheses", "shortest": "min_length",
    "gpu": "cuda", "longest_ratio": "max_length_ratio", "longest_source": "max_source_length", "int8": "quantization",
}  # fmt: skip

MOST_NAMES = 40  # valid names that a message lists
ConfigType = TypeVar("ConfigType", bound="Config")
Default = TypeVar("Default")


def doc(default: Default, text: str, arxiv: str = "", **more: object) -> Default:
    """A dataclass field with a default, a description and the number of a paper.

    more   what else the field's metadata say of the key, as its package reads them
    """
    if arxiv:
        text += f" (https://arxiv.org/abs/{arxiv})"
    return field(default=default, metadata={"doc": text, **more})


@dataclass(frozen=True)
class Config:
    """Base class of all configurations. Values that the annotations do not allow raise InvalidRecipe."""

    def __post_init__(self) -> None:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        problems = list(_wrong_values(type(self), values, ""))
        # Conflicts are checked only between values that are valid on their own.
        if not problems:
            problems = list(self.conflicts())
        if problems:
            raise InvalidRecipe(problems)

    def conflicts(self) -> Iterator[Problem]:
        """Problems between fields that are each valid on their own."""
        return iter(())

    @classmethod
    def resolve(
        cls, table: Mapping[str, Any]
    ) -> "tuple[type[Config], Mapping[str, Any], list[Problem]]":
        """The class that reads a table, the table in the form that this class reads, and problems of its keys.

        A class whose tables are of several kinds, each with a class of its own, overrides it.
        """
        return cls, table, []

    @classmethod
    def variants(cls) -> "Mapping[str, type[Config]]":
        """The classes among which a table chooses by its key `kind`; empty where there is one."""
        return {}

    def registered(self) -> "Iterator[tuple[Registry[Any], str]]":
        """The names in the configuration that stand for entries of a registry."""
        for key, hint in _hints(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, key)
            values = value if isinstance(value, tuple) else (value,)
            for each in values:
                if isinstance(each, Config):
                    yield from each.registered()
            for registry in _registries(hint):
                yield from ((registry, name) for name in values if name)


def read(
    cls: type[ConfigType], table: Mapping[str, Any], where: str, *, nulls: bool = False
) -> ConfigType | list[Problem]:
    """The configuration of a recipe's table, or all problems found in it. `where` is the table's full name.

    nulls   None is a value, which a field must allow: the table is JSON, where null and a missing key are two things.
            Without, a key whose value is None counts as left out.
    """
    chosen, table, wrong_keys = cls.resolve(table)
    problems = [problem.under(where) for problem in wrong_keys]
    if problems and chosen is cls and cls.variants():
        return problems
    hints = _hints(chosen)  # type: ignore[arg-type]
    nested_classes = _nested_classes(chosen)  # type: ignore[arg-type]
    problems += unknown_keys(table, hints, where)
    values: dict[str, Any] = {}
    for key in table.keys() & hints.keys():
        value = table[key]
        if value is None and nulls:
            values[key] = None
            continue
        nested = nested_classes[key]
        if nested is not None:
            value = _read_nested(nested, value, f"{where}.{key}", problems, nulls=nulls)
        if value is not None:
            values[key] = _as_python(value, hints[key])
    problems += _wrong_values(chosen, values, f"{where}.")
    if problems:
        return problems
    try:
        return cast(ConfigType, chosen(**values))
    except InvalidRecipe as error:
        return [problem.under(where) for problem in error.problems]


def _read_nested(
    cls: type[ConfigType], value: Any, where: str, problems: list[Problem], *, nulls: bool
) -> Any:
    """Read a table, or a list of tables, as configurations. Problems are added to the list; the result is then None."""
    if isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value):
        items = [
            _read_nested(cls, item, f"{where}.{i}", problems, nulls=nulls)
            for i, item in enumerate(value, start=1)
        ]
        if None in items:
            return None
        return tuple(items)
    if not isinstance(value, Mapping):
        return value
    config = read(cls, value, where, nulls=nulls)
    if isinstance(config, list):
        problems += config
        return None
    return config


def unknown_keys(table: Iterable[str], known: Iterable[str], where: str) -> list[Problem]:
    """A problem for each key of a table that is not known."""
    wrong = [key for key in table if key not in known]
    return [
        Problem(f"{where}.{key}", f"a key of {where}", "an unknown one", nearest(key, known))
        for key in wrong
    ]


def near_name(word: str, known: Iterable[str]) -> str | None:
    """The valid name near to this one in spelling; for a name of an earlier version, its present one."""
    known = list(known)
    renamed = [name for name in RENAMED.get(str(word), "").split() if name in known]
    if renamed:
        return renamed[0]
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.55)
    return near[0] if near else None


def nearest(word: str, known: Iterable[str], *, listed: bool = False) -> str:
    """A remedy that names the valid key near to this one in spelling, or else the valid ones.

    listed   whether the message lists the valid ones already
    """
    known = list(known)
    near = near_name(word, known)
    if near is not None:
        return f"Did you mean {near!r}?"
    if listed:
        return "Choose one of these." if known else "There are none."
    names = ", ".join(known[:MOST_NAMES]) or "none"
    if len(known) > MOST_NAMES:
        names += f" and {len(known) - MOST_NAMES:,} more"
    verb = "is" if len(known) == 1 else "are"
    return f"There {verb} {names}."


@cache
def _hints(cls: type) -> dict[str, Any]:
    """The type annotation of each field."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


@cache
def _nested_classes(cls: type) -> dict[str, type[Config] | None]:
    """The configuration that each field has as its value; None where it has none."""
    return {key: config_class(hint) for key, hint in _hints(cls).items()}


@cache
def _defaults(cls: type) -> dict[str, Any]:
    """The default of each field; MISSING where there is none."""
    return {field.name: field.default for field in fields(cls)}


def _as_python(value: Any, hint: Any) -> Any:
    """A value of TOML or JSON, which have lists instead of tuples and write 0 for 0.0."""
    if isinstance(value, list):
        item = _item_hint(hint)
        return tuple(_as_python(each, item) if type(each) is int else each for each in value)
    if isinstance(value, Mapping):
        item = _value_hint(hint)
        return {key: _as_python(each, item) for key, each in value.items()}
    if type(value) is int and _finite(value) and float in (hint, *get_args(hint)):
        return float(value)
    return value


def _item_hint(hint: Any) -> Any:
    """The annotation of the items of a list; None where they may be of several types."""
    found: set[Any] = set()
    for one in (hint, *get_args(hint)):
        if get_origin(one) is tuple:
            found.update(get_args(one))
    found.discard(...)
    if len(found) != 1:
        return None
    (item,) = found
    return item


def _value_hint(hint: Any) -> Any:
    """The annotation of the values of a table whose keys are any names; None for other annotations."""
    for one in (hint, *get_args(hint)):
        if get_origin(one) is dict:
            _, item = get_args(one)
            return item
    return None


def _wrong_values(cls: type, values: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """A problem for each value that the annotation of its field does not allow."""
    hints = _hints(cls)
    defaults = _defaults(cls)
    for key, value in values.items():
        # Most values are defaults, whose annotations need not be read again for every request.
        if value is defaults[key] or fits(value, hints[key]):
            continue
        options = _options(hints[key])
        remedy = "Change it, or leave it out for the default."
        if options:
            remedy = nearest(str(value), options, listed=True)
        got = "null"
        if value is not None:
            got = repr(value)[:80]
        yield Problem(f"{where}{key}", describe(hints[key]), got, remedy)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is one that an annotation allows."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        bounds = [bound for bound in arguments[1:] if isinstance(bound, Range | Registry)]
        return fits(value, arguments[0]) and all(value in bound for bound in bounds)
    if origin is Literal:
        return value in arguments and isinstance(value, str)
    if origin in (Union, UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is tuple:
        if not isinstance(value, tuple) or not value:
            return False
        return all(fits(item, arguments[0]) for item in value)
    if origin is dict:
        of_names, of_values = arguments
        if not isinstance(value, dict):
            return False
        return all(fits(name, of_names) and fits(item, of_values) for name, item in value.items())
    # In Python a bool is an int, but in a recipe `true` is no number.
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float) and _finite(value)
    if hint is int:
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return isinstance(value, hint)


def _finite(number: int | float) -> bool:
    """Whether a number is a float: neither NaN nor infinite, nor a whole number beyond all floats."""
    return abs(number) <= sys.float_info.max


def describe(hint: Any) -> str:
    """The values that an annotation allows, in words."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        if isinstance(arguments[1], Registry):
            return str(arguments[1])
        return f"{describe(arguments[0])} of {arguments[1]}"
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin in (Union, UnionType):
        return " or ".join(describe(argument) for argument in arguments if argument is not NoneType)
    if origin is tuple:
        return f"a list, each item {describe(arguments[0])}"
    if origin is dict:
        return f"a table, each value {describe(arguments[1])}"
    if is_dataclass(hint):
        return "a table"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[hint]


def _options(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    if isinstance(hint, Registry):
        return tuple(hint)
    return tuple(option for argument in get_args(hint) for option in _options(argument))


def _registries(hint: Any) -> Iterator[Registry[Any]]:
    for argument in get_args(hint):
        if isinstance(argument, Registry):
            yield argument
        else:
            yield from _registries(argument)


def config_class(hint: Any) -> type[Config] | None:
    """The configuration that an annotation names, alone, in a union or as the items of a list."""
    if isinstance(hint, type) and issubclass(hint, Config):
        return hint
    return next(filter(None, map(config_class, get_args(hint))), None)
