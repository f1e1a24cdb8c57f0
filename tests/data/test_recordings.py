"""Recordings as sources: cells that name WAV files become log-mel vectors, or are refused with a reason."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.core.errors import InvalidData, InvalidRecipe
from regard.data.corpus import prepare
from regard.data.fields.base import make_field
from regard.data.log_mel import LogMelConfig, log_mel
from regard.recipe.recipe import Recipe
from support.audio import FLOAT, sound, wav
from support.tasks import ENCODER, SOUND_INPUT, TRAIN

FEATURES = {"kind": "log-mel", "sample_rate": 8000, "mels": 20}
SOURCE = {"kind": "vectors", "column": "audio", "features": FEATURES}
RECIPE = {
    "model": {"encoder": {**ENCODER, "input": SOUND_INPUT}, "pool": {"kind": "mean"}},
    "train": TRAIN,
}
TONES = {"low": 300.0, "high": 1800.0}


def tone(label, rate, seconds=0.2):
    """A tone of 24 bits and two channels, or of 8 bits or floating point, by the rate."""
    times = np.arange(int(rate * seconds)) / rate
    samples = 0.4 * np.sin(2 * np.pi * TONES[label] * times)
    if rate == 44100:
        return wav(np.stack((samples, samples), 1), rate, 24)
    if rate == 11025:
        return wav(samples[:, None], rate, 8)
    return wav(samples[:, None], rate, 32, FLOAT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recordings of three forms, in a folder, and tables that name them."""
    made = tmp_path_factory.mktemp("tones")
    (made / "wavs").mkdir()
    rows = []
    for number in range(24):
        label = ("low", "high")[number % 2]
        rate = (44100, 11025, 8000)[number % 3]
        name = f"wavs/{number}.wav"
        (made / name).write_bytes(tone(label, rate, 0.15 + 0.01 * number))
        rows.append(f"{name}\t{label}")
    for split, part in (("train", rows[:18]), ("valid", rows[18:])):
        (made / f"{split}.tsv").write_text("\n".join(["audio\tlabel", *part]) + "\n")
    return made


def data_of(folder, **changes):
    target = {"kind": "label", "column": "label"}
    tables = {"train": str(folder / "train.tsv"), "valid": str(folder / "valid.tsv")}
    return {**tables, "source": SOURCE, "target": target, **changes}


def test_a_recording_is_read_as_its_features():
    field = make_field("vectors", features=LogMelConfig(sample_rate=8000, mels=20))
    samples = sound(16000, 0.2, 1)
    content = wav(samples[:, None], 16000, 32, FLOAT)
    found = field.parse(content)
    assert found.shape == (21, 20)
    np.testing.assert_allclose(found, log_mel(samples, 16000, field.features), atol=1e-4)


def test_recordings_of_all_forms_train_a_classifier(folder, tmp_path):
    recipe = {**RECIPE, "data": data_of(folder), "train": {**TRAIN, "max_steps": 40}}
    model = regard.train(recipe, tmp_path / "run", cache=tmp_path / "cache")
    paths = sorted((folder / "wavs").glob("*.wav"), key=lambda path: int(path.stem))
    expected = ["low", "high"] * 12
    assert model.predict(paths) == expected
    loaded = regard.load(tmp_path / "run")
    assert loaded.recipe.data.source.features == LogMelConfig(sample_rate=8000, mels=20)
    assert loaded.predict([paths[0].read_bytes(), paths[1]]) == ["low", "high"]


def test_recordings_may_be_in_a_zip_file(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in (folder / "wavs").glob("*.wav"):
            archive.write(path, f"deep/wavs/{path.name}")
    plain = data_of(folder)
    packed = data_of(folder, files_from=str(tmp_path / "all.zip"))
    made = []
    for number, data in enumerate((plain, packed)):
        config = Recipe.of({**RECIPE, "data": data}).data
        made.append(prepare(config, tmp_path / f"cache{number}"))
    np.testing.assert_array_equal(made[0].train.source.vectors, made[1].train.source.vectors)


def test_a_change_of_the_features_prepares_the_data_again(folder, tmp_path):
    folders = set()
    for hop in (10.0, 5.0):
        source = {**SOURCE, "features": {**FEATURES, "hop": hop}}
        config = Recipe.of({**RECIPE, "data": data_of(folder, source=source)}).data
        folders.add(prepare(config, tmp_path / "cache").folder)
    assert len(folders) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "an empty file"),
        (b"not a recording", "a file that begins with"),
        (wav(np.zeros((0, 1)), 8000, 16), "at least one sample"),
        (wav(np.zeros((80, 1)), 8000, 16)[:-9], "is cut off"),
    ],
)
def test_a_recording_that_cannot_be_read_is_refused_with_its_name(content, reason, tmp_path):
    (tmp_path / "good.wav").write_bytes(wav(np.zeros((800, 1)), 8000, 16))
    (tmp_path / "bad.wav").write_bytes(content)
    (tmp_path / "train.tsv").write_text("audio\tlabel\ngood.wav\tlow\nbad.wav\thigh\n")
    data = data_of(tmp_path)
    del data["valid"]
    with pytest.raises(InvalidData, match=reason) as error:
        regard.train({**RECIPE, "data": data}, tmp_path / "run", cache=tmp_path / "cache")
    assert "bad.wav" in str(error.value)
    assert not list((tmp_path / "cache").glob("corpus-*"))


def test_a_recording_that_is_too_long_is_refused(tmp_path):
    features = LogMelConfig(sample_rate=8000, mels=20, max_seconds=0.1)
    field = make_field("vectors", features=features)
    path = tmp_path / "long.wav"
    path.write_bytes(wav(np.zeros((8000, 1)), 8000, 16))
    with pytest.raises(InvalidData, match=r"long\.wav: wanted at most 0\.1 seconds; got 1\.0"):
        field.parse(path)


def test_a_recording_without_features_is_refused(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wav(np.zeros((800, 1)), 8000, 16))
    with pytest.raises(InvalidData, match=r"Add \[data.source.features\]"):
        make_field("vectors").parse(path)


def test_wrong_settings_are_named_with_their_table():
    source = {**SOURCE, "features": {"kind": "log-mel", "hop": 30.0}}
    with pytest.raises(InvalidRecipe, match=r"data\.source\.features\.hop: wanted at most window"):
        Recipe.of({**RECIPE, "data": {**data_of(Path("x")), "source": source}})


def test_a_name_of_a_recording_in_a_request_opens_no_file(folder, tmp_path):
    """A text is read as JSON, whatever it names."""
    field = make_field("vectors", features=LogMelConfig(sample_rate=8000, mels=20))
    name = str(folder / "wavs" / "0.wav")
    with pytest.raises(regard.InvalidArgument, match="a list of vectors"):
        field.check("text", [name])
    with pytest.raises(regard.InvalidArgument, match="a list of vectors"):
        field.check("text", [json.dumps(name)])
