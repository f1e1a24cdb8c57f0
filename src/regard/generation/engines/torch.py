"""The PyTorch engine: any model as it is. The other engines equal it."""

from regard.core.shapes import Float, Int, Tensor
from regard.generation.engines.base import Engine, EngineDecoder
from regard.generation.engines.half_precision import autocast
from regard.model.capture import capturing_here, intercepting_here
from regard.model.interfaces import AnyDecoder, DecoderState, Source
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq


class PyTorchDecoder(EngineDecoder):
    """The decoder itself."""

    def __init__(self, decoder: AnyDecoder) -> None:
        self.decoder = decoder

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> DecoderState:
        state: DecoderState = self.decoder.start(
            memory, batch=batch, capacity=capacity, beams=beams
        )
        return state

    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows V"], DecoderState]:
        return self.decoder.step(tokens, state)

    def prefill(self, tokens: Int[Tensor, "B T"], state: DecoderState) -> DecoderState | None:
        if capturing_here() or intercepting_here():  # every call has the queries of one step
            return None
        found: DecoderState | None = self.decoder.prefill(tokens, state)
        return found


class PyTorchEngine(Engine):
    """Executes any model as it is; the reference for the other engines."""

    def decoder_for(
        self,
        model: Seq2Seq,
        *,
        max_length: int,
        window: int | None = None,
        half: bool = False,
        int8: bool = False,
    ) -> PyTorchDecoder:
        return PyTorchDecoder(model.decoder)

    def encode(
        self, model: Seq2Seq, source: Source, *, half: bool, int8: bool = False
    ) -> Memory | None:
        with autocast(half):
            return model.encode(source)
