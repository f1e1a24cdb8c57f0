"""Input modules: from the arrays of a field to the vectors that an encoder reads.

A module of this kind stands before every encoder of sequences, so that the same RNN, convolution or
Transformer reads tokens, labels and vectors. One of the user's own is registered with
`regard.register.input_module`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from regard.core.config import Config, Count, doc
from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import PackedSequences, PackedVectors, Tokens, Vectors
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.kernels.layers.conv_unfold import Neighbors, unfold


class InputVectors(ABC):
    """A batch of sequences of vectors, padded on the right, as an encoder reads them.

    lengths        (B,), vectors of each sequence
    host_lengths   the lengths in host memory
    """

    lengths: Int[Tensor, " B"]
    host_lengths: Int[Tensor, " B"]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The number of sequences, and the longest length."""

    @abstractmethod
    def states(self) -> Float[Tensor, "B S W"]:
        """All vectors, with those of the padding."""

    @abstractmethod
    def rows(self, indices: Int[Tensor, " N"]) -> Float[Tensor, "N W"]:
        """The vectors at these of the B · S positions."""

    @property
    def types(self) -> Int[Tensor, "B S"] | None:
        """The segment of each vector, where there are several: 0 for the first text of a pair,
        1 for the second.
        """
        return None

    @property
    def device(self) -> torch.device:
        return self.lengths.device

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """True at vectors, False at padding."""
        return torch.arange(self.shape[1], device=self.device) < self.lengths[:, None]


@dataclass
class ComputedVectors(InputVectors):
    """Vectors that are computed already.

    present   (B, S), False at vectors that are missing; None: all are there
    """

    values: Float[Tensor, "B S W"]
    lengths: Int[Tensor, " B"]
    present: Bool[Tensor, "B S"] | None = None

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        if self.present is None:
            return self.places
        return self.places & self.present

    @property
    def places(self) -> Bool[Tensor, "B S"]:
        """True also at vectors that are missing, False at padding."""
        return super().mask

    @property
    def host_lengths(self) -> Int[Tensor, " B"]:  # type: ignore[override]
        return self.lengths.cpu()

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def states(self) -> Float[Tensor, "B S W"]:
        return self.values

    def rows(self, indices: Int[Tensor, " N"]) -> Float[Tensor, "N W"]:
        return self.values.flatten(0, 1)[indices]


class InputModule(nn.Module, ABC):
    """Maps the arrays of a field to vectors.

    dim        of the vectors
    attribute  the name under which an encoder holds it, as in `encoder.embed_tokens.weight`
    gives_words   whether it gives one vector for each word of `WordTokens`, not for each token
    packable   whether `read_packed` is implemented
    shortens   positions of the source for each vector
    size       the option of the model that gives the size of its source: "source_vocab_size" or
               "source_dim"
    reads      the input module of the package whose batches it also takes: "tokens", say. None:
               those of a field that names this one
    """

    dim: int
    attribute: ClassVar[str] = "source_input"
    gives_words: ClassVar[bool] = False
    packable: ClassVar[bool] = False
    shortens: int = 1
    size: ClassVar[str | None] = None
    reads: ClassVar[str | None] = None

    @abstractmethod
    def read(self, source: Any) -> InputVectors:
        """The vectors of a batch of the field."""

    def states_of(self, length: int) -> int:
        """How many vectors it makes of a sequence of this length."""
        return length

    def read_packed(self, source: PackedSequences) -> Float[Tensor, "N W"]:
        """The vectors of packed sequences, for a class that declares `packable`."""
        raise NotImplementedError(f"{type(self).__name__} does not take packed sequences")


@dataclass(frozen=True)
class InputConfig(Config):
    """Base of the configurations of input modules: [model.encoder.input]."""

    @property
    def reads_characters(self) -> bool:
        """Whether it reads the characters of words, which the field must give."""
        return False

    def not_packable(self) -> str | None:
        """The setting, as "stride = 2",
        with which a packable input module takes no packed sequences.
        """
        return None

    @property
    def shortens(self) -> int | None:
        """How many positions of the source each vector stands for; None where that depends on the source."""
        return None


@dataclass(frozen=True)
class EmbeddingConfig(InputConfig):
    """The embedding of tokens, or of a label;
    the options of the model say how it is scaled and tied.
    """

    @property
    def shortens(self) -> int:
        return 1


@dataclass(frozen=True)
class VectorInputConfig(InputConfig):
    """A projection of vectors to the encoder's dimension."""

    kernel: Count = doc(
        1, "vectors that a convolution reads for each of its outputs; 1: a linear layer"
    )
    stride: Count = doc(1, "vectors from one output to the next: 2 halves the length")
    padding: Literal["centered", "end"] = doc(
        "centered",
        "where a kernel reads beyond the sequence: at both ends, zeros; or at its end alone, the "
        "last vector again, so that outputs are patches",
    )
    layers: Count = doc(
        1,
        "convolutions of this kernel and stride, one after the other with GELU between them: two "
        "of stride 2 leave a quarter of the length",
    )

    def conflicts(self) -> Iterator[Problem]:
        if self.stride > self.kernel:
            wanted = f"at most kernel = {self.kernel}, so that every vector is read"
            yield Problem("stride", wanted, str(self.stride), "Lower it, or raise kernel.")
        if self.layers > 1 and self.kernel == 1:
            wanted = "1 with kernel = 1, a linear layer"
            yield Problem("layers", wanted, str(self.layers), "Lower it, or raise kernel.")

    @property
    def shortens(self) -> int:
        shortened: int = self.stride**self.layers
        return shortened

    def not_packable(self) -> str | None:
        if self.stride > 1:
            # How many vectors remain would differ between packed batches of one size.
            return f"stride = {self.stride}"
        if self.layers > 1:
            return f"layers = {self.layers}"
        if self.padding == "end" and self.kernel > 1:
            return f"padding = {self.padding!r}"
        return None


class VectorInput(InputModule):
    """A linear layer or a convolution over vectors, which may shorten the sequence.

    The padding of a batch is zeros, and so is that of the convolution: a sequence in a batch is
    read as alone.
    """

    attribute = "vector_input"
    size = "source_dim"
    packable = True

    def __init__(self, config: VectorInputConfig, source_dim: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.source_dim = source_dim
        self.stride = config.stride
        self.shortens = config.shortens
        # One vector of the output for each `stride` of the input, also where fewer remain at the end.
        self.repeats_last = config.padding == "end"
        self.left = 0
        if not self.repeats_last:
            self.left = (config.kernel - config.stride + 1) // 2
        self.right = config.kernel - 1 - self.left
        self.proj = nn.Conv1d(source_dim, dim, config.kernel, stride=config.stride)
        self.more = nn.ModuleList(
            nn.Conv1d(dim, dim, config.kernel, stride=config.stride)
            for _ in range(config.layers - 1)
        )

    def read(self, source: Any) -> ComputedVectors:
        vectors = require_vectors(source, self.source_dim)
        # A number that is missing is read as 0, the mean of the training data.
        values = vectors.values.masked_fill(~vectors.places[..., None], 0.0)  # (B, S, D)
        values = values.nan_to_num(0.0)
        computed = self._convolved(self.proj, values, vectors.lengths, vectors.mask)
        for convolution in self.more:
            # Zeros at the padding, as beyond the ends of a sequence that is read alone.
            inside = nn.functional.gelu(computed.values) * computed.places[..., None]
            computed = self._convolved(convolution, inside, computed.lengths, computed.mask)
        return computed

    def _convolved(
        self,
        convolution: nn.Module,
        values: Float[Tensor, "B S D"],
        lengths: Int[Tensor, " B"],
        mask: Bool[Tensor, "B S"],
    ) -> ComputedVectors:
        """The outputs of a convolution; `mask` is True where there is a vector to read."""
        # Not -(-length // stride): a graph of ONNX divides negative integers towards zero.
        longest = (values.shape[1] + self.stride - 1) // self.stride
        if values.shape[1] == 0:
            # A batch of empty sequences: a convolution refuses fewer vectors than its kernel.
            values = values.new_zeros(len(values), 1, values.shape[2])
            mask = mask.new_zeros(len(mask), 1)
        channels = self._padded(values, lengths)
        states = convolution(channels.to(self.proj.weight.dtype)).mT  # (B, S', W)
        present = self._present(mask)[:, :longest]
        shortened = (lengths + self.stride - 1) // self.stride
        return ComputedVectors(states[:, :longest], shortened, present)

    def _padded(
        self, values: Float[Tensor, "B S D"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B D S2"]:
        if not self.repeats_last:
            return nn.functional.pad(values.mT, (self.left, self.right))
        positions = torch.arange(values.shape[1] + self.right, device=values.device)
        read = torch.minimum(positions, (lengths[:, None] - 1).clamp(min=0))  # (B, S2)
        return values.gather(1, read[..., None].expand(-1, -1, values.shape[2])).mT

    def states_of(self, length: int) -> int:
        return -(-length // self.shortens)

    def _present(self, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S2"]:
        """Where an output of the convolution has read a vector that is there."""
        kernel = self.proj.kernel_size[0]
        if kernel == self.stride == 1:
            return mask
        padded = nn.functional.pad(mask.float(), (self.left, self.right))
        # Not max_pool1d, for whose export PyTorch fixes the length.
        pooled = nn.functional.max_pool2d(padded[:, None, None], (1, kernel), (1, self.stride))
        return pooled[:, 0, 0] > 0

    def read_packed(self, source: PackedSequences) -> Float[Tensor, "N W"]:
        assert isinstance(source, PackedVectors)
        assert self.stride == 1
        seen = source.values.to(self.proj.weight.dtype)  # (N, D)
        if self.repeats_last:
            ahead = torch.arange(self.right + 1, device=seen.device)
            # Beyond the end of a sequence its last vector is read again.
            steps = torch.minimum(ahead, source.offsets.remaining[:, None])  # (N, K)
            places = torch.arange(len(seen), device=seen.device)[:, None] + steps
            seen = seen[places].flatten(1)  # (N, K · D)
        elif self.left or self.right:
            sides = Neighbors.of(source.offsets)
            seen = unfold(seen, sides, range(-self.left, self.right + 1))  # (N, K · D)
        return nn.functional.linear(seen, self.proj.weight.mT.flatten(1), self.proj.bias)


def input_stride(encoder: nn.Module) -> int:
    """Vectors of the source from one position of an encoder to the next."""
    strides = [each.shortens for each in encoder.modules() if isinstance(each, InputModule)]
    return strides[0] if strides else 1


def require_vectors(source: Any, dim: int) -> Vectors:
    """The source as sequences of vectors of this dimension; refused otherwise."""
    if isinstance(source, Vectors) and source.values.shape[2] == dim:
        return source
    raise InvalidArgument(
        "source",
        wanted=f"sequences of vectors of {dim} numbers",
        got=described_source(source),
        remedy="Give regard.Vectors.of(arrays of shape (length, dimension)).",
    )


def described_source(source: Any) -> str:
    """The type and the shape of a source, for messages."""
    values = source.values if isinstance(source, Vectors) else source
    shape = getattr(values, "shape", None)
    described = type(source).__name__
    if shape is not None:
        described += f" of shape {tuple(shape)}"
    return described


def require_tokens(source: Any) -> Tokens:
    """The source as tokens; refused otherwise, as when vectors are given instead of token ids."""
    if isinstance(source, Tokens):
        return source
    raise InvalidArgument(
        "source",
        wanted="tokens: this encoder embeds them itself, and reads no vectors",
        got=described_source(source),
        remedy="Give regard.Tokens.of(rows of token ids).",
    )
