"""Finds the architecture of transformers that expresses a model of ours exactly, or the obstacles to each.

An architecture proposes the config.json that comes nearest to the model. The model that this config.json describes is
compared with ours, setting by setting. A difference is an obstacle unless the weights can make up for it: sinusoidal
positions are written as a learned table, scaled embeddings are multiplied out, a tied output layer is written as a
copy, missing segment embeddings are zeros, and an output bias that is the same for every token is left out, since it
changes no probability.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.core.config import Config
from regard.core.errors import RegardError
from regard.core.shapes import Tensor
from regard.interop.architectures.base import Architecture, SharedKeys
from regard.interop.architectures.table import ARCHITECTURES
from regard.interop.architectures.tagging import gives_tags
from regard.interop.rules import Copies, Step, plan
from regard.model.build import build, parse_model
from regard.model.model_config import ModelConfig
from regard.model.part_config import Part
from regard.model.pooling import FirstPoolConfig
from regard.model.positions import POSITIONS, Learned, RelativeBias, Rotary, Sinusoidal
from regard.model.transformer_config import TransformerConfig
from regard.model.weights import weights_of

# Settings of training, and settings that have an effect only together with others.
IRRELEVANT = {
    "dropout",
    "embedding_dropout",
    "attention_dropout",
    "ffn_dropout",
    "activation_checkpointing",
    "constraints",
    "word_vectors",
    "freeze_word_vectors",
}
OUTPUT_BIAS = "decoder.project.bias"
NO_BIAS = "model.output_bias = True, not False"
TABLE = "input_layer.position_encoding.positions.table"
POSITIONS_WRITTEN = 1024  # rows of a table that is written for sinusoidal positions
ABSENT = "nothing"


@dataclass(frozen=True)
class Expression:
    """A model of ours in an architecture of transformers."""

    architecture: Architecture[Any]
    config: dict[str, Any]  # config.json
    keys: SharedKeys
    model: ModelConfig  # ours, or one that computes the same with the weights of `weights`
    head: str

    def steps(self) -> list[Step]:
        with torch.device("meta"):
            names = weights_of(build(self.model))
        return plan(self.architecture.rules(self.keys, self.model), names)

    def weights(self, ours: nn.Module, before: ModelConfig) -> dict[str, Tensor]:
        """The weights of `model` by name, computed from our model `ours`, which has the configuration `before`."""
        with torch.device("meta"):
            shapes = weights_of(build(self.model))
        own = {name: tensor.detach() for name, tensor in ours.state_dict().items()}
        folded = before.options.scale_embeddings and not self.model.options.scale_embeddings
        found = {}
        for name, meta in shapes.items():
            if name not in own:
                # A table of sinusoids, or segment embeddings.
                found[name] = _written(name, meta)
            elif folded and name.endswith("embed_tokens.weight"):
                found[name] = own[name] * own[name].shape[1] ** 0.5
            else:
                found[name] = own[name]
        return found


def express(model: ModelConfig) -> Expression | list[str]:
    """The first architecture that expresses a model, or why the nearest one does not.

    An architecture that has all settings of the model is preferred to one whose weights must make up for some.
    """
    best: tuple[str, list[str]] | None = None
    made_up: Expression | None = None
    for architecture in ARCHITECTURES.values():
        result = express_as(architecture, model)
        if isinstance(result, Expression):
            if result.model == model:
                return result
            made_up = made_up or result
        elif result and (best is None or len(result) < len(best[1])):
            best = (architecture.model_type, result)
    if made_up is not None:
        return made_up
    if best is None:
        kinds = ", ".join(f"model.{role}.kind = {part.kind!r}" for role, part in _parts(model))
        return [f"{kinds}: transformers has no such model"]
    name, differences = best
    return [f"{each} (in {name}, the nearest)" for each in differences]


def lost_bias(expression: Expression, ours: nn.Module, before: ModelConfig) -> list[str]:
    """An obstacle if the architecture lacks an output bias that our model, with the configuration `before`, needs."""
    if not before.options.output_bias or expression.model.options.output_bias:
        return []
    bias = ours.state_dict()[OUTPUT_BIAS]
    if bool((bias == bias[0]).all()):
        return []
    name = expression.architecture.model_type
    return [
        f"{NO_BIAS} (in {name}, the nearest): train with output_bias = false, from this checkpoint if you like"
    ]


def unequal_copies(expression: Expression, weights: Mapping[str, Tensor]) -> list[str]:
    """Weights of ours that are one tensor of theirs, but differ."""
    found = []
    for step in expression.steps():
        if any(isinstance(op, Copies) for op in step.ops):
            first, *others = [weights[name] for name in step.ours]
            if not all(torch.equal(first, other) for other in others):
                names = " and ".join(step.ours)
                found.append(f"{names} differ, and are one matrix in transformers")
    return found


def express_as(architecture: Architecture[Any], model: ModelConfig) -> Expression | list[str]:
    """The expression in one architecture, or what differs; [] where the parts are of other kinds."""
    head = _head(model)
    has_bias = model.options.output_bias
    classes = [name for name, each in architecture.classes.items() if each == head]
    if not classes:
        return []
    # The second time with the settings that the weights can make up for.
    for _ in range(2):
        config = architecture.export_keys(model)
        if not config:
            return []
        config = {"model_type": architecture.model_type, "architectures": classes[:1], **config}
        try:
            keys = architecture.read(config, head, Path("config.json"))
            theirs = parse_model(architecture.table(keys, head, None) | _labels(model))
        except RegardError as error:
            return [str(error)]
        if isinstance(theirs, list):
            return [str(problem) for problem in theirs]
        differences = list(_differences(model, theirs))
        if not differences:
            return Expression(architecture, config, keys, model, head)
        changed = _made_up_for(model, theirs)
        if changed is None:
            break
        model = changed
    obstacles = [f"{key} = {ours!r}, not {theirs!r}" for key, ours, theirs in differences]
    if has_bias and not model.options.output_bias:
        obstacles.append(NO_BIAS)
    return obstacles


def _head(model: ModelConfig) -> str:
    """The head of a model, by the names in `Architecture.classes`."""
    if gives_tags(model):
        return "tags"
    if model.pool is None:
        return "mlm" if model.decoder is None else "generation"
    pool = model.pool.config
    if isinstance(pool, FirstPoolConfig) and pool.distillation_head:
        return "distilled classification"
    return "classification"


def _labels(model: ModelConfig) -> dict[str, Any]:
    if model.pool is None and not gives_tags(model):
        return {}
    return {"num_labels": model.options.num_labels}


def _parts(model: ModelConfig) -> Iterator[tuple[str, Part[Any]]]:
    yield from zip(model.encoder_names, model.encoders, strict=True)
    if model.decoder is not None:
        yield "decoder", model.decoder
    if model.pool is not None:
        yield "pool", model.pool
    if model.head is not None:
        yield "head", model.head


def _settings(model: ModelConfig) -> dict[str, Any]:
    """Every setting that has an effect on the outputs, with all defaults filled in."""
    found: dict[str, Any] = {}
    for role, part in _parts(model):
        found[f"model.{role}.kind"] = part.kind
        for key, value in _effective(part.config).items():
            found[f"model.{role}.{key}"] = value
    options = {key: value for key, value in asdict(model.options).items() if key not in IRRELEVANT}
    options["source_vocab_size"] = tuple(model.source_sizes())
    if model.pool is not None or gives_tags(model):
        # Other options have no effect on a classifier or a tagger.
        options = {key: options[key] for key in ("num_labels", "source_vocab_size")}
    for key, value in options.items():
        found[f"model.{key}"] = value
    return found


def _effective(config: Config) -> dict[str, Any]:
    """The settings of a part that have an effect on the outputs, with derived defaults filled in."""
    found: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Config):
            for key, each in _effective(value).items():
                found[f"{field.name}.{key}"] = each
        elif field.name not in IRRELEVANT:
            found[field.name] = value
    if isinstance(config, TransformerConfig):
        positions = POSITIONS[config.positions]
        found["head_dim"] = config.dim_per_head
        found["kv_heads"] = config.kv_heads or config.heads
        found["value_dim"] = config.value_dim_per_head
        # Settings of one kind of positions have no effect on the others.
        used = {
            Learned: ("max_positions", "position_offset"),
            Rotary: ("rotary_base",),
            RelativeBias: ("relative_buckets", "relative_max_distance"),
        }
        for kind, keys in used.items():
            if not issubclass(positions, kind):
                found = {key: value for key, value in found.items() if key not in keys}
    return found


def _differences(ours: ModelConfig, theirs: ModelConfig) -> Iterator[tuple[str, Any, Any]]:
    own = _settings(ours)
    other = _settings(theirs)
    for key in dict.fromkeys((*own, *other)):
        value = own.get(key, ABSENT)
        their_value = other.get(key, ABSENT)
        if value != their_value:
            yield key, value, their_value


def _made_up_for(ours: ModelConfig, theirs: ModelConfig) -> ModelConfig | None:
    """Our model with their settings where the weights can make up for the difference; None if there is no such one."""
    table: dict[str, Any] = dict(ours.table)
    for role in ("encoder", "decoder"):
        part = next((part for name, part in _parts(ours) if name == role), None)
        other = next((part for name, part in _parts(theirs) if name == role), None)
        if part is None or other is None:
            continue
        own = part.config
        wanted = other.config
        if not isinstance(own, TransformerConfig) or not isinstance(wanted, TransformerConfig):
            continue
        changes: dict[str, Any] = {}
        adds_sinusoids = own.positions == "sinusoidal" and own.position_mode == "add"
        if adds_sinusoids and wanted.positions == "learned":
            changes["positions"] = "learned"
            changes["max_positions"] = POSITIONS_WRITTEN
            if wanted.position_offset:
                changes["position_offset"] = wanted.position_offset
        if not own.token_types and wanted.token_types and role == "encoder":
            changes["token_types"] = wanted.token_types
        table[role] = dict(table[role]) | changes
    multiplied = ours.options.scale_embeddings and not theirs.options.scale_embeddings
    if multiplied:
        table["scale_embeddings"] = False
    has_projection = ours.pool is None and not gives_tags(ours)
    if has_projection and (multiplied or theirs.options.tie_embeddings == "none"):
        table["tie_embeddings"] = "none"
    if ours.options.output_bias and not theirs.options.output_bias and ours.decoder is not None:
        table["output_bias"] = False
    if table == ours.table:
        return None
    changed = parse_model(table)
    return None if isinstance(changed, list) else changed


def _written(name: str, meta: Tensor) -> Tensor:
    """A weight that our model does not have: zeros, or a table of sinusoids."""
    if not name.endswith(TABLE):
        return torch.zeros(meta.shape)
    offset = meta.shape[0] - POSITIONS_WRITTEN
    rows: Tensor = Sinusoidal(meta.shape[1])(torch.arange(POSITIONS_WRITTEN))
    return torch.cat((torch.zeros(offset, meta.shape[1]), rows))
