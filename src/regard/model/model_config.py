"""The configuration of a whole model: its parts, each by kind, and the options beside them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from regard.core.config import Config, Count, Probability, doc
from regard.core.errors import Problem
from regard.core.task_names import TASK_NAMES
from regard.kernels.layers.linear_fp8 import MULTIPLE
from regard.model.inputs import InputConfig
from regard.model.part_config import (
    ConfigType,
    DecoderConfig,
    EncoderConfig,
    HeadConfig,
    Part,
    PoolConfig,
)
from regard.model.word_vector_keys import word_vector_conflicts

# Options that a recipe takes from its data.
SIZES = (
    "vocab_size",
    "source_vocab_size",
    "source_dim",
    "num_labels",
    "target_dim",
    "horizon",
    "source_length",
)


def config_of(part: Part[ConfigType] | None) -> ConfigType | None:
    return None if part is None else part.config


@dataclass(frozen=True)
class ModelOptions(Config):
    """The keys of a model table beside its parts."""

    vocab_size: Count | None = doc(
        None, "tokens that the decoder or the masked-language-model head predicts"
    )
    source_vocab_size: Count | tuple[Count, ...] | None = doc(
        None,
        "tokens or labels that the encoder reads; of several encoders of these, "
        "a list; left out: vocab_size",
    )
    source_dim: Count | tuple[Count, ...] | None = doc(
        None, "numbers of each vector that an encoder reads; of several encoders of vectors, a list"
    )
    num_labels: Count | None = doc(
        None, "outputs of a pool or a head: labels, or numbers of a regression"
    )
    target_dim: Count | None = doc(None, "numbers of each vector that a decoder over vectors gives")
    horizon: Count | None = doc(
        None,
        "vectors that a decoder over vectors or a horizon head gives; left out with a decoder: as "
        "many as the longest target of the training data",
    )
    source_length: Count | None = doc(
        None, "vectors of each source that a horizon head flattens the states of"
    )
    task: Annotated[str, TASK_NAMES] | None = doc(
        None, "what the model is trained for; by default what its head and data.target determine"
    )
    tie_embeddings: Literal["none", "target", "all"] = doc(
        "target",
        "embeddings that share a matrix with the output layer: those of the "
        "decoder, or of the encoder as well",
        arxiv="1608.05859",
    )
    scale_embeddings: bool = doc(
        True, "multiply embeddings by the square root of their dimension", arxiv="1706.03762"
    )
    embedding_dropout: Probability = doc(
        0.0,
        "dropout of whole tokens: of their embeddings, wherever they occur in a batch",
        arxiv="1512.05287",
    )
    output_bias: bool = doc(True, "a bias for each token in the output layer")
    scale_logits: bool = doc(
        False,
        "divide the states before the output layer by the square root of their dimension",
        arxiv="1910.10683",
    )


@dataclass(frozen=True)
class ModelConfig:
    """A checked model table.

    `parse_model` makes it; it answers what the recipe's checks ask without building.
    """

    encoders: tuple[Part[EncoderConfig], ...]  # one for each source; none for a language model
    inputs: tuple[Part[InputConfig], ...]  # what stands before each encoder
    decoder: Part[DecoderConfig] | None
    pool: Part[PoolConfig] | None
    head: Part[HeadConfig] | None
    options: ModelOptions
    table: Mapping[str, Any]  # as it was given
    auxiliary: Part[HeadConfig] | None = None  # a head that is only trained, beside a decoder

    @property
    def reads(self) -> tuple[str, ...]:
        """What each encoder reads: the kind of its input module."""
        return tuple(each.kind for each in self.inputs)

    @property
    def memory_dim(self) -> int | None:
        """The dimension of the memory's states; None for a language model."""
        return max((encoder.config.states_dim for encoder in self.encoders), default=None)

    def source_sizes(self) -> list[int | None]:
        """The size of each source: of its vocabulary, or of its vectors.

        None for images, and where it is not known yet.
        """
        found: list[int | None] = [None] * len(self.inputs)
        for option in ("source_vocab_size", "source_dim"):
            places = self.sized_by(option)
            given = getattr(self.options, option)
            if given is None and option == "source_vocab_size":
                given = self.options.vocab_size
            sizes = given if isinstance(given, tuple) else [given] * len(places)
            for place, size in zip(places, sizes, strict=False):
                found[place] = size
        return found

    def names_input(self, encoder: int) -> bool:
        """Whether the table of this encoder says what stands before it."""
        if "encoder" in self.table:
            return "input" in self.table["encoder"]
        return "input" in self.table["encoders"][encoder]

    def sized_by(self, option: str) -> list[int]:
        """The encoders whose source has the size that this option gives."""
        return [i for i, each in enumerate(self.inputs) if each.module.size == option]

    @property
    def head_kind(self) -> str:
        """What turns its states into an output: "decoder", "pool", or the kind of its head."""
        if self.head is not None:
            return self.head.kind
        return "decoder" if self.pool is None else "pool"

    @property
    def gives_tokens(self) -> bool:
        """Whether it predicts tokens of the target's vocabulary:
        `vocab_size` says how many there are.
        """
        if self.pool is not None or self.options.target_dim is not None:
            return False
        return self.decoder is not None or (self.head is not None and self.head.module.gives_tokens)

    @property
    def is_language_model(self) -> bool:
        return self.decoder is not None and not self.encoders

    @property
    def carries_state(self) -> bool:
        """Whether it is a language model whose state can be carried from one part
        of a text to the next.
        """
        return self.decoder is not None and not self.encoders and self.decoder.module.carries_state

    @property
    def has_attention_penalty(self) -> bool:
        """Whether training can penalise the attention weights:
        a stateful decoder that attends to a source.
        """
        decoder = self.decoder
        if decoder is None or not self.encoders:
            return False
        return bool(decoder.module.carries_state and decoder.config.attends)

    def not_packable(self) -> str | None:
        """The settings with which it takes no packed sequences; None where it does."""
        if len(self.encoders) > 1:
            return "several encoders, whose memories are padded"
        if self.decoder is None:
            return "a model without a decoder"
        if self.auxiliary is not None:
            return f"model.head.kind = {self.auxiliary.kind!r}, which reads padded memories"
        for name, each in zip(self.encoder_names, self.inputs, strict=True):
            if not each.module.packable:
                return f"model.{name}.input.kind = {each.kind!r}"
            if setting := each.config.not_packable():
                return f"model.{name}.input.{setting}"
        for role, part in self.parts():
            if not part.module.packable:
                return f"model.{role}.kind = {part.kind!r}"
            if setting := part.config.not_packable():
                return f"model.{role}.{setting}"
        layouts = {part.module.packed_memory for _, part in self.parts()}
        return None if len(layouts) == 1 else self._kinds()

    def not_shardable(self) -> str | None:
        """The settings with which FSDP cannot shard it; None where it can."""
        if self.auxiliary is not None:
            return f"model.head.kind = {self.auxiliary.kind!r} beside a decoder"
        unshardable = (
            f"model.{role}.kind = {part.kind!r}"
            for role, part in self.parts()
            if not part.module.shardable
        )
        has_blocks = any(part.module.has_blocks for _, part in self.parts())
        blocks = None if has_blocks else self._kinds()
        return next(unshardable, blocks)

    def float8_problems(self) -> Iterator[Problem]:
        """What prevents the linear layers of its Transformer blocks from multiplying in float8."""
        parts = [(role, part.config, part.config.block_dims()) for role, part in self.parts()]
        if not any(dims for _, _, dims in parts):
            yield Problem(
                "train.precision",
                f"'bfloat16' with {self._kinds()}",
                "'float8'",
                "It has no such layers.",
            )
        attended = self.decoder is not None and bool(self.decoder.config.block_dims())
        for role, config, dims in parts:
            if attended and role != "decoder" and config.states_dim == self.memory_dim:
                dims = {"dim": config.states_dim} | dims  # cross-attention projects its states
            for key, dim in dims.items():
                if dim % MULTIPLE:
                    wanted = f"a multiple of {MULTIPLE} with train.precision = 'float8'"
                    got = f"{dim} in all" if key.endswith(("heads", "value_dim")) else str(dim)
                    yield Problem(f"model.{role}.{key}", wanted, got, "Change one of the two.")

    def image_conflicts(self, encoder: int, size: int) -> Iterator[Problem]:
        """What prevents this encoder from reading images of this height and width."""
        name = self.encoder_names[encoder]
        config = self.encoders[encoder].config
        return (problem.under(f"model.{name}") for problem in config.image_conflicts(size))

    @property
    def encoder_names(self) -> list[str]:
        """The table of each encoder."""
        if "encoder" in self.table:
            return ["encoder"]
        return [f"encoders.{i + 1}" for i in range(len(self.encoders))]

    def parts(self) -> Iterator[tuple[str, Part[EncoderConfig] | Part[DecoderConfig]]]:
        """Encoders and decoder, each with its table."""
        yield from zip(self.encoder_names, self.encoders, strict=True)
        if self.decoder is not None:
            yield "decoder", self.decoder

    def _kinds(self) -> str:
        return " and ".join(f"model.{role}.kind = {part.kind!r}" for role, part in self.parts())


def conflicts(model: ModelConfig, *, sized: bool) -> Iterator[Problem]:
    """What is wrong between parts that are each valid.

    Unless `sized`, the data will give the sizes of vocabularies.
    """
    encoders = [part.config for part in model.encoders]
    decoder = config_of(model.decoder)
    options = model.options
    pool = config_of(model.pool)
    head = model.head
    outputs = [
        name for name, there in (("decoder", decoder), ("pool", pool), ("head", head)) if there
    ]
    if len(outputs) != 1:
        got = ", ".join(outputs) or "none"
        yield Problem(
            "model", "one of decoder, pool and head", got, "It determines what the model predicts."
        )
    for output in ("pool", "head"):
        if output in outputs and not encoders:
            yield Problem(
                f"model.{output}", "an encoder for it to read", "none", "Add [model.encoder]."
            )
    if sized:
        yield from _missing_sizes(model)
    if head is not None and encoders:
        reads_tokens = head.module.reads_tokens
        if len(encoders) > 1 or (reads_tokens and model.reads != ("tokens",)):
            got = " and ".join(f"one of {reads}s" for reads in model.reads)
            yield Problem("model.head", "one encoder, of tokens", got, head.module.why_tokens)
        for encoder in model.encoders:
            wrong = head.config.encoder_conflicts(encoder)
            yield from (problem.under("model.encoder") for problem in wrong)
    yield from _auxiliary_conflicts(model)
    if model.memory_dim is not None:
        if decoder is not None:
            yield from (
                problem.under("model.decoder")
                for problem in decoder.memory_conflicts(model.memory_dim)
            )
        if pool is not None:
            found = (
                *pool.memory_conflicts(model.memory_dim),
                *pool.encoder_conflicts(encoders[0].cls_tokens),
            )
            yield from (problem.under("model.pool") for problem in found)
            yield from _blind_pool(model.pool, encoders)
    if options.tie_embeddings == "all":
        yield from _tie_conflicts(model, decoder)
    yield from word_vector_conflicts(model)
    yield from _unused(model)


def _auxiliary_conflicts(model: ModelConfig) -> Iterator[Problem]:
    """Why the encoder cannot have a head that is trained beside the decoder."""
    head = model.auxiliary
    if head is None:
        return
    if len(model.encoders) != 1:
        wanted = "one encoder, with a decoder and this head"
        yield Problem("model.head", wanted, str(len(model.encoders)), "Leave model.head out.")
    for encoder in model.encoders:
        wrong = head.config.encoder_conflicts(encoder)
        yield from (problem.under("model.encoder") for problem in wrong)


def _blind_pool(
    pool: Part[PoolConfig] | None, encoders: Sequence[EncoderConfig]
) -> Iterator[Problem]:
    """A pool whose state has seen one token only: the label could not depend on any other."""
    assert pool is not None
    if pool.module.reads == "all":
        return
    is_first = pool.module.reads == "first"
    encoder = encoders[0] if is_first else encoders[-1]
    if encoder.sees == "all" or (encoder.sees == "earlier" and not is_first):
        return
    kinds = "'last', 'mean' or 'attention'"
    if encoder.sees == "itself":
        kinds = "'mean' or 'attention'"
    wanted = f"{kinds} after this encoder"
    got = f"{pool.kind!r}, which reads a state that has seen one token of the source"
    yield Problem("model.pool.kind", wanted, got, "Choose another pool or encoder.")


def _missing_sizes(model: ModelConfig) -> Iterator[Problem]:
    options = model.options
    has_outputs = model.pool is not None or model.head is not None
    if has_outputs and not model.gives_tokens and options.num_labels is None:
        wanted = "the number of labels, for the pool's classifier"
        yield Problem("model.num_labels", wanted, "none", "Add num_labels = 2, for example.")
    if model.head is not None and model.head.module.needs_lengths:
        for key in ("horizon", "source_length"):
            if getattr(options, key) is None:
                wanted = "a number of vectors, for the horizon head"
                yield Problem(f"model.{key}", wanted, "none", f"Add {key} = 96, for example.")
    if model.gives_tokens and options.vocab_size is None:
        wanted = "the number of tokens to predict"
        yield Problem("model.vocab_size", wanted, "none", "Add vocab_size = 8000, for example.")
    if options.target_dim is not None and options.horizon is None:
        wanted = "the number of vectors that the decoder gives"
        yield Problem("model.horizon", wanted, "none", "Add horizon = 24, for example.")
    embedding = len(model.sized_by("source_vocab_size"))
    given = options.source_vocab_size
    if embedding and given is None and options.vocab_size is None:
        wanted = "the number of tokens or labels that the encoder reads"
        yield Problem("model.source_vocab_size", wanted, "none", "Add it.")
    if isinstance(given, tuple) and len(given) != embedding:
        wanted = f"{embedding} numbers, one for each encoder of tokens or labels"
        yield Problem("model.source_vocab_size", wanted, str(len(given)), "Change it.")
    projecting = len(model.sized_by("source_dim"))
    dims = options.source_dim
    if projecting and dims is None:
        wanted = "the number of numbers of each vector that the encoder reads"
        yield Problem("model.source_dim", wanted, "none", "Add source_dim = 80, for example.")
    if isinstance(dims, tuple) and len(dims) != projecting:
        wanted = f"{projecting} numbers, one for each encoder of vectors"
        yield Problem("model.source_dim", wanted, str(len(dims)), "Change it.")


def _tie_conflicts(model: ModelConfig, decoder: DecoderConfig | None) -> Iterator[Problem]:
    if decoder is None or "tokens" not in model.reads:
        wanted = "'target' or 'none' unless tokens become tokens"
        yield Problem("model.tie_embeddings", wanted, "'all'", "There is nothing to share.")
        return
    for name, part, reads, size in zip(
        model.encoder_names, model.encoders, model.reads, model.source_sizes(), strict=True
    ):
        if reads != "tokens":
            continue
        if size != model.options.vocab_size:
            wanted = "one vocabulary for tie_embeddings = 'all'"
            got = f"{size} and {model.options.vocab_size}"
            yield Problem("model.source_vocab_size", wanted, got, "Leave it out.")
        if part.config.states_dim != decoder.states_dim:
            got = f"{part.config.states_dim} and {decoder.states_dim}"
            wanted = "the decoder's dim for tie_embeddings = 'all'"
            yield Problem(f"model.{name}.dim", wanted, got, "Make them equal.")


def _unused(model: ModelConfig) -> Iterator[Problem]:
    """Keys that were given and have no effect."""
    decoder = config_of(model.decoder)
    embeds = bool(model.sized_by("source_vocab_size"))
    unused = []
    if model.gives_tokens:
        unused.append(("num_labels", "only a pool predicts labels"))
        if model.head is not None and model.head.module.beside_decoder:
            why = "the output layer is that of the head"
            unused += [(key, why) for key in ("tie_embeddings", "output_bias", "scale_logits")]
    else:
        unused.append(("tie_embeddings", "no tokens are predicted"))
        unused += [(key, "no tokens are predicted") for key in ("output_bias", "scale_logits")]
    if not embeds:
        unused.append(("source_vocab_size", "no tokens or labels are read"))
    has_horizon_head = model.head is not None and model.head.module.needs_lengths
    if not has_horizon_head:
        unused.append(("source_length", "there is no horizon head"))
    if not model.sized_by("source_dim"):
        unused.append(("source_dim", "no vectors are read"))
    gives_vectors = decoder is not None and model.options.target_dim is not None
    if not gives_vectors:
        unused.append(("target_dim", "no decoder gives vectors"))
        if not has_horizon_head:
            unused.append(("horizon", "neither a decoder nor a head gives vectors of a horizon"))
    if (decoder is None or gives_vectors) and not embeds:
        unused += [
            (key, "nothing is embedded") for key in ("scale_embeddings", "embedding_dropout")
        ]
    for name, part in zip(model.encoder_names, model.encoders, strict=True):
        unused += [(f"{name}.{key}", why) for key, why in part.config.unused_as_encoder(decoder)]
    if decoder is not None:
        keys = decoder.unused_as_decoder(has_memory=bool(model.encoders))
        unused += [(f"decoder.{key}", why) for key, why in keys]
    for path, why in unused:
        *parents, key = path.split(".")
        table: Any = model.table
        for parent in parents:
            table = table[int(parent) - 1] if parent.isdigit() else table[parent]
        if key in table:
            yield Problem(
                f"model.{path}", f"nothing here: {why}", repr(table[key]), "Leave it out."
            )
