"""A checkpoint is intact or refused, whatever happens to its files and at any moment of a save."""

import io
import json
import os
import pickle
import random
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
import safetensors.torch
import torch

import regard
from regard.api.train import train
from regard.checkpoint import store
from regard.core.atomic_io import atomic_file
from regard.interop.huggingface import write_weights
from regard.model.weights import load_weights
from support.training_runs import table

TEXTS = {
    "config.json": '{"a": 1}\n',
    "tokenizer.json": '{"model": {}}\n',
    "README.md": "# A model\n",
}


def write(folder: Path, value: float = 0.0) -> None:
    weights = {"w": torch.arange(12.0).reshape(3, 4) + value}
    store.write(folder, TEXTS, {"model.safetensors": weights})


def weights(folder: Path) -> torch.Tensor:
    return store.tensors(store.read(folder), "model.safetensors", folder)["w"]


def test_files_are_read_as_they_were_written(tmp_path):
    write(tmp_path / "c", 0.5)
    content = store.read(tmp_path / "c")
    assert {name: text.decode() for name, text in content.items() if name in TEXTS} == TEXTS
    assert torch.equal(weights(tmp_path / "c"), torch.arange(12.0).reshape(3, 4) + 0.5)
    assert store.verify(tmp_path / "c") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_all_files_have_the_mode_that_the_umask_gives(tmp_path, umask):
    """Those of weights too, so that a server of another user can read what it may read."""
    before = os.umask(umask)
    try:
        write(tmp_path / "c")
        store.add(tmp_path / "c", "more.safetensors", {"w": torch.zeros(2)})
        write_weights(tmp_path, {"a": torch.zeros(3), "b": torch.ones(3)}, largest=12)
    finally:
        os.umask(before)
    found = {
        path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()
    }
    assert len(found) == 9, found
    assert set(found.values()) == {0o666 & ~umask}, found


def damaged(folder: Path):
    """Each file of a checkpoint with its content."""
    for path in sorted(folder.iterdir()):
        yield path, path.read_bytes()


def refused(folder: Path) -> bool:
    try:
        store.read(folder)
    except regard.CheckpointRefused:
        return True
    return False


def trained(folder: Path) -> None:
    """A checkpoint of a run, with the state of its optimizer and of its data."""
    train(
        table(max_steps=2, validate_every=2, warmup_steps=1),
        folder.parent / "run",
        cache=folder.parent,
    )
    shutil.copytree(store.step_folder(folder.parent / "run", 2), folder)


CHECKPOINTS = [write, pytest.param(trained, marks=pytest.mark.slow)]
PLACES = 200  # of each file; of a smaller one, all


def places(size: int, chance: random.Random) -> list[int]:
    return chance.sample(range(size), min(size, PLACES))


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_every_flipped_bit_is_detected(checkpoint, tmp_path):
    checkpoint(tmp_path / "c")
    chance = random.Random(0)
    for path, content in damaged(tmp_path / "c"):
        for offset in places(len(content), chance):
            flipped = bytearray(content)
            flipped[offset] ^= 1 << chance.randrange(8)
            path.write_bytes(flipped)
            assert refused(tmp_path / "c"), (path.name, offset)
        path.write_bytes(content)
    assert not refused(tmp_path / "c")


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_every_truncation_is_detected(checkpoint, tmp_path):
    checkpoint(tmp_path / "c")
    chance = random.Random(1)
    for path, content in damaged(tmp_path / "c"):
        for length in places(len(content), chance):
            path.write_bytes(content[:length])
            assert refused(tmp_path / "c"), (path.name, length)
        path.write_bytes(content)
    assert not refused(tmp_path / "c")


def rewritten(folder: Path, change) -> None:
    """A changed manifest with the right hash of itself."""
    found = json.loads((folder / "manifest.json").read_bytes())
    change(found["files"])
    (folder / "manifest.json").write_bytes(store._manifest(found["files"]))


TAMPERED = {
    "a file too many": lambda folder: (folder / "more.txt").write_text("x"),
    "a file too few": lambda folder: (folder / "README.md").unlink(),
    "two files swapped": lambda folder: [
        os.rename(folder / "config.json", folder / "t"),
        os.rename(folder / "tokenizer.json", folder / "config.json"),
        os.rename(folder / "t", folder / "tokenizer.json"),
    ],
    "a name that climbs": lambda folder: rewritten(
        folder, lambda files: files.update({"../../etc/passwd": files["README.md"]})
    ),
    "an absolute name": lambda folder: rewritten(
        folder, lambda files: files.update({"/etc/passwd": files["README.md"]})
    ),
    "a hidden entry": lambda folder: rewritten(folder, lambda files: files["README.md"].update({"code": "x"})),
    "a link": lambda folder: [
        shutil.copy(folder / "README.md", folder.parent / "elsewhere"),
        (folder / "README.md").unlink(),
        (folder / "README.md").symlink_to(folder.parent / "elsewhere"),
    ],
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "a manifest that is a pipe": lambda folder: [
        (folder / "manifest.json").unlink(),
        os.mkfifo(folder / "manifest.json"),
    ],
    "a manifest that is a device": lambda folder: [
        (folder / "manifest.json").unlink(),
        (folder / "manifest.json").symlink_to("/dev/zero"),
    ],
    "a manifest of a gigabyte": lambda folder: os.truncate(folder / "manifest.json", 1 << 30),
    "a manifest of depth": lambda folder: (folder / "manifest.json").write_text("[" * 100_000),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_refused(name, tmp_path):
    write(tmp_path / "c")
    TAMPERED[name](tmp_path / "c")
    with pytest.raises(regard.CheckpointRefused, match=str(tmp_path)):
        store.read(tmp_path / "c")


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    texts = TEXTS | {"training.json": '{"step": 4}'}
    store.write(store.step_folder(tmp_path, 4), texts, {})
    assert store.verify(store.step_folder(tmp_path, 4)) == 4
    store.step_folder(tmp_path, 4).rename(store.step_folder(tmp_path, 8))
    with pytest.raises(
        regard.CheckpointRefused,
        match="step-00000008: wanted the checkpoint of step 8; got that of step 4",
    ):
        store.verify(store.step_folder(tmp_path, 8))
    with pytest.raises(regard.CheckpointRefused, match="got that of step 4"):
        store.newest(tmp_path)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


PICKLED = [
    "model.safetensors",
    "config.json",
    "tokenizer.json",
    "training.json",
    "training.safetensors",
]
IGNORED = ["README.md", "pytorch_model.bin", "model.pt", "optimizer.pkl"]  # which nothing reads


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(table(max_steps=4), folder / "run", cache=folder / "cache")
    return folder / "run"


@pytest.mark.parametrize("name", [*PICKLED, *IGNORED, "manifest.json"])
def test_a_pickle_is_never_opened(name, run, tmp_path, monkeypatch):
    """Under any name and by no reader, even if the manifest lists it."""
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(run, tmp_path / "run")) / "step-00000004"
    payload = io.BytesIO()
    if name.endswith((".bin", ".pt")):
        torch.save(Bomb(), payload)
    else:
        pickle.dump(Bomb(), payload)
    (folder / name).write_bytes(payload.getvalue())
    if name != "manifest.json":
        files = {
            path.name: store._entry(path.read_bytes())
            for path in folder.iterdir()
            if path.name != store.MANIFEST
        }
        (folder / store.MANIFEST).write_bytes(store._manifest(files))
    refused = {
        "load": name not in (*IGNORED, "training.safetensors"),
        "resume": name not in IGNORED,
    }
    with pytest.raises(regard.CheckpointRefused) if refused["load"] else nullcontext():
        regard.load(tmp_path / "run", device="cpu").predict(["a"])
    with pytest.raises(regard.CheckpointRefused) if refused["resume"] else nullcontext():
        train(table(max_steps=5), tmp_path / "run", cache=run.parent / "cache", resume=True)
    assert not (tmp_path / "exploded").exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert (tmp_path / "exploded").exists()  # so that the payload is one


def test_the_newest_intact_checkpoint_is_found(tmp_path):
    for step in (1, 2, 3):
        write(store.step_folder(tmp_path, step), step)
    with (store.step_folder(tmp_path, 3) / "model.safetensors").open("r+b") as file:
        file.truncate(20)
    step, _, wrong = store.newest(tmp_path)
    assert step == 2
    assert len(wrong) == 1
    assert "step-00000003" in wrong[0]
    for step in (1, 2):
        (store.step_folder(tmp_path, step) / "config.json").unlink()
    with pytest.raises(regard.CheckpointRefused, match="step-00000001"):
        store.newest(tmp_path)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    write(store.step_folder(tmp_path, 1))

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        write(store.step_folder(tmp_path, 2))
    assert store.steps(tmp_path) == [1]
    assert not list(tmp_path.glob(".*"))


def test_a_file_is_written_completely_or_not_at_all(tmp_path):
    def half():
        with atomic_file(tmp_path / "f") as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        half()
    assert not list(tmp_path.iterdir())


def test_links_and_pipes_are_kept(tmp_path):
    link, pipe, heard = tmp_path / "link", tmp_path / "pipe", []
    link.symlink_to(tmp_path / "real")
    for content in (b"one", b"two"):
        with atomic_file(link) as file:
            file.write(content)
        assert link.is_symlink()
        assert (tmp_path / "real").read_bytes() == content
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with atomic_file(pipe) as file:
        file.write(b"three")
    reader.join(timeout=60)
    assert heard == [b"three"]
    assert pipe.is_fifo()


def test_weights_of_another_model_are_named(tmp_path):
    model = torch.nn.Linear(3, 4)
    with pytest.raises(
        regard.CheckpointRefused,
        match=r"an unknown more; no bias; weight of shape \(2, 2\) for \(4, 3\)",
    ):
        load_weights(model, {"weight": torch.ones(2, 2), "more": torch.ones(1)}, "there")


def test_weights_in_another_order_of_memory_are_saved(tmp_path):
    """As a transposed matrix, a slice and an expanded row are."""
    given = torch.arange(24.0).reshape(4, 6)
    strided = {"transposed": given.mT, "slice": given[:, 1::2], "expanded": given[0].expand(3, 6)}
    store.write(tmp_path / "c", TEXTS, {"model.safetensors": strided})
    found = store.tensors(store.read(tmp_path / "c"), "model.safetensors", tmp_path)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in strided.items()
    }
