"""Word vectors: speed and quality of ours beside gensim's, from the same text with the same settings.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/words.py
    .venv/bin/python benchmarks/words.py --data /path/to/data --seeds 1 --algorithms cbow

Text: WikiText-2's training part in lower case (DATA/wikitext2/wiki.train.tokens.gz). Judges: MEN, WordSim-353,
SimLex-999 and Google's analogies (DATA/wordsim). Gensim's settings are its defaults (100 numbers, window 5, 5
negatives, 5 epochs, words that occur 5 times) but for the rate: its default is 0.025, and it does better with more on
so short a text, so it is run at several (`--rates`; none: without gensim). Gensim is installed once into .peers/words.
Seeds take turns, so that a noisy machine is noisy to all.

Speed counts all words of the text, rare ones too, over reading it into numbers and all epochs: by the clock, and by
the seconds that processors were busy, which says more where others use the machine too.
"""

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import torch

from regard.word_vectors.evaluate import (
    analogy_accuracy,
    read_analogies,
    read_pairs,
    similarity_correlation,
)
from regard.word_vectors.vectors import WordVectors
from regard.word_vectors.word2vec import Word2VecConfig, train_word2vec

ROOT = Path(__file__).resolve().parent.parent
PEER, GENSIM = ROOT / ".peers" / "words", "gensim==4.4.0"
TEXT = "wikitext2/wiki.train.tokens.gz"
PAIRS = {
    "MEN": "EN-MEN-TR-3k.txt",
    "WordSim-353": "EN-WS-353-ALL.txt",
    "SimLex-999": "EN-SIMLEX-999.txt",
}
ANALOGIES = "questions-words.txt.gz"


@dataclass(frozen=True)
class Run:
    """One contestant with one seed."""

    times: dict[str, float]
    vectors: WordVectors


def gensim_python() -> Path:
    """The interpreter of gensim's own environment, set up if it is not there."""
    python = PEER / "bin" / "python"
    ready = PEER / f".{GENSIM}"
    if not ready.exists():
        print(f"Setting up {PEER} (once) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", PEER], check=True)
        environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", GENSIM], check=True, env=environment
        )
        ready.touch()
    return python


def gensim(algorithm: str, rate: float, threads: int, epochs: int, seed: int) -> Run:
    settings = {
        "corpus": str(PEER / "corpus.txt"), "vectors": str(PEER / "vectors.txt"),
        "sg": int(algorithm == "skipgram"), "alpha": rate, "seed": seed, "workers": threads, "epochs": epochs,
        "vector_size": 100, "window": 5, "negative": 5, "min_count": 5, "sample": 1e-3,
    }  # fmt: skip
    command = [
        gensim_python(),
        ROOT / "benchmarks" / "peers" / "gensim_words.py",
        json.dumps(settings),
    ]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Run(json.loads(out), WordVectors.load(settings["vectors"]))


def ours(
    sentences: list[list[str]], algorithm: str, kind: str, threads: int, epochs: int, seed: int
) -> Run:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    config = Word2VecConfig(algorithm, epochs=epochs, seed=seed, vectors=kind)  # type: ignore[arg-type]
    clock, busy = time.perf_counter(), time.process_time()
    vectors = train_word2vec(sentences, config)
    times = {"clock": time.perf_counter() - clock, "busy": time.process_time() - busy}
    torch.set_num_threads(before)
    return Run(times, vectors)


def row(
    name: str, runs: list[Run], words: int, judges: dict[str, Callable[[WordVectors], float]]
) -> str:
    """Median, and from lowest to highest where there is more than one run."""

    def cell(values: list[float], digits: int) -> str:
        spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
        return f"{median(values):.{digits}f}{spread}"

    cells = [
        cell([words / run.times[kind] / 1000 for run in runs], 0) for kind in ("clock", "busy")
    ]
    cells += [cell([100 * judge(run.vectors) for run in runs], 1) for judge in judges.values()]
    return f"| {name} | {' | '.join(cells)} |"


def judges_of(folder: Path, known: WordVectors) -> dict[str, Callable[[WordVectors], float]]:
    """Each judge under its name and how much of it these words can answer."""
    judges: dict[str, Callable[[WordVectors], float]] = {}
    for name, file in PAIRS.items():
        pairs = read_pairs(folder / file)
        found = similarity_correlation(known, pairs).found
        judges[f"{name} ({found:,} of {len(pairs):,})"] = lambda v, pairs=pairs: (
            similarity_correlation(v, pairs).spearman
        )
    sections = read_analogies(folder / ANALOGIES)
    total = analogy_accuracy(known, sections)[0]
    title = f"analogies ({total.asked:,} of {total.asked + total.skipped:,})"
    judges[title] = lambda v: analogy_accuracy(v, sections)[0].accuracy
    return judges


def data_folder(given: str | None) -> Path:
    folder = Path(given or os.environ.get("REGARD_DATA", ""))
    if not (given or os.environ.get("REGARD_DATA")):
        sys.exit("No data: give --data FOLDER, or set REGARD_DATA to it.")
    missing = [name for name in (TEXT, *(f"wordsim/{file}" for file in (*PAIRS.values(), ANALOGIES)))
               if not (folder / name).is_file()]  # fmt: skip
    if missing:
        sys.exit(f"Not in {folder}: {', '.join(missing)}.")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", help="the folder with wikitext2/ and wordsim/; REGARD_DATA by default"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--algorithms", nargs="+", default=["skipgram", "cbow"], choices=["skipgram", "cbow"]
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--rates",
        type=float,
        nargs="*",
        default=[0.025, 0.05, 0.1],
        help="of gensim; a row for each",
    )
    parser.add_argument("--threads", type=int, default=2, help="of gensim")
    parser.add_argument("--our-threads", type=int, nargs="+", default=[1, 2], help="a row for each")
    parser.add_argument(
        "--vectors", nargs="+", default=["both"], choices=["both", "inner"], help="ours; a row each"
    )
    arguments = parser.parse_args()
    folder = data_folder(arguments.data)
    with gzip.open(folder / TEXT, "rt", encoding="utf-8") as file:
        sentences = [words for words in (line.lower().split() for line in file) if words]
    if arguments.rates:
        gensim_python()
        (PEER / "corpus.txt").write_text(
            "\n".join(map(" ".join, sentences)) + "\n", encoding="utf-8"
        )
    words, epochs, threads = sum(map(len, sentences)), arguments.epochs, arguments.threads
    versions = f"torch {torch.__version__}, {GENSIM.replace('==', ' ')}, {platform.machine()}"
    print(f"{versions}, {len(arguments.seeds)} seeds, {epochs} epochs of {words:,} words")
    for algorithm in arguments.algorithms:
        contestants: dict[str, Callable[[int], Run]] = {}
        for rate in arguments.rates:
            contestants[f"gensim, rate {rate}, {threads} threads"] = partial(
                gensim, algorithm, rate, threads, epochs
            )
        for kind, count in product(arguments.vectors, arguments.our_threads):
            name = f"regard, {kind}, {count} thread{'s' * (count > 1)}"
            contestants[name] = partial(ours, sentences, algorithm, kind, count, epochs)
        runs: dict[str, list[Run]] = {name: [] for name in contestants}
        for seed in arguments.seeds:
            for name, learn in contestants.items():
                runs[name].append(learn(seed))
                print(f"{algorithm}, {name}, seed {seed}: {runs[name][-1].times}", file=sys.stderr)
        judges = judges_of(folder / "wordsim", runs[next(iter(runs))][0].vectors)
        print(f"\n| {algorithm} | thousand words/s | of a busy core | {' | '.join(judges)} |")
        print("|---" * (3 + len(judges)) + "|")
        for name, of_name in runs.items():
            print(row(name, of_name, words * epochs, judges), flush=True)


if __name__ == "__main__":
    main()
