"""Writes tests/fixtures/seqeval.json: what seqeval 1.2.2 makes of random tags, in both of its modes.

Regard does not need seqeval. It is run once, in an environment of its own:

    python -m venv seqeval && seqeval/bin/pip install seqeval==1.2.2
    seqeval/bin/python tests/support/write_seqeval_fixture.py
"""

import json
import random
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np

VERSION = "1.2.2"
FIXTURE = Path(__file__).parents[1] / "fixtures" / "seqeval.json"
SENTENCES = 150  # of each scheme
CORPORA = 15  # of each scheme, of ten sentences
TYPES = ("PER", "LOC", "MISC-X", "-odd-", "")


def random_tags(chance, length, prefixes):
    """Tags of which most continue what was before, so that spans become long; many are ill-formed."""
    tags = []
    kind = chance.choice(TYPES)
    for _ in range(length):
        if chance.random() < 0.3:
            kind = chance.choice(TYPES)
        prefix = chance.choice(prefixes + "O")
        suffix = f"-{kind}" if kind and prefix != "O" else ""
        tags.append(prefix + suffix)
    return tags


def noisy(chance, tags, prefixes):
    other = random_tags(chance, len(tags), prefixes)
    return [b if chance.random() < 0.25 else a for a, b in zip(tags, other, strict=True)]


def as_lists(scores):
    return [np.asarray(part).tolist() for part in scores]


def main():
    # Here, as the test run imports this file, without seqeval.
    from seqeval.metrics import accuracy_score
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
    from seqeval.metrics.v1 import precision_recall_fscore_support as strict_scores
    from seqeval.scheme import IOB2, IOBES, Entities

    schemes = {"IOB2": (IOB2, "BI"), "BIOES": (IOBES, "BIES")}
    assert version("seqeval") == VERSION
    warnings.simplefilter("ignore")
    chance = random.Random(0)
    sequences = []
    corpora = []
    for name, (scheme, prefixes) in schemes.items():
        references = []
        outputs = []
        for i in range(SENTENCES):
            tags = random_tags(chance, i % 12, prefixes)
            references.append(tags)
            outputs.append(noisy(chance, tags, prefixes))
            strict = Entities([tags], scheme).entities[0]
            sequences.append(
                {
                    "scheme": name,
                    "tags": tags,
                    "lenient": [list(span) for span in get_entities(tags)],
                    "strict": [[span.tag, span.start, span.end - 1] for span in strict],
                }
            )
        for i in range(CORPORA):
            gold = references[10 * i : 10 * i + 10]
            found = outputs[10 * i : 10 * i + 10]
            corpus = {"scheme": name, "references": gold, "outputs": found}
            corpus["accuracy"] = accuracy_score(gold, found)
            for average in ("micro", "macro", None):
                key = average or "types"
                lenient = precision_recall_fscore_support(gold, found, average=average)
                corpus[f"lenient_{key}"] = as_lists(lenient)
                strict = strict_scores(gold, found, average=average, scheme=scheme)
                corpus[f"strict_{key}"] = as_lists(strict)
            corpora.append(corpus)
    written = {"seqeval": VERSION, "sequences": sequences, "corpora": corpora}
    FIXTURE.write_text(json.dumps(written, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
