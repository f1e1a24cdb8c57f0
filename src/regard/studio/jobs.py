"""What the studio asks the scheduler: looks with edits, and beam searches as trees, one at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import torch

from regard.api.look import look
from regard.core.errors import InvalidArgument
from regard.data.fields.text import tokenizer_of
from regard.generation.choose.trace import BeamTrace
from regard.inference.predictor import Predictor
from regard.interpret.editing import editing
from regard.interpret.look import GeneratedText, Look, check_map_name
from regard.model.eval_mode import evaluating
from regard.serving.scheduler.input_limits import check_output
from regard.serving.scheduler.jobs import BatchedWork
from regard.studio.model_cache import ModelCache
from regard.studio.speculative_edits import is_small, keep_draft, verified_look


@dataclass(frozen=True)
class LiveLook(BatchedWork):
    """A look as `regard.look` makes it, as JSON: what is generated under the edits, and all weights.

    edits     as `regard.interpret.edits.read_edits` reads them
    output    a text or a label, or token ids; None: the model's own
    options   of [decode]
    words     merge tokens into words
    channel   whose attention is shown, of a model that reads each channel apart; None: the first
    maps      the names of the maps to write; None: all. The last look of a model is kept, and what was left out is
              written without computing it again
    most      one at a time: a forward pass under capture is of one input
    """

    most = 1
    edits: Sequence[Mapping[str, Any]] = ()
    output: str | tuple[int, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    words: bool = False
    maps: tuple[str, ...] | None = None
    channel: str | int | None = None

    @property
    def texts(self) -> Sequence[object]:
        return (*super().texts, self.output)

    @property
    def decode_options(self) -> Mapping[str, Any]:
        return self.options

    @property
    def few_threads(self) -> bool:
        return self.output is None

    def compute(self, predictor: Predictor, works: Sequence["LiveLook"]) -> Sequence[bytes]:
        return [work.written(work.look(predictor)) for work in works]

    def look(self, predictor: Predictor) -> Look:
        sources = [(x.shape, x.tobytes()) if isinstance(x, np.ndarray) else x for x in self.sources]
        asked = (sources, self.edits, self.output, self.options, self.words, self.channel)
        last_look = _last_looks.of(predictor)
        last, seen = last_look.value
        if seen is None or last != asked:
            check_output(predictor, "output", self.output)
            seen = self._computed(predictor)
            drawn_anew = self.options.get("sample") and "seed" not in self.options
            if is_small(seen) and not drawn_anew:
                last_look.value = asked, seen
        if not self.edits and not self.words:
            keep_draft(predictor, self.input, seen)
        return seen

    def _computed(self, predictor: Predictor) -> Look:
        if self.edits and self.output is None and not self.words:
            verified = verified_look(predictor, self.input, self.edits, self.options)
            if verified is not None:
                return verified
        return look(
            predictor,
            self.input,
            output=self.output,
            edits=self.edits,
            words=self.words,
            channel=self.channel,
            **self.options,
        )

    def written(self, seen: Look) -> bytes:
        """As `Look.to_json`, which takes longer."""
        if self.maps is not None:
            names = [each.name for each in seen.maps]
            for name in self.maps:
                check_map_name(name, names)
            seen = replace(seen, maps=tuple(each for each in seen.maps if each.name in self.maps))
        return msgspec.json.encode(seen.as_dict())


@dataclass
class _LastLook:
    """The last look at a model, after what was asked for. It is read and replaced as a whole, in any thread."""

    value: tuple[object, Look | None] = (None, None)


_last_looks = ModelCache(_LastLook)


@dataclass(frozen=True)
class LookPage(LiveLook):
    """The same as a page in one file."""

    def written(self, seen: Look) -> bytes:
        return seen.to_html().encode()


@dataclass(frozen=True)
class Alternatives(LiveLook):
    """The most likely tokens at a position of the output, after the tokens before it and under the edits, as JSON."""

    position: int = 0
    count: int = 8

    def compute(self, predictor: Predictor, works: Sequence["LiveLook"]) -> Sequence[bytes]:
        return [
            msgspec.json.encode(work.alternatives(predictor))
            for work in works
            if isinstance(work, Alternatives)
        ]

    def alternatives(self, predictor: Predictor) -> dict[str, Any]:
        seen = self.look(predictor)
        target = tokenizer_of(predictor.target)
        if not isinstance(seen.output, GeneratedText) or target is None:
            wanted, remedy = "a model that generates", "Choose another."
            raise InvalidArgument("model", wanted=wanted, got="one that does not", remedy=remedy)
        if not 0 <= self.position < len(seen.output.tokens):
            wanted = f"one of the output's {len(seen.output.tokens)} tokens, from 0"
            raise InvalidArgument(
                "position", wanted=wanted, got=str(self.position), remedy="Choose one of them."
            )
        with (
            evaluating(predictor.model),
            editing(predictor.model, seen.edits),
            torch.inference_mode(),
        ):
            assert seen.forward is not None
            logits = seen.forward()
        best = logits[self.position].float().log_softmax(-1).topk(min(self.count, logits.shape[-1]))
        ids = best.indices.tolist()
        found = zip(target.pieces(ids), ids, best.values.tolist(), strict=True)
        keys = ("token", "id", "log_probability")
        return {"alternatives": [dict(zip(keys, each, strict=True)) for each in found]}


@dataclass(frozen=True)
class BeamTree(BatchedWork):
    """A beam search as a tree, as JSON: every candidate of each step, and the outputs.

    edits       as `regard.interpret.edits.read_edits` reads them
    beam_size   also the number of outputs
    most        one at a time: edits are of one search
    """

    most = 1
    edits: Sequence[Mapping[str, Any]] = ()
    beam_size: int = 4

    @property
    def decode_options(self) -> Mapping[str, Any]:
        return {"beam_size": self.beam_size, "num_hypotheses": self.beam_size}

    @property
    def few_threads(self) -> bool:
        return True

    def compute(self, predictor: Predictor, works: Sequence["BeamTree"]) -> Sequence[bytes]:
        return [msgspec.json.encode(work.tree(predictor)) for work in works]

    def tree(self, predictor: Predictor) -> dict[str, Any]:
        target = tokenizer_of(predictor.target)
        if target is None:
            wanted, remedy = "a model that generates", "Choose another."
            raise InvalidArgument(
                "model", wanted=wanted, got=f"one that gives {predictor.task.gives}", remedy=remedy
            )
        trace, size = BeamTrace(), self.beam_size
        (outputs,) = predictor.outputs(
            [self.input], edits=self.edits or None, trace=trace, beam_size=size, num_hypotheses=size
        )
        best = set().union(*(trace.path(end) for end in trace.ended()[: len(outputs)]))
        names = target.pieces([node.token for node in trace.nodes])
        nodes = [
            {**asdict(node), "id": node.token, "token": name, "alive": i in best}
            for i, (node, name) in enumerate(zip(trace.nodes, names, strict=True))
        ]
        found = [
            {"text": each.text, "score": each.score, "log_probability": each.log_probability}
            for each in outputs
        ]
        ends = trace.ended()[: len(outputs)]
        return {
            "nodes": nodes,
            "outputs": [{**each, "node": end} for each, end in zip(found, ends, strict=True)],
        }
