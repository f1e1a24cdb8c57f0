"""Recipes from files: one that extends another; paths are resolved against its folder, then the working directory."""

import pytest

import regard
from regard.api.train import prepare
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.metric_names import HIGHER_IS_BETTER
from regard.core.registry import missing_extensions
from regard.evaluation.metrics import METRICS, Metric
from regard.evaluation.statistics import exact_match
from regard.generation.choose.logits_processors import LOGITS_PROCESSORS
from regard.recipe.load import locate_data, read_recipe, read_tables, with_setting
from regard.recipe.recipe import Recipe
from regard.recipe.shipped import find_recipe

RECIPE = """
[data]
train = ["train.en", "train.de"]
[data.source]
tokenizer = "words"
[data.target]
tokenizer = "words"
[model.encoder]
kind = "rnn"
[model.decoder]
kind = "rnn"
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (folder / "my.toml").write_text(RECIPE)
    return folder / "my.toml"


def write_pair(folder, text):
    for name in ("train.en", "train.de"):
        (folder / name).write_text(f"{text}\n")


def test_the_recipes_folder_comes_first(recipe, tmp_path):
    write_pair(recipe.parent, "beside")
    write_pair(tmp_path / "work", "here")
    read = read_recipe(recipe)
    assert read.data.train == (str(recipe.parent / "train.en"), str(recipe.parent / "train.de"))
    assert "beside" in prepare(read, tmp_path / "cache").target.tokens()


def test_the_working_directory_comes_second(recipe, tmp_path):
    write_pair(tmp_path / "work", "here")
    read = read_recipe(recipe)
    assert read.data.train == (str(tmp_path / "work/train.en"), str(tmp_path / "work/train.de"))
    assert "here" in prepare(read, tmp_path / "cache").target.tokens()


def test_a_missing_file_names_both_paths(recipe, tmp_path):
    with pytest.raises(InvalidRecipe) as error:
        prepare(read_recipe(recipe), tmp_path / "cache")
    for folder in (recipe.parent, tmp_path / "work"):
        for name in ("train.en", "train.de"):
            assert str(folder / name) in str(error.value)
    assert "data.train: wanted a file to read" in str(error.value)


def test_both_paths_are_stored(recipe):
    write_pair(recipe.parent, "beside")
    stored = read_recipe(recipe).as_dict()
    assert stored["data"]["train"] == (
        str(recipe.parent / "train.en"),
        str(recipe.parent / "train.de"),
    )
    assert stored["paths"] == {"folder": str(recipe.parent), "data.train": ["train.en", "train.de"]}
    assert Recipe.of(stored) == read_recipe(recipe)


def test_absolute_paths_and_changes(recipe, tmp_path):
    write_pair(tmp_path, "other")
    read = read_recipe(recipe, [f"data.train=['{tmp_path}/train.en', '{tmp_path}/train.de']"])
    assert read.data.train == (str(tmp_path / "train.en"), str(tmp_path / "train.de"))
    locate_data(read)


def test_data_of_a_checkpoint_are_found_again(recipe, tmp_path, monkeypatch):
    """At their absolute paths from any folder; else as written, from the recipe's folder or the working directory."""
    write_pair(tmp_path / "work", "here")
    for read in (
        read_recipe(recipe),
        read_recipe(read_tables(recipe) | {"paths": {}}),
        read_recipe("../recipes/my.toml"),
    ):
        stored = Recipe.of(read.as_dict())
        monkeypatch.chdir(tmp_path)
        assert locate_data(stored).train == (
            str(tmp_path / "work/train.en"),
            str(tmp_path / "work/train.de"),
        )
        monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "work").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert locate_data(stored).train == (
        str(tmp_path / "moved/train.en"),
        str(tmp_path / "moved/train.de"),
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRecipe) as error:
        locate_data(stored, ["train"])
    assert len(error.value.problems) == 2
    assert locate_data(stored, ["valid"]) == stored.data  # whose files are not needed


def test_tables_from_python_are_taken_as_they_are(recipe):
    table = read_recipe(recipe).as_dict() | {"paths": {}}
    assert Recipe.of(table).paths == {}
    locate_data(Recipe.of(table))


def test_a_recipe_names_the_extensions_it_needs():
    """A checkpoint records them, and says which package registers one that is missing."""
    field = {"tokenizer": "bytes"}
    table = {
        "data": {"synthetic": "copy", "source": field, "target": field},
        "model": {"encoder": {"kind": "rnn"}, "decoder": {"kind": "rnn"}},
    }
    assert read_recipe(table).extensions() == []
    regard.register.metric("shouting", Metric("share of capitals", exact_match))
    regard.register.logits_processor("quiet", dict)
    try:
        used = {"train": {"monitor": "shouting"}, "decode": {"logits_processors": ["quiet"]}}
        named = read_recipe(table | used).extensions()
        assert named == [
            {
                "kind": "metric",
                "name": "shouting",
                "package": "regard",
            },  # where the function is defined
            {"kind": "logits processor", "name": "quiet", "package": "builtins"},
        ]
        assert list(missing_extensions(named)) == []
    finally:
        HIGHER_IS_BETTER.unregister("shouting")
        METRICS.pop("shouting")
        LOGITS_PROCESSORS.unregister("quiet")
    assert list(missing_extensions([*named, *named])) == [  # two parts may name the same one
        "wanted the metric 'shouting'; got no registration of that name. Import regard first.",
        "wanted the logits processor 'quiet'; got no registration of that name. Import builtins first.",
    ]


def test_a_recipe_extends_another(tmp_path):
    (tmp_path / "base.toml").write_text(
        'extends = "translation"\n[data]\ntrain = ["a", "b"]\n[train]\nseed = 5\n'
    )
    (tmp_path / "mine.toml").write_text(
        'extends = "base.toml"\n[train]\nmax_steps = 9\nwarmup_steps = 2\n[model.decoder]\nkind = "rnn"\ndim = 256\n'
    )
    base, made = (
        read_tables(find_recipe("translation")),
        read_tables(tmp_path / "mine.toml", ["train.seed=6"]),
    )
    assert made["data"]["train"] == ["a", "b"]
    assert made["data"]["valid"] == base["data"]["valid"]
    assert (made["train"]["max_steps"], made["train"]["seed"]) == (9, 6)
    assert made["train"]["learning_rate"] == base["train"]["learning_rate"]
    assert made["model"]["encoder"] == base["model"]["encoder"]
    assert made["model"]["decoder"] == {"kind": "rnn", "dim": 256}
    assert "extends" not in made
    assert read_tables({"extends": str(tmp_path / "base.toml")})["train"]["seed"] == 5


def test_recipes_that_extend_themselves_or_nothing_are_refused(tmp_path):
    for name, other in (("a", "b.toml"), ("b", "a.toml"), ("c", "translaton")):
        (tmp_path / f"{name}.toml").write_text(f'extends = "{other}"\n')
    with pytest.raises(
        InvalidArgument,
        match=r"extends: wanted a recipe that does not extend this one; got .*a\.toml",
    ):
        read_tables(tmp_path / "a.toml")
    with pytest.raises(InvalidArgument, match="Did you mean 'translation'"):
        read_tables(tmp_path / "c.toml")
    with pytest.raises(
        InvalidArgument, match="extends: wanted the name or file of a recipe; got 3"
    ):
        read_tables({"extends": 3})


@pytest.mark.parametrize(
    "wrong", [[], "a", {"data.train": 3}, {"data.train": ["a", 3]}, {"folder": None}]
)
def test_paths_that_are_none_are_refused(recipe, wrong):
    """A checkpoint of others holds them."""
    table = read_recipe(recipe).as_dict()
    with pytest.raises(InvalidRecipe, match="paths: wanted the paths of a recipe's file"):
        Recipe.of(table | {"paths": wrong})


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_setting_of_one_of_several_tables_changes_that_one(number):
    """They count from 1, as in messages."""
    table = {"data": {"sources": [{"column": "a"}, {"column": "b"}, {"column": "c"}], "train": "x"}}
    found = with_setting(table, f"data.sources.{number}.column=new")
    wanted = [*"abc"]
    wanted[number - 1] = "new"
    assert found == {"data": {"sources": [{"column": each} for each in wanted], "train": "x"}}
    assert [each["column"] for each in table["data"]["sources"]] == [*"abc"]


@pytest.mark.parametrize(
    "key", ["data.sources.0.column", "data.sources.4.column", "data.sources.x.column"]
)
def test_a_setting_of_a_table_that_is_not_there_is_refused(key):
    table = {"data": {"sources": [{"column": "a"}, {"column": "b"}, {"column": "c"}]}}
    with pytest.raises(InvalidArgument, match=f"a table at 'sources'.*{key} is no key"):
        with_setting(table, f"{key}=new")


def test_a_list_with_other_things_than_tables_is_shown_as_it_was_given(recipe):
    data = read_recipe(recipe).as_dict()["data"] | {
        "source": None,
        "sources": [{"kind": "nonsense"}, 3],
    }
    with pytest.raises(InvalidRecipe) as refused:
        Recipe.of(read_recipe(recipe).as_dict() | {"data": data})
    (problem,) = (each for each in refused.value.problems if each.key.startswith("data.sources"))
    assert (problem.key, problem.wanted) == ("data.sources", "a list, each item a table")
    assert problem.got.startswith(("[{'kind': 'nonsense'}, 3", "({'kind': 'nonsense'}, 3"))
