"""Whole models: an encoder, a decoder or both, with what turns their states into an output."""

from abc import ABC
from collections import Counter

import torch
from torch import nn

from regard.core.shapes import Float, Int, Tensor
from regard.core.word_tokens import WordTokens
from regard.model.capture import publish_memory
from regard.model.embedding import Projection
from regard.model.interfaces import AnyDecoder, Encoder, Head, Pool, SequenceEncoder, Source
from regard.model.memory import Memory


class Model(nn.Module, ABC):
    """A model that `build` returns: an encoder, a decoder or both, with the head of its task.

    task         the name of what it is trained for, an entry of `regard.tasks.base.TASKS`
    inspectable  whether its attention can be shown
    """

    encoder: Encoder | None
    task: str
    inspectable = True

    def encode(self, source: Source | None) -> Memory | None:
        """The memory of a batch of sources, a memory as it is; None for a language model."""
        if self.encoder is None or isinstance(source, Memory):
            return source if isinstance(source, Memory) else None
        memory: Memory = self.encoder(source)
        publish_memory(memory)
        return memory

    @property
    def generator(self) -> "Seq2Seq | None":
        """The model as one that generates sequences; None where it has no decoder."""
        return None

    @property
    def output_weights(self) -> tuple[Tensor, ...]:
        """The matrices of linear layers that give the logits;
        a `Projection` to a vocabulary is not a linear layer.
        """
        return ()

    def __repr__(self) -> str:
        """A line for each part: role, class, number of parameters;
        shared ones count in the first part.
        """
        counts = Counter[str]()
        for name, parameter in self.named_parameters():  # each once
            counts[name.partition(".")[0]] += parameter.numel()
        lines = [f"{type(self).__name__}, {counts.total():,} parameters"]
        for role, count in counts.items():
            lines.append(f"  {role:<8} {type(getattr(self, role)).__name__:<20} {count:>12,}")
        return "\n".join(lines)


class Seq2Seq(Model):
    """Any source to a sequence of tokens; without an encoder, a language model."""

    task = "generate"

    def __init__(
        self, encoder: Encoder | None, decoder: AnyDecoder, auxiliary_head: Head | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        # Reads the encoder's memory in training only: a second loss beside the decoder's.
        self.auxiliary_head = auxiliary_head

    @property
    def generator(self) -> "Seq2Seq":
        return self

    def forward(self, source: Source | None, targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Logits of the token after each target. The first target is the start token."""
        logits: Tensor = self.decoder(targets, self.encode(source))
        return logits

    def log_probabilities(
        self, source: Source | None, targets: Int[Tensor, "B T1"]
    ) -> Float[Tensor, "B T"]:
        """The log-probability in float32 of each target after the first, given those before it."""
        logits: Tensor = self(source, targets[:, :-1])
        return logits.float().log_softmax(-1).gather(-1, targets[:, 1:, None])[..., 0]


class AveragedHeads(nn.Module):
    """A linear classifier of each part of a pool's vector;
    their logits are averaged (arXiv:2012.12877).
    """

    def __init__(self, pool: Pool, labels: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Linear(pool.dim // pool.parts, labels) for _ in range(pool.parts)
        )

    def forward(self, x: Float[Tensor, "B PW"]) -> Float[Tensor, "B labels"]:
        parts = x.chunk(len(self.heads), 1)
        return torch.stack([head(part) for head, part in zip(self.heads, parts, strict=True)]).mean(
            0
        )


class SourceModel(Model):
    """A model with an encoder whose output follows from one forward pass."""

    encoder: Encoder

    def encode(self, source: Source | None) -> Memory:
        """The memory of a batch of sources; a memory as it is."""
        memory = super().encode(source)
        assert memory is not None
        return memory


class Classifier(SourceModel):
    """Any source to one vector, and to as many numbers as its task needs: a score for each label,
    say.
    """

    task = "classify"

    def __init__(self, encoder: Encoder, pool: Pool, labels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = encoder
        self.pool = pool
        self.dropout = nn.Dropout(dropout)
        if pool.parts == 1:
            self.classifier: nn.Module = nn.Linear(pool.dim, labels)
        else:
            self.classifier = AveragedHeads(pool, labels)

    @property
    def output_weights(self) -> tuple[Tensor, ...]:
        return tuple(
            layer.weight for layer in self.classifier.modules() if isinstance(layer, nn.Linear)
        )

    def forward(self, source: Source) -> Float[Tensor, "B labels"]:
        logits: Tensor = self.classifier(self.dropout(self.pool(self.encode(source))))
        return logits


class EncoderWithHead(SourceModel):
    """An encoder with a head of its own kind: one output for each position, say."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    @property
    def output_weights(self) -> tuple[Tensor, ...]:
        return tuple(layer.weight for layer in self.head.modules() if isinstance(layer, nn.Linear))

    def forward(self, source: Source) -> Float[Tensor, "*shape"]:
        memory = self.encode(source)
        if isinstance(source, WordTokens) and not self.encodes_words:
            memory = self.head.of_words(memory, source)
        outputs: Tensor = self.head(memory)
        return outputs

    @property
    def encodes_words(self) -> bool:
        """Whether the encoder has a state for each word already, not for each of its tokens."""
        encoder = self.encoder
        return isinstance(encoder, SequenceEncoder) and encoder.input_module.gives_words


class MaskedTokensHead(Head):
    """What a masked language model declares as other heads do;
    the model itself holds its layers.
    """

    task = "predict_masked"
    gives_tokens = True
    reads_tokens = True
    why_tokens = "Only tokens are masked."


class MaskedLanguageModel(SourceModel):
    """An encoder with a head that predicts the token at each position,
    some of which are masked (arXiv:1810.04805).
    """

    task = "predict_masked"

    def __init__(self, encoder: Encoder, project: Projection, eps: float = 1e-5) -> None:
        super().__init__()
        self.encoder = encoder
        self.project = project
        self.transform = nn.Sequential(
            nn.Linear(encoder.dim, encoder.dim), nn.GELU(), nn.LayerNorm(encoder.dim, eps)
        )

    def forward(self, source: Source) -> Float[Tensor, "B S V"]:
        memory = self.encode(source)
        logits: Tensor = self.project(self.transform(memory.states[:, memory.cls_tokens :]))
        return logits
