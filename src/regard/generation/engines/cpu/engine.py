"""The CPU engine: decoders and Transformer encoders in compiled C++, in float32 or with int8 weights."""

import ctypes
import logging
from collections.abc import Callable
from copy import copy
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.core.sequence import Tokens
from regard.core.shapes import Tensor
from regard.generation.engines.base import Engine
from regard.generation.engines.cpu import compile, convolution, recurrent
from regard.generation.engines.cpu.compiled_decoder import CompiledDecoder
from regard.generation.engines.cpu.convolution import NativeConvDecoder
from regard.generation.engines.cpu.decoder import NativeDecoder
from regard.generation.engines.cpu.encoder import NativeEncoder
from regard.generation.engines.cpu.fingerprint import fingerprint
from regard.generation.engines.cpu.recurrent import NativeRnnDecoder
from regard.generation.engines.cpu.support import decodes
from regard.generation.engines.plain_transformer import is_plain
from regard.model.capture import capturing_here, intercepting_here
from regard.model.convolution import ConvDecoder
from regard.model.embedding import Projection
from regard.model.interfaces import Source
from regard.model.memory import Memory
from regard.model.rnn_decoder import RnnDecoder
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder, TransformerEncoder

log = logging.getLogger(__name__)

MAX_TOKENS = (
    2048  # that the compiled encoder takes at once; PyTorch is faster with longer sequences
)
NATIVE_DECODERS: dict[type[nn.Module], Callable[..., CompiledDecoder[Any]]] = {
    TransformerDecoder: NativeDecoder,
    RnnDecoder: NativeRnnDecoder,
    ConvDecoder: NativeConvDecoder,
}
Compiled = TypeVar("Compiled", bound="CompiledDecoder[Any] | NativeEncoder")


class Packed(NamedTuple):
    """The compiled form of a module, and the fingerprint of the weights that it was made of."""

    weights: list[int]
    native: CompiledDecoder[Any] | NativeEncoder


class CpuEngine(Engine):
    """Compiled once for each module and again when its weights have changed; kept as long as the module."""

    constant_weights = False  # whether the weights of all modules never change

    def __init__(self) -> None:
        # Of each module its forms in float32 (False) and in int8 (True).
        self.compiled: WeakKeyDictionary[nn.Module, dict[bool, Packed]] = WeakKeyDictionary()
        # Whether modules are supported whose weights are constant.
        self.supported: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def with_constant_weights(self) -> "CpuEngine":
        engine = copy(self)  # shares what is compiled
        engine.constant_weights = True
        return engine

    def decoder_for(
        self,
        model: Seq2Seq,
        *,
        max_length: int,
        window: int | None = None,
        half: bool = False,
        int8: bool = False,
    ) -> CompiledDecoder[Any] | None:
        if torch.is_autocast_enabled(
            "cpu"
        ):  # states are bfloat16 then, and compiled code reads float32
            return None
        native = self.compile_decoder(model.decoder, int8=int8)
        if int8 and (native is None or not native.weights.int8_max_inputs):
            _warn_no_int8()
        return native

    def compile_decoder(
        self, decoder: nn.Module, *, int8: bool = False
    ) -> CompiledDecoder[Any] | None:
        """The compiled form of a decoder; None where it is not supported."""
        library = self._library(decoder)
        if not isinstance(getattr(decoder, "project", None), Projection) or library is None:
            return None
        for kind, native in NATIVE_DECODERS.items():
            if isinstance(decoder, kind):
                make = partial(native, decoder, library, int8=int8)
                return self._current(decoder, library, make, int8)
        return None

    def encodes(self, model: Seq2Seq) -> bool:
        """Whether the encoder is compiled: `encode` is then refused for some sources only."""
        encoder = model.encoder
        if (
            not isinstance(encoder, TransformerEncoder)
            or encoder.causal
            or encoder.cls_token is not None
        ):
            return False
        return self._library(encoder) is not None

    def encode(
        self, model: Seq2Seq, source: Source, *, half: bool, int8: bool = False
    ) -> Memory | None:
        encoder = model.encoder
        if (
            not isinstance(source, Tokens)
            or source.ids.shape[1] > MAX_TOKENS
            or not self.encodes(model)
        ):
            return None
        if (
            source.ids.numel() > MAX_TOKENS and capturing_here()
        ):  # a capture has one call of each layer
            return None
        assert isinstance(encoder, TransformerEncoder)
        library = self._library(encoder)
        if library is None or not bool(source.lengths.all()):
            return None
        native = self._current(
            encoder, library, lambda: NativeEncoder(encoder, library, int8=int8), int8
        )
        # In parts, and never by PyTorch, which rounds otherwise: a sequence has the same states whatever is beside it.
        size = max(1, MAX_TOKENS // source.ids.shape[1])
        slices = [slice(first, first + size) for first in range(0, len(source.ids), size)]
        parts = [native(Tokens(source.ids[part], source.lengths[part])) for part in slices]
        return parts[0] if len(parts) == 1 else Memory.joined(parts)

    def _current(
        self, module: nn.Module, library: ctypes.CDLL, make: Callable[[], Compiled], int8: bool
    ) -> Compiled:
        """The compiled form of a module, made again if its weights have changed."""
        known = self.compiled.get(module, {})
        packed = known.get(int8)
        if packed is not None and self.constant_weights:
            return packed.native  # type: ignore[return-value]
        weights = fingerprint(library, module)
        if packed is not None and packed.weights == weights:
            return packed.native  # type: ignore[return-value]
        native = make()
        # The other form stays, unless it is of earlier weights. Another thread may replace the
        # entries at the same time: its form is then made again at the next call.
        current = {form: each for form, each in known.items() if each.weights == weights}
        self.compiled[module] = {**current, int8: Packed(weights, native)}
        return native

    def _library(self, module: nn.Module) -> ctypes.CDLL | None:
        """The compiled code, if it supports this module and nothing in this thread replaces attention outputs."""
        weight = getattr(getattr(module, "embed_tokens", None), "weight", None)
        if not isinstance(weight, Tensor):
            return None
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            return None
        if not self._supports(module) or intercepting_here():
            return None
        return compile.library()

    def _supports(self, module: nn.Module) -> bool:
        if not self.constant_weights:
            return _is_supported(module)
        known = self.supported.get(module)
        if known is None:
            known = self.supported[module] = _is_supported(module)
        return known


def _is_supported(module: nn.Module) -> bool:
    if type(module) is RnnDecoder:
        return not module.training and recurrent.is_supported(module)
    if type(module) is ConvDecoder:
        return not module.training and convolution.is_supported(module)
    return decodes(module) if type(module) is TransformerDecoder else is_plain(module)


@lru_cache(maxsize=1)  # logged once
def _warn_no_int8() -> None:
    log.warning("int8 is not supported by this decoder or processor: decoding in float32")
