"""From a model table to a model: any registered encoder with any registered decoder or pool."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from regard.core.config import nearest, read, unknown_keys
from regard.core.errors import InvalidRecipe, Problem
from regard.core.registry import Registry
from regard.model.convolution import ConvConfig, ConvDecoder, ConvEncoder
from regard.model.ctc_head import CtcConfig, CtcHead
from regard.model.embedding import Embedding, Projection
from regard.model.horizon_head import Forecaster, HorizonConfig, HorizonHead, state_count
from regard.model.inputs import (
    EmbeddingConfig,
    InputConfig,
    InputModule,
    VectorInput,
    VectorInputConfig,
)
from regard.model.interfaces import AnyDecoder, Encoder, Head, Pool
from regard.model.mlp import MlpConfig, MlpEncoder
from regard.model.model_config import ModelConfig, ModelOptions, conflicts
from regard.model.multi_source import MultiSourceEncoder
from regard.model.part_config import (
    DecoderConfig,
    EncoderConfig,
    HeadConfig,
    MaskedTokensConfig,
    Part,
    PoolConfig,
)
from regard.model.perceiver import PerceiverConfig, PerceiverEncoder
from regard.model.pooling import (
    AttentionPool,
    AttentionPoolConfig,
    FirstPool,
    FirstPoolConfig,
    LastPool,
    LastPoolConfig,
    MeanPool,
)
from regard.model.rnn_decoder import RnnDecoder
from regard.model.rnn_decoder_config import RnnDecoderConfig
from regard.model.rnn_encoder import RnnConfig, RnnEncoder
from regard.model.seq2seq import (
    Classifier,
    EncoderWithHead,
    MaskedLanguageModel,
    MaskedTokensHead,
    Model,
    Seq2Seq,
    SourceModel,
)
from regard.model.simple_encoders import BagConfig, BagEncoder, LabelConfig, LabelEncoder
from regard.model.tag_head import TagHead, TagsConfig
from regard.model.transformer import TransformerDecoder, TransformerEncoder
from regard.model.transformer_config import TransformerConfig
from regard.model.vector_embedding import VectorEmbedding, VectorProjection
from regard.model.vector_generator import VectorGenerator
from regard.model.vector_head import VectorsConfig, VectorsHead
from regard.model.vision import (
    CnnConfig,
    CnnTransformerConfig,
    GridEncoder,
    GridTransformer,
    PatchTransformer,
    VitConfig,
    cnn,
    cnn_transformer,
    vit,
)
from regard.model.word_input import WordInput, WordInputConfig

ConfigType = TypeVar(
    "ConfigType", EncoderConfig, DecoderConfig, PoolConfig, HeadConfig, InputConfig
)
Made = TypeVar("Made", covariant=True)


@dataclass(frozen=True)
class PartKind(Generic[ConfigType, Made]):
    """A kind of part: its configuration and what makes the module from it.

    module   the class of what it makes, where that is a function; its attributes say what it supports

    Encoders of tokens and labels are made from (config, embedding), encoders of images from (config); decoders from
    (config, embedding, projection, memory_dim or None); pools from (config, memory_dim); heads from (config,
    memory_dim, number of outputs); input modules from (config, size of the source, dim).
    """

    config: type[ConfigType]
    make: Callable[..., Made]
    module: type[Any] | None = None

    @property
    def made(self) -> type[Any]:
        """The class of what it makes."""
        if self.module is not None:
            return self.module
        assert isinstance(self.make, type)
        return self.make


ENCODERS: Registry[PartKind[EncoderConfig, Encoder]] = Registry(
    "encoder",
    {
        "label": PartKind(LabelConfig, LabelEncoder),
        "bag": PartKind(BagConfig, BagEncoder),
        "mlp": PartKind(MlpConfig, MlpEncoder),
        "rnn": PartKind(RnnConfig, RnnEncoder),
        "conv": PartKind(ConvConfig, ConvEncoder),
        "transformer": PartKind(TransformerConfig, TransformerEncoder),
        "perceiver": PartKind(PerceiverConfig, PerceiverEncoder),
        "cnn": PartKind(CnnConfig, cnn, GridEncoder),
        "cnn+transformer": PartKind(CnnTransformerConfig, cnn_transformer, GridTransformer),
        "vit": PartKind(VitConfig, vit, PatchTransformer),
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
HEADS: Registry[PartKind[HeadConfig, Head]] = Registry(
    "head",
    {
        "mlm": PartKind(MaskedTokensConfig, Head, MaskedTokensHead),
        "tags": PartKind(TagsConfig, TagHead),
        "vectors": PartKind(VectorsConfig, VectorsHead),
        "horizon": PartKind(HorizonConfig, HorizonHead),
        "ctc": PartKind(CtcConfig, CtcHead),
    },
)
INPUTS: Registry[PartKind[InputConfig, InputModule]] = Registry(
    "input module",
    {
        "tokens": PartKind(EmbeddingConfig, Embedding),
        "label": PartKind(EmbeddingConfig, Embedding),
        "vectors": PartKind(VectorInputConfig, VectorInput),
        "words": PartKind(WordInputConfig, WordInput),
        "image": PartKind(InputConfig, InputModule),
    },
)
KEYS = ("encoder", "encoders", "decoder", "pool", "head", *ModelOptions.__dataclass_fields__)


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
    encoders, inputs = _encoders(table, problems)
    decoder = _part("decoder", DECODERS, table.get("decoder"), problems)
    pool = _part("pool", POOLS, table.get("pool"), problems)
    head = _part("head", HEADS, kind_table(table.get("head")), problems)
    options = read(
        ModelOptions,
        {key: table[key] for key in ModelOptions.__dataclass_fields__ if key in table},
        "model",
    )
    if isinstance(options, list):
        return problems + options
    auxiliary = None
    if decoder is not None and head is not None and getattr(head.module, "beside_decoder", False):
        # The decoder gives the outputs; the head is only trained beside it.
        auxiliary = head
        head = None
    model = ModelConfig(encoders, inputs, decoder, pool, head, options, table, auxiliary)
    return problems or list(conflicts(model, sized=sized)) or model


def part_names(model: ModelConfig) -> Iterator[tuple[Registry[Any], str]]:
    """The registered names in a model: the kind of each part, and those in its configuration."""
    parts: list[tuple[Registry[Any], Part[Any] | None]] = [
        *((ENCODERS, part) for part in model.encoders),
        *((INPUTS, part) for part in model.inputs),
    ]
    for registry, part in [
        *parts,
        (DECODERS, model.decoder),
        (POOLS, model.pool),
        (HEADS, model.head),
        (HEADS, model.auxiliary),
    ]:
        if part is not None:
            yield registry, part.kind
            yield from part.config.registered()
    yield from model.options.registered()


def _encoders(
    model: Mapping[str, Any], problems: list[Problem]
) -> tuple[tuple[Part[EncoderConfig], ...], tuple[Part[InputConfig], ...]]:
    """The encoder, or one for each source, and what stands before each."""
    tables, names = [model.get("encoder")], ["encoder"]
    if "encoders" in model:
        several = model["encoders"]
        if not isinstance(several, list | tuple) or len(several) < 2 or "encoder" in model:
            wanted, remedy = (
                "two or more tables, and no encoder beside them",
                "Write [[model.encoders]] for each.",
            )
            problems.append(Problem("model.encoders", wanted, repr(several)[:80], remedy))
            return (), ()
        tables, names = list(several), [f"encoders.{i}" for i in range(1, len(several) + 1)]
    encoders: list[Part[EncoderConfig]] = []
    inputs: list[Part[InputConfig]] = []
    for name, table in zip(names, tables, strict=True):
        own = table
        given = None
        if isinstance(table, Mapping) and "input" in table:
            given = kind_table(table["input"])
            own = {key: value for key, value in table.items() if key != "input"}
        encoder = _part(name, ENCODERS, own, problems)
        if encoder is None:
            continue
        if given is not None and not encoder.module.has_input_module:
            wanted = f"nothing: an encoder of the kind {encoder.kind!r} reads its source itself"
            problems.append(
                Problem(f"model.{name}.input", wanted, repr(given)[:80], "Leave it out.")
            )
            continue
        read = _part(f"{name}.input", INPUTS, given or {"kind": encoder.module.reads}, problems)
        if read is not None:
            encoders.append(encoder)
            inputs.append(read)
    return tuple(encoders), tuple(inputs)


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
    return Part(kind, config, kinds[kind].made)


def kind_table(given: Any) -> Any:
    """The table of a part: one without keys may be written as its kind alone, head = "mlm"."""
    return {"kind": given} if isinstance(given, str) else given


def _assemble(model: ModelConfig) -> Model:
    made = _without_task(model)
    named = model.options.task
    if named is not None:
        made.task = named
    return made


def _vector_generator(
    model: ModelConfig, decoder: Part[DecoderConfig], encoder: Encoder
) -> VectorGenerator:
    options = model.options
    assert options.target_dim is not None
    assert options.horizon is not None
    dim = decoder.config.states_dim
    embedding = VectorEmbedding(options.target_dim, dim)
    project = VectorProjection(dim, options.target_dim)
    made = DECODERS[decoder.kind].make(decoder.config, embedding, project, model.memory_dim)
    return VectorGenerator(encoder, made, options.horizon)


def _without_task(model: ModelConfig) -> Model:
    options = model.options
    make_embedding = partial(
        Embedding, scaled=options.scale_embeddings, dropout=options.embedding_dropout
    )
    target = None
    if model.decoder is not None and model.gives_tokens:
        assert options.vocab_size is not None
        target = make_embedding(options.vocab_size, model.decoder.config.states_dim)
    encoders, embeddings = list[Encoder](), list[Embedding]()
    for part, module, size in zip(model.encoders, model.inputs, model.source_sizes(), strict=True):
        config = part.config
        make = ENCODERS[part.kind].make
        if size is None:
            encoders.append(make(config))
            continue
        if not isinstance(module.config, EmbeddingConfig):
            if model.head is not None and isinstance(model.head.config, HorizonConfig):
                assert options.num_labels is not None
                size = model.head.config.input_size(size, options.num_labels)
            make_input = INPUTS[module.kind].make
            encoders.append(make(config, make_input(module.config, size, config.states_dim)))
            continue
        shared = target if options.tie_embeddings == "all" and module.kind == "tokens" else None
        embeddings.append(shared or make_embedding(size, config.states_dim))
        encoders.append(make(config, embeddings[-1]))
    encoder = encoders[0] if encoders else None
    if len(encoders) > 1:
        encoder = MultiSourceEncoder(encoders)
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
        decoder = make_decoder(model.decoder.config, target, project, model.memory_dim)
        return Seq2Seq(encoder, decoder, _auxiliary_head(model))
    assert encoder is not None
    if model.decoder is not None:
        return _vector_generator(model, model.decoder, encoder)
    config = model.encoders[0].config
    if model.pool is not None:
        assert options.num_labels is not None
        pool = POOLS[model.pool.kind].make(model.pool.config, model.memory_dim)
        return Classifier(encoder, pool, options.num_labels, config.output_dropout)
    assert model.head is not None
    if isinstance(model.head.config, HorizonConfig):
        return _forecaster(model.head.config, encoder, options, config.states_dim)
    if not isinstance(model.head.config, MaskedTokensConfig):
        count = options.vocab_size if model.head.module.gives_tokens else options.num_labels
        assert count is not None
        make_head = HEADS[model.head.kind].make
        head = make_head(model.head.config, model.memory_dim, count)
        with_head: SourceModel = EncoderWithHead(encoder, head)
        with_head.task = head.task
        return with_head
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


def _forecaster(
    config: HorizonConfig, encoder: Encoder, options: ModelOptions, memory_dim: int
) -> Forecaster:
    assert options.num_labels is not None
    assert options.horizon is not None
    assert options.source_length is not None
    states = state_count(encoder, options.source_length)
    head = HorizonHead(config, memory_dim, options.num_labels, options.horizon, states)
    return Forecaster(encoder, head)


def _auxiliary_head(model: ModelConfig) -> Head | None:
    """The head that is trained beside the decoder, if there is one."""
    head = model.auxiliary
    if head is None:
        return None
    made: Head = HEADS[head.kind].make(head.config, model.memory_dim, model.options.vocab_size)
    return made
