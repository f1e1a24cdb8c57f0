"""Pictures a second: of reading files, of a backbone's features, and of whole captions.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/pictures.py --rounds 5 --threads 2

Photographs are DATA/flickr8k/images192.zip, the first 100 or as many as --pictures says. Each round takes all rows of a
table through the same pictures, in turn; a row's figure is its median over rounds.

Reading: from a file on disk to an array of 192 × 192, beside Pillow alone, which decodes and converts and no more.
Features: EfficientNet-Lite0 at 192 pixels, batch by batch. Its floor is its multiplications and additions at the speed
at which this machine multiplies large matrices, measured in the same rounds.
Captions: arrays to twelve words, beam 5, by a vision Transformer of 6 + 3 blocks of 256, against Hugging Face's
VisionEncoderDecoder (ViT and GPT-2) of the same size, each in a process of its own (peers/captioners.py). Weights are
drawn, and every caption has its twelve words, so that all do the same work.
"""

import argparse
import os
import platform
import sys
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from contestants import Worker
from measure import ratio, seconds
from regard.data.images import normalize, read_image
from regard.model.backbones import backbone

SIZE, BATCH, MATRIX = 192, 16, 1024


def unpacked(data: Path | None, count: int, folder: Path) -> list[Path]:
    """The first pictures as files; ends with a clear word where there are none."""
    packed = None if data is None else data / "flickr8k" / "images192.zip"
    if packed is None or not packed.is_file():
        raise SystemExit(
            f"Wanted {packed or 'FOLDER/flickr8k/images192.zip'}: give --data FOLDER, or set REGARD_DATA."
        )
    with zipfile.ZipFile(packed) as file:
        return [Path(file.extract(name, folder)) for name in sorted(file.namelist())[:count]]


def report(name: str, times: list[float], count: int, beside: str = "") -> None:
    rates = [count / each for each in times]
    print(f"| {name} | {median(rates):,.1f} | {min(rates):,.1f}–{max(rates):,.1f} | {beside} |")


def head(title: str, last: str) -> None:
    print(f"\n| {title} | pictures/s | spread | {last} |\n|---|---|---|---|")


def pillow(path: Path) -> object:
    with Image.open(path) as image:
        return image.convert("RGB").load()


def reading(paths: list[Path], rounds: int) -> None:
    times = seconds(
        {
            "Pillow alone": lambda: [*map(pillow, paths)],
            "Regard": lambda: [read_image(p, SIZE) for p in paths],
        },
        rounds,
    )
    head("reading, one thread", "speed, Pillow = 1")
    for name, each in times.items():
        report(name, each, len(paths), f"{ratio(times, 'Pillow alone', name):.2f}")


@torch.inference_mode()
def features(paths: list[Path], rounds: int) -> None:
    network = backbone("efficientnet-lite0").eval()
    pictures = normalize(np.stack([read_image(path, SIZE) for path in paths]))
    matrix = torch.rand(MATRIX, MATRIX)
    with FlopCounterMode(display=False) as counter:
        network(pictures[:1])
    operations = counter.get_total_flops()
    times = seconds(
        {
            "EfficientNet-Lite0": lambda: [network(some) for some in pictures.split(BATCH)],
            "matrix": lambda: matrix @ matrix,
        },
        rounds,
    )
    speed = [2 * MATRIX**3 / each for each in times["matrix"]]
    share = median(
        operations * len(paths) / rate / took
        for rate, took in zip(speed, times["EfficientNet-Lite0"], strict=True)
    )
    head(f"features, batches of {BATCH}", "floor's time through its own")
    report("EfficientNet-Lite0", times["EfficientNet-Lite0"], len(paths), f"{share:.2f}")
    report(
        f"floor: {operations / 1e9:.2f} billion operations at {median(speed) / 1e9:.0f} billion a second",
        [operations * len(paths) / rate for rate in speed],
        len(paths),
    )


def captions(paths: list[Path], rounds: int, threads: int, folder: Path) -> None:
    np.save(folder / "pictures.npy", np.stack([read_image(path, SIZE) for path in paths]))
    rows = {"hugging-face": "Hugging Face VisionEncoderDecoder", "regard": "Regard, the same size",
            "regard-efficientnet": "Regard, EfficientNet-Lite0 and the same decoder"}  # fmt: skip
    with ExitStack() as stack:
        workers = {}
        for key, label in rows.items():
            command = [
                sys.executable,
                "-m",
                "peers.captioners",
                key,
                folder / "pictures.npy",
                str(threads),
            ]
            workers[key] = Worker(label, command, threads)
            stack.callback(workers[key].close)
        answers = [
            {key: worker.ask("go") for key, worker in workers.items()} for _ in range(rounds)
        ]
    times, busy = (
        {key: [each[key][kind] for each in answers] for key in rows} for kind in ("seconds", "busy")
    )
    head("captions of twelve words, beam 5", "speed, Hugging Face = 1 (by busy time)")
    for key, label in rows.items():
        beside = f"{ratio(times, 'hugging-face', key):.2f} ({ratio(busy, 'hugging-face', key):.2f})"
        report(
            f"{label}, {workers[key].about['parameters']:,} parameters",
            times[key],
            len(paths),
            beside,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("REGARD_DATA"), help="or set REGARD_DATA"
    )
    parser.add_argument("--pictures", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(
        f"{arguments.pictures} pictures, {arguments.threads} threads, {platform.machine()}, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = unpacked(arguments.data and Path(arguments.data), arguments.pictures, Path(folder))
        reading(paths, arguments.rounds)
        features(paths, arguments.rounds)
        captions(paths, arguments.rounds, arguments.threads, Path(folder))


if __name__ == "__main__":
    main()
