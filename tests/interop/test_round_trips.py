"""Models of transformers, imported and exported again: transformers loads the same weights into the same class."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.interop.huggingface import _write_tokenizer
from support.predictors import tokenizer
from support.pretrained import CASES, assert_same_logits, logits, ours_of, random_theirs

transformers = pytest.importorskip("transformers")
WORDS = tokenizer()
# The class of an export where it is another one, which computes the same: without a window, Mistral is Llama.
OTHERS = {"mistral-larger": "LlamaForCausalLM"}
# Weights that no output depends on; they are not imported.
UNUSED = ("cls.predictions.bias", "lm_head.bias")


def _own_head(theirs):
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight))


def _own_positions(theirs):
    for side in (theirs.model.encoder, theirs.model.decoder):
        side.embed_positions.weight.data.normal_(std=0.3)


def _t5(tie, *, head):
    changed = {**CASES["t5"][2], "tie_word_embeddings": tie}
    return (*CASES["t5"][:2], changed), _own_head if head else None


# Name: (case, a change of the model).
VARIANTS = {
    "t5 tied, scaled, own head": _t5(True, head=True),
    "t5 not scaled": _t5(False, head=False),
    "t5 not scaled, own head": _t5(False, head=True),
    "marian with its own positions": (CASES["marian"], _own_positions),
    "pegasus with its own positions": (CASES["pegasus"], _own_positions),
    "roberta untied": (
        (*CASES["roberta-mlm"][:2], {**CASES["roberta-mlm"][2], "tie_word_embeddings": False}),
        None,
    ),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Writes the folder of a case or a variant, whose vocabulary is that of a tokenizer."""

    def made(name, *, tokens=True):
        case, change = VARIANTS[name] if name in VARIANTS else (CASES[name], None)
        options = dict(case[2])
        if "vocab_size" in options:
            options["vocab_size"] = WORDS.size
        if "decoder_vocab_size" in options:
            options["decoder_vocab_size"] = WORDS.size
        folder = tmp_path_factory.mktemp("model")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(CASES, name, (*case[:2], options))
            patch.setattr("support.pretrained.GPT2", {**CASES["gpt2"][2], "vocab_size": WORDS.size})
            theirs = random_theirs(name)
        if change is not None:
            with torch.no_grad():
                change(theirs)
        theirs.save_pretrained(folder)
        if (
            change is _own_positions
        ):  # transformers reads them from files of Marian, but writes none
            weights = load_file(folder / "model.safetensors") | {
                key: tensor
                for key, tensor in theirs.state_dict().items()
                if "embed_positions" in key
            }
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
        if not name.startswith(("vit", "deit")):
            reads = not name.startswith(("gpt2", "llama", "mistral", "qwen", "gemma"))
            _write_tokenizer(WORDS, folder, has_source=reads)
        return theirs, folder

    return made


@pytest.mark.parametrize("name", [*CASES, *VARIANTS])
def test_an_export_of_an_import_loads_completely_and_with_the_same_bits(name, folder_of, tmp_path):
    theirs, folder = folder_of(name)
    out = regard.export(regard.from_pretrained(folder, device="cpu"), "huggingface", tmp_path / "x")
    config = json.loads((out / "config.json").read_text())
    class_name = OTHERS.get(name, type(theirs).__name__)
    assert config["architectures"] == [class_name]
    again, report = getattr(transformers, class_name).from_pretrained(out, output_loading_info=True)
    assert not any(report.values()), report
    wanted = theirs.state_dict()
    got = again.state_dict()
    assert wanted.keys() == got.keys()
    for key, tensor in wanted.items():
        if not key.startswith(UNUSED):
            found = got[key]
            if "embed_positions" in key:  # sinusoids have no largest position: there may be more
                found = found[: len(tensor)]
            assert torch.equal(found, tensor), key


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_variants_have_the_logits_of_transformers(name, folder_of):
    theirs, folder = folder_of(name)
    wanted = logits(name, theirs.eval(), ours_of(folder)[0])
    assert_same_logits(*wanted)


@pytest.mark.parametrize("name", ["marian", "pegasus"])
@pytest.mark.parametrize("change", ["half precision", "shifted", "one side"])
@torch.no_grad()
def test_tables_of_positions_in_a_file_are_read(name, change, folder_of):
    """Older files hold the sinusoids. transformers reads what a file holds, also rounded or other numbers."""
    theirs, folder = folder_of(name)
    weights = load_file(folder / "model.safetensors")
    kept = theirs.state_dict()
    for side in ("encoder", "decoder"):
        key = f"model.{side}.embed_positions.weight"
        table = kept[key].clone()
        if change == "half precision":
            table = table.half().float()
        elif change == "shifted" or side == "decoder":
            table = table.roll(3, 0).contiguous()
        weights[key] = table
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    theirs = type(theirs).from_pretrained(folder).eval()
    wanted, got = logits(name, theirs, ours_of(folder)[0])
    assert_same_logits(got, wanted, tolerance=2e-6)


@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_sinusoids_in_a_file_stay_sinusoids(name, folder_of):
    """They have no largest position."""
    theirs, folder = folder_of(name)
    weights = load_file(folder / "model.safetensors")
    for side in ("encoder", "decoder"):
        key = f"model.{side}.embed_positions.weight"
        weights[key] = theirs.state_dict()[key].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _, pretrained = ours_of(folder)
    assert pretrained.table["encoder"]["positions"] == "sinusoidal"


@pytest.mark.parametrize("outputs", [None, 7])
def test_the_pooler_of_a_captioner_goes_through_a_checkpoint(outputs, tmp_path, monkeypatch):
    """Its outputs may be fewer than the states' dimension; a file that has none is exported with zeros."""
    options = CASES["captioner"][2]
    sized = options if outputs is None else {**options, "pooler_output_size": outputs}
    monkeypatch.setitem(CASES, "captioner", (*CASES["captioner"][:2], sized))
    monkeypatch.setattr("support.pretrained.GPT2", {**CASES["gpt2"][2], "vocab_size": WORDS.size})
    theirs = random_theirs("captioner")
    theirs.save_pretrained(tmp_path / "theirs")
    _write_tokenizer(WORDS, tmp_path / "theirs", has_source=True)
    regard.import_model(tmp_path / "theirs", tmp_path / "ours")
    out = regard.export(tmp_path / "ours", "huggingface", tmp_path / "out")
    again, report = type(theirs).from_pretrained(out, output_loading_info=True)
    assert not any(report.values()), report
    pooler = theirs.encoder.pooler.dense
    assert pooler.weight.shape == (outputs or 24, 24)
    assert torch.equal(again.encoder.pooler.dense.weight, pooler.weight)
    assert torch.equal(again.encoder.pooler.dense.bias, pooler.bias)


def test_a_captioner_without_a_pooler_is_exported_with_one_of_zeros(folder_of, tmp_path):
    theirs, folder = folder_of("captioner")
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if ".pooler." not in name}
    assert len(kept) == len(weights) - 2
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    out = regard.export(regard.from_pretrained(folder, device="cpu"), "huggingface", tmp_path / "x")
    again, report = type(theirs).from_pretrained(out, output_loading_info=True)
    assert not any(report.values()), report
    assert not again.encoder.pooler.dense.weight.any()
