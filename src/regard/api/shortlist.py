"""`regard.shortlist`: learns the vocabulary shortlist of a translation model,
and adds it to its checkpoint.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch

from regard.api.evaluate import as_paths
from regard.api.look import data_of
from regard.checkpoint import store
from regard.checkpoint.format import SHORTLIST, find_checkpoint
from regard.core.errors import InvalidArgument
from regard.data.fields.text import tokenizer_of
from regard.data.lexicon import learn_lexicon
from regard.data.sources import examples
from regard.generation.shortlist import Shortlist
from regard.inference.load import load

log = logging.getLogger(__name__)

CHUNK = 1024  # examples that are tokenized at once


def shortlist(
    model: str | Path,
    *,
    candidates: int = 50,
    frequent: int = 100,
    data: str | Path | Sequence[str | Path] | None = None,
    columns: Sequence[str] = (),
    max_examples: int = 200_000,
    trust_data_paths: bool = False,
) -> tuple[Path, Shortlist]:
    """Learn a shortlist and add it to the checkpoint of a run, or to a checkpoint;
    decode.shortlist uses it.

    model              a run, whose best checkpoint gets the shortlist, or a checkpoint
    candidates         output tokens of each source token: its most likely translations (IBM model
                       1)
    frequent           output tokens that every output may have: the most frequent
    data               files of sources and targets, or a split of the model's own data; default:
                       its training data
    columns            of a table, of the source and the target
    max_examples       examples to learn from, the first ones: all their pairs of tokens are in
                       memory
    trust_data_paths   that of `regard.evaluate`

    Returns the checkpoint and the shortlist. A signature of the checkpoint is removed: it was that
    of other content.
    """
    for name, value in (
        ("candidates", candidates),
        ("frequent", frequent),
        ("max_examples", max_examples),
    ):
        if value < 1:
            raise InvalidArgument(name, wanted="1 or more", got=str(value), remedy="Leave it out.")
    folder = find_checkpoint(Path(model))
    predictor = load(folder, device="cpu")
    source = tokenizer_of(predictor.source)
    target = tokenizer_of(predictor.target)
    recipe = predictor.recipe
    if source is None or target is None:
        wanted = "a model from one text to another"
        remedy = "Others have no source tokens to translate."
        raise InvalidArgument("model", wanted=wanted, got=str(model), remedy=remedy)
    config, split = data_of(
        recipe, as_paths(data or "train"), columns, trust_data_paths=trust_data_paths
    )

    def pairs() -> Iterator[tuple[list[int], list[int]]]:
        remaining = islice(examples(config, split), max_examples)
        while chunk := list(islice(remaining, CHUNK)):
            rows = source.encode_batch([str(each.source) for each in chunk])
            special = source.special_tokens, target.special_tokens
            for row, column in zip(
                rows, target.encode_batch([each.target for each in chunk]), strict=True
            ):
                yield special[0].source(row), special[1].output(column)

    sizes = source.size, target.size
    lexicon = learn_lexicon(pairs(), sizes)
    likely = lexicon.likely(sizes[0], candidates)
    most = lexicon.frequent(frequent)
    learned = Shortlist.of(
        {"likely": torch.from_numpy(likely), "frequent": torch.from_numpy(most)}, *sizes
    )
    if (folder / store.SIGNATURE).exists():
        log.warning(
            "%s: its signature is removed, which was that of other "
            "content: regard sign signs it again",
            folder,
        )
    store.add(folder, SHORTLIST, learned.tensors)
    return folder, learned
