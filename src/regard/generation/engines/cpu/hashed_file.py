"""Libraries whose names hold the hash of their content, which is checked before they are loaded."""

import hashlib
import logging
from pathlib import Path

log = logging.getLogger(__name__)


def content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def intact(folder: Path, prefix: str, *, remove: bool = False) -> Path | None:
    """The library `prefix`-HASH.so of a folder, its content checked; None without one. Damaged ones may be removed."""
    for path in folder.glob(f"{prefix}-*.so"):
        if (
            path.is_file()
            and not path.is_symlink()
            and path.stem == f"{prefix}-{content_hash(path.read_bytes())}"
        ):
            return path
        log.warning(
            "%s is damaged: it is %s", path, "removed and compiled anew" if remove else "not used"
        )
        if remove:
            path.unlink()
    return None
