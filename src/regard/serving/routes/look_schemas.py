"""The JSON of `/look`, as typed structures, and its binary form."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from safetensors.numpy import save

from regard.serving.http.schemas import DecodeOptions, Part, SourceFile, Vectors
from regard.serving.scheduler.attention_ranges import InspectedAttention, InspectedMap


class LookRequest(DecodeOptions, kw_only=True, forbid_unknown_fields=True):
    """Exact attention of one input: of all maps, layers, heads, rows and columns, or of those chosen.

    `output` is a text, a label or token ids; by default the model's own. Decode options are those of its search.
    `channel` is the name or the number, from 1, of the channel whose attention is shown, of a model that reads each
    channel apart; by default the first.
    """

    # A list has the sources of a model that reads several, or the vectors of one.
    input: str | SourceFile | list[Part | Vectors]
    model: str | None = None
    output: str | list[int] | None = None
    prefix: str = ""
    maps: list[str] | None = None
    layers: list[int] | None = None
    heads: list[int] | None = None
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None
    words: bool = False
    truncate: bool = False
    edits: list[dict[str, Any]] = msgspec.field(default_factory=list)
    summaries: bool = False
    channel: str | int | None = None
    timeout_ms: int | None = None


class TextSource(Struct, tag_field="kind", tag="text"):
    tokens: list[str]


class ImageSource(Struct, tag_field="kind", tag="image"):
    """An image as the model read it, and the rows and columns of its regions; `units` learned states before them."""

    width: int
    height: int
    grid: tuple[int, int]
    units: int
    data: str


class SeriesSource(Struct, tag_field="kind", tag="series"):
    """Vectors as the model read them: of each channel the least and the largest number in spans of time, as 16 bits.

    `tokens` are the times of the encoder's positions, each of `stride` vectors, after `units` learned states; `skipped`
    vectors before them were sent and not read. Where each of the first `separate` channels has an attention of its
    own, `channel` is the number, from 1, of the one that is shown. `data`
    has little-endian uint16 from `least` (0) to `most` (65534), 65535 where one is missing, (2, channels, spans); of a
    `picture`, (1, rows, spans).
    """

    tokens: list[str]
    units: int
    stride: int
    length: int
    channels: list[str]
    skipped: int
    separate: int
    channel: int | None
    picture: bool
    least: list[float]
    most: list[float]
    shape: tuple[int, int, int]
    data: str


class LookOutput(Struct, omit_defaults=True):
    """A sequence, with the log-probability of each token; a label or several, each with its own; or numbers.

    `read` has the inputs of the decoder: the rows and keys of its self-attention.
    """

    text: str | None = None
    tokens: list[str] | None = None
    scores: list[float | None] | None = None
    read: list[str] | None = None
    label: str | None = None
    score: float | None = None
    words: list[str] | None = None
    labels: list[str] | None = None
    numbers: list[float | None] | None = None
    vectors: list[list[float | None]] | None = None


class LookMap(Struct):
    """Weights of one attention module, (heads, rows, columns); null in a binary answer, whose tensors they are.

    `size` is that of the whole map; `rows` and `columns` are the first, and the one after the last.
    """

    name: str
    kind: str
    part: str
    layer: int
    source: int
    size: tuple[int, int]
    heads: tuple[int, ...]
    rows: tuple[int, int]
    columns: tuple[int, int]
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    query_side: str
    key_side: str
    causal: bool
    weights: list[list[list[float]]] | None
    summaries: Sequence[dict[str, float | None]] | None

    @staticmethod
    def of(seen: InspectedMap, *, weights: bool) -> "LookMap":
        named = {
            name: getattr(seen, name) for name in LookMap.__struct_fields__ if name != "weights"
        }
        return LookMap(**named, weights=seen.weights.tolist() if weights else None)


class LookAnswer(Struct):
    id: str
    model: str
    version: str
    sources: list[TextSource | ImageSource | SeriesSource]
    output: LookOutput | None
    maps: list[LookMap]

    @staticmethod
    def of(head: tuple[str, str, str], seen: InspectedAttention, *, weights: bool) -> "LookAnswer":
        """`head` is the id of the request, the model and its version."""
        sources = msgspec.convert(seen.sources, list[TextSource | ImageSource | SeriesSource])
        output = msgspec.convert(seen.output, LookOutput | None)
        return LookAnswer(
            *head, sources, output, [LookMap.of(each, weights=weights) for each in seen.maps]
        )


def as_safetensors(answer: LookAnswer, seen: InspectedAttention) -> bytes:
    """A tensor of float32 for each map, by name; the rest of the answer as JSON, in the metadata `look`."""
    tensors = {each.name: each.weights for each in seen.maps}
    return save(tensors, {"look": msgspec.json.encode(answer).decode()})
