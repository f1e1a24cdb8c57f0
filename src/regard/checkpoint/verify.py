"""`regard.verify`: every byte of checkpoints against their manifests, without importing PyTorch."""

from collections.abc import Iterator
from pathlib import Path

from regard.checkpoint import store
from regard.core.errors import CheckpointRefused, InvalidArgument

AVERAGED = "averaged"  # the folder of a run with the average of its last checkpoints


def verify(path: str | Path) -> Iterator[tuple[Path, int]]:
    """Check every byte of each checkpoint at or in a folder. Yields each intact one and its number of files.

    Damaged ones raise CheckpointRefused after all were checked; its message has a line for each.
    """
    path = Path(path)
    folders = [path]
    if not (path / store.MANIFEST).exists():
        check_folder(path)
        folders = [store.step_folder(path, step) for step in store.steps(path)]
        folders += [path / AVERAGED] if (path / AVERAGED).is_dir() else []
    if not folders:
        raise CheckpointRefused(f"{path}: wanted a checkpoint, or a run with some; got neither. Train first.")
    problems = []
    for folder in folders:
        try:
            files = store.verify(folder)
        except CheckpointRefused as error:
            problems.append(str(error))
        else:
            yield folder, files
    if problems:
        raise CheckpointRefused("\n".join(problems))


def check_folder(path: Path) -> None:
    """Refuse what is no folder."""
    if not path.is_dir():
        raise InvalidArgument(
            str(path), wanted="the folder of a run or a checkpoint", got="no folder", remedy="Check the spelling."
        )
