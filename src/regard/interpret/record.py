"""Recording a look: a forward pass under capture, its maps merged into words and reduced to what was asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Tensor
from regard.data.images import Pixels
from regard.interpret.editing import editing
from regard.interpret.edits import Edit
from regard.interpret.look import GeneratedText, Image, Look, LookOutput, LookSource, Text
from regard.interpret.maps import AttentionMap, ForwardPass, MapRecorder
from regard.interpret.series import Series
from regard.interpret.sites import AttentionSite, attention_sites
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.capture import Pick, capture_attention, observing_memory, picked
from regard.model.eval_mode import evaluating
from regard.model.inputs import input_stride
from regard.model.interfaces import Encoder
from regard.model.memory import Memory, SourceSpan
from regard.model.multi_source import source_encoders
from regard.model.seq2seq import Model

# What a source is called: tokens, an image or a series.
NamedSource = TokenSequence | Pixels | Series
DirectOutput = Callable[[Tensor, Tensor], LookOutput]


@dataclass(frozen=True)
class LookInput:
    """The names of an input's and an output's positions."""

    title: str
    sources: tuple[NamedSource, ...] = ()  # none for a language model
    output: TokenSequence | None = None  # None: nothing is generated
    read: TokenSequence | None = None  # the decoder's inputs
    # The output of a model that generates nothing, from the ids of labels and their log-probabilities.
    direct_output: DirectOutput | None = None


@dataclass(frozen=True)
class MapSelection:
    """Which layers, rows and heads a look has, and in what form (arguments of `regard.look`)."""

    layers: Sequence[int] | None = None
    rows: Pick = None
    heads: Pick = None
    words: bool = False
    top: int | None = None

    def finish(
        self, tokens: AttentionMap, rows: TokenSequence | None, keys: TokenSequence | None
    ) -> AttentionMap:
        """Turn a map of tokens into the map that was asked for: of words, with chosen rows and heads, or a summary."""
        (n, m) = tokens.size
        result = tokens
        device = torch.device("cpu")
        if tokens.call is not None:
            device = tokens.call.lse.device
        if self.words and rows is not None and len(rows.tokens) == n:
            result = replace(result, row_words=rows.groups(device), size=(len(rows.words), m))
        if keys is not None and len(keys.tokens) == m:
            result = replace(result, punctuation=keys.punctuation(self.words))
            if self.words:
                size = (result.size[0], len(keys.words))
                result = replace(result, key_words=keys.groups(device), size=size)
        if self.rows is not None:
            default_rows = picked("rows", self.rows, result.size[0], device, strict=False)
            result = replace(result, default_rows=default_rows)
        if self.heads is not None:
            default_heads = picked("heads", self.heads, result.heads, device, strict=False)
            result = replace(result, default_heads=default_heads)
        if self.top is None:
            return result
        return replace(result, row_summaries=result.summary(self.top), call=None)

    def check(self, maps: Sequence[AttentionMap]) -> None:
        """Refuse rows or heads that no map has."""
        rows = [(each.size[0], each.shown_rows) for each in maps]
        heads = [(each.heads, each.shown_heads) for each in maps]
        for name, pick, known in (("rows", self.rows, rows), ("heads", self.heads, heads)):
            if pick is not None and not any(shown for _, shown in known):
                most = max((size for size, _ in known), default=0)
                # This raises if an index is out of range.
                picked(name, pick, most, torch.device("cpu"))
                if most:
                    wanted = f"at least one of {most}"
                    raise InvalidArgument(
                        name, wanted=wanted, got="none", remedy="They count from 0."
                    )


def record_look(
    forward: ForwardPass, given: LookInput, selection: MapSelection, edits: Sequence[Edit] = ()
) -> Look:
    """Run the forward pass once, with edits of its attention, and return its look."""
    look, _ = record(forward, given, selection, edits)
    return look


def record(
    forward: ForwardPass,
    given: LookInput,
    selection: MapSelection,
    edits: Sequence[Edit] = (),
    encoded: Look | None = None,
) -> tuple[Look, Tensor]:
    """Run the forward pass once. Return its look and its logits.

    encoded   a look at the same sources, with the same selection and the same edits of the encoder, if any. The encoder
              then does not run again: its memory and maps are taken from that look
    """
    sources = _named_sources(forward.model, given)
    memories = list[Memory]()
    recorder = _recorder(forward, given, selection, sources, memories)
    running = forward
    memory = None
    if encoded is not None and encoded.memory is not None:
        memory = encoded.memory
        running = replace(forward, source=memory)
        memories.append(memory)
        recorder.maps += [each for each in encoded.maps if each.part == "encoder"]
    with observing_memory(memories.append), editing(forward.model, edits, memory) as editor:
        logits = recorder.record(running)
    if editor is not None:
        editor.check_applied()
    selection.check(recorder.maps)
    memory = memories[-1] if memories else None
    output, labels = _output(forward, given, logits, selection.words)
    if labels is not None and selection.layers is None:
        names = given.output
        source = given.sources[0] if given.sources else None
        keys = source if isinstance(source, TokenSequence) else None
        of_output = forward.output_maps(logits, labels)
        recorder.maps += [selection.finish(each, names, keys) for each in of_output]
    look = Look(
        title=given.title,
        sources=_read_sources(sources, memory, selection.words),
        output=output,
        maps=tuple(recorder.maps),
        forward=replace(forward, labels=labels),
        edits=tuple(edits),
        memory=memory,
    )
    return look, logits


def record_encoder(
    forward: ForwardPass, given: LookInput, selection: MapSelection, edits: Sequence[Edit] = ()
) -> Look:
    """Run the encoder alone. Return a look at the sources without an output, which `record` takes as `encoded`."""
    model = forward.model
    sources = _named_sources(model, given)
    recorder = _recorder(forward, given, selection, sources, [])
    with (
        torch.no_grad(),
        evaluating(model),
        editing(model, edits) as editor,
        capture_attention(recorder),
    ):
        memory = model.encode(forward.source)
        recorder.close()
    if editor is not None:
        editor.check_applied("encoder")
    read = _read_sources(sources, memory, selection.words)
    return Look(given.title, read, None, tuple(recorder.maps), forward, tuple(edits), memory)


def _named_sources(model: Model, given: LookInput) -> list[NamedSource]:
    """The sources as an encoder reads them, behind its learned states."""
    encoders = source_encoders(model.encoder)
    return [_behind_states(*each) for each in zip(encoders, given.sources, strict=True)]


def _behind_states(encoder: Encoder, source: NamedSource) -> NamedSource:
    if isinstance(source, TokenSequence):
        return source.after(encoder.cls_tokens)
    if isinstance(source, Series):
        return source.read_by(input_stride(encoder), encoder.cls_tokens)
    return source


def _recorder(
    forward: ForwardPass,
    given: LookInput,
    selection: MapSelection,
    sources: Sequence[NamedSource],
    memories: Sequence[Memory],
) -> MapRecorder:
    """A recorder of the selected maps.

    memories   the memories of the encoder, as they are computed. With several sources, a map of attention to the last
               memory is divided into one map for each source
    """
    layers = _checked_layers(forward.model, selection.layers)

    def finish(recorded: AttentionMap) -> list[AttentionMap]:
        of_memory = recorded.key_side == "source" and recorded.part != "encoder"
        if of_memory and memories and memories[-1].spans:
            lengths = [int(span.lengths) for span in memories[-1].spans]
            return [named(each) for each in recorded.by_source(lengths)]
        return [named(recorded)]

    def named(recorded: AttentionMap) -> AttentionMap:
        # Self-attention of a decoder is over its inputs; its other attention is from its outputs.
        output = given.read if recorded.kind == "self" else given.output
        sides = {"output": output}
        if recorded.source < len(sources):
            source = sources[recorded.source]
            if isinstance(source, TokenSequence):
                sides["source"] = source
        rows = sides.get(recorded.query_side)
        keys = sides.get(recorded.key_side)
        return selection.finish(recorded, rows, keys)

    def select(site: AttentionSite) -> bool:
        return layers is None or site.layer in layers

    return MapRecorder(forward.model, select, finish, forward.sequence)


def map_names(model: Model, layers: Sequence[int] | None = None) -> list[str]:
    """Names of the attention maps that a look would have for this model, without running it."""
    chosen = _checked_layers(model, layers)
    sources = len(source_encoders(model.encoder))
    names: list[str] = []
    for site in attention_sites(model).values():
        if chosen is not None and site.layer not in chosen:
            continue
        # Attention to several sources is divided into one map for each, as by `AttentionMap.by_source`.
        if sources > 1 and site.key_side == "source" and site.part != "encoder":
            names += [f"{site.name} source {i + 1}" for i in range(sources)]
        else:
            names.append(site.name)
    return names


def _read_sources(
    sources: Sequence[NamedSource], memory: Memory | None, words: bool
) -> tuple[LookSource, ...]:
    spans: Sequence[Memory | SourceSpan] = ()
    if memory is not None:
        spans = memory.spans or [memory]
    return tuple(_read(source, span, words) for source, span in zip(sources, spans, strict=True))


def _read(source: NamedSource, span: Memory | SourceSpan, words: bool) -> LookSource:
    if isinstance(source, TokenSequence):
        return Text(source.names(words))
    if isinstance(source, Series):
        return source
    assert span.grid is not None
    return Image(source, span.grid, span.cls_tokens)


def _checked_layers(model: torch.nn.Module, layers: Sequence[int] | None) -> set[int] | None:
    if layers is None:
        return None
    known = sorted({site.layer for site in attention_sites(model).values()})
    wanted: list[int] = [layers] if isinstance(layers, int) else list(layers)
    if not wanted or not set(wanted) <= set(known):
        some = "none: this model has no attention"
        if known:
            some = f"some of {', '.join(map(str, known))}"
        raise InvalidArgument(
            "layers", wanted=some, got=repr(layers), remedy="Layers count from 1."
        )
    return set(wanted)


def _output(
    forward: ForwardPass, given: LookInput, logits: Tensor, words: bool
) -> tuple[LookOutput | None, Tensor | None]:
    """The output with its log-probabilities, and its token or label ids."""
    labels = forward.labels
    if given.direct_output is not None:
        labels = forward.chosen(logits)
        return given.direct_output(labels, forward.log_probabilities(logits, labels)), labels
    if given.output is None or given.read is None or labels is None:
        return None, None
    scores = forward.log_probabilities(logits, labels).cpu()  # (T,)
    if words:
        scores = given.output.groups().sum(scores, 0)  # (words,)
    generated = GeneratedText(
        text=given.output.text,
        tokens=given.output.names(words),
        read=given.read.names(words),
        scores=tuple(scores.tolist()),
    )
    return generated, labels
