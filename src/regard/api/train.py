"""Train a recipe, from its data to its best model."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard import __version__
from regard.api.backbones import backbone_of, identity, put_pretrained, seen_once, weights_file
from regard.api.evaluate import validation
from regard.checkpoint import store
from regard.checkpoint.card import card
from regard.checkpoint.format import Vocabularies, checkpoint_texts, read_vocabularies
from regard.core.atomic_io import cache_folder, named_os_errors, remove_leftovers
from regard.core.errors import CheckpointRefused, InvalidArgument, InvalidRecipe, Problem
from regard.core.sequence import pin_memory
from regard.data.batching import Batch, PackedCapacity, batches, shift_contexts, stateful_batches
from regard.data.config import AugmentKind
from regard.data.corpus import Corpus, Prepared, PrepareProgress, prepare
from regard.data.from_python import PythonRows, with_python_data
from regard.data.prefetch import prefetch
from regard.inference.load import load
from regard.inference.predictor import Predictor, Vocabulary
from regard.model.build import build
from regard.model.seq2seq import MaskedLanguageModel, Model
from regard.recipe.load import check_files, read_tables
from regard.recipe.recipe import Recipe
from regard.training.distributed import ALONE, ProcessGroup, joined
from regard.training.optimizers import freeze
from regard.training.scst import SelfCriticalReward
from regard.training.telemetry.loggers import logged
from regard.training.trainer import Trainer

Tell = Callable[[dict[str, Any]], None]
WASTE = 8  # recurrent steps for each token, from which on one is told
Found = tuple[int, dict[str, bytes], list[str]]  # a checkpoint: its step, its files, and what is wrong with those after


def silent(event: dict[str, Any]) -> None:
    """Tell nobody."""


def prepared(
    recipe: Recipe, cache: Path | None = None, tell: Tell = silent, vocabularies: Vocabularies | None = None
) -> Prepared:
    """The recipe's data in numbers: made once, then found again by their content."""
    check_files(recipe)
    if vocabularies is None and recipe.train.init_from is not None:
        return _prepared_after(load(recipe.train.init_from), recipe, cache, tell)
    return prepare(recipe.data, cache or cache_folder(), vocabularies=vocabularies, progress=_progress(tell))


def _prepared_after(before: Predictor, recipe: Recipe, cache: Path | None, tell: Tell) -> Prepared:
    """With the vocabularies of a model that is started from. What a masked-token head learned on is now the source."""
    data = recipe.data
    given: tuple[Vocabulary | None, Vocabulary | None] = before.source, before.target
    if isinstance(before.model, MaskedLanguageModel) and data.source is not None:
        given = (before.target, before.target if data.has_shared_vocab else None)
    return prepare(data, cache or cache_folder(), vocabularies=given, progress=_progress(tell))


def _progress(tell: Tell) -> PrepareProgress:
    return lambda stage, number: tell({"event": "prepare", "stage": stage, "examples": number})


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    run: str | Path,
    *,
    data: Mapping[str, PythonRows] | None = None,
    changes: Sequence[str] = (),
    resume: bool = False,
    cache: Path | None = None,
    allow_changed_data: bool = False,
    tell: Tell = silent,
) -> Predictor:
    """Train what the recipe says, with checkpoints in the folder `run`; the best model, ready to predict.

    `data` gives splits ("train", "valid", "test") as iterables instead of files: of texts, of (source, target), or of
    mappings whose keys are the recipe's columns. Each is read once. Processes that torchrun started train one model,
    and each of them gets it; the first one writes and tells.
    """
    recipe = _read(recipe, changes, data, cache)
    run = Path(run)
    with joined(device_of(recipe), recipe.train.distributed_timeout) as ranks:
        _check_alike(recipe, ranks)
        found = _room_for_all(run, resume, ranks)
        step, names = None if found is None else found[0], recipe.train.loggers or ()
        with logged(names if ranks.first else (), run, recipe.as_dict(), step, tell if ranks.first else silent) as tell:
            if resume and found is None:
                tell({"event": "warning", "message": f"{run} has no checkpoint to resume from: training begins"})
            return _train(recipe, run, found, cache, allow_changed_data, tell, ranks)


def _train(
    recipe: Recipe,
    run: Path,
    found: Found | None,
    cache: Path | None,
    allow_changed_data: bool,
    tell: Tell,
    ranks: ProcessGroup,
) -> Predictor:
    if found is None and (config := backbone_of(recipe)) is not None:
        weights_file(config)  # refused before any work is done, if it is not there
    corpora = prepared(recipe, cache, tell, None if found is None else _vocabularies(found, run))
    if corpora.train is None:
        raise InvalidRecipe([Problem("data.train", "something to train on", "none", "Name a file.")])
    table = recipe.sized(corpora)
    if found is not None:
        step, content, wrong = found
        folder = store.step_folder(run, step)
        for line in wrong:
            tell({"event": "warning", "message": f"passed over: {line}"})
        _check_same(content, folder, corpora, recipe, allow_changed_data)
    model = make_model(recipe, table, found, run, divided=recipe.train.fsdp and not ranks.alone, tell=tell)
    ranks.agree({"data": corpora.key, "weights": None if ranks.alone else identity(model)})
    corpora = seen_once(recipe, model, corpora, cache or cache_folder(), _progress(tell))
    assert corpora.train is not None
    texts = checkpoint_texts(recipe.as_dict(), corpora, table, __version__) | {
        "README.md": card(recipe, corpora, model)
    }
    trainer = Trainer(
        model,
        recipe.train,
        epoch_batches=epochs(recipe, corpora.train, ranks),
        texts=texts,
        run=run,
        data_key=corpora.key,
        lanes=_lanes(recipe) if recipe.train.carry_state else None,
        validate=None if corpora.valid is None else validation(recipe, corpora),
        speak=None if recipe.train.reward is None else SelfCriticalReward(recipe, corpora.train, corpora.target, ranks),
        tell=tell,
        ranks=ranks,
        device=device_of(recipe),
    )
    if found is not None:
        trainer.resume(content, folder)
        tell({"event": "resumed", "step": step})
    if (waste := _waste(recipe, corpora.train)) is not None:
        tell({"event": "warning", "message": waste})
    tell({"event": "start", "model": repr(model), "steps": recipe.train.max_steps, "device": str(trainer.device)})
    final = run / "averaged"
    if not trainer.done:
        if ranks.first:
            shutil.rmtree(final, ignore_errors=True)  # the mean of checkpoints that will not be the last
        trainer.fit()
    if recipe.train.average_checkpoints > 1 and ranks.first and not final.exists():
        store.write(final, texts, {"model.safetensors": average(run, recipe.train.average_checkpoints, tell)})
    ranks.gathered([0])  # when the first has written all
    return load(final if recipe.train.average_checkpoints > 1 else run, device=str(trainer.device))


def _read(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    changes: Sequence[str],
    data: Mapping[str, PythonRows] | None,
    cache: Path | None,
) -> Recipe:
    if isinstance(recipe, Recipe) and not changes and data is None:
        return recipe
    tables = read_tables(recipe.as_dict() if isinstance(recipe, Recipe) else recipe, changes)
    if data is not None and isinstance(settings := tables.get("data", {}), Mapping):
        tables["data"] = with_python_data(settings, data, cache or cache_folder())
    return Recipe.of(tables)


def make_model(
    recipe: Recipe,
    table: Mapping[str, Any],
    found: Found | None = None,
    run: Path = Path(),
    divided: bool = False,
    tell: Tell = silent,
) -> Model:
    """The model at its first step, from the seed and from others' weights, or as a checkpoint of the run has it.

    It is frozen where the recipe says. If it will be divided among GPUs, it is not put on one.
    """
    torch.manual_seed(recipe.train.seed)
    model = build(table)
    if found is None:
        _first_weights(model, recipe, tell)
    else:
        folder = store.step_folder(run, found[0])
        store.put_weights(model, store.tensors(found[1], "model.safetensors", folder), folder)
    if recipe.train.freeze is not None:
        freeze(model, recipe.train.freeze)
    return model if divided else model.to(device_of(recipe))


def _first_weights(model: Model, recipe: Recipe, tell: Tell) -> None:
    if (config := backbone_of(recipe)) is not None:
        put_pretrained(model, config)
    if recipe.train.init_from is not None:
        before = load(recipe.train.init_from)
        mine, theirs = store.weights_of(model), store.weights_of(before.model)
        fit = {name for name in mine.keys() & theirs.keys() if mine[name].shape == theirs[name].shape}
        if not fit:
            raise CheckpointRefused(f"{before.folder}: wanted weights of such a model; got none that fit.")
        with torch.no_grad():
            for name in fit:
                mine[name].copy_(theirs[name])
        if others := [name for name in mine if name not in fit]:
            some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            message = f"{before.folder}: {len(fit)} of {len(mine)} weights fit, and were taken; drawn anew: {some}"
            tell({"event": "warning", "message": message})


def device_of(recipe: Recipe) -> str:
    wanted = recipe.train.device
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InvalidRecipe([Problem("train.device", "a GPU that PyTorch can use", "none", "Set it to 'cpu'.")])
    return wanted


def average(run: Path, count: int, tell: Tell) -> dict[str, torch.Tensor]:
    """The mean of the weights of a run's last regular checkpoints, of those that are whole."""
    total, taken = dict[str, torch.Tensor](), 0
    for step in store.regular(run)[-count:]:
        folder = store.step_folder(run, step)
        try:
            content = store.read(folder)
        except CheckpointRefused as error:
            tell({"event": "warning", "message": f"passed over in the mean: {error}"})
            continue
        taken += 1
        for name, tensor in store.tensors(content, "model.safetensors", folder).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / taken).float() for name, tensor in total.items()}


def _room_for(run: Path, resume: bool) -> Found | None:
    """Make the folder, or find where to go on; known to be writable before any work is done."""
    with named_os_errors(run, "a folder to write to"):
        run.mkdir(parents=True, exist_ok=True)
        probe = run / f".{os.getpid()}.tmp"
        probe.write_bytes(b"")
        probe.unlink()
    if resume:
        remove_leftovers(run)
        return store.newest(run)
    if store.steps(run):
        raise InvalidArgument(
            str(run),
            wanted="a folder without checkpoints",
            got=f"{len(store.steps(run))} of them",
            remedy="Go on with --resume, or choose another folder.",
        )
    (run / "log.jsonl").unlink(missing_ok=True)
    return None


def _room_for_all(run: Path, resume: bool, ranks: ProcessGroup) -> Found | None:
    """The first rank makes the folder or finds where to go on; the others must see it there."""
    if ranks.alone:
        return _room_for(run, resume)
    found = _room_for(run, resume) if ranks.first else None
    probe, mark = run / ".ranks.tmp", os.getpid()
    if ranks.first:
        probe.write_text(str(mark))
    try:
        mark, step = map(int, ranks.gathered([mark, -1 if found is None else found[0]])[0])
        sees = probe.exists() and probe.read_text() == str(mark)
        blind = [str(rank) for rank, (seen,) in enumerate(ranks.gathered([sees])) if not seen]
    finally:
        if ranks.first:
            probe.unlink(missing_ok=True)
    if blind:
        raise InvalidArgument(
            str(run),
            wanted="a folder that all processes see",
            got=f"one that rank {', '.join(blind)} does not",
            remedy="Put it on a disk that the machines share.",
        )
    if ranks.first or step < 0:
        return found
    return step, store.read(store.step_folder(run, step)), []


def _check_alike(recipe: Recipe, ranks: ProcessGroup) -> None:
    """Processes train one model if they have one recipe, but for where its files lie, and one version of everything."""
    if ranks.alone:
        return
    places = ("data.train", "data.valid", "data.test", "data.images")
    said = {key: value for key, value in recipe.settings() if key not in places}
    ranks.agree(said | {"regard": __version__, "torch": torch.__version__, "device": device_of(recipe)})
    config = recipe.train
    problems = []
    if config.cuda_graphs:
        problems.append(Problem("train.cuda_graphs", "false with several processes", "true", "Leave it out."))
    if config.carry_state and _lanes(recipe) < ranks.world:
        wanted = f"data.context_length times the {ranks.world} processes, for a lane of text in each"
        problems.append(Problem("train.batch_tokens", wanted, str(config.batch_tokens), "Raise it."))
    if problems:
        raise InvalidRecipe(problems)


def _vocabularies(found: Found, run: Path) -> Vocabularies:
    """Those the weights were trained with, whatever would be learned from the data of today."""
    step, content, _ = found
    return read_vocabularies(content, store.step_folder(run, step))


def _check_same(content: Mapping[str, bytes], folder: Path, data: Prepared, recipe: Recipe, allow: bool) -> None:
    """A run goes on with the data and the recipe it began with."""
    state = store.document(content, "training.json", folder)
    config = store.document(content, "config.json", folder)
    then, now = Recipe.of(config["recipe"]), recipe
    if state.get("data") != data.key and not allow:
        raise CheckpointRefused(
            f"{folder}: wanted the data that the run began with; got others{_changed(then, now, 'data.')}. "
            "Put them back, or allow it with --allow-changed-data."
        )
    free = {
        "max_steps", "validate_every", "log_every", "loggers", "keep_checkpoints", "patience", "log_samples", "device",
        "cuda_graphs", "fsdp", "distributed_timeout",
    }  # fmt: skip
    same = replace(now.train, **{key: getattr(then.train, key) for key in free})
    if then.model != now.model or then.train != same or _augment(then) != _augment(now):
        changed = _changed(then, replace(now, train=same), "model.", "train.", "data.source.augment")
        raise CheckpointRefused(
            f"{folder}: wanted the recipe that the run began with; got another{changed}. "
            f"On resuming, only {', '.join(sorted(free))} of [train] may change."
        )


def _changed(then: Recipe, now: Recipe, *of: str) -> str:
    """The keys of these tables that say something else now, in brackets."""
    before, after = ({key: value for key, value in each.settings() if key.startswith(of)} for each in (then, now))
    keys = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
    told = "; ".join(f"{key} = {after.get(key)!r}, which was {before.get(key)!r}" for key in keys)
    return told and f" ({told})"


def _waste(recipe: Recipe, corpus: Corpus) -> str | None:
    """What to say where recurrent steps of packed batches mostly go on after their sequences have ended."""
    decoder = recipe.model.decoder
    recurrent = decoder is not None and decoder.config.carries_state
    if not (recipe.train.packed and device_of(recipe) == "cuda" and recurrent):
        return None
    room = PackedCapacity.of(corpus, recipe.train.batch_tokens)
    cells, tokens = room.rows * max(room.longest), max(room.positions)
    if cells <= WASTE * tokens:
        return None
    return (
        f"train.packed: {room.rows:,} sequences of a batch take as many steps as the corpus's longest, "
        f"{max(room.longest):,}: {cells:,} for {tokens:,} tokens. Take the longest out of the data, or leave "
        "train.packed out."
    )


def epochs(recipe: Recipe, corpus: Corpus, ranks: ProcessGroup = ALONE) -> Callable[[int, int], Iterator[Batch]]:
    """An epoch's batches from the n-th on, or a rank's share of them."""
    config, among = recipe.train, {"rank": ranks.rank, "world": ranks.world}
    on_gpu = device_of(recipe) == "cuda"
    # Filled there, replayed or not, so that both are the same.
    room = PackedCapacity.of(corpus, config.batch_tokens, filled=on_gpu) if config.packed else None

    def epoch_batches(epoch: int, start: int) -> Iterator[Batch]:
        if config.carry_state:
            assert recipe.data.context_length is not None
            made = stateful_batches(
                corpus, rows=_lanes(recipe), context_length=recipe.data.context_length, start=start, **among
            )
        else:
            made = batches(
                shift_contexts(corpus, seed=config.seed, epoch=epoch),
                budget=config.batch_tokens,
                seed=config.seed,
                epoch=epoch,
                start=start,
                together=config.accumulate_steps,
                augment=_augment(recipe),
                device=device_of(recipe),
                capacity=room,
                mixed=config.mixed_lengths,
                **among,
            )
        return prefetch(map(pin_memory, made) if on_gpu else made)

    return epoch_batches


def _augment(recipe: Recipe) -> tuple[AugmentKind, ...]:
    return () if recipe.data.source is None else recipe.data.source.augment or ()


def _lanes(recipe: Recipe) -> int:
    assert recipe.data.context_length is not None
    return max(1, recipe.train.batch_tokens // recipe.data.context_length)
