"""Models of transformers as ours: the same logits, every weight used once, and the same bits back."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.core.errors import InvalidData, RegardError
from regard.core.sequence import Tokens
from regard.data.special_tokens import SpecialTokens
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.interop.architectures.table import ARCHITECTURES
from regard.interop.express import Expression, express_as
from regard.interop.generation import read_generation
from regard.interop.pretrained import PretrainedFolder
from support.pretrained import (
    CASES,
    IMAGES,
    SOURCE,
    TARGETS,
    assert_same_logits,
    logits,
    ours_of,
    random_theirs,
)

AutoConfig = pytest.importorskip("transformers").AutoConfig


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Their model of each case, and the folder in which transformers saved it."""
    made = {}

    def of(name):
        if name not in made:
            theirs, folder = random_theirs(name), tmp_path_factory.mktemp(name)
            theirs.save_pretrained(folder)
            made[name] = theirs, folder
        return made[name]

    return of


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"vision-encoder-decoder"}))
def test_what_a_file_leaves_out_is_read_as_they_do(name):
    theirs, ours = AutoConfig.for_model(name).to_dict(), ARCHITECTURES[name].keys()
    theirs["sliding_window"] = theirs.get("sliding_window") or ours.__dict__.get(
        "sliding_window"
    )  # None: not used
    # None stands for what follows from other keys. A token that is not named is none for both.
    tokens = {key for key in theirs if key.endswith("token_id")}
    shared = {
        key: value
        for key, value in vars(ours).items()
        if key in theirs and (value is not None or key in tokens)
    }
    assert len(shared) > 8
    assert shared == {key: theirs[key] for key in shared}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_logits_are_theirs(name, saved):
    theirs, folder = saved(name)
    ours, _ = ours_of(folder)
    wanted, got = logits(name, theirs, ours)
    assert wanted.std() > 0.1
    assert_same_logits(got, wanted)


@pytest.mark.parametrize("name", CASES)
def test_the_export_of_an_import_is_the_original(name, saved):
    """Its architecture expresses the imported model, with the same settings and the same tensors in every bit."""
    _, folder = saved(name)
    ours, pretrained = ours_of(folder)
    expression = express_as(pretrained.architecture, pretrained.model)
    assert isinstance(expression, Expression), expression
    weights = expression.weights(ours, pretrained.model)
    back = {step.theirs: step.to_theirs(weights) for step in expression.steps()}
    own = pretrained.architecture
    assert sorted(back) == sorted(
        each for each in pretrained.tensors if each in back or not own.is_ignored(each)
    )
    assert all(torch.equal(tensor, pretrained.tensors[each]) for each, tensor in back.items())
    table = own.table(expression.keys, pretrained.head, None)
    assert table == {key: value for key, value in pretrained.table.items() if key != "num_labels"}


GENERATES = [
    name for name in CASES if not name.startswith(("bert", "roberta", "distilbert", "vit", "deit"))
]
PAD, START, END, FORCED = 7, 9, 5, 6


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if "-" in name else name for name in GENERATES],
)
@torch.no_grad()
def test_the_outputs_are_theirs_token_for_token(name, beams, saved, tmp_path):
    import transformers

    theirs, folder = saved(name)
    ours, pretrained = ours_of(folder)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": END, "pad_token_id": PAD,
               "suppress_tokens": [3], "decoder_start_token_id": START}  # fmt: skip
    if beams > 1:
        options |= {"num_beams": beams, "length_penalty": 0.6, "early_stopping": False}
    has_source = ours.encoder is not None
    if has_source:
        options |= {
            "forced_bos_token_id": FORCED,
            "no_repeat_ngram_size": 2,
        }  # the latter sees no prompt here
    generation = transformers.GenerationConfig(**options)
    generation.save_pretrained(tmp_path)
    read = read_generation(tmp_path, pretrained.config, has_source=has_source)
    if name.startswith("captioner"):
        given = theirs.generate(pixel_values=IMAGES, generation_config=generation)
        requests, collate = (
            [GenerationRequest(i, 9) for i in range(len(IMAGES))],
            lambda rows: IMAGES[rows],
        )
        skip = 1
    elif has_source:
        given = theirs.generate(
            SOURCE.ids, attention_mask=SOURCE.mask.long(), generation_config=generation
        )
        rows = [ids[mask].tolist() for ids, mask in zip(SOURCE.ids, SOURCE.mask, strict=True)]
        requests, collate, skip = [GenerationRequest(row, len(row)) for row in rows], Tokens.of, 1
    else:
        prompts = TARGETS[:, :5].clamp(min=10)  # without the end token
        given = theirs.generate(
            prompts, generation_config=generation, attention_mask=torch.ones(3, 5)
        )
        requests = [
            GenerationRequest(None, 0, row[1:], given=4, first=row[0]) for row in prompts.tolist()
        ]
        collate, skip = list, 5
    start = read.start if has_source else None
    special = SpecialTokens(
        PAD, start, END, None, None, read.suppressed, target_prefix=read.target_prefix
    )
    task = SearchTask(ours, collate, DecodeConfig(**read.decode), special_tokens=special)
    found = dict(search(task, requests))
    for i, row in enumerate(given.tolist()):
        wanted = row[skip:]
        wanted = wanted[: wanted.index(END)] if END in wanted else wanted
        assert list(found[i][0].tokens[requests[i].given :]) == wanted
    assert len({tuple(row) for row in given.tolist()}) > 1


def _bare_gpt2(weights):
    """As the file of the first GPT-2: without the prefix, with causal masks."""
    renamed = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    return renamed | {
        "h.0.attn.bias": torch.ones(1, 1, 24, 24),
        "h.1.attn.masked_bias": torch.tensor(-1e4),
    }


def _first_bert(weights):
    """As the file of the first BERT: other names of norms, all heads, copies of tied weights."""
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in weights.items()}  # fmt: skip
    old |= {
        "cls.seq_relationship.weight": torch.ones(2, 15),
        "cls.seq_relationship.bias": torch.ones(2),
    }
    old |= {
        "bert.pooler.dense.weight": torch.ones(15, 15),
        "bert.pooler.dense.bias": torch.ones(15),
    }
    old["bert.embeddings.position_ids"] = torch.arange(24)[None]
    return old | {
        "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone()
    }


def _separate_t5(weights):
    """Without the shared matrix, but with a copy of it for each side."""
    shared = weights.pop("shared.weight")
    return weights | {
        f"{side}.embed_tokens.weight": shared.clone() for side in ("encoder", "decoder")
    }


OLD = {"gpt2": _bare_gpt2, "bert-mlm": _first_bert, "t5": _separate_t5}


@pytest.mark.parametrize("name", OLD)
@torch.no_grad()
def test_older_files_have_other_names(name, saved, tmp_path):
    theirs, folder = saved(name)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(OLD[name](load_file(folder / "model.safetensors")), tmp_path / "model.safetensors")
    wanted, got = logits(name, theirs, ours_of(tmp_path)[0])
    assert_same_logits(got, wanted)


# Keys of published files that change no output: of opus-mt, distilbart, SmolLM2, Qwen2.5, and of vit-gpt2, whose parts
# list every default of the library that wrote them.
PUBLISHED = {
    "marian": {"extra_pos_embeddings": 58101, "static_position_embeddings": True, "normalize_before": False},
    "bart": {"extra_pos_embeddings": 2, "save_step": 35, "replacing_rate": 0, "student_encoder_layers": None},
    "llama": {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"kv_cache_dtype": {}}},
    "qwen2": {"use_mrope": False, "rope_scaling": None},
    "gemma": {"use_mrope": False, "use_bidirectional_attention": False},
    "vit": {"pruned_heads": {}, "torchscript": False, "use_bfloat16": False, "tf_legacy_loss": False,
            "tie_encoder_decoder": False, "chunk_size_feed_forward": 0},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_of_published_files_without_effect_are_accepted(name, saved, tmp_path):
    _, folder = saved(name)
    config = json.loads((folder / "config.json").read_text()) | PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert PretrainedFolder(tmp_path).table == PretrainedFolder(folder).table


REFUSED = {
    "llama": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        r"rope_scaling\.rope_type: wanted 'default': scaled .* got 'llama3'\. Use another model\.$",
    ),
    "llama-biased": ({"rope_interleaved": True}, r"rope_interleaved: wanted False; got True"),
    "vit-larger": ({"pruned_heads": {"0": [1]}}, r"pruned_heads: wanted \{\}; got \{'0': \[1\]\}"),
    "qwen3": (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        r"rope_parameters\.rope_type: wanted",
    ),
    "qwen2-window": (
        {"max_window_layers": 1, "layer_types": None},
        r"layer_types: wanted a sliding window in all",
    ),
    "bert-mlm": ({"hidden_act": "relu"}, r"hidden_act: wanted 'gelu'; got 'relu'"),
    "bert": (
        {"position_embedding_type": "relative_key"},
        r"position_embedding_type: wanted 'absolute'",
    ),
    "gpt2": (
        {"scale_attn_by_inverse_layer_idx": True},
        r"scale_attn_by_inverse_layer_idx: wanted False; got True",
    ),
    "vit": ({"num_channels": 1}, r"num_channels: wanted 3; got 1"),
    "bart": ({"activation_function": "quick_gelu"}, r"activation_function: wanted one of 'relu'"),
    "t5": ({"feed_forward_proj": "gated-relu"}, r"feed_forward_proj: wanted one of 'relu'"),
    "captioner": (
        {"encoder": {"model_type": "swin"}},
        r"encoder\.model_type: wanted 'vit'; got 'swin'",
    ),
    "t5-gated": (
        {"dense_act_fn": "relu"},
        r"dense_act_fn: wanted 'gelu_new', as feed_forward_proj = 'gated-gelu'; got 'relu'",
    ),
    "bart-larger": (
        {"num_hidden_layers": 7},
        r"num_hidden_layers: wanted 3, as encoder_layers; got 7",
    ),
    "gemma": (
        {"hidden_activation": "silu"},
        r"hidden_activation: wanted 'gelu_pytorch_tanh', as hidden_act; got 'silu'",
    ),
    "mistral": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        r"layer_types: wanted 'sliding_attention' for each of the 2 blocks",
    ),
    "roberta": ({"pad_token_id": None}, r"pad_token_id: wanted a whole number .*; got null"),
    "distilbert": (
        {"problem_type": "ranking"},
        r"problem_type: wanted .* or 'regression'; got 'ranking'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(name, saved, tmp_path):
    _, folder = saved(name)
    changes, message = REFUSED[name]
    config = json.loads((folder / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(RegardError, match=rf"config\.json.*{message}"):
        ours_of(tmp_path)


CLASSIFIERS = ["bert", "roberta", "distilbert", "vit", "deit", "deit-teacher"]
NO_LABELS = {
    "another problem": {"problem_type": "ranking"},
    "one label": {
        "problem_type": "single_label_classification",
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    },
}


@pytest.mark.parametrize("kind", NO_LABELS)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_that_predict_nothing_known_are_refused(name, kind, saved, tmp_path):
    _, folder = saved(name)
    config = json.loads((folder / "config.json").read_text()) | NO_LABELS[kind]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    keys = "id2label" if "id2label" in NO_LABELS[kind] else "problem_type"
    with pytest.raises(RegardError, match=rf"config\.json: {keys}: wanted"):
        PretrainedFolder(tmp_path)
    names = json.loads((folder / "config.json").read_text()).get("id2label")
    plain = config | {"problem_type": "single_label_classification", "id2label": names}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    assert PretrainedFolder(tmp_path).classifies


@torch.no_grad()
def test_mistral_without_a_window_attends_to_all_positions(tmp_path):
    """`"sliding_window": null`, as recent files have it; a file that leaves it out has a window of 4,096."""
    import transformers

    size = {"vocab_size": 31, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1}  # fmt: skip
    torch.manual_seed(2)
    theirs = transformers.MistralForCausalLM(
        transformers.MistralConfig(**size, sliding_window=None)
    ).eval()
    for parameter in theirs.parameters():
        parameter += 0.5 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["sliding_window"] is None
    ours, pretrained = ours_of(tmp_path)
    ids = torch.randint(3, 31, (1, 4200), generator=torch.Generator().manual_seed(4))
    wanted = theirs(input_ids=ids).logits
    assert_same_logits(ours(None, ids), wanted)
    expression = express_as(pretrained.architecture, pretrained.model)
    assert isinstance(expression, Expression)
    assert expression.config["sliding_window"] is None
    # The window is seen beyond it.
    del config["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    windowed, _ = ours_of(tmp_path)
    assert not torch.allclose(windowed(None, ids)[:, -1], wanted[:, -1], atol=1e-3)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_a_configuration_without_a_class_is_read_where_there_is_one_head(name):
    """Of some checkpoints, config.json names no class."""
    architecture, where = ARCHITECTURES[name], Path("config.json")
    for given, head in architecture.classes.items():
        assert architecture.head({"architectures": [given]}, where) == head
    heads = {*architecture.classes.values()}
    for config in ({}, {"architectures": None}, {"architectures": []}):
        if len(heads) == 1:
            assert architecture.head(config, where) in heads
        else:
            with pytest.raises(InvalidData, match="architectures: wanted one of"):
                architecture.head(config, where)
    for wrong in (["Other"], "Other", [3], {"name": next(iter(architecture.classes))}):
        with pytest.raises(InvalidData, match="architectures: wanted one of"):
            architecture.head({"architectures": wrong}, where)
