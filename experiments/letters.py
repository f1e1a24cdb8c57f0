"""String tasks on random letters (copy, reverse, sort), and models trained on them, shared by several experiments."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regard

Share = tuple[float, float, float]  # low, value, high
WRONG = "character_error_rate"


@dataclass(frozen=True)
class Task:
    """A function of strings to learn, and the string lengths in training and in the test."""

    answer: Callable[[str], str]
    trained: Sequence[int]
    tested: Sequence[int]
    letters: str = "abcdefghijklmnop"
    examples: int = 20_000  # to train on
    batch: int = 1024  # letters of an update, about

    def words(self, count: int, lengths: Sequence[int], seed: int) -> list[str]:
        chance = random.Random(seed)
        return [
            "".join(chance.choices(self.letters, k=chance.choice(lengths))) for _ in range(count)
        ]


def copied(word: str) -> str:
    return word


def reversed_word(word: str) -> str:
    return word[::-1]


def in_order(word: str) -> str:
    return "".join(sorted(word))


def learn(
    model: Mapping[str, Any], task: Task, steps: int, rate: float, folder: Path
) -> regard.Predictor:
    """A model trained for `steps` updates in a folder of its own."""
    text = {"tokenizer": "bytes"}
    recipe = {
        "data": {"source": text, "target": text},
        "model": model,
        "train": {
            "max_steps": steps,
            "batch_tokens": task.batch,
            "learning_rate": rate,
            "warmup_steps": steps // 8,
            "lr_schedule": "cosine",
            "label_smoothing": 0.0,  # there is one right answer
            "device": "cpu",
        },
        "decode": {"max_length": max(task.tested) + 4},
    }
    splits = {
        "train": task.words(task.examples, task.trained, seed=1),
        "test": task.words(1_000, task.tested, seed=2),
    }
    data = {split: [(word, task.answer(word)) for word in drawn] for split, drawn in splits.items()}
    return regard.train(recipe, folder / "run", data=data, cache=folder / "cache")


def right_by_length(
    models: Sequence[regard.Predictor], ends: Sequence[int]
) -> tuple[list[range], list[list[Share]]]:
    """Length buckets, and each model's accuracy of letters in each of them, with its confidence interval."""
    systems = regard.compare(models, metrics=[WRONG], by_length=",".join(map(str, ends))).systems
    wrong = [[group.metrics[WRONG] for group in system.lengths] for system in systems]
    return (
        [range(group.first, group.last + 1) for group in systems[0].lengths],
        [
            [(1 - (one.high or 0.0), 1 - one.value, 1 - (one.low or 0.0)) for one in row]
            for row in wrong
        ],
    )


def right(model: regard.Predictor) -> float:
    """Accuracy of letters on the test split."""
    return 1 - regard.evaluate(model, metrics=[WRONG])[WRONG].value


def named(lengths: range) -> str:
    return f"{lengths[0]}–{lengths[-1]}"


def transformer(dim: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """A Transformer with equal encoder and decoder, without dropout, as these tasks have no noise."""
    part = {
        "kind": "transformer",
        "dim": dim,
        "layers": layers,
        "heads": heads,
        "ffn_dim": 2 * dim,
        "dropout": 0.0,
    }
    return {"encoder": part | more, "decoder": part | more}
