"""`regard.verify` and `regard.sign` compare every byte of checkpoints with their manifests, without PyTorch."""

from collections.abc import Iterator
from pathlib import Path

from regard.checkpoint import store
from regard.checkpoint.signature import check_signature, read_key, write_signature
from regard.core.errors import CheckpointRefused, InvalidArgument

AVERAGED = "averaged"  # the folder of a run with the average of its last checkpoints


def verify(path: str | Path, key: str | Path | None = None) -> Iterator[tuple[Path, int]]:
    """Check every byte of each checkpoint at or in a folder. Yields each intact one and its number of files.

    path   a checkpoint, or a run: all of its checkpoints
    key    a file: each must have a signature that was made with this key. Without one, hashes prove no author

    Damaged ones raise `CheckpointRefused` after all were checked; its message has a line for each.
    """
    secret = None
    if key is not None:
        secret = read_key(key)
    problems = []
    for folder in _checkpoints(Path(path)):
        try:
            files = store.verify(folder)
            if secret is not None:
                check_signature(folder, secret)
        except CheckpointRefused as error:
            problems.append(str(error))
        else:
            yield folder, files
    if problems:
        raise CheckpointRefused("\n".join(problems))


def sign(path: str | Path, key: str | Path) -> Iterator[Path]:
    """Check every byte of each checkpoint at or in a folder and sign it with the key in a file. Yields each one.

    path   a checkpoint, or a run: all of its checkpoints
    key    a file with the secret that signs

    Damaged ones are not signed, and raise `CheckpointRefused` as `verify` does.
    """
    secret = read_key(key)
    for folder, _ in verify(path):
        write_signature(folder, secret)
        yield folder


def _checkpoints(path: Path) -> list[Path]:
    if (path / store.MANIFEST).exists():
        return [path]
    check_folder(path)
    folders = [store.step_folder(path, step) for step in store.steps(path)]
    if (path / AVERAGED).is_dir():
        folders.append(path / AVERAGED)
    if not folders:
        raise CheckpointRefused(
            f"{path}: wanted a checkpoint, or a run with some; got neither. Train first."
        )
    return folders


def check_folder(path: Path) -> None:
    """Refuse a path that is not a folder."""
    if not path.is_dir():
        raise InvalidArgument(
            str(path),
            wanted="the folder of a run or a checkpoint",
            got="no folder",
            remedy="Check the spelling.",
        )
