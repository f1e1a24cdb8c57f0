"""Whole searches with decoders of every kind on a CPU: the compiled engine against PyTorch's own modules.

    python benchmarks/recurrent_decoding.py --threads 1 --rounds 5
    REGARD_NATIVE=avx2 python benchmarks/recurrent_decoding.py --only Transformer    # the variant for AVX2

Models of dim 256 with random weights and a vocabulary of 8,000; sources and outputs of 20 tokens. Both run in turn in
each round; a figure is the median over rounds of the engine's speed as a multiple of PyTorch's.
"""

import argparse
from functools import partial
from statistics import median

import torch

from measure import seconds
from regard.core.sequence import Tokens
from regard.data.special_tokens import END
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.base import Engine
from regard.generation.engines.cpu.engine import CpuEngine
from regard.generation.engines.torch import PyTorchEngine
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.model.build import build
from regard.model.seq2seq import Seq2Seq

VOCABULARY, LENGTH = 8_000, 20
DECODERS = {
    "GRU, Bahdanau, additive": {"kind": "rnn", "attention": "bahdanau", "score": "additive"},
    "LSTM 2 layers, Luong, input feeding": {
        "kind": "rnn", "cell": "lstm", "layers": 2, "attention": "luong", "score": "bilinear", "input_feeding": True,
    },
    "GRU without attention": {"kind": "rnn", "attention": "none"},
    "convolution": {"kind": "conv"},
    "Transformer, 3 layers": {"kind": "transformer", "layers": 3, "heads": 4, "ffn_dim": 1024},
}  # fmt: skip


def run(engine: Engine, model: Seq2Seq, rows: list[list[int]], beams: int) -> None:
    """Search with one engine."""
    chosen, selection.ENGINES = selection.ENGINES, (engine, PyTorchEngine())
    config = DecodeConfig(beam_size=beams, max_length=LENGTH, batch_tokens=2**20)
    task = SearchTask(model, Tokens.of, config, constant_weights=True)
    try:
        list(search(task, [GenerationRequest(row, len(row)) for row in rows]))
    finally:
        selection.ENGINES = chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="decoders whose names contain this")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    print(f"{options.threads} threads, torch {torch.__version__}\n")
    print("| decoder | greedy 1 | greedy 64 | beam 5, 1 | beam 5, 64 |\n|---|---|---|---|---|")
    chosen = {name: table for name, table in DECODERS.items() if options.only in name}
    for name, table in chosen.items():
        encoder = {"kind": "bag", "dim": 256}
        model = build(
            {"encoder": encoder, "decoder": table | {"dim": 256}, "vocab_size": VOCABULARY}
        ).eval()
        with torch.no_grad():
            model.decoder.project.bias[END] = -1e4  # every output has the maximum length
        cells = []
        for beams in (1, 5):
            for batch in (1, 64):
                rows = torch.randint(5, VOCABULARY, (batch, LENGTH)).tolist()
                both = {"engine": CpuEngine(), "PyTorch": PyTorchEngine()}
                runs = {
                    key: partial(run, engine, model, rows, beams) for key, engine in both.items()
                }
                times = seconds(runs, options.rounds)
                cells.append(
                    f"{median(b / a for a, b in zip(times['engine'], times['PyTorch'], strict=True)):.2f}"
                )
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
