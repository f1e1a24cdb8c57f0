"""Looks: exact weights for every architecture, computed on request, without changing the model's output."""

import base64
import json

import numpy as np
import pytest
import torch
from torch import nn

import regard
from measure import peak_bytes
from regard.core.sequence import MultiSource, Tokens
from regard.data.special_tokens import END, START
from regard.inference.predictor import Predictor
from regard.interpret.maps import MapRecorder
from regard.interpret.record import map_names
from regard.interpret.sites import attention_sites
from regard.interpret.tokens_to_words import TokenSequence
from regard.kernels.attention import reference
from regard.model.capture import capture_attention, intercepting
from regard.model.embedding import Projection
from regard.model.pooling import AttentionPool, AttentionPoolConfig
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Seq2Seq
from regard.recipe.recipe import Recipe
from regard.views.terminal import look_text
from support.models import DECODERS, ENCODERS, WIDTH, decoder, encoder, one, source, without_zeros
from support.predictors import classifier, language_model, translator

OUTPUT = [5, 6, 7, 3, END]


def family() -> dict[str, tuple]:
    """Every encoder under a pool, every decoder with a source and without, and a masked language model."""
    made = {
        "masked tokens": lambda: (
            MaskedLanguageModel(encoder("transformer"), Projection(WIDTH, 11)).eval(),
            "transformer",
        )
    }
    for name in ENCODERS:
        made[f"{name} → label"] = lambda name=name: (_classifier(name), name)
    for name in DECODERS:
        made[f"bag → {name}"] = lambda name=name: (Seq2Seq(encoder("bag"), decoder(name)), "bag")
        made[f"{name} alone"] = lambda name=name: (Seq2Seq(None, decoder(name, None)), None)
    pooled = "cnn learned queries"
    made[f"{pooled} → rnn"] = lambda: (Seq2Seq(encoder(pooled), decoder("rnn")), pooled)
    causal = "transformer causal"
    made["transformer → transformer"] = lambda: (
        Seq2Seq(encoder("transformer"), decoder("transformer")),
        causal,
    )
    made[f"{causal} → transformer"] = lambda: (
        Seq2Seq(encoder(causal), decoder("transformer")),
        causal,
    )
    return made


def _classifier(name: str) -> Classifier:
    torch.manual_seed(3)
    return without_zeros(
        Classifier(encoder(name), AttentionPool(AttentionPoolConfig(2, 2), WIDTH), 3)
    ).eval()


FAMILY = family()


def case(name: str) -> tuple[nn.Module, object, dict]:
    model, reads = FAMILY[name]()
    given = None if reads is None else one(source(reads), 0)
    return model, given, {"output": OUTPUT} if isinstance(model, Seq2Seq) else {}


@torch.no_grad()
def forward(model: nn.Module, given: object) -> torch.Tensor:
    targets = torch.tensor([[START, *OUTPUT[:-1]]])
    return model(given, targets) if isinstance(model, Seq2Seq) else model(given)


def reference_weights(model: nn.Module, given: object) -> dict[str, torch.Tensor]:
    """Every weight by the reference implementation: all scores in memory, softmax, and its output passed on."""
    names, found = {module: site.name for module, site in attention_sites(model).items()}, {}

    def materialised(module, result):
        weights = reference.softmax(reference.scores(result.spec))
        found.setdefault(names[module], []).append(weights[0])
        out = weights @ reference.repeat_heads(result.value, weights.shape[1])
        return result._replace(out=out.to(result.out.dtype))

    with intercepting(materialised):
        forward(model, given)
    return {name: torch.cat(each, 1) for name, each in found.items()}


@pytest.mark.parametrize("name", FAMILY)
def test_weights_equal_the_reference(name):
    model, given, output = case(name)
    wanted, look = reference_weights(model, given), regard.look(model, given, **output)
    assert [each.name for each in look.maps] == list(wanted) == map_names(model)
    for each in look.maps:
        weights = each.weights()
        torch.testing.assert_close(weights, wanted[each.name], rtol=0, atol=1e-6)
        assert weights.shape == (each.heads, *each.size)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        rows, heads = [each.size[0] - 1, 0], [each.heads - 1]
        torch.testing.assert_close(
            each.weights(rows, heads), weights[heads][:, rows], rtol=0, atol=1e-6
        )
        torch.testing.assert_close(
            each.tile(slice(0, 2), slice(1, 3)), weights[:, :2, 1:3], rtol=0, atol=1e-6
        )
        torch.testing.assert_close(
            each.tile(slice(1, 3), slice(0, 3)), weights[:, 1:3, :3], rtol=0, atol=1e-6
        )
        assert each.tile(slice(0, 1), slice(1, 1)).shape == (each.heads, 1, 0)
        assert each.tile(slice(1, 1), slice(0, 1)).shape == (each.heads, 0, 1)
        assert all(map(len, look.names(each)))


@pytest.mark.parametrize("name", FAMILY)
@torch.no_grad()
def test_capturing_changes_no_bit_of_the_output(name):
    model, given, _ = case(name)
    alone = forward(model, given)
    recorder = MapRecorder(model)
    with capture_attention(recorder):
        captured = forward(model, given)
    recorder.close()
    assert torch.equal(alone, captured)
    assert [each.name for each in recorder.maps] == [
        site.name for site in attention_sites(model).values()
    ]


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_weights_of_an_output_equal_those_of_its_decoding_steps(name):
    model, given = Seq2Seq(encoder("bag"), decoder(name)), one(source("bag"), 0)
    look = regard.look(model, given, max_length=4)
    ids = [int(token) for token in look.output.tokens]
    again = regard.look(model, given, output=ids)
    state = model.decoder.start(model.encode(given), batch=1, capacity=5)
    for step, token in enumerate([START, *ids[:-1]]):
        recorder = MapRecorder(model)
        with capture_attention(recorder):
            logits, state = model.decoder.step(torch.tensor([token]), state)
        recorder.close()
        assert look.output.scores[step] == pytest.approx(
            float(logits[0].log_softmax(-1)[ids[step]]), abs=1e-5
        )
        for each in recorder.maps:
            seen = each.weights()  # (H, 1, keys so far)
            for found in (look, again):
                weights = found[each.name].weights([step])[..., : each.size[1]]
                torch.testing.assert_close(weights, seen, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_an_output_of_a_bare_model_is_as_long_as_its_source_allows():
    """The ratio is of the tokens of all sources."""
    torch.manual_seed(3)
    part = {"kind": "rnn", "dim": 16, "dropout": 0.0}
    one = regard.build({"encoder": part, "decoder": part, "vocab_size": 30}).eval()
    several = {
        "encoders": [part, part],
        "decoder": part,
        "vocab_size": 30,
        "source_vocab_size": [30, 30],
    }
    two = regard.build(several).eval()
    options = {"max_length_ratio": 1.0, "min_length_ratio": 1.0}
    first, second = Tokens.of([[5, 6, 7, 8]]), Tokens.of([[5, 6, 7]])
    assert len(regard.look(one, first, **options).output.tokens) == 4
    assert len(regard.look(two, MultiSource((first, second)), **options).output.tokens) == 7


def test_maps_name_their_queries_and_keys():
    look = regard.look(
        translator(decoder="transformer"), "the cat sat on the doghouse", output="a cat"
    )
    content = {
        each.name: (each.kind, each.part, each.layer, each.query_side, each.key_side, each.causal)
        for each in look.maps
    }
    assert content == {
        "decoder 1 self": ("self", "decoder", 1, "output", "output", True),
        "decoder 1 cross": ("cross", "decoder", 1, "output", "source", False),
        "decoder 2 self": ("self", "decoder", 2, "output", "output", True),
        "decoder 2 cross": ("cross", "decoder", 2, "output", "source", False),
    }
    assert look.source.tokens[-1] == "</s>"
    assert look.output.tokens == (*look.output.read[1:], "</s>")
    assert look.names(look["decoder 1 cross"]) == (look.output.tokens, look.source.tokens)
    assert look.names(look["decoder 2 self"]) == (look.output.read, look.output.read)
    pooled = regard.look(_classifier("vit cls_token"), one(source("vit"), 0))
    assert [each.name for each in pooled.maps] == ["encoder 1", "encoder 2", "pool"]
    assert (pooled["pool"].query_side, pooled["pool"].key_side, pooled.source.units) == (
        "pool",
        "source",
        1,
    )
    assert pooled.source.tokens[:3] == ("[CLS]", "1,1", "1,2")
    gridded = regard.look(_classifier("cnn"), one(source("cnn"), 0))
    assert [(each.name, each.kind) for each in gridded.maps] == [
        ("grid 1", "grid"),
        ("pool", "pool"),
    ]
    summed = regard.look(*case("cnn learned queries → rnn")[:2], output=OUTPUT)
    content = [
        (each.name, each.kind, each.part, each.layer, each.query_side, each.key_side, each.size)
        for each in summed.maps
    ]
    assert content == [("encoder pool", "pool", "encoder", 1, "pool", "source", (3, 6))]
    assert summed.names(summed["encoder pool"]) == (("1", "2", "3"), summed.source.tokens)
    assert look_text(summed, width=70).splitlines()[2] == "encoder pool, 1 head"
    with pytest.raises(ValueError, match="Did you mean 'decoder 1 cross'"):
        look["decoder 1 cros"]


def test_a_look_shows_the_output_of_the_model():
    for predictor in (translator(), translator(decoder="rnn"), translator(decoder="conv", seed=2)):
        for beam in (1, 3):
            (best, *_), look = (
                predictor.outputs(["a dog sat"], beam_size=beam, attention=True, scores=True)[0],
                None,
            )
            look = regard.look(predictor, "a dog sat", beam_size=beam)
            assert look.output.text == best.text
            assert look.output.scores == pytest.approx(best.log_probabilities, abs=1e-4)
            cross = [each.weights() for each in look.maps if each.kind == "cross"]
            torch.testing.assert_close(torch.stack(cross), best.attention, rtol=0, atol=1e-5)
    labels = classifier()
    look = regard.look(labels, "a dog sat")
    (best,) = labels.outputs(["a dog sat"], scores=True)[0]
    assert (look.output.label, look.output.score) == (
        best.text,
        pytest.approx(best.score, abs=1e-6),
    )
    assert regard.look(labels, "a dog sat", output="bad").output.label == "bad"


def test_a_language_model_continues_its_text():
    predictor = language_model()
    whole = regard.look(predictor, "the cat", max_length=4)
    continuation = predictor.predict(["the cat"], max_length=4)[0]
    assert whole.source is None
    assert whole.output.text == "the cat" + continuation
    read = regard.look(predictor, "the cat", output="")
    assert read.output.tokens == ("the", "▁cat", "</s>")
    (score,) = predictor.score(["the cat"])
    assert read.output.scores == pytest.approx(score.log_probabilities, abs=1e-5)


def test_attention_over_an_image_is_by_region(tmp_path):
    words = translator().target
    parts = {"encoder": {"kind": "cnn", "dim": 16, "channels": [4, 8], "attention": True},
             "decoder": {"kind": "rnn", "dim": 16}}  # fmt: skip
    data = {"synthetic": "shapes", "source": {"kind": "image"}, "target": {}}
    recipe = Recipe.of({"data": data, "model": parts, "decode": {"max_length": 5}})
    predictor = Predictor(
        regard.build({**parts, "vocab_size": words.size}).eval(), recipe, (None,), words
    )
    picture = np.random.default_rng(1).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    look = regard.look(predictor, picture)
    assert (look.source.grid, look.source.units, look["grid 1"].size) == ((16, 16), 0, (256, 256))
    assert look["decoder 1 cross"].size == (len(look.output.tokens), 256)
    assert look.output.text == predictor.predict([picture])[0]
    content = json.loads(look.to_json(limit=1000))
    assert (content["sources"][0]["width"], content["sources"][0]["height"]) == (64, 64)
    for each in content["maps"]:
        assert (
            (each["weights"] is None)
            == (look[each["name"]].size[0] * 256 > 1000)
            == (each["top"] is not None)
        )
    shown = look_text(look, width=70).splitlines()
    assert shown[2] == "decoder 1 cross, 1 head"
    with pytest.raises(ValueError, match=r"nowhere\.png"):
        regard.look(predictor, tmp_path / "nowhere.png")


def test_a_look_at_a_masked_language_model_has_no_output():
    words = translator().target
    parts = {
        "encoder": {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16},
        "head": "mlm",
    }
    recipe = Recipe.of({"data": {"train": "x.txt"}, "model": parts})
    predictor = Predictor(
        regard.build({**parts, "vocab_size": words.size}).eval(), recipe, (), words
    )
    look = regard.look(predictor, "the cats", words=True)
    assert (look.source.tokens, look.output) == (("<s>", "the", "cats", "</s>"), None)
    assert look["encoder 1"].weights().shape == (2, 4, 4)
    with pytest.raises(ValueError, match="output: wanted none for a masked language model"):
        regard.look(predictor, "the", output="cats")


def test_a_word_is_the_sum_of_its_keys_and_the_mean_of_its_rows():
    predictor = translator()
    tokens, words = (
        regard.look(predictor, "the cats concatenate dogma", output="sat, on a mat", words=w)
        for w in (False, True)
    )
    assert words.source.tokens == ("the", "cats", "concatenate", "dogma", "</s>")
    assert words.output.tokens == ("sat,", "on", "a", "mat", "</s>")
    assert sum(words.output.scores) == pytest.approx(sum(tokens.output.scores), abs=1e-4)
    for fine, coarse in zip(tokens.maps, words.maps, strict=True):
        sides = [
            predictor.source.words(_ids(predictor, tokens, fine, side))
            for side in (fine.query_side, fine.key_side)
        ]
        whole = fine.weights()
        for row in range(coarse.size[0]):
            for key in range(coarse.size[1]):
                rows = [i for i, word in enumerate(sides[0]) if word == row]
                keys = [i for i, word in enumerate(sides[1]) if word == key]
                wanted = sum(whole[:, i, keys].sum(-1) for i in rows) / len(rows)
                torch.testing.assert_close(
                    coarse.weights([row])[:, 0, key], wanted, rtol=0, atol=1e-6
                )
        torch.testing.assert_close(
            coarse.weights().sum(-1), torch.ones(coarse.heads, coarse.size[0])
        )
        torch.testing.assert_close(
            coarse.tile(slice(1, 3), slice(0, 2)), coarse.weights()[:, 1:3, :2]
        )


def _ids(predictor, look, found, side) -> list[int]:
    if side == "source":
        return [*predictor.source.encode("the cats concatenate dogma"), END]
    output = [*predictor.target.encode("sat, on a mat"), END]
    return [START, *output[:-1]] if found.kind == "self" else output


def test_words_are_separated_by_spaces():
    for kind, wanted in (("bpe", 4), ("unigram", 4), ("characters", 4), ("bytes", 4), ("words", 4)):
        words = translator(kind).source
        ids = [START, *words.encode("the cat catalogue"), END]
        found = words.words(ids)
        assert found[-1] == wanted
        assert TokenSequence.of(ids, words).words == ("<s>", "the", "cat", "catalogue", "</s>")


@pytest.mark.parametrize("words", [False, True])
def test_summaries_equal_those_of_the_weights(words, monkeypatch):
    monkeypatch.setattr("regard.kernels.attention.blockwise.BLOCK", 50)  # several blocks
    monkeypatch.setattr("regard.interpret.maps.BLOCK", 800)
    look = regard.look(
        translator(), "the cats, concatenate dogma", output="sat, on a mat", words=words
    )
    for each in look.maps:
        found, weights = each.summary(3), each.weights()
        n, m = each.size
        own = torch.arange(n) + m - n
        entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
        most = (torch.arange(1, n + 1) if each.causal else torch.full((n,), m)).log()
        torch.testing.assert_close(found.entropy, entropy)
        torch.testing.assert_close(found.evenness, torch.where(most > 0, entropy / most, 0.0))
        torch.testing.assert_close(
            found.distance, (weights * (torch.arange(m) - own[:, None]).abs()).sum(-1)
        )
        torch.testing.assert_close(found.top_weights, weights.topk(min(3, m)).values)
        torch.testing.assert_close(found.confidence, weights.amax(-1))
        torch.testing.assert_close(found.first, weights[..., 0])
        torch.testing.assert_close(found.last, weights[..., -1])
        for name, offset in (("own", 0), ("previous", -1)):
            wanted = [
                weights[:, i, p] if 0 <= p < m else torch.zeros(each.heads)
                for i, p in enumerate(own + offset)
            ]
            torch.testing.assert_close(getattr(found, name), torch.stack(wanted, 1))
        signs = torch.tensor([name in ("<s>", "</s>", ",") for name in look.names(each)[1]])
        torch.testing.assert_close(found.punctuation, weights[..., signs].sum(-1))
        for head, line in enumerate(found.heads()):
            assert line.head == head
            assert line.entropy == pytest.approx(float(entropy[head].mean()), abs=1e-5)
    by_distance = [head.distance for _, head in look.heads("distance")]
    assert by_distance == sorted(by_distance, reverse=True)
    with pytest.raises(ValueError, match=r"sort: .*Did you mean 'entropy'"):
        look.heads("entrpy")


def test_a_look_with_top_keeps_summaries_only():
    model, given, output = case("transformer → transformer")
    whole, small = regard.look(model, given, **output), regard.look(model, given, **output, top=2)
    for one_, other in zip(whole.maps, small.maps, strict=True):
        assert other.call is None
        wanted = one_.summary(2)
        for name, value in vars(other.summary(2)).items():
            torch.testing.assert_close(value, getattr(wanted, name))
        with pytest.raises(
            ValueError, match=rf"{one_.name}.*summary alone.*layers=\[{one_.layer}\]"
        ):
            other.weights()
        with pytest.raises(ValueError, match="summary alone"):
            other.summary(3)
        top = other.as_dict(10**6)["top"]  # the weights are gone, however few
        assert top["shape"] == [one_.heads, one_.size[0], 2]
        torch.testing.assert_close(
            unpacked(top, "<u2", top["weights"]) / 65535, wanted.top_weights, rtol=0, atol=1e-5
        )
    for few in regard.look(model, given, **output, top=99).maps:  # there are not so many keys
        assert (
            few.summary().top_weights.shape[-1]
            == few.summary(200).top_weights.shape[-1]
            == few.size[1]
        )


def test_layers_heads_and_rows_select_parts_of_the_maps():
    model, given, output = case("transformer → transformer")
    look = regard.look(model, given, **output, layers=[2], heads=[1], rows=[5, -1])
    assert [each.name for each in look.maps] == ["encoder 2", "decoder 2 self", "decoder 2 cross"]
    whole = regard.look(model, given, **output)
    torch.testing.assert_close(
        look["encoder 2"].weights(), whole["encoder 2"].weights()[[1]][:, [5, 5]]
    )
    torch.testing.assert_close(
        look["decoder 2 cross"].weights(), whole["decoder 2 cross"].weights()[[1]][:, [-1]]
    )
    assert [head.head for _, head in look.heads()] == [1, 1, 1]


@pytest.mark.parametrize(
    "part", [{"heads": [1]}, {"heads": [1, 0]}, {"rows": [0, 2]}, {"heads": [0], "rows": [1]}]
)
def test_the_summaries_of_a_part_are_those_of_the_whole_map(part):
    model, given, output = case("transformer → transformer")
    whole = json.loads(regard.look(model, given, **output).to_json())["maps"]
    shown = json.loads(regard.look(model, given, **output, **part).to_json())["maps"]
    for one_, other in zip(whole, shown, strict=True):
        wanted = [one_["summary"][head] for head in part.get("heads", range(one_["heads"]))]
        for head, measures in zip(wanted, other["summary"], strict=True):
            assert measures == pytest.approx(head, abs=1e-6)


REFUSED = {
    "layers": ({"layers": [3]}, r"layers: wanted some of 1, 2; got \[3\]"),
    "rows": ({"rows": [9]}, r"rows: wanted whole numbers from -6 to 5; got \[9\]"),
    "heads": ({"heads": 2}, r"heads: wanted whole numbers from -2 to 1"),
    "empty output": ({"output": []}, "output: wanted at least one token; got none"),
    "option without a search": (
        {"beam_size": 2},
        "beam_size: wanted nothing where no output is searched; got 2",
    ),
    "unknown option": ({"output": None, "bean": 2}, "decode.bean"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_options_are_refused(name):
    model, given, output = case("transformer → transformer")
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        regard.look(model, given, **{**output, **options})


def test_invalid_models_and_inputs_are_refused():
    model, _, _ = case("transformer → transformer")
    for given in ("a text", Tokens.of([[5], [6]]), None, 3):
        with pytest.raises(ValueError, match="text: wanted Tokens"):
            regard.look(model, given, output=OUTPUT)
    with pytest.raises(
        ValueError,
        match=r"model: wanted one that regard.load.*got Linear.*regard.capture_attention",
    ):
        regard.look(nn.Linear(2, 2), torch.ones(1))
    with pytest.raises(ValueError, match="output: wanted a text"):
        regard.look(translator(), "a", output=3)
    with pytest.raises(ValueError, match="text: wanted texts"):
        regard.look(translator(), 7)
    with pytest.raises(ValueError, match=r"label: .*'good'"):
        regard.look(classifier(), "a", output="god")


def unpacked(content: dict, kind: str, numbers: str) -> torch.Tensor:
    return torch.from_numpy(
        np.frombuffer(base64.b64decode(numbers), kind).astype(np.int64)
    ).reshape(content["shape"])


@pytest.mark.parametrize("words", [False, True])
def test_json_holds_weights_or_the_largest_of_each_row(words):
    look = regard.look(translator(), "the cats concatenate", output="a mat", words=words, heads=[1])
    for limit in (10**6, 0):
        content = json.loads(look.to_json(limit=limit))
        assert (content["version"], content["title"]) == (1, "the cats concatenate")
        assert content["sources"][0] == {"kind": "text", "tokens": list(look.source.tokens)}
        assert content["output"]["tokens"] == list(look.output.tokens)
        for each, found in zip(look.maps, content["maps"], strict=True):
            n, m = each.size
            assert (found["name"], found["heads"], found["rows"], found["causal"]) == (
                each.name,
                1,
                None,
                each.causal,
            )
            assert (found["weights"] is None, found["top"] is None) == (limit == 0, limit != 0)
            weights = each.weights()
            if limit:
                assert found["weights"]["shape"] == [1, n, m]
                close = unpacked(found["weights"], "<u2", found["weights"]["data"]) / 65535
                torch.testing.assert_close(close, weights, rtol=0, atol=1e-5)
            else:
                top = found["top"]
                assert top["shape"] == [1, n, min(16, m)]
                keys, values = (
                    unpacked(top, "<u4", top["keys"]),
                    unpacked(top, "<u2", top["weights"]) / 65535,
                )
                torch.testing.assert_close(values, weights.topk(top["k"]).values, rtol=0, atol=1e-5)
                torch.testing.assert_close(
                    weights.gather(-1, keys)[values > 0], values[values > 0], rtol=0, atol=1e-5
                )
            (line,) = found["summary"]
            assert line["head"] == 1
            assert line["own"] == pytest.approx(each.summary(0).heads()[1].own)


def test_what_is_changed_in_the_values_of_a_look_is_not_in_the_next_ones():
    look = regard.look(translator(), "the cats", output="a mat")
    wanted = look.to_json()
    values = look.as_dict()
    for each in values["maps"]:
        each["name"] += "!"
        each["weights"]["data"] = ""
        each["weights"]["shape"].append(1)
        each["summary"].clear()
    assert look.to_json() == wanted


def test_json_of_images_and_labels():
    content = json.loads(regard.look(_classifier("vit cls_token"), one(source("vit"), 0)).to_json())
    picture = content["sources"][0]
    assert (picture["width"], picture["height"], picture["grid"], picture["units"]) == (
        12,
        8,
        [2, 3],
        1,
    )
    assert picture["data"].startswith("data:image/webp;base64,")
    assert base64.b64decode(picture["data"].partition(",")[2])[8:12] == b"WEBP"
    assert content["output"]["label"] in "012"
    assert [each["query_side"] for each in content["maps"]] == ["source", "source", "pool"]


def test_rollout_is_the_product_of_the_layers():
    model, given, output = case("transformer causal → transformer")
    look = regard.look(model, given, **output)
    first, second = ((each.weights().mean(0) + torch.eye(6)) / 2 for each in look.maps[:2])
    torch.testing.assert_close(look.rollout(), second @ first)
    torch.testing.assert_close(look.rollout([-1, 2]), (second @ first)[[-1, 2]])
    torch.testing.assert_close(look.rollout().sum(-1), torch.ones(6))
    assert look.rollout(part="decoder").shape == (5, 5)
    with pytest.raises(ValueError, match="rollout: wanted self-attention in the encoder; got none"):
        regard.look(*case("bag → transformer")[:2], **output).rollout()


VALUED = ("transformer → transformer", "bag → transformer rms swiglu grouped", "bag → gru luong", "bag → conv",
          "vit → label", "cnn → label")  # fmt: skip


@pytest.mark.parametrize("name", VALUED)
@torch.no_grad()
def test_weighted_maps_are_norms_of_the_vectors_that_are_summed(name):
    model, given, output = case(name)
    look, calls = regard.look(model, given, **output), []
    with capture_attention(calls.append):
        forward(model, given)
    for each in look.maps:
        module = next(
            module for module, site in attention_sites(model).items() if site.name == each.name
        )
        value = next(one_.value for one_ in calls if one_.source is module)[0]
        value = value.repeat_interleave(each.heads // len(value), 0)
        out = (
            module.context_proj.weight[:, -WIDTH:]
            if hasattr(module, "context_proj")
            else module.out_proj.weight
        )
        part = out.shape[1] // each.heads
        for head in range(each.heads):
            columns = out[:, head * part : (head + 1) * part]
            wanted = (each.weights()[head][:, :, None] * (value[head] @ columns.mT)).norm(
                dim=-1
            )  # (rows, keys)
            torch.testing.assert_close(each.weighted(heads=[head])[0], wanted)
            torch.testing.assert_close(each.weighted([-1], [head])[0], wanted[[-1]])


ATTRIBUTED = ("transformer → transformer", "bag → lstm bahdanau", "bag → gru luong input-feeding", "bag → conv",
              "transformer alone", "transformer → label", "cnn → label")  # fmt: skip


@pytest.mark.parametrize("name", ATTRIBUTED)
def test_attributions_equal_finite_differences(name):
    model, given, output = case(name)
    model = model.double()
    given = given.double() if isinstance(given, torch.Tensor) else given
    look = regard.look(model, given, **output)
    for of in (None, 1) if isinstance(model, Seq2Seq) else (None,):
        found = look.attributions(of)
        assert list(found) == [each.name for each in look.maps]
        assert (
            of is None or not found[look.maps[-1].name][:, of + 1 :].any()
        )  # later rows have no effect
        for each in look.maps:
            head, row, key = each.heads - 1, min(1, each.size[0] - 1), 0
            up, down = (
                _scaled(model, look, each.name, (head, row, key), 1 + step, of)
                for step in (1e-5, -1e-5)
            )
            assert float(found[each.name][head, row, key]) == pytest.approx(
                (up - down) / 2e-5, rel=1e-3, abs=1e-7
            )


@torch.no_grad()
def _scaled(
    model, look, name: str, at: tuple[int, int, int], factor: float, of: int | None
) -> float:
    """The log-probability with one weight multiplied by a factor."""
    module = next(module for module, site in attention_sites(model).items() if site.name == name)
    rows = 0

    def changed(source, result):
        nonlocal rows
        if source is not module:
            return result
        weights, n = reference.softmax(reference.scores(result.spec)), result.spec.n
        if rows <= at[1] < rows + n:
            weights[0, at[0], at[1] - rows, at[2]] *= factor
        rows += n
        return result._replace(out=weights @ reference.repeat_heads(result.value, weights.shape[1]))

    with intercepting(changed):
        logits = look.forward()
    each = logits.log_softmax(-1).gather(-1, look.forward.labels[:, None])[:, 0]
    return float(each.sum() if of is None else each[of])


def test_attributions_are_refused_without_an_output():
    with pytest.raises(ValueError, match="attributions: wanted a look with an output"):
        regard.look(*case("masked tokens")[:2]).attributions()
    model, given, output = case("bag → conv")
    with pytest.raises(ValueError, match="of: wanted a token of the output, from 0 to 4; got 5"):
        regard.look(model, given, **output).attributions(5)
    words = regard.look(translator(), "the cats", output="a doghouse", words=True)
    assert {name: found.shape for name, found in words.attributions().items()} == {
        each.name: (each.heads, *each.size) for each in words.maps
    }


@pytest.mark.slow
def test_a_look_at_a_long_text_takes_less_than_twice_the_memory_of_the_model():
    """4,096 tokens: top-16 and entropy of every row of every head, where every weight would be 512 MiB."""
    table = {
        "kind": "transformer",
        "dim": 256,
        "layers": 2,
        "heads": 4,
        "ffn_dim": 1024,
        "positions": "rotary",
    }
    model = regard.build(
        {"encoder": table, "pool": {"kind": "mean"}, "num_labels": 3, "source_vocab_size": 100}
    ).eval()
    text = Tokens.of([torch.randint(5, 100, (4096,)).tolist()])
    found = []
    alone = peak_bytes(torch.no_grad()(lambda: model(text)))
    assert peak_bytes(lambda: found.append(regard.look(model, text, top=16))) < 2 * alone
    for each in found[-1].maps:
        assert each.summary(16).top_keys.shape == (4, 4096, 16)
    kept = regard.look(model, text)
    assert (
        peak_bytes(lambda: kept["encoder 2"].tile(slice(4000, 4064), slice(0, 64)))
        < 2 * 4 * 4096 * 64 * 4
    )
    tile, rows = (
        kept["encoder 2"].tile(slice(4000, 4064), slice(0, 64)),
        kept["encoder 2"].weights(range(4000, 4064)),
    )
    torch.testing.assert_close(tile, rows[..., :64])
    torch.testing.assert_close(
        found[-1]["encoder 2"].summary(16).top_weights[:, 4000:4064], rows.topk(16).values
    )
