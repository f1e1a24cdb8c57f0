"""Time of a whole training step of encoder-decoders: Regard against the libraries that people use.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/models.py --rounds 9
    .venv/bin/python benchmarks/models.py --data /path/to/data --peers bart regard --batches shuffled

A step is forwards, cross-entropy with label smoothing 0.1 over the target tokens that are no padding, backwards and
fused AdamW; loss and optimiser are the same for all, as are sizes (see peers/builders.py) and batches: Multi30k under a
joint byte-pair encoding of 8,000, cut at 4,096 target tokens with their padding. DATA/multi30k holds train.en.gz and
train.de.gz, one sentence a line.

Peers are installed once into .peers/models. Each contestant is a process that waits while others work; each round takes
them all through one batch. Speed is the median over rounds of the base's time through its own: by the clock, and by
the time that processors were busy, which counts where others use the machine too.
"""

import argparse
import os
import platform
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from contestants import HERE, ROOT, Worker, install
from measure import ratio
from peers.batches import batches

PEERS, CORPUS = ROOT / ".peers" / "models", ROOT / ".peers" / "multi30k.npz"
REQUIREMENTS = ("torch", "numpy", "tokenizers", "transformers==5.22.2", "x-transformers==2.31.10")
# Joey NMT asks for linters and an old protobuf; its models need only these.
JOEY, JOEY_NEEDS = "joeynmt==2.3.0", (
    "importlib_metadata", "matplotlib", "pyyaml", "sacremoses", "sentencepiece", "subword-nmt", "tensorboard",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    key: str  # in peers/builders.py
    label: str
    base: str  # the key of the row that counts as 1


TRANSFORMERS = (
    Row("marian", "Hugging Face Marian", "marian"),
    Row("bart", "Hugging Face BART", "marian"),
    Row("torch", "torch nn.Transformer", "marian"),
    Row("joey", "Joey NMT", "marian"),
    Row("x", "x-transformers", "marian"),
    Row("regard", "Regard", "marian"),
)
RECURRENT = (
    Row("joey-additive-feed", "Joey NMT, step, look (additive), feed", "joey-additive-feed"),
    Row("regard-additive-feed", "Regard, the same", "joey-additive-feed"),
    Row("joey-bilinear-feed", "Joey NMT, step, look (bilinear), feed", "joey-bilinear-feed"),
    Row("regard-bilinear-feed", "Regard, the same", "joey-bilinear-feed"),
    Row("joey-bilinear", "Joey NMT, step, look (bilinear)", "joey-bilinear"),
    Row("regard-bilinear", "Regard, the same (`after`)", "joey-bilinear"),
    Row("regard-before", "Regard, look (additive), step (`before`)", "joey-additive-feed"),
)


def require(data: Path | None) -> None:
    """End with a clear word where there is nothing to make batches from."""
    folder = None if data is None else data / "multi30k"
    missing = [
        name
        for name in ("train.en.gz", "train.de.gz")
        if folder is None or not (folder / name).is_file()
    ]
    if missing and not CORPUS.exists():
        where = (
            "neither --data nor REGARD_DATA is given"
            if folder is None
            else f"they are not in {folder}"
        )
        raise SystemExit(
            f"The batches are made from Multi30k's {' and '.join(missing)}, and {where}.\n"
            "Give --data FOLDER, or set REGARD_DATA, where FOLDER/multi30k holds both: one sentence a line, gzipped."
        )


def tokenise(data: Path) -> None:
    """The corpus as numbers, made once."""
    command = [
        PEERS / "bin" / "python",
        "-m",
        "peers.tokenise",
        data.resolve() / "multi30k",
        CORPUS,
    ]
    subprocess.run(command, cwd=HERE, check=True)


def table(title: str, rows: list[Row], kind: str, rounds: int, threads: int) -> None:
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for row in rows:
            home = ROOT / ".venv" if row.key.startswith("regard") else PEERS
            command = [
                home / "bin" / "python",
                "-m",
                "peers.worker",
                row.key,
                CORPUS,
                kind,
                str(threads),
            ]
            workers[row.key] = Worker(row.label, command, threads)
            stack.callback(workers[row.key].close)
        times: dict[str, list[float]] = {key: [] for key in workers}
        busy: dict[str, list[float]] = {key: [] for key in workers}
        for index in range(rounds):
            for key, worker in workers.items():
                step = worker.ask(index)
                times[key].append(step["seconds"])
                busy[key].append(step["busy"])
    data = batches(CORPUS, kind)
    tokens = [data[index % len(data)].tokens for index in range(rounds)]
    heads = (
        "model",
        "parameters",
        "first loss",
        "ms",
        "spread",
        "target tokens/s",
        "speed",
        "by busy time",
    )
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for row in rows:
        key, about, base = row.key, workers[row.key].about, row.base
        ms = [1000 * t for t in times[key]]
        rate = median(n / t for n, t in zip(tokens, times[key], strict=True))
        print(
            f"| {row.label} | {about['parameters']:,} | {about['loss']:.2f} | {median(ms):.0f} "
            f"| {min(ms):.0f}–{max(ms):.0f} | {rate:,.0f} "
            f"| {ratio(times, base, key):.2f} | {ratio(busy, base, key):.2f} |"
        )
        if about["untouched"]:
            print(f"No gradient reached {', '.join(about['untouched'])}.", file=sys.stderr)


def chosen(rows: tuple[Row, ...], keys: list[str]) -> list[Row]:
    """The rows asked for, and those that they are measured against."""
    bases = {row.base for row in rows if row.key in keys}
    return [row for row in rows if row.key in keys or row.key in bases]


def main() -> None:
    every = [row.key for row in (*TRANSFORMERS, *RECURRENT)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("REGARD_DATA"), help="or set REGARD_DATA"
    )
    parser.add_argument(
        "--peers", nargs="+", choices=every, default=every, metavar="NAME", help=", ".join(every)
    )
    parser.add_argument("--batches", choices=("bucketed", "shuffled"), default="bucketed")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    require(arguments.data)
    install(PEERS, REQUIREMENTS, alone=(JOEY,), needs=JOEY_NEEDS)
    if not CORPUS.exists():
        tokenise(arguments.data)
    data = batches(CORPUS, arguments.batches)
    full = [
        sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)
        for masks in ([b.source_mask for b in data], [b.wanted_mask for b in data])
    ]
    print(
        f"{arguments.threads} threads, {platform.machine()}; {arguments.batches} batches, without padding "
        f"{full[0]:.0%} of the source and {full[1]:.0%} of the target"
    )
    for title, rows in (
        ("Transformer, 3 + 3 layers", TRANSFORMERS),
        ("GRU with attention, 1 + 1 layers", RECURRENT),
    ):
        if picked := chosen(rows, arguments.peers):
            table(title, picked, arguments.batches, arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()
