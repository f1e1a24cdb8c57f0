"""Single options of Joey NMT, OpenNMT-py and fairseq: the key of the recipe that each becomes, and its value."""

import json
from typing import Any

import pytest

import regard

JOEY: dict[str, Any] = {
    "data": {"train": "a", "src": {"lang": "de"}, "trg": {"lang": "en"}},
    "model": {"encoder": {"type": "transformer"}, "decoder": {"type": "transformer"}},
}
OPENNMT: dict[str, Any] = {
    "data": {"corpus": {"path_src": "a", "path_tgt": "b"}},
    "encoder_type": "transformer", "decoder_type": "transformer",
    "enc_hid_size": 64, "dec_hid_size": 64,
}  # fmt: skip
FAIRSEQ = "fairseq-train data -s de -t en --arch {arch} --optimizer adam {options}\n"


def with_options(table: dict[str, Any], options: dict[str, Any]) -> str:
    """A configuration with options by dotted name, as JSON, which is YAML."""
    table = json.loads(json.dumps(table))
    for name, value in options.items():
        *sections, last = name.split(".")
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return json.dumps(table)


def key_of(recipe: regard.ConvertedRecipe, key: str) -> Any:
    found = recipe.tables
    for name in key.split("."):
        found = found[name]
    return found


def converted(folder, name: str, text: str, source: str) -> regard.ConvertedRecipe:
    (folder / name).write_text(text)
    return regard.convert(folder / name, source)


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({}, "train.clip_norm", 0.0),
        ({"data.dev": "b"}, "train.monitor", "perplexity"),
        ({"training.clip_grad_norm": -1}, "train.clip_norm", 0.0),
        ({}, "train.betas", [0.9, 0.999]),
        ({}, "decode.length_penalty", 0.0),  # alpha is -1 there: none
        ({}, "decode.max_length_ratio", 1.5),
        ({}, "decode.repetition_penalty", 1.0),
        ({}, "model.encoder.norm_first", True),
        ({}, "model.decoder.norm_first", False),
        ({"model.decoder.layer_norm": "pre"}, "model.decoder.norm_first", True),
        ({"model.tied_embeddings": True, "data.src.level": "char"}, "data.shared_vocab", False),
        ({"model.tied_embeddings": True}, "data.shared_vocab", True),
        ({"model.tied_embeddings": True}, "model.tie_embeddings", "none"),
        ({"model.tied_softmax": True}, "model.tie_embeddings", "target"),
        ({"model.encoder.freeze": True}, "train.freeze", ["encoder.*"]),
        ({"data.dataset_type": "tsv"}, "data.train", "a.tsv"),
        ({"data.dataset_type": "tsv"}, "data.target.column", "en"),
        ({"model.decoder.type": "recurrent", "model.decoder.init_hidden": "zero"},
         "model.decoder.initial_state", "zero"),
        ({"model.decoder.type": "recurrent"}, "model.decoder.initial_state", "summary"),
        ({"training.scheduling": "warmupinversesquareroot", "training.learning_rate_peak": 0.01},
         "train.learning_rate", 0.01),
        ({"training.scheduling": "noam", "training.learning_rate_factor": 2, "training.learning_rate_warmup": 100,
          "model.encoder.hidden_size": 64}, "train.learning_rate", pytest.approx(0.025)),  # 2 · (64 · 100)^-0.5
    ],
)  # fmt: skip
def test_options_of_joeynmt(tmp_path, options, key, value):
    assert (
        key_of(converted(tmp_path, "a.yaml", with_options(JOEY, options), "joeynmt"), key) == value
    )


def test_without_validation_data_no_metric_is_monitored(tmp_path):
    assert (
        "monitor"
        not in converted(tmp_path, "a.yaml", with_options(JOEY, {}), "joeynmt").tables["train"]
    )


def test_switches_are_read_as_written_and_those_that_are_off_are_not_reported(tmp_path):
    options = {
        "fp16": "0",
        "training.overwrite": False,
        "training.shuffle": True,
        "training.unheard_of": 0,
    }
    found = converted(tmp_path, "a.yaml", with_options(JOEY, options), "joeynmt")
    assert "precision" not in found.tables["train"]
    assert "training.overwrite" not in found.notes
    assert "training.shuffle" in found.notes
    assert found.notes["training.unheard_of"] == "no option that this version of Regard knows"


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({"pos_ffn_activation_fn": "silu"}, "model.encoder.activation", "swiglu"),
        ({"max_relative_positions": -1}, "model.decoder.positions", "rotary"),
        ({"max_relative_positions": -2}, "model.decoder.positions", "alibi"),
        ({"multiquery": True}, "model.encoder.kv_heads", 1),
        ({"num_kv": 4}, "model.encoder.kv_heads", 4),
        ({"accum_count": [1, 3]}, "train.accumulate_steps", 3),
        ({"hidden_size": 128}, "model.encoder.dim", 128),
        ({"enc_hid_size": 32}, "model.encoder.dim", 32),
        ({"decay_method": "rsqrt", "warmup_steps": 100}, "train.learning_rate", pytest.approx(0.1)),
        ({"share_embeddings": True, "share_vocab": True}, "model.tie_embeddings", "none"),
        ({"share_decoder_embeddings": True}, "model.tie_embeddings", "target"),
        ({"position_encoding": True}, "model.scale_embeddings", True),
        (
            {"position_encoding": True, "encoder_type": "rnn", "decoder_type": "rnn"},
            "model.scale_embeddings",
            False,
        ),
        ({"decoder_type": "rnn", "global_attention": "none"}, "model.decoder.attention", "none"),
        ({"decoder_type": "rnn"}, "model.decoder.attention", "luong"),
        ({"encoder_type": "cnn", "enc_layers": 3}, "model.encoder.dilations", [1, 1, 1]),
    ],
)
def test_options_of_opennmt(tmp_path, options, key, value):
    assert (
        key_of(converted(tmp_path, "a.yaml", with_options(OPENNMT, options), "opennmt"), key)
        == value
    )


@pytest.mark.parametrize(
    ("arch", "options", "key", "value"),
    [
        ("transformer", "--encoder-embed-dim 64", "model.decoder.dim", 64),
        ("transformer", "--encoder-embed-dim 64 --decoder-embed-dim 32", "model.decoder.dim", 32),
        ("transformer", "--label-smoothing 0.1", "train.label_smoothing", 0.0),
        (
            "transformer",
            "--label-smoothing 0.1 --criterion label_smoothed_cross_entropy",
            "train.label_smoothing",
            0.1,
        ),
        ("transformer", "--no-scale-embedding", "model.scale_embeddings", False),
        ("transformer", "", "model.scale_embeddings", True),
        (
            "transformer",
            "--lr-scheduler polynomial_decay --end-learning-rate 1e-5",
            "train.min_learning_rate",
            1e-5,
        ),
        ("transformer", "--lr-scheduler reduce_lr_on_plateau --lr-patience 2", "train.plateau", 3),
        ("transformer", "--lr 5e-4 1e-4", "train.learning_rate", 5e-4),
        ("transformer", "--encoder-learned-pos", "model.encoder.positions", "learned"),
        ("transformer", "--encoder-learned-pos", "model.decoder.positions", "sinusoidal"),
        ("lstm", "--encoder-bidirectional --encoder-hidden-size 64", "model.encoder.dim", 128),
        ("lstm", "--decoder-attention False", "model.decoder.attention", "none"),
        ("lstm", "", "model.decoder.attention", "luong"),
    ],
)
def test_options_of_fairseq_train(tmp_path, arch, options, key, value):
    found = converted(tmp_path, "a.sh", FAIRSEQ.format(arch=arch, options=options), "fairseq")
    assert key_of(found, key) == value


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ("--unnormalized --lenpen 2", "decode.length_penalty", 0.0),
        ("--lenpen 2", "decode.length_penalty", 2.0),
        ("--sampling --sampling-topp 0.9", "decode.top_p", 0.9),
        ("--beam 6 --diverse-beam-groups 3", "decode.beam_groups", 3),
    ],
)
def test_options_of_fairseq_generate(tmp_path, options, key, value):
    text = FAIRSEQ.format(arch="transformer", options="") + f"fairseq-generate data {options}\n"
    assert key_of(converted(tmp_path, "a.sh", text, "fairseq"), key) == value


def test_fairseq_train_decides_where_two_commands_give_an_option(tmp_path):
    train = FAIRSEQ.format(arch="transformer", options="--seed 7").replace(
        "fairseq-train", "/opt/bin/fairseq-train"
    )
    found = converted(
        tmp_path, "a.sh", f"fairseq-preprocess --seed 3 --nwordssrc 500\n{train}", "fairseq"
    )
    assert key_of(found, "train.seed") == 7
    assert key_of(found, "data.source.vocab_size") == 505


def test_short_names_and_lists_of_fairseq(tmp_path):
    text = "fairseq-preprocess --trainpref corpus/train\n" + FAIRSEQ.format(
        arch="transformer", options="--lr 5e-4 1e-4"
    )
    found = converted(tmp_path, "a.sh", text, "fairseq")
    assert key_of(found, "data.train") == ["corpus/train.de", "corpus/train.en"]
    assert "one learning rate, the first" in found.notes["lr"]


def test_a_reference_to_another_option_of_a_hydra_file_is_left_to_its_default(tmp_path):
    model = {
        "_name": "transformer_lm",
        "decoder_embed_dim": "${model.decoder_input_dim}",
        "decoder_layers": 3,
    }
    text = json.dumps({"task": {"_name": "language_modeling", "data": "x"}, "model": model})
    found = converted(tmp_path, "a.yaml", text, "fairseq")
    assert (key_of(found, "model.decoder.dim"), key_of(found, "model.decoder.layers")) == (512, 3)


def test_word_vectors_of_joeynmt(tmp_path):
    options = {
        "model.tied_softmax": True,
        "model.encoder.embeddings.load_pretrained": "de.txt",
        "model.encoder.embeddings.freeze": True,
        "model.decoder.embeddings.load_pretrained": "en.txt",
        "model.decoder.embeddings.freeze": True,
    }
    found = converted(tmp_path, "a.yaml", with_options(JOEY, options), "joeynmt")
    encoder = found.tables["model"]["encoder"]
    decoder = found.tables["model"]["decoder"]
    assert (encoder["word_vectors"], encoder["freeze_word_vectors"]) == ("de.txt", True)
    assert decoder["word_vectors"] == "en.txt"
    assert "freeze_word_vectors" not in decoder
    assert "the output layer" in found.notes["model.decoder.embeddings.freeze"]
    assert "model.encoder.embeddings.load_pretrained" not in found.notes


def test_word_vectors_of_another_dimension_are_noted(tmp_path):
    options = {
        "model.encoder.type": "recurrent",
        "model.encoder.hidden_size": 64,
        "model.encoder.embeddings.embedding_dim": 16,
        "model.encoder.embeddings.load_pretrained": "vectors.txt",
    }
    found = converted(tmp_path, "a.yaml", with_options(JOEY, options), "joeynmt")
    assert "word_vectors" not in found.tables["model"]["encoder"]
    why = found.notes["model.encoder.embeddings.load_pretrained"]
    assert "dimension 16 do not fit embeddings of dimension 128" in why


def test_word_vectors_of_opennmt(tmp_path):
    options = {"both_embeddings": "glove.txt", "embeddings_type": "GloVe"}
    options |= {"tgt_embeddings": "own.txt", "freeze_word_vecs_dec": True}
    found = converted(tmp_path, "a.yaml", with_options(OPENNMT, options), "opennmt")
    encoder = found.tables["model"]["encoder"]
    decoder = found.tables["model"]["decoder"]
    assert encoder["word_vectors"] == "glove.txt"
    assert (decoder["word_vectors"], decoder["freeze_word_vectors"]) == ("own.txt", True)
    assert "freeze_word_vectors" not in encoder
    assert "both_embeddings" not in found.notes


@pytest.mark.parametrize("arch", ["transformer", "lstm"])
def test_word_vectors_of_fairseq(tmp_path, arch):
    options = "--encoder-embed-path de.vec --decoder-embed-path en.vec --encoder-freeze-embed"
    found = converted(tmp_path, "a.sh", FAIRSEQ.format(arch=arch, options=options), "fairseq")
    assert key_of(found, "model.encoder.word_vectors") == "de.vec"
    assert key_of(found, "model.encoder.freeze_word_vectors") is True
    assert key_of(found, "model.decoder.word_vectors") == "en.vec"
    assert "decoder_embed_path" not in found.notes
