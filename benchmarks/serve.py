"""A server under load: `regard serve` against CTranslate2 behind HTTP, as it is often written, with the same weights.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/serve.py --model runs/translation
    .venv/bin/python benchmarks/serve.py                       # 4 + 4 blocks of 256 with random weights
    .venv/bin/python benchmarks/serve.py --device cuda --clients 512 --throughput '--slots 512 --workers 6'

Requests have one to four sentences and come at random times (Poisson) that do not depend on the answers, from a process
of its own (peers/load.py); the time of an answer counts from when its request was due. Loads are multiples of the
capacity of the first contestant, measured with eight clients that ask again as soon as they are answered. Every server
is started anew for every load. A request that is not answered within --patience is lost, and counts as longer than all
others; refused ones (status 429) have a column of their own.

Then, in rounds: sentences a second of our server with --clients clients that ask again at once, in requests of one
sentence and in those of the loads, as a share of `model.predict` on the same sentences in bulk; the time to the first
piece of a stream, alone, as a multiple of `model.stream`'s; and the seconds from a model in memory to the first answer.

With random weights no output ends by itself: each is as long as 1.2 times its source, 12 to 25 tokens for most.
Sentences are Multi30k's (from $REGARD_DATA or --data), or made of generated words. A contestant whose library is not
installed is left out.
"""

import argparse
import gzip
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from math import ceil, inf
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch

import regard
from contestants import HERE, Worker, environment
from regard.checkpoint import store
from regard.checkpoint.format import WEIGHTS, checkpoint_texts
from regard.data.special_tokens import END
from regard.data.train_tokenizer import train_tokenizer
from regard.model.weights import weights_of
from regard.recipe.recipe import Recipe

LOADS = (0.5, 0.8, 1.0, 2.0, 10.0)
PER_REQUEST = (1, 1, 1, 1, 2, 2, 3, 4)  # sentences
RATIO = 1.2  # tokens of an output with random weights, for each of its source's
PART = {"kind": "transformer", "dim": 256, "layers": 4, "heads": 4, "ffn_dim": 1024}
VOCABULARY = 10_000
ROUNDS = 3


@dataclass(frozen=True)
class Contestant:
    key: str
    label: str
    needs: str  # a module


CONTESTANTS = (
    Contestant("sentence", "CTranslate2, a call for each sentence", "ctranslate2"),
    Contestant("request", "CTranslate2, a call for each request (LibreTranslate)", "ctranslate2"),
    Contestant("ours", "regard serve", "uvicorn"),
)


def sentences(data: Path | None, count: int) -> tuple[list[str], list[str]]:
    """Sentences to translate, and more to train a tokenizer on."""
    folder = None if data is None else data / "multi30k"
    if folder is not None and (folder / "test_2016_flickr.en.gz").is_file():
        test, train = (_lines(folder / name) for name in ("test_2016_flickr.en.gz", "train.en.gz"))
        return [test[i % len(test)] for i in range(count)], [
            *train,
            *_lines(folder / "train.de.gz"),
        ]
    chance, syllables = (
        Random(1),
        [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er")],
    )
    words = [
        "".join(chance.choices(syllables, k=chance.choice((1, 2, 2, 3, 3, 4)))) for _ in range(9000)
    ]
    weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))  # Zipf's law

    def sentence() -> str:
        return (
            " ".join(
                chance.choices(words, cum_weights=weights, k=max(4, round(chance.gauss(12, 3.5))))
            )
            + "."
        )

    return [sentence() for _ in range(count)], [*words, *(sentence() for _ in range(20_000))]


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def random_model(folder: Path, texts: list[str], **options: Any) -> None:
    """A checkpoint of 4 + 4 blocks of 256, with other options of both sides, whose outputs never end by themselves."""
    part = {**PART, **options}
    words = train_tokenizer("bpe", texts, VOCABULARY)
    field = {"tokenizer": "bpe", "vocab_size": VOCABULARY}
    recipe = Recipe.of(
        {
            "data": {"synthetic": "copy", "shared_vocab": True, "source": field, "target": field},
            "model": {"tie_embeddings": "all", "encoder": part, "decoder": part},
        }
    )
    table = recipe.with_sizes((words,), words)
    torch.manual_seed(0)
    model = regard.build(table)
    with torch.no_grad():
        model.decoder.project.bias[END] = -1e4
    store.write(
        folder,
        checkpoint_texts(recipe.as_dict(), ((words,), words), table, regard.__version__),
        {WEIGHTS: weights_of(model)},
    )


class Arena:
    """Where servers are started and asked."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        texts, more = sentences(options.data, options.sentences)
        self.random = options.model is None
        self.run = folder / "model" if self.random else Path(options.model).resolve()
        if self.random:
            random_model(self.run, more)
        self.settings: dict[str, Any] = {"beam_size": options.beam, "no_repeat_ngram_size": 0}
        if self.random:
            self.settings["max_length_ratio"] = RATIO
        self.single, self.mixed, self.streams = (
            folder / f"{name}.tsv" for name in ("single", "mixed", "streams")
        )
        self.lines = folder / "sentences.txt"
        self.lines.write_text("\n".join(texts), encoding="utf-8")
        _write(self.single, [(text, self.settings) for text in texts])
        chance = Random(2)
        many = [chance.sample(texts, chance.choice(PER_REQUEST)) for _ in range(len(texts))]
        _write(self.mixed, [(some[0] if len(some) == 1 else some, self.settings) for some in many])
        _write(
            self.streams,
            [(text, {**self.settings, "beam_size": 1, "stream": True}) for text in texts],
        )

    def contestants(self) -> list[Contestant]:
        chosen = [each for each in CONTESTANTS if self.options.only in (None, each.key)]
        found = [
            each for each in chosen if find_spec(each.needs) is not None and self._runs_here(each)
        ]
        for each in chosen:
            if each not in found:
                print(
                    f"Left out: {each.label}: {each.needs} is not installed, or it is not for this device."
                )
        if any(each.needs == "ctranslate2" for each in found):
            regard.export(self.run, "ctranslate2", self.folder / "ctranslate2")
        return found

    def _runs_here(self, contestant: Contestant) -> bool:
        return contestant.key == "ours" or self.options.device == "cpu"

    @contextmanager
    def server(self, contestant: Contestant, *more: str) -> Iterator[int]:
        """A server's process, ready; its port."""
        port, options = _free_port(), self.options
        if contestant.key == "ours":
            command = [
                "-m",
                "regard",
                "serve",
                f"model={self.run}",
                "--port",
                str(port),
                "--device",
                options.device,
            ]
            command += [*options.serve, *more]
        else:
            ratio = RATIO if self.random else 0
            command = [
                "-m",
                "peers.naive_server",
                str(self.folder / "ctranslate2"),
                str(port),
                contestant.key,
            ]
            command += [str(options.threads), str(ratio)]
        with (self.folder / f"{contestant.key}.log").open("w") as log:
            process = self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=HERE,
                stdout=log,
                stderr=log,
                env=environment(options.threads),
            )
        try:
            _wait_until_ready(port, process, Path(log.name))
            yield port
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def loads(self, bodies: Path) -> Iterator[list[Worker]]:
        """Load generators, each a process."""
        command = [sys.executable, "-m", "peers.load", bodies]
        workers = [
            Worker(f"load {number}", command, 1) for number in range(self.options.generators)
        ]
        try:
            yield workers
        finally:
            for each in workers:
                each.close()

    def in_process(self, *more: str) -> Worker:
        options = self.options
        command = [
            sys.executable,
            "-m",
            "peers.in_process",
            self.run,
            self.lines,
            json.dumps(self.settings),
        ]
        return Worker(
            "in_process", [*command, options.device, str(options.threads), *more], options.threads
        )


def _write(path: Path, requests: list[tuple[str | list[str], dict[str, Any]]]) -> None:
    path.write_text(
        "".join(
            f"{json.dumps({'input': given, **settings})}\t{1 if isinstance(given, str) else len(given)}\n"
            for given, settings in requests
        ),
        encoding="utf-8",
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _wait_until_ready(
    port: int, process: "subprocess.Popen[bytes]", log: Path, patience: float = 300.0
) -> None:
    until = time.monotonic() + patience
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"a server did not start:\n{log.read_text()[-3000:]}")


def ask_all(workers: list[Worker], questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of several generators that work at the same time."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(
            pool.map(
                lambda pair: pair[0].ask(json.dumps(pair[1])), zip(workers, questions, strict=True)
            )
        )


def closed(
    workers: list[Worker], port: int, clients: int, warm: float, seconds: float
) -> dict[str, float]:
    """Requests and sentences a second with clients that ask again as soon as they are answered."""
    shares = [
        clients // len(workers) + (number < clients % len(workers))
        for number in range(len(workers))
    ]
    question = {"kind": "closed", "port": port, "warm": warm, "seconds": seconds}
    answers = ask_all(workers, [{**question, "clients": share} for share in shares])
    wrong = sum((Counter(each["statuses"]) for each in answers), Counter())
    if set(wrong) - {"200"}:
        print(f"(statuses: {dict(wrong)})")
    return {key: sum(each[key] for each in answers) for key in ("rate", "sentences")}


def opened(
    workers: list[Worker], port: int, rate: float, seconds: float, patience: float
) -> dict[str, Any]:
    question = {
        "kind": "open",
        "port": port,
        "rate": rate / len(workers),
        "seconds": seconds,
        "patience": patience,
    }
    answers = ask_all(workers, [{**question, "seed": seed} for seed in range(len(workers))])
    statuses = sum((Counter(each["statuses"]) for each in answers), Counter())
    lost = statuses["-1"]
    times = sorted(took for each in answers for took in each["seconds"]) + [inf] * lost
    return {
        "percentiles": [
            times[ceil(share * len(times)) - 1] if times else inf for share in (0.5, 0.95, 0.99)
        ],
        "sentences": sum(each["sentences"] for each in answers)
        / max(each["span"] for each in answers),
        "refused": statuses["429"] / max(1, statuses.total()),
        "lost": lost / max(1, statuses.total()),
        "other": {k: v for k, v in statuses.items() if k not in ("200", "429", "-1")},
    }


def under_load(arena: Arena, contestants: list[Contestant]) -> None:
    options, base = arena.options, contestants[0]
    with arena.loads(arena.mixed) as workers:
        with arena.server(base) as port:
            capacity = closed(workers, port, 8, options.seconds / 4, options.seconds)["rate"]
        print(f"\nCapacity of {base.label}: {capacity:.1f} requests a second.\n")
        heads = (
            "load",
            "",
            "p50, ms",
            "p95",
            "p99",
            "sentences/s",
            "refused",
            "lost",
            f"p99, {base.label} = 1",
        )
        print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
        for load in options.loads:
            first = inf
            for each in contestants:
                with arena.server(each) as port:
                    closed(workers, port, 8, 0, 1)  # warm
                    found = opened(
                        workers, port, load * capacity, options.seconds, options.patience
                    )
                p99 = found["percentiles"][2]
                first = p99 if each is base else first
                shown = " | ".join(
                    _milliseconds(value, options.patience) for value in found["percentiles"]
                )
                part = _ratio(p99, first, options.patience)
                print(
                    f"| {load:g} × | {each.label} | {shown} | {found['sentences']:.1f} | {found['refused']:.1%} "
                    f"| {found['lost']:.1%} | {part} |",
                    flush=True,
                )
                if found["other"]:
                    print(f"(other statuses: {found['other']})")


def _milliseconds(value: float, patience: float) -> str:
    return f"> {1000 * patience:,.0f}" if value == inf else f"{1000 * value:,.0f}"


def _ratio(value: float, base: float, patience: float) -> str:
    if value < inf and base < inf:
        return f"{value / base:.2f}"
    return (
        "–"
        if value == base
        else f"< {value / patience:.2f}"
        if base == inf
        else f"> {patience / base:.2f}"
    )


def throughput(arena: Arena, bulk: Worker, port: int) -> None:
    """Sustained throughput, as a share of the same sentences in bulk without a server."""
    options = arena.options
    for bodies, kind in ((arena.single, "one sentence"), (arena.mixed, "one to four sentences")):
        served, shares = [], []
        with arena.loads(bodies) as workers:
            for _ in range(options.rounds):
                alone = options.sentences / bulk.ask("predict")["seconds"]
                found = closed(workers, port, options.clients, options.seconds / 2, options.seconds)
                served.append(found["sentences"])
                shares.append(served[-1] / alone)
        print(
            f"\n{options.clients} clients, requests of {kind}: {median(served):,.1f} sentences a second, "
            f"{median(shares):.0%} of model.predict in bulk ({min(shares):.0%} to {max(shares):.0%})",
            flush=True,
        )


def beside_predict(arena: Arena, ours: Contestant) -> None:
    """Sustained throughput and time to the first token, as shares of the same without a server."""
    options, bulk, firsts = arena.options, arena.in_process(), []
    with arena.server(ours, "--queue", str(4 * options.clients)) as port:
        throughput(arena, bulk, port)
        with arena.loads(arena.streams) as workers:
            for _ in range(options.rounds):
                alone = median(bulk.ask("stream")["seconds"])
                through = median(
                    workers[0].ask(json.dumps({"kind": "stream", "port": port, "times": 32}))[
                        "seconds"
                    ]
                )
                firsts.append((through / alone, through))
        times = median(each for each, _ in firsts)
        print(
            f"First token of one request: {1000 * median(took for _, took in firsts):.1f} ms, {times:.2f} × "
            f"model.stream's ({min(firsts)[0]:.2f} to {max(firsts)[0]:.2f})"
        )
    bulk.close()
    starts = []
    with arena.loads(arena.single) as workers:
        for _ in range(options.rounds):
            port = _free_port()
            starting = arena.in_process("serve", str(port))
            answered = workers[0].ask(json.dumps({"kind": "first", "port": port, "patience": 120}))[
                "at"
            ]
            starts.append(answered - starting.about["at"])
            starting.close()
    print(
        f"First answer after a model is in memory: {median(starts):.2f} s ({min(starts):.2f} to {max(starts):.2f})"
    )


def compare_options(arena: Arena, ours: Contestant) -> None:
    """The throughput alone, with different options of `regard serve`."""
    bulk = arena.in_process()
    for more in arena.options.throughput:
        with arena.server(
            ours, "--queue", str(4 * arena.options.clients), *shlex.split(more)
        ) as port:
            print(f"\nregard serve {more}", end="")
            throughput(arena, bulk, port)
    bulk.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("REGARD_DATA"), help="or set REGARD_DATA"
    )
    parser.add_argument(
        "--model", help="a run or checkpoint of a translator [default: random weights]"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds after which a client gives up"
    )
    parser.add_argument(
        "--loads",
        type=float,
        nargs="*",
        default=LOADS,
        help="multiples of the capacity; none: skip",
    )
    parser.add_argument("--clients", type=int, default=64, help="that ask again at once")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--generators", type=int, default=1, help="processes that make the load")
    parser.add_argument("--only", choices=[each.key for each in CONTESTANTS])
    parser.add_argument(
        "--serve", type=shlex.split, default=[], help="more options of regard serve: '--slots 256'"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--throughput", action="append", metavar="OPTIONS",
        help="nothing but the throughput, with these options of regard serve ('' for none); may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="seconds, not minutes: does it work at all?"
    )
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.sentences = 2.0, 128
    options.data = None if options.data is None else Path(options.data)
    with tempfile.TemporaryDirectory() as folder:
        arena = Arena(Path(folder), options)
        contestants = arena.contestants()
        weights = "random weights" if arena.random else options.model
        print(
            f"{options.device}, {options.threads} threads, {platform.machine()}, torch {torch.__version__}; {weights}, "
            f"beam {options.beam}"
        )
        ours = [each for each in contestants if each.key == "ours"]
        if options.throughput:
            compare_options(arena, ours[0])
            return
        if options.loads:
            under_load(arena, contestants)
        if ours:
            beside_predict(arena, ours[0])


if __name__ == "__main__":
    main()
