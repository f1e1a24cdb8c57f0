"""The experiments that train, at their smallest, in a process of their own: checking shapes takes five times as long.

Prints the values that the tests check, as JSON.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "experiments"))

import bottleneck
import positions
import translation
from letters import Task, copied, reversed_word


def vectors() -> dict[str, object]:
    words = Task(copied, range(2, 9), range(2, 9), letters="abcdefgh", examples=3000, batch=512)
    found = bottleneck.measure(widths=(32,), task=words, ends=(3, 5), steps=250)
    return {
        "falls": [found.fall(model) for model in found.right],
        "right": [row[-1][1] for row in found.right.values()],
    }


def orders() -> dict[str, object]:
    words = Task(
        reversed_word, range(2, 5), range(2, 7), letters="abcdef", examples=3000, batch=256
    )
    found = positions.measure(
        ("none", "sinusoidal"), ("none",), words, (3, 4), 32, layers=1, steps=200, rate=1e-2
    )
    return {
        "unmoved": found.order_invariant,
        "turned": {kind: found.right(kind, longer=False) for kind in found.reversed_word},
        "sorted": found.sorted,
        "lengths": [[*lengths] for lengths in found.lengths],
    }


def translators(folder: Path) -> dict[str, object]:
    chance = random.Random(0)
    words = {
        word: word.upper() for word in ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")
    }
    files = {
        split: [folder / f"{split}.{side}" for side in ("a", "b")] for split in ("train", "test")
    }
    for split, count in (("train", 600), ("test", 60)):
        lines = [chance.choices(list(words), k=chance.randint(2, 8)) for _ in range(count)]
        files[split][0].write_text("".join(f"{' '.join(line)}\n" for line in lines))
        files[split][1].write_text(
            "".join(f"{' '.join(words[word] for word in line)}\n" for line in lines)
        )
    train = {
        "max_steps": 80,
        "learning_rate": 2e-2,
        "warmup_steps": 10,
        "validate_every": 80,
        "batch_tokens": 256,
    }
    found = translation.measure(files, 10, dim=16, tokens="words", by_length="4", train=train)
    return {
        "updates": found.updates,
        "gain": found.bleu["RNN + attention"].difference,
        "gain on long ones": found.gain("RNN + attention", 1),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(
            json.dumps(
                {"vectors": vectors(), "orders": orders(), "translators": translators(Path(folder))}
            )
        )
