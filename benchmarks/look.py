"""What attention weights cost: time and memory of an encoder's forward pass that returns them, by length.

    .venv/bin/python benchmarks/look.py --lengths 512 1024 2048 4096 --rounds 5

Regard, torch's nn.MultiheadAttention and Hugging Face's BERT, all with layers of the same size, encode one sequence.
Each is a process that waits while the others run; each round has one pass of each. Time is a multiple of the same
library's pass without weights in the same round (the median over rounds, in processor time, which other jobs on the
machine do not change); memory is the peak of the process beyond what it held before its first pass of this length.
"""

import argparse
import json
import platform
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import torch
from torch import nn

from contestants import Worker
from measure import ratio

WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY = 512, 8, 2048, 2, 1000
ROWS, TOP = 64, 16
Run = Callable[[], object]

# key -> label, and whose pass without weights counts as 1
CONTESTANTS = {
    "regard": ("Regard, without weights", "regard"),
    "regard rows": (f"`regard.look`, {ROWS} rows of every head", "regard"),
    "regard top": (f"`regard.look`, entropy and top {TOP} of every row", "regard"),
    "torch": ("`nn.MultiheadAttention`", "torch"),
    "torch weights": ("`nn.MultiheadAttention(need_weights=True)`", "torch"),
    "bert": ("Hugging Face BERT, SDPA", "bert"),
    "bert weights": ("Hugging Face BERT, eager, `output_attentions`", "bert"),
}


def regard_runs(ids: torch.Tensor) -> dict[str, Run]:
    import regard

    table = {
        "kind": "transformer",
        "dim": WIDTH,
        "heads": HEADS,
        "ffn_dim": HIDDEN,
        "layers": LAYERS,
    }
    parts = {"encoder": {**table, "positions": "none"}, "pool": {"kind": "first"}, "num_labels": 2}
    model = regard.build({**parts, "source_vocab_size": VOCABULARY}).eval()
    text = regard.Tokens.of([ids.tolist()])

    def rows() -> list[torch.Tensor]:
        return [each.weights(slice(0, ROWS)) for each in regard.look(model, text).maps]

    return {
        "regard": lambda: model(text),
        "regard rows": rows,
        "regard top": lambda: regard.look(model, text, top=TOP),
    }


class TorchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.perceive = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: torch.Tensor, weights: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        h = self.norms[0](x)
        seen, found = self.attend(h, h, h, need_weights=weights, average_attn_weights=False)
        x = x + seen
        return x + self.perceive(self.norms[1](x)), found


def torch_runs(ids: torch.Tensor) -> dict[str, Run]:
    embed, blocks = nn.Embedding(VOCABULARY, WIDTH), [TorchBlock().eval() for _ in range(LAYERS)]

    def run(weights: bool) -> list[torch.Tensor | None]:
        x, kept = embed(ids[None]), []
        for block in blocks:
            x, found = block(x, weights)
            kept.append(found)
        return kept

    return {"torch": lambda: run(False), "torch weights": lambda: run(True)}


def bert_runs(ids: torch.Tensor) -> dict[str, Run]:
    from transformers import BertConfig, BertModel

    def made(kind: str) -> nn.Module:
        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=HIDDEN,
            max_position_embeddings=len(ids),
        )
        config._attn_implementation = kind
        return BertModel(config, add_pooling_layer=False).eval()

    fused, eager = made("sdpa"), made("eager")
    return {
        "bert": lambda: fused(ids[None]),
        "bert weights": lambda: eager(ids[None], output_attentions=True),
    }


MAKERS = {"regard": regard_runs, "torch": torch_runs, "bert": bert_runs}


@torch.no_grad()
def serve(key: str, length: int) -> None:
    """One contestant's process: a pass for every line that comes, its time and the most memory so far."""
    torch.manual_seed(0)
    maker = MAKERS[key.split()[0]]
    maker(torch.randint(5, VOCABULARY, (8,)))[
        key
    ]()  # what is loaded and allocated once does not count
    run, before = maker(torch.randint(5, VOCABULARY, (length,)))[key], peak()
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        run()
        print(
            json.dumps({"seconds": time.process_time() - start, "mib": peak() - before}), flush=True
        )


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(length: int, rounds: int, threads: int) -> None:
    with ExitStack() as stack:
        workers = {}
        for key in CONTESTANTS:
            command = [sys.executable, __file__, "--serve", key, "--lengths", str(length)]
            workers[key] = Worker(key, command, threads)
            stack.callback(workers[key].close)
        times: dict[str, list[float]] = {key: [] for key in workers}
        memory: dict[str, float] = {}
        for turn in range(rounds + 1):
            for key, worker in workers.items():
                answer = worker.ask("go")
                memory[key] = answer["mib"]
                if turn:  # the first warms up
                    times[key].append(answer["seconds"])
    print(
        f"\n{length:,} tokens\n\n| pass | ms | × the same without weights | MiB |\n|---|---|---|---|"
    )
    for key, (label, base) in CONTESTANTS.items():
        cells = (
            f"{1000 * median(times[key]):,.0f} | {ratio(times, key, base):.2f} | {memory[key]:,.0f}"
        )
        print(f"| {label} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--serve", choices=CONTESTANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.lengths[0])
        return
    print(f"torch {torch.__version__}, {arguments.threads} threads, {platform.machine()}")
    for length in arguments.lengths:
        measure(length, arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()
