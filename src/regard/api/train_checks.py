"""What `regard.train` refuses before the first update: recipes without data, ranks that differ,
changed runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from regard.checkpoint import store
from regard.checkpoint.format import TRAINING_STATE, read_config
from regard.core.errors import CheckpointRefused, InvalidData, InvalidRecipe, Problem
from regard.core.version import __version__
from regard.data.config import DataConfig
from regard.data.corpus import Prepared, SourceVocabularies, VocabularyType
from regard.data.fields.text import tokenizer_of
from regard.data.sources import at_example
from regard.inference.load import stored_recipe
from regard.recipe.recipe import Recipe
from regard.training.distributed import ProcessGroup
from regard.training.epoch_batches import lanes_of

# Keys of [train] that may change when a run is resumed.
RESUMABLE = {
    "max_steps",
    "max_epochs",
    "validate_every",
    "log_every",
    "loggers",
    "keep_checkpoints",
    "patience",
    "log_samples",
    "device",
    "cuda_graphs",
    "fsdp",
    "distributed_timeout",
}


def check_examples(recipe: Recipe, config: DataConfig, prepared: Prepared) -> None:
    """Refuse an example that the model of a recipe cannot learn, such as a target that is too long, with its line.

    config   of the data: those of the recipe, or new ones
    """
    for split, about in prepared.record["splits"].items():
        corpus = getattr(prepared, split)
        found = recipe.task.check_examples(corpus, recipe.model, prepared.target)
        if found is None:
            continue
        number, error = found
        if not any(about["left_out"].values()):
            raise at_example(config, split, number + 1, error)
        # Of the examples that were not left out,
        # which are counted otherwise than the lines of the file.
        where = f"{config.files(split)[-1]}, kept example {number + 1}"
        raise InvalidData(where, wanted=error.wanted, got=error.got, remedy=error.remedy)


def check_trainable(recipe: Recipe, has_vocabularies: bool) -> None:
    """Refuse the recipe of an imported model, which has no data,
    with all that it takes to train it.
    """
    data = recipe.data
    problems = list[Problem]()
    if not data.splits:
        remedy = "Add train = 'FILE', say."
        problems.append(
            Problem("data.train", "files to learn from, or synthetic", "neither", remedy)
        )
    if not has_vocabularies and recipe.train.init_from is None:
        problems += [
            Problem(
                f"data.{name}.tokenizer",
                "one to train, unless train.init_from names a model that has one",
                "'pretrained'",
                "Set train.init_from to the imported model.",
            )
            for name, field in data.fields.items()
            if field.unit == "pretrained"
        ]
    if problems:
        raise InvalidRecipe(problems)


def check_tied_vocabulary(
    recipe: Recipe, sources: SourceVocabularies, target: VocabularyType | None
) -> None:
    """Refuse to share one embedding matrix between two vocabularies, of whatever sizes.

    target   None: it is learned
    """
    if recipe.model.options.tie_embeddings != "all":
        return
    texts = [text for text in map(tokenizer_of, sources) if text is not None]
    if target is None:
        is_one = recipe.data.has_shared_vocab
    else:
        is_one = all(_have_the_same_tokens(each.tokens(), target.tokens()) for each in texts)
    if not is_one:
        wanted = "'target' or 'none' unless source and target have one vocabulary"
        remedy = "Leave it out: the vocabularies are those of the model that training starts from."
        raise InvalidRecipe([Problem("model.tie_embeddings", wanted, "'all'", remedy)])


def _have_the_same_tokens(ones: Sequence[str], others: Sequence[str]) -> bool:
    """Whether each row is the same token in both.

    Two tokenizer files may list different tokens of one vocabulary, as Marian's do; a row that a
    file does not list has its number as a name.
    """
    return len(ones) == len(others) and all(
        one == other or f"<{row}>" in (one, other)
        for row, (one, other) in enumerate(zip(ones, others, strict=True))
    )


def with_warmup(recipe: Recipe, before: Recipe | None = None) -> Recipe:
    """The recipe with a number for train.warmup_steps, which checkpoints store.

    A run that is resumed keeps the warmup of its recipe `before`, also with another max_steps.
    """
    train = recipe.train
    if train.warmup_steps is not None:
        return recipe
    warmup = train.warmup if before is None else before.train.warmup
    if train.max_steps is not None and warmup > train.max_steps:
        wanted = f"at least {warmup}, the updates of warmup that the run began with"
        problem = Problem("train.max_steps", wanted, str(train.max_steps), "Raise it.")
        raise InvalidRecipe([problem])
    return replace(recipe, train=replace(train, warmup_steps=warmup))


def check_ranks(recipe: Recipe, group: ProcessGroup, device: str) -> None:
    """All ranks must have the same recipe, apart from the paths of its files,
    and the same versions.
    """
    if group.single:
        return
    paths = ("data.train", "data.valid", "data.test", "data.images")
    settings = {
        key: value
        for key, value in recipe.settings()
        if key not in paths and not key.endswith(".word_vectors")
    }
    group.check_equal(
        settings | {"regard": __version__, "torch": torch.__version__, "device": device}
    )
    config = recipe.train
    problems = []
    if config.cuda_graphs:
        problems.append(
            Problem("train.cuda_graphs", "false with several processes", "true", "Leave it out.")
        )
    lanes = lanes_of(config, recipe.data.context_length)
    if lanes is not None and lanes < group.world_size:
        wanted = (
            f"data.context_length times the {group.world_size} processes, "
            "for a lane of text in each"
        )
        problems.append(
            Problem("train.batch_tokens", wanted, str(config.batch_tokens), "Raise it.")
        )
    if problems:
        raise InvalidRecipe(problems)


def check_resumable(
    content: Mapping[str, bytes], folder: Path, data: Prepared, recipe: Recipe, allow_changed: bool
) -> None:
    """A run resumes with the data and the recipe that it began with."""
    before = stored_recipe(read_config(content, folder), folder)
    if (
        store.document(content, TRAINING_STATE, folder).get("data") != data.key
        and not allow_changed
    ):
        raise CheckpointRefused(
            f"{folder}: wanted the data that the run began with; got "
            f"others{recipe.changes_since(before, 'data.')}. Put them back, or allow "
            "it with --allow-changed-data."
        )
    same = replace(recipe.train, **{key: getattr(before.train, key) for key in RESUMABLE})
    if (
        before.model != recipe.model
        or before.train != same
        or before.data.augment != recipe.data.augment
    ):
        changed = replace(recipe, train=same).changes_since(
            before, "model.", "train.", "data.source"
        )
        raise CheckpointRefused(
            f"{folder}: wanted the recipe that the run began with; got another{changed}. "
            f"On resuming, only {', '.join(sorted(RESUMABLE))} of [train] may change."
        )
