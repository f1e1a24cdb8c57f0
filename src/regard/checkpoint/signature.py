"""Signatures of checkpoints: manifest.json.sig holds an HMAC-SHA256 of manifest.json.

The manifest has a hash of every other file, so the signature covers them all. A manifest shows that files were not
damaged, but it proves no author, because anybody can write one that agrees. A signature proves that it was made with
the key. Whoever can verify it can also make one (https://www.rfc-editor.org/rfc/rfc2104), so the key is for people who
trust each other. For readers without the key, sign manifest.json with a public-key tool.
"""

import hashlib
import hmac
import os
from pathlib import Path

from regard.checkpoint.store import MANIFEST, SIGNATURE
from regard.core.atomic_io import atomic_file, named_os_errors
from regard.core.errors import CheckpointRefused, InvalidArgument

# Lengths of a key in bytes.
SHORTEST = 32
LONGEST = 4096
# Signed together with the manifest, so that a signature made for another purpose is never accepted here.
PURPOSE = b"regard checkpoint manifest\0"


def read_key(path: str | Path) -> bytes:
    """The bytes of a key file, which nobody else may read."""
    path = Path(path)
    wanted = f"a file with a key of {SHORTEST} to {LONGEST} bytes"
    with named_os_errors(path, wanted), path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        key = file.read(LONGEST + 1)
    if not SHORTEST <= len(key) <= LONGEST:
        got = f"{len(key)} bytes"
        if len(key) > LONGEST:
            got = f"more than {LONGEST}"
        remedy = f"Make one: openssl rand -out {path} {SHORTEST}"
        raise InvalidArgument(str(path), wanted=wanted, got=got, remedy=remedy)
    if os.name == "posix" and mode & 0o077:
        got = f"one of mode {mode & 0o777:o}"
        raise InvalidArgument(
            str(path), wanted="a key that others cannot read", got=got, remedy=f"chmod 600 {path}"
        )
    return key


def write_signature(folder: Path, key: bytes) -> None:
    """Sign the manifest of a checkpoint that was verified."""
    with atomic_file(folder / SIGNATURE) as file:
        file.write(_signature((folder / MANIFEST).read_bytes(), key))


def check_signature(folder: Path, key: bytes) -> None:
    """Refuse a checkpoint without a signature that was made with this key."""
    wanted = f"{folder}: wanted a {SIGNATURE} made with this key; got"
    path = folder / SIGNATURE
    if path.is_symlink() or not path.is_file():
        raise CheckpointRefused(f"{wanted} none. Sign it (regard sign), or do not use it.")
    with path.open("rb") as file:
        found = file.read(1000)
    if not hmac.compare_digest(found, _signature((folder / MANIFEST).read_bytes(), key)):
        raise CheckpointRefused(
            f"{wanted} another. It was made with another key, or the checkpoint was changed."
        )


def _signature(manifest: bytes, key: bytes) -> bytes:
    digest = hmac.digest(key, PURPOSE + manifest, hashlib.sha256)
    return f"hmac-sha256 {digest.hex()}\n".encode()
