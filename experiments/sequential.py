"""One after another: how many operations must wait for each other, and how long does that take?

Claim   An RNN goes through a sequence step by step, so its operations that must wait for one another grow with the
        length. Attention and convolutions compute all positions at once: their number depends on the layers alone.
Test    The longest chain of operations that need each other's results is counted, operation by operation, while
        encoders read sequences of growing length, and while decoders generate. A product of matrices, or one attention,
        is one operation. Beside it, the time of encoding on this machine.
Refuted if the chain of the Transformer or the convolution grows with the length, or that of the RNN does not.

    python experiments/sequential.py
    python experiments/sequential.py --device cuda
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log10
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regard
from report import Finding, lines, main, seconds, verdict

VOCABULARY = 100
READERS: dict[str, dict[str, Any]] = {
    "RNN": {"kind": "rnn"},
    "convolution": {"kind": "conv", "dilations": (1, 2, 4, 8)},
    "Transformer": {"kind": "transformer", "layers": 2, "heads": 4, "ffn_dim": 128},
}


class Chain(TorchDispatchMode):
    """The longest chain of operations of which each needs the result of the one before; views of memory are free."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0
        self.behind: dict[
            int, int
        ] = {}  # memory, to how many operations stand behind what is in it
        self.kept: list[Any] = []  # so that no memory is used twice

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        inputs, outputs = self._memory((args, kwargs)), self._memory(out)
        if operation._schema.is_mutable or not outputs <= inputs:  # else it is a view
            length = 1 + max((self.behind.get(each, 0) for each in inputs), default=-1)
            self.behind.update(dict.fromkeys(outputs, length))
            self.longest = max(self.longest, length)
        return out

    def _memory(self, values: Any) -> set[int]:
        found = [
            leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)
        ]
        self.kept += found
        return {storage._cdata for storage in found}


@dataclass(frozen=True)
class Found:
    lengths: Sequence[int]
    reading: dict[str, list[int]]  # by model: the longest chain at each length
    generating: dict[str, list[int]]
    milliseconds: dict[str, list[float]]  # of reading


def chain(work: Callable[[], object]) -> int:
    with Chain() as found:
        work()
    return found.longest


def generate(model: Any, source: regard.Tokens, count: int) -> None:
    """The most likely token each time, and on from there."""
    state = model.decoder.start(model.encode(source), batch=1, capacity=count)
    tokens = source.ids[:, 0]
    for _ in range(count):
        logits, state = model.decoder.step(tokens, state)
        tokens = logits.argmax(-1)


def read(model: Any, source: regard.Tokens) -> None:
    model.encode(source)
    if source.ids.is_cuda:
        torch.cuda.synchronize()


@torch.no_grad()
def measure(
    lengths: Sequence[int] = (8, 32, 128, 256), dim: int = 64, rounds: int = 15, device: str = "cpu"
) -> Found:
    torch.manual_seed(0)
    parts = {name: reader | {"dim": dim, "dropout": 0.0} for name, reader in READERS.items()}
    models = {
        name: regard.build({"encoder": part, "decoder": part, "vocab_size": VOCABULARY})
        .eval()
        .to(device)
        for name, part in parts.items()
    }
    sources = [
        regard.Tokens.of([torch.randint(VOCABULARY, (n,)).tolist()], device=device) for n in lengths
    ]
    times = [
        seconds({name: partial(read, one, source) for name, one in models.items()}, rounds)
        for source in sources
    ]
    return Found(
        lengths,
        {
            name: [chain(partial(one.encode, source)) for source in sources]
            for name, one in models.items()
        },
        {
            name: [chain(partial(generate, one, sources[0], n)) for n in lengths]
            for name, one in models.items()
        },
        {name: [1000 * min(each[name]) for each in times] for name in models},
    )


def find(device: str) -> Finding:
    found = measure(device=device)
    flat = [name for name, counts in found.reading.items() if counts[0] == counts[-1]]
    rnn, attention = found.milliseconds["RNN"], found.milliseconds["Transformer"]
    rows = [["", *(f"{n} tokens" for n in found.lengths)]]
    for what, figures in (
        ("encoding, chain", found.reading),
        ("generating, chain", found.generating),
    ):
        rows += [
            [f"{name}, {what}", *(f"{count:,}" for count in row)] for name, row in figures.items()
        ]
    rows += [
        [f"{name}, encoding, ms", *(f"{ms:.2f}" for ms in row)]
        for name, row in found.milliseconds.items()
    ]
    return Finding(
        verdict(
            found.reading["RNN"][-1] > 10 * found.reading["RNN"][0],
            {"convolution", "Transformer"} <= set(flat),
            attention[-1] < 1.5 * attention[0],
        ),
        f"with {found.lengths[-1] / found.lengths[0]:.0f} times as many tokens the RNN's chain is "
        f"{found.reading['RNN'][-1] / found.reading['RNN'][0]:.0f} times as long, that of {' and '.join(flat)} the "
        "same. In generation, where each token depends on the last, all of them grow. Encoding takes the RNN "
        f"{rnn[-1] / rnn[0]:.0f} times as long, the Transformer {attention[-1] / attention[0]:.1f} times, on {device}.",
        rows,
        lines(
            "Sequential operations in encoding, by tokens",
            found.lengths,
            {name: [log10(count) for count in counts] for name, counts in found.reading.items()},
            lambda value: f"{10**value:,.0f}",
        ),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


if __name__ == "__main__":
    main("sequential", __doc__, find, options)
