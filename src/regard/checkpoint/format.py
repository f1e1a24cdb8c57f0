"""The text files of a checkpoint: config.json and the vocabularies, written and read back.

config.json holds the resolved recipe, the model's own table (with the sizes that the data gave it), the versions it was
written with, and the file, kind and SHA-256 of each vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint import store
from regard.core.errors import CheckpointRefused
from regard.data.corpus import Prepared, VocabularyType
from regard.data.tokenizer import Labels, Tokenizer

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"
Vocabularies = tuple[VocabularyType | None, VocabularyType]  # source, target


def checkpoint_texts(
    recipe: Mapping[str, Any], data: Prepared, model: Mapping[str, Any], version: str
) -> dict[str, str]:
    """The content of config.json and of the vocabulary files, by file name.

    `recipe` and `model` are the resolved tables; `version` is Regard's.
    """
    sides = {"target": (TOKENIZER, data.target)}
    if data.source is not None:
        sides["source"] = (TOKENIZER if data.source is data.target else SOURCE_TOKENIZER, data.source)
    config = {
        "architectures": ["Regard"],
        "model_type": "regard",
        "format": FORMAT,
        "regard_version": version,
        "torch_version": torch.__version__,
        "model": model,
        "recipe": recipe,
        "vocabularies": {
            side: {
                "file": name,
                "kind": "labels" if isinstance(vocabulary, Labels) else "tokenizer",
                "sha256": vocabulary.hash,
            }
            for side, (name, vocabulary) in sides.items()
        },
    }
    files = {name: vocabulary.to_json() for name, vocabulary in sides.values()}
    return files | {CONFIG: store.as_json(config)}


def read_config(content: Mapping[str, bytes], folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint whose bytes `store.read` has checked; another format is refused."""
    config = store.document(content, CONFIG, folder)
    if config["format"] != FORMAT:
        raise CheckpointRefused(f"{folder}: wanted format {FORMAT}; got {config['format']}. Update Regard.")
    return config


def read_vocabularies(content: Mapping[str, bytes], folder: Path) -> Vocabularies:
    """The vocabularies of a checkpoint whose bytes `store.read` has checked."""
    entries = store.document(content, CONFIG, folder)["vocabularies"]
    sides = {side: _vocabulary(content, entry, folder) for side, entry in entries.items()}
    return sides.get("source"), sides["target"]


def _vocabulary(content: Mapping[str, bytes], entry: Mapping[str, Any], folder: Path) -> VocabularyType:
    """Refused unless its hash is that of the vocabulary the model was trained with."""
    name = entry["file"]
    if name not in content:
        raise CheckpointRefused(f"{folder}: wanted {name}; got none. Use another checkpoint.")
    kind = Labels if entry["kind"] == "labels" else Tokenizer
    try:
        vocabulary: VocabularyType = kind.from_json(content[name].decode())
    except ValueError as error:
        raise CheckpointRefused(f"{folder / name}: wanted a vocabulary; got {error}. It was changed.") from None
    if vocabulary.hash != entry["sha256"]:
        raise CheckpointRefused(
            f"{folder / name}: wanted the vocabulary that the model was trained with; got another. Put it back."
        )
    return vocabulary
