"""Every option that the converters read, removed and set to other values: what the recipe and the notes become.

The expected changes are in tests/golden/conversions.json, read by somebody when they were written. After a change that
is meant: PYTHONPATH=tests python -m interop.test_conversions, and read what changed.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from regard.api.convert import TOOLKITS
from regard.core.errors import RegardError
from regard.data.special_tokens import SPECIALS
from regard.interop.configurations import fairseq_commands
from regard.interop.configurations.options import SMALLEST, Options, flattened, vocabulary_size

FILES = Path(__file__).parent / "configurations"
GOLDEN = Path(__file__).parents[1] / "golden" / "conversions.json"
NAMES = sorted(path.name for path in FILES.iterdir())
VALUES: dict[str, list[Any]] = {
    "flag": [True, False], "whole": [0, 1, 3], "number": [0.0, 0.25], "numbers": [[0.5], [0.5, 0.75]],
}  # fmt: skip
TEXTS = {
    "arch": [*["transformer_tiny", "transformer_wmt_en_de_big_t2t", "transformer_lm_gpt2_small", "lstm"], "fconv"],
    "task": ["translation", "language_modeling", "masked_lm"],
    "lr_scheduler": ["cosine", "polynomial_decay", "fixed", "reduce_lr_on_plateau", "tri_stage"],
    "criterion": ["cross_entropy", "label_smoothed_cross_entropy", "ctc"],
    "activation_fn": ["gelu_fast", "linear"], "best_checkpoint_metric": ["ppl", "wer"], "optimizer": ["adafactor"],
    "sample_break_mode": ["eos"],
    "encoder_type": ["rnn", "brnn", "transformer", "cnn", "mean"], "decoder_type": ["rnn", "transformer", "cnn"],
    "model_task": ["lm"], "rnn_type": ["SRU", "GRU"], "global_attention": ["dot", "general", "mlp", "none"],
    "global_attention_function": ["sparsemax"], "pos_ffn_activation_fn": ["silu", "gated-gelu"], "layer_norm": ["rms"],
    "batch_type": ["tokens", "sents"], "normalization": ["tokens"], "model_dtype": ["fp16"], "optim": ["sgd", "adam"],
    "decay_method": ["noam", "rsqrt", "none"], "length_penalty": ["none", "wu"], "coverage_penalty": ["wu", "summary"],
    "data.dataset_type": ["tsv", "huggingface"], "data.src.level": ["bpe", "char", "syllable"],
    "data.src.tokenizer_cfg.model_type": ["bpe"], "model.encoder.type": ["transformer", "recurrent"],
    "model.decoder.type": ["transformer", "recurrent"], "model.encoder.activation": ["gelu", "tanh"],
    "model.encoder.layer_norm": ["post"], "model.decoder.attention": ["bahdanau", "luong"],
    "model.decoder.init_hidden": ["zero", "last", "bridge"], "training.batch_type": ["token"],
    "training.early_stopping_metric": ["acc", "bleu"], "training.normalization": ["batch"],
    "training.optimizer": ["sgd"], "training.scheduling": ["noam", "warmupinversesquareroot", "plateau", "exponential"],
}  # fmt: skip
OTHERS = {  # options that only matter together
    "max_relative_positions": [-1, -2, 20], "num_kv": [2], "random_sampling_topp": [0.5, 1.0],
    "training.learning_rate_warmup": [100], "warmup_updates": [100], "max_update": [7], "patience": [2],
}  # fmt: skip


def given(name: str) -> dict[str, Any]:
    """The options of a file, by name."""
    text = (FILES / name).read_text("utf-8")
    if name.endswith(".sh"):
        return dict(fairseq_commands.options_of_script(text, name))
    tables = yaml.safe_load(text)
    return dict(
        flattened(
            fairseq_commands.options_of_hydra(tables) if name.startswith("fairseq") else tables
        )
    )


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of options whose names have sections."""
    tables: dict[str, Any] = {}
    for name, value in options.items():
        *sections, last = name.split(".")
        table = tables
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
    return tables


def result(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the recipe and the notes, or the error."""
    try:
        made = TOOLKITS[name.partition("_")[0]](nested(options))
    except RegardError as error:
        return {"error": str(error)}
    return json.loads(
        json.dumps(
            dict(flattened(made.recipe)) | {f"note {key}": why for key, why in made.notes.items()}
        )
    )


def asked(name: str) -> dict[str, str]:
    """The options that a converter asks for, with the kind of their values."""
    found: dict[str, str] = {}

    def noting(kind: str):
        method = getattr(Options, kind)

        def ask(self, option, *default):
            found.setdefault(option, kind)
            return method(self, option, *default)

        return ask

    with pytest.MonkeyPatch.context() as patch:
        for kind in (
            "number",
            "whole",
            "numbers",
            "flag",
            "text",
        ):  # `whole` asks `number`, and comes first
            patch.setattr(Options, kind, noting(kind))
        result(name, given(name))
    return found


def variants(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of a file with one of them removed, or set."""
    base = given(name)
    for option in base:
        yield f"without {option}", {key: value for key, value in base.items() if key != option}
    for option, kind in asked(name).items():
        for value in [*VALUES.get(kind, TEXTS.get(option, [])), *OTHERS.get(option, [])]:
            yield f"{option} = {json.dumps(value)}", base | {option: value}


def changes(name: str) -> dict[str, Any]:
    """The result for a file as it is, and what becomes different with each variant; None: no longer there."""
    whole = result(name, given(name))
    assert "error" not in whole
    found: dict[str, Any] = {"as it is": whole}
    for title, options in variants(name):
        other = result(name, options)
        keys = sorted(whole.keys() | other.keys())
        changed = {key: other.get(key) for key in keys if other.get(key) != whole.get(key)}
        found[title] = other if "error" in other else changed
    return {title: each for title, each in found.items() if each}


@pytest.mark.parametrize("name", NAMES)
def test_each_option_changes_what_it_should(name):
    assert changes(name) == json.loads(GOLDEN.read_text("utf-8"))[name]


if __name__ == "__main__":
    GOLDEN.write_text(
        json.dumps({name: changes(name) for name in NAMES}, indent=1, ensure_ascii=False) + "\n",
        "utf-8",
    )


def test_a_vocabulary_that_is_too_small_is_noted_and_the_smallest_is_not():
    for size, noted in ((SMALLEST - len(SPECIALS) - 1, True), (SMALLEST - len(SPECIALS), False)):
        options = Options({"vocab": size}, "a toolkit")
        vocabulary_size(options, "vocab", "data.target.vocab_size", size)
        assert options.recipe == {"data": {"target": {"vocab_size": SMALLEST}}}
        assert ("vocab" in options.notes) == noted
