"""An encoder without interaction: one MLP, shared by all positions,
applied to each of them alone.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from regard.core.config import Count, Probability, doc
from regard.core.sequence import PackedSequences
from regard.core.shapes import Float, Tensor
from regard.kernels.layers.dropout import Dropout
from regard.kernels.layers.linear import linear
from regard.model.inputs import InputModule, InputVectors
from regard.model.interfaces import SequenceEncoder
from regard.model.memory import Memory, PackedMemory, masked_mean
from regard.model.module_list import TypedModuleList
from regard.model.part_config import EncoderConfig, Sees


@dataclass(frozen=True)
class MlpConfig(EncoderConfig):
    dim: Count = doc(256, "dimension of the embeddings and of the states")
    layers: Count = doc(1, "hidden layers")
    ffn_dim: Count = doc(1024, "dimension of a hidden layer")
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = doc(
        "relu", "activation of the hidden layers"
    )
    residual: bool = doc(False, "add the embedding of a position to its output")
    dropout: Probability = doc(0.1, "dropout of embeddings and of hidden layers")

    @property
    def sees(self) -> Sees:
        return "itself"


class MlpEncoder(SequenceEncoder):
    """The simplest map of a sequence of vectors to another of the same length:
    every position for itself.

    It has no positions: a permuted source has the permuted states.
    """

    packable = True
    shardable = True

    def __init__(self, config: MlpConfig, input_module: InputModule) -> None:
        super().__init__(input_module)
        self.dim = config.dim
        self.activation = config.activation
        self.residual = config.residual
        inputs = [config.dim] + [config.ffn_dim] * (config.layers - 1)
        self.hidden = TypedModuleList[nn.Linear](nn.Linear(dim, config.ffn_dim) for dim in inputs)
        self.out_proj = nn.Linear(config.ffn_dim, config.dim)
        self.dropout = Dropout(config.dropout)

    def encode(self, vectors: InputVectors) -> Memory:
        transformed = self.transform(vectors.states())  # (B, S, W)
        mask = vectors.mask
        return Memory(transformed, mask, masked_mean(transformed, mask))

    def forward_packed(self, source: PackedSequences) -> PackedMemory:
        """As `forward`, for packed sequences."""
        return PackedMemory(self.transform(self.input_module.read_packed(source)), source.offsets)

    def transform(self, states: Float[Tensor, "*lead W"]) -> Float[Tensor, "*lead W"]:
        """The MLP, of each vector."""
        x = self.dropout(states)
        hidden = x
        for layer in self.hidden:
            hidden = self.dropout(linear(hidden, layer.weight, layer.bias, self.activation))
        out = linear(hidden, self.out_proj.weight, self.out_proj.bias)
        return x + out if self.residual else out
