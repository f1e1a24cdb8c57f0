"""Does attention point at what it names? Captioners of drawn scenes, and the share of weight in the named shape's box.

    regard train shapes-rnn-attention --out runs/shapes
    python benchmarks/pointing.py runs/shapes runs/others --scenes 1000

Only captions that are right count, as in others a word may mean another shape. Chance is the box's share of the
picture.
"""

import argparse

from regard.api.pointing_game import point
from regard.core.text_table import text_table
from regard.inference.load import load


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="trained on synthetic = 'shapes'")
    parser.add_argument("--scenes", type=int, default=1000)
    arguments = parser.parse_args()
    rows = [
        [
            "run",
            "captions right",
            "word",
            "words",
            "inside the box",
            "chance",
            "heaviest region inside",
        ]
    ]
    for run in arguments.runs:
        right, found = point(load(run), arguments.scenes)
        for what, one in found.items():
            if one is not None:
                shares = [f"{share:.1%}" for share in (one.inside, one.chance, one.hits)]
                rows.append(
                    [run, f"{right / arguments.scenes:.1%}", what, f"{one.words:,}", *shares]
                )
    print(text_table(rows))


if __name__ == "__main__":
    main()
