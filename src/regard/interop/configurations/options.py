"""The options of another toolkit's configuration: which a recipe takes over, and why not the others."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from regard.core.errors import InvalidArgument
from regard.data.special_tokens import SPECIALS

TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")
SMALLEST = len(SPECIALS) + 257  # tokens of a vocabulary: special tokens, bytes, and one
# The largest numbers of nested tables and of options: YAML can repeat a table within itself.
DEEPEST = 8
MOST = 10_000


class Options:
    """Options by name, `section.name` where the file has sections, and the recipe that grows from them.

    Every option that the file gives must be taken, or noted with a reason: `remaining` finds those that were not.
    """

    def __init__(self, given: Mapping[str, Any], toolkit: str) -> None:
        self.given = dict(islice(flattened(given), MOST + 1))
        self.toolkit = toolkit
        if len(self.given) > MOST:
            raise InvalidArgument(
                "the file", wanted=f"at most {MOST:,} options", got="more", remedy="Check the file."
            )
        self.recipe: dict[str, Any] = {}
        self.notes: dict[str, str] = {}
        self._taken = set[str]()

    def __contains__(self, name: str) -> bool:
        return self.given.get(name) is not None

    def take(self, name: str, default: Any = None) -> Any:
        """The value as the file has it, or the toolkit's default."""
        self._taken.add(name)
        value = self.given.get(name)
        return default if value is None else value

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self.take(name, default)
        if value is not None and not isinstance(value, str | int | float):
            raise self._wrong(name, "a text", value)
        if value is None:
            return None
        return str(value)

    def path(self, name: str) -> str:
        """A required text."""
        value = self.text(name)
        if value is None:
            raise InvalidArgument(
                name, wanted="a value", got="none", remedy=f"{self.toolkit} requires it as well."
            )
        return value

    def number(self, name: str, default: float | int = 0.0) -> float:
        """A number. YAML 1.1 reads 1e-3 as a text: such a text is a number too."""
        value = self.take(name, default)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        try:
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return float(value)
        except ValueError:
            pass
        raise self._wrong(name, "a number", value)

    def whole(self, name: str, default: int = 0) -> int:
        value = self.number(name, default)
        if value != value // 1:
            raise self._wrong(name, "a whole number", value)
        return int(value)

    def numbers(self, name: str, default: Sequence[float]) -> list[float]:
        """A list of numbers, or a text of them such as "(0.9, 0.98)"; one number is a list of one."""
        value = self.take(name, list(default))
        if isinstance(value, str):
            value = value.strip("()[] ").split(",")
        values = value if isinstance(value, list | tuple) else [value]
        try:
            return [float(each) for each in values]
        except (TypeError, ValueError):
            raise self._wrong(name, "a list of numbers", value) from None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        word = str(value).lower()
        if word not in TRUE + FALSE:
            raise self._wrong(name, "true or false", value)
        return word in TRUE

    def texts(self, name: str) -> list[str]:
        """A list of texts; one text is a list of one."""
        value = self.take(name, [])
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str | int | float) for each in values):
            raise self._wrong(name, "a list of texts", value)
        return [str(each) for each in values]

    def note(self, name: str, why: str) -> None:
        """Report an option as not taken over, or as changed in meaning."""
        self._taken.add(name)
        self.notes[name] = why

    def note_given(self, reasons: Mapping[str, str]) -> None:
        """Report these options where the file gives them. A name that ends with `.*` stands for a section."""
        sections = [each for each in reasons if each.endswith(".*")]
        for name, value in self.given.items():
            found = [each for each in sections if name.startswith(each[:-1])]
            known_as = found[0] if found else name
            if known_as in reasons:
                self._taken.add(name)
                if value not in (None, False, [], {}):
                    self.notes[name] = reasons[known_as]

    def remaining(self) -> list[str]:
        """Options of the file that were neither taken nor noted."""
        given = [name for name, value in self.given.items() if value is not None]
        return [name for name in given if name not in self._taken]

    def put(self, key: str, value: Any) -> None:
        """Set a key of the recipe, such as train.learning_rate."""
        *tables, last = key.split(".")
        table = self.recipe
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value

    def _wrong(self, name: str, wanted: str, value: object) -> InvalidArgument:
        return InvalidArgument(
            name, wanted=wanted, got=repr(value)[:80], remedy="Correct it in the file."
        )


def by_option(reasons: Mapping[str, str]) -> dict[str, str]:
    """The reason of each option. `reasons` lists the options that each reason explains, separated by spaces."""
    return {name: why for why, names in reasons.items() for name in names.split()}


def flattened(table: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The values of nested tables, by dotted name. An empty table is a value."""
    if len(before) > DEEPEST:
        raise InvalidArgument(
            ".".join(before)[:80],
            wanted=f"at most {DEEPEST} nested tables",
            got="more",
            remedy="Check the file.",
        )
    for key, value in table.items():
        name = (*before, str(key))
        if isinstance(value, Mapping) and value:
            yield from flattened(value, name)
        else:
            yield ".".join(name), value


def vocabulary_size(options: Options, name: str, key: str, size: int) -> None:
    """Put the size of a vocabulary, which counts the special tokens here and not there. Not positive: all tokens."""
    if size <= 0:
        options.note(
            name, "not given, which means all tokens there; here the default of 8,000 holds"
        )
        return
    options.put(key, max(size + len(SPECIALS), SMALLEST))
    if size + len(SPECIALS) < SMALLEST:
        options.note(
            name, f"at least {SMALLEST} here, as bytes stand for characters that have no token"
        )


def adam(
    options: Options,
    optimizer: str,
    names: Mapping[str, str],
    betas: Sequence[float],
    eps: float = 1e-8,
    decoupled: bool = False,
) -> None:
    """Put the [train] settings of an Adam. `names` are the toolkit's names of the optimizer and the weight decay."""
    if optimizer not in ("adam", "adamw", "fusedadam", "sparseadam"):
        why = f"no {optimizer} here: AdamW is used, and the learning rate is to be chosen anew"
        options.note(names["optimizer"], why)
        options.put("train.optimizer", "adamw")
        return
    decay = 0.0
    if "weight_decay" in names:
        decay = options.number(names["weight_decay"], 0.0)
    if decay and optimizer != "adamw" and not decoupled:
        options.note(
            names["weight_decay"],
            "taken over, but AdamW decouples weight decay from the gradient (L2 before)",
        )
    options.put("train.optimizer", "adamw")
    options.put("train.betas", list(betas))
    options.put("train.eps", eps)
    options.put("train.weight_decay", decay)


def peak_of_warmup(options: Options, name: str, warmup: int, dim: int = 1) -> float:
    """(dim · warmup)^-1/2, the largest factor of a schedule that rises for `warmup` steps and then falls as 1/√step.

    A dimension below 1 is left to the checks of recipes.
    """
    if warmup < 1:
        raise InvalidArgument(
            name, wanted="at least 1 step", got=str(warmup), remedy="Correct it in the file."
        )
    return float((max(1, dim) * warmup) ** -0.5)


def word_vectors(
    options: Options, part: str, name: str, freeze: str, *, dim: int, is_output_layer: bool
) -> None:
    """Put the file of word vectors that the embeddings of a part begin with, if an option names one.

    name              the option with the file
    freeze            the option that keeps these embeddings from training
    dim               of the file's vectors, as the other toolkit's configuration has it
    is_output_layer   whether the output layer is the same matrix
    """
    file = options.text(name)
    is_frozen = options.flag(freeze)
    if file is None:
        if is_frozen:
            options.note(freeze, "train.freeze names parameters by pattern")
        return
    ours = options.recipe["model"][part]["dim"]
    if dim != ours:
        why = f"vectors of dimension {dim} do not fit embeddings of dimension {ours}"
        options.note(name, f"{why}: set model.{part}.word_vectors to other ones")
        return
    options.put(f"model.{part}.word_vectors", file)
    if is_frozen and is_output_layer:
        options.note(freeze, "trained, as the output layer is the same matrix")
    elif is_frozen:
        options.put(f"model.{part}.freeze_word_vectors", True)
        options.note(freeze, "tokens without a vector in the file are trained")


def clipping(options: Options, norm: float) -> None:
    options.put("train.clip_norm", norm if norm > 0 else 0.0)
