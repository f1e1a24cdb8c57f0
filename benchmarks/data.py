"""How fast data are prepared and batched, how much of a batch is padding, and what memory an epoch takes.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/data.py
    .venv/bin/python benchmarks/data.py --data /path/to/data --rounds 5

Text: Multi30k (DATA/multi30k/train.{en,de}.gz), English and German under one vocabulary of 8,000. Memory is of a
process that walks through an epoch of examples with lengths like those, with Python and PyTorch in it: its own pages
at most (they cannot be given back), and all, with the pages of mapped files that the system takes back when it needs
them. Sizes are multiples of Multi30k's 29,000 pairs.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from regard.data.batching import batches
from regard.data.column_files import TextWriter, open_text
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, prepare
from regard.data.fields.base import make_field

PAIRS, BUDGET = 29_000, 4096


def configuration(data: Path, tokens: str) -> DataConfig:
    files = tuple(str(data / "multi30k" / f"train.{language}.gz") for language in ("en", "de"))
    missing = [file for file in files if not Path(file).exists()]
    if missing:
        sys.exit(
            f"{missing[0]} is not there. Set REGARD_DATA or --data to the folder that holds multi30k/."
        )
    field = make_field(tokenizer=tokens)  # type: ignore[arg-type]
    return DataConfig(train=files, source=field, target=field)


def preparing(config: DataConfig, rounds: int) -> tuple[Corpus, float, float]:
    """The corpus, and sentences a second: with learning the vocabulary, and with the vocabulary given."""
    learned, given = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            made = prepare(config, folder)
            learned.append(time.perf_counter() - start)
            start = time.perf_counter()
            made = prepare(config, Path(folder) / "given", vocabularies=made.vocabularies)
            given.append(time.perf_counter() - start)
    assert made.train is not None
    sentences = 2 * len(made.train)
    return made.train, sentences / median(learned), sentences / median(given)


def batching(corpus: Corpus, rounds: int) -> tuple[int, float, float]:
    """Batches of an epoch, the share of their cells that is padding, and batches a second."""
    times, real, cells, count = [], 0, 0, 0
    for epoch in range(rounds):
        start = time.perf_counter()
        for batch in batches(corpus, budget=BUDGET, seed=0, epoch=epoch):
            for side in (batch.source, batch.targets):
                real, cells = real + int(side.lengths.sum()), cells + side.ids.numel()  # type: ignore[union-attr]
            count += 1
        times.append(time.perf_counter() - start)
    return count // rounds, 1 - real / cells, count / rounds / median(times)


def synthetic(folder: Path, times: int) -> None:
    """Pairs with lengths like those of Multi30k, as `prepare` writes them."""
    random = np.random.default_rng(0)
    writers = [TextWriter(folder / side, 8000) for side in ("source", "target")]
    for _ in range(times):
        shared = random.normal(size=PAIRS)
        for writer, mean, spread in zip(writers, (15.3, 16.9), (4.75, 5.47), strict=True):
            own = 0.87 * shared + 0.5 * random.normal(size=PAIRS)
            lengths = np.clip(np.rint(mean + spread * own), 4, 45).astype(int)
            ids = random.integers(5, 8000, int(lengths.sum())).tolist()
            ends = np.cumsum(lengths)
            writer.add([ids[end - length : end] for end, length in zip(ends, lengths, strict=True)])
    for writer in writers:
        writer.close()


def walk(folder: Path) -> None:
    """An epoch in this process; print its most memory, own and all, in MiB, and batches a second."""
    corpus = Corpus(open_text(folder / "source", None), open_text(folder / "target", None))
    own, count, start = 0, 0, time.perf_counter()
    for count, _ in enumerate(batches(corpus, budget=BUDGET, seed=0, epoch=0), start=1):
        if count % 50 == 0:
            own = max(own, _status("RssAnon"))
    seconds = time.perf_counter() - start
    print(max(own, _status("RssAnon")) // 1024, _status("VmHWM") // 1024, round(count / seconds))


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_DATA"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--walk", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.walk:
        return walk(options.walk)
    if options.data is None:
        parser.error(
            "where is Multi30k? Set REGARD_DATA or --data to the folder that holds multi30k/."
        )
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print(
        "| tokens | sentences/s, all | sentences/s, vocabulary given | batches | padding | batches/s |"
    )
    print("|---|---|---|---|---|---|")
    for tokens in ("bpe", "unigram"):
        corpus, learned, given = preparing(configuration(options.data, tokens), options.rounds)
        count, padding, speed = batching(corpus, options.rounds)
        print(
            f"| {tokens} | {learned:,.0f} | {given:,.0f} | {count} | {padding:.1%} | {speed:,.0f} |",
            flush=True,
        )
    print("\n| pairs | own memory (MiB) | with mapped files (MiB) | batches/s |\n|---|---|---|---|")
    for times in options.times:
        with tempfile.TemporaryDirectory() as folder:
            synthetic(Path(folder), times)
            command = [sys.executable, __file__, "--walk", folder]
            out = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True
            ).stdout.split()
        print(f"| {times * PAIRS:,} | {' | '.join(out)} |", flush=True)
    return None


if __name__ == "__main__":
    main()
