"""Forged checkpoints: files changed by somebody who also computes every hash anew."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from safetensors.torch import load, save

from regard.checkpoint import store
from regard.data.corpus import SETTINGS
from regard.data.vocabulary import content_hash

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0"
HOSTILE = (
    None, -1, 0, 20_000, 40_000_000, 2**31, 2**63, 2**70, -1.5, 1e300, float("nan"), "x", "\0", [], ["a"], {}, True,
)  # fmt: skip


def forge(
    folder: Path, name: str, change: Callable[[Any], Any], model: str = "transformer"
) -> Path:
    """A copy of a golden checkpoint with a file changed: JSON as a value, tensors by name."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(GOLDEN / model, folder)
    content = (folder / name).read_bytes()
    if name.endswith(".json"):
        value = json.loads(content)
        changed = change(value)
        content = json.dumps(value if changed is None else changed).encode()
    elif name.endswith(".safetensors"):
        tensors = load(content)
        change(tensors)
        content = save(tensors, {"format": "pt"})
    (folder / name).write_bytes(content)
    return rehashed(folder)


def rehashed(folder: Path) -> Path:
    """The checkpoint with the hashes of the files that are there."""
    config = json.loads((folder / "config.json").read_bytes())
    entries = config.get("vocabularies")
    for entry in entries.values() if isinstance(entries, dict) else ():
        try:
            inner = tokenizers.Tokenizer.from_str((folder / entry["file"]).read_text())
        except Exception:  # the library raises nothing narrower; a forged entry may name no file
            continue
        if max(inner.get_vocab().values()) < 1_000_000:  # written with an entry for each id
            settings = {key: entry[key] for key in SETTINGS if key in entry}
            entry["sha256"] = content_hash((folder / entry["file"]).read_text(), settings)
    (folder / "config.json").write_text(json.dumps(config))
    files = {
        path.name: store._entry(path.read_bytes())
        for path in folder.iterdir()
        if path.name != store.MANIFEST
    }
    (folder / store.MANIFEST).write_bytes(store._manifest(files))
    return folder


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield (*path, key)
        yield from leaves(inner, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new
