"""The weights of a model, packed once into the structures of C++. Fields equal those of the C++ structs."""

import ctypes
import threading
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.generation.engines.transformer_weights import (
    LinearWeights,
    block_norms,
    block_projections,
    head_norms,
    weight_and_bias,
)
from regard.kernels.layers.linear import ACTIVATIONS
from regard.kernels.layers.residual_norm import norm_gain
from regard.model.embedding import Embedding, Projection
from regard.model.scores import ScaledDot
from regard.model.transformer_block import InputLayer, TransformerBlock, TransformerStack

KINDS = {
    ACTIVATIONS["relu"]: 1,
    ACTIVATIONS["gelu"]: 2,
    ACTIVATIONS["gelu_tanh"]: 3,
    ACTIVATIONS["silu"]: 4,
}
CHUNK = 1 << 24  # bytes allocated at a time
ALIGNMENT = 64  # bytes, as PyTorch's own tensors
KEPT_NUMBERS = 1 << 23  # of working memory that a thread keeps: 32 MiB
Pointer = ctypes.c_void_p
Count = ctypes.c_int64


def fields(kind: type, names: str) -> list[tuple[str, type]]:
    """Fields of a C struct that have the same type."""
    return [(name, kind) for name in names.split()]


class LinearTable(ctypes.Structure):
    _fields_ = fields(Pointer, "weight bias int8_weight scale offset") + fields(
        Count, "inputs outputs"
    )


class NormTable(ctypes.Structure):
    _fields_ = [*fields(Pointer, "weight bias"), ("eps", ctypes.c_float)]


class LayerTable(ctypes.Structure):
    _fields_ = [
        *fields(
            LinearTable, "qkv_proj out_proj cross_q_proj cross_out_proj ffn_up ffn_down ffn_gate"
        ),
        *fields(NormTable, "norm1 norm2 ffn_norm q_norm k_norm cross_q_norm"),
    ]


class StackTable(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(LayerTable)), ("project", LinearTable),
        *fields(NormTable, "final_norm input_norm"), ("embed_tokens", Pointer),
        *fields(Count, "vocab_size layer_count width heads kv_heads head_dim ffn_dim"),
        *fields(Count, "activation norm_first has_cross_attn scaled"),
        ("embed_scale", ctypes.c_float),
    ]  # fmt: skip


class Scratch(ctypes.Structure):
    _fields_ = fields(Pointer, "x normed hidden gate context scores")


class _LinearArguments(ctypes.Structure):
    _fields_ = [*fields(Pointer, "x y"), ("rows", Count)]


class WeightLayout:
    """The packed weights of an encoder or a decoder, and the memory they are in."""

    def __init__(self, library: ctypes.CDLL, *, int8: bool = False, chunk: int = CHUNK) -> None:
        self.library = library
        self.chunk = chunk
        self.int8_max_inputs = 0  # of a layer with int8 weights
        if int8:
            self.int8_max_inputs = library.regard_int8_max_inputs()
        self.chunks: list[Tensor] = []  # the memory that the tables point to
        self.free = torch.empty(0, dtype=torch.uint8)  # the rest of the last chunk

    def stack(
        self,
        stack: TransformerStack,
        input_layer: InputLayer,
        embedding: Embedding,
        project: LinearTable,
    ) -> StackTable:
        blocks = list(stack.layers)
        layers = (LayerTable * len(blocks))(*(self._layer(block) for block in blocks))
        own = blocks[0].self_attn
        ffn = blocks[0].ffn
        norm_first = not isinstance(stack.norm, nn.Identity)
        ffn_dim = ffn.up.out_features
        q_width = own.heads * own.head_dim
        kv_width = own.kv_heads * own.head_dim
        gate = 0 if ffn.gate is None else ffn_dim
        self.dim = own.dim
        self.widths = [
            own.dim,
            own.dim,
            max(q_width + 2 * kv_width, ffn_dim),
            gate,
            q_width,
        ]  # of `Scratch`
        return StackTable(
            layers, project, self.norm(stack.norm), self.norm(input_layer.norm), self.copy(embedding.weight),
            len(embedding.weight), len(blocks), own.dim, own.heads, own.kv_heads, own.head_dim, ffn_dim,
            KINDS[ffn.activation], norm_first, blocks[0].cross_attn is not None,
            isinstance(own.score, ScaledDot), embedding.scale,
        )  # fmt: skip

    def scratch(
        self, rows: int, scores: int
    ) -> tuple[Scratch, Float[Tensor, "rows W"], Float[Tensor, "rows W"]]:
        """Working memory, with views of the residual stream and of its norm in it; the next call in this thread reuses
        it.
        """
        sizes = [rows * width for width in (*self.widths, scores)]
        parts = torch.split(_working_memory(sum(sizes)), sizes)
        x, normed = (part.view(rows, self.dim) for part in parts[:2])
        return Scratch(*(part.data_ptr() for part in parts)), x, normed

    def linear(self, *layers: nn.Linear | Projection | LinearWeights) -> LinearTable:
        """One linear layer, or several of the same input fused into one."""
        outputs = sum(len(layer.weight) for layer in layers)
        inputs = layers[0].weight.shape[1]
        columns = self.library.regard_panel_columns()
        padded = -(-outputs // columns) * columns
        if inputs <= self.int8_max_inputs and inputs % 4 == 0:
            return self._int8_linear(*weight_and_bias(*layers), padded)
        packed = self._take(padded * inputs, torch.float32)
        biases = self._zeros(outputs, torch.float32)
        first = 0
        for layer in layers:
            flat = layer.weight.detach().contiguous()
            rows = len(layer.weight)
            scale = ctypes.c_float(layer.scale if isinstance(layer, Projection) else 1.0)
            sizes = Count(rows), Count(inputs), Count(first), scale
            self.library.regard_pack(Pointer(flat.data_ptr()), *sizes, Pointer(packed.data_ptr()))
            if layer.bias is not None:
                biases[first : first + rows] = layer.bias.detach()
            first += rows
        return LinearTable(packed.data_ptr(), biases.data_ptr(), None, None, None, inputs, outputs)

    def _layer(self, block: TransformerBlock) -> LayerTable:
        gate = () if block.ffn.gate is None else (block.ffn.gate,)
        linears = [
            self.linear(*fused) if fused else LinearTable()
            for fused in (*block_projections(block), gate)
        ]
        return LayerTable(*linears, *map(self.norm, (*block_norms(block), *head_norms(block))))

    def _int8_linear(self, weight: Tensor, bias: Tensor, padded: int) -> LinearTable:
        """Symmetric int8 weights with one scale per output."""
        outputs, inputs = weight.shape
        scale = weight.abs().amax(1).clamp(min=1e-30) / 127
        quantized = (weight / scale[:, None]).round().to(torch.int8)
        packed = self._zeros(padded * inputs, torch.int8)
        _pack(self.library.regard_pack_int8, quantized, packed)
        offset = 128 * quantized.sum(1, dtype=torch.int32)
        scale, offset = (F.pad(x, (0, padded - outputs)) for x in (scale, offset))
        addresses = self.copy(bias), packed.data_ptr(), self.copy(scale), self.copy(offset)
        return LinearTable(None, *addresses, inputs, outputs)

    def norm(self, norm: nn.Module | None) -> NormTable:
        """A norm; one that changes nothing has no weight."""
        if norm is None or isinstance(norm, nn.Identity):
            return NormTable()
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        bias: Tensor | None = getattr(norm, "bias", None)
        eps = norm.eps
        if eps is None:
            eps = torch.finfo(torch.float32).eps
        gain = self.copy(norm_gain(norm))
        if bias is None:
            return NormTable(gain, None, eps)
        return NormTable(gain, self.copy(bias), eps)

    def copy(self, tensor: Tensor) -> int:
        copy = self._take(tensor.numel(), tensor.dtype)
        copy.copy_(tensor.detach().flatten())
        return copy.data_ptr()

    def _zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        return self._take(count, dtype).zero_()

    def _take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Memory behind the last that was given out: step.cpp reads weights in this order."""
        size = -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if len(self.free) < size:
            self.free = torch.empty(max(size, self.chunk), dtype=torch.uint8)
            self.chunks.append(self.free)
            self.library.regard_use_huge_pages(Pointer(self.free.data_ptr()), Count(len(self.free)))
        block = self.free[:size]
        self.free = self.free[size:]
        return block[: count * dtype.itemsize].view(dtype)


_thread = threading.local()  # has the working memory of each thread


def _working_memory(count: int) -> Float[Tensor, " count"]:
    """Memory of this thread, with any content. To allocate it anew for each call costs its page faults each time."""
    found: Tensor | None = getattr(_thread, "memory", None)
    if found is None or len(found) < count:
        with torch.inference_mode(mode=False):  # a tensor of inference mode is no buffer for others
            found = torch.empty(count)
        if count <= KEPT_NUMBERS:
            _thread.memory = found
    return found[:count]


def call(function: Callable[..., bytes | None], *tables: ctypes.Structure) -> None:
    """Call a function of step.cpp, which checks every index in its arguments; IndexError names what is out of range."""
    if problem := function(*map(ctypes.byref, tables), torch.get_num_threads()):
        raise IndexError(f"{problem.decode()} out of range")


def address(tensor: Tensor | None) -> int | None:
    """The address of a tensor's memory; None for none."""
    return None if tensor is None else tensor.data_ptr()


def addresses(tensors: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
    """The addresses of several tensors as an array of C."""
    return (Pointer * max(1, len(tensors)))(*(tensor.data_ptr() for tensor in tensors))


def apply_linear(
    library: ctypes.CDLL, layer: LinearTable, x: Float[Tensor, "*B inputs"]
) -> Float[Tensor, "*B outputs"]:
    """A linear layer. A row of the result does not depend on how many others there are, as it does in PyTorch."""
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], layer.outputs)
    call(
        library.regard_linear,
        layer,
        _LinearArguments(x.data_ptr(), y.data_ptr(), x.numel() // layer.inputs),
    )
    return y


def _pack(pack: Callable[..., None], weight: Tensor, packed: Tensor) -> None:
    flat = weight.contiguous()
    pack(
        Pointer(flat.data_ptr()),
        Count(flat.shape[0]),
        Count(flat.shape[1]),
        Pointer(packed.data_ptr()),
    )
