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

from regard.core.errors import InvalidArgument
from regard.core.registry import Registry

if TYPE_CHECKING:
    from regard.core.shapes import Tensor
    from regard.data.fields.base import Field
    from regard.evaluation.metrics import Metric
    from regard.model.inputs import InputConfig, InputModule
    from regard.model.interfaces import AnyDecoder, Encoder, Head, Pool
    from regard.model.part_config import DecoderConfig, EncoderConfig, HeadConfig, PoolConfig
    from regard.model.positions import Positions
    from regard.model.scores import Score
    from regard.tasks.base import Task


def encoder(
    name: str,
    config: "type[EncoderConfig]",
    make: "Callable[..., Encoder]",
    module: type[Any] | None = None,
) -> None:
    """Register an encoder, for `kind = "name"` in [model.encoder].

    name     as recipes write it
    config   its configuration
    make     its class, whose attributes say what it supports: called with (config, input_module), or with
             (config) if it reads images
    module   its class, where `make` is a function
    """
    _part("ENCODERS", name, config, make, module)


def decoder(
    name: str,
    config: "type[DecoderConfig]",
    make: "Callable[..., AnyDecoder]",
    module: type[Any] | None = None,
) -> None:
    """Register a decoder, for `kind = "name"` in [model.decoder].

    name     as recipes write it
    config   its configuration
    make     called with (config, embedding, projection, memory_dim); memory_dim is None for a language model
    module   its class, where `make` is a function
    """
    _part("DECODERS", name, config, make, module)


def pool(
    name: str,
    config: "type[PoolConfig]",
    make: "Callable[..., Pool]",
    module: type[Any] | None = None,
) -> None:
    """Register a pool, for `kind = "name"` in [model.pool].

    name     as recipes write it
    config   its configuration
    make     called with (config, memory_dim)
    module   its class, where `make` is a function
    """
    _part("POOLS", name, config, make, module)


def head(
    name: str,
    config: "type[HeadConfig]",
    make: "Callable[..., Head]",
    module: type[Any] | None = None,
) -> None:
    """Register a head, for `head = "name"` in [model], or `kind = "name"` in [model.head].

    name     as recipes write it
    config   its configuration
    make     its class, which names the task that it is for: called with (config, memory_dim, outputs), the number of
             outputs being that of the task
    module   its class, where `make` is a function
    """
    _part("HEADS", name, config, make, module)


def input_module(
    name: str,
    config: "type[InputConfig]",
    make: "Callable[..., InputModule]",
    module: type[Any] | None = None,
) -> None:
    """Register an input module, for `kind = "name"` in [model.encoder.input].

    name     as recipes write it
    config   its configuration
    make     its class, which says what it reads: called with (config, size, dim), the size of the source's vocabulary
             or of its vectors, and the dimension of the encoder
    module   its class, where `make` is a function
    """
    _part("INPUTS", name, config, make, module)


def field(name: str, field: "type[Field]") -> None:
    """Register a kind of field, for `kind = "name"` in [data.source] or [data.target].

    name    as recipes write it
    field   a frozen dataclass of its keys, a subclass of `Field` or of one of the package's kinds
    """
    _register("regard.data.fields", "FIELDS", name, field)


def task(name: str, task: "Task") -> None:
    """Register a task, for `task = "name"` in [model], or as the task of a head of your own.

    name   as recipes write it
    task   an instance of a subclass of `Task`, or of one of the package's tasks
    """
    kind = type(task)
    if kind.name != name:
        raise InvalidArgument(
            "name",
            wanted=f"{kind.name!r}, the attribute `name` of {kind.__name__}",
            got=repr(name),
            remedy="Give both one name.",
        )
    _register("regard.core.task_names", "TASK_NAMES", name, task.title, kind)
    _register("regard.tasks.kinds", "TASKS", name, task, kind)


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
    _register("regard.generation.choose.logits_processors", "LOGITS_PROCESSORS", name, make)


def loss(name: str, loss: "Callable[[Tensor, Tensor], Tensor]", *, task: str = "regress") -> None:
    """Register a loss, for `[train] loss = "name"`.

    name   as recipes write it
    loss   called with what the model gives, in float32 at least, and the targets; returns the loss of each target, as
           an array of their shape. For numbers both are (B, K), the targets normalized; for several labels both are
           (B, labels), logits and 0 or 1; for one label (B, labels) and (B,)
    task   that it trains: "regress", "multi_label" or "classify"
    """
    losses = import_module("regard.tasks.output_losses")
    tasks = import_module("regard.tasks.kinds").TASKS
    fitting = [each for each in tasks if tasks[each].default_loss is not None]
    if task not in fitting:
        raise InvalidArgument(
            "task",
            wanted=f"one of {', '.join(map(repr, fitting))}",
            got=repr(task),
            remedy="The loss of other tasks is their own: write a task.",
        )
    kind = losses.LossKind((task,), losses.TargetLosses(loss))
    _register("regard.tasks.output_losses", "LOSSES", name, kind, loss)


def _part(
    registry: str,
    name: str,
    config: type[Any],
    make: Callable[..., Any],
    module: type[Any] | None,
) -> None:
    if module is None and not isinstance(make, type):
        raise InvalidArgument(
            "module",
            wanted="the class of the part, as `make` is a function",
            got="none",
            remedy="Give it: its attributes say what it supports.",
        )
    kind = import_module("regard.model.build").PartKind(config, make, module)
    _register("regard.model.build", registry, name, kind, make)


def _register(module: str, registry: str, name: str, entry: Any, defined: Any = None) -> None:
    """Add an entry, recording the package that defines it for the message of a checkpoint that needs it."""
    entries: Registry[Any] = getattr(import_module(module), registry)
    entries.register(name, entry, package=_package(entry if defined is None else defined))


def _package(entry: Any) -> str | None:
    """The top-level package that defines a class or a function, or the function of a partial."""
    return getattr(getattr(entry, "func", entry), "__module__", "").partition(".")[0] or None
