"""Speed of translating: Regard against Hugging Face, CTranslate2 and Joey NMT, all with the same weights.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/decoding.py --run runs/transformer --rnn runs/rnn
    .venv/bin/python benchmarks/decoding.py --data /path/to/data --run runs/transformer --quick
    .venv/bin/python benchmarks/decoding.py --data /path/to/data --random --only marian ctranslate2 regard

--run is a run or checkpoint of Regard that Marian's architecture can hold: the recipe `translation` with
`norm_first = false` in encoder and decoder; with `--only ctranslate2 regard`, also as it is.

--rnn is one that Joey NMT's can hold: kind `rnn`, cell `gru`, one layer,
the decoder with `attention = "luong"` and score `additive` or `bilinear`. Both with one vocabulary
(`shared_vocab = true`) and `tie_embeddings = "all"`.

--random is a Transformer of these sizes with random weights, whose outputs do not end by themselves: each has as many
tokens as 1.2 times the longest source of its batch. --only leaves others out.

Its weights go to every contestant by name (peers/translators.py); sentences are Multi30k's test set of 2016 as token
numbers, DATA/multi30k/test_2016_flickr.en.gz. Cells: greedy and a beam of 5, one sentence at a time and 64, sorted by
length. First all translate the same sentences, and the share that equals the first row's is shown. Then each round
takes all contestants, each a process of its own that waits while others work, through the same sentences of each cell.

Speed is the median over rounds of the first row's time through one's own, by the clock and by the time that processors
were busy, which counts where others use the machine too. The floor is what the machine allows in float32: the bytes of
the decoder's matrices once a step, or the products' operations, whichever takes longer at the bandwidth and the speed
measured in the same rounds; a quarter of both for int8, of which an instruction of the processor takes four times as
many.
"""

import argparse
import gzip
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch

import regard
from contestants import ROOT, Worker, install
from measure import ratio
from models import JOEY, JOEY_NEEDS, PEERS, REQUIREMENTS
from regard.core.errors import RegardError
from regard.data.special_tokens import END, MASK, PAD, START, UNKNOWN
from regard.data.tokenizer import Tokenizer
from regard.model.rnn_decoder_config import RnnDecoderConfig
from regard.model.rnn_encoder import RnnConfig
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer_config import TransformerConfig
from serve import random_model

CTRANSLATE2, CTRANSLATE2_NEEDS = ROOT / ".peers" / "decoding", ("numpy", "ctranslate2==4.8.4")
BEAMS, BATCHES = (1, 5), (1, 64)
ALONE = 8  # sentences a round where they go one at a time
WARM = 2  # batches
RATIO = 1.2  # tokens of an output with random weights, for each of its source's


@dataclass(frozen=True)
class Row:
    key: str  # in peers/translators.py
    label: str
    threads: int | None = None  # None: as many as asked for
    bytes: int = 4  # of a weight
    beams: tuple[int, ...] = BEAMS


TRANSFORMERS = (
    Row("marian", "Hugging Face Marian"),
    Row("ctranslate2", "CTranslate2, float32"),
    Row("ctranslate2", "CTranslate2, float32, 1 thread", threads=1),
    Row("ctranslate2-int8", "CTranslate2, int8", bytes=1),
    Row("ctranslate2-int8", "CTranslate2, int8, 1 thread", threads=1, bytes=1),
    Row("joey", "Joey NMT"),
    Row("regard", "Regard"),
    Row("regard", "Regard, 1 thread", threads=1),
    Row("regard-int8", "Regard, int8", bytes=1),
    Row("regard-int8", "Regard, int8, 1 thread", threads=1, bytes=1),
)
RECURRENT = (Row("joey", "Joey NMT"), Row("regard", "Regard"))


def export(run: Path, folder: Path, peers: set[str]) -> Tokenizer:
    """A model of Regard as numbers that every environment can read; ends with a clear word if peers cannot hold it."""
    try:
        found = regard.load(run)
    except RegardError as error:
        raise SystemExit(str(error)) from None
    folder_of_model = found.folder or run
    table = json.loads((folder_of_model / "config.json").read_text())["model"]
    encoder, decoder = (
        {k: v for k, v in table[side].items() if k != "kind"} for side in ("encoder", "decoder")
    )
    kinds = {table[side]["kind"] for side in ("encoder", "decoder")}
    facts: dict[str, Any] = {}
    if kinds == {"transformer"}:
        sides = TransformerConfig(**encoder), TransformerConfig(**decoder)
        fits = all(
            (side.norm, side.activation, side.positions, side.score, side.kv_heads)
            == ("layer", "relu", "sinusoidal", "scaled_dot", None)
            and not (side.norm_first and peers & {"marian", "joey"})
            and (side.dim, side.layers, side.heads, side.ffn_dim)
            == (sides[0].dim, sides[0].layers, sides[0].heads, sides[0].ffn_dim)
            for side in sides
        )
        facts = {
            name: getattr(sides[0], name)
            for name in ("dim", "layers", "heads", "ffn_dim", "norm_eps")
        }
    elif kinds == {"rnn"}:
        reads, says = RnnConfig(**encoder), RnnDecoderConfig(**decoder)
        fits = (reads.cell, says.cell, reads.layers, says.layers, reads.bidirectional) == (
            "gru",
            "gru",
            1,
            1,
            True,
        )
        fits &= (
            says.attention == "luong"
            and says.score in ("additive", "bilinear")
            and says.initial_state == "summary"
        )
        facts = {"dim": says.dim, "score": says.score, "input_feeding": says.input_feeding}
    else:
        fits = False
    if not (fits and table.get("tie_embeddings") == "all" and isinstance(found.source, Tokenizer)):
        raise SystemExit(f"{run}: not a model that the peers can hold; --help says which can be.")
    facts |= {
        "kind": kinds.pop(), "run": str(folder_of_model.resolve()), "vocab_size": found.source.size,
        "scaled": table.get("scale_embeddings", True), "never": [PAD, START, MASK],
        "pad": PAD, "start": START, "end": END, "unknown": UNKNOWN,
    }  # fmt: skip
    assert isinstance(found.model, Seq2Seq)
    np.savez(
        folder / "weights.npz",
        **{name: weight.numpy() for name, weight in found.model.state_dict().items()},
    )
    (folder / "model.json").write_text(json.dumps(facts))
    if facts["kind"] == "transformer":
        regard.export(found, "ctranslate2", folder / "ctranslate2")
        regard.export(found, "ctranslate2", folder / "ctranslate2-int8", quantization="int8")
    return found.source


class Floor:
    """What the machine can do at best, and so how fast a model can be."""

    def __init__(self, folder: Path) -> None:
        self.step = self.source = (
            0  # numbers in matrices that are used once a step, once a token of the source
        )
        for name, weight in np.load(folder / "weights.npz").items():
            if weight.ndim == 2 and not name.endswith("embed_tokens.weight"):
                once = (
                    name.startswith("encoder.")
                    or ".cross_attn.k_proj" in name
                    or ".cross_attn.v_proj" in name
                )
                once |= name == "decoder.score.key_weight" or (
                    name == "decoder.score.weight" and len(weight) > 1
                )
                if name != "decoder.initial_proj.weight":
                    self.source, self.step = (
                        self.source + weight.size * once,
                        self.step + weight.size * (not once),
                    )
        self.weights, self.square = torch.ones(self.step), torch.ones(1024, 1024)
        self.bandwidth = self.speed = 0.0  # bytes and operations a second

    def measure(self, rounds: int = 10) -> None:
        """Read as many bytes as a step reads; multiply. The best counts: it is a floor."""
        for _ in range(rounds):
            self.bandwidth = max(self.bandwidth, 4 * self.step / _seconds(self.weights.sum))
            self.speed = max(self.speed, 2 * 1024**3 / _seconds(lambda: self.square @ self.square))

    def seconds(
        self, rows: list[list[int]], outputs: list[list[int]], beam: int, batch: int, size: int
    ) -> float:
        lengths = [len(row) + 1 for row in outputs]
        steps = sum(max(lengths[first : first + batch]) for first in range(0, len(lengths), batch))
        operations = 2 * (
            self.step * beam * sum(lengths) + self.source * sum(len(row) + 1 for row in rows)
        )
        return size / 4 * max(4 * self.step * steps / self.bandwidth, operations / self.speed)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Contest:
    """All contestants of one model, warm."""

    def __init__(
        self, rows: Sequence[Row], folder: Path, threads: int, ratio: float | None, stack: ExitStack
    ) -> None:
        self.rows, self.ratio, self.floor = rows, ratio, Floor(folder)
        self.workers: dict[str, Worker] = {}
        for row in rows:
            home = {"regard": Path(sys.executable), "ctranslate2": CTRANSLATE2 / "bin" / "python"}
            python = home.get(row.key.split("-")[0], PEERS / "bin" / "python")
            many = row.threads or threads
            command = [python, "-m", "peers.translators", row.key, folder, str(many)]
            self.workers[row.label] = Worker(row.label, command, many)
            stack.callback(self.workers[row.label].close)

    def translate(self, label: str, rows: list[list[int]], beam: int, batch: int) -> dict[str, Any]:
        question = {"beam": beam, "batch": batch, "ratio": self.ratio, "rows": rows}
        answer = self.workers[label].ask(json.dumps(question))
        answer["outputs"] = [
            row[: row.index(END)] if END in row else row for row in answer["outputs"]
        ]
        return answer

    def same(self, rows: list[list[int]], beam: int) -> dict[str, float]:
        """The share of outputs that equal the first contestant's, token for token."""
        outputs = {
            row.label: self.translate(row.label, rows, beam, 64)["outputs"]
            for row in self.rows
            if beam in row.beams
        }
        first = outputs[self.rows[0].label]
        return {
            label: sum(map(list.__eq__, first, each)) / len(rows) for label, each in outputs.items()
        }

    def cell(
        self, portions: list[list[list[int]]], beam: int, batch: int, same: dict[str, float]
    ) -> None:
        """A table of one cell: each portion is a round."""
        rows = [row for row in self.rows if beam in row.beams]
        base = rows[0].label
        found: dict[str, list[dict[str, Any]]] = {row.label: [] for row in rows}
        for row in rows:
            self.translate(row.label, portions[-1][: WARM * batch], beam, batch)
        for number, portion in enumerate(portions):
            self.floor.measure()
            turn = number % len(rows)
            for row in (*rows[turn:], *rows[:turn]):
                found[row.label].append(self.translate(row.label, portion, beam, batch))
        times = {
            label: [answer["seconds"] for answer in answers] for label, answers in found.items()
        }
        busy = {label: [answer["busy"] for answer in answers] for label, answers in found.items()}
        heads = (
            "", "ms a sentence", "spread", "tokens/s", "floor, ms", "× floor",
            "speed", "spread", "by busy time", "spread", "same output",
        )  # fmt: skip
        print(
            f"\n{'Greedy' if beam == 1 else f'Beam {beam}'}, batch {batch}\n\n| {' | '.join(heads)} |"
        )
        print("|---" * len(heads) + "|")
        for row in rows:
            answers, label = found[row.label], row.label
            ms = [1000 * t / len(p) for t, p in zip(times[label], portions, strict=True)]
            rate = median(sum(len(s) + 1 for s in a["outputs"]) / a["seconds"] for a in answers)
            floors = [
                1000 * self.floor.seconds(p, a["outputs"], beam, batch, row.bytes) / len(p)
                for p, a in zip(portions, found[base], strict=True)
            ]
            over = median(m / f for m, f in zip(ms, floors, strict=True))
            print(
                f"| {label} | {median(ms):.2f} | {min(ms):.2f}–{max(ms):.2f} | {rate:,.0f} | {median(floors):.2f} "
                f"| {over:.1f} | {_ratios(times, base, label)} | {_ratios(busy, base, label)} | {same[label]:.1%} |",
                flush=True,
            )


def _ratios(times: dict[str, list[float]], base: str, label: str) -> str:
    each = [a / b for a, b in zip(times[base], times[label], strict=True)]
    return f"{ratio(times, base, label):.2f} | {min(each):.2f}–{max(each):.2f}"


def portions(rows: list[list[int]], batch: int, rounds: int) -> list[list[list[int]]]:
    """What each round translates: sentences as they come, or whole batches of like length, longest first."""
    if batch == 1:
        mixed = Random(0).sample(rows, len(rows))
        each = [mixed[first : first + ALONE] for first in range(0, len(rows) - ALONE + 1, ALONE)]
    else:
        order = sorted(rows, key=len, reverse=True)
        each = [order[first : first + batch] for first in range(0, len(rows) - batch + 1, batch)]
        Random(0).shuffle(each)
    return [each[number % len(each)] for number in range(rounds)]


def contest(title: str, run: Path | None, rows: Sequence[Row], options: argparse.Namespace) -> None:
    """With the model of a run; without one, with random weights."""
    rows = [row for row in rows if options.only is None or row.key.split("-")[0] in options.only]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if run is None:
            random_model(
                Path(folder) / "random", _lines(options.data, "train"), layers=3, norm_first=False
            )
        peers = {row.key.split("-")[0] for row in rows}
        tokenizer = export(run or Path(folder) / "random", Path(folder), peers)
        lines = _lines(options.data, "test_2016_flickr")[: options.sentences]
        sentences = sorted(tokenizer.encode_batch(lines), key=len, reverse=True)
        all_of_them = Contest(
            rows, Path(folder), options.threads, RATIO if run is None else None, stack
        )
        print(f"\n## {title}")
        same = {beam: all_of_them.same(sentences, beam) for beam in options.beams}
        for beam, batch in product(options.beams, BATCHES):
            all_of_them.cell(portions(sentences, batch, options.rounds), beam, batch, same[beam])
        floor = all_of_them.floor
        print(
            f"\nThe machine at its best: {floor.bandwidth / 1e9:.1f} GB/s of {4 * floor.step / 1e6:.1f} MB, which a "
            f"step of the decoder reads, and {floor.speed / 1e9:.0f} GFLOP/s."
        )


def _lines(data: Path, name: str) -> list[str]:
    with gzip.open(data / "multi30k" / f"{name}.en.gz", "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("REGARD_DATA"), help="or set REGARD_DATA"
    )
    parser.add_argument("--run", type=Path, help="a Transformer")
    parser.add_argument("--rnn", type=Path, help="an RNN with attention")
    parser.add_argument("--random", action="store_true", help="a Transformer with random weights")
    names = sorted({row.key.split("-")[0] for row in (*TRANSFORMERS, *RECURRENT)})
    parser.add_argument("--only", nargs="+", choices=names, help="contestants [default: all]")
    parser.add_argument("--beams", type=int, nargs="+", default=BEAMS)
    parser.add_argument("--sentences", type=int, default=1000, help="of the test set, 64 at least")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--quick", action="store_true", help="64 sentences, one round: does it work at all?"
    )
    options = parser.parse_args()
    if options.quick:
        options.sentences, options.rounds = 64, 1
    if options.run is None and options.rnn is None and not options.random:
        parser.error(
            "what should be translated with? Give --run FOLDER, --rnn FOLDER, or --random."
        )
    if (
        options.data is None
        or not (Path(options.data) / "multi30k" / "test_2016_flickr.en.gz").is_file()
    ):
        parser.error(
            "where is Multi30k? Set REGARD_DATA or --data to a folder with multi30k/test_2016_flickr.en.gz."
        )
    if options.sentences < max(BATCHES):
        parser.error(f"--sentences: wanted {max(BATCHES)} at least; got {options.sentences}.")
    options.data = Path(options.data)
    chosen = set(options.only or names)
    if chosen & {"marian", "joey"}:
        install(PEERS, REQUIREMENTS, alone=(JOEY,), needs=JOEY_NEEDS)
    if "ctranslate2" in chosen:
        install(CTRANSLATE2, CTRANSLATE2_NEEDS)
    torch.set_num_threads(options.threads)
    print(
        f"{options.threads} threads, {platform.machine()}; {options.sentences} sentences, {options.rounds} rounds"
    )
    if options.run:
        contest("Transformer", options.run, TRANSFORMERS, options)
    if options.random:
        contest("Transformer with random weights", None, TRANSFORMERS, options)
    if options.rnn:
        contest("GRU with attention", options.rnn, RECURRENT, options)


if __name__ == "__main__":
    main()
