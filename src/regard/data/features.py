"""What a frozen backbone sees in pictures: computed once, kept in half precision, and memory_map ever after."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.atomic_io import atomic_file, named_os_errors
from regard.core.errors import InvalidData, TrainingFailed
from regard.data.arrays import FeatureColumn, ImageColumn, memory_map
from regard.data.corpus import Corpus, Prepared, PrepareProgress, folder_lock
from regard.data.images import normalize
from regard.model.vision import GridEncoder
from regard.model.weights import fingerprint

FORMAT = 1
AT_ONCE = 32  # pictures that are computed together

See = Callable[[NDArray[np.uint8]], NDArray[np.float16]]  # (B, Y, X, 3) -> (B, y, x, C)


def features(pictures: ImageColumn, see: See, *, by: str, folder: Path, progress: PrepareProgress) -> FeatureColumn:
    """The features of all stored pictures. `by` says who sees: a hash of the network and its weights.

    Those there are already, of the same pictures by the same network, are opened. A run that is killed leaves nothing
    that could be taken for them, and the next one clears it away.
    """
    with named_os_errors(folder, "a folder to write to"):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"features-{_key(pictures, by)}.npy"
    with folder_lock(folder):
        for left in folder.glob(".features-*.tmp"):
            left.unlink()
        if not path.exists():
            _write(path, pictures, see, progress)
    found = FeatureColumn(pictures, memory_map(path))
    if len(found.grids) != len(pictures.pixels):
        got = f"{len(found.grids):,} for {len(pictures.pixels):,} pictures"
        raise InvalidData(path, wanted="features of every picture", got=got, remedy="Delete it: it is made again.")
    return found


def _write(path: Path, pictures: ImageColumn, see: See, progress: PrepareProgress) -> None:
    count = len(pictures.pixels)
    try:
        with atomic_file(path) as file:
            for first in range(0, count, AT_ONCE):
                seen = see(pictures.pixels[first : first + AT_ONCE])
                if first == 0:
                    about = {"descr": seen.dtype.str, "fortran_order": False, "shape": (count, *seen.shape[1:])}
                    np.lib.format.write_array_header_1_0(file, about)
                file.write(seen.tobytes())
                progress("features", min(first + AT_ONCE, count))
    except OSError as error:
        wanted, remedy = f"room for the features of {count:,} pictures", "Make room, or set REGARD_CACHE to a folder."
        raise InvalidData(path, wanted=wanted, got=error.strerror or str(error), remedy=remedy) from None


def _key(pictures: ImageColumn, by: str) -> str:
    together = hashlib.sha256(f"{FORMAT} {by} {pictures.pixels.shape}".encode())
    for first in range(0, len(pictures.pixels), AT_ONCE):
        together.update(pictures.pixels[first : first + AT_ONCE].tobytes())
    return together.hexdigest()[:32]


def cache_features(data: Prepared, encoder: GridEncoder, folder: Path, progress: PrepareProgress) -> Prepared:
    """The training and validation data with the features of a frozen backbone in place of images."""
    key, device = fingerprint(encoder.backbone), next(encoder.parameters()).device

    @torch.inference_mode()
    def encode(pixels: NDArray[np.uint8]) -> NDArray[np.float16]:
        states = encoder.features(normalize(pixels).to(device)).states.half()
        if not states.isfinite().all():
            raise TrainingFailed(
                "features: wanted numbers that float16 can hold; got some that it cannot. "
                "Check the backbone's weights, or train without freezing it."
            )
        return np.asarray(states.cpu().numpy(), dtype=np.float16)

    def cached(corpus: Corpus | None) -> Corpus | None:
        if corpus is None or not isinstance(corpus.source, ImageColumn):
            return corpus
        return replace(corpus, source=features(corpus.source, encode, by=key, folder=folder, progress=progress))

    return replace(data, train=cached(data.train), valid=cached(data.valid))
