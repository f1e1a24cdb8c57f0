"""What the training loop adds to a bare update, and how long a run takes to its first one.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/loop.py
    .venv/bin/python benchmarks/loop.py --generated

A bare update is forwards, loss, backwards, clipping and AdamW on batches that are in memory. The loop makes the same
updates of an equal model from the corpus on disk: batches read ahead, seeding, schedule, checks, counting and logging.
Both go in one process, some updates each in turn; the figure is the median over rounds of one time through the other.
Checkpoints are timed by themselves. The way to the first update is measured in processes of their own, from the
moment they are started, once with nothing prepared and then with the corpus found. DATA/multi30k holds train.en.gz and
train.de.gz; with --generated, dates are read by a small model instead.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

RUN = ["import", "recipe", "prepare", "build", "first update"]


def table(data: Path | None) -> dict[str, Any]:
    dim, layers = (256, 3) if data else (64, 2)
    part = {
        "kind": "transformer",
        "dim": dim,
        "layers": layers,
        "heads": 8 if data else 4,
        "ffn_dim": 4 * dim,
    }
    text = {"tokenizer": "bpe"} if data else {"tokenizer": "bytes"}
    files = (
        {"train": [str(data / f"train.{side}.gz") for side in ("en", "de")]}
        if data
        else {"synthetic": "dates"}
    )
    return {
        "data": files | {"source": text, "target": text},
        "model": {"encoder": part, "decoder": part},
        "train": {
            "max_steps": 100_000,
            "validate_every": 100_000,
            "batch_tokens": 4096 if data else 2048,
            "device": "cpu",
        },
    }


def overhead(
    recipe_table: dict[str, Any], cache: Path, updates: int, rounds: int
) -> tuple[float, float, float, float]:
    """Seconds of a bare update, the loop's time through it by the clock and by busy time; seconds of a checkpoint."""
    import torch

    from regard.api.train import epochs, make_model, prepare
    from regard.recipe.load import read_recipe
    from regard.tasks.objective import Objective
    from regard.training.optimizers import Optimizer
    from regard.training.trainer import Trainer

    recipe = read_recipe(recipe_table)
    data = prepare(recipe, cache)
    assert data.train is not None
    ours, bare = make_model(recipe, recipe.sized(data)), make_model(recipe, recipe.sized(data))
    config = recipe.train
    make = epochs(recipe, data.train)
    trainer = Trainer(ours, make, texts={}, run=cache, data_key="")
    optimizer, objective = Optimizer(bare, config), Objective(config.label_smoothing)
    ready, groups = make(0, 0), trainer._groups()
    ours.train()

    def loop() -> None:
        for group in islice(groups, updates):
            trainer._update(group)
            trainer._train_event(1.0)

    def alone(batches: list[Any]) -> None:
        bare.train()
        for batch in batches:
            bare.zero_grad()
            loss, _, count, _ = objective(bare, batch)
            torch.autograd.backward(loss / count)
            torch.nn.utils.clip_grad_norm_(bare.parameters(), config.clip_norm or float("inf"))
            optimizer.step()

    loop()
    alone(list(islice(ready, updates)))
    clock, busy, plain = [], [], []
    for turn in range(rounds):
        batches = list(islice(ready, updates))  # the same that the loop will read
        both = [loop, partial(alone, batches)]
        times = [
            _timed(run) for run in (both if turn % 2 else both[::-1])
        ]  # so that neither is always first
        a, b = times if turn % 2 else times[::-1]
        clock.append(a[0] / b[0])
        busy.append(a[1] / b[1])
        plain.append(b[0] / updates)
    return median(plain), median(clock), median(busy), _timed(trainer.save)[0]


def _timed(run: Callable[[], None]) -> tuple[float, float]:
    clock, busy = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - busy


def child(started: float, recipe_table: dict[str, Any], cache: Path) -> None:
    """Go to the first update as `regard train` does, and print how long each part of the way took."""
    marks = [(started, 0.0)]

    def mark() -> None:
        marks.append((time.time(), time.process_time()))

    import regard.cli  # noqa: F401
    from regard.api.train import epochs, make_model, prepare
    from regard.recipe.load import read_recipe
    from regard.training.trainer import Trainer

    mark()
    recipe = read_recipe(recipe_table)
    mark()
    data = prepare(recipe, cache)
    mark()
    model = make_model(recipe, recipe.sized(data))
    assert data.train is not None
    trainer = Trainer(model, epochs(recipe, data.train), texts={}, run=cache, data_key="")
    mark()
    trainer._update(next(trainer._groups()))
    mark()
    print(
        json.dumps(
            [
                [b - a for a, b in zip(before, later, strict=True)]
                for before, later in pairwise(marks)
            ]
        )
    )


def started(recipe_table: dict[str, Any], cache: Path) -> list[tuple[float, float]]:
    """Seconds of each part of the way, by the clock and busy."""
    command = [
        sys.executable,
        __file__,
        "--child",
        json.dumps([time.time(), recipe_table, str(cache)]),
    ]
    found: list[tuple[float, float]] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_DATA"))
    parser.add_argument(
        "--generated", action="store_true", help="dates and a small model, without files"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--updates", type=int, default=2, help="of a round: few, as machines change by the second"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        started_at, recipe_table, cache = json.loads(options.child)
        return child(started_at, recipe_table, Path(cache))
    data = None if options.generated else options.data and Path(options.data) / "multi30k"
    if data is None and not options.generated:
        sys.exit(
            "Set REGARD_DATA or --data to the folder that holds multi30k/, or give --generated."
        )
    recipe_table = table(data)
    with tempfile.TemporaryDirectory() as folder:
        threads = os.environ.get("OMP_NUM_THREADS", "all")
        print(
            f"{platform.machine()}, {threads} threads, load {os.getloadavg()[0]:.1f}; seconds by the clock / busy"
        )
        for what in ("nothing prepared", "prepared before", "once more"):
            times = started(recipe_table, Path(folder))
            parts = "   ".join(
                f"{name} {a:.2f} / {b:.2f}" for name, (a, b) in zip(RUN, times, strict=True)
            )
            clock, busy = (sum(part) for part in zip(*times, strict=True))
            print(f"to the first update, {what}: {clock:.2f} / {busy:.2f}   ({parts})")
        plain, clock, busy, save = overhead(
            recipe_table, Path(folder), options.updates, options.rounds
        )
        print(
            f"bare update {1000 * plain:.1f} ms; with the loop {clock:.4f} of it by the clock, {busy:.4f} by busy time"
        )
        print(f"a checkpoint: {1000 * save:.0f} ms")
    return None


if __name__ == "__main__":
    main()
