"""BLEU against the length of the source: what a fixed vector between encoder and decoder costs.

    .venv/bin/python benchmarks/lengths.py runs/rnn runs/attention runs/transformer --bounds 10 15 20

Each run's model translates the test split of its data; the table has a row a run and a column a span of source words.
"""

import argparse
from itertools import pairwise

import regard
from regard.evaluation.metrics import bleu
from regard.jobs.evaluating import references


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--bounds", type=int, nargs="+", default=[10, 15, 20])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    spans = list(pairwise([0, *options.bounds, 10**9]))
    for i, run in enumerate(options.runs):
        model = regard.load(run, device=options.device)
        rows = references(model.recipe, "test")
        outputs = model.predict([source for source, _ in rows])
        found = [
            [
                (output, gold[0])
                for (source, gold), output in zip(rows, outputs, strict=True)
                if a < len(source.split()) <= b
            ]
            for a, b in spans
        ]
        if i == 0:
            names = [f"{a + 1}–{b}" for a, b in spans[:-1]] + [f"over {spans[-1][0]}"]
            heads = [f"{name} words ({len(rows)})" for name, rows in zip(names, found, strict=True)]
            print(f"| run | all | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}")
        whole = bleu(outputs, [gold[0] for _, gold in rows]).value
        values = [f"{bleu(*zip(*part, strict=True)).value:.1f}" if part else "–" for part in found]
        print(f"| {run} | {whole:.1f} | {' | '.join(values)} |", flush=True)


if __name__ == "__main__":
    main()
