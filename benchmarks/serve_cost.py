"""What a served request costs the host: processor time of each thread of `regard serve`, for each sentence.

    .venv/bin/python benchmarks/serve_cost.py                     # a model so small that the host's work is most of it
    .venv/bin/python benchmarks/serve_cost.py --workers 2 --clients 512 --slots 512
    .venv/bin/python benchmarks/serve_cost.py --dim 256 --layers 4

A step of a GPU takes as long as the host needs to start it, or less: what the engine's thread, the event loop and the
front ends take for a request limits a server there, and can be counted without a GPU. Processor time is read from the
operating system (Linux): unlike seconds, it hardly depends on what else the machine runs. The same sentences in bulk
(`model.predict`) are counted beside it, in rounds: the share of bulk speed that the server can reach on a machine whose
processors are all busy is the quotient of processor times, the load generator's included. The server's main thread is
its event loop, and all others are the engine.
"""

import argparse
import json
import os
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median

import serve as server_benchmark
from serve import CONTESTANTS, Arena, closed

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(process: int) -> Counter[str]:
    """Of each kind of thread of a server and of its children, so far."""
    found: Counter[str] = Counter()
    for each in (process, *_children(process)):
        command = Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        role = (
            "engine process"
            if "scheduler_process" in command
            else "front end"
            if "worker_process" in command
            else ""
        )
        for task in Path(f"/proc/{each}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            kind = "event loop" if task.name == str(each) else "engine"
            found[f"{role}: {kind}" if role else kind] += (
                int(fields[11]) + int(fields[12])
            ) / TICKS
    return found


def _children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [number for each in text.split() for number in (int(each), *_children(int(each)))]


def round_of(arena: Arena, options: argparse.Namespace) -> Counter[str]:
    """Microseconds for each sentence, by thread; and sentences a second."""
    ours = CONTESTANTS[-1]
    more = (
        "--queue",
        str(2 * options.clients),
        "--slots",
        str(options.slots),
        "--workers",
        str(options.workers),
    )
    with arena.server(ours, *more) as port, arena.loads(arena.single) as workers:
        process = arena.process.pid
        closed(workers, port, options.clients, 0, 1.5)  # warm
        answered = _answered(port)
        before, loads = (
            processor_seconds(process),
            sum(_own_seconds(each.process.pid) for each in workers),
        )
        found = closed(workers, port, options.clients, 0, options.seconds)
        after = processor_seconds(process)
        sentences = (
            _answered(port) - answered
        )  # also those that end after the time in which speed is measured
        took = Counter({key: 1e6 * (after[key] - before[key]) / sentences for key in after})
        took["load generator"] = (
            1e6 * (sum(_own_seconds(each.process.pid) for each in workers) - loads) / sentences
        )
        took["sentences a second"] = found["sentences"]
    return took


def _answered(port: int) -> float:
    """Sentences that a server has answered so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("regard_inputs_total{")
    )


def _own_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("REGARD_DATA"), help="or set REGARD_DATA"
    )
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument(
        "--threads", type=int, default=1, help="of the server, and of model.predict"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.data = None if options.data is None else Path(options.data)
    options.model, options.device, options.generators, options.serve = None, "cpu", 1, []
    part = {"dim": options.dim, "layers": options.layers, "heads": max(1, options.dim // 64)}
    server_benchmark.PART |= {**part, "ffn_dim": 4 * options.dim}
    with tempfile.TemporaryDirectory() as folder:
        arena = Arena(Path(folder), options)
        bulk, rounds, alone = arena.in_process(), [], []
        for _ in range(options.rounds):
            alone.append(1e6 * bulk.ask("predict")["processor"] / options.sentences)
            rounds.append(round_of(arena, options))
        bulk.close()
    print(
        json.dumps({key: value for key, value in vars(options).items() if isinstance(value, int)})
    )
    print("| µs of processor time for each sentence | median | least | most |\n|---|---|---|---|")
    rows = {
        "model.predict in bulk": alone,
        **{key: [each[key] for each in rounds] for key in rounds[0]},
    }
    for name, values in rows.items():
        print(f"| {name} | {median(values):,.0f} | {min(values):,.0f} | {max(values):,.0f} |")
    shares = [
        own / sum(value for name, value in each.items() if name != "sentences a second")
        for own, each in zip(alone, rounds, strict=True)
    ]
    print(
        f"\nWith all processors busy, the server reaches {median(shares):.0%} of bulk prediction "
        f"({min(shares):.0%} to {max(shares):.0%})"
    )


if __name__ == "__main__":
    main()
