"""The configuration of a whole model: its parts, each by kind, and the options beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from regard.core.config import Config, Count, doc
from regard.core.errors import Problem
from regard.model.part_config import DecoderConfig, EncoderConfig, PoolConfig

ConfigType = TypeVar("ConfigType", bound=Config)
SIZES = ("vocab_size", "source_vocab_size", "num_labels")  # options that a recipe takes from its data


@dataclass(frozen=True)
class Part(Generic[ConfigType]):
    """An encoder, decoder or pool by its registered name, with its configuration."""

    kind: str
    config: ConfigType


def config_of(part: Part[ConfigType] | None) -> ConfigType | None:
    return None if part is None else part.config


@dataclass(frozen=True)
class ModelOptions(Config):
    """The keys of a model table beside its parts."""

    vocab_size: Count | None = doc(None, "tokens that the decoder or the masked-language-model head predicts")
    source_vocab_size: Count | None = doc(None, "tokens or labels that the encoder reads; left out: vocab_size")
    num_labels: Count | None = doc(None, "classes of a pool's classifier")
    head: Literal["mlm"] | None = doc(
        None, "masked language modeling, for an encoder without decoder or pool (https://arxiv.org/abs/1810.04805)"
    )
    tie_embeddings: Literal["none", "target", "all"] = doc(
        "target",
        'embeddings that share a matrix: "target" the decoder\'s with its output layer, "all" the '
        "encoder's as well (https://arxiv.org/abs/1608.05859)",
    )
    scale_embeddings: bool = doc(
        True, "multiply embeddings by the square root of their dimension (https://arxiv.org/abs/1706.03762)"
    )


@dataclass(frozen=True)
class ModelConfig:
    """A checked model table. `parse_model` makes it; it answers what the recipe's checks ask without building."""

    encoder: Part[EncoderConfig] | None
    decoder: Part[DecoderConfig] | None
    pool: Part[PoolConfig] | None
    options: ModelOptions
    table: Mapping[str, Any]  # as it was given

    @property
    def reads(self) -> Literal["tokens", "label", "image"] | None:
        """What the encoder reads; None for a language model."""
        return None if self.encoder is None else self.encoder.config.reads

    @property
    def predicts(self) -> Literal["tokens", "label", "masked tokens"]:
        if self.pool is not None:
            return "label"
        return "masked tokens" if self.decoder is None else "tokens"

    @property
    def is_language_model(self) -> bool:
        return self.decoder is not None and self.encoder is None

    @property
    def carries_state(self) -> bool:
        """Whether it is a language model whose state can be carried from one part of a text to the next."""
        return self.decoder is not None and self.encoder is None and self.decoder.config.carries_state

    @property
    def has_attention_penalty(self) -> bool:
        """Whether training can penalise the attention weights: a stateful decoder that attends to a source."""
        decoder = None if self.decoder is None or self.encoder is None else self.decoder.config
        return decoder is not None and decoder.carries_state and decoder.attends

    def not_packable(self) -> str | None:
        """Why it takes no packed sequences; None where it does."""
        parts = dict(self._parts())
        layouts = {config.packed_memory for config in parts.values()}
        if self.decoder is None or len(layouts) > 1 or not all(config.packable for config in parts.values()):
            return "anything but Transformers, convolutions, or recurrent sides on their own, that write"
        reasons = (f"model.{role}.{config.not_packable()}" for role, config in parts.items() if config.not_packable())
        return next(reasons, None)

    def not_shardable(self) -> str | None:
        """Why FSDP cannot shard it; None where it can."""
        parts = [config for _, config in self._parts()]
        if any(config.has_blocks for config in parts) and all(config.shardable for config in parts):
            return None
        return "false unless the model is made of Transformer blocks (transformer, vit)"

    def image_conflicts(self, size: int) -> Iterator[Problem]:
        """What prevents reading images of this height and width."""
        if self.encoder is not None:
            yield from _under("model.encoder", self.encoder.config.image_conflicts(size))

    def _parts(self) -> Iterator[tuple[str, EncoderConfig | DecoderConfig]]:
        if self.encoder is not None:
            yield "encoder", self.encoder.config
        if self.decoder is not None:
            yield "decoder", self.decoder.config


def conflicts(model: ModelConfig, *, sized: bool) -> Iterator[Problem]:
    """What is wrong between parts that are each valid. Unless `sized`, the data will give the sizes of vocabularies."""
    encoder, decoder, options = config_of(model.encoder), config_of(model.decoder), model.options
    pool = config_of(model.pool)
    outputs = [name for name, there in (("decoder", decoder), ("pool", pool), ("head", options.head)) if there]
    if len(outputs) != 1:
        got = ", ".join(outputs) or "none"
        yield Problem("model", "one of decoder, pool and head", got, "It determines what the model predicts.")
    for output in ("pool", "head"):
        if output in outputs and encoder is None:
            yield Problem(f"model.{output}", "an encoder for it to read", "none", "Add [model.encoder].")
    if sized:
        yield from _missing_sizes(model)
    if options.head and encoder is not None:
        if encoder.reads != "tokens":
            yield Problem("model.head", "an encoder of tokens", f"one of {encoder.reads}s", "Only tokens are masked.")
        yield from _under("model.encoder", encoder.mlm_conflicts())
    if encoder is not None:
        if decoder is not None:
            yield from _under("model.decoder", decoder.memory_conflicts(encoder.states_dim))
        if pool is not None:
            yield from _under("model.pool", pool.memory_conflicts(encoder.states_dim))
    if options.tie_embeddings == "all":
        yield from _tie_conflicts(options, encoder, decoder)
    yield from _unused(model)


def _missing_sizes(model: ModelConfig) -> Iterator[Problem]:
    options = model.options
    if model.pool and options.num_labels is None:
        wanted = "the number of labels, for the pool's classifier"
        yield Problem("model.num_labels", wanted, "none", "Add num_labels = 2, for example.")
    if (model.decoder or options.head) and options.vocab_size is None:
        wanted = "the number of tokens to predict"
        yield Problem("model.vocab_size", wanted, "none", "Add vocab_size = 8000, for example.")
    embeds = model.reads in ("tokens", "label")
    if embeds and options.source_vocab_size is None and options.vocab_size is None:
        wanted = "the number of tokens or labels that the encoder reads"
        yield Problem("model.source_vocab_size", wanted, "none", "Add it.")


def _tie_conflicts(
    options: ModelOptions, encoder: EncoderConfig | None, decoder: DecoderConfig | None
) -> Iterator[Problem]:
    if encoder is None or decoder is None or encoder.reads != "tokens":
        wanted = "'target' or 'none' unless tokens become tokens"
        yield Problem("model.tie_embeddings", wanted, "'all'", "There is nothing to share.")
        return
    if options.source_vocab_size not in (None, options.vocab_size):
        wanted, got = (
            "one vocabulary for tie_embeddings = 'all'",
            f"{options.source_vocab_size} and {options.vocab_size}",
        )
        yield Problem("model.source_vocab_size", wanted, got, "Leave it out.")
    if encoder.states_dim != decoder.states_dim:
        got = f"{encoder.states_dim} and {decoder.states_dim}"
        yield Problem("model.encoder.dim", "the decoder's dim for tie_embeddings = 'all'", got, "Make them equal.")


def _unused(model: ModelConfig) -> Iterator[Problem]:
    """Keys that were given and have no effect."""
    encoder, decoder = config_of(model.encoder), config_of(model.decoder)
    embeds = model.reads in ("tokens", "label")
    unused = []
    if model.pool is None:
        unused.append(("num_labels", "only a pool predicts labels"))
    else:
        unused.append(("tie_embeddings", "a classifier has no second embedding"))
    if not embeds:
        unused.append(("source_vocab_size", "no tokens or labels are read"))
    if decoder is None and not embeds:
        unused.append(("scale_embeddings", "nothing is embedded"))
    if encoder is not None:
        unused += [(f"encoder.{key}", why) for key, why in encoder.unused_as_encoder(decoder)]
    if decoder is not None:
        keys = decoder.unused_as_decoder(has_memory=encoder is not None)
        unused += [(f"decoder.{key}", why) for key, why in keys]
    for path, why in unused:
        role, _, key = path.rpartition(".")
        table = model.table[role] if role else model.table
        if key in table:
            yield Problem(f"model.{path}", f"nothing here: {why}", repr(table[key]), "Leave it out.")


def _under(where: str, problems: Iterator[Problem]) -> Iterator[Problem]:
    return (Problem(f"{where}.{each.key}", each.wanted, each.got, each.remedy) for each in problems)
