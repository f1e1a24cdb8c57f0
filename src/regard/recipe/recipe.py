"""A recipe: a small TOML file with [data], [model], [train] and [decode], from which everything else follows."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard.core.config import nearest, read
from regard.core.errors import InvalidArgument, InvalidRecipe, Problem
from regard.data.config import DataConfig
from regard.data.corpus import Prepared
from regard.decoding.config import DecodeConfig
from regard.model.build import ENCODERS, build
from regard.model.rnn_decoder import RnnDecoderConfig
from regard.model.vision import VitConfig
from regard.training.config import TrainConfig

TABLES = ("data", "model", "train", "decode")
PACKED = {"transformer", "conv"}, {"rnn"}  # kinds whose sequences may lie end to end, with each other
DISTANCES, UNPACKED = ("alibi", "relative"), ("additive", "uniform", "reduced_rank")  # what packed kernels do not know
FROM_DATA = ("vocab_size", "source_vocab_size", "num_labels")
BLOCKS = {"transformer", "vit"}  # parts whose weights lie in blocks


@dataclass(frozen=True)
class Recipe:
    """What a run does, checked as a whole."""

    data: DataConfig
    model: Mapping[str, Any]  # as `regard.build` takes it, less the sizes that data give
    train: TrainConfig
    decode: DecodeConfig

    @staticmethod
    def of(table: Mapping[str, Any]) -> "Recipe":
        """From tables; everything that is wrong with any of them is reported together."""
        problems = [
            Problem(key, "one of data, model, train, decode", "an unknown table", nearest(key, TABLES))
            for key in table
            if key not in TABLES
        ]
        parts: dict[str, Any] = {}
        for name, config in (("data", DataConfig), ("train", TrainConfig), ("decode", DecodeConfig)):
            given = table.get(name, {})
            if not isinstance(given, Mapping):
                problems.append(Problem(name, "a table", repr(given), f"Write [{name}]."))
                continue
            found = read(config, given, name)
            if isinstance(found, list):
                problems += found
            else:
                parts[name] = found
        model = table.get("model", {})
        if not isinstance(model, Mapping):
            raise InvalidRecipe([*problems, Problem("model", "a table", repr(model), "Write [model].")])
        problems += _wrong_model(model, parts.get("data"))
        if "train" in parts and "data" in parts:
            problems += _wrong_training(parts["train"], parts["data"], model)
        if problems:
            raise InvalidRecipe(problems)
        return Recipe(parts["data"], model, parts["train"], parts["decode"])

    def as_dict(self) -> dict[str, Any]:
        return {
            "data": asdict(self.data),
            "model": dict(self.model),
            "train": asdict(self.train),
            "decode": asdict(self.decode),
        }

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Every key that says something, by its full name: ("train.learning_rate", 0.001)."""
        return _settings(self.as_dict(), "")

    def sized(self, data: Prepared) -> dict[str, Any]:
        """The model's table with the sizes of its vocabularies, as `regard.build` takes it."""
        sizes = {"num_labels" if "pool" in self.model else "vocab_size": data.target.size}
        if data.source is not None:
            sizes["source_vocab_size"] = data.source.size
        return dict(self.model) | sizes


def read_recipe(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Recipe:
    """From a TOML file or tables, with changes such as "train.learning_rate=0.001" or "model.encoder.layers=6"."""
    return Recipe.of(read_tables(source, changes))


def read_tables(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a recipe with changes, unchecked."""
    table = dict(source) if isinstance(source, Mapping) else read_toml(Path(source))
    for change in changes:
        table = with_setting(table, change)
    return table


def shipped_recipes() -> list[Path]:
    """Those that come with Regard."""
    return sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file of this name, or the recipe of ours that bears it."""
    ours = {path.stem: path for path in shipped_recipes()}
    if Path(name).is_file() or name.endswith(".toml"):
        return Path(name)
    if name not in ours:
        raise InvalidArgument(
            "recipe", wanted=f"a TOML file, or one of {', '.join(ours)}", got=repr(name), remedy=nearest(name, ours)
        )
    return ours[name]


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(str(path), wanted="a recipe", got=got, remedy="`regard recipes` lists ours.") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(str(path), wanted="a TOML file", got=str(error), remedy="Mend that line.") from None


def with_setting(table: Mapping[str, Any], change: str) -> dict[str, Any]:
    """The tables with one key set, as `key=value` says; a value that is no TOML is taken as text."""
    key, equals, value = change.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InvalidArgument(
            "--set", wanted="key=value", got=repr(change), remedy="As in --set train.learning_rate=0.001."
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return _put(table, parts, parsed, key)


def _put(table: Mapping[str, Any], parts: list[str], value: Any, key: str) -> dict[str, Any]:
    first, *rest = parts
    if not rest:
        return {**table, first: value}
    inner = table.get(first, {})
    if not isinstance(inner, Mapping):
        raise InvalidArgument("--set", wanted=f"a table at {first!r}", got=repr(inner), remedy=f"{key} is no key.")
    return {**table, first: _put(inner, rest, value, key)}


def _settings(table: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{before}{key}.")
        elif value is not None:
            yield f"{before}{key}", value


def _wrong_model(model: Mapping[str, Any], data: DataConfig | None) -> list[Problem]:
    """What is wrong with the model by itself, and with the data for it."""
    given = [
        Problem(f"model.{key}", "nothing here: data say it", repr(model[key]), "Leave it out.")
        for key in FROM_DATA
        if key in model
    ]
    encoder, pool = model.get("encoder"), model.get("pool")
    kind = encoder.get("kind", "") if isinstance(encoder, Mapping) else ""
    reads = ENCODERS[kind].config.reads if kind in ENCODERS else None
    sizes = {"num_labels": 2} if pool is not None else {"vocab_size": 300}
    if reads in ("tokens", "label") and (pool is not None or (data is not None and not data.has_shared_vocab)):
        sizes["source_vocab_size"] = 300
    try:
        with torch.device("meta"):
            build({key: value for key, value in model.items() if key not in FROM_DATA} | sizes)
    except InvalidRecipe as error:
        return given + error.problems
    if data is None:
        return given
    return given + _mismatches(model, data, reads)


def _mismatches(model: Mapping[str, Any], data: DataConfig, reads: str | None) -> list[Problem]:
    problems = []

    def wrong(key: str, wanted: str, got: str, remedy: str) -> None:
        problems.append(Problem(key, wanted, got, remedy))

    chooses = "label" if "pool" in model else "text"
    if data.target.kind != chooses:
        wrong("data.target.kind", f"{chooses!r}, which this model gives", repr(data.target.kind), "Change one.")
    if reads is None and data.source is not None:
        wrong("data.source", "nothing: the model has no encoder", "a source", "Add [model.encoder], or leave it out.")
    if "head" in model and data.source is not None:
        wrong("data.source", "nothing: a masked-token head reads the target", "a source", "Leave it out.")
    if reads is not None and "head" not in model:
        source = {"tokens": "text"}.get(reads, reads)
        if data.source is None:
            wrong("data.source", "what the encoder reads", "none", "Add [data.source].")
        elif data.source.kind != source:
            got = repr(data.source.kind)
            wrong("data.source.kind", f"{source!r}, which the encoder reads", got, "Change one.")
        elif model["encoder"]["kind"] == "vit" and data.source.image_size % model["encoder"].get(
            "patch_size", VitConfig.patch_size
        ):
            got = str(model["encoder"].get("patch_size", VitConfig.patch_size))
            wrong(
                "model.encoder.patch_size",
                f"a divisor of data.source.image_size = {data.source.image_size}",
                got,
                "Change one.",
            )
    return problems


def _wrong_training(train: TrainConfig, data: DataConfig, model: Mapping[str, Any]) -> list[Problem]:
    problems = []
    decoder = model.get("decoder")
    recurrent = isinstance(decoder, Mapping) and decoder.get("kind") == "rnn" and "encoder" not in model
    if train.carry_state and not (recurrent and data.context_length):
        got = "true"
        problems.append(
            Problem(
                "train.carry_state", "false unless a recurrent language model reads running text", got, "Leave it out."
            )
        )
    if train.mixed_lengths and data.context_length:
        wanted = "false with running text, whose stretches are of one length"
        problems.append(Problem("train.mixed_lengths", wanted, "true", "Leave it out."))
    running = "decoder" in model and "encoder" not in model and data.context_length
    if train.cuda_graphs and not (running or train.packed):
        wanted = "false unless batches are packed, or a language model reads running text"
        problems.append(Problem("train.cuda_graphs", wanted, "true", "Leave it out."))
    if train.packed and (reason := _not_packed(model, data)) is not None:
        problems.append(Problem("train.packed", f"false with {reason}", "true", "Leave it out."))
    kinds = {str(part.get("kind")) for name in ("encoder", "decoder") if isinstance(part := model.get(name), Mapping)}
    if train.fsdp and not (kinds & BLOCKS and kinds <= BLOCKS | {"label", "bag"}):
        wanted, got = f"false unless the model is made of Transformer blocks ({', '.join(sorted(BLOCKS))})", "true"
        problems.append(Problem("train.fsdp", wanted, got, "Leave it out: every process then has the whole model."))
    if train.monitor not in ("loss", "perplexity") and "head" in model:
        problems.append(
            Problem("train.monitor", "loss or perplexity for hidden tokens", repr(train.monitor), "Change it.")
        )
    if train.monitor not in ("loss", "perplexity", "accuracy") and "pool" in model:
        problems.append(Problem("train.monitor", "loss or accuracy for labels", repr(train.monitor), "Change it."))
    if train.monitor not in ("loss", "perplexity") and "encoder" not in model:
        got = repr(train.monitor)
        problems.append(Problem("train.monitor", "loss or perplexity for a language model", got, "Change it."))
    if train.reward is not None and not ("decoder" in model and "encoder" in model):
        got = repr(train.reward)
        problems.append(Problem("train.reward", "nothing unless a source becomes a text", got, "Leave it out."))
    if "valid" not in data.splits:
        waits = {"patience": train.patience is not None, "lr_schedule": train.lr_schedule == "plateau"}
        waits["monitor"] = train.monitor != "loss"
        problems += [
            Problem(
                f"train.{key}",
                "nothing that waits for validation: there is no data.valid",
                repr(getattr(train, key)),
                "Add data.valid, or leave it out.",
            )
            for key, waiting in waits.items()
            if waiting
        ]
    rnn = decoder if isinstance(decoder, Mapping) and decoder.get("kind") == "rnn" and "encoder" in model else None
    looks = "none" if rnn is None else rnn.get("attention", RnnDecoderConfig.attention)
    if train.doubly_stochastic and looks == "none":
        wanted, got = "0 unless a recurrent decoder looks at a source", str(train.doubly_stochastic)
        problems.append(Problem("train.doubly_stochastic", wanted, got, "Leave it out."))
    if train.scheduled_sampling is not None and "decoder" not in model:
        problems.append(
            Problem("train.scheduled_sampling", "nothing: there is no decoder to feed", "a table", "Leave it out.")
        )
    return problems


def _not_packed(model: Mapping[str, Any], data: DataConfig) -> str | None:
    """Why sequences of this model cannot be laid end to end."""
    if data.context_length:
        return "running text, which has no padding"
    parts = {name: part for name in ("encoder", "decoder") if isinstance(part := model.get(name), Mapping)}
    kinds = {part.get("kind") for part in parts.values()}
    if "decoder" not in parts or not any(kinds <= some for some in PACKED):
        return "anything but Transformers, convolutions, or recurrent sides on their own, that write"
    if kinds == {"rnn"}:
        return None
    for name, part in parts.items():
        for key, some in (("positions", DISTANCES), ("score", UNPACKED), ("cls_token", (True,))):
            if part.get(key) in some:
                return f"model.{name}.{key} = {part[key]!r}"
    return None
