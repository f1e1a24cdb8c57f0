"""`problem_type` of transformers: what a classifier predicts, read and written, with the logits that they compute."""

import json
import subprocess
import sys

import pytest
import torch

import regard
from regard.core.errors import RegardError
from regard.interop.huggingface import _write_tokenizer
from regard.interop.pretrained import PretrainedFolder
from support.predictors import tokenizer
from support.pretrained import CASES, assert_same_logits, random_theirs
from support.regressions import number_splits, recipe

transformers = pytest.importorskip("transformers")
TEXTS = ["the cat sat on the mat", "a dog ran: and the red car", "category"]
WORDS = tokenizer()
ARCHITECTURES = ("bert", "roberta", "distilbert")
# What config.json says, how many outputs there are, and the task that this is.
FILES = {
    "one number": ("regression", 1, "regress"),
    "three numbers": ("regression", 3, "regress"),
    "one output of a file that says nothing": (None, 1, "regress"),
    "several labels": ("multi_label_classification", 3, "multi_label"),
    "one label or none": ("multi_label_classification", 1, "multi_label"),
    "one of several labels": ("single_label_classification", 3, "classify"),
    "three outputs of a file that says nothing": (None, 3, "classify"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model of transformers with a tokenizer, in a folder as they save it."""
    made = {}

    def get(architecture, file):
        if (architecture, file) not in made:
            kind, count, _ = FILES[file]
            folder = tmp_path_factory.mktemp("theirs")
            options = {
                **CASES[architecture][2],
                "vocab_size": WORDS.size,
                "num_labels": count,
                "pad_token_id": 1 if architecture == "roberta" else 0,
                **({} if kind is None else {"problem_type": kind}),
            }
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(CASES, architecture, (*CASES[architecture][:2], options))
                theirs = random_theirs(architecture)
            theirs.save_pretrained(folder)
            _write_tokenizer(WORDS, folder, has_source=True)
            made[architecture, file] = theirs, folder
        return made[architecture, file]

    return get


@torch.no_grad()
def logits_of(theirs):
    return [theirs(input_ids=torch.tensor([[*WORDS.encode(text), 2]])).logits[0] for text in TEXTS]


def given(outputs):
    """What a predictor's outputs say of the logits."""
    if outputs[0][0].numbers is not None:
        return torch.tensor([output.numbers for (output,) in outputs])
    return torch.tensor(
        [
            [output.probabilities[name] for name in sorted(output.probabilities)]
            for (output, *_) in outputs
        ]
    )


ACTIVATIONS = {
    "regress": lambda logits: logits,
    "multi_label": torch.sigmoid,
    "classify": lambda logits: logits.softmax(-1),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_imported_model_predicts_what_their_logits_say(architecture, file, folders, tmp_path):
    theirs, folder = folders(architecture, file)
    _, count, task = FILES[file]
    model = regard.from_pretrained(folder)
    assert model.task.name == task
    wanted = ACTIVATIONS[task](torch.stack(logits_of(theirs)))
    assert_same_logits(given(model.outputs(TEXTS)), wanted)
    # And so does its checkpoint, and what is written for transformers from that.
    regard.import_model(folder, tmp_path / "checkpoint")
    loaded = regard.load(tmp_path / "checkpoint")
    assert_same_logits(given(loaded.outputs(TEXTS)), wanted)
    regard.export(loaded, "huggingface", tmp_path / "exported")
    written = json.loads((tmp_path / "exported" / "config.json").read_text())
    names = {"regress": "regression", "multi_label": "multi_label_classification"}
    assert written["problem_type"] == names.get(task, "single_label_classification")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "exported"
    ).eval()
    assert again.config.problem_type == written["problem_type"]
    assert again.config.num_labels == count
    assert again.config.id2label == theirs.config.id2label
    for mine, own in zip(logits_of(again), logits_of(theirs), strict=True):
        assert_same_logits(mine, own)


WRONG = {
    "an unknown problem": {"problem_type": "ranking"},
    "one label of one": {
        "problem_type": "single_label_classification",
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    },
}


@pytest.mark.parametrize("wrong", WRONG)
def test_other_problems_are_refused(wrong, folders, tmp_path):
    _, folder = folders("bert", "one number")
    config = json.loads((folder / "config.json").read_text()) | WRONG[wrong]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(RegardError, match=r"config\.json: (problem_type|id2label): wanted"):
        PretrainedFolder(tmp_path)


BERT = {
    "encoder": {
        "kind": "transformer",
        "dim": 16,
        "heads": 2,
        "layers": 1,
        "ffn_dim": 32,
        "positions": "learned",
        "max_positions": 40,
        "norm_first": False,
        "norm_input": True,
        "activation": "gelu",
    },
    "pool": {"kind": "first", "projection": "tanh"},
    "scale_embeddings": False,
}


@pytest.mark.parametrize("size", [1, 2])
def test_a_trained_regression_gives_them_numbers_in_the_units_of_the_data(size, tmp_path):
    table = recipe() | {"model": BERT}
    model = regard.train(table, tmp_path / "run", data=number_splits(size))
    regard.export(model, "huggingface", tmp_path / "exported")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "exported"
    ).eval()
    assert theirs.config.problem_type == "regression"
    for text in ("good film", "awful awful plot"):
        ids = [*model.source.encode(text), model.source.special_tokens.end]
        with torch.no_grad():
            found = theirs(input_ids=torch.tensor([ids])).logits[0].double()
        [[output]] = model.outputs([text])
        assert found.tolist() == pytest.approx(output.numbers, rel=1e-4)
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "argmax" not in card
    # The model itself is as before.
    [[output]] = model.outputs(["good film"])
    assert output.numbers == regard.load(tmp_path / "run").outputs(["good film"])[0][0].numbers


def test_onnx_has_the_numbers_in_the_units_of_the_data_too(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
    pytest.importorskip("onnxscript", reason="needs the extra `onnx`")
    table = recipe(encoder="transformer")
    model = regard.train(table, tmp_path / "run", data=number_splits())
    # In a process of its own: torch.export cannot follow the checks of annotations.
    export = ("export", tmp_path / "run", "--to", "onnx", "--out", tmp_path / "exported")
    done = subprocess.run(
        [sys.executable, "-m", "regard", *map(str, export)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    session = onnxruntime.InferenceSession(tmp_path / "exported" / "onnx" / "model.onnx")
    [[output]] = model.outputs(["good film"])
    ids = [*model.source.encode("good film"), model.source.special_tokens.end]
    inputs = {
        each.name: [ids] if each.name == "input_ids" else [[1] * len(ids)]
        for each in session.get_inputs()
    }
    (found, *_) = session.run(None, inputs)
    assert found[0].tolist() == pytest.approx(output.numbers, rel=1e-4)
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["problem_type"] == "regression"


def test_a_fine_tuned_regression_keeps_the_units_of_its_model(folders, tmp_path):
    """The imported layer gives the numbers themselves, and training starts from there."""
    _, folder = folders("bert", "one number")
    regard.import_model(folder, tmp_path / "imported")
    table = {
        "data": {
            "source": {"tokenizer": "pretrained"},
            "target": {"kind": "number", "normalize": False},
        },
        "model": dict(regard.load(tmp_path / "imported").recipe.model.table),
        "train": {
            "init_from": str(tmp_path / "imported"),
            "max_steps": 1,
            "warmup_steps": 0,
            "learning_rate": 1e-9,
            "device": "cpu",
        },
    }
    rows = [(text, float(number)) for number, text in enumerate(TEXTS)]
    tuned = regard.train(table, tmp_path / "run", data={"train": rows, "valid": rows})
    before = given(regard.load(tmp_path / "imported").outputs(TEXTS))
    assert torch.allclose(given(tuned.outputs(TEXTS)), before, atol=1e-4)
