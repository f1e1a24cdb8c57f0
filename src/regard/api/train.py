"""`regard.train`: from a recipe and its data to the best model of a run; `regard.prepare`:
its tokenized data.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.api.evaluate import validation
from regard.api.initial_word_vectors import (
    check_word_vectors,
    frozen_word_vectors,
    load_word_vectors,
    with_stored_word_vectors,
)
from regard.api.train_checks import (
    check_examples,
    check_ranks,
    check_resumable,
    check_tied_vocabulary,
    check_trainable,
    with_warmup,
)
from regard.checkpoint import store
from regard.checkpoint.card import model_card
from regard.checkpoint.format import (
    CARD,
    WEIGHTS,
    checkpoint_texts,
    read_config,
    read_vocabularies,
)
from regard.checkpoint.verify import AVERAGED
from regard.core.atomic_io import cache_folder, saving
from regard.core.errors import CheckpointRefused, InvalidArgument, InvalidRecipe, Problem
from regard.core.version import __version__
from regard.data import corpus
from regard.data.corpus import (
    Corpus,
    Prepared,
    PrepareProgress,
    SourceVocabularies,
    Vocabularies,
    VocabularyType,
)
from regard.data.features import cache_features
from regard.data.fields.label import labels_of
from regard.data.fields.text import DEFAULT_SIZE, require_tokenizer
from regard.data.from_python import PythonRows, with_python_data
from regard.evaluation.cider_reward import CiderReward
from regard.inference.load import load, stored_recipe
from regard.inference.predictor import Predictor
from regard.inference.teachers import load_teachers
from regard.kernels.layers.linear_fp8 import unsupported_device
from regard.model.backbones import BackboneConfig
from regard.model.build import build
from regard.model.multi_source import source_encoders
from regard.model.pretrained import grid_encoder, load_pretrained, weights_file
from regard.model.seq2seq import Model
from regard.model.weights import fingerprint, load_weights, weights_of
from regard.recipe.load import locate_data, read_tables
from regard.recipe.recipe import Recipe
from regard.recipe.shipped import find_recipe
from regard.recipe.trusted_paths import record_paths
from regard.training.checkpointing import Checkpoint, average_checkpoints, open_run
from regard.training.config import TrainConfig
from regard.training.distributed import SINGLE_PROCESS, ProcessGroup, process_group
from regard.training.epoch_batches import EpochBatches, lanes_of
from regard.training.optimizers import freeze
from regard.training.scst import SelfCriticalSampler
from regard.training.telemetry.log_file import EventHandler, ignore_event
from regard.training.telemetry.loggers import logged
from regard.training.trainer import Trainer
from regard.views.progress import live_training_progress


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    run: str | Path,
    *,
    data: Mapping[str, PythonRows] | None = None,
    changes: Sequence[str] = (),
    resume: bool = False,
    cache: Path | None = None,
    allow_changed_data: bool = False,
    on_event: EventHandler = ignore_event,
    progress: bool = True,
) -> Predictor:
    """Train the model of a recipe, with checkpoints in the folder `run`.

    Returns the best model, ready to predict.

    recipe     a TOML file, the name of a built-in recipe, a mapping with its tables, or a `Recipe`
    run        the folder of the run: a new or an empty one, or with `resume` that of an earlier run
    data       splits ("train", "valid", "test") as iterables instead of files: of texts, of
               (source, target) pairs, or of mappings whose keys are the recipe's columns; each is
               read once
    changes    of the recipe: "train.learning_rate=0.001"
    resume     continue from the run's last intact checkpoint
    cache      the folder of prepared data; default: $REGARD_CACHE, or ~/.cache/regard
    allow_changed_data   resume although the data are not those that the run began with
    on_event   called with each event of the run: start, update, train, validation, checkpoint,
               warning, ...
    progress   show the progress on a terminal or in a notebook; elsewhere nothing is shown

    Processes started by torchrun train one model and all return it; rank 0 writes and reports.
    Raises `InvalidRecipe`, `InvalidArgument` (a folder that is in use, data that cannot be read),
    `Diverged` and `TrainingFailed`.
    """
    recipe = _read(recipe, changes, data, cache)
    if not str(run):
        raise InvalidArgument(
            "run", wanted="the folder of the run", got="an empty name", remedy="Name a folder."
        )
    run = Path(run)
    with process_group(device_of(recipe), recipe.train.distributed_timeout) as group:
        check_ranks(recipe, group, device_of(recipe))
        if group.is_main:
            record_paths(recipe.data)
        with open_run(run, resume=resume, process_group=group) as checkpoint:
            step = None if checkpoint is None else checkpoint[0]
            before = _recipe_of(checkpoint, run)
            recipe = with_stored_word_vectors(with_warmup(recipe, before), before)
            names: Sequence[str] = ()
            handler: EventHandler = ignore_event
            if group.is_main:
                names = recipe.train.loggers or ()
                handler = on_event
            shown = progress and group.is_main
            with (
                live_training_progress(handler, shown=shown) as handler,
                logged(names, run, recipe.as_dict(), step, handler) as on_event,
            ):
                if resume and checkpoint is None:
                    _warn(on_event, f"{run} has no checkpoint to resume from: training begins")
                return _train(recipe, run, checkpoint, cache, allow_changed_data, on_event, group)


def _recipe_of(checkpoint: Checkpoint | None, run: Path) -> Recipe | None:
    """The recipe of the checkpoint that a run resumes from."""
    if checkpoint is None:
        return None
    step, content, _ = checkpoint
    folder = store.step_folder(run, step)
    return stored_recipe(read_config(content, folder), folder)


def _train(
    recipe: Recipe,
    run: Path,
    checkpoint: Checkpoint | None,
    cache: Path | None,
    allow_changed_data: bool,
    on_event: EventHandler,
    group: ProcessGroup,
) -> Predictor:
    if checkpoint is None:
        for backbone in backbones_of(recipe).values():
            weights_file(backbone)  # a missing file is refused before the data are prepared
        check_word_vectors(recipe)
    step, content, damaged = checkpoint or (0, None, ())
    folder = store.step_folder(run, step)
    vocabularies = None
    if content is not None:
        # Those that the weights were trained with, whatever the data would give now.
        *sources, _ = recipe.data.fields
        vocabularies = read_vocabularies(content, folder, sources)
    data = prepare(recipe, cache, on_event, vocabularies)
    if data.train is None:
        raise InvalidRecipe(
            [Problem("data.train", "something to train on", "none", "Name a file.")]
        )
    if problems := list(recipe.task.monitor_problems(recipe.train.monitor, data.target)):
        raise InvalidRecipe(problems)
    labels = labels_of(data.target)
    names = () if labels is None else labels.names
    problems = list(recipe.decode.unknown_labels(names))
    if problems:
        raise InvalidRecipe(problems)
    table = recipe.sized(data)
    for problem in damaged:
        _warn(on_event, f"damaged checkpoint skipped: {problem}")
    if content is not None:
        check_resumable(content, folder, data, recipe, allow_changed_data)
    distillation = load_teachers(recipe, data, device_of(recipe))
    sharded = recipe.train.fsdp and not group.single
    model = make_model(recipe, table, content, folder, sharded=sharded, on_event=on_event)
    frozen_rows = frozen_word_vectors(recipe, model, data)
    if content is None:
        load_word_vectors(recipe, model, data, frozen_rows, on_event)
    teachers = None if distillation is None else distillation.fingerprints
    weights = None if group.single else fingerprint(model)
    group.check_equal({"data": data.key, "weights": weights, "teachers": teachers})
    data = with_cached_features(recipe, model, data, cache or cache_folder(), _progress(on_event))
    assert data.train is not None
    texts = checkpoint_texts(
        recipe.as_dict(), data.vocabularies, table, __version__, recipe.extensions()
    )
    texts[CARD] = _card(recipe, data, model)
    config = recipe.train
    batches = epochs(recipe, data.train, group)
    trainer = Trainer(
        model,
        batches,
        texts=texts,
        run=run,
        data_key=data.key,
        validate=None if data.valid is None else validation(recipe, data),
        sampler=None if config.reward is None else _sampler(recipe, data, group),
        distillation=distillation,
        special_tokens=data.special_tokens,
        frozen_rows=frozen_rows,
        on_event=on_event,
    )
    if content is not None:
        trainer.resume(content, folder)
        on_event({"event": "resumed", "step": step})
    decoder = recipe.model.decoder
    if (
        decoder is not None
        and decoder.module.carries_state
        and (message := batches.padding_warning()) is not None
    ):
        _warn(on_event, message)
    on_event(
        {
            "event": "start",
            "model": repr(model),
            "steps": batches.total_steps,
            "device": str(trainer.device),
        }
    )
    average = run / AVERAGED
    if not trainer.done:
        if group.is_main:
            # It is of checkpoints that are no longer the last ones.
            shutil.rmtree(average, ignore_errors=True)
        trainer.fit()
    if config.average_checkpoints > 1 and group.is_main and not average.exists():
        with saving(average, "save the average of the last checkpoints"):
            store.write(
                average,
                texts,
                {WEIGHTS: average_checkpoints(run, config.average_checkpoints, on_event)},
            )
    group.all_gather([0])  # wait until rank 0 has written everything
    best = average if config.average_checkpoints > 1 else run
    return load(best, device=str(trainer.device))


def prepare(
    recipe: Recipe,
    cache: Path | None = None,
    on_event: EventHandler = ignore_event,
    vocabularies: Vocabularies | None = None,
) -> Prepared:
    """The tokenized data of a recipe, from the cache if they were prepared before.

    recipe         a `Recipe`: `Recipe.of(...)` makes one of a mapping with its tables
    cache          the folder of prepared data; default: $REGARD_CACHE, or ~/.cache/regard
    on_event       called with the warnings of reading the data
    vocabularies   of the sources and of the target; default: those of the model that training
                   starts from, or learned from the training data
    """
    check_trainable(recipe, vocabularies is not None)
    config = locate_data(recipe)
    given: tuple[SourceVocabularies, VocabularyType | None] | None = vocabularies
    if given is None and recipe.train.init_from is not None:
        given = _vocabularies_of(load(recipe.train.init_from, device="cpu"), recipe)
    if given is not None:
        check_tied_vocabulary(recipe, *given)
    prepared = corpus.prepare(
        config, cache or cache_folder(), vocabularies=given, progress=_progress(on_event)
    )
    check_examples(recipe, config, prepared)
    return prepared


def _vocabularies_of(
    before: Predictor, recipe: Recipe
) -> tuple[SourceVocabularies, VocabularyType | None]:
    """The vocabularies of the model that training starts from; a target of None is learned.

    A size of the recipe that is neither the default nor the model's is refused.
    """
    sources = before.sources
    target = before.target
    data = recipe.data
    given: tuple[SourceVocabularies, VocabularyType | None] = sources, target
    if before.task.reads_target and data.source is not None:
        # Its tokens are now those of the source.
        given = (target,), target if data.has_shared_vocab else None
    elif not isinstance(target, data.target.vocabulary_class or type(None)):
        # Of an encoder-decoder, the encoder: the target is learned.
        given = sources, None
    fields_before = before.recipe.data.fields.values()
    # Sizes that say nothing: the default, and those with which the vocabularies were learned.
    asked_before = {DEFAULT_SIZE, *(field.asked_size for field in fields_before)}
    problems = [
        Problem(
            f"data.{name}.vocab_size",
            f"{vocabulary.size}, of the vocabulary of {before.folder}",
            str(field.asked_size),
            "Leave it out: train.init_from brings its vocabulary.",
        )
        for (name, field), vocabulary in zip(
            data.fields.items(), (*given[0], given[1]), strict=False
        )
        if vocabulary is not None
        and field.asked_size is not None
        and field.asked_size not in asked_before | {vocabulary.size}
    ]
    if problems:
        raise InvalidRecipe(problems)
    return given


def make_model(
    recipe: Recipe,
    table: Mapping[str, Any],
    content: Mapping[str, bytes] | None = None,
    folder: Path = Path(),
    sharded: bool = False,
    on_event: EventHandler = ignore_event,
) -> Model:
    """The model before its first update, frozen as the recipe says,
    with pretrained weights or those of a checkpoint.

    content, folder   of the checkpoint to resume from
    sharded           whether it will be sharded: it then stays on the CPU
    """
    torch.manual_seed(recipe.train.seed)
    model = build(table)
    if content is not None:
        load_weights(model, store.tensors(content, WEIGHTS, folder), folder)
    else:
        for number, backbone in backbones_of(recipe).items():
            load_pretrained(source_encoders(model.encoder)[number], backbone)
        if recipe.train.init_from is not None:
            _init_from(model, recipe.train.init_from, on_event)
    if recipe.train.freeze is not None:
        freeze(model, recipe.train.freeze)
    if sharded:
        return model
    return model.to(device_of(recipe))


def _init_from(model: Model, path: str, on_event: EventHandler) -> None:
    """Copy the weights of a checkpoint whose names and shapes match."""
    before = load(path, device="cpu")
    own = weights_of(model)
    others = weights_of(before.model)
    matching = {
        name for name in own.keys() & others.keys() if own[name].shape == others[name].shape
    }
    if not matching:
        raise CheckpointRefused(
            f"{before.folder}: wanted weights of such a model; got none that match."
        )
    with torch.no_grad():
        for name in matching:
            own[name].copy_(others[name])
    if rest := [name for name in own if name not in matching]:
        names = ", ".join(rest[:3])
        if len(rest) > 3:
            names += ", …"
        count = f"{len(matching)} of {len(own)} weights"
        _warn(
            on_event, f"{before.folder}: {count} match and were copied; initialized anew: {names}"
        )


def with_cached_features(
    recipe: Recipe, model: Model, data: Prepared, cache: Path, progress: PrepareProgress
) -> Prepared:
    """The data with cached features in place of images,
    where neither the backbone nor the images ever change.

    The teachers of a distillation read images, as the features are those of the student's backbone.
    """
    if (
        recipe.train.unfreeze_after is not None
        or recipe.data.augment
        or recipe.train.distillation is not None
    ):
        return data
    for number, encoder in enumerate(map(grid_encoder, source_encoders(model.encoder))):
        if encoder is not None and not any(p.requires_grad for p in encoder.backbone.parameters()):
            data = cache_features(data, number, encoder, cache, progress)
    return data


def backbones_of(recipe: Recipe) -> dict[int, BackboneConfig]:
    """The pretrained backbones that a recipe names, by the number of the encoder."""
    backbones = (
        (i, getattr(part.config, "backbone", None)) for i, part in enumerate(recipe.model.encoders)
    )
    return {i: backbone for i, backbone in backbones if backbone is not None}


def device_of(recipe: Recipe) -> str:
    device = recipe.train.device
    problems = []
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        problems.append(
            Problem("train.device", "a GPU that PyTorch can use", "none", "Set it to 'cpu'.")
        )
    if recipe.train.precision == "float8" and (got := unsupported_device(device)) is not None:
        wanted = (
            "'float32' or 'bfloat16' without a GPU that multiplies in float8 "
            "(NVIDIA Hopper or newer)"
        )
        problems.append(
            Problem("train.precision", wanted, f"'float8' on {got}", "Set it to 'bfloat16'.")
        )
    if problems:
        raise InvalidRecipe(problems)
    return device


def epochs(recipe: Recipe, corpus: Corpus, group: ProcessGroup = SINGLE_PROCESS) -> EpochBatches:
    """The batches of every epoch of a recipe's training data, for one rank."""
    lanes = lanes_of(recipe.train, recipe.data.context_length)
    return EpochBatches(recipe.train, corpus, lanes, recipe.data.augment, device_of(recipe), group)


def _sampler(recipe: Recipe, data: Prepared, group: ProcessGroup) -> SelfCriticalSampler:
    assert data.train is not None
    target = require_tokenizer(data.target, "data.target")
    reward = CiderReward(data.train, target, word_tokens=recipe.data.target.unit == "words")
    return SelfCriticalSampler(
        reward,
        max_length=recipe.decode.max_length,
        seed=recipe.train.seed,
        samples=recipe.train.reward_samples,
        temperature=recipe.train.reward_temperature,
        special_tokens=data.special_tokens,
        process_group=group,
    )


def _card(recipe: Recipe, data: Prepared, model: Model) -> str:
    default = TrainConfig()
    changed = {
        key: value for key, value in vars(recipe.train).items() if value != getattr(default, key)
    }
    settings = {"max_steps": recipe.train.max_steps, "seed": recipe.train.seed, **changed}
    rows = {f"train.{key}": value for key, value in settings.items()}
    return model_card(recipe.task.title, repr(model), data.record["splits"], rows)


def _read(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    changes: Sequence[str],
    data: Mapping[str, PythonRows] | None,
    cache: Path | None,
) -> Recipe:
    if isinstance(recipe, Recipe) and not changes and data is None:
        return recipe
    if isinstance(recipe, str | Path):
        recipe = find_recipe(str(recipe))
    tables = read_tables(recipe.as_dict() if isinstance(recipe, Recipe) else recipe, changes)
    if data is not None and isinstance(settings := tables.get("data", {}), Mapping):
        tables["data"] = with_python_data(settings, data, cache or cache_folder())
    return Recipe.of(tables)


def _progress(on_event: EventHandler) -> PrepareProgress:
    return lambda stage, number: on_event({"event": "prepare", "stage": stage, "examples": number})


def _warn(on_event: EventHandler, message: str) -> None:
    on_event({"event": "warning", "message": message})
