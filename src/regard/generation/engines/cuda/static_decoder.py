"""A Transformer decoder whose steps launch the same kernels on the same memory, so that CUDA graphs can record them."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from types import ModuleType
from typing import NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.generation.engines.base import EngineDecoder
from regard.generation.engines.choice_kernels import kernels
from regard.generation.engines.cuda.kernels import step
from regard.generation.engines.cuda.kernels.step import StackedLayers, StepLinear, StepNorm
from regard.generation.engines.fused_options import CUDA_STEPS
from regard.generation.engines.loop import SearchLoop
from regard.generation.engines.published_attention import publish, publish_step
from regard.generation.engines.transformer_weights import (
    block_norms,
    block_projections,
    weight_and_bias,
)
from regard.kernels.layers.residual_norm import norm_gain
from regard.model.capture import capturing_here
from regard.model.embedding import Projection
from regard.model.interfaces import DecoderState
from regard.model.kv_cache import Slots, write_rows
from regard.model.memory import Memory
from regard.model.positions import Add
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder

MAX_POSITIONS = 4096  # where the position encoding has no limit
ALIGNMENT = (
    64  # the vocabulary is padded to a multiple of it: products of odd sizes take twice as long
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Workspace:
    """Memory of the kernel of whole steps, made with the first of them; no part of the state."""

    def __init__(self) -> None:
        self.memory: dict[int, Tensor] = {}  # by the number of steps in a launch
        self.kinds: dict[
            Hashable, Tensor
        ] = {}  # of all tokens, by those that are suppressed and those that end


@dataclass
class StaticState(DecoderState):
    """A key-value cache shared by the hypotheses of a sequence, with the ancestors of each by number.

    Steps update it in place.
    """

    cache: Float[Tensor, "layers B capacity K 2 W"]
    parents: Int[
        Tensor, "B K capacity"
    ]  # ancestors in the cache; of future steps, the hypothesis itself
    admitted: Int[Tensor, " B"]  # the step at which each sequence was admitted
    source: Float[Tensor, "B S layers 2 W"]
    mask: Bool[Tensor, "B S"]
    time: Int[Tensor, " 1"]
    steps: int = 0  # equal to `time`, without waiting for the device
    workspace: Workspace = field(default_factory=Workspace)

    def reorder(self, index: Int[Tensor, " n"]) -> "StaticState":
        rows = {
            name: getattr(self, name)[index] for name in ("parents", "admitted", "source", "mask")
        }
        return replace(
            self, cache=self.cache[:, index], time=self.time.clone(), workspace=Workspace(), **rows
        )

    def follow(self, parents: Int[Tensor, "B K"]) -> "StaticState":
        triton = kernels(parents)
        if self.parents.shape[1] > 1 and triton is not None:
            triton.follow(self.parents, parents.contiguous(), self.time)
        elif self.parents.shape[1] > 1:
            past = torch.arange(self.parents.shape[2], device=parents.device) < self.time
            moved = self.parents.gather(1, parents[..., None].expand_as(self.parents))
            torch.where(past, moved, self.parents, out=self.parents)
        return self

    def admit(self, slots: Slots, fresh: "StaticState") -> "StaticState":
        self.admitted[slots] = self.time
        self.source = write_rows(self.source, slots, fresh.source)
        self.mask = write_rows(self.mask, slots, fresh.mask)
        return self

    def clear(self) -> None:
        """Reset the tensors to before the first step, for a new search."""
        self.time.zero_()
        self.admitted.zero_()
        if self.parents.shape[1] > 1:
            self.parents.copy_(_identity(self.parents))

    def reserve(self, count: int = 1) -> bool:
        """Count `count` more steps, if the cache has capacity for them; whether it has.

        For one step it always has: the older half of a full cache is dropped, under continuous batching.
        """
        capacity = self.cache.shape[2]
        if self.steps == capacity:
            old = capacity // 2
            for x in (self.cache, self.parents):
                x.narrow(2, 0, old).copy_(x.narrow(2, capacity - old, old))
            self.parents[..., old:] = _identity(self.parents[..., old:])
            self.admitted.sub_(old).clamp_(min=0)
            self.time.sub_(old)
            self.steps -= old
        fits = self.steps + count <= capacity
        self.steps += count * fits
        return fits


def _identity(parents: Int[Tensor, "B K capacity"]) -> Int[Tensor, "B K capacity"]:
    """The own number of each hypothesis, in the shape of `parents`."""
    own = torch.arange(parents.shape[1], dtype=parents.dtype, device=parents.device)
    return own[:, None].expand_as(parents)


class StaticWeights(NamedTuple):
    """Copies of a decoder's weights; a refresh writes new ones into the same memory."""

    layers: StackedLayers
    source_kv: StepLinear | None  # keys and values of the memory for all layers
    embed_tokens: Float[Tensor, "V W"]
    project: StepLinear
    positions: Float[Tensor, "limit W"] | None
    final_norm: list[StepNorm]  # empty with norms after the sublayers


class StaticDecoder(EngineDecoder):
    """The static form of a decoder. It copies the weights, and does not keep the decoder alive."""

    static = True
    fused = CUDA_STEPS
    max_beams = 1

    def __init__(self, decoder: TransformerDecoder, dtype: torch.dtype) -> None:
        self.dtype, self.vocab_size, self.dim = (
            dtype,
            len(decoder.project.weight),
            decoder.embed_tokens.dim,
        )
        blocks = list(decoder.stack.layers)
        self.heads, self.activation = blocks[0].self_attn.heads, blocks[0].ffn.activation
        self.scale, self.norm_first = (
            decoder.embed_tokens.scale,
            not isinstance(decoder.stack.norm, nn.Identity),
        )
        self.weights, self.fingerprint = self._copy(decoder), WeightFingerprint(decoder)
        self.layers = [self.weights.layers.layer(number) for number in range(len(blocks))]
        self.attentions = [
            (ref(block.self_attn), block.cross_attn and ref(block.cross_attn)) for block in blocks
        ]

    def batch_size(self, count: int, *, up: bool = True) -> int:
        return rounded(count, up=up)

    @torch.inference_mode()
    def refresh(self, model: Seq2Seq) -> bool:
        decoder = model.decoder
        assert isinstance(decoder, TransformerDecoder)
        changed = self.fingerprint.changed(decoder)
        if changed:
            for old, new in zip(
                tensors_of(self.weights), tensors_of(self._copy(decoder)), strict=True
            ):
                old.copy_(new)
        return changed

    @torch.inference_mode()
    def _copy(self, decoder: TransformerDecoder) -> StaticWeights:
        def linear(*parts: nn.Linear | Projection, rows: int = 0) -> StepLinear:
            weight, bias = weight_and_bias(*parts)
            return StepLinear(
                F.pad(weight.to(self.dtype), (0, 0, 0, rows)), F.pad(bias.to(self.dtype), (0, rows))
            )

        def stacked(*each: StepLinear) -> StepLinear:
            return StepLinear(
                torch.stack([one.weight for one in each]), torch.stack([one.bias for one in each])
            )

        assert isinstance(decoder.project, Projection)
        blocks = list(decoder.stack.layers)
        norms = [
            [_norm(norm) for norm in block_norms(block) if norm is not None] for block in blocks
        ]
        biases = [[norm.bias for norm in each if norm.bias is not None] for each in norms]
        kinds = zip(
            *(block_projections(block) for block in blocks), strict=True
        )  # of each kind, those of all layers
        linears = [
            stacked(*(linear(*fused) for fused in each)) if each[0] else None for each in kinds
        ]
        layers = StackedLayers(
            torch.stack([torch.stack([norm.weight for norm in each]) for each in norms]),
            torch.stack([torch.stack(each) for each in biases]) if biases[0] else None,
            norms[0][0].epsilon,
            *linears,  # type: ignore[arg-type]
        )
        crosses = [block.cross_attn for block in blocks if block.cross_attn is not None]
        source_projections = [
            projection for cross in crosses for projection in (cross.k_proj, cross.v_proj)
        ]
        project = linear(decoder.project, rows=-self.vocab_size % ALIGNMENT)
        tied = (
            decoder.project.weight is decoder.embed_tokens.weight and decoder.project.scale == 1.0
        )
        return StaticWeights(
            layers=layers,
            source_kv=linear(*source_projections) if source_projections else None,
            embed_tokens=project.weight
            if tied
            else decoder.embed_tokens.weight.to(self.dtype, copy=True),
            project=project,
            positions=_position_table(decoder),
            final_norm=[_norm(decoder.stack.norm)] if self.norm_first else [],
        )

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> StaticState:
        layers, device = len(self.layers), self.weights.embed_tokens.device
        if memory is None:
            source = torch.zeros(batch, 0, layers, 2, self.dim, dtype=self.dtype, device=device)
            mask = torch.zeros(batch, 0, dtype=torch.bool, device=device)
        else:
            assert self.weights.source_kv is not None
            projected = self.weights.source_kv(memory.states.to(self.dtype))
            source, mask = projected.view(*projected.shape[:2], layers, 2, self.dim), memory.mask
        new = partial(torch.zeros if capacity else torch.empty, device=device)
        cache = new(layers, batch, capacity, beams, 2, self.dim, dtype=self.dtype)
        parents = new(batch, beams, capacity, dtype=torch.int32)
        parents = _identity(parents).clone() if capacity and beams > 1 else parents
        admitted, time = new(batch, dtype=torch.int64), new(1, dtype=torch.int64)
        return StaticState(cache, parents, admitted, source, mask, time)

    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows V"], StaticState]:
        """One step, after `state.reserve()`, which is not part of a recording."""
        assert isinstance(state, StaticState)
        persistent = step.persistent(self.weights.layers, len(tokens)) if self.norm_first else None
        logits = (
            self._step_by_parts(tokens, state)
            if persistent is None
            else self._step(persistent, tokens, state)
        )
        return logits[:, : self.vocab_size], state

    def greedy_steps(
        self, tokens: Int[Tensor, "B K"], state: DecoderState, loop: SearchLoop, count: int
    ) -> DecoderState | None:
        assert isinstance(state, StaticState)
        kernel = step.persistent(self.weights.layers, tokens.numel()) if self.norm_first else None
        excludes = loop.no_repeat_ngram_size or loop.allow_end  # more than the kernel does
        if kernel is None or loop.greedy is None or loop.normalized or excludes or capturing_here():
            return None
        key, known = (loop.suppressed, loop.ends), state.workspace.kinds
        if key not in known:
            known[key] = self._kinds(kernel, *key)
        flags = (each.view(torch.uint8) for each in (loop.greedy.ended, loop.done))
        numbers = (loop.tokens, loop.length, loop.min_length, loop.prompt, loop.prefix, loop.limit)
        self._launch(
            kernel,
            tokens,
            state,
            kernel.Choice(known[key], *numbers, *flags, loop.greedy.pad),
            count,
        )
        return state

    def _kinds(
        self, kernel: ModuleType, suppressed: tuple[int, ...], ends: tuple[int, ...]
    ) -> Int[Tensor, " V"]:
        """Of every token, whether it may be chosen and whether it ends an output; none of the vocabulary's padding."""
        kinds = torch.zeros(len(self.weights.project.weight), dtype=torch.int8)
        kinds[: self.vocab_size] = kernel.CHOSEN.value
        kinds[list(suppressed)] = 0
        kinds[list(ends)] |= kernel.ENDS.value
        return kinds.to(self.weights.embed_tokens.device)

    def _launch(
        self,
        kernel: ModuleType,
        tokens: Int[Tensor, "..."],
        state: StaticState,
        choice: object = None,
        count: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Steps in one kernel."""
        weights, memory = self.weights, state.workspace.memory
        if count not in memory:
            memory[count] = kernel.step_workspace(weights.layers, self.heads, count)
        results: tuple[Tensor, Tensor, Tensor] = kernel.step(
            tokens, weights.embed_tokens, self.scale, weights.positions, weights.layers, *weights.final_norm,
            weights.project, state.cache, state.admitted, state.source, state.mask, state.time, memory[count],
            self.heads, self.activation, choice, count,
        )  # fmt: skip
        return results

    def _step(
        self, kernel: ModuleType, tokens: Int[Tensor, " rows"], state: StaticState
    ) -> Float[Tensor, "rows V"]:
        """A step in one kernel."""
        logits, qkv, queries = self._launch(kernel, tokens, state)
        if capturing_here():
            for number, projected in enumerate(qkv):
                self._publish_self_attention(number, projected, state)
                if len(queries):
                    self._publish_cross_attention(number, queries[number], state)
        return logits

    def _step_by_parts(
        self, tokens: Int[Tensor, " rows"], state: StaticState
    ) -> Float[Tensor, "rows V"]:
        """A step in kernels for each of its parts."""
        weights, admitted, time, heads = self.weights, state.admitted, state.time, self.heads
        post_norm, captured = not self.norm_first, capturing_here()
        # In the order of use: before each sublayer and at the end, or after each sublayer.
        norms = chain(
            [None] * post_norm, *(layer.norms for layer in self.layers), weights.final_norm
        )
        ops = kernels(tokens) or step
        x = ops.embed(tokens, weights.embed_tokens, self.scale, weights.positions, admitted, time)
        for number, layer in enumerate(self.layers):
            projected, x = ops.norm_linear(x, next(norms), layer.qkv_proj, post_norm=post_norm)
            context = ops.self_attention(
                projected, state.cache[number], state.parents, admitted, time, heads
            )
            if captured:
                self._publish_self_attention(number, projected, state)
            x = ops.add_linear(x, context, layer.out_proj)
            if layer.cross_q_proj is not None and layer.cross_out_proj is not None:
                query, x = ops.norm_linear(x, next(norms), layer.cross_q_proj, post_norm=post_norm)
                context = ops.cross_attention(query, state.source[:, :, number], state.mask, heads)
                if captured:
                    self._publish_cross_attention(number, query, state)
                x = ops.add_linear(x, context, layer.cross_out_proj)
            hidden, x = ops.norm_linear(
                x, next(norms), layer.ffn_up, post_norm=post_norm, activation=self.activation
            )
            x = ops.add_linear(x, hidden, layer.ffn_down)
        logits: Tensor = ops.norm_linear(x, next(norms), weights.project, post_norm=post_norm)[0]
        state.time += 1
        return logits

    def _publish_self_attention(
        self, number: int, qkv: Float[Tensor, "rows W3"], state: StaticState
    ) -> None:
        past, parents = (
            state.cache[number, :, : state.steps],
            state.parents[..., : state.steps],
        )  # with this step
        query = qkv[:, : self.dim].contiguous()
        publish_step(self.attentions[number][0](), query, past, parents, state.admitted, self.heads)

    def _publish_cross_attention(
        self, number: int, query: Float[Tensor, "rows W"], state: StaticState
    ) -> None:
        cross_attn = self.attentions[number][1]
        assert cross_attn is not None
        queries = query.view(len(state.mask), -1, self.dim)
        publish(cross_attn(), queries, state.source[:, :, number], state.mask[:, None], self.heads)


_decoders: "WeakKeyDictionary[nn.Module, dict[torch.dtype, StaticDecoder]]" = WeakKeyDictionary()


def static_decoder(decoder: TransformerDecoder, dtype: torch.dtype) -> StaticDecoder:
    """The static form of a decoder, in the same memory as before. `refresh` comes next, if weights may have changed.

    A refresh sees the weights as work launched before this leaves them, and does not wait for work launched after.
    """
    known, device = _decoders.setdefault(decoder, {}), decoder.project.weight.device
    if device.type == "cuda":
        _fingerprint_stream(device).wait_stream(torch.cuda.current_stream(device))
    if dtype not in known or known[dtype].weights.embed_tokens.device != device:
        known[dtype] = StaticDecoder(decoder, dtype)
    return known[dtype]


def weights(module: nn.Module) -> list[Tensor]:
    """As `parameters`, in a fraction of its time; shared weights are repeated."""
    tensors: list[Tensor | None] = []
    modules: list[nn.Module | None] = [module]
    for one in modules:  # grows meanwhile
        if one is not None:
            own = one.__dict__
            if parameters := own["_parameters"]:
                tensors += parameters.values()
            if children := own["_modules"]:
                modules += children.values()
    return [tensor for tensor in tensors if tensor is not None]


@lru_cache(maxsize=16)
def _fingerprint_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for fingerprints, prioritized over the steps; nothing is recorded on it."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class WeightFingerprint:
    """Numbers that change when weights change: PyTorch's version counters miss fused optimizers and `.data`."""

    def __init__(self, decoder: nn.Module) -> None:
        self.addresses: list[int] = []
        self.update(decoder)

    def changed(self, decoder: nn.Module) -> bool:
        before = self.versions, self.hashes
        self.update(decoder)
        return before != (self.versions, self.hashes)

    def update(self, decoder: nn.Module) -> None:
        tensors = weights(decoder)
        try:
            self.versions = list(map(_version, tensors))
        except RuntimeError:  # inference tensors have none
            self.versions = [0 if weight.is_inference() else weight._version for weight in tensors]
        triton = kernels(tensors[0])
        if triton is None:
            norms = torch._foreach_norm([weight.detach() for weight in tensors])
            self.hashes = torch.stack([norm.float() for norm in norms]).tolist()
            return
        addresses = [weight.data_ptr() for weight in tensors]
        with torch.cuda.stream(_fingerprint_stream(tensors[0].device)):
            if addresses != self.addresses:
                self.addresses, sizes = addresses, [weight.nbytes // 4 for weight in tensors]
                self.table = tuple(torch.tensor([addresses, sizes], device=tensors[0].device))
            self.hashes = triton.fingerprints(*self.table).tolist()


_version = attrgetter("_version")


def _norm(norm: nn.Module) -> StepNorm:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    bias: Tensor | None = getattr(norm, "bias", None)
    assert norm.eps is not None
    weight = norm_gain(norm).float().clone()
    return StepNorm(weight, None if bias is None else bias.float().clone(), norm.eps)


def max_positions(decoder: TransformerDecoder) -> int:
    """Tokens of an output that the position table has vectors for."""
    encoding = decoder.input_layer.position_encoding
    limit = encoding.positions.limit if isinstance(encoding, Add) else None
    return MAX_POSITIONS if limit is None else limit


def _position_table(decoder: TransformerDecoder) -> Tensor | None:
    encoding = decoder.input_layer.position_encoding
    if encoding is None:
        return None
    assert isinstance(encoding, Add)
    positions = torch.arange(max_positions(decoder), device=decoder.project.weight.device)
    table: Tensor = encoding.positions(positions)
    return table.float().clone()


def tensors_of(nested: object) -> Iterator[Tensor]:
    """All tensors in a state, or in nested lists and tuples."""
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, list | tuple):
        for each in nested:
            yield from tensors_of(each)
    elif is_dataclass(nested):
        yield from tensors_of([getattr(nested, field.name) for field in fields(nested)])


def rounded(count: int, *, up: bool) -> int:
    """The nearest of 1, 2, 3, 4, 6, 8, 12, …, so that few sizes are recorded."""
    power = 1 << (count.bit_length() - 1)
    sizes = (power, power + power // 2, 2 * power)
    return (
        min(size for size in sizes if size >= count)
        if up
        else max(size for size in sizes if size <= count)
    )
