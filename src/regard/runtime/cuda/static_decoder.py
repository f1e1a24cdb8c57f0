"""A Transformer's decoder whose step is the same work on the same memory each time, so that a GPU can record it.

It knows what compiled code on a CPU knows (`native`), with the same start, step, follow, enter and reorder. Others take
PyTorch's way, with equal results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.kernels.decode import step
from regard.kernels.decode.step import StepLinear, StepNorm
from regard.kernels.triton_launch import present
from regard.model.embedding import Projection
from regard.model.kv_cache import Slots, write_rows
from regard.model.memory import Memory
from regard.model.positions import Add
from regard.model.transformer import TransformerDecoder
from regard.model.transformer_block import TransformerBlock
from regard.runtime.cpu.weight_layout import plain

PLACES = 4096  # positions that are laid out where there is no longest
ALIGNED = 64  # words of a vocabulary are made up to a multiple of it: products of odd sizes take twice as long
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class StaticState:
    """As `TransformerState`; hypotheses know by number whose entries in the cache are their ancestors'.

    What a step changes, it changes in place.
    """

    cache: Float[Tensor, "layers B capacity K 2 W"]
    parents: Int[Tensor, "B K capacity"]  # themselves, for steps to come
    first: Int[Tensor, " B"]  # when each sentence entered
    source: Float[Tensor, "B S layers 2 W"]
    mask: Bool[Tensor, "B S"]
    time: Int[Tensor, " 1"]
    steps: int = 0  # the same as time, for who may not wait for it

    def reorder(self, index: Int[Tensor, " sentences"]) -> "StaticState":
        return replace(
            self,
            cache=self.cache[:, index],
            parents=self.parents[index],
            first=self.first[index],
            source=self.source[index],
            mask=self.mask[index],
            time=self.time.clone(),
        )

    def follow(self, parents: Int[Tensor, "B K"]) -> "StaticState":
        if self.parents.shape[1] > 1:
            past = torch.arange(self.parents.shape[2], device=parents.device) < self.time
            moved = self.parents.gather(1, parents[..., None].expand_as(self.parents))
            torch.where(past, moved, self.parents, out=self.parents)
        return self

    def admit(self, rows: Slots, fresh: "StaticState") -> "StaticState":
        self.first[rows] = self.time
        source, mask = write_rows(self.source, rows, fresh.source), write_rows(self.mask, rows, fresh.mask)
        assert source is not None
        assert mask is not None
        self.source, self.mask = source, mask
        return self

    def restart(self) -> None:
        """Nobody is here: time begins anew."""
        self.steps = 0
        self.time.zero_()
        self.first.zero_()
        if self.parents.shape[1] > 1:
            self.parents.copy_(_themselves(self.parents))

    def make_room(self, count: int = 1) -> bool:
        """Whether there is room for so many more steps, which are counted then.

        For one there always is: where the cache is full the older half is forgotten, as sentences come and go.
        """
        capacity = self.cache.shape[2]
        if self.steps == capacity:
            old = capacity // 2
            for x in (self.cache, self.parents):
                x.narrow(2, 0, old).copy_(x.narrow(2, capacity - old, old))
            self.parents[..., old:] = _themselves(self.parents[..., old:])
            self.first.sub_(old).clamp_(min=0)
            self.time.sub_(old)
            self.steps -= old
        fits = self.steps + count <= capacity
        self.steps += count * fits
        return fits


def _themselves(parents: Int[Tensor, "B K capacity"]) -> Int[Tensor, "B K capacity"]:
    """Of each hypothesis its own number, in the shape of these."""
    own = torch.arange(parents.shape[1], dtype=parents.dtype, device=parents.device)
    return own[:, None].expand_as(parents)


class StaticLayer(NamedTuple):
    open: StepLinear  # to queries, keys and values
    out: StepLinear
    ask: StepLinear | None  # queries to the source
    tell: StepLinear | None
    widen: StepLinear
    narrow: StepLinear
    norms: list[StepNorm]  # around each part


class StaticDecoder:
    """What stands in for a decoder while it searches."""

    def __init__(self, decoder: TransformerDecoder, dtype: torch.dtype) -> None:
        self.dtype, self.words, self.dim = dtype, len(decoder.project.weight), decoder.embed_tokens.dim
        blocks = list(decoder.stack.layers)
        attend, ffn = blocks[0].self_attn, blocks[0].ffn
        self.heads, self.activation, self.scale = attend.heads, ffn.activation, decoder.embed_tokens.scale
        self.norm_first = not isinstance(decoder.stack.norm, nn.Identity)
        self.laid, self.prints = self._lay(decoder), WeightFingerprint(decoder)

    @torch.inference_mode()
    def refresh(self, decoder: TransformerDecoder) -> bool:
        """Whether weights have changed; if so, they are put where the old ones were."""
        changed = self.prints.changed(decoder)
        if changed:
            for old, new in zip(_tensors(self.laid), _tensors(self._lay(decoder)), strict=True):
                old.copy_(new)
        return changed

    @torch.inference_mode()
    def _lay(self, decoder: TransformerDecoder) -> dict[str, Any]:
        def product(*parts: nn.Linear | Projection, rows: int = 0) -> StepLinear:
            weight, bias = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
            return StepLinear(F.pad(weight.to(self.dtype), (0, 0, 0, rows)), F.pad(bias.to(self.dtype), (0, rows)))

        def layer(block: TransformerBlock) -> StaticLayer:
            cross, norms = block.cross_attn, [_norm(block.norm1)]
            norms += [] if cross is None else [_norm(block.norm2)]
            return StaticLayer(
                product(block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj),
                product(block.self_attn.out_proj),
                None if cross is None else product(cross.q_proj),
                None if cross is None else product(cross.out_proj),
                product(block.ffn.up),
                product(block.ffn.down),
                [*norms, _norm(block.ffn_norm)],
            )

        assert isinstance(decoder.project, Projection)
        blocks = list(decoder.stack.layers)
        crosses = [
            part
            for block in blocks
            if block.cross_attn is not None
            for part in (block.cross_attn.k_proj, block.cross_attn.v_proj)
        ]
        project = product(decoder.project, rows=-self.words % ALIGNED)
        tied = decoder.project.weight is decoder.embed_tokens.weight
        return {
            "layers": [layer(block) for block in blocks],
            "sources": product(*crosses) if crosses else None,
            "table": project.weight if tied else decoder.embed_tokens.weight.to(self.dtype, copy=True),
            "project": project,
            "places": _places(decoder),
            "last": [_norm(decoder.stack.norm)] if self.norm_first else [],
        }

    def start(self, memory: Memory | None, *, batch: int, capacity: int, beams: int | None = None) -> StaticState:
        """With a capacity of none, what only enters another state."""
        layers, device, several = self.laid["layers"], self.laid["table"].device, beams or 1
        if memory is None:
            source = torch.zeros(batch, 0, len(layers), 2, self.dim, dtype=self.dtype, device=device)
            mask = torch.zeros(batch, 0, dtype=torch.bool, device=device)
        else:
            source = self.laid["sources"](memory.states.to(self.dtype))
            source, mask = source.unflatten(-1, (len(layers), 2, self.dim)), memory.mask
        new = partial(torch.zeros if capacity else torch.empty, device=device)
        parents = new(batch, several, capacity, dtype=torch.int32)
        return StaticState(
            new(len(layers), batch, capacity, several, 2, self.dim, dtype=self.dtype),
            _themselves(parents).clone() if capacity and several > 1 else parents,
            new(batch, dtype=torch.int64),
            source,
            mask,
            new(1, dtype=torch.int64),
        )

    def step(self, tokens: Int[Tensor, " rows"], state: StaticState) -> tuple[Float[Tensor, "rows V"], StaticState]:
        """After `state.make_room()`, which a recording leaves out."""
        laid, first, time, heads, last = self.laid, state.first, state.time, self.heads, not self.norm_first
        norms = self._norms()
        x = step.enter(tokens, laid["table"], self.scale, laid["places"], first, time)
        for number, layer in enumerate(laid["layers"]):
            asked, x = step.normed(x, next(norms), layer.open, last=last)
            seen = step.look_back(asked, state.cache[number], state.parents, first, time, heads)
            x = step.onto(x, seen, layer.out)
            if layer.ask is not None:
                asked, x = step.normed(x, next(norms), layer.ask, last=last)
                seen = step.look(asked, state.source[:, :, number], state.mask, heads)
                x = step.onto(x, seen, layer.tell)
            wide, x = step.normed(x, next(norms), layer.widen, last=last, activation=self.activation)
            x = step.onto(x, wide, layer.narrow)
        logits, _ = step.normed(x, next(norms), laid["project"], last=last)
        state.time += 1
        return logits[:, : self.words], state

    def _norms(self) -> Iterator[StepNorm | None]:
        """In the order in which they come: before each part and at the end, or after each part."""
        if not self.norm_first:
            yield None
        for layer in self.laid["layers"]:
            yield from layer.norms
        yield from self.laid["last"]


_made: "WeakKeyDictionary[nn.Module, dict[torch.dtype, StaticDecoder]]" = WeakKeyDictionary()


def static_decoder(decoder: nn.Module, room: int, *, half: bool = False) -> StaticDecoder | None:
    """The form that a GPU can record of a decoder, where there is one for outputs of so many tokens; to `refresh`."""
    if not isinstance(decoder, TransformerDecoder) or not isinstance(decoder.project, Projection):
        return None
    weight = decoder.project.weight
    dtype = torch.bfloat16 if half else weight.dtype
    if not weight.is_cuda or dtype not in DTYPES or room > _longest(decoder) or not present(weight.device):
        return None
    if not plain(decoder) or torch.is_autocast_enabled("cuda"):
        return None
    return laid(decoder, dtype)


def laid(decoder: TransformerDecoder, dtype: torch.dtype) -> StaticDecoder:
    """In the same memory as before, unless weights went elsewhere. Where they may have changed, `refresh` comes next.

    That sees weights as all work launched before this leaves them, and waits for no work that is launched after it.
    """
    known, device = _made.setdefault(decoder, {}), decoder.project.weight.device
    if device.type == "cuda":
        _aside(device).wait_stream(torch.cuda.current_stream(device))
    if dtype not in known or known[dtype].laid["table"].device != device:
        known[dtype] = StaticDecoder(decoder, dtype)
    return known[dtype]


def weights(module: nn.Module) -> list[Tensor]:
    """As `parameters`, in a fraction of its time; what is shared comes more than once."""
    found: list[Tensor | None] = []
    modules: list[nn.Module | None] = [module]
    for one in modules:  # which grows meanwhile
        if one is not None:
            found += one._parameters.values()
            modules += one._modules.values()
    return [weight for weight in found if weight is not None]


@lru_cache(maxsize=16)
def _aside(device: torch.device) -> torch.cuda.Stream:
    """Where a GPU takes prints at once, whatever else it does; of a kind that nothing is recorded on."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class WeightFingerprint:
    """What is another once weights have changed: not all who change them are counted."""

    def __init__(self, decoder: nn.Module) -> None:
        self.where: list[int] = []
        self.now(decoder)

    def changed(self, decoder: nn.Module) -> bool:
        before = self.versions, self.found
        self.now(decoder)
        return before != (self.versions, self.found)

    def now(self, decoder: nn.Module) -> None:
        found = weights(decoder)
        self.versions = [0 if weight.is_inference() else weight._version for weight in found]
        gpu = step.kernels(found[0])
        if gpu is None:
            norms = torch._foreach_norm([weight.detach() for weight in found])
            self.found = torch.stack([norm.float() for norm in norms]).tolist()
            return
        where = [weight.data_ptr() for weight in found]
        with torch.cuda.stream(_aside(found[0].device)):
            if where != self.where:
                self.where, sizes = where, [weight.nbytes // 4 for weight in found]
                self.table = torch.tensor([where, sizes], device=found[0].device)
            self.found = gpu.prints(*self.table).tolist()


def _norm(norm: nn.Module) -> StepNorm:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    bias: Tensor | None = getattr(norm, "bias", None)
    assert norm.eps is not None
    weight = norm.weight.float().clone()
    return StepNorm(weight, None if bias is None else bias.float().clone(), norm.eps)


def _longest(decoder: TransformerDecoder) -> int:
    place = decoder.input_layer.position_encoding
    limit = place.positions.limit if isinstance(place, Add) else None
    return PLACES if limit is None else limit


def _places(decoder: TransformerDecoder) -> Tensor | None:
    place = decoder.input_layer.position_encoding
    if place is None:
        return None
    assert isinstance(place, Add)
    found: Tensor = place.positions(torch.arange(_longest(decoder), device=decoder.project.weight.device))
    return found.float().clone()


def _tensors(laid: Any) -> Iterator[Tensor]:
    if isinstance(laid, Tensor):
        yield laid
    elif isinstance(laid, dict):
        yield from _tensors(list(laid.values()))
    elif isinstance(laid, list | tuple):
        for each in laid:
            yield from _tensors(each)
