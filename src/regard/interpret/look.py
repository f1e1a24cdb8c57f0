"""A look at one input: what the model read, what it generated, and a map of every attention module."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.data.images import Pixels, webp
from regard.evaluation.output_difference import TokenDifference, token_differences
from regard.interpret.attributions import attributions
from regard.interpret.edits import Edit
from regard.interpret.maps import AttentionMap, ForwardPass
from regard.interpret.rollout import rollout
from regard.interpret.series import Series
from regard.interpret.summaries import Head, finite, sorted_by
from regard.interpret.tokens_to_words import CLS_TOKEN
from regard.model.capture import Pick
from regard.model.memory import Memory

VERSION = 1  # of the JSON format
LIMIT = 2_000_000  # weights of a map that is written whole

# "page" renders `Look.as_dict` as an HTML page, "frame" as an element of a notebook. `regard.views.html`, a package
# above this one, enters both, and `regard.look` imports it.
HTML_RENDERERS: dict[str, Callable[[dict[str, Any]], str]] = {}


@dataclass(frozen=True)
class Text:
    """The tokens of a source, or the words they make up. A learned state before them counts as one of them."""

    tokens: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "text", "tokens": self.tokens}


@dataclass(frozen=True)
class Image:
    """A source image as the model read it, and the rows and columns of its regions."""

    pixels: Pixels  # (height, width, 3)
    grid: tuple[int, int]
    units: int  # learned states before the regions

    @property
    def tokens(self) -> tuple[str, ...]:
        """Names of the regions, row by row."""
        rows, columns = self.grid
        learned = (CLS_TOKEN,) * self.units
        regions = [f"{y + 1},{x + 1}" for y in range(rows) for x in range(columns)]
        return (*learned, *regions)

    def as_dict(self) -> dict[str, Any]:
        height, width, _ = self.pixels.shape
        encoded = base64.b64encode(webp(self.pixels)).decode()
        return {
            "kind": "image",
            "width": width,
            "height": height,
            "grid": list(self.grid),
            "units": self.units,
            "data": f"data:image/webp;base64,{encoded}",
        }


@dataclass(frozen=True)
class GeneratedText:
    """An output sequence, with its end token if it ended."""

    text: str
    tokens: tuple[str, ...]
    read: tuple[str, ...]  # the decoder's inputs: rows and keys of its self-attention
    scores: tuple[float, ...] | None  # log-probabilities; of a word, the sum over its tokens

    def as_dict(self) -> dict[str, Any]:
        scores = None
        if self.scores is not None:
            scores = [finite(score) for score in self.scores]
        return {"text": self.text, "tokens": self.tokens, "scores": scores, "read": self.read}


@dataclass(frozen=True)
class WordTags:
    """The tag of each word of the input, and its log-probability."""

    text: str
    tokens: tuple[str, ...]  # the tags
    words: tuple[str, ...]
    scores: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        scores = [finite(score) for score in self.scores]
        return {"text": self.text, "tokens": self.tokens, "scores": scores, "words": self.words}


@dataclass(frozen=True)
class Label:
    """A predicted label, and its log-probability."""

    label: str
    score: float

    @property
    def text(self) -> str:
        """The label."""
        return self.label

    @property
    def scores(self) -> tuple[float, ...]:
        """The log-probability, in the form of an output with a single token."""
        return (self.score,)

    def as_dict(self) -> dict[str, Any]:
        return {"label": self.label, "score": finite(self.score)}


@dataclass(frozen=True)
class Numbers:
    """Predicted numbers, in the units of the training data."""

    text: str
    numbers: tuple[float, ...]
    scores: None = None  # numbers have no probability

    @property
    def tokens(self) -> tuple[str, ...]:
        """The numbers as texts."""
        return tuple(self.text.split(" "))

    def as_dict(self) -> dict[str, Any]:
        numbers = [finite(number) for number in self.numbers]
        return {"text": self.text, "tokens": self.tokens, "scores": None, "numbers": numbers}


@dataclass(frozen=True)
class PredictedVectors:
    """A predicted sequence of vectors, in the units of the training data."""

    text: str
    vectors: tuple[tuple[float, ...], ...]
    scores: None = None  # vectors have no probability

    @property
    def tokens(self) -> tuple[str, ...]:
        """The vectors as texts."""
        return tuple(" ".join(f"{number:.4g}" for number in vector) for vector in self.vectors)

    @property
    def summary(self) -> str:
        """How many there are."""
        dimension = len(self.vectors[0]) if self.vectors else 0
        return f"{len(self.vectors)} vectors of {dimension} numbers"

    def as_dict(self) -> dict[str, Any]:
        vectors = [[finite(number) for number in vector] for vector in self.vectors]
        return {"text": self.text, "tokens": self.tokens, "scores": None, "vectors": vectors}


@dataclass(frozen=True)
class LabelSet:
    """Several labels, or none, each with its log-probability."""

    text: str
    tokens: tuple[str, ...]  # the labels
    scores: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        scores = [finite(score) for score in self.scores]
        return {"text": self.text, "tokens": self.tokens, "scores": scores, "labels": self.tokens}


LookSource = Text | Image | Series
LookOutput = GeneratedText | WordTags | Label | Numbers | PredictedVectors | LabelSet


@dataclass(frozen=True)
class Look:
    """What a model attended to while it read one input and generated or was given an output: `regard.look`.

    title       shown above drawings and pages
    sources     the tokens of each source, or the image; none for a language model
    output      the tokens of the output, the tags, the label or the numbers; None where only attention was captured
    maps        an `AttentionMap` for each attention module; `look["decoder 1 cross"]` is one of them
    forward     repeats the forward pass, for attributions; None: the calls were captured elsewhere
    edits       the edits under which the model ran
    memory      the memory of the encoder; None without an encoder

    Layers count from 1, as in the names of maps; rows, keys and heads count from 0, as in tensors.
    """

    title: str
    sources: tuple[LookSource, ...]
    output: LookOutput | None
    maps: tuple[AttentionMap, ...]
    forward: ForwardPass | None = field(repr=False)
    edits: tuple[Edit, ...] = ()
    memory: Memory | None = field(default=None, repr=False)

    @property
    def source(self) -> LookSource | None:
        """The source; None for a language model and for several sources."""
        return self.sources[0] if len(self.sources) == 1 else None

    def source_of(self, of: AttentionMap) -> LookSource | None:
        """The source whose positions are the keys of a map; None where the keys are positions of the output."""
        if of.key_side == "source" and of.source < len(self.sources):
            return self.sources[of.source]
        return None

    def __getitem__(self, name: str) -> AttentionMap:
        """The map of this name: "encoder 2", "decoder 1 cross", "pool".

        With several sources: "source 2 encoder 1", and "decoder 1 cross source 2", which has the keys of one source.
        """
        check_map_name(name, [each.name for each in self.maps])
        return next(each for each in self.maps if each.name == name)

    def names(self, of: AttentionMap) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the rows and of the keys of a map."""
        rows = self._side(of, of.query_side, of.size[0])
        keys = self._side(of, of.key_side, of.size[1])
        return rows, keys

    def _side(self, of: AttentionMap, side: str, count: int) -> tuple[str, ...]:
        names: tuple[str, ...] = ()
        if side == "source" and of.source < len(self.sources):
            names = self.sources[of.source].tokens
        elif side == "output" and isinstance(self.output, GeneratedText):
            names = self.output.read if of.kind == "self" else self.output.tokens
        if len(names) == count:
            return names
        return tuple(map(str, range(1, count + 1)))

    def heads(self, sort: str | None = None) -> list[tuple[AttentionMap, Head]]:
        """Measures of every head of every map, as pairs of a map and a `Head`.

        sort   the name of a measure, to sort by it in descending order
        """
        lines = []
        for each in self.maps:
            heads = each.summary(0).heads()
            lines += [(each, heads[head]) for head in each.shown_heads]
        return sorted_by(lines, sort)

    def rollout(
        self, rows: Pick = None, part: str = "encoder", source: int = 0
    ) -> Float[Tensor, "R M"]:
        """Attention rollout through all self-attention layers of a part, residual paths included.

        source   of several encoders, which one, from 0

        See https://arxiv.org/abs/2005.00928. Memory grows with the number of rows asked for.
        """
        return rollout(self.maps, rows, part, source)

    def attributions(self, of: int | None = None) -> dict[str, Float[Tensor, "H N M"]]:
        """Gradient × weight by map: the first-order share of each weight in the log-probability of the output.

        of   only of this token of the output, from 0

        The model runs once more, with every weight in memory.
        """
        if self.forward is None:
            wanted = "a look of regard.look, which can run its model again"
            remedy = "Look at a model."
            raise InvalidArgument(
                "attributions", wanted=wanted, got="captured calls", remedy=remedy
            )
        if self.edits:
            wanted = "a look without edits"
            remedy = "Look without them."
            raise InvalidArgument(
                "attributions", wanted=wanted, got=f"{len(self.edits)} edits", remedy=remedy
            )
        of_tokens = attributions(self.forward, of)
        found = {}
        for each in self.maps:
            if not each.is_of_module:
                continue
            # The map of one source has a range of the keys of its module.
            name, first, last = each.part_of or (each.name, 0, None)
            found[each.name] = each.merged(of_tokens[name][..., first:last])
        return found

    def difference(self, other: "Look") -> list[TokenDifference]:
        """The output of this look aligned with that of the `other`, token by token.

        other   a look at the same input with other edits, for example
        """
        (tokens, scores) = _scored(self.output)
        (others, other_scores) = _scored(other.output)
        return token_differences(tokens, others, scores, other_scores)

    def as_dict(self, *, limit: int = LIMIT) -> dict[str, Any]:
        """What `to_json` writes, as plain values.

        limit   weights of a map at most; of a larger map the 16 largest of each row are written
        """
        output = None
        if self.output is not None:
            output = self.output.as_dict()
        table: dict[str, Any] = {
            "version": VERSION,
            "title": self.title,
            "sources": [source.as_dict() for source in self.sources],
            "output": output,
            "maps": [each.as_dict(limit) for each in self.maps],
        }
        if self.edits:
            table["edits"] = [each.as_dict() for each in self.edits]
        return table

    def to_json(self, *, limit: int = LIMIT) -> str:
        """As JSON, for pages and other programs.

            {"version": 1, "title": str,
             "sources": [{"kind": "text", "tokens": [str]}
                       | {"kind": "image", "width": int, "height": int, "grid": [rows, columns], "units": int,
                          "data": "data:image/webp;base64,…"}
                       | {"kind": "series", "tokens": [str], "units": int, "stride": int, "length": int,
                          "channels": [str], "skipped": int, "separate": int, "channel": int | null,
                          "picture": bool, "least": [float], "most": [float],
                          "shape": [int, int, int], "data": base64}],
             "output": {"text": str, "tokens": [str], "scores": [float] | null, "read": [str]}
                     | {"text": str, "tokens": [str], "scores": [float], "words": [str]}
                     | {"label": str, "score": float}
                     | {"text": str, "tokens": [str], "scores": null, "numbers": [float]}
                     | {"text": str, "tokens": [str], "scores": null, "vectors": [[float]]}
                     | {"text": str, "tokens": [str], "scores": [float], "labels": [str]}
                     | null,
             "maps": [{"name": str, "kind": "self" | "cross" | "pool" | "grid",
                       "part": "encoder" | "decoder" | "pool", "layer": int, "source": int, "heads": int,
                       "query_side": "source" | "output" | "pool", "key_side": "source" | "output" | "pool",
                       "causal": bool, "rows": [int] | null,
                       "weights": {"shape": [heads, rows, keys], "data": base64} | null,
                       "top": {"k": int, "shape": [heads, rows, k], "keys": base64, "weights": base64} | null,
                       "summary": [{"head": int, "entropy": float, "evenness": float, "distance": float,
                                    "confidence": float, "first": float, "last": float, "own": float,
                                    "previous": float, "punctuation": float}]}],
             "edits": [as regard.look was given them; no such key without edits]}

        Weights are little-endian uint16, 65535 times the weight, rounded; keys are little-endian uint32. A map of more
        than `limit` weights has the largest weights of each row, `top`, instead of `weights`. `rows` lists the rows
        that were chosen, if not all. Scores are log-probabilities. Rows and keys of a decoder's self-attention are
        those of `read`, its input: `tokens` has the token predicted at the same position. Of a model that tags,
        `tokens` are the tags of `words`. A number that is not finite is null.

        Of a series, `tokens` are the times of the encoder's positions, each of `stride` vectors; `skipped` vectors
        before them were given and not read. Where each of the first `separate` channels has an attention of its own,
        `channel` is the one that is shown, from 1. `data` has numbers as
        little-endian uint16 from `least` (0) to `most` (65534), and 65535 where one is missing: of each channel the
        least and the largest in spans of time, (2, channels, spans); of a `picture`, means, (1, rows, spans).
        """
        return json.dumps(self.as_dict(limit=limit), ensure_ascii=False, allow_nan=False)

    def to_html(self, *, limit: int = LIMIT) -> str:
        """As one self-contained page: hover over words, switch layers and heads, sort, pin, zoom, save.

        limit   weights of a map at most; of a larger map the page has the 16 largest of each row
        """
        return HTML_RENDERERS["page"](self.as_dict(limit=limit))

    def _repr_html_(self) -> str:
        return HTML_RENDERERS["frame"](self.as_dict())


def check_map_name(name: str, names: Sequence[str]) -> None:
    """Refuse a name that is not one of these maps'."""
    if name not in names:
        remedy = "This look has none."
        if names:
            remedy = nearest(name, names, listed=True)
        raise InvalidArgument(
            "map", wanted=f"one of {', '.join(names)}", got=repr(name), remedy=remedy
        )


def _scored(output: LookOutput | None) -> tuple[Sequence[str], Sequence[float] | None]:
    """The tokens of an output, or its label, with their log-probabilities."""
    if isinstance(output, Label):
        return (output.label,), output.scores
    if output is None:
        return ((), None)
    return (output.tokens, output.scores)
