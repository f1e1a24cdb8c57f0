"""Encoders without order: of a label, and of a bag of tokens."""

from dataclasses import dataclass

from regard.core.config import Count, doc
from regard.core.errors import InvalidArgument
from regard.core.shapes import Tensor
from regard.model.inputs import InputModule, InputVectors
from regard.model.interfaces import SequenceEncoder, Source
from regard.model.memory import Memory, masked_mean
from regard.model.part_config import EncoderConfig, Sees
from regard.model.word_vector_keys import WordVectorKeys


@dataclass(frozen=True)
class LabelConfig(EncoderConfig):
    dim: Count = doc(256, "dimension of the label embedding")


@dataclass(frozen=True)
class BagConfig(WordVectorKeys, EncoderConfig):
    dim: Count = doc(256, "dimension of the embeddings")

    @property
    def sees(self) -> Sees:
        return "itself"


class BagEncoder(SequenceEncoder):
    """The vectors of its input module as they are, with their mean as summary: of a label,
    its embedding.
    """

    shardable = True

    def __init__(self, config: BagConfig | LabelConfig, input_module: InputModule) -> None:
        super().__init__(input_module)
        self.dim = input_module.dim

    def encode(self, vectors: InputVectors) -> Memory:
        states = vectors.states()
        return Memory(states, vectors.mask, masked_mean(states, vectors.mask))


class LabelEncoder(BagEncoder):
    """The embedding of a label, as a memory of one state."""

    reads = "label"
    has_input_module = False

    def forward(self, source: Source) -> Memory:
        if not isinstance(source, Tensor) or source.dim() != 1 or source.is_floating_point():
            raise InvalidArgument(
                "source",
                wanted="a tensor (B,) of label ids",
                got=type(source).__name__,
                remedy="Give one id for each sequence.",
            )
        return super().forward(source)
