"""Parts of one's own, usable by name in recipes, in `regard.build` and on the command line.

    import regard

    regard.register.encoder("mine", MyConfig, MyEncoder)

Register when your module is imported. A package can list such a module under the entry-point group `regard.plugins`:
it is imported when a name is met that is not known without it. A checkpoint holds registered names and never code; to
load it, import the module that registers them first. A name that is taken is refused.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.core.registry import Registry

if TYPE_CHECKING:
    from regard.evaluation.metrics import Metric
    from regard.model.interfaces import AnyDecoder, Encoder, Pool
    from regard.model.part_config import DecoderConfig, EncoderConfig, PoolConfig
    from regard.model.positions import Positions
    from regard.model.scores import Score


def encoder(name: str, config: "type[EncoderConfig]", make: "Callable[..., Encoder]") -> None:
    """Register an encoder, for `kind = "name"` in [model.encoder].

    name     as recipes write it
    config   its configuration, which declares what it supports
    make     called with (config, embedding), or with (config) if `config.reads` is "image"
    """
    _part("ENCODERS", name, config, make)


def decoder(name: str, config: "type[DecoderConfig]", make: "Callable[..., AnyDecoder]") -> None:
    """Register a decoder, for `kind = "name"` in [model.decoder].

    name     as recipes write it
    config   its configuration
    make     called with (config, embedding, projection, memory_dim); memory_dim is None for a language model
    """
    _part("DECODERS", name, config, make)


def pool(name: str, config: "type[PoolConfig]", make: "Callable[..., Pool]") -> None:
    """Register a pool, for `kind = "name"` in [model.pool].

    name     as recipes write it
    config   its configuration
    make     called with (config, memory_dim)
    """
    _part("POOLS", name, config, make)


def score(name: str, score: "type[Score]") -> None:
    """Register a score function, a subclass of `Score`, for `score = "name"` wherever a part has one."""
    _register("regard.model.scores", "SCORES", name, score)


def position(name: str, positions: "type[Positions]") -> None:
    """Register a position encoding or position bias, the class `positions`, for `positions = "name"`."""
    _register("regard.model.positions", "POSITIONS", name, positions)


def metric(name: str, metric: "Metric") -> None:
    """Register a `metric`, for `regard evaluate --metric name` and `train.monitor`."""
    import_module("regard.evaluation.metrics").register_metric(
        name, metric, _package(metric.statistics)
    )


def data_source(name: str, source: type[Any]) -> None:
    """Register a `source`, a subclass of `regard.data.sources.DataSource`, for `[data] reader = "name"`."""
    _register("regard.data.config", "DATA_SOURCES", name, source)


def logits_processor(name: str, make: Callable[[], Any]) -> None:
    """Register a logits processor, for `[decode] logits_processors = ["name"]`; `make()` returns it."""
    _register("regard.decoding.logits_processors", "LOGITS_PROCESSORS", name, make)


def _part(registry: str, name: str, config: type[Any], make: Callable[..., Any]) -> None:
    kind = import_module("regard.model.build").PartKind(config, make)
    _register("regard.model.build", registry, name, kind, make)


def _register(module: str, registry: str, name: str, entry: Any, defined: Any = None) -> None:
    """Add an entry, recording the package that defines it for the message of a checkpoint that needs it."""
    entries: Registry[Any] = getattr(import_module(module), registry)
    entries.register(name, entry, package=_package(entry if defined is None else defined))


def _package(entry: Any) -> str | None:
    """The top-level package that defines a class or a function, or the function of a partial."""
    return getattr(getattr(entry, "func", entry), "__module__", "").partition(".")[0] or None
