"""Model folders that are damaged or forged: one clear error each, which names file and key."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.core.errors import InvalidData, RegardError
from regard.interop.importing import ImportedModel
from regard.interop.pretrained import PretrainedFolder
from regard.interop.rules import Copies, Rule, Split, Transpose, Unsqueeze, plan
from regard.interop.tensors import TensorFolder
from support.pretrained import ours_of, random_theirs

pytest.importorskip("transformers")
NORM = "model.encoder.layers.0.final_layer_norm.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    random_theirs("marian").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    for file in original.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value != "DROP"})
    )


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def shard(folder):
    """The weights in two shards with their index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {}
    for number, part in enumerate((names[:20], names[20:]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        files |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return files


def rewrite_index(folder, name, file):
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    content["weight_map"][name] = file
    path.write_text(json.dumps(content))


def spoil(weights):
    weights[NORM][3] = torch.nan


HOSTILE = {
    "truncated": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-100]),
        r"model\.safetensors: wanted a safetensors file",
    ),
    "truncated shard": (
        lambda f: (shard(f), (f / "model-00002-of-00002.safetensors").write_bytes(b"\x10" * 30)),
        r"model-00002-of-00002\.safetensors: wanted a safetensors file",
    ),
    "missing shard": (
        lambda f: (shard(f), (f / "model-00002-of-00002.safetensors").unlink()),
        r"model-00002-of-00002\.safetensors: wanted a safetensors file",
    ),
    "shard outside": (
        lambda f: (shard(f), rewrite_index(f, NORM, "../secret.safetensors")),
        rf"index\.json: weight_map\.{NORM}: wanted a .safetensors file in the folder .* got '\.\./secret",
    ),
    "shard of another kind": (
        lambda f: (shard(f), rewrite_index(f, NORM, "pytorch_model.bin")),
        r"weight_map.*wanted a .safetensors file",
    ),
    "key of no shard": (
        lambda f: (shard(f), rewrite_index(f, "surprise", "model-00001-of-00002.safetensors")),
        r"model-00001-of-00002\.safetensors: surprise: wanted a tensor",
    ),
    "missing key": (
        lambda f: change_weights(f, lambda w: w.pop(NORM)),
        rf"model\.safetensors: wanted the weight {NORM}; got none",
    ),
    "missing key in the index": (
        lambda f: (change_weights(f, lambda w: w.pop(NORM)), shard(f)),
        rf"model\.safetensors\.index\.json: wanted the weight {NORM}; got none",
    ),
    "unknown key": (
        lambda f: change_weights(f, lambda w: w.update(surprise=torch.zeros(2))),
        r"model\.safetensors: wanted the weights of marian and no others; got surprise",
    ),
    "wrong shape": (
        lambda f: change_weights(f, lambda w: w.update({NORM: torch.ones(17)})),
        rf"model\.safetensors: {NORM}: wanted shape \(18,\); got \(17,\)",
    ),
    "NaN": (lambda f: change_weights(f, spoil), rf"model\.safetensors: {NORM}: wanted finite numbers"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"wanted model\.safetensors or pytorch_model\.bin"),
    "no configuration": (lambda f: (f / "config.json").unlink(), r"config\.json: wanted a JSON file"),
    "broken JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json: wanted a JSON file"),
    "deep JSON": (lambda f: (f / "config.json").write_text("[" * 100_000), r"config\.json: wanted a JSON file"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), r"config\.json: wanted a JSON object; got list"),
    "unknown architecture": (
        lambda f: change_config(f, model_type="marain"),
        r"config\.json: model_type: wanted one of marian.*got 'marain'. Did you mean 'marian'\?",
    ),
    "other head": (
        lambda f: change_config(f, architectures=["MarianForCausalLM"]),
        r"config\.json: architectures: wanted one of MarianMTModel",
    ),
    "heads that are no list": (
        lambda f: change_config(f, architectures={"name": "MarianMTModel"}),
        r"config\.json: architectures: wanted one of MarianMTModel; got \{",
    ),
    "text for a number": (
        lambda f: change_config(f, d_model="18"),
        r"config\.json: d_model: wanted a whole number of at least 1; got '18'",
    ),
    "absurd layers": (lambda f: change_config(f, decoder_layers=10**9), r"config\.json.*layers = 1000000000"),
    "absurd size": (lambda f: change_config(f, d_model=10**12), r"config\.json.*dim = 1000000000000"),
    "other size": (lambda f: change_config(f, d_model=36), r"wanted shape \(.*; got"),
    "heads that do not divide": (lambda f: change_config(f, encoder_attention_heads=5), r"config\.json.*a divisor of"),
    "unknown option": (
        lambda f: change_config(f, mystery=True),
        r"config\.json: mystery: wanted no such option: it is not known for marian; got True",
    ),
    "option with another value": (
        lambda f: change_config(f, normalize_before=True),
        r"config\.json: normalize_before: wanted False; got True",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_refused_with_file_and_key(name, folder):
    spoiling, message = HOSTILE[name]
    spoiling(folder)
    with pytest.raises(RegardError, match=message):
        dict(PretrainedFolder(folder).weights())


@pytest.mark.parametrize(("key", "value"), [("image_mean", "grey"), ("image_std", [0.0, 1.0, 1.0])])
def test_hostile_settings_of_images_are_refused_with_file_and_key(key, value, tmp_path):
    random_theirs("vit").save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(
        RegardError, match=rf"^{tmp_path}/preprocessor_config\.json: {key}: wanted .*[^.]\.$"
    ):
        ImportedModel(tmp_path)


def test_an_option_without_effect_is_accepted(folder):
    change_config(folder, normalize_before=False, num_beams=6, mystery=None)
    PretrainedFolder(folder)


def test_shards_and_pickles_give_the_same_weights(folder, original):
    wanted = dict(PretrainedFolder(original).weights())
    shard(folder)
    sharded = dict(PretrainedFolder(folder).weights())
    for file in folder.glob("model*"):
        file.unlink()
    torch.save(load_file(original / "model.safetensors"), folder / "pytorch_model.bin")
    pickled = dict(PretrainedFolder(folder).weights())
    for found in (sharded, pickled):
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_pickle_that_runs_code_is_refused(folder, original):
    class Trap:
        def __reduce__(self):
            return print, ("run",)

    (folder / "model.safetensors").unlink()
    torch.save({"weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(InvalidData, match=r"pytorch_model\.bin: wanted a file of tensors by name"):
        TensorFolder(folder)


def test_half_precision_is_kept_or_cast(folder):
    change_weights(
        folder, lambda weights: weights.update({name: x.bfloat16() for name, x in weights.items()})
    )
    pretrained = PretrainedFolder(folder)
    assert {tensor.dtype for _, tensor in pretrained.weights()} == {torch.bfloat16}
    assert {tensor.dtype for _, tensor in pretrained.weights(torch.float16)} == {torch.float16}


def test_tied_names_may_be_repeated_and_decide_whether_they_are_tied(folder):
    shared = load_file(folder / "model.safetensors")["model.shared.weight"]
    change_weights(folder, lambda w: w.update({"lm_head.weight": shared.clone()}))
    assert PretrainedFolder(folder).table["tie_embeddings"] == "all"
    change_weights(folder, lambda w: w.update({"lm_head.weight": shared + 1}))
    model, pretrained = ours_of(folder)
    assert pretrained.table["tie_embeddings"] == "none"
    assert torch.equal(model.decoder.project.weight, shared + 1)
    assert torch.equal(model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight)
    change_weights(folder, lambda w: w.update({"model.encoder.embed_tokens.weight": shared + 2}))
    with pytest.raises(
        InvalidData, match=r"model\.encoder\.embed_tokens\.weight: wanted the same tensor as"
    ):
        PretrainedFolder(folder)


OPS = {
    "transpose": (Transpose(), torch.randn(3, 4)),
    "transpose of a vector": (Transpose(), torch.randn(4)),
    "split": (Split(3), torch.randn(6, 4)),
    "unsqueeze": (Unsqueeze(2), torch.randn(1, 1, 5)),
    "copies": (Copies(2), torch.randn(2, 2)),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_is_reversible_bit_for_bit(name):
    op, theirs = OPS[name]
    assert torch.equal(*op.to_theirs(op.to_ours([theirs])), theirs)


def test_a_plan_uses_every_name_exactly_once():
    rules = [Rule("a.{i}.x", "b.{i}.x"), Rule("qkv.{p}", ("q.{p}", "k.{p}"))]
    steps = plan(rules, ["b.0.x", "b.10.x", "q.weight", "k.weight", "q.bias", "k.bias"])
    assert sorted(step.theirs for step in steps) == ["a.0.x", "a.10.x", "qkv.bias", "qkv.weight"]
    with pytest.raises(AssertionError, match="not exactly once: c"):
        plan(rules, ["b.0.x", "c"])
    with pytest.raises(AssertionError, match=r"not exactly once: b\.0\.x"):
        plan([*rules, Rule("other.{i}", "b.{i}.x")], ["b.0.x"])
