"""One embedding matrix for source and target needs one vocabulary, not two of one size."""

from pathlib import Path

import pytest

import regard
from regard.core.errors import InvalidRecipe
from regard.recipe.recipe import Recipe

PART = {"kind": "rnn", "dim": 8}
ROWS = [
    ("ein hund und zwei katzen", "a dog and two cats"),
    ("drei kleine hunde", "three small dogs"),
]
TRAIN = {"max_steps": 2, "warmup_steps": 0, "batch_tokens": 50, "device": "cpu"}
# As many different words on each side.
assert len({len({word for row in ROWS for word in row[side].split()}) for side in (0, 1)}) == 1


def recipe(tie: str, *, shared: bool, **train: object) -> dict:
    words = {"tokenizer": "words", "vocab_size": 1000}
    return {
        "data": {"source": words, "target": words, "shared_vocab": shared},
        "model": {"encoder": PART, "decoder": PART, "tie_embeddings": tie},
        "train": {**TRAIN, **train},
    }


def train(table: dict, folder: Path) -> regard.Predictor:
    data = {"train": ROWS * 4}
    return regard.train(table, folder, data=data, cache=folder.parent / "cache", progress=False)


def test_a_recipe_that_learns_two_vocabularies_is_refused():
    table = recipe("all", shared=False)
    table["data"]["train"] = ["a.de", "a.en"]
    with pytest.raises(InvalidRecipe, match=r"data\.shared_vocab: wanted true with .*'all'"):
        Recipe.of(table)


def test_training_on_python_data_too(tmp_path):
    with pytest.raises(InvalidRecipe, match=r"data\.shared_vocab: wanted true"):
        train(recipe("all", shared=False), tmp_path / "run")


@pytest.mark.parametrize("shared", [True, False])
def test_fine_tuning_a_model_of_two_vocabularies_is_refused(shared, tmp_path):
    before = train(recipe("target", shared=False), tmp_path / "before")
    assert before.source.size == before.target.size
    assert before.source.tokens() != before.target.tokens()
    table = recipe("all", shared=shared, init_from=str(tmp_path / "before"))
    with pytest.raises(InvalidRecipe, match=r"model\.tie_embeddings: wanted .*one vocabulary"):
        train(table, tmp_path / "after")


def test_one_vocabulary_is_trained_and_fine_tuned(tmp_path):
    first = train(recipe("all", shared=True), tmp_path / "before")
    assert first.source.tokens() == first.target.tokens()
    table = recipe("all", shared=False, init_from=str(tmp_path / "before"))
    assert train(table, tmp_path / "after").predict(["drei hunde"])
