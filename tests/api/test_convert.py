"""Configurations of Joey NMT, OpenNMT-py and fairseq as recipes: files in the style of each project."""

import builtins
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import regard
from regard.api.dry_run import dry_run
from regard.core.errors import InvalidArgument, InvalidRecipe, MissingExtra
from regard.recipe.load import read_recipe
from regard.recipe.recipe import Recipe
from regard.training.schedules import learning_rate_at

FILES = Path(__file__).parents[1] / "interop" / "configurations"
ALL = sorted(path.name for path in FILES.iterdir())


def converted(name: str) -> regard.ConvertedRecipe:
    return regard.convert(FILES / name, name.partition("_")[0])


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_passes_the_checks_and_survives_its_own_text(name):
    found = converted(name)
    assert Recipe.of(found.tables)
    assert tomllib.loads(found.toml()) == json.loads(json.dumps(found.tables))
    assert all(name in found.toml() and why in found.toml() for name, why in found.notes.items())


def test_joeynmt_transformer():
    found = converted("joeynmt_transformer.yaml")
    data, model, train, decode = (
        found.tables[name] for name in ("data", "model", "train", "decode")
    )
    assert data["train"] == ["corpus/train.de", "corpus/train.en"]
    assert data["valid"] == ["corpus/dev.de", "corpus/dev.en"]
    assert data["source"] == {
        "tokenizer": "unigram",
        "vocab_size": 32005,
        "lowercase": False,
        "max_tokens": 62,
    }
    assert data["shared_vocab"]
    assert model["tie_embeddings"] == "all"
    assert model["scale_embeddings"]
    assert (model["encoder"]["heads"], model["decoder"]["heads"], model["encoder"]["ffn_dim"]) == (
        4,
        8,
        1024,
    )
    assert model["encoder"]["norm_first"]
    expected = {
        "accumulate_steps": 2, "batch_tokens": 4096, "max_steps": 60000, "max_epochs": 100, "monitor": "bleu",
        "lr_schedule": "inverse_root", "warmup_steps": 4000, "precision": "bfloat16",
    }  # fmt: skip
    assert expected.items() <= train.items()
    assert {"beam_size": 5, "length_penalty": 1.0, "max_length": 100}.items() <= decode.items()
    assert "((5 + length) / 6)" in found.notes["testing.beam_alpha"]
    assert "model.encoder.embeddings.dropout" in found.notes
    assert "training.label_smoothing" not in found.notes


def test_joeynmt_recurrent_with_numbers_that_yaml_reads_as_texts_and_an_unknown_option():
    found = converted("joeynmt_reverse.yaml")
    encoder, decoder = found.tables["model"]["encoder"], found.tables["model"]["decoder"]
    assert (encoder["kind"], encoder["cell"], encoder["dim"]) == (
        "rnn",
        "lstm",
        128,
    )  # 64 in each direction
    assert (decoder["attention"], decoder["score"], decoder["input_feeding"]) == (
        "luong",
        "bilinear",
        True,
    )
    train = found.tables["train"]
    assert train["learning_rate"] == 0.001
    assert (train["lr_schedule"], train["plateau"], train["warmup_steps"]) == ("plateau", 5, 0)
    assert train["label_smoothing"] == 0.0  # the default of Joey NMT, not ours
    assert found.notes["training.momentun"] == "no option that this version of Regard knows"
    expected = {"training.decrease_factor", "training.weight_decay", "training.batch_type",
                "model.decoder.init_hidden", "model.decoder.hidden_dropout", "data.src.voc_limit",
                "model.encoder.embeddings.embedding_dim"}  # fmt: skip
    assert expected <= {*found.notes}


def test_opennmt_transformer():
    found = converted("opennmt_transformer.yaml")
    model, train = found.tables["model"], found.tables["train"]
    assert found.tables["data"]["train"] == ["toy-ende/src-train.txt", "toy-ende/tgt-train.txt"]
    assert found.tables["data"]["target"] == {
        "tokenizer": "unigram",
        "vocab_size": 16005,
        "max_tokens": 150,
    }
    assert model["encoder"]["attention_bias"] == "all"
    assert model["tie_embeddings"] == "all"
    assert (train["ema_decay"], train["patience"], train["clip_norm"]) == (0.9995, 4, 0.0)
    assert found.notes["data.corpus_1.weight"] == found.notes["data.commoncrawl"]
    assert {"data.commoncrawl", "data.corpus_1.weight", "length_penalty", "max_length_ratio"} <= {
        *found.notes
    }


def test_opennmt_recurrent_with_sampling_and_the_defaults_of_opennmt():
    found = converted("opennmt_rnn.yaml")
    assert found.tables["model"]["decoder"]["score"] == "additive"
    assert found.tables["model"]["encoder"]["bidirectional"]
    assert found.tables["data"]["source"] == {"tokenizer": "words", "vocab_size": 32773}
    assert found.tables["train"]["max_steps"] == 100000
    assert {
        "sample": True,
        "top_k": 10,
        "temperature": 0.8,
        "beam_size": 1,
    }.items() <= found.tables["decode"].items()


def test_the_noam_schedule_of_both_is_ours():
    """Rates as the two toolkits compute them, at every stage."""
    train = Recipe.of(converted("opennmt_transformer.yaml").tables).train
    for step in (1, 100, 8000, 8001, 50000):  # counted from 1
        theirs = 2 * 512**-0.5 * min(step**-0.5, step * 8000**-1.5)
        assert learning_rate_at(step - 1, train) == pytest.approx(theirs)


def test_fairseq_commands():
    found = converted("fairseq_iwslt.sh")
    data, train = found.tables["data"], found.tables["train"]
    folder = "examples/translation/iwslt14.tokenized.de-en"
    assert data["test"] == [f"{folder}/test.de", f"{folder}/test.en"]
    assert not data["shared_vocab"]
    encoder = found.tables["model"]["encoder"]
    assert (encoder["dim"], encoder["ffn_dim"], encoder["heads"], encoder["layers"]) == (
        512,
        1024,
        4,
        6,
    )
    assert not encoder["norm_first"]
    assert (train["betas"], train["accumulate_steps"], train["max_epochs"]) == ([0.9, 0.98], 8, 50)
    assert (train["batch_tokens"], train["monitor"]) == (
        4096,
        "bleu",
    )  # not the batch size of fairseq-generate
    assert (found.tables["decode"]["beam_size"], found.tables["decode"]["length_penalty"]) == (
        4,
        0.6,
    )
    assert "weight_decay" not in found.notes  # decoupled in fairseq as well
    assert "no option" not in found.toml()


def test_fairseq_hydra_language_model():
    found = converted("fairseq_lm.yaml")
    assert "source" not in found.tables["data"]
    assert found.tables["data"]["context_length"] == 512
    assert "encoder" not in found.tables["model"]
    decoder = found.tables["model"]["decoder"]
    assert (decoder["layers"], decoder["activation"], decoder["norm_first"]) == (12, "gelu", True)
    assert "trainpref" in found.notes
    assert "decoder_layerdrop" in found.notes
    assert "no option" not in found.toml()


def test_a_converted_recipe_trains_as_far_as_a_dry_run(tmp_path):
    (tmp_path / "corpus").mkdir()
    for split in ("train", "dev", "test"):
        for language, line in (("de", "ein kleiner Hund läuft"), ("en", "a small dog runs")):
            (tmp_path / "corpus" / f"{split}.{language}").write_text(f"{line}\n" * 8)
    (tmp_path / "my.toml").write_text(converted("joeynmt_transformer.yaml").toml())
    small = [f"model.{part}.{key}={value}" for part in ("encoder", "decoder")
             for key, value in {"dim": 16, "ffn_dim": 16, "layers": 1}.items()]  # fmt: skip
    text = dry_run(
        read_recipe(tmp_path / "my.toml", [*small, "train.device=cpu"]), tmp_path / "cache"
    )
    assert "läuft" in text


@pytest.mark.parametrize(
    ("name", "text", "source", "message"),
    [
        ("a.yaml", "- 1\n- 2\n", "joeynmt", "options by name"),
        ("a.yaml", "a: [1", "joeynmt", "a YAML file"),
        ("a.yaml", "data: {}\n", "joeynmt", "data.src.lang"),
        ("a.yaml", "!!python/object/apply:os.system ['true']\n", "opennmt", "a YAML file"),
        ("a.yaml", "data: 3\n", "opennmt", "a table of corpora"),
        ("a.yaml", "a: &a {b: *a}\n", "joeynmt", "nested tables"),
        ("a.yaml", "task: {_name: masked_lm}\n", "fairseq", "translation or language_modeling"),
        ("a.sh", "fairseq-train data --arch fconv\n", "fairseq", "one of transformer"),
        ("a.sh", "fairseq-train data --lr a\n", "fairseq", "a list of numbers"),
        ("a.sh", "ls\n", "fairseq", "a script with a command fairseq-train"),
        ("a.sh", "fairseq-train '\n", "fairseq", "a shell script"),
        ("a.yaml", "a: 1\n", "marian", "one of joeynmt, opennmt, fairseq"),
    ],
)
def test_files_that_cannot_be_converted_are_refused_with_a_reason(
    tmp_path, name, text, source, message
):
    (tmp_path / name).write_text(text)
    with pytest.raises((InvalidArgument, InvalidRecipe), match=message):
        regard.convert(tmp_path / name, source)


def test_a_name_with_a_line_break_stays_in_its_comment(tmp_path):
    text = (FILES / "opennmt_rnn.yaml").read_text() + '"x\\n[train]": 1\n'
    (tmp_path / "a.yaml").write_text(text)
    found = regard.convert(tmp_path / "a.yaml", "opennmt")
    assert tomllib.loads(found.toml()) == json.loads(json.dumps(found.tables))


def test_yaml_is_an_extra(monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **keywords):
        if name == "yaml":
            raise ImportError(name)
        return original(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[yaml\]'"):
        converted("opennmt_rnn.yaml")


def test_the_command_prints_the_recipe():
    command = [
        sys.executable,
        "-m",
        "regard",
        "convert",
        FILES / "fairseq_iwslt.sh",
        "--from",
        "fairseq",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert tomllib.loads(done.stdout)["train"]["max_epochs"] == 50
    shown = json.loads(
        subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    )
    assert shown["recipe"]["train"]["max_epochs"] == 50
    assert "fp16" in shown["notes"]
