"""A model that gives sequences of vectors step by step."""

import torch

from regard.core.shapes import Float, Tensor
from regard.model.interfaces import AnyDecoder, Encoder, Source
from regard.model.seq2seq import SourceModel
from regard.model.vector_embedding import start_inputs


class VectorGenerator(SourceModel):
    """Any source to a sequence of vectors, one after the other.

    horizon   how many vectors it gives unless others are asked for
    """

    task = "generate_vectors"

    def __init__(self, encoder: Encoder, decoder: AnyDecoder, horizon: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.horizon = horizon

    def forward(
        self, source: Source, inputs: Float[Tensor, "B T E"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The vector after each of the inputs; without inputs,
        vectors that each follow from those before.
        """
        if inputs is None:
            return self.generate(source, self.horizon)
        vectors: Tensor = self.decoder(inputs, self.encode(source))
        return vectors

    def generate(self, source: Source, steps: int) -> Float[Tensor, "B T D"]:
        """So many vectors for each source, each computed from those before it."""
        memory = self.encode(source)
        batch = len(memory.mask)
        weight = self.decoder.project.weight  # (D, W)
        read = start_inputs(batch, weight.mT)
        state = self.decoder.start(memory, batch=batch, capacity=steps)
        found: list[Float[Tensor, "B D"]] = []
        for _ in range(steps):
            vectors, state = self.decoder.step(read, state)
            found.append(vectors)
            read = self.decoder.project.next_inputs(vectors).to(weight.dtype)
        return torch.stack(found, 1)
