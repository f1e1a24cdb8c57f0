"""The CUDA engine: a static decoder and graphed encoders for Transformers on a GPU."""

import torch
from torch import nn

from regard.core.sequence import Tokens
from regard.generation.engines.base import Engine, slides
from regard.generation.engines.cuda.encode import encode
from regard.generation.engines.cuda.static_decoder import (
    DTYPES,
    StaticDecoder,
    max_positions,
    static_decoder,
)
from regard.generation.engines.half_precision import autocast
from regard.generation.engines.plain_transformer import is_plain
from regard.kernels import triton_launch
from regard.model.capture import capturing_here, intercepting_here, suspended
from regard.model.embedding import Projection
from regard.model.interfaces import Source
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder, TransformerEncoder


class CudaEngine(Engine):
    """Supports Transformers of plain blocks (`plain_transformer.is_plain`) on GPUs with Triton."""

    def decoder_for(
        self,
        model: Seq2Seq,
        *,
        max_length: int,
        window: int | None = None,
        half: bool = False,
        int8: bool = False,
    ) -> StaticDecoder | None:
        decoder = model.decoder
        if not isinstance(decoder, TransformerDecoder) or not isinstance(
            decoder.project, Projection
        ):
            return None
        weight = decoder.project.weight
        dtype = torch.bfloat16 if half else weight.dtype
        if not weight.is_cuda or dtype not in DTYPES or max_length > max_positions(decoder):
            return None
        if not triton_launch.available(weight.device) or not is_plain(decoder):
            return None
        if torch.is_autocast_enabled("cuda") or intercepting_here() or slides(max_length, window):
            return None
        return static_decoder(decoder, dtype)

    def encode(
        self, model: Seq2Seq, source: Source, *, half: bool, int8: bool = False
    ) -> Memory | None:
        encoder = model.encoder
        if (
            not isinstance(source, Tokens)
            or not isinstance(encoder, TransformerEncoder)
            or not recordable(encoder)
        ):
            return None
        if (
            capturing_here()
        ):  # by a second pass, so that the memory is that of a recording, bit for bit
            with autocast(half):
                encoder(source)
        with suspended():
            return encode(encoder, source, half=half)


def recordable(module: nn.Module) -> bool:
    """Whether a module's work can be recorded: evaluating on a GPU, without autocast and interception."""
    weight = next(module.parameters())
    variable = module.training or intercepting_here() or torch.is_autocast_enabled("cuda")
    return weight.is_cuda and not variable and triton_launch.available(weight.device)
