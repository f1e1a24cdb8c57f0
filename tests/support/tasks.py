"""One small model of every task, with data on which it trains in seconds: a new task is tested by a line here."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support import regressions, tagging

ENCODER = {
    "kind": "transformer",
    "dim": 16,
    "heads": 2,
    "layers": 1,
    "ffn_dim": 32,
    "dropout": 0.0,
}
WORD_INPUT = {"kind": "words", "character_features": 8}
TRAIN = {
    "max_steps": 6,
    "validate_every": 3,
    "warmup_steps": 2,
    "batch_tokens": 200,
    "learning_rate": 0.01,
    "device": "cpu",
}
WORDS = ("one", "two", "three", "four", "five", "six")
NUMBERS = {word: str(number) for number, word in enumerate(WORDS, start=1)}

Rows = list[Any]


@dataclass(frozen=True)
class TaskCase:
    """A task with what trains it.

    model     the table [model]
    fields    the tables [data.source] or [[data.sources]], and [data.target]
    rows      draws this many examples with this seed
    inputs    of different lengths
    decode    options with which an output does not depend on the batch
    has_outputs   whether it gives outputs at all
    """

    model: dict[str, Any]
    fields: dict[str, Any]
    rows: Callable[[int, int], Rows]
    inputs: list[Any]
    decode: dict[str, Any] = field(default_factory=dict)
    has_outputs: bool = True

    def recipe(self, **train: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.fields,
            "train": {**TRAIN, **train},
            "decode": self.decode,
        }

    def splits(self) -> dict[str, Rows]:
        return {"train": self.rows(60, 0), "valid": self.rows(12, 1), "test": self.rows(12, 2)}


def text(drawn: random.Random) -> str:
    return " ".join(drawn.choices(WORDS, k=drawn.randint(1, 6)))


def texts(count: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [text(drawn) for _ in range(count)]


def translations(count: int, seed: int) -> Rows:
    """Words, and their digits in the reverse order."""
    sources = texts(count, seed)
    return [(each, " ".join(NUMBERS[word] for word in reversed(each.split()))) for each in sources]


def classes(count: int, seed: int) -> Rows:
    return [(each, "long" if len(each.split()) > 3 else "short") for each in texts(count, seed)]


def label_sets(count: int, seed: int) -> Rows:
    return [(each, sorted(set(each.split()) & {"one", "two"})) for each in texts(count, seed)]


def pairs(count: int, seed: int) -> Rows:
    sources = texts(count, seed)
    others = texts(count, seed + 100)
    return [
        (one, other, "same" if len(one) == len(other) else "different")
        for one, other in zip(sources, others, strict=True)
    ]


def waves(count: int, seed: int, *, same_length: bool = False) -> Rows:
    """Points on a circle, and those that follow; or the same points without noise."""
    drawn = random.Random(seed)
    rows = []
    for _ in range(count):
        first = drawn.uniform(0, 2 * math.pi)
        step = drawn.uniform(0.3, 0.9)
        length = drawn.randint(3, 7)
        ahead = drawn.randint(2, 4)
        points = []
        for position in range(length + ahead):
            angle = first + step * position
            points.append([10 + 3 * math.cos(angle), 100 * math.sin(angle)])
        past = points[:length]
        if same_length:
            noisy = [[number + drawn.gauss(0, 0.1) for number in point] for point in past]
            rows.append((noisy, past))
        else:
            rows.append((past, points[length:]))
    return rows


def digits(count: int, seed: int) -> Rows:
    """Words, and their digits in the same order."""
    sources = texts(count, seed)
    return [(each, " ".join(NUMBERS[word] for word in each.split())) for each in sources]


def sounds(count: int, seed: int) -> Rows:
    """Digits as vectors, a few in a row for each, and the digits."""
    drawn = random.Random(seed)
    rows = []
    for _ in range(count):
        spoken = drawn.choices(range(3), k=drawn.randint(1, 4))
        vectors = []
        for digit in spoken:
            levels = [float(digit == place) for place in range(3)]
            vectors += [[drawn.gauss(level, 0.1) for level in levels] for _ in range(4)]
            vectors += [[drawn.gauss(0.0, 0.1) for _ in range(3)] for _ in range(2)]
        rows.append((vectors, " ".join(map(str, spoken))))
    return rows


def as_json(rows: Rows) -> list[str]:
    """The sources of examples, as a line of the command line has them."""
    return [json.dumps(source) for source, _ in rows]


VECTORS = {"source": {"kind": "vectors"}, "target": {"kind": "vectors"}}
RNN = {"kind": "rnn", "dim": 16, "dropout": 0.0}
BY_CHARACTERS = {"kind": "text", "tokenizer": "characters"}
SOUND_INPUT = {"kind": "vectors", "kernel": 3, "stride": 2}
BY_WORDS = {"kind": "text", "tokenizer": "words"}
TEXTS = ["one two three four five six", "two", "six five four three", "one one"]
POOL = {"kind": "attention"}
CASES: dict[str, TaskCase] = {
    "generate": TaskCase(
        {"encoder": ENCODER, "decoder": ENCODER},
        {"source": BY_WORDS, "target": BY_WORDS},
        translations,
        TEXTS,
        decode={"beam_size": 2, "max_length": 12},
    ),
    "generate, language model": TaskCase(
        {"decoder": ENCODER},
        {"target": BY_WORDS},
        texts,
        [""],
        decode={"max_length": 8},
    ),
    "classify": TaskCase(
        {"encoder": ENCODER, "pool": POOL},
        {"source": BY_WORDS, "target": {"kind": "label"}},
        classes,
        TEXTS,
    ),
    "predict_masked": TaskCase(
        {"encoder": ENCODER, "head": "mlm"},
        {"target": BY_WORDS},
        texts,
        TEXTS,
        has_outputs=False,
    ),
    "tag": TaskCase(
        {"encoder": ENCODER, "head": "tags"},
        {
            "source": {"kind": "words", "tokenizer": "bpe", "vocab_size": 270},
            "target": {"kind": "tags"},
        },
        tagging.noun_phrases,
        ["the big red dog sees a cat", "a bird", "the quokka eats the house", "dog"],
    ),
    "tag, crf": TaskCase(
        {"encoder": {**ENCODER, "input": WORD_INPUT}, "head": {"kind": "tags", "crf": True}},
        {
            "source": {"kind": "words", "tokenizer": "words", "characters": True},
            "target": {"kind": "tags"},
        },
        tagging.noun_phrases,
        ["the big red dog sees a cat", "a bird", "the quokka eats the house", "dog"],
    ),
    "predict_vectors": TaskCase(
        {"encoder": ENCODER, "head": "vectors"},
        VECTORS,
        lambda count, seed: waves(count, seed, same_length=True),
        as_json(waves(4, 3)),
    ),
    "generate_vectors": TaskCase(
        {"encoder": ENCODER, "decoder": ENCODER}, VECTORS, waves, as_json(waves(4, 3))
    ),
    "generate_vectors, recurrent": TaskCase(
        {"encoder": RNN, "decoder": RNN}, VECTORS, waves, as_json(waves(4, 3))
    ),
    "generate_vectors, convolutional": TaskCase(
        {"encoder": ENCODER, "decoder": {"kind": "conv", "dim": 16, "dropout": 0.0}},
        VECTORS,
        waves,
        as_json(waves(4, 3)),
        decode={"horizon": 6},
    ),
    "transcribe": TaskCase(
        {"encoder": ENCODER, "head": "ctc"},
        {"source": BY_CHARACTERS, "target": BY_WORDS},
        digits,
        TEXTS,
    ),
    "transcribe, vectors": TaskCase(
        {"encoder": {**ENCODER, "input": SOUND_INPUT}, "head": "ctc"},
        {"source": {"kind": "vectors"}, "target": BY_WORDS},
        sounds,
        as_json(sounds(4, 3)),
        decode={"beam_size": 3},
    ),
    "generate, ctc beside the decoder": TaskCase(
        {
            "encoder": {**ENCODER, "input": SOUND_INPUT},
            "decoder": ENCODER,
            "head": {"kind": "ctc"},
        },
        {"source": {"kind": "vectors"}, "target": BY_WORDS},
        sounds,
        as_json(sounds(4, 3)),
        decode={"beam_size": 2, "max_length": 12},
    ),
    "regress": TaskCase(
        {"encoder": ENCODER, "pool": POOL},
        {"source": BY_WORDS, "target": {"kind": "number"}},
        regressions.numbers,
        ["the good film", "awful", "a great plot the bad actor the", "fine fine"],
    ),
    "regress, several": TaskCase(
        {"encoder": ENCODER, "pool": {"kind": "mean"}},
        {"source": BY_WORDS, "target": {"kind": "number"}},
        lambda count, seed: regressions.numbers(count, seed, 2),
        ["the good film", "awful", "a great plot the bad actor the", "fine fine"],
    ),
    "multi_label": TaskCase(
        {"encoder": ENCODER, "pool": POOL},
        {"source": BY_WORDS, "target": {"kind": "labels"}},
        label_sets,
        TEXTS,
        decode={"threshold": 0.3},
    ),
    "regress, pairs": TaskCase(
        {"encoders": [ENCODER, ENCODER], "pool": POOL},
        {"sources": [BY_WORDS, BY_WORDS], "target": {"kind": "number"}},
        lambda count, seed: [
            (one, other, float(len(one) - len(other))) for one, other, _ in pairs(count, seed)
        ],
        [("one two three", "four"), ("two", "one two three four five six"), ("six", "six")],
    ),
    "multi_label, joined pairs": TaskCase(
        {"encoder": {**ENCODER, "token_types": 2}, "pool": POOL},
        {
            "sources": [BY_WORDS, BY_WORDS],
            "join_sources": True,
            "target": {"kind": "labels"},
        },
        lambda count, seed: [
            (one, other, sorted({*one.split()} & {*other.split()} & {"one", "two"}))
            for one, other, _ in pairs(count, seed)
        ],
        [("one two three", "four"), ("two", "one two three four five six"), ("six", "six")],
        decode={"threshold": 0.3},
    ),
    "classify, joined pairs": TaskCase(
        {"encoder": ENCODER, "pool": {"kind": "mean"}},
        {
            "sources": [BY_WORDS, BY_WORDS],
            "join_sources": True,
            "target": {"kind": "label"},
        },
        pairs,
        [("one two three", "four"), ("two", "one two three four five six"), ("six", "six")],
    ),
    "classify, pairs": TaskCase(
        {"encoders": [ENCODER, ENCODER], "pool": POOL},
        {"sources": [BY_WORDS, BY_WORDS], "target": {"kind": "label"}},
        pairs,
        [("one two three", "four"), ("two", "one two three four five six"), ("six", "six")],
    ),
}
