"""Features of a frozen image backbone: computed once, stored in half precision,
memory-mapped afterwards.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.atomic_io import atomic_file, file_lock, named_os_errors
from regard.core.errors import InvalidData, TrainingFailed
from regard.data.columns import FeatureColumn, ImageColumn, MultiSourceColumn
from regard.data.corpus import Corpus, Prepared, PrepareProgress
from regard.data.images import normalize
from regard.data.mapped_arrays import digest_of, memory_map
from regard.model.vision import GridEncoder
from regard.model.weights import fingerprint

FORMAT = 1
BATCH = 32  # images per forward pass

Extract = Callable[[NDArray[np.uint8]], NDArray[np.float16]]  # (B, Y, X, 3) -> (B, y, x, C)


def features(
    images: ImageColumn, extract: Extract, *, by: str, folder: Path, progress: PrepareProgress
) -> FeatureColumn:
    """The features of all stored images. `by` is a hash of the backbone and its weights.

    Existing features of the same images and backbone are reused. A run that is killed leaves only a
    temporary file, which the next one removes.
    """
    with named_os_errors(folder, "a folder to write to"):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"features-{_key(images, by)}.npy"
    mark = path.with_suffix(".sha256")  # written when the features are complete
    if not mark.exists():
        with file_lock(folder / f".{path.stem}.lock", wait=True) as alive:

            def shown(stage: str, count: int) -> None:
                alive()
                progress(stage, count)

            for leftover in folder.glob(f".{path.name}.*.tmp"):
                leftover.unlink()
            if not mark.exists():
                _write(path, images, extract, shown)
                with atomic_file(mark) as file:
                    file.write(digest_of(path).encode())
    if digest_of(path).encode() != mark.read_bytes():
        remedy = f"Delete {mark}: they are computed again."
        raise InvalidData(
            path, wanted="features as they were computed", got="other bytes", remedy=remedy
        )
    column = FeatureColumn(images, memory_map(path))
    if len(column.grids) != len(images.pixels):
        got = f"{len(column.grids):,} for {len(images.pixels):,} images"
        raise InvalidData(
            path, wanted="features of every image", got=got, remedy="Delete it: it is made again."
        )
    return column


def _write(path: Path, images: ImageColumn, extract: Extract, progress: PrepareProgress) -> None:
    count = len(images.pixels)
    try:
        with atomic_file(path) as file:
            for first in range(0, count, BATCH):
                states = extract(images.pixels[first : first + BATCH])
                if first == 0:
                    header = {
                        "descr": states.dtype.str,
                        "fortran_order": False,
                        "shape": (count, *states.shape[1:]),
                    }
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(states.tobytes())
                progress("features", min(first + BATCH, count))
    except OSError as error:
        wanted = f"space for the features of {count:,} images"
        remedy = "Free some, or set REGARD_CACHE to a folder."
        raise InvalidData(
            path, wanted=wanted, got=error.strerror or str(error), remedy=remedy
        ) from None


def _key(images: ImageColumn, by: str) -> str:
    digest = hashlib.sha256(f"{FORMAT} {by} {images.pixels.shape}".encode())
    digest.update(images.pixels.reshape(-1).data)  # without a copy
    return digest.hexdigest()[:32]


def cache_features(
    data: Prepared, source: int, encoder: GridEncoder, folder: Path, progress: PrepareProgress
) -> Prepared:
    """The training and validation data with features of a frozen backbone in place of the images
    of this source.
    """
    key = fingerprint(encoder.backbone)
    device = next(encoder.parameters()).device

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
        if corpus is None:
            return None
        assert corpus.source is not None
        columns = [corpus.source]
        if isinstance(corpus.source, MultiSourceColumn):
            columns = [*corpus.source.columns]
        images = columns[source]
        assert isinstance(images, ImageColumn)
        columns[source] = features(images, encode, by=key, folder=folder, progress=progress)
        if len(columns) == 1:
            return replace(corpus, source=columns[0])
        return replace(corpus, source=MultiSourceColumn(tuple(columns)))

    return replace(data, train=cached(data.train), valid=cached(data.valid))
