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
from regard.interpret.sites import attention_sites
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
        """A map of tokens as one of words, if wanted, with its default rows and heads; or its summary alone."""
        (n, m), result = tokens.size, tokens
        device = torch.device("cpu") if tokens.call is None else tokens.call.lse.device
        if self.words and rows is not None and len(rows.tokens) == n:
            result = replace(result, row_words=rows.groups(device), size=(len(rows.words), m))
        if keys is not None and len(keys.tokens) == m:
            result = replace(result, punctuation=keys.punctuation(self.words))
            if self.words:
                result = replace(
                    result, key_words=keys.groups(device), size=(result.size[0], len(keys.words))
                )
        if self.rows is not None:
            result = replace(
                result, default_rows=picked("rows", self.rows, result.size[0], device, strict=False)
            )
        if self.heads is not None:
            result = replace(
                result,
                default_heads=picked("heads", self.heads, result.heads, device, strict=False),
            )
        return (
            result
            if self.top is None
            else replace(result, row_summaries=result.summary(self.top), call=None)
        )

    def check(self, maps: Sequence[AttentionMap]) -> None:
        """Refuse rows or heads that no map has."""
        rows = [(each.size[0], each.shown_rows) for each in maps]
        heads = [(each.heads, each.shown_heads) for each in maps]
        for name, pick, known in (("rows", self.rows, rows), ("heads", self.heads, heads)):
            if pick is not None and not any(shown for _, shown in known):
                most = max((size for size, _ in known), default=0)
                picked(name, pick, most, torch.device("cpu"))  # raises if an index is out of range
                if most:
                    wanted = f"at least one of {most}"
                    raise InvalidArgument(
                        name, wanted=wanted, got="none", remedy="They count from 0."
                    )


def record_look(
    forward: ForwardPass, given: LookInput, selection: MapSelection, edits: Sequence[Edit] = ()
) -> Look:
    """Run the forward pass once, with edits of its attention, and make a look of it."""
    return record(forward, given, selection, edits)[0]


def record(
    forward: ForwardPass,
    given: LookInput,
    selection: MapSelection,
    edits: Sequence[Edit] = (),
    encoded: Look | None = None,
) -> tuple[Look, Tensor]:
    """A look, and the logits of its forward pass.

    encoded   a look at the same sources, with the same selection and the same edits of the encoder, if any: the encoder
              does not run again, and its memory and maps are those of that look
    """
    sources, memories = _named_sources(forward.model, given), list[Memory]()
    recorder = _recorder(forward.model, given, selection, sources, memories)
    running = forward
    memory = None if encoded is None else encoded.memory
    if encoded is not None and memory is not None:
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
    maps, forward = tuple(recorder.maps), replace(forward, labels=labels)
    read = _read_sources(sources, memory, selection.words)
    return Look(given.title, read, output, maps, forward, tuple(edits), memory), logits


def record_encoder(
    forward: ForwardPass, given: LookInput, selection: MapSelection, edits: Sequence[Edit] = ()
) -> Look:
    """Run the encoder alone: a look at the sources without an output, for `record` as `encoded`."""
    model = forward.model
    sources = _named_sources(model, given)
    recorder = _recorder(model, given, selection, sources, [])
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
    model: Model,
    given: LookInput,
    selection: MapSelection,
    sources: Sequence[NamedSource],
    memories: Sequence[Memory],
) -> MapRecorder:
    """Records what is selected.

    memories   of the encoder, as they are computed; with several sources, a map is divided by the last of them
    """
    layers = _checked_layers(model, selection.layers)

    def finish(recorded: AttentionMap) -> list[AttentionMap]:
        of_memory = recorded.key_side == "source" and recorded.part != "encoder"
        if of_memory and memories and memories[-1].spans:
            return [
                named(each)
                for each in recorded.by_source([int(span.lengths) for span in memories[-1].spans])
            ]
        return [named(recorded)]

    def named(recorded: AttentionMap) -> AttentionMap:
        output = given.read if recorded.kind == "self" else given.output
        source = sources[recorded.source] if recorded.source < len(sources) else None
        sides = {"source": source if isinstance(source, TokenSequence) else None, "output": output}
        return selection.finish(
            recorded, sides.get(recorded.query_side), sides.get(recorded.key_side)
        )

    return MapRecorder(model, lambda site: layers is None or site.layer in layers, finish)


def map_names(model: Model, layers: Sequence[int] | None = None) -> list[str]:
    """The names of the maps that a look at a model has, without one: those of `AttentionMap.by_source` where it has."""
    chosen, sources = _checked_layers(model, layers), len(source_encoders(model.encoder))
    names: list[str] = []
    for site in attention_sites(model).values():
        if chosen is None or site.layer in chosen:
            parts = sources > 1 and site.key_side == "source" and site.part != "encoder"
            names += (
                [f"{site.name} source {i + 1}" for i in range(sources)] if parts else [site.name]
            )
    return names


def _read_sources(
    sources: Sequence[NamedSource], memory: Memory | None, words: bool
) -> tuple[LookSource, ...]:
    spans: Sequence[Memory | SourceSpan] = () if memory is None else memory.spans or [memory]
    return tuple(_read(*each, words) for each in zip(sources, spans, strict=True))


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
    wanted = [layers] if isinstance(layers, int) else list(layers)
    if not wanted or not set(wanted) <= set(known):
        some = (
            f"some of {', '.join(map(str, known))}"
            if known
            else "none: this model has no attention"
        )
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
    scores = forward.log_probabilities(logits, labels).cpu()
    scores = given.output.groups().sum(scores, 0) if words else scores
    tokens, read = given.output.names(words), given.read.names(words)
    return GeneratedText(given.output.text, tokens, read, tuple(scores.tolist())), labels
