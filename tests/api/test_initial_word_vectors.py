"""Training from word vectors that a recipe names: what the model begins with, freezing, resuming, refusals."""

import re
from pathlib import Path

import pytest
import torch

import regard
from regard.api.export import export_obstacles
from regard.recipe.load import read_recipe
from regard.recipe.recipe import Recipe
from support.command_line import command, process
from support.training_runs import interrupted, same, weights

SENTENCES = [
    f"the {animal} {verb} {thing}"
    for animal in ("cat", "dog", "cow", "Horse")
    for verb in ("eats", "sees")
    for thing in ("grass", "bread", "water")
]
WORDS = sorted({word.lower() for sentence in SENTENCES for word in sentence.split()})
# The vocabulary has "Horse" only.
KNOWN = [word for word in WORDS[2:] if word != "horse"]
DIM = 16
SETTINGS = {
    "max_steps": 8,
    "warmup_steps": 1,
    "validate_every": 4,
    "batch_tokens": 64,
    "learning_rate": 0.01,
    "log_samples": 0,
    "device": "cpu",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of sentences and of vectors of some of their words."""
    monkeypatch.chdir(tmp_path)
    Path("train.src").write_text("".join(f"{line}\n" for line in SENTENCES))
    Path("train.tgt").write_text("".join(f"{line[::-1]}\n" for line in SENTENCES))
    save(WORDS[2:], "vectors.txt")
    return tmp_path


def save(words, path, dim=DIM):
    torch.manual_seed(5)
    regard.WordVectors(words, torch.randn(len(words), dim)).save(path)


def tables(encoder=(), decoder=(), model=(), data=(), **train):
    data_table = {
        "train": ["train.src", "train.tgt"],
        "valid": ["train.src", "train.tgt"],
        "shared_vocab": False,
        "source": {"tokenizer": "words"},
        "target": {"tokenizer": "words"},
    }
    given = {"kind": "rnn", "dim": DIM, "word_vectors": "vectors.txt"}
    return {
        "data": data_table | dict(data),
        "model": {
            "encoder": given | dict(encoder),
            "decoder": {"kind": "rnn", "dim": DIM} | dict(decoder),
            **dict(model),
        },
        "train": SETTINGS | train,
        "decode": {"max_length": 8},
    }


def train(recipe, run="run", **options):
    return regard.train(recipe, run, progress=False, cache=Path("cache"), **options)


def rows_of(predictor, words):
    """The vectors that the encoder reads for these words."""
    ids = torch.tensor(predictor.sources[0].encode(" ".join(words)))
    with torch.no_grad():
        return predictor.model.encoder.embed_tokens(ids)


FROZEN = {"freeze_word_vectors": True}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.5},
        {"optimizer": "muon", "weight_decay": 0.5},
        {"ema_decay": 0.5},
        {"accumulate_steps": 2, "clip_norm": 0.01},
        {"average_checkpoints": 2},
        {"freeze": ["encoder.embed_tokens.*"], "unfreeze_after": 1},
    ],
)
def test_frozen_rows_stay_and_others_are_trained(settings, folder):
    predictor = train(tables(FROZEN, **settings))
    expected = regard.WordVectors.load("vectors.txt")
    for word in KNOWN:
        assert torch.equal(rows_of(predictor, [word])[0], expected[word])
    before = regard.load("run/step-00000004")
    after = regard.load("run/step-00000008")
    for word in WORDS[:2]:
        assert not torch.equal(rows_of(before, [word]), rows_of(after, [word]))


def test_training_begins_with_the_vectors_and_changes_them(folder):
    vectors = regard.WordVectors.load("vectors.txt")
    expected = torch.stack([vectors[word] for word in KNOWN])
    first = train(tables(learning_rate=1e-30), "first")
    assert torch.equal(rows_of(first, KNOWN), expected)
    deviation = float(rows_of(first, WORDS[:2]).std())
    assert deviation == pytest.approx(float(expected.std()), rel=0.4)
    assert not torch.equal(rows_of(train(tables()), KNOWN), expected)


def test_a_word_in_another_case_has_the_vector_in_lower_case(folder):
    predictor = train(tables(FROZEN))
    expected = regard.WordVectors.load("vectors.txt")["horse"]
    assert torch.equal(rows_of(predictor, ["Horse"])[0], expected)


def model_of(name):
    transformer = {"kind": "transformer", "dim": DIM, "layers": 1, "heads": 2, "ffn_dim": 16}
    vectors = {"word_vectors": "vectors.txt"}
    own = tables()
    if name == "decoder":
        return tables({"word_vectors": None}, vectors | FROZEN, {"tie_embeddings": "none"})
    if name == "both, one matrix":
        model = {"tie_embeddings": "all"}
        return tables(vectors, vectors, model, {"shared_vocab": True})
    if name == "language model":
        own["data"] = {"train": "train.src", "target": {"tokenizer": "words"}}
        own["model"] = {"decoder": transformer | vectors | FROZEN, "tie_embeddings": "none"}
    if name == "masked tokens":
        own["data"] = {"train": "train.src", "target": {"tokenizer": "words"}}
        own["model"] = {"encoder": transformer | vectors, "head": "mlm"}
    if name == "classifier":
        Path("labels").write_text("".join(f"{line[-1]}\n" for line in SENTENCES))
        own["data"] |= {"train": ["train.src", "labels"], "target": {"kind": "label"}}
        del own["data"]["valid"], own["data"]["shared_vocab"]
        own["model"] = {
            "encoder": {"kind": "bag", "dim": DIM} | vectors | FROZEN,
            "pool": {"kind": "mean"},
        }
        del own["decode"]
    if name == "second encoder":
        own["data"] |= {"train": ["train.src", "train.tgt", "train.tgt"]}
        del own["data"]["valid"], own["data"]["source"]
        own["data"]["sources"] = [{"tokenizer": "bytes"}, {"tokenizer": "words"}]
        save(
            [line[::-1] for line in " ".join(SENTENCES).split()][:0] or ["eht", "tac"], "second.txt"
        )
        conv = {"kind": "conv", "dim": DIM, "word_vectors": "second.txt"} | FROZEN
        del own["model"]["encoder"]
        own["model"]["encoders"] = [{"kind": "rnn", "dim": DIM}, conv]
    return own


PARTS = {
    "decoder": ("decoder.embed_tokens.weight", "target"),
    "both, one matrix": ("encoder.embed_tokens.weight", "target"),
    "language model": ("decoder.embed_tokens.weight", "target"),
    "masked tokens": ("encoder.embed_tokens.weight", "target"),
    "classifier": ("encoder.embed_tokens.weight", "source"),
    "second encoder": ("encoder.encoders.1.embed_tokens.weight", "second"),
}


@pytest.mark.parametrize("name", PARTS)
def test_each_part_that_embeds_tokens_takes_word_vectors(name, folder):
    recipe = model_of(name)
    recipe["train"] |= {"learning_rate": 1e-30}
    predictor = train(recipe)
    weight_name, side = PARTS[name]
    vocabularies = {
        "source": predictor.sources[0] if predictor.sources else None,
        "target": predictor.target,
        "second": predictor.sources[-1] if predictor.sources else None,
    }
    file = regard.WordVectors.load("second.txt" if side == "second" else "vectors.txt")
    matrix = dict(predictor.model.named_parameters())[weight_name] * DIM**0.5
    tokens = vocabularies[side].tokens()
    known = [row for row, token in enumerate(tokens) if token in file]
    assert known
    for row in known:
        assert torch.equal(matrix[row].detach(), file[tokens[row]])


def test_a_run_resumes_bit_for_bit_without_the_file(folder):
    recipe = tables(FROZEN, ema_decay=0.5)
    train(recipe, "whole")
    Path("recipe.toml").write_text(toml(recipe))
    interrupted("recipe.toml", Path("cut"), 3, Path("cache"), progress=False)
    Path("vectors.txt").rename("elsewhere.txt")
    predictor = train("recipe.toml", "cut", resume=True)
    assert same(weights(Path("whole")), weights(Path("cut")))
    vectors = regard.WordVectors.load("elsewhere.txt")
    assert torch.equal(rows_of(predictor, ["grass"])[0], vectors["grass"])


def test_a_changed_file_does_not_change_a_resumed_run(folder):
    recipe = tables(FROZEN)
    train(recipe, "whole")
    interrupted(recipe, Path("cut"), 3, Path("cache"), progress=False)
    save(["the"], "vectors.txt", dim=3)
    train(recipe, "cut", resume=True)
    assert same(weights(Path("whole")), weights(Path("cut")))


def test_another_file_is_refused_when_a_run_resumes(folder):
    interrupted(tables(), Path("cut"), 3, Path("cache"), progress=False)
    save(WORDS, "other.txt")
    with pytest.raises(regard.CheckpointRefused, match=r"other\.txt.*which was.*vectors\.txt"):
        train(tables({"word_vectors": "other.txt"}), "cut", resume=True)
    with pytest.raises(regard.CheckpointRefused, match="freeze_word_vectors = True"):
        train(tables(FROZEN), "cut", resume=True)


def toml(recipe):
    from regard.recipe.toml_text import toml_lines

    return "\n".join(toml_lines(recipe)) + "\n"


def test_a_command_trains_from_vectors_that_regard_made_and_predicts_without_them(folder):
    made = command("words", "train", "train.src", "--out", "made.txt", "--set", f"dim={DIM}",
                   "--set", "min_count=1", "--set", "epochs=1")  # fmt: skip
    assert made.returncode == 0, made.stderr
    recipes = folder / "recipes"
    recipes.mkdir()
    (recipes / "my.toml").write_text(toml(tables({"word_vectors": "own.txt"} | FROZEN)))
    Path("made.txt").rename(recipes / "own.txt")
    report = (
        r"encoder.word_vectors: 10 of 10 tokens found \(100.0 %; 100.0 % of the training tokens\)"
    )
    dry = command("train", "recipes/my.toml", "--dry-run", "--cache", "cache")
    assert re.search(report, dry.stdout), dry.stdout + dry.stderr
    done = command("train", "recipes/my.toml", "--out", "run", "--cache", "cache")
    assert done.returncode == 0, done.stderr
    assert re.search(report, done.stderr)
    vectors = regard.WordVectors.load(recipes / "own.txt")
    (recipes / "own.txt").unlink()
    assert torch.equal(rows_of(regard.load("run"), ["cat"])[0], vectors["cat"])
    predicted = process("predict", "run", text="the cat eats grass\n")
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == 1
    again = command("train", "recipes/my.toml", "--out", "run", "--cache", "cache", "--resume",
                    "--set", "train.max_steps=9")  # fmt: skip
    assert again.returncode == 0, again.stderr


def test_a_path_from_python_is_taken_and_stored_as_text(folder):
    recipe = tables({"word_vectors": folder / "vectors.txt"})
    assert Recipe.of(recipe).model.encoders[0].config.word_vectors == str(folder / "vectors.txt")
    predictor = train(recipe)
    stored = regard.load("run").recipe.as_dict()["model"]["encoder"]["word_vectors"]
    assert stored == str(folder / "vectors.txt")
    assert predictor.recipe.model.encoders[0].config.word_vectors == stored


def test_paths_are_relative_to_the_recipe(folder):
    (folder / "recipes").mkdir()
    Path("vectors.txt").rename(folder / "recipes" / "vectors.txt")
    decoder = {"word_vectors": "vectors.txt"}
    (folder / "recipes" / "my.toml").write_text(toml(tables(decoder=decoder)))
    model = read_recipe("recipes/my.toml").model
    assert model.decoder is not None
    for part in (model.encoders[0], model.decoder):
        assert part.config.word_vectors == str(folder / "recipes" / "vectors.txt")


def test_a_wrong_dimension_is_refused_before_data_are_read(folder):
    save(["the"], "small.txt", dim=12)
    recipe = tables({"word_vectors": "small.txt"}, {"word_vectors": "small.txt"})
    Path("train.src").unlink()
    with pytest.raises(regard.InvalidRecipe) as refused:
        train(recipe)
    first, second = str(refused.value).splitlines()
    assert re.match(r"model\.encoder\.dim: wanted 12, .*small\.txt; got 16\. Set dim = 12", first)
    assert second.startswith("model.decoder.dim: wanted 12")
    assert not Path("cache").exists()
    Path("small.txt").unlink()
    with pytest.raises(regard.InvalidArgument, match=r"small\.txt: wanted a file to read"):
        train(recipe)


def test_a_file_without_any_token_is_refused_with_a_hint(folder):
    save(["le", "chat", "<unk>"], "french.txt")
    with pytest.raises(
        regard.InvalidRecipe, match=r"none of its 10 tokens in .*french\.txt.*language"
    ):
        train(tables({"word_vectors": "french.txt"}))
    given = {"source": {"tokenizer": "bytes"}}
    with pytest.raises(regard.InvalidRecipe, match=r"data\.source\.tokenizer = 'words'"):
        train(tables({"word_vectors": "french.txt"}, data=given))


def test_few_vectors_of_sub_words_are_warned_of(folder):
    save(["th", "Gr", "."], "pieces.txt")
    events = []
    recipe = tables(
        {"word_vectors": "pieces.txt"},
        data={"source": {"tokenizer": "bpe", "vocab_size": 280}},
    )
    train(recipe, on_event=events.append)
    (report,) = [event for event in events if event["event"] == "word_vectors"]
    assert report["part"] == "encoder"
    assert 1 <= report["found"] < 10
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    assert any("the tokenizer is 'bpe'" in message for message in warnings)


def test_coverage_counts_tokens_and_their_occurrences(folder):
    save(["the", "unseen"], "one.txt")
    events = []
    train(tables({"word_vectors": "one.txt"}, max_steps=1), on_event=events.append)
    (report,) = [event for event in events if event["event"] == "word_vectors"]
    assert (report["found"], report["tokens"], report["training_share"]) == (1, 10, 0.25)
    assert report["message"] == (
        "encoder.word_vectors: 1 of 10 tokens found (10.0 %; 25.0 % of the training tokens)"
    )


REFUSED = {
    "frozen without vectors": (
        {"encoder": {"word_vectors": None} | FROZEN},
        r"encoder\.freeze_word_vectors: wanted false without word_vectors",
    ),
    "a frozen output layer": (
        {"decoder": {"word_vectors": "vectors.txt"} | FROZEN},
        r"decoder\.freeze_word_vectors: wanted false with tie_embeddings = 'target'",
    ),
    "a frozen matrix that all share": (
        {"encoder": FROZEN, "model": {"tie_embeddings": "all"}, "data": {"shared_vocab": True}},
        r"encoder\.freeze_word_vectors: wanted false with tie_embeddings = 'all'",
    ),
    "two files for one matrix": (
        {
            "decoder": {"word_vectors": "other.txt"},
            "model": {"tie_embeddings": "all"},
            "data": {"shared_vocab": True},
        },
        r"decoder\.word_vectors: wanted the file of model\.encoder",
    ),
    "a model to start from": (
        {"init_from": "run"},
        r"encoder\.word_vectors: wanted nothing with train\.init_from",
    ),
    "sharded and frozen": (
        {"encoder": {"kind": "bag"} | FROZEN, "fsdp": True},
        r"train\.fsdp: wanted false with model\.encoder\.freeze_word_vectors",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_is_refused(name, folder):
    changes, message = REFUSED[name]
    with pytest.raises(regard.InvalidRecipe, match=message):
        Recipe.of(tables(**changes))


def test_only_parts_that_embed_tokens_have_the_key(folder):
    recipe = tables({"kind": "label"}, data={"source": {"kind": "label"}})
    with pytest.raises(
        regard.InvalidRecipe, match=r"model\.encoder\.word_vectors: wanted a key of"
    ):
        Recipe.of(recipe)


def test_word_vectors_stand_against_no_export(folder):
    transformer = {"kind": "transformer", "dim": DIM, "layers": 1, "heads": 2, "ffn_dim": 16}
    predictor = train(tables(transformer | FROZEN, transformer, max_steps=1))
    reasons = [reason for each in export_obstacles(predictor).values() for reason in each]
    assert [reason for reason in reasons if "word_vectors" in reason] == []
    assert export_obstacles(predictor)["ctranslate2"] == []
