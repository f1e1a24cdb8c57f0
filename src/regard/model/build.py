"""From a recipe's model table to a model: any encoder with any decoder or pool, refused here if it cannot be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from regard.core.config import Config, Count, nearest, read
from regard.core.errors import InvalidRecipe, Problem
from regard.model.convolution import ConvConfig, ConvDecoder, ConvEncoder
from regard.model.embedding import Embedding, Projection
from regard.model.pooling import AttentionPool, AttentionPoolConfig, FirstPool, LastPool, MeanPool, PoolConfig
from regard.model.rnn_decoder import RnnDecoder, RnnDecoderConfig
from regard.model.rnn_encoder import RnnConfig, RnnEncoder
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Seq2Seq
from regard.model.simple_encoders import BagConfig, BagEncoder, LabelConfig, LabelEncoder
from regard.model.transformer import TransformerDecoder, TransformerEncoder
from regard.model.transformer_block import TransformerConfig
from regard.model.vision import CnnConfig, CnnTransformerConfig, VitConfig, cnn, cnn_transformer, vit

Make = Callable[..., Any]

# name -> what it reads, its configuration, and what makes it
ENCODERS: dict[str, tuple[Literal["tokens", "label", "image"], type[Config], Make]] = {
    "label": ("label", LabelConfig, LabelEncoder),
    "bag": ("tokens", BagConfig, BagEncoder),
    "rnn": ("tokens", RnnConfig, RnnEncoder),
    "conv": ("tokens", ConvConfig, ConvEncoder),
    "transformer": ("tokens", TransformerConfig, TransformerEncoder),
    "cnn": ("image", CnnConfig, cnn),
    "cnn+transformer": ("image", CnnTransformerConfig, cnn_transformer),
    "vit": ("image", VitConfig, vit),
}
DECODERS: dict[str, tuple[type[Config], Make]] = {
    "rnn": (RnnDecoderConfig, RnnDecoder),
    "conv": (ConvConfig, ConvDecoder),
    "transformer": (TransformerConfig, TransformerDecoder),
}
POOLS: dict[str, tuple[type[Config], Make]] = {
    "mean": (PoolConfig, MeanPool),
    "last": (PoolConfig, LastPool),
    "first": (PoolConfig, FirstPool),
    "attention": (AttentionPoolConfig, AttentionPool),
}


@dataclass(frozen=True)
class ModelOptions(Config):
    """The keys of a model table beside its parts."""

    vocab_size: Count | None = None  # how many tokens the decoder, or the masked-token head, chooses from
    source_vocab_size: Count | None = None  # how many tokens or labels the encoder reads; None: as many
    num_labels: Count | None = None  # how many labels a pool's classifier chooses from
    head: Literal["mlm"] | None = None  # for an encoder without decoder or pool
    tie_embeddings: Literal["none", "target", "all"] = (
        "target"  # which embeddings are one matrix: the decoder's own, or all
    )
    scale_embeddings: bool = True  # by the root of their width, as in the first Transformer


KEYS = ("encoder", "decoder", "pool", *ModelOptions.__dataclass_fields__)


def build(model: Mapping[str, Any]) -> Seq2Seq | Classifier | MaskedLanguageModel:
    """The model that this table describes.

    >>> import regard
    >>> model = regard.build({
    ...     "encoder": {"kind": "rnn", "dim": 32},
    ...     "decoder": {"kind": "transformer", "dim": 32, "layers": 2, "heads": 2, "ffn_dim": 64},
    ...     "vocab_size": 100,
    ... })
    >>> type(model).__name__
    'Seq2Seq'
    """
    problems = [
        Problem(f"model.{key}", "a key of model", "an unknown one", nearest(key, KEYS))
        for key in model
        if key not in KEYS
    ]
    reads, encoder = _encoder(model, problems)
    decoder = _part("decoder", DECODERS, model, problems)
    pool = _part("pool", POOLS, model, problems)
    parts = read(ModelOptions, {key: model[key] for key in ModelOptions.__dataclass_fields__ if key in model}, "model")
    if isinstance(parts, list):
        raise InvalidRecipe(problems + parts)
    if not problems:
        problems += _conflicts(model, parts, reads, encoder and encoder[0], decoder and decoder[0], pool and pool[0])
    if problems:
        raise InvalidRecipe(problems)
    return _assemble(parts, reads, encoder, decoder, pool)


def _encoder(model: Mapping[str, Any], problems: list[Problem]) -> tuple[str | None, tuple[Config, Make] | None]:
    found = _part("encoder", {name: row[1:] for name, row in ENCODERS.items()}, model, problems)
    return (None, None) if found is None else (ENCODERS[model["encoder"]["kind"]][0], found)


def _part(
    role: str, kinds: Mapping[str, tuple[type[Config], Make]], model: Mapping[str, Any], problems: list[Problem]
) -> tuple[Config, Make] | None:
    """The configuration and the maker of one part; None where there is none, or where it is wrong."""
    table = model.get(role)
    if table is None:
        return None
    if not isinstance(table, Mapping) or "kind" not in table:
        problems.append(Problem(f"model.{role}", "a table with a kind", repr(table), f"Kinds: {', '.join(kinds)}."))
        return None
    if table["kind"] not in kinds:
        kind = table["kind"]
        problems.append(Problem(f"model.{role}.kind", f"one of {', '.join(kinds)}", repr(kind), nearest(kind, kinds)))
        return None
    config, make = kinds[table["kind"]]
    made = read(config, {key: value for key, value in table.items() if key != "kind"}, f"model.{role}")
    if isinstance(made, list):
        problems += made
        return None
    return made, make


def _conflicts(
    model: Mapping[str, Any],
    parts: ModelOptions,
    reads: str | None,
    encoder: Config | None,
    decoder: Config | None,
    pool: Config | None,
) -> list[Problem]:
    """What is wrong between parts that are right each by itself."""
    problems = []

    def wrong(key: str, wanted: str, got: str, remedy: str) -> None:
        problems.append(Problem(f"model.{key}" if key else "model", wanted, got, remedy))

    outputs = [name for name, there in (("decoder", decoder), ("pool", pool), ("head", parts.head)) if there]
    if len(outputs) != 1:
        wrong("", "one of decoder, pool and head", ", ".join(outputs) or "none", "They say what comes out.")
    for output in ("pool", "head"):
        if output in outputs and encoder is None:
            wrong(output, "an encoder for it to read", "none", "Add [model.encoder].")
    if pool and parts.num_labels is None:
        wrong("num_labels", "the number of labels, for the pool's classifier", "none", "Add num_labels = 2, say.")
    if (decoder or parts.head) and parts.vocab_size is None:
        wrong("vocab_size", "the number of tokens to choose from", "none", "Add vocab_size = 8000, say.")
    if encoder is not None and reads != "image" and parts.source_vocab_size is None and parts.vocab_size is None:
        wrong("source_vocab_size", "the number of tokens or labels that the encoder reads", "none", "Add it.")
    if parts.head and reads != "tokens" and encoder is not None:
        wrong("head", "an encoder of tokens", f"one of {reads}s", "Hidden tokens are found among tokens.")
    if parts.head and getattr(encoder, "causal", False):
        wrong("encoder.causal", "false for a masked-token head", "true", "What hides must be seen from both sides.")
    if parts.head and getattr(encoder, "bidirectional", True) is False:
        wrong("encoder.bidirectional", "true for a masked-token head", "false", "Hidden tokens need both sides.")
    if isinstance(pool, AttentionPoolConfig) and encoder is not None and _dim(encoder) % pool.heads:
        wrong("pool.heads", f"a divisor of the encoder's dim = {_dim(encoder)}", str(pool.heads), "Change one.")
    if isinstance(decoder, RnnDecoderConfig) and encoder is not None and decoder.attention != "none":
        dims = decoder.dim, _dim(encoder)
        if decoder.score in ("dot", "scaled_dot") and dims[0] != dims[1]:
            wrong("decoder.score", f"equal widths for {decoder.score!r}", f"{dims[0]} and {dims[1]}", "Or 'bilinear'.")
    if parts.tie_embeddings == "all":
        if decoder is None or reads != "tokens":
            wrong(
                "tie_embeddings",
                "'target' or 'none' unless tokens become tokens",
                "'all'",
                "There is nothing to share.",
            )
        else:
            if parts.source_vocab_size not in (None, parts.vocab_size):
                sizes = f"{parts.source_vocab_size} and {parts.vocab_size}"
                wrong(
                    "source_vocab_size",
                    "one vocabulary on both sides for tie_embeddings = 'all'",
                    sizes,
                    "Leave it out.",
                )
            if encoder is not None and _dim(encoder) != _dim(decoder):
                both = f"{_dim(encoder)} and {_dim(decoder)}"
                wrong("encoder.dim", "the decoder's dim for tie_embeddings = 'all'", both, "Make them equal.")
    return problems + _unused(model, reads, encoder, decoder, pool)


def _unused(
    model: Mapping[str, Any],
    reads: str | None,
    encoder: Config | None,
    decoder: Config | None,
    pool: Config | None,
) -> list[Problem]:
    """Keys that were written down and would change nothing: what is accepted must not be ignored."""
    alone = "without an encoder there is no source"
    rnn = isinstance(decoder, RnnDecoderConfig)
    looks = isinstance(decoder, RnnDecoderConfig) and decoder.attention != "none"
    begins = isinstance(decoder, RnnDecoderConfig) and (decoder.initial_state == "summary" or not looks)
    idle = [
        ("num_labels", pool is None, "only a pool chooses among labels"),
        ("source_vocab_size", encoder is None or reads == "image", "no tokens or labels are read"),
        ("tie_embeddings", pool is not None, "a classifier has no second embedding"),
        ("encoder.score", isinstance(encoder, ConvConfig), "this encoder looks at nothing"),
        ("encoder.heads", isinstance(encoder, ConvConfig), "this encoder looks at nothing"),
        *[(f"encoder.{key}", getattr(encoder, "backbone", None) is not None, "the backbone has its own stages")
          for key in ("channels", "attention")],
        ("encoder.queries", not begins, "nothing here begins from a summary"),
        ("scale_embeddings", decoder is None and (encoder is None or reads == "image"), "nothing is embedded"),
        ("decoder.causal", decoder is not None, "a decoder never sees what comes after"),
        ("decoder.cls_token", decoder is not None, "no pool reads a decoder"),
        ("decoder.attention", encoder is None and looks, alone),
        ("decoder.initial_state", encoder is None, alone),
        ("decoder.input_feeding", encoder is None, alone),
        ("decoder.score", (rnn and not looks) or (encoder is None and not isinstance(decoder, TransformerConfig)),
         alone if encoder is None else "with attention = 'none' there is nothing to score"),
        ("decoder.heads", encoder is None and isinstance(decoder, ConvConfig), alone),
    ]  # fmt: skip
    for role, config in (("encoder", encoder), ("decoder", decoder)):
        unlearned = isinstance(config, TransformerConfig) and config.positions != "learned"
        idle.append((f"{role}.max_positions", unlearned, "only learned positions have a longest sequence"))
    problems = []
    for path, unused, why in idle:
        part, _, key = path.rpartition(".")
        table = model.get(part) or {} if part else model
        if unused and key in table:
            problems.append(Problem(f"model.{path}", f"nothing here: {why}", repr(table[key]), "Leave it out."))
    return problems


def _dim(config: Config) -> int:
    inner: Any = getattr(config, "transformer", config)
    return cast(int, inner.dim)


def _assemble(
    parts: ModelOptions,
    reads: str | None,
    encoder: tuple[Config, Make] | None,
    decoder: tuple[Config, Make] | None,
    pool: tuple[Config, Make] | None,
) -> Seq2Seq | Classifier | MaskedLanguageModel:
    target = None
    if decoder is not None:
        target = Embedding(cast(int, parts.vocab_size), _dim(decoder[0]), scaled=parts.scale_embeddings)
    front, source = None, None
    if encoder is not None:
        config, make = encoder
        if reads == "image":
            front = make(config)
        else:
            size = parts.source_vocab_size or cast(int, parts.vocab_size)
            shared = target if parts.tie_embeddings == "all" else None
            source = shared or Embedding(size, _dim(config), scaled=parts.scale_embeddings)
            front = make(config, source)
    if decoder is not None and target is not None:
        config, make = decoder
        project = Projection(target.dim, target.vocab_size, tied=None if parts.tie_embeddings == "none" else target)
        return Seq2Seq(front, make(config, target, project, None if encoder is None else _dim(encoder[0])))
    assert front is not None
    assert encoder is not None
    if pool is not None:
        config, make = pool
        return Classifier(front, make(config, _dim(encoder[0])), cast(int, parts.num_labels), _dropout(encoder[0]))
    tied = source if parts.tie_embeddings == "target" else None
    project = Projection(_dim(encoder[0]), cast(int, parts.vocab_size), tied=tied)
    return MaskedLanguageModel(front, project, getattr(encoder[0], "norm_eps", 1e-5))


def _dropout(config: Config) -> float:
    return float(getattr(getattr(config, "transformer", config), "dropout", 0.0))
