"""What compiled code is given: a Transformer's weights, laid out for it once."""

import ctypes
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.kernels.layers.linear import ACTIVATIONS
from regard.model.capture import quiet
from regard.model.embedding import Embedding
from regard.model.multihead import MultiHead
from regard.model.positions import Add
from regard.model.scores import ScaledDot
from regard.model.transformer_block import InputLayer, TransformerBlock, TransformerStack
from regard.runtime.cpu import compile

KINDS = {ACTIVATIONS["relu"]: 1, ACTIVATIONS["gelu"]: 2, ACTIVATIONS["gelu_tanh"]: 3, ACTIVATIONS["silu"]: 4}
CHUNK = 1 << 24  # bytes of memory that are asked for at once
ALIGNED = 64  # as PyTorch's own are
Pointer, Count = ctypes.c_void_p, ctypes.c_int64


class LinearTable(ctypes.Structure):
    _fields_ = (
        *((name, Pointer) for name in ("weight", "bias", "small", "scale", "offset")),
        *((name, Count) for name in ("inputs", "outputs")),
    )


class NormTable(ctypes.Structure):
    _fields_ = (("scale", Pointer), ("shift", Pointer), ("epsilon", ctypes.c_float))


class LayerTable(ctypes.Structure):
    _fields_ = (
        *((name, LinearTable) for name in ("open", "out", "ask", "tell", "widen", "narrow")),
        *((name, NormTable) for name in ("around_attend", "around_cross", "around_perceive")),
    )


class StackTable(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(LayerTable)),
        ("project", LinearTable),
        ("last", NormTable),
        ("table", Pointer),
        *((name, Count) for name in ("count", "dim", "heads", "hidden", "activation", "norm_first", "crosses")),
        ("scale", ctypes.c_float),
    )


class Scratch(ctypes.Structure):
    _fields_ = tuple((name, Pointer) for name in ("x", "normed", "wide", "seen", "scores"))


class WeightLayout:
    """The blocks of an encoder or a decoder as compiled code reads them, and the memory that they lie in."""

    def __init__(self, library: ctypes.CDLL, *, int8: bool = False) -> None:
        self.library = library
        self.most_bytes = library.regard_bytes() if int8 else 0  # inputs of a product in bytes, at most
        self.kept: list[Tensor] = []  # what the tables point to
        self.free = torch.empty(0, dtype=torch.uint8)  # of the last of those

    def stack(self, stack: TransformerStack, embedding: Embedding, project: LinearTable) -> StackTable:
        blocks, last = list(stack.layers), stack.norm
        layers = (LayerTable * len(blocks))(*(self._layer(block) for block in blocks))
        attend, ffn = blocks[0].self_attn, blocks[0].ffn
        self.dim, self.widest = attend.dim, max(3 * attend.dim, ffn.up.out_features)
        return StackTable(
            layers,
            project,
            NormTable() if isinstance(last, nn.Identity) else self._norm(last),
            self._keep(embedding.weight),
            len(blocks),
            attend.dim,
            attend.heads,
            ffn.up.out_features,
            KINDS[ffn.activation],
            not isinstance(last, nn.Identity),
            blocks[0].cross_attn is not None,
            embedding.scale,
        )

    def room(self, rows: int, scores: int) -> tuple[Scratch, Float[Tensor, "rows W"], Float[Tensor, "rows W"]]:
        """Memory to work in: what goes from layer to layer, and the same under the last norm, lie in it too."""
        dim = self.dim
        whole = torch.empty(rows * (3 * dim + self.widest + scores))
        parts = torch.split(whole, [rows * each for each in (dim, dim, self.widest, dim, scores)])
        return Scratch(*(part.data_ptr() for part in parts)), parts[0].view(rows, dim), parts[1].view(rows, dim)

    def product(self, weight: Tensor, bias: Tensor) -> LinearTable:
        outputs, inputs = weight.shape
        columns = self.library.regard_columns()
        padded = -(-outputs // columns) * columns
        if inputs <= self.most_bytes and inputs % 4 == 0:
            return self._small_product(weight.detach(), bias, padded)
        packed = self._zeros(padded * inputs, torch.float32)
        _pack(self.library.regard_pack, weight.detach(), packed)
        return LinearTable(packed.data_ptr(), self._keep(bias), None, None, None, inputs, outputs)

    def _layer(self, block: TransformerBlock) -> LayerTable:
        attend, nothing = block.self_attn, LinearTable()
        joint = [attend.q_proj, attend.k_proj, attend.v_proj]
        cross = block.cross_attn
        return LayerTable(
            self.product(torch.cat([each.weight for each in joint]), torch.cat([each.bias for each in joint])),
            self.product(attend.out_proj.weight, attend.out_proj.bias),
            nothing if cross is None else self.product(cross.q_proj.weight, cross.q_proj.bias),
            nothing if cross is None else self.product(cross.out_proj.weight, cross.out_proj.bias),
            self.product(block.ffn.up.weight, block.ffn.up.bias),
            self.product(block.ffn.down.weight, block.ffn.down.bias),
            self._norm(block.norm1),
            NormTable() if cross is None else self._norm(block.norm2),
            self._norm(block.ffn_norm),
        )

    def _small_product(self, weight: Tensor, bias: Tensor, padded: int) -> LinearTable:
        """Weights in bytes, each row by its own scale."""
        outputs, inputs = weight.shape
        scale = weight.abs().amax(1).clamp(min=1e-30) / 127
        small = (weight / scale[:, None]).round().to(torch.int8)
        packed = self._zeros(padded * inputs, torch.int8)
        _pack(self.library.regard_pack_bytes, small, packed)
        offset = 128 * small.sum(1, dtype=torch.int32)
        more = (0, padded - outputs)
        return LinearTable(
            None,
            self._keep(bias),
            packed.data_ptr(),
            self._keep(F.pad(scale, more)),
            self._keep(F.pad(offset, more)),
            inputs,
            outputs,
        )

    def _norm(self, norm: nn.Module) -> NormTable:
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        shift: Tensor | None = getattr(norm, "bias", None)
        return NormTable(self._keep(norm.weight), None if shift is None else self._keep(shift), norm.eps)

    def _keep(self, tensor: Tensor) -> int:
        kept = self._zeros(tensor.numel(), tensor.dtype)
        kept.copy_(tensor.detach().flatten())
        return kept.data_ptr()

    def _zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        """Side by side in memory, as compiled code reads them one after another."""
        size = -(-count * dtype.itemsize // ALIGNED) * ALIGNED
        if len(self.free) < size:
            self.free = torch.empty(max(size, CHUNK), dtype=torch.uint8)
            self.kept.append(self.free)
            self.library.regard_large_pages(Pointer(self.free.data_ptr()), Count(len(self.free)))
        found, self.free = self.free[:size], self.free[size:]
        return found.zero_()[: count * dtype.itemsize].view(dtype)


class PositionTable:
    """Vectors of positions, as many as were needed so far."""

    def __init__(self, input_layer: InputLayer, *, beyond: bool = False) -> None:
        self.place = input_layer.position_encoding
        self.beyond = beyond  # whether a learned table goes on with its last
        self.known: Tensor | None = None

    def pointer(self, count: int) -> int | None:
        """Where those of the first so many begin; none where there are no positions."""
        if self.place is None:
            return None
        assert isinstance(self.place, Add)
        if self.known is None or len(self.known) < count:
            limit, dim = self.place.positions.limit, self.place.positions.dim
            if not self.beyond:
                self.place(torch.zeros(1, dim), count - 1)  # refused where a learned table ends before
            places = torch.arange(2 * count)
            places = places if limit is None else places.clamp(max=limit - 1)
            self.known = self.place.positions(places).detach().contiguous()
        return self.known.data_ptr()


def usable(module: nn.Module) -> ctypes.CDLL | None:
    """The compiled code, where a module may be handed to it."""
    weight = getattr(getattr(module, "embed_tokens", None), "weight", None)
    here = isinstance(weight, Tensor) and weight.device.type == "cpu" and weight.dtype == torch.float32
    return compile.library() if here and plain(module) else None


def plain(module: nn.Module) -> bool:
    """Whether a module is of plain blocks that others can stand in for, and nobody listens or changes anything."""
    stack, input_layer, embedding = (getattr(module, name, None) for name in ("stack", "input_layer", "embed_tokens"))
    if (
        not isinstance(stack, TransformerStack)
        or not isinstance(input_layer, InputLayer)
        or not isinstance(embedding, Embedding)
    ):
        return False
    return (
        not module.training
        and (input_layer.position_encoding is None or isinstance(input_layer.position_encoding, Add))
        and input_layer.relative_bias is None
        and input_layer.position_proj is None
        and isinstance(input_layer.norm, nn.Identity)
        and all(_plain(block) for block in stack.layers)
        and quiet()
    )


def fingerprint(library: ctypes.CDLL, module: nn.Module) -> list[int]:
    """Other numbers once a weight has changed.

    PyTorch counts changes, but not those of optimisers that do a step in one kernel, nor those through `.data`; these
    change many weights at once, and are seen in some of them.
    """
    found = []
    for weight in module.parameters():
        laid = weight.detach().contiguous()
        version = 0 if weight.is_inference() else weight._version
        found += [version, library.regard_print(Pointer(laid.data_ptr()), Count(laid.nbytes))]
    return found


def _pack(pack: Any, weight: Tensor, packed: Tensor) -> None:
    laid = weight.contiguous()
    pack(Pointer(laid.data_ptr()), Count(laid.shape[0]), Count(laid.shape[1]), Pointer(packed.data_ptr()))


def _plain(block: TransformerBlock) -> bool:
    looks = [block.self_attn, *([block.cross_attn] if block.cross_attn is not None else [])]
    return block.ffn.gate is None and block.ffn.activation in KINDS and all(_plain_look(each) for each in looks)


def _plain_look(look: MultiHead) -> bool:
    return (
        isinstance(look.score, ScaledDot)
        and look.kv_heads == look.heads
        and look.heads * look.head_dim == look.dim
        and look.rotary is None
        and look.q_norm is None
        and look.q_proj.bias is not None
    )
