"""Train one byte-pair encoding on both sides of Multi30k and write all sentences as numbers.

python -m peers.tokenise FOLDER_OF_MULTI30K OUT.npz
"""

import gzip
import sys
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from peers.batches import SPECIALS, VOCABULARY


def main(folder: Path, out: Path) -> None:
    sides = {}
    for side in ("en", "de"):
        with gzip.open(folder / f"train.{side}.gz", "rt", encoding="utf-8") as file:
            sides[side] = file.read().splitlines()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIALS), show_progress=False
    )
    tokenizer.train_from_iterator(chain.from_iterable(sides.values()), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(
            f"wanted {VOCABULARY} tokens, got {tokenizer.get_vocab_size()}: is the text all there?"
        )
    arrays = {}
    for side, sentences in sides.items():
        rows = [encoding.ids for encoding in tokenizer.encode_batch(sentences)]
        arrays[side] = np.fromiter(chain.from_iterable(rows), np.int64)
        arrays[f"{side}_lengths"] = np.array([len(row) for row in rows])
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
