"""`regard.transcribe`: the text of recordings of any length, in windows that overlap."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regard.core.errors import InvalidArgument, InvalidData
from regard.data.audio_stream import (
    BLOCK_SECONDS,
    AudioStream,
    ReadableAudio,
    raw_format,
    wav_stream,
)
from regard.data.fields.text import require_tokenizer
from regard.data.text import open_regular, readable
from regard.data.wav import Samples, WavFile, WavFormat, open_wav
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.inference.transcript_stream import (
    OVERLAP,
    WINDOW,
    TimedToken,
    TranscriptStream,
    speech_source,
)

STDIN_NAMES = (0, "<stdin>")  # of the open file of standard input


@dataclass(frozen=True)
class TranscribedWord:
    """A part of a transcript between spaces, and the second at which it begins."""

    text: str
    seconds: float


def transcribe(
    model: str | Path | Predictor,
    recording: str | Path | bytes | ReadableAudio,
    *,
    window: float = WINDOW,
    overlap: float = OVERLAP,
    raw: str | None = None,
    rate: int | None = None,
    channels: int = 1,
) -> Iterator[TranscribedWord]:
    """The words of a recording (WAV) of any length, as soon as they are known, by a model with a CTC head.

    model       a run, a checkpoint, or a loaded model
    recording   the path of a WAV file, its bytes, or an open binary file, such as `sys.stdin.buffer`, which is read to
                its end
    window      seconds of audio that are encoded at once; memory depends on it, and not on the length of the recording
    overlap     seconds that a window shares with the next one; each gives one half of them
    raw         the format of samples without a header: "u8", "s16le", "s24le", "s32le", "f32le" or "f64le"
    rate        samples of a channel per second, and
    channels    how many channels follow one another in each sample: of raw audio, which does not say so itself

    The text is that of `regard predict` without a beam, wherever the encoder's states depend on
    less audio than half of the overlap.
    """
    predictor = load(model)
    # Refused before the recording is opened.
    speech_source(predictor)
    of_raw = None
    if raw is not None:
        of_raw = raw_format(raw, rate, channels)
    elif rate is not None or channels != 1:
        raise InvalidArgument(
            "raw",
            wanted="the format of samples beside rate or channels, which a WAV file says itself",
            got="none",
            remedy="Leave them out, or name the format of raw audio, such as 's16le'.",
        )
    with _opened(recording, of_raw) as audio:
        stream = TranscriptStream(predictor, audio.rate, window=window, overlap=overlap)
        blocks = _blocks(audio) if isinstance(audio, WavFile) else audio.blocks()
        errors: list[InvalidData] = []
        yield from _words(predictor, stream.tokens(_until_error(blocks, errors)))
        if errors:
            raise errors[0]


def _until_error(blocks: Iterator[Samples], errors: list[InvalidData]) -> Iterator[Samples]:
    """The blocks before an error, which is kept: the text of what has arrived is given first."""
    try:
        yield from blocks
    except InvalidData as error:
        errors.append(error)


@contextmanager
def _opened(
    recording: str | Path | bytes | ReadableAudio, of_raw: WavFormat | None
) -> Iterator[WavFile | AudioStream]:
    """A recording as it is read: a file by its header, and what has no known end as a stream."""
    if isinstance(recording, bytes):
        if of_raw is not None:
            yield AudioStream("audio", io.BytesIO(recording), of_raw)
            return
        with open_wav(recording, most_seconds=math.inf) as wav:
            yield wav
    elif isinstance(recording, str | Path):
        if of_raw is not None:
            with readable(recording), open_regular(recording) as file:
                yield AudioStream(str(recording), file, of_raw)
            return
        with open_wav(recording, most_seconds=math.inf) as wav:
            yield wav
    else:
        is_standard_input = getattr(recording, "name", None) in STDIN_NAMES
        name = "standard input" if is_standard_input else "audio"
        if of_raw is not None:
            yield AudioStream(name, recording, of_raw)
            return
        yield wav_stream(recording, name)


def _blocks(wav: WavFile) -> Iterator[Samples]:
    step = BLOCK_SECONDS * wav.rate
    for first in range(0, len(wav), step):
        yield wav.samples(first, first + step)


def _words(predictor: Predictor, tokens: Iterator[TimedToken]) -> Iterator[TranscribedWord]:
    """The words that tokens make up: a word is known as soon as the next one begins."""
    tokenizer = require_tokenizer(predictor.target, "model")
    word: list[TimedToken] = []
    for each in tokens:
        ids = [token.token for token in (*word, each)]
        if word and len(tokenizer.decode(ids).split()) > 1:
            yield _word(tokenizer.decode(ids[:-1]), word)
            word = []
        word.append(each)
    if word:
        yield _word(tokenizer.decode([token.token for token in word]), word)


def _word(text: str, tokens: list[TimedToken]) -> TranscribedWord:
    return TranscribedWord(text.strip(), tokens[0].seconds)
