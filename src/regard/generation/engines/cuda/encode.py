"""Encoders on a GPU, padded to few sizes and recorded as CUDA graphs."""

from collections.abc import Callable, Hashable
from copy import deepcopy
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.core.sequence import Tokens
from regard.core.shapes import Tensor
from regard.generation.engines.cuda.static_decoder import rounded, weights
from regard.generation.engines.half_precision import autocast
from regard.kernels.cuda_graphs import GraphRecorder
from regard.model.memory import Memory
from regard.model.multihead import MultiHead
from regard.model.transformer import TransformerEncoder

LENGTHS = 16  # lengths are padded to a multiple of it
KEPT = 16  # sizes of an encoder that stay recorded


class CastEncoder:
    """An encoder whose linear layers have their weights in bfloat16, as autocast would cast each of them anew.

    All other weights are those of the encoder. Queries, keys and values of a layer are projected by one matrix.
    """

    @torch.no_grad()
    @torch.inference_mode(False)  # tensors that may be overwritten in either mode
    def __init__(self, encoder: TransformerEncoder, addresses: tuple[int, ...]) -> None:
        self.addresses = addresses  # of all weights
        heads = [module for module in encoder.modules() if isinstance(module, MultiHead)]
        fused = [[each.q_proj, each.k_proj, each.v_proj] for each in heads]
        known = {id(linear) for each in fused for linear in each}
        others = [
            each
            for each in encoder.modules()
            if isinstance(each, nn.Linear) and id(each) not in known
        ]
        casts: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # of each weight and bias, by id: itself and its cast
        for name in ("weight", "bias"):
            for each in (*fused, *([linear] for linear in others)):
                parts = [x for linear in each if (x := getattr(linear, name)) is not None]
                if parts and all(x.shape[1:] == parts[0].shape[1:] for x in parts):
                    whole, sizes = (
                        torch.cat([x.detach() for x in parts]).to(torch.bfloat16),
                        [len(x) for x in parts],
                    )
                    slices = torch.split(whole, sizes)
                    casts |= {
                        id(x): (x, nn.Parameter(y, False))
                        for x, y in zip(parts, slices, strict=True)
                    }
        self.sources, self.casts = (
            [x.detach() for x, _ in casts.values()],
            [y for _, y in casts.values()],
        )
        shared = {id(x): x for x in encoder.parameters()}
        self.encoder = deepcopy(encoder, shared | {at: cast for at, (_, cast) in casts.items()})

    def __call__(self, source: Tokens) -> Memory:
        torch._foreach_copy_(self.casts, self.sources)  # all of them in one kernel or two
        memory: Memory = self.encoder(source)
        return memory


class GraphedEncoder:
    """An encoder for sources of at most one size."""

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self.source = Tokens(
            *(
                torch.zeros(size, dtype=torch.int64, device=device)
                for size in ((rows, length), rows)
            )
        )
        self.memory: Memory | None = None
        self.graphs = GraphRecorder()

    def __call__(self, encoder: Callable[[Tokens], Memory], source: Tokens) -> Memory:
        (rows, length), static = source.ids.shape, self.source
        static.ids[:rows, :length].copy_(source.ids)  # beyond are padding and unused rows
        static.lengths[:rows].copy_(source.lengths)

        def work() -> None:
            self.memory = encoder(static)

        with torch.cuda.device_of(source.ids):  # type: ignore[no-untyped-call]
            self.graphs.run("encode", work)
        assert self.memory is not None
        return self.memory.first(rows)  # a copy: the next call overwrites it


_encoders: "WeakKeyDictionary[nn.Module, dict[Hashable, GraphedEncoder]]" = WeakKeyDictionary()
_casts: "WeakKeyDictionary[nn.Module, CastEncoder]" = WeakKeyDictionary()


def encode(encoder: TransformerEncoder, source: Tokens, *, half: bool) -> Memory:
    """The memory of a source; with `half`, linear layers in bfloat16."""
    size = rounded(len(source.ids), up=True), _padded_length(encoder, source.ids.shape[1])
    tensors, known = weights(encoder), _encoders.setdefault(encoder, {})
    addresses = tuple(weight.data_ptr() for weight in tensors)
    key = (*size, half, addresses)
    graphed = known.pop(key, None) or GraphedEncoder(*size, source.ids.device)
    casts = half and tensors[0].dtype != torch.bfloat16
    with autocast(half):
        memory = graphed(_cast(encoder, addresses) if casts else encoder, source)
    known[key] = graphed  # put back after use: other threads make their own meanwhile
    while len(known) > KEPT:
        del known[next(iter(known))]
    return memory


def _cast(encoder: TransformerEncoder, addresses: tuple[int, ...]) -> CastEncoder:
    """The encoder with cast weights, which are read again in every call."""
    known = _casts.get(encoder)
    if known is None or known.addresses != addresses:
        known = _casts[encoder] = CastEncoder(encoder, addresses)
    return known


def _padded_length(encoder: TransformerEncoder, length: int) -> int:
    """Padded to a multiple, within the limit of learned positions."""
    padded, limit = LENGTHS * -(-length // LENGTHS), encoder.input_layer.limit
    return (
        padded
        if limit is None
        else max(length, min(padded, limit - (encoder.cls_token is not None)))
    )
