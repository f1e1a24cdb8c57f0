"""`regard.train`: what it takes as a recipe. The training itself is tested in tests/training."""

from pathlib import Path

import pytest

import regard
import regard.api.train as train_module
from regard.recipe.load import read_recipe
from regard.recipe.shipped import find_recipe
from support.forged import GOLDEN


@pytest.mark.parametrize(
    "recipe", ["dates-rnn", find_recipe("dates-rnn"), str(find_recipe("dates-rnn"))]
)
def test_a_recipe_is_a_built_in_name_or_a_file(recipe, tmp_path, monkeypatch):
    seen, model, changes = (
        [],
        regard.load(GOLDEN / "rnn"),
        ["train.max_steps=777", "train.device='cpu'"],
    )
    monkeypatch.setattr(train_module, "_train", lambda recipe, *rest: seen.append(recipe) or model)
    assert regard.train(recipe, tmp_path / "run", changes=changes, progress=False) is model
    assert seen == [read_recipe(find_recipe("dates-rnn"), changes)]


@pytest.mark.parametrize("recipe", ["dates-run", Path("dates-run")])
def test_an_unknown_name_is_refused_with_the_nearest(recipe, tmp_path):
    with pytest.raises(
        regard.InvalidArgument,
        match=r"recipe: wanted a TOML file, or one of .*dates-rnn.*'dates-run'",
    ):
        regard.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
