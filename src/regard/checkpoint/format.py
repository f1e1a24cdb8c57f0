"""The files of a checkpoint, config.json and the vocabularies written and read back, and the checkpoints of a run.

    config.json            the resolved recipe, the model's table (with the sizes that the data gave it), versions, and
                           the file, kind and SHA-256 of each vocabulary; of a tokenizer that Regard did not train also
                           its size and its special tokens
    model.safetensors      the weights
    tokenizer.json         the vocabulary (and source_tokenizer.json, where the source has one of its own)
    shortlist.safetensors  the vocabulary shortlist, where one was learned
    training.json          the progress of the run; training.safetensors the optimizer state and the like
    README.md              the model card

A run is a folder of numbered checkpoints, with their average in averaged/ if the recipe asks for it.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint import store
from regard.checkpoint.verify import AVERAGED, check_folder
from regard.core.errors import CheckpointRefused
from regard.core.registry import missing_extensions
from regard.core.version import __version__
from regard.data.corpus import SETTINGS, Vocabularies, VocabularyType
from regard.data.fields.base import FIELDS

FORMAT = 2
READABLE = (1, 2)  # 1: the pool "last" read the last token's state in both directions of an RNN
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
SOURCE_TOKENIZER = "source_tokenizer.json"
TRAINING_STATE = store.TRAINING_STATE
TRAINING_TENSORS = "training.safetensors"
CARD = "README.md"
SHORTLIST = "shortlist.safetensors"
log = logging.getLogger(__name__)


def checkpoint_texts(
    recipe: Mapping[str, Any],
    vocabularies: Vocabularies,
    model: Mapping[str, Any],
    version: str,
    registered: Sequence[Mapping[str, str | None]] = (),
) -> dict[str, str]:
    """The content of config.json and of the vocabulary files, by file name.

    `recipe` and `model` are the resolved tables; `version` is Regard's; `registered` are the names in the recipe that
    were registered at run time (`regard.core.registry.extensions`).
    """
    sources, target = vocabularies
    sides = {"target": (TOKENIZER, target)}
    name = "source"
    file = SOURCE_TOKENIZER
    for number, vocabulary in enumerate(sources, start=1):
        if len(sources) > 1:
            name = f"sources.{number}"
            file = f"source_{number}_tokenizer.json"
        if vocabulary is not None:
            sides[name] = (TOKENIZER if vocabulary is target else file, vocabulary)
    described = {
        side: {
            "file": name,
            "kind": vocabulary.stored_kind,
            "sha256": vocabulary.hash,
            **vocabulary.settings,
        }
        for side, (name, vocabulary) in sides.items()
    }
    config = {
        # The Hugging Face Hub recognizes models by these two keys.
        "architectures": ["Regard"],
        "model_type": "regard",
        "format": FORMAT,
        "regard_version": version,
        "torch_version": torch.__version__,
        "model": model,
        "registered": list(registered),
        "recipe": recipe,
        "vocabularies": described,
    }
    files = {name: vocabulary.to_json() for name, vocabulary in sides.values()}
    return files | {CONFIG: store.as_json(config)}


def read_config(content: Mapping[str, bytes], folder: Path) -> dict[str, Any]:
    """Read config.json of a checkpoint that `store.read` has checked. An unknown format is refused."""
    config = store.document(content, CONFIG, folder)
    if config["format"] not in READABLE:
        raise CheckpointRefused(
            f"{folder}: wanted format {FORMAT}; got {config['format']}. Update Regard."
        )
    if config["format"] == 1:
        _warn_of_changed_pool(config.get("model"), folder)
    missing = list(missing_extensions(config.get("registered", ())))
    if missing:
        raise CheckpointRefused("\n".join(f"{folder}/{CONFIG}: {each}" for each in missing))
    return config


def _warn_of_changed_pool(model: Any, folder: Path) -> None:
    """Warn that a classifier of format 1 now predicts other labels than during its training."""
    table = model if isinstance(model, Mapping) else {}
    pool = table.get("pool")
    encoders = table.get("encoders")
    if isinstance(encoders, list) and encoders:
        encoder = encoders[-1]
    else:
        encoder = table.get("encoder")
    if not isinstance(pool, Mapping) or not isinstance(encoder, Mapping):
        return
    both_directions = encoder.get("kind") == "rnn" and encoder.get("bidirectional", True)
    if pool.get("kind") == "last" and both_directions:
        log.warning(
            "%s: this classifier was trained when its pool, 'last', read the backward direction of "
            "the RNN at the last token, where it has seen one token only. The pool now reads it at "
            "the first token, so that this model's labels are no longer those of its training. "
            "Train it again.",
            folder,
        )


def writer(config: Mapping[str, Any]) -> str:
    """A remedy for a config.json with unknown keys: a newer version of Regard wrote it, or it was changed."""
    written = str(config.get("regard_version"))
    is_version = re.fullmatch(r"\d{1,9}(\.\d{1,9}){1,3}", written)
    if is_version and _numbers(written) > _numbers(__version__):
        return (
            f"It was written by a newer version, Regard {written}, and this is {__version__}: "
            "update Regard."
        )
    return "It was changed, or written by another version."


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def read_vocabularies(
    content: Mapping[str, bytes], folder: Path, sources: Sequence[str]
) -> Vocabularies:
    """Read the vocabularies of a checkpoint that `store.read` has checked.

    sources   the names of the model's sources
    """
    entries = store.document(content, CONFIG, folder)["vocabularies"]
    # Sides that share a vocabulary get the same object.
    read = [(entry, _vocabulary(content, entry, folder)) for entry in _distinct(entries.values())]
    sides = {
        side: next(each for known, each in read if known == entry)
        for side, entry in entries.items()
    }
    of_sources = tuple(sides.get(name) for name in sources)
    return of_sources, sides["target"]


def _distinct(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Drop repeated entries: a shared vocabulary is read once."""
    given = list(entries)
    return [entry for number, entry in enumerate(given) if entry not in given[:number]]


def _vocabulary(
    content: Mapping[str, bytes], entry: Mapping[str, Any], folder: Path
) -> VocabularyType:
    """Read one vocabulary. It is refused unless its hash is the one that the checkpoint recorded."""
    name = entry["file"]
    if name not in content:
        raise CheckpointRefused(f"{folder}: wanted {name}; got none. Use another checkpoint.")
    kinds = _vocabulary_kinds()
    stored_kind = entry["kind"]
    kind = None
    if isinstance(stored_kind, str):
        kind = kinds.get(stored_kind)
    if kind is None:
        wanted = " or ".join(kinds)
        got = f"{stored_kind!r:.80}"
        raise CheckpointRefused(
            f"{folder / CONFIG}: wanted {wanted} as the kind of {name}; got {got}. It was changed."
        )
    try:
        settings = {key: entry[key] for key in SETTINGS if key in entry}
        vocabulary: VocabularyType = kind.from_json(content[name].decode(), settings)
    except ValueError as error:
        problem = str(error).rstrip(".")
        raise CheckpointRefused(
            f"{folder / name}: wanted a vocabulary; got {problem}. It was changed."
        ) from None
    if vocabulary.hash != entry["sha256"]:
        raise CheckpointRefused(
            f"{folder / name}: wanted the vocabulary that the model was trained with; got another. Put it back."
        )
    return vocabulary


def _vocabulary_kinds() -> dict[str, type[VocabularyType]]:
    """The classes of vocabularies by the name under which checkpoints store their kind."""
    classes = (FIELDS[kind].vocabulary_class for kind in FIELDS)
    return {each.stored_kind: each for each in classes if each is not None}


def regular_steps(run: Path) -> list[int]:
    """The steps of checkpoints that were saved after a validation, not because the run was stopped."""
    return [step for step in store.steps(run) if _regular(store.step_folder(run, step))]


def _regular(folder: Path) -> bool:
    path = folder / TRAINING_STATE
    # A checkpoint whose training state is missing or damaged counts as regular.
    try:
        if not path.is_file():
            return True
        state = json.loads(path.read_bytes())
        return bool(state["validated"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return True


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path means: the path itself, or the averaged or best checkpoint of a run."""
    folder, _ = _find(path)
    return folder


def open_checkpoint(path: Path) -> tuple[Path, dict[str, bytes]]:
    """Find the checkpoint that a path means, and read its files by name with every byte checked.

    The optimizer state is not read.
    """
    folder, content = _find(path)
    if content is None:
        content = store.read(folder, skip=[TRAINING_TENSORS])
    return folder, content


def _find(path: Path) -> tuple[Path, dict[str, bytes] | None]:
    """The checkpoint that a path means, and its files if they were read to find it."""
    if (path / store.MANIFEST).exists():
        return path, None
    if (path / AVERAGED).is_dir():
        return path / AVERAGED, None
    check_folder(path)
    newest = store.newest(path, skip=[TRAINING_TENSORS])
    if newest is None:
        raise CheckpointRefused(f"{path}: wanted a run with a checkpoint; got none. Train first.")
    step, content, problems = newest
    for problem in problems:
        log.warning("damaged checkpoint skipped: %s", problem)
    state = store.document(content, TRAINING_STATE, store.step_folder(path, step))
    history = state.get("history")
    if isinstance(history, dict):
        best = history.get("best_step")
    else:
        best = ""
    if best is not None and best not in store.steps(path):
        where = store.step_folder(path, step) / TRAINING_STATE
        raise CheckpointRefused(
            f"{where}: wanted the best step of the run; got {best!r:.80}. It was changed."
        )
    chosen = step if best is None else best
    chosen_folder = store.step_folder(path, chosen)
    if chosen == step:
        return chosen_folder, content
    return chosen_folder, None
