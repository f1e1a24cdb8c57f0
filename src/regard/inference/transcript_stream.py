"""Transcripts of audio of any length, by a model with a CTC head, in windows that overlap.

A window is encoded as if it were a recording. Of the overlap with the window before it, one half is
taken from each, so that every position has some audio on both sides. What is taken is one sequence
of positions, of which the most likely path becomes text, as that of a recording that is read at
once. Memory depends on the window alone. The text is that of the whole recording wherever the
encoder's states depend on less audio than half of the overlap.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.data.fields.base import Field
from regard.data.fields.text import require_tokenizer
from regard.data.log_mel import LogMelConfig, Recording
from regard.data.resampling import source_begin, source_end
from regard.data.wav import Samples
from regard.inference.predictor import Predictor
from regard.model.ctc_head import CtcHead
from regard.model.eval_mode import evaluating
from regard.model.interfaces import SequenceEncoder
from regard.model.seq2seq import EncoderWithHead
from regard.tasks.transcribe_pipeline import never_output

WINDOW = 20.0  # seconds
OVERLAP = 4.0


class TimedToken(NamedTuple):
    """A token of a transcript, and the second at which it begins."""

    token: int
    seconds: float


class SampleBuffer:
    """Audio that arrives in blocks; only what is still to be read is kept."""

    def __init__(self, blocks: Iterable[Samples]) -> None:
        self.blocks = iter(blocks)
        self.kept = np.zeros(0, np.float32)
        self.first = 0  # the number of the first sample that is kept
        self.ended = False

    @property
    def length(self) -> int:
        """Samples so far."""
        return self.first + len(self.kept)

    def wait_for(self, length: int) -> None:
        """Take blocks until there are so many samples, or no more."""
        parts = [self.kept]
        count = self.length
        while count < length and not self.ended:
            block = next(self.blocks, None)
            if block is None:
                self.ended = True
            else:
                parts.append(np.asarray(block, np.float32))
                count += len(block)
        self.kept = np.concatenate(parts)

    def read(self, first: int, last: int) -> Samples:
        assert first >= self.first, (first, self.first)
        return self.kept[first - self.first : last - self.first]

    def forget(self, before: int) -> None:
        """Samples before this number are not read again."""
        count = min(max(0, before - self.first), len(self.kept))
        self.kept = self.kept[count:].copy()
        self.first += count


@dataclass(frozen=True)
class Windows:
    """How long audio is cut, in vectors;
    all of these are multiples of the stride of the encoder's input.

    length   of a window
    margin   at either side of a window where another one follows or precedes, whose positions are
             not taken
    stride   vectors from one position of the encoder to the next
    """

    length: int
    margin: int
    stride: int

    @staticmethod
    def of(features: LogMelConfig, stride: int, window: float, overlap: float) -> "Windows":
        """Of seconds."""
        hop = features.hop_samples / features.sample_rate
        if not 0 <= overlap < window <= 3600:
            raise InvalidArgument(
                "window",
                wanted="at most 3600 seconds, and more than overlap",
                got=f"window = {window:g} with overlap = {overlap:g}",
                remedy=f"Use {WINDOW:g} and {OVERLAP:g}.",
            )
        margin = round(overlap / 2 / hop / stride) * stride
        length = max(round(window / hop / stride) * stride, 2 * margin + stride)
        return Windows(length, margin, stride)


class TranscriptStream:
    """The tokens of audio that is read block by block.

    predictor   a model with a CTC head whose source has [data.source.features]
    rate        of the audio
    window, overlap   in seconds
    """

    def __init__(
        self,
        predictor: Predictor,
        rate: int,
        *,
        window: float = WINDOW,
        overlap: float = OVERLAP,
    ) -> None:
        self.predictor = predictor
        self.rate = rate
        self.field, self.features = speech_source(predictor)
        model = predictor.model
        assert isinstance(model, EncoderWithHead)
        assert isinstance(model.head, CtcHead)
        assert isinstance(model.encoder, SequenceEncoder)
        self.model = model
        self.blank = model.head.blank
        self.excluded = never_output(require_tokenizer(predictor.target, "model"))
        stride = model.encoder.input_module.shortens
        self.windows = Windows.of(self.features, stride, window, overlap)

    def tokens(self, blocks: Iterable[Samples]) -> Iterator[TimedToken]:
        """The tokens of audio, as soon as the window that they are in has been read."""
        buffer = SampleBuffer(blocks)
        windows = self.windows
        hop_seconds = self.features.hop_samples / self.features.sample_rate
        before = self.blank
        first = 0
        while True:
            needed = self._samples_before(first + windows.length)
            buffer.wait_for(needed)
            recording = Recording(buffer.read, buffer.length, self.rate)
            frames = recording.frames(self.features)
            is_last = buffer.ended and first + windows.length >= frames
            last = frames if is_last else first + windows.length
            if last <= first or not buffer.length:
                return
            path = self._path(recording, first, last)
            # Of the overlap with its neighbors, a window gives the half that is nearer to it.
            begin = 0
            if first:
                begin = windows.margin // windows.stride
            end = len(path)
            if not is_last:
                end = (windows.length - windows.margin) // windows.stride
            for place in range(begin, end):
                token = path[place]
                if token not in (before, self.blank):
                    yield TimedToken(token, (first + place * windows.stride) * hop_seconds)
                before = token
            if is_last:
                return
            first += windows.length - 2 * windows.margin
            buffer.forget(self._first_sample(first))

    def _path(self, recording: Recording, first: int, last: int) -> list[int]:
        """The most likely token, or the blank, at each position of a window."""
        vectors = recording.log_mel(self.features, first, last)
        field = self.field
        vocabulary = self.predictor.source
        batch = field.collate(vocabulary, field.encode(vocabulary, [vectors]))
        device = next(self.model.parameters()).device
        with torch.inference_mode(), evaluating(self.model):
            logits: Float[Tensor, "S V1"] = self.model(batch.to(device))[0]
            logits[:, self.excluded] = -torch.inf
            path: list[int] = logits.argmax(-1).tolist()
        return path

    def _samples_before(self, frame: int) -> int:
        """How many samples of the audio the vectors before this one depend on."""
        features = self.features
        last = max(0, frame) * features.hop_samples + features.fft_size
        return source_end(self.rate, features.sample_rate, last)

    def _first_sample(self, frame: int) -> int:
        """The first sample of the audio on which this vector depends."""
        features = self.features
        first = frame * features.hop_samples - features.fft_size
        return source_begin(self.rate, features.sample_rate, first)


def speech_source(predictor: Predictor) -> tuple[Field, LogMelConfig]:
    """The source of a model that reads recordings, and their features;
    refused where it transcribes none.
    """
    fields = predictor.recipe.data.source_fields
    features = None
    if len(fields) == 1:
        features = getattr(fields[0], "features", None)
    head = getattr(predictor.model, "head", None)
    if features is None or not isinstance(head, CtcHead):
        raise InvalidArgument(
            "model",
            wanted=(
                "one with [model.head] kind = 'ctc' that reads recordings ([data.source.features])"
            ),
            got=f"one that gives {predictor.task.gives}",
            remedy=(
                "`regard predict` takes recordings of any model, up to decode.max_source_length."
            ),
        )
    if not predictor.model.inspectable:
        raise InvalidArgument(
            "model", wanted="one model", got="an ensemble", remedy="Use one of them."
        )
    return fields[0], features
