"""Models of several sources, from data to predictions: trained, resumed, saved, loaded and looked at."""

import csv
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import regard
from regard.core.errors import InvalidRecipe
from regard.data.synthetic.shapes import questions
from regard.model.weights import weights_of
from regard.recipe.load import read_recipe

TEXT = {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16}
FIELD = {"tokenizer": "characters", "vocab_size": 300}
MODEL = {"encoders": [{"kind": "label", "dim": 8}, TEXT], "decoder": TEXT}
TRAIN = {
    "max_steps": 6,
    "warmup_steps": 2,
    "batch_tokens": 128,
    "validate_every": 3,
    "monitor": "accuracy",
}
ROWS = [
    (name, text, text if name == "same" else text[::-1])
    for text in ("abc", "bca", "cab")
    for name in ("same", "back")
]


def recipe(folder: Path, **data) -> dict:
    with (folder / "train.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("what", "from", "to"), *ROWS])
    sources = [{"kind": "label", "column": "what"}, FIELD | {"column": "from"}]
    files = {split: str(folder / "train.tsv") for split in ("train", "valid", "test")}
    table = {"sources": sources, "target": FIELD | {"column": "to"}, **files, **data}
    return {"data": table, "model": MODEL, "train": TRAIN}


def test_a_label_and_a_text(tmp_path):
    table = recipe(tmp_path)
    table["train"] = TRAIN | {"max_steps": 80, "learning_rate": 0.01, "validate_every": 80}
    model = regard.train(table, tmp_path / "run")
    again = regard.load(tmp_path / "run")
    assert [type(each).__name__ for each in again.sources] == ["Labels", "Tokenizer"]
    assert again.sources[1] is not None
    assert again.sources[1].hash == again.target.hash  # shared
    inputs = [row[:2] for row in ROWS]
    assert again.predict(inputs) == model.predict(["\t".join(row) for row in inputs])
    assert again.predict(inputs, beam_size=3) == [
        again.predict([row], beam_size=3)[0] for row in inputs
    ]
    look = regard.look(again, ("back", "abc"))
    assert [source.tokens for source in look.sources] == [("back",), ("a", "b", "c", "</s>")]
    accuracy = regard.evaluate(again, metrics=["accuracy"], cache=tmp_path / "cache")[
        "accuracy"
    ].value
    outputs = again.predict(inputs)
    assert accuracy > 0.0
    assert accuracy == pytest.approx(
        sum(out == row[2] for out, row in zip(outputs, ROWS, strict=True)) / len(ROWS)
    )


def test_resumed_equals_uninterrupted(tmp_path):
    whole = regard.train(recipe(tmp_path), tmp_path / "whole")
    table = recipe(tmp_path)
    regard.train({**table, "train": {**TRAIN, "max_steps": 3}}, tmp_path / "parts")
    resumed = regard.train(table, tmp_path / "parts", resume=True)
    both = zip(weights_of(whole.model).items(), weights_of(resumed.model).items(), strict=True)
    assert all(name == other and torch.equal(a, b) for (name, a), (other, b) in both)


def test_rows_of_python(tmp_path):
    table = recipe(tmp_path)
    del table["data"]["train"], table["data"]["valid"], table["data"]["test"]
    given = {
        "train": ROWS,
        "valid": [dict(zip(("what", "from", "to"), row, strict=True)) for row in ROWS],
    }
    model = regard.train(table, tmp_path / "run", data=given)
    assert len(model.predict([("same", "abc")])) == 1


def test_an_image_and_a_text(tmp_path):
    rows = []
    for number, example in zip(range(8), questions("train"), strict=False):
        scene, question = example.sources
        Image.fromarray(scene.draw()).save(tmp_path / f"{number}.png")
        rows.append({"image": f"{number}.png", "question": question, "answer": example.target})
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    sources = [
        {"kind": "image", "column": "image", "image_size": 32, "augment": ["flip"]},
        FIELD | {"column": "question"},
    ]
    data = {
        "train": str(tmp_path / "train.jsonl"),
        "sources": sources,
        "target": FIELD | {"column": "answer"},
    }
    model = {"encoders": [{"kind": "cnn", "dim": 16, "channels": [4, 8]}, TEXT], "decoder": TEXT}
    trained = regard.train(
        {"data": data, "model": model, "train": TRAIN | {"max_steps": 2, "monitor": "loss"}},
        tmp_path / "run",
    )
    first = rows[0]
    assert len(trained.predict([(tmp_path / first["image"], first["question"])])) == 1


def test_parallel_files(tmp_path):
    for number, name in enumerate(("what", "from", "to")):
        (tmp_path / name).write_text("".join(f"{row[number]}\n" for row in ROWS))
    files = [str(tmp_path / name) for name in ("what", "from", "to")]
    table = {"train": files, "sources": [{"kind": "label"}, FIELD], "target": FIELD}
    model = regard.train(
        {"data": table, "model": MODEL, "train": TRAIN | {"max_steps": 2, "monitor": "loss"}},
        tmp_path / "run",
    )
    assert len(model.predict(["same\tabc"])) == 1


REFUSED = {
    "both": ({"source": {}}, "data.sources: wanted nothing beside"),
    "one": ({"sources": [FIELD]}, "data.sources: wanted at least two tables; got one"),
    "a wrong key": (
        {"sources": [FIELD, FIELD | {"tokeniser": "bpe"}]},
        r"data.sources.2.tokeniser: wanted a key of",
    ),
    "another kind": (
        {"sources": [FIELD, FIELD]},
        "data.sources.1.kind: wanted 'label', which the encoder reads",
    ),
    "one more": (
        {"train": ["a", "b", "c", "d"], "sources": [{"kind": "label"}, FIELD, FIELD]},
        "model.encoders: wanted 3 encoders, one for each source; got 2",
    ),
    "running text": ({"context_length": 8}, "data.context_length: wanted nothing here: pairs"),
    "two files": (
        {"train": ["a", "b"], "valid": None, "test": None},
        "data.train: wanted a file for each of sources.1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    changes, message = REFUSED[name]
    data = {
        "train": ["a", "b", "c"],
        "sources": [{"kind": "label"}, FIELD],
        "target": FIELD,
        **changes,
    }
    with pytest.raises(InvalidRecipe, match=message):
        read_recipe(
            {
                "data": {key: value for key, value in data.items() if value is not None},
                "model": MODEL,
            }
        )


def test_sources_are_set_by_number(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        Path(regard.__file__).with_name("recipes").joinpath("operations.toml").read_text()
    )
    made = read_recipe(path, ["model.encoders.2.layers=3", "data.sources.2.max_tokens=9"])
    assert (made.model.encoders[1].config.layers, made.data.sources[1].max_tokens) == (3, 9)
