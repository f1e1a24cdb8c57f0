"""Side by side: an RNN, an RNN with attention, a convolution and a Transformer translate the same sentences.

Claim   Attention takes an RNN's bottleneck away, most of all in long sentences. A Transformer, which attends everywhere
        and computes all positions at once, is good at long sentences, and trains faster.
Test    Four small models learn Multi30k, English to German, for the same minutes of one processor's time. BLEU on the
        test set with 95 % intervals, in all and by length of the source.
Refuted if attention does not raise an RNN's BLEU, or not most in long sentences; or if the Transformer is not best.

    python experiments/translation.py --data FOLDER --minutes 2

FOLDER (or $REGARD_DATA) holds multi30k/train.en.gz, train.de.gz, test_2016_flickr.en.gz and test_2016_flickr.de.gz, one
sentence a line. Minutes on a CPU are far from a finished training: docs/log/quality.md has the same four at full size.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import regard
from regard.evaluation.report import LengthGroup, MetricResult
from report import Finding, lines, main, verdict

FILES = {"train": "train", "test": "test_2016_flickr"}
Files = Mapping[str, Sequence[Path]]  # by split: source, target


class TimeUp(Exception):
    """The training time is over; the run is saved."""


@dataclass(frozen=True)
class Found:
    updates: dict[str, int]  # by model
    bleu: dict[str, MetricResult]  # with the difference from the first, and its p-value
    lengths: dict[str, Sequence[LengthGroup]]  # the same by length of the source

    def gain(self, model: str, group: int) -> float:
        """Over the first model, on the sources of one group."""
        return self.lengths[model][group].metrics["bleu"].difference or 0.0


def family(dim: int) -> dict[str, dict[str, Any]]:
    rnn, conv = {"kind": "rnn", "dim": dim}, {"kind": "conv", "dim": dim}
    block = {"kind": "transformer", "dim": dim, "layers": 2, "heads": 4, "ffn_dim": 2 * dim}
    return {
        "RNN": {"encoder": rnn, "decoder": rnn | {"attention": "none"}},
        "RNN + attention": {"encoder": rnn, "decoder": rnn | {"attention": "bahdanau"}},
        "convolution": {"encoder": conv, "decoder": conv | {"heads": 4}},
        "Transformer": {"encoder": block, "decoder": block},
    }


def learn(
    recipe: Mapping[str, Any], minutes: float, run: Path, cache: Path
) -> tuple[regard.Predictor, int]:
    """A model trained to its first checkpoint after this many minutes, and the number of updates."""
    began = step = 0.0

    def tell(event: dict[str, Any]) -> None:
        nonlocal began, step
        began = process_time() if event["event"] == "start" else began
        if event["event"] == "checkpoint":
            step = event["step"]
            if process_time() - began > 60 * minutes:
                raise TimeUp

    try:
        model = regard.train(recipe, run, cache=cache, on_event=tell)
    except TimeUp:
        model = regard.load(run)
    return model, int(step)


def measure(
    files: Files,
    minutes: float,
    dim: int = 128,
    tokens: str = "bpe",
    by_length: str = "10,15,20",
    train: Mapping[str, Any] | None = None,
) -> Found:
    field = {"tokenizer": tokens} | ({} if tokens == "bytes" else {"vocab_size": 4000})
    recipe = {
        "data": {split: [str(file) for file in both] for split, both in files.items()}
        | {"source": field, "target": field},
        "train": {
            "max_steps": 10**9,
            "batch_tokens": 2048,
            "learning_rate": 3e-3,
            "warmup_steps": 200,
            "validate_every": 20,
            "keep_checkpoints": 1,
        }
        | {"device": "cpu", **(train or {})},
        "decode": {"max_length": 50},
    }
    with tempfile.TemporaryDirectory() as folder:
        runs, cache = Path(folder) / "runs", Path(folder) / "cache"
        learned = {
            name: learn(
                recipe | {"model": model | {"tie_embeddings": "all"}}, minutes, runs / name, cache
            )
            for name, model in family(dim).items()
        }
        models = [model for model, _ in learned.values()]
        judged = regard.compare(models, metrics=["bleu"], by_length=by_length, cache=cache).systems
    named = dict(zip(learned, judged, strict=True))
    return Found(
        {name: updates for name, (_, updates) in learned.items()},
        {name: system.metrics["bleu"] for name, system in named.items()},
        {name: system.lengths for name, system in named.items()},
    )


def find(data: Path | None, minutes: float) -> Finding:
    found = measure(files_in(data), minutes)
    attending, transformer = found.bleu["RNN + attention"], found.bleu["Transformer"]
    groups = found.lengths["RNN"]
    places = [f"{group.first}–{group.last}" for group in groups]
    gains = [found.gain("RNN + attention", group) for group in range(len(groups))]
    rows = [["model", "updates", "BLEU", "95 %"]]
    rows[0] += [
        f"{place} words ({group.examples})" for place, group in zip(places, groups, strict=True)
    ]
    for name, bleu in found.bleu.items():
        parts = [f"{group.metrics['bleu'].value:.1f}" for group in found.lengths[name]]
        rows.append(
            [
                name,
                f"{found.updates[name]:,}",
                f"{bleu.value:.1f}",
                f"{bleu.low:.1f} to {bleu.high:.1f}",
                *parts,
            ]
        )
    return Finding(
        verdict(
            (attending.difference or 0) > 0 and (attending.p or 0) < 0.05,
            gains[-1] > gains[0],
            transformer.value == max(bleu.value for bleu in found.bleu.values()),
        ),
        f"after {minutes:g} minutes each, attention is worth {attending.difference:+.1f} BLEU to the RNN "
        f"(p = {attending.p:.3f}), {gains[0]:+.1f} on sources of {places[0]} words and {gains[-1]:+.1f} on those of "
        f"{places[-1]}; the Transformer has {transformer.value:.1f} and the RNN with attention {attending.value:.1f}.",
        rows,
        lines(
            "BLEU by length of the source, in words",
            places,
            {
                name: [_interval(group.metrics["bleu"]) for group in row]
                for name, row in found.lengths.items()
            },
            lambda value: f"{value:.0f}",
        ),
    )


def _interval(scored: MetricResult) -> tuple[float, float, float] | None:
    return (
        None
        if scored.low is None or scored.high is None
        else (scored.low, scored.value, scored.high)
    )


def files_in(data: Path | None) -> Files:
    """Multi30k's files, which must be there."""
    if data is None:
        remedy = "Give --data FOLDER, or set REGARD_DATA."
        raise regard.InvalidArgument(
            "data", wanted="the folder that holds multi30k", got="none", remedy=remedy
        )
    found = {
        split: [data / "multi30k" / f"{name}.{side}.gz" for side in ("en", "de")]
        for split, name in FILES.items()
    }
    missing = [str(file) for both in found.values() for file in both if not file.is_file()]
    if missing:
        got = f"no {', '.join(missing)}"
        raise regard.InvalidArgument(
            "data", wanted="Multi30k's files", got=got, remedy="One sentence a line, gzipped."
        )
    return found


def options(parser: argparse.ArgumentParser) -> None:
    given = os.environ.get("REGARD_DATA")
    parser.add_argument(
        "--data", type=Path, default=Path(given) if given else None, help="or set REGARD_DATA"
    )
    parser.add_argument(
        "--minutes", type=float, default=2.0, help="of training, for each of the four"
    )


if __name__ == "__main__":
    main("translation", __doc__, find, options)
