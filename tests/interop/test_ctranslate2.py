"""Exports to CTranslate2: its greedy and beam outputs are ours, for each option it can express; others are refused."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

import regard
from regard.api.evaluate import rows_of
from regard.core.errors import InvalidArgument, MissingExtra
from regard.data.special_tokens import DEFAULT_TOKENS, END, MASK, PAD, START
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.generation.ensemble import Ensemble
from regard.inference.predictor import Predictor
from regard.interop import ctranslate2 as exporter
from regard.interop.ctranslate2 import (
    EXPRESSIBLE,
    EXPRESSIBLE_OPTIONS,
    CTranslate2Target,
    _part_obstacles,
)
from regard.model.build import parse_model
from regard.model.model_config import SIZES, ModelOptions
from regard.model.transformer_config import TransformerConfig
from regard.recipe.load import read_recipe
from regard.recipe.recipe import Recipe
from regard.recipe.shipped import find_recipe
from support.models import without_zeros
from support.permuted import permuted
from support.predictors import COPY, classifier, tokenizer, translator
from support.pretrained import ours_of, random_theirs

ctranslate2 = pytest.importorskip("ctranslate2")
BASE = {"kind": "transformer", "dim": 16, "layers": 2, "heads": 4, "ffn_dim": 32}
TEXTS = ["a cat sat on a mat", "a dog", "the red car"]
BYTES = tokenizer("bytes")
LIMIT = 8  # tokens of an output

# Each option that CTranslate2 can express, in the encoder, the decoder and a language model unless said otherwise.
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "post-norm": {"norm_first": False},
    "norm_input": {"norm_input": True},
    "rms norm_eps": {"norm": "rms", "norm_eps": 0.1, "layers": 3},
    "rms_offset": {"norm": "rms_offset"},
    **{name: {"activation": name} for name in ("gelu", "gelu_tanh", "silu", "swiglu", "geglu")},
    "biases of queries, keys and values only": {"attention_bias": "qkv"},
    "no biases": {"attention_bias": "none", "ffn_bias": False},
    **{name: {"positions": name} for name in ("learned", "rotary", "relative", "alibi", "none")},
    "alibi of six heads": {"positions": "alibi", "heads": 6, "dim": 24},
    "position_offset": {"positions": "learned", "position_offset": 2},
    "rotary_base": {"positions": "rotary", "rotary_base": 100.0},
    "relative_buckets": {
        "positions": "relative",
        "relative_buckets": 8,
        "relative_max_distance": 12,
    },
    "large rotary grouped heads": {"positions": "rotary", "head_dim": 6, "kv_heads": 2},
    "grouped heads": {"kv_heads": 2},
    "one head of keys": {"kv_heads": 1},
    "unscaled dot product": {"score": "dot"},
}
TRANSLATORS = {name: (table, table) for name, table in OPTIONS.items() if "alibi" not in name} | {
    "alibi in the decoder": ({}, {"positions": "alibi"}),
    "token_types": ({"token_types": 2, "positions": "rotary"}, {}),
    "different parts": (
        {"dim": 24, "heads": 3, "layers": 1, "positions": "relative", "norm_first": False},
        {"positions": "rotary", "norm": "rms", "activation": "swiglu"},
    ),
}
IN_LANGUAGE_MODELS = (
    "default", "post-norm", "rms norm_eps", "rms_offset", "swiglu", "learned", "alibi", "alibi of six heads", "none",
    "one head of keys", "large rotary grouped heads", "no biases",
)  # fmt: skip
LANGUAGE_MODELS = {name: OPTIONS[name] for name in IN_LANGUAGE_MODELS} | {
    "qk_norm": {"qk_norm": True, "norm_eps": 0.1},
    "qk_norm rotary grouped": {"qk_norm": True, "positions": "rotary", "kv_heads": 2},
}


def predictor(
    encoder: dict[str, Any] | None,
    decoder: dict[str, Any],
    vocabularies: tuple[Tokenizer, Tokenizer] = (BYTES, BYTES),
    data: dict[str, Any] | None = None,
    **options: Any,
) -> Predictor:
    """A model of random weights, whose outputs depend on all of them, and end now and then."""
    source, target = vocabularies
    # Tied embeddings would make a random model repeat itself.
    table: dict[str, Any] = {"decoder": BASE | decoder, "tie_embeddings": "none", **options}
    if encoder is not None:
        table["encoder"] = BASE | encoder
    recipe = Recipe.of({
        "data": data or (COPY if encoder is not None else {"train": "x.txt"}),
        "model": table,
        "decode": {"max_length": LIMIT},
    })  # fmt: skip
    sources = () if encoder is None else (source,)
    torch.manual_seed(3)
    model = without_zeros(regard.build(recipe.with_sizes(sources, target))).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight += 0.3 * torch.randn_like(weight)
            elif "stack" in name and weight.dim() == 2:
                weight *= 2
        if (bias := model.generator.decoder.project.bias) is not None:
            bias[END] += 0.5
            bias[[PAD, START, MASK]] = -20.0  # a trained model never predicts these
    return Predictor(model, recipe, sources, target)


@dataclass
class Exported:
    """An exported model in CTranslate2."""

    model: Predictor
    folder: Path

    def __post_init__(self) -> None:
        kind = ctranslate2.Translator if self.model.sources else ctranslate2.Generator
        self.inner = kind(str(self.folder), "cpu", intra_threads=1)

    def outputs(self, texts: list[str], beam: int) -> list[tuple[list[int], float]]:
        """Ids and score of the best output for each text."""
        # Without a length penalty, both beam searches stop when nothing better can follow.
        options = {
            "beam_size": beam,
            "length_penalty": 0.0,
            "return_scores": True,
            "return_end_token": True,
        }
        names = self.model.target.tokens()
        if self.model.sources:
            spelled = self.model.source.tokens()
            sources = [[spelled[i] for i in self.model.source.encode(text)] for text in texts]
            found = self.inner.translate_batch(
                sources, max_decoding_length=LIMIT, min_decoding_length=0, **options
            )
            return [
                ([names.index(name) for name in each.hypotheses[0]], each.scores[0])
                for each in found
            ]
        special = self.model.target.special_tokens
        first = (
            [special.end]
            if self.model.running_text
            else []
            if special.start is None
            else [special.start]
        )
        prompts = [[names[i] for i in (*first, *self.model.target.encode(text))] for text in texts]
        found = self.inner.generate_batch(
            prompts, max_length=LIMIT, include_prompt_in_result=False, **options
        )
        return [(each.sequences_ids[0], each.scores[0]) for each in found]


def check_equal(model: Predictor, folder: Path, tolerance: float = 1e-5) -> None:
    """Greedy and beam outputs are ours, of a batch of texts of different lengths; and their scores differ."""
    other, different = Exported(model, folder), set()
    for beam in (1, 4):
        ours = [
            each[0]
            for each in model.outputs(TEXTS, beam_size=beam, length_penalty=0.0, scores=True)
        ]
        # Its beam search never ends an output at once where prompts of different lengths are together.
        together = beam == 1 or bool(model.sources)
        found = (
            other.outputs(TEXTS, beam)
            if together
            else [other.outputs([text], beam)[0] for text in TEXTS]
        )
        for output, (ids, score) in zip(ours, found, strict=True):
            assert ids == list(output.token_ids)
            assert score == pytest.approx(output.score, abs=tolerance * LIMIT)
            different.add(round(score, 2))
    assert len(different) >= len(TEXTS)


def exported(model: Predictor, folder: Path, **options: Any) -> Path:
    return regard.export(model, "ctranslate2", folder / "out", **options)


@pytest.mark.parametrize(("encoder", "decoder"), TRANSLATORS.values(), ids=TRANSLATORS)
def test_a_translator_gives_our_outputs(encoder, decoder, tmp_path):
    model = predictor(encoder, decoder)
    check_equal(model, exported(model, tmp_path))


@pytest.mark.parametrize("decoder", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
def test_a_language_model_gives_our_outputs(decoder, tmp_path):
    model = predictor(None, decoder)
    check_equal(model, exported(model, tmp_path))


KINDS = ("bpe", "unigram", "characters", "words", "bytes")


@pytest.mark.parametrize("kind", KINDS)
def test_every_tokenizer_becomes_a_vocabulary(kind, tmp_path):
    """Token by token, also of texts with special tokens' names; and the written tokenizers give the same tokens."""
    source, target = tokenizer(kind), BYTES
    model = predictor({}, {}, (source, target))
    check_equal(model, exported(model, tmp_path))
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "source_tokenizer.json"))
    written.encode_special_tokens = True
    shared = source.tokens() == target.tokens()
    names = json.loads(
        (tmp_path / "out" / f"{'shared' if shared else 'source'}_vocabulary.json").read_text()
    )
    assert names == source.tokens()
    assert len(set(names)) == len(names)
    for text in (*TEXTS, "Zoë 漢字 </s> \t~"):
        ids = source.encode(text)
        if kind != "words":  # there, the name of a special token is the token
            assert written.encode(text).tokens == [names[i] for i in ids]


MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    "all embeddings tied": {"tie_embeddings": "all"},
    "scaled logits of tied embeddings": {"tie_embeddings": "target", "scale_logits": True},
    "unscaled embeddings": {"scale_embeddings": False},
}


@pytest.mark.parametrize("options", MODEL_OPTIONS.values(), ids=MODEL_OPTIONS)
def test_options_of_the_whole_model(options, tmp_path):
    model = predictor({}, {}, **options)
    check_equal(model, exported(model, tmp_path))


def test_the_output_layer_may_have_no_bias(tmp_path):
    """Its scores are of the tokens that can be generated; ours are of all tokens."""
    model = predictor({}, {}, output_bias=False)
    found = Exported(model, exported(model, tmp_path)).outputs(TEXTS, 1)
    for (ids, score), (ours,) in zip(
        found, model.outputs(TEXTS, length_penalty=0.0, scores=True), strict=True
    ):
        assert ids == list(ours.token_ids)
        assert ours.score < score < ours.score + 0.1 * LIMIT


def test_running_text_begins_with_a_line_break_and_never_ends(tmp_path):
    target = tokenizer("bytes").for_running_text()
    model = predictor(
        None, {"positions": "rotary"}, (target, target), {"train": "x.txt", "context_length": 64}
    )
    check_equal(model, exported(model, tmp_path))
    found = Exported(model, tmp_path / "out").outputs(["a\nb"], 1)
    assert [list(each.token_ids) for each in model.outputs(["a\nb"])[0]] == [found[0][0]]
    assert len(found[0][0]) == LIMIT


@pytest.mark.parametrize("encoder", [{}, None], ids=["translator", "language model"])
def test_special_tokens_may_have_other_ids(encoder, tmp_path):
    model = permuted(predictor(encoder, {}))
    check_equal(model, exported(model, tmp_path))


def with_tokens(model: Predictor, **tokens: Any) -> Predictor:
    """The model with other roles of tokens."""
    inner = tokenizers.Tokenizer.from_str(model.target.to_json())
    words = Tokenizer(inner, replace(model.target.special_tokens, **tokens))
    return replace(model, sources=(words,) if model.sources else (), target=words)


def test_rows_that_no_token_uses(tmp_path):
    words = Tokenizer(
        tokenizers.Tokenizer.from_str(BYTES.to_json()), DEFAULT_TOKENS, BYTES.size + 40
    )
    model = predictor({}, {}, (words, words))
    check_equal(model, exported(model, tmp_path))


AROUND = {"none": ((), ()), "language": ((7,), (END,)), "language only": ((7,), ())}


@pytest.mark.parametrize(("before", "after"), AROUND.values(), ids=AROUND)
def test_special_tokens_around_a_source(before, after, tmp_path):
    model = with_tokens(predictor({}, {}), source_prefix=before, source_suffix=after)
    check_equal(model, exported(model, tmp_path))


def test_a_language_model_without_a_start_token(tmp_path):
    model = with_tokens(predictor(None, {}), start=None, unknown=None, suppressed=(PAD, MASK))
    check_equal(model, exported(model, tmp_path))


def test_tokens_that_every_output_begins_with_are_named(caplog, tmp_path):
    model = with_tokens(predictor({}, {}), target_prefix=(9, 8))
    other, names = Exported(model, exported(model, tmp_path)), model.target.tokens()
    assert f"target_prefix=[{names[9:7:-1]}, …]" in caplog.text
    sources = [[names[i] for i in model.source.encode(text)] for text in TEXTS]
    found = other.inner.translate_batch(
        sources,
        target_prefix=[names[9:7:-1]] * len(TEXTS),
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=LIMIT,
        return_end_token=True,
    )
    assert [each.hypotheses[0] for each in found] == [
        [names[i] for i in each[0].token_ids] for each in model.outputs(TEXTS)
    ]


def test_tokens_that_are_never_generated_are_not(tmp_path):
    """Also where the model finds them the most likely: ours are suppressed too."""
    model = predictor({}, {})
    with torch.no_grad():
        model.model.decoder.project.bias[[PAD, START, MASK]] = 20.0
    found = Exported(model, exported(model, tmp_path)).outputs(TEXTS, 1)
    assert [list(each[0].token_ids) for each in model.outputs(TEXTS)] == [ids for ids, _ in found]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype, tmp_path):
    """The outputs of the model with rounded weights."""
    model = predictor({"positions": "learned"}, {"positions": "learned"})
    folder, size = (
        exported(model, tmp_path, dtype=dtype),
        sum(w.numel() for w in model.model.parameters()),
    )
    model.model.to(getattr(torch, dtype)).float()
    check_equal(model, folder, tolerance=1e-4)
    assert (folder / "model.bin").stat().st_size < 2.3 * size


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_int8_changes_scores_a_little_and_the_model_not_at_all(dtype, tmp_path):
    model = predictor({}, {"positions": "rotary"})
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    folder = exported(model, tmp_path, quantization="int8", dtype=dtype)
    assert all(
        torch.equal(weight, before[name]) for name, weight in model.model.state_dict().items()
    )
    other, names = Exported(model, folder).inner, model.source.tokens()
    assert other.compute_type == "int8_float32"
    sources = [[names[i] for i in model.source.encode(text)] for text in TEXTS]
    for each, score in zip(
        other.score_batch(sources, sources), model.score(TEXTS, TEXTS), strict=True
    ):
        assert sum(each.log_probs) != pytest.approx(score.log_probability, abs=1e-3)
        assert sum(each.log_probs) == pytest.approx(score.log_probability, rel=0.03)


def swap_queries_and_keys(monkeypatch):
    fill = exporter._fill_linear
    monkeypatch.setattr(
        exporter,
        "_fill_linear",
        lambda spec, *x: fill(spec, *((x[1], x[0], x[2]) if len(x) == 3 else x)),
    )


def swap_keys_and_values(monkeypatch):
    fill = exporter._fill_linear
    monkeypatch.setattr(
        exporter, "_fill_linear", lambda spec, *x: fill(spec, *(x[::-1] if len(x) == 2 else x))
    )


def shift_positions(monkeypatch):
    table = exporter._position_table
    monkeypatch.setattr(exporter, "_position_table", lambda *given: table(*given)[1:])


def drop_biases(monkeypatch):
    fill = exporter._fill_norm

    def faulty(spec, norm):
        fill(spec, norm)
        spec.beta = spec.beta * 0

    monkeypatch.setattr(exporter, "_fill_norm", faulty)


def other_activation(monkeypatch):
    monkeypatch.setitem(exporter.ACTIVATIONS, "relu", "GELU")


@pytest.mark.parametrize(
    "fault",
    [swap_queries_and_keys, swap_keys_and_values, shift_positions, drop_biases, other_activation],
)
def test_a_planted_fault_is_found(fault, monkeypatch, tmp_path):
    fault(monkeypatch)
    model = predictor({}, {})
    with pytest.raises(AssertionError):
        check_equal(model, exported(model, tmp_path))


def test_every_option_is_expressed_or_refused():
    assert set(EXPRESSIBLE) == {field.name for field in fields(TransformerConfig)}
    assert set(EXPRESSIBLE_OPTIONS) == {field.name for field in fields(ModelOptions)}


def test_an_option_that_the_export_does_not_know_is_refused(monkeypatch):
    monkeypatch.delitem(EXPRESSIBLE, "norm_first")
    monkeypatch.delitem(EXPRESSIBLE_OPTIONS, "scale_embeddings")
    assert CTranslate2Target().obstacles(predictor({}, {})) == [
        "model.encoder.norm_first = True: an option that the export does not know",
        "model.decoder.norm_first = True: an option that the export does not know",
        "model.scale_embeddings = True: an option that the export does not know",
    ]


def ensemble() -> Predictor:
    model = predictor({}, {})
    return replace(model, model=Ensemble([model.model, model.model]))


REFUSED: dict[str, tuple[Callable[[], Predictor], list[str]]] = {
    "classifier": (classifier, ["Classifier: it has models that generate sequences only"]),
    "ensemble": (ensemble, ["EnsembleDecoder: it has no ensembles"]),
    "rnn": (
        lambda: translator(decoder="rnn"),
        [
            "model.encoder.kind = 'rnn': it has Transformers of tokens only",
            "model.decoder.kind = 'rnn': it has Transformers of",
        ],
    ),
    "convolution": (
        lambda: translator(decoder="conv"),
        ["model.encoder.kind = 'rnn'", "model.decoder.kind = 'conv'"],
    ),
    "relative in a language model": (
        lambda: predictor(None, {"positions": "relative"}),
        ["model.decoder.positions = 'relative': it computes them wrongly in language models"],
    ),
    "alibi in an encoder": (
        lambda: predictor({"positions": "alibi"}, {"positions": "alibi"}),
        ["model.encoder.positions = 'alibi': it has them in decoders only"],
    ),
    "norm_eps of each part": (
        lambda: predictor({"norm_eps": 1e-6}, {}),
        ["model.encoder.norm_eps = 1e-06: it has one; the decoder's is 1e-05"],
    ),
    "several options": (
        lambda: predictor({"causal": True}, {"score": "additive", "position_mode": "concatenate"}),
        [
            "model.encoder.causal = True: it has False only",
            "model.decoder.position_mode = 'concatenate': it has 'add' only",
            "model.decoder.score = 'additive': it has 'scaled_dot' and 'dot' only",
        ],
    ),
    "qk_norm in a translator": (
        lambda: predictor({}, {"qk_norm": True}),
        ["model.decoder.qk_norm = True: it computes it wrongly in encoder-decoders"],
    ),
    "sliding_window": (
        lambda: predictor(None, {"sliding_window": 4}),
        ["model.decoder.sliding_window = 4: it has None only"],
    ),
    "several tokens after a source": (
        lambda: with_tokens(predictor({}, {}), source_suffix=(END, 7)),
        [
            "special tokens [] before and ['</s>', '<0x02>'] after a source: it adds one before, and '</s>' after"
        ],
    ),
    "running text without suppressed tokens": (
        lambda: with_tokens(
            predictor(None, {"positions": "rotary"}, data={"train": "x.txt", "context_length": 64}),
            suppressed=(),
        ),
        ["data.context_length: it ends outputs at '</s>', which running text goes on after"],
    ),
    "value_dim": (
        lambda: predictor({"value_dim": 5}, {}),
        ["model.encoder.value_dim = 5: it has None only"],
    ),
    "cls_token": (
        lambda: predictor({"cls_token": True}, {}),
        ["model.encoder.cls_token = True: it has False only"],
    ),
}


@pytest.mark.parametrize(("make", "reasons"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_expressed_is_refused_part_by_part(make, reasons, tmp_path):
    model = make()
    found = CTranslate2Target().obstacles(model)
    assert len(found) == len(reasons)
    for reason, wanted in zip(found, reasons, strict=True):
        assert reason.startswith(wanted)
    with pytest.raises(InvalidArgument, match="a model that CTranslate2 can express; got "):
        exported(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "model", [{"encoder": {"kind": "vit"}}, {"encoders": [{"kind": "transformer"}] * 2}]
)
def test_captioners_and_several_sources_are_refused(model):
    config = parse_model({**model, "decoder": BASE}, sized=False)
    assert any(
        each.startswith(("model.encoder.kind = 'vit'", "model.encoders: it has one"))
        for each in _part_obstacles(config)
    )


def test_a_full_disk_leaves_nothing(monkeypatch, tmp_path):
    def full(self, path):
        raise OSError(28, "No space left on device")

    model = predictor({}, {})
    monkeypatch.setattr(Tokenizer, "save", full)
    with pytest.raises(InvalidArgument, match="got No space left on device"):
        exported(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_the_error_names_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[ctranslate2\]'"):
        exported(predictor({}, {}), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_trained_model_gives_our_outputs(tmp_path):
    """Its own defaults for beam search, over dates that the model never saw; int8 gives nearly all of them."""
    recipe = read_recipe(find_recipe("dates"), ["train.max_steps=250", "train.validate_every=250"])
    model = regard.train(recipe, tmp_path / "run", cache=tmp_path / "data")
    texts = [text for text, _ in islice(rows_of(recipe, "test"), 200)]
    names = model.source.tokens()
    sources = [[names[i] for i in model.source.encode(text)] for text in texts]
    for quantization, least in ((None, 1.0), ("int8", 0.9)):
        folder = regard.export(
            model, "ctranslate2", tmp_path / str(quantization), quantization=quantization
        )
        other = ctranslate2.Translator(str(folder), "cpu")
        for beam in (1, 5):
            found = other.translate_batch(sources, beam_size=beam, return_scores=True)
            ours = [each[0] for each in model.outputs(texts, beam_size=beam, scores=True)]
            same = [a.tokens == tuple(b.hypotheses[0]) for a, b in zip(ours, found, strict=True)]
            assert sum(same) >= least * len(texts)
            if quantization is None:  # its scores are of the tokens that can be generated
                assert all(
                    -1e-5 < b.scores[0] - a.score < 1e-2 for a, b in zip(ours, found, strict=True)
                )


IMPORTED = (
    "marian", "marian-separate", "pegasus", "bart", "mbart", "t5", "t5-gated", "gpt2", "gpt2-untied", "llama",
    "llama-biased", "qwen2", "qwen3", "gemma",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPORTED)
def test_an_imported_model_gives_our_outputs(name, tmp_path):
    random_theirs(name).save_pretrained(tmp_path / "theirs")
    built, folder = ours_of(tmp_path / "theirs")
    table = {key: value for key, value in folder.table.items() if key not in SIZES}
    words = train_tokenizer("words", ["a cat sat on mat dog the red car"], 20).to_json()
    special = replace(DEFAULT_TOKENS, suppressed=())
    source, target = (
        Tokenizer(
            tokenizers.Tokenizer.from_str(words),
            special,
            folder.table.get(key, folder.table["vocab_size"]),
        )
        for key in ("source_vocab_size", "vocab_size")
    )
    data = COPY if "encoder" in table else {"train": "x.txt"}
    recipe = Recipe.of({"data": data, "model": table, "decode": {"max_length": LIMIT}})
    model = Predictor(built, recipe, (source,) if "encoder" in table else (), target)
    check_equal(model, exported(model, tmp_path), tolerance=1e-4)
