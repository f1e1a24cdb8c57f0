"""The keys of a recipe, read from the configuration dataclasses: names, types, defaults and descriptions."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, get_type_hints

from regard.core.config import Config, config_class
from regard.data.config import DataConfig
from regard.decoding.config import DecodeConfig
from regard.model.build import DECODERS, ENCODERS, POOLS
from regard.model.model_config import SIZES, ModelOptions
from regard.training.config import TrainConfig
from regard.word_vectors.word2vec import Word2VecConfig


@dataclass(frozen=True)
class Key:
    """A key of a table."""

    name: str
    hint: Any  # its type annotation
    default: Any
    description: str

    @property
    def table(self) -> type[Config] | None:
        """The configuration of a nested table."""
        return config_class(self.hint)


def keys(config: type[Config]) -> Iterator[Key]:
    """The keys of a configuration, without the model sizes that the data give."""
    hints = get_type_hints(config, include_extras=True)
    for field in fields(config):
        if config is not ModelOptions or field.name not in SIZES:
            yield Key(field.name, hints[field.name], _default(field), field.metadata.get("doc", ""))


def parts() -> dict[str, dict[str, type[Config]]]:
    """The configurations of the registered encoders, decoders and pools, by role and kind."""
    return {
        "encoder": {kind: ENCODERS[kind].config for kind in ENCODERS},
        "decoder": {kind: DECODERS[kind].config for kind in DECODERS},
        "pool": {kind: POOLS[kind].config for kind in POOLS},
    }


def tables() -> Iterator[tuple[str, str, type[Config]]]:
    """The tables of a recipe: name, note, configuration."""
    yield from _with_nested("data", "", DataConfig)
    yield "model", "", ModelOptions
    for role, kinds in parts().items():
        for kind, config in kinds.items():
            yield from _with_nested(f"model.{role}", f'kind = "{kind}"', config)
    yield from _with_nested("train", "", TrainConfig)
    yield "decode", "", DecodeConfig
    yield "words", "`regard words train --set`", Word2VecConfig


def _with_nested(name: str, note: str, config: type[Config]) -> Iterator[tuple[str, str, type[Config]]]:
    yield name, note, config
    for key in keys(config):
        if key.table is not None:
            yield from _with_nested(f"{name}.{key.name}", note, key.table)


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
