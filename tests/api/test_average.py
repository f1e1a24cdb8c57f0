"""`regard.average`: the mean of the weights of several models, as a checkpoint like any other."""

import json
import logging
import shutil

import pytest
import torch

import regard
from regard.checkpoint import store
from regard.checkpoint.format import SHORTLIST, WEIGHTS, find_checkpoint
from regard.generation.shortlist import Shortlist
from regard.model.weights import weights_of
from support.forged import GOLDEN, forge, rehashed


def moved(folder, distance):
    """A copy of the golden model whose weights are all larger by `distance`."""

    def change(tensors):
        for tensor in tensors.values():
            tensor += distance

    return forge(folder, WEIGHTS, change)


def tensors(folder):
    return store.tensors(store.read(folder), WEIGHTS, folder)


def test_each_weight_is_the_mean(tmp_path):
    models = [moved(tmp_path / str(distance), distance) for distance in (0.0, 0.25, 1.0)]
    out = regard.average(models, tmp_path / "new" / "average")
    assert out == tmp_path / "new" / "average"
    golden, mean = tensors(GOLDEN / "transformer"), tensors(out)
    assert mean.keys() == golden.keys()
    for name, tensor in golden.items():
        assert mean[name].dtype == torch.float32
        torch.testing.assert_close(mean[name], tensor + 1.25 / 3)
    assert not torch.equal(mean[name], golden[name])


def test_equal_models_average_to_themselves(tmp_path):
    out = regard.average([GOLDEN / "transformer"] * 3, tmp_path / "average")
    before, after = regard.load(GOLDEN / "transformer"), regard.load(out)
    assert all(
        weights_of(after.model)[name].equal(tensor)
        for name, tensor in weights_of(before.model).items()
    )
    assert after.recipe == before.recipe
    texts = ["abc", "dabb"]
    assert after.predict(texts) == before.predict(texts)


def test_the_files_are_those_of_a_checkpoint_and_the_card_names_the_models(tmp_path):
    first = forge(tmp_path / "first", "config.json", lambda config: None)
    (first / store.TRAINING_STATE).write_text("{}")
    rehashed(first)
    out = regard.average([first, GOLDEN / "transformer"], tmp_path / "average")
    assert store.read(out).keys() == store.read(GOLDEN / "transformer").keys()
    assert f"2 models: `{first}`, `{GOLDEN / 'transformer'}`." in (out / "README.md").read_text()


def test_of_a_run_the_checkpoint_that_it_means_is_taken(tmp_path):
    run = tmp_path / "run"
    moved(run / "averaged", 0.5)
    moved(run / "step-00000010", 4.0)
    assert find_checkpoint(run) == run / "averaged"
    mean = tensors(regard.average([run, GOLDEN / "transformer"], tmp_path / "average"))
    for name, tensor in tensors(GOLDEN / "transformer").items():
        torch.testing.assert_close(mean[name], tensor + 0.25)


def test_the_shortlist_of_the_first_is_kept(tmp_path):
    first = shutil.copytree(GOLDEN / "transformer", tmp_path / "first")
    model = regard.load(first)
    likely, frequent = (
        torch.zeros(model.source.size, 1, dtype=torch.int32),
        torch.tensor([4], dtype=torch.int32),
    )
    learned = Shortlist.of(
        {"likely": likely, "frequent": frequent}, model.source.size, model.target.size
    )
    store.add(first, SHORTLIST, learned.tensors)
    out = regard.average([first, GOLDEN / "transformer"], tmp_path / "average")
    assert regard.load(out).shortlist.frequent.tolist() == [4]


def test_another_architecture_is_refused(tmp_path):
    with pytest.raises(
        regard.InvalidArgument, match=r"rnn: wanted the \[model\] of .*transformer; got another"
    ):
        regard.average([GOLDEN / "transformer", GOLDEN / "rnn"], tmp_path / "average")
    assert not (tmp_path / "average").exists()


def test_other_vocabularies_are_refused(tmp_path):
    def swap(vocabulary):
        ids = vocabulary["model"]["vocab"]
        a, b = list(ids)[-2:]
        ids[a], ids[b] = ids[b], ids[a]

    other = forge(tmp_path / "other", "tokenizer.json", swap)
    with pytest.raises(
        regard.InvalidArgument, match=r"other: wanted the vocabularies of .*transformer; got others"
    ):
        regard.average([GOLDEN / "transformer", other], tmp_path / "average")
    assert not (tmp_path / "average").exists()


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_models_are_refused(count, tmp_path):
    with pytest.raises(regard.InvalidArgument, match=f"models: wanted two or more; got {count}"):
        regard.average([GOLDEN / "transformer"] * count, tmp_path / "average")


def test_a_folder_that_exists_is_refused(tmp_path):
    with pytest.raises(
        regard.InvalidArgument, match="out: wanted a folder that does not exist yet"
    ):
        regard.average([GOLDEN / "transformer"] * 2, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [
        ({"seed": 1, "init_from": "/a"}, {"seed": 2, "init_from": "/a"}, False),
        ({"seed": 1, "init_from": "/a"}, {"seed": 1, "init_from": "/b"}, True),
        ({"seed": 1, "init_from": "/a"}, {"seed": 1, "init_from": None}, True),
        ({"seed": 1, "init_from": None}, {"seed": 2, "init_from": None}, True),
        ({"seed": 3, "init_from": None}, {"seed": 3, "init_from": None}, False),
    ],
)
def test_different_initial_weights_are_warned_of(first, second, warned, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "regard")
    models = [
        forge(
            tmp_path / str(number),
            "config.json",
            lambda config, train=train: config["recipe"]["train"].update(train),
        )
        for number, train in enumerate((first, second))
    ]
    out = regard.average(models, tmp_path / "average")
    assert ("different initial weights" in caplog.text) == warned
    assert json.loads((out / "config.json").read_text())["recipe"]["train"]["seed"] == first["seed"]
