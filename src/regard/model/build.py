"""From a model table to a model: any registered encoder with any registered decoder or pool."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from regard.core.config import nearest, read, registered_names, unknown_keys
from regard.core.errors import InvalidRecipe, Problem
from regard.core.registry import Registry
from regard.model.convolution import ConvConfig, ConvDecoder, ConvEncoder
from regard.model.embedding import Embedding, Projection
from regard.model.interfaces import AnyDecoder, Encoder, Pool
from regard.model.model_config import ModelConfig, ModelOptions, Part, conflicts
from regard.model.multi_source import MultiSourceEncoder
from regard.model.part_config import DecoderConfig, EncoderConfig, PoolConfig
from regard.model.pooling import (
    AttentionPool,
    AttentionPoolConfig,
    FirstPool,
    FirstPoolConfig,
    LastPool,
    LastPoolConfig,
    MeanPool,
)
from regard.model.rnn_decoder import RnnDecoder, RnnDecoderConfig
from regard.model.rnn_encoder import RnnConfig, RnnEncoder
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Model, Seq2Seq
from regard.model.simple_encoders import BagConfig, BagEncoder, LabelConfig, LabelEncoder
from regard.model.transformer import TransformerDecoder, TransformerEncoder
from regard.model.transformer_config import TransformerConfig
from regard.model.vision import (
    CnnConfig,
    CnnTransformerConfig,
    VitConfig,
    cnn,
    cnn_transformer,
    vit,
)

ConfigType = TypeVar("ConfigType", EncoderConfig, DecoderConfig, PoolConfig)
Made = TypeVar("Made", covariant=True)


@dataclass(frozen=True)
class PartKind(Generic[ConfigType, Made]):
    """A kind of part: its configuration and what makes the module from it.

    Encoders of tokens and labels are made from (config, embedding), encoders of images from (config); decoders from
    (config, embedding, projection, memory_dim or None); pools from (config, memory_dim).
    """

    config: type[ConfigType]
    make: Callable[..., Made]


ENCODERS: Registry[PartKind[EncoderConfig, Encoder]] = Registry(
    "encoder",
    {
        "label": PartKind(LabelConfig, LabelEncoder),
        "bag": PartKind(BagConfig, BagEncoder),
        "rnn": PartKind(RnnConfig, RnnEncoder),
        "conv": PartKind(ConvConfig, ConvEncoder),
        "transformer": PartKind(TransformerConfig, TransformerEncoder),
        "cnn": PartKind(CnnConfig, cnn),
        "cnn+transformer": PartKind(CnnTransformerConfig, cnn_transformer),
        "vit": PartKind(VitConfig, vit),
    },
)
DECODERS: Registry[PartKind[DecoderConfig, AnyDecoder]] = Registry(
    "decoder",
    {
        "rnn": PartKind(RnnDecoderConfig, RnnDecoder),
        "conv": PartKind(ConvConfig, ConvDecoder),
        "transformer": PartKind(TransformerConfig, TransformerDecoder),
    },
)
POOLS: Registry[PartKind[PoolConfig, Pool]] = Registry(
    "pool",
    {
        "mean": PartKind(PoolConfig, MeanPool),
        "last": PartKind(LastPoolConfig, LastPool),
        "first": PartKind(FirstPoolConfig, FirstPool),
        "attention": PartKind(AttentionPoolConfig, AttentionPool),
    },
)
KEYS = ("encoder", "encoders", "decoder", "pool", *ModelOptions.__dataclass_fields__)


def build(model: ModelConfig | Mapping[str, Any]) -> Model:
    """The model that a table describes, its parameters initialised at random.

    >>> import regard
    >>> model = regard.build({
    ...     "encoder": {"kind": "rnn", "dim": 32},
    ...     "decoder": {"kind": "transformer", "dim": 32, "layers": 2, "heads": 2, "ffn_dim": 64},
    ...     "vocab_size": 100,
    ... })
    >>> type(model).__name__
    'Seq2Seq'
    """
    config = model if isinstance(model, ModelConfig) else parse_model(model)
    if isinstance(config, list):
        raise InvalidRecipe(config)
    return _assemble(config)


def parse_model(table: Mapping[str, Any], *, sized: bool = True) -> ModelConfig | list[Problem]:
    """The configuration that a model table describes, or everything that is wrong with it. Nothing is built.

    sized   whether the table must give the sizes of its vocabularies; False in a recipe, where the data give them
    """
    problems = unknown_keys(table, KEYS, "model")
    encoders = _encoders(table, problems)
    decoder = _part("decoder", DECODERS, table.get("decoder"), problems)
    pool = _part("pool", POOLS, table.get("pool"), problems)
    options = read(
        ModelOptions,
        {key: table[key] for key in ModelOptions.__dataclass_fields__ if key in table},
        "model",
    )
    if isinstance(options, list):
        return problems + options
    model = ModelConfig(encoders, decoder, pool, options, table)
    return problems or list(conflicts(model, sized=sized)) or model


def part_names(model: ModelConfig) -> Iterator[tuple[Registry[Any], str]]:
    """The registered names in a model: the kind of each part, and those in its configuration."""
    parts: list[tuple[Registry[Any], Part[Any] | None]] = [
        (ENCODERS, part) for part in model.encoders
    ]
    for registry, part in [*parts, (DECODERS, model.decoder), (POOLS, model.pool)]:
        if part is not None:
            yield registry, part.kind
            yield from registered_names(part.config)


def _encoders(model: Mapping[str, Any], problems: list[Problem]) -> tuple[Part[EncoderConfig], ...]:
    """The encoder, or one for each source."""
    tables, names = [model.get("encoder")], ["encoder"]
    if "encoders" in model:
        several = model["encoders"]
        if not isinstance(several, list | tuple) or len(several) < 2 or "encoder" in model:
            wanted, remedy = (
                "two or more tables, and no encoder beside them",
                "Write [[model.encoders]] for each.",
            )
            problems.append(Problem("model.encoders", wanted, repr(several)[:80], remedy))
            return ()
        tables, names = list(several), [f"encoders.{i}" for i in range(1, len(several) + 1)]
    parts = [
        _part(name, ENCODERS, table, problems) for name, table in zip(names, tables, strict=True)
    ]
    return tuple(part for part in parts if part is not None)


def _part(
    role: str, kinds: Registry[PartKind[ConfigType, Made]], table: Any, problems: list[Problem]
) -> Part[ConfigType] | None:
    """One part by kind; None where there is none, or where something is wrong, which is added to the problems."""
    if table is None:
        return None
    if not isinstance(table, Mapping) or "kind" not in table:
        problems.append(
            Problem(
                f"model.{role}", "a table with a kind", repr(table), f"Kinds: {', '.join(kinds)}."
            )
        )
        return None
    kind = table["kind"]
    if kind not in kinds:
        hint = nearest(str(kind), kinds, listed=True)
        problems.append(
            Problem(f"model.{role}.kind", f"one of {', '.join(kinds)}", repr(kind)[:80], hint)
        )
        return None
    options = {key: value for key, value in table.items() if key != "kind"}
    config = read(kinds[kind].config, options, f"model.{role}")
    if isinstance(config, list):
        problems += config
        return None
    return Part(kind, config)


def _assemble(model: ModelConfig) -> Model:
    options = model.options
    make_embedding = partial(
        Embedding, scaled=options.scale_embeddings, dropout=options.embedding_dropout
    )
    target = None
    if model.decoder is not None:
        assert options.vocab_size is not None
        target = make_embedding(options.vocab_size, model.decoder.config.states_dim)
    encoders, embeddings = list[Encoder](), list[Embedding]()
    for part, size in zip(model.encoders, model.source_vocab_sizes(), strict=True):
        config, make = part.config, ENCODERS[part.kind].make
        if size is None:
            encoders.append(make(config))
            continue
        shared = target if options.tie_embeddings == "all" and config.reads == "tokens" else None
        embeddings.append(shared or make_embedding(size, config.states_dim))
        encoders.append(make(config, embeddings[-1]))
    encoder = (
        MultiSourceEncoder(encoders) if len(encoders) > 1 else encoders[0] if encoders else None
    )
    if model.decoder is not None and target is not None:
        tied = None if options.tie_embeddings == "none" else target
        project = Projection(
            target.dim,
            target.vocab_size,
            tied=tied,
            bias=options.output_bias,
            scaled=options.scale_logits,
        )
        make_decoder = DECODERS[model.decoder.kind].make
        return Seq2Seq(
            encoder, make_decoder(model.decoder.config, target, project, model.memory_dim)
        )
    assert encoder is not None
    config = model.encoders[0].config
    if model.pool is not None:
        assert options.num_labels is not None
        pool = POOLS[model.pool.kind].make(model.pool.config, model.memory_dim)
        return Classifier(encoder, pool, options.num_labels, config.output_dropout)
    assert options.vocab_size is not None
    tied = embeddings[0] if options.tie_embeddings == "target" else None
    project = Projection(
        config.states_dim,
        options.vocab_size,
        tied=tied,
        bias=options.output_bias,
        scaled=options.scale_logits,
    )
    return MaskedLanguageModel(encoder, project, config.head_norm_eps)
