"""Models written for transformers: in a process without Regard, `generate` and logits are ours."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import Tokens
from regard.data.train_tokenizer import train_tokenizer
from regard.data.vocabulary import Labels
from regard.inference.predictor import Predictor
from regard.interop import hub
from regard.interop.huggingface import HuggingFaceTarget, write_weights
from regard.recipe.recipe import Recipe
from support.predictors import language_model, tokenizer, translator

pytest.importorskip("transformers")
BLOCKS = {"kind": "transformer", "dim": 24, "layers": 2, "heads": 3, "ffn_dim": 32}
LEARNED = {**BLOCKS, "positions": "learned", "max_positions": 40}
LLAMA = {**BLOCKS, "positions": "rotary", "norm": "rms", "activation": "swiglu", "attention_bias": "none",
         "ffn_bias": False, "kv_heads": 1, "head_dim": 6}  # fmt: skip
T5 = {
    **BLOCKS,
    "positions": "relative",
    "norm": "rms",
    "attention_bias": "none",
    "ffn_bias": False,
    "score": "dot",
}
BERT = {**LEARNED, "norm_first": False, "norm_input": True, "activation": "gelu"}
VIT = {"kind": "vit", "patch_size": 4,
       "transformer": {"dim": 24, "layers": 2, "heads": 3, "ffn_dim": 32, "activation": "gelu", "positions": "learned",
                       "max_positions": 10, "cls_token": True}}  # fmt: skip
DEIT = {
    **VIT,
    "transformer": {**VIT["transformer"], "max_positions": 11},
    "distillation_token": True,
}
PIXELS = np.random.default_rng(1).integers(0, 256, (12, 12, 3), dtype=np.uint8)
SHARED = {"tie_embeddings": "all"}
# Name: (model table without sizes, the architecture it is written as).
MODELS = {
    "pre-norm translation": ({"encoder": BLOCKS, "decoder": BLOCKS, **SHARED}, "pegasus"),
    "post-norm translation": (
        {side: {**BLOCKS, "norm_first": False} for side in ("encoder", "decoder")} | {"tie_embeddings": "target"},
        "marian",
    ),
    "pre-norm translation with an embedding norm": (
        {side: {**BLOCKS, "norm_input": True} for side in ("encoder", "decoder")} | SHARED,
        "mbart",
    ),
    "relative positions": (
        {"encoder": T5, "decoder": T5, **SHARED, "output_bias": False, "scale_embeddings": False}, "t5",
    ),
    "language model": ({"decoder": {**LEARNED, "activation": "gelu"}, "output_bias": False}, "gpt2"),
    "sinusoidal language model": ({"decoder": BLOCKS, "output_bias": False}, "gpt2"),
    "running text": ({"decoder": LEARNED, "output_bias": False}, "gpt2"),
    "rotary language model": ({"decoder": LLAMA, "output_bias": False, "scale_embeddings": False}, "llama"),
    "classifier": (
        {"encoder": BERT, "pool": {"kind": "first", "projection": "tanh"}, "scale_embeddings": False}, "bert",
    ),
    "masked tokens": ({"encoder": BERT, "head": "mlm", "scale_embeddings": False, "embedding_dropout": 0.1}, "bert"),
    "image classifier": ({"encoder": VIT, "pool": {"kind": "first"}}, "vit"),
    "distilled image classifier": ({"encoder": DEIT, "pool": {"kind": "first", "distillation_head": True}}, "deit"),
    "captioner": ({"encoder": VIT, "decoder": BLOCKS, "output_bias": False}, "vision-encoder-decoder"),
}  # fmt: skip
TEXTS = ["the cat sat on the mat", "a dog ran: </s> and the red car", "category"]
LOADING = """
import json, sys, warnings
import numpy as np
import torch, transformers
transformers.logging.set_verbosity_error()
found = {}
for folder, kind, texts in json.load(sys.stdin):
    name = {"generate": "AutoModelForSeq2SeqLM", "continue": "AutoModelForCausalLM",
            "classify": "AutoModelForSequenceClassification", "fill": "AutoModelForMaskedLM",
            "label": "AutoModelForImageClassification", "caption": "VisionEncoderDecoderModel"}[kind]
    model, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    rows = found[folder] = {"ids": [], "outputs": [], "missing": sorted(report["missing_keys"])}
    rows["unexpected"] = sorted(report["unexpected_keys"])
    if kind in ("label", "caption"):
        with torch.no_grad():
            images = transformers.AutoImageProcessor.from_pretrained(folder, use_fast=False, backend="pil")
            inputs = images(np.array(texts, dtype=np.uint8), return_tensors="pt")
            output = model(**inputs).logits if kind == "label" else model.generate(**inputs)
        rows["outputs"] = output.tolist()
        continue
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        rows["ids"].append(inputs["input_ids"][0].tolist())
        with torch.no_grad():
            if kind in ("classify", "fill"):
                rows["outputs"].append(model(**inputs).logits[0].tolist())
            else:
                rows["outputs"].append(model.generate(**inputs)[0].tolist())
assert "regard" not in sys.modules
json.dump(found, sys.stdout)
"""


def made(table, *, running=False) -> Predictor:
    """A predictor with random weights that hide no mistake."""
    words = tokenizer()
    has_source = "encoder" in table and "head" not in table
    data = {"target": {}, "source": {}} if has_source else {"target": {}}
    if table.get("encoder", {}).get("kind") == "vit":
        data["source"] = {
            "kind": "image",
            "image_size": 12,
            "image_mean": [0.4, 0.5, 0.6],
            "image_std": [0.2, 0.3, 0.4],
        }
    target, sizes = words, {"vocab_size": words.size}
    if "pool" in table:
        data["target"], target = {"kind": "label"}, Labels(["bad", "fine", "good"])
        sizes = {"num_labels": 3} | (
            {"source_vocab_size": words.size} if data["source"] == {} else {}
        )
    decode = {"beam_size": 3, "max_length": 9, "length_penalty": 0.7} if "decoder" in table else {}
    if running:
        data["context_length"], target = 30, words.for_running_text()
    recipe = Recipe.of({"data": data, "model": table, "decode": decode})
    torch.manual_seed(5)
    model = regard.build({**table, **sizes}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    sources = () if not has_source else (words,) if data["source"] == {} else (None,)
    return Predictor(model, recipe, sources, target)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Each model with its folder and what transformers makes of it in a process of its own."""
    place, jobs, models = tmp_path_factory.mktemp("exported"), [], {}
    for name, (table, _) in MODELS.items():
        model = made(table, running=name == "running text")
        folder = regard.export(model, "huggingface", place / name.replace(" ", "-"))
        kind = "classify" if "pool" in table else "generate" if "encoder" in table else "continue"
        kind = {"masked tokens": "fill", "captioner": "caption"}.get(
            name, "label" if "image" in name else kind
        )
        jobs.append((str(folder), kind, PIXELS.tolist() if kind in ("label", "caption") else TEXTS))
        models[name] = model, folder
    done = subprocess.run(
        [sys.executable, "-c", LOADING], input=json.dumps(jobs), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    return {name: (model, folder, found[str(folder)]) for name, (model, folder) in models.items()}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_gives_our_outputs(name, exported):
    model, folder, theirs = exported[name]
    assert json.loads((folder / "config.json").read_text())["model_type"] == MODELS[name][1]
    assert theirs["missing"] == theirs["unexpected"] == []
    special = tokenizer().special_tokens
    if model.sources == (None,):
        (best,) = model.outputs([PIXELS])
        if isinstance(model.target, Labels):
            wanted = torch.tensor(theirs["outputs"][0]).softmax(-1).tolist()
            assert best[0].probabilities == pytest.approx(
                dict(zip(model.target.names, wanted, strict=True)), abs=1e-5
            )
        else:
            new = theirs["outputs"][0][1:]
            assert list(best[0].token_ids) == (
                new[: new.index(special.end) + 1] if special.end in new else new
            )
        return
    for text, ids, output in zip(TEXTS, theirs["ids"], theirs["outputs"], strict=True):
        own = tokenizer().encode(text)
        if isinstance(model.target, Labels):
            assert ids == special.source(own)
            logits = torch.tensor(output)
            (probabilities,) = (best[0].probabilities for best in model.outputs([text]))
            wanted = dict(zip(model.target.names, logits.softmax(-1).tolist(), strict=True))
            assert probabilities == pytest.approx(wanted, abs=1e-5)
            continue
        if name == "masked tokens":
            with torch.no_grad():
                mine = model.model(Tokens.of([ids]))[0]
            assert ids == special.source(own)
            torch.testing.assert_close(torch.tensor(output), mine, atol=1e-5, rtol=1e-5)
            continue
        if (
            name == "running text"
        ):  # whose end token is the line break: it begins a text and ends no output
            lines = text.replace("</s>", "\n")
            assert ids == [special.end, *model.target.encode(lines)]
            assert list(model.outputs([lines])[0][0].token_ids) == output[len(ids) :]
            continue
        assert ids == (special.source(own) if model.sources else [special.start, *own])
        (best,) = model.outputs([text])
        new = output[1:] if model.sources else output[len(ids) :]
        new = new[: new.index(special.end) + 1] if special.end in new else new
        assert list(best[0].token_ids) == new


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_is_imported_with_the_same_weights(name, exported):
    from regard.interop.pretrained import PretrainedFolder

    model, folder, _ = exported[name]
    pretrained = PretrainedFolder(folder)
    again = regard.build(pretrained.table).eval()
    again.load_state_dict(dict(pretrained.weights()), strict=False)
    with torch.no_grad():
        given = model.encode(PIXELS if model.sources == (None,) else TEXTS[0])[1]
        if name == "masked tokens":
            given = Tokens.of([[8, 9, 10]])
        if model.model.generator is None:
            torch.testing.assert_close(again(given), model.model(given), atol=1e-5, rtol=1e-5)
        else:
            targets = torch.tensor([[1, 8, 9, 10]])
            torch.testing.assert_close(
                again(given, targets), model.model(given, targets), atol=1e-5, rtol=1e-5
            )


def test_texts_may_be_as_long_as_the_model_was_made_for(tmp_path):
    """Of an imported model; max_position_embeddings of an exported one says it again."""
    folder = regard.export(
        made(MODELS["rotary language model"][0]), "huggingface", tmp_path / "first"
    )
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] == 1000
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1200}))
    model = regard.from_pretrained(folder, device="cpu")
    assert regard.look(model, "the " * 1100, output="").maps[0].weights(rows=-1).shape[-1] > 1100
    with pytest.raises(InvalidArgument, match="wanted at most 1200 tokens"):
        model.predict(["the " * 1300])
    again = regard.export(model, "huggingface", tmp_path / "second")
    assert json.loads((again / "config.json").read_text())["max_position_embeddings"] == 1200
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": "1200"}))
    with pytest.raises(
        InvalidRecipe, match=r"config\.json: max_position_embeddings: wanted .*; got '1200'"
    ):
        regard.from_pretrained(folder)


def test_what_cannot_be_expressed_is_refused_part_by_part(tmp_path):
    with pytest.raises(
        InvalidArgument, match=r"model\.encoder\.kind = 'rnn'.*transformers has no such model"
    ):
        regard.export(translator(), "huggingface", tmp_path / "out")
    with pytest.raises(InvalidArgument, match=r"model\.output_bias = True, not False"):
        regard.export(language_model(), "huggingface", tmp_path / "out")
    rms = made(
        {"encoder": {**BLOCKS, "norm": "rms", "score": "uniform"}, "decoder": BLOCKS, **SHARED}
    )
    obstacles = HuggingFaceTarget().obstacles(rms)
    assert [each.partition(" =")[0] for each in obstacles] == [
        "model.encoder.norm",
        "model.encoder.score",
    ]
    narrow = made({"encoder": {**BLOCKS, "value_dim": 3}, "decoder": BLOCKS, **SHARED})
    assert any(
        "model.encoder.value_dim = 3" in each for each in HuggingFaceTarget().obstacles(narrow)
    )
    assert not (tmp_path / "out").exists()


def test_an_output_bias_that_changes_nothing_is_left_out(tmp_path):
    model = made({"decoder": LEARNED})
    with pytest.raises(
        InvalidArgument,
        match=r"model\.output_bias = True, not False \(in gpt2, the nearest\): train with",
    ):
        regard.export(model, "huggingface", tmp_path / "out")
    model.model.decoder.project.bias.data.fill_(0.5)
    again = regard.from_pretrained(
        regard.export(model, "huggingface", tmp_path / "out"), device="cpu"
    )
    assert again.recipe.model.options.output_bias is False
    assert again.predict(TEXTS) == model.predict(TEXTS)


def test_dtype_card_and_figures(tmp_path):
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"systems": [{"metrics": {"bleu": {"value": 31.4}}}]}))
    model = made(MODELS["pre-norm translation"][0])
    folder = regard.export(
        model, "huggingface", tmp_path / "out", dtype="bfloat16", report=str(report)
    )
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {
        torch.bfloat16
    }
    card = (folder / "README.md").read_text()
    matter = dict(line.split(": ", 1) for line in card.split("---\n")[1].strip().splitlines())
    assert json.loads(matter["model-index"])[0]["results"][0]["metrics"][0] == {
        "type": "bleu", "value": 31.4, "name": "bleu"
    }  # fmt: skip
    assert json.loads(matter["pipeline_tag"]) == "translation"
    report.write_text("{}")
    with pytest.raises(
        InvalidArgument, match=r"report\.json: wanted a report of `regard evaluate --json`"
    ):
        regard.export(model, "huggingface", tmp_path / "other", report=str(report))


CARDS = {
    "pre-norm translation": ("translation", "AutoModelForSeq2SeqLM"),
    "language model": ("text-generation", "AutoModelForCausalLM"),
    "captioner": ("image-to-text", "VisionEncoderDecoderModel"),
    "classifier": ("text-classification", "AutoModelForSequenceClassification"),
    "image classifier": ("image-classification", "AutoModelForImageClassification"),
    "masked tokens": ("fill-mask", "AutoModelForMaskedLM"),
}


@pytest.mark.parametrize("name", CARDS)
def test_the_card_says_what_the_model_does_and_how_it_is_loaded(name, tmp_path):
    """By the names that the hub and transformers have for the task."""
    task, model_class = CARDS[name]
    folder = regard.export(made(MODELS[name][0]), "huggingface", tmp_path / "out")
    card = (folder / "README.md").read_text()
    matter = dict(line.split(": ", 1) for line in card.split("---\n")[1].strip().splitlines())
    assert json.loads(matter["pipeline_tag"]) == task
    loading = card.partition("```python")[2].partition("```")[0]
    assert f"model = {model_class}.from_pretrained(" in loading
    assert ("AutoTokenizer" in loading) == (name != "image classifier")


def test_a_target_with_its_own_vocabulary_has_its_own_tokenizer(tmp_path):
    model = made(MODELS["post-norm translation"][0])
    words = train_tokenizer("bpe", ["other words altogether, and 1 2 3 numbers"] * 9, 280)
    table = {
        **MODELS["post-norm translation"][0],
        "vocab_size": words.size,
        "source_vocab_size": model.source.size,
    }
    recipe = Recipe.of(
        model.recipe.as_dict() | {"data": {"source": {}, "target": {}, "shared_vocab": False}}
    )
    model = replace(model, model=regard.build(table).eval(), target=words, recipe=recipe)
    folder = regard.export(model, "huggingface", tmp_path / "out")
    assert (folder / "target" / "tokenizer.json").is_file()
    again = regard.from_pretrained(folder, device="cpu")
    assert again.predict(TEXTS) == model.predict(TEXTS)
    assert again.target.tokens() == words.tokens()


def test_large_weights_are_written_in_shards(tmp_path):
    weights = {name: torch.randn(100) for name in "abcde"}
    write_weights(tmp_path, weights, largest=900)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2000
    assert sorted(set(index["weight_map"].values())) == [
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], weights[name])


class Client:
    """Stands in for huggingface_hub.HfApi."""

    def __init__(self, failure=None):
        self.calls, self.failure = [], failure

    def create_repo(self, name, **options):
        self.calls.append(("create", name, options))
        return f"https://huggingface.co/{name}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        if self.failure:
            raise self.failure
        self.calls.append(
            ("upload", repo_id, sorted(path.name for path in Path(folder_path).iterdir()))
        )


def test_a_folder_is_pushed(tmp_path, monkeypatch):
    client = Client()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: client)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "a token")
    model = made(MODELS["rotary language model"][0])
    regard.export(model, "huggingface", tmp_path / "out", push="somebody/model")
    (_, name, options), (_, repo, files) = client.calls
    assert (name, repo, options) == (
        "somebody/model",
        "somebody/model",
        {"repo_type": "model", "exist_ok": True},
    )
    assert files == ["README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                     "tokenizer_config.json"]  # fmt: skip
    with pytest.raises(
        InvalidArgument, match=r"push: wanted to upload to somebody/model; got OSError: no network"
    ):
        hub.push(tmp_path / "out", "somebody/model", Client(OSError("no network")))
    with pytest.raises(InvalidArgument, match=r"push: wanted owner/name; got '\.\./\.\./etc'"):
        regard.export(model, "huggingface", tmp_path / "third", push="../../etc")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(
        InvalidArgument, match=r"push: wanted a login .* got none\. Log in with `hf auth login`"
    ):
        regard.export(model, "huggingface", tmp_path / "third", push="somebody/model")
    assert not (tmp_path / "third").exists()
