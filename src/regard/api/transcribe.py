"""`regard.transcribe`: the text of recordings of any length, in windows that overlap."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.data.fields.text import require_tokenizer
from regard.data.wav import Samples, WavFile, open_wav
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.inference.transcript_stream import (
    OVERLAP,
    WINDOW,
    TimedToken,
    TranscriptStream,
    speech_source,
)

BLOCK_SECONDS = 1


@dataclass(frozen=True)
class TranscribedWord:
    """A part of a transcript between spaces, and the second at which it begins."""

    text: str
    seconds: float


def transcribe(
    model: str | Path | Predictor,
    recording: str | Path | bytes,
    *,
    window: float = WINDOW,
    overlap: float = OVERLAP,
) -> Iterator[TranscribedWord]:
    """The words of a recording (.wav) of any length, as soon as they are known,
    by a model with a CTC head.

    model       a run, a checkpoint, or a loaded model
    recording   the path of a WAV file, or its bytes
    window      seconds of audio that are encoded at once; memory depends on it, and not on the
                length of the recording
    overlap     seconds that a window shares with the next one; each gives one half of them

    The text is that of `regard predict` without a beam, wherever the encoder's states depend on
    less audio than half of the overlap.
    """
    predictor = load(model)
    # Refused before the recording is opened.
    speech_source(predictor)
    with open_wav(recording) as wav:
        stream = TranscriptStream(predictor, wav.rate, window=window, overlap=overlap)
        yield from _words(predictor, stream.tokens(_blocks(wav)))


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
