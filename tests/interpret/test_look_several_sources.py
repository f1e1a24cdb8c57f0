"""A look at a model of several sources shows the attention to each of them."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.core.errors import InvalidArgument
from regard.core.sequence import MultiSource, Tokens
from regard.data.synthetic.shapes import questions
from regard.interpret.record import map_names
from regard.views.figures import draw
from regard.views.terminal import look_text
from support.captioners import IMAGE, TEXT, questioner

TRANSFORMER = {"kind": "transformer", "dim": 16, "heads": 2, "layers": 2, "ffn_dim": 16}
RNN = {"kind": "rnn", "dim": 16}


@pytest.fixture(params=[TRANSFORMER, RNN], ids=["transformer", "rnn"])
def seen(request):
    model, pixels = questioner(request.param), next(questions("test")).sources[0].draw()
    return model, pixels, regard.look(model, (pixels, "the cats concatenate"))


def test_each_source_has_its_own_maps(seen):
    model, pixels, look = seen
    image, text = look.sources
    assert (image.grid, np.array_equal(image.pixels, pixels)) == ((8, 8), True)
    assert text.tokens[-1] == "</s>"
    assert look.source is None
    assert [each.name for each in look.maps] == map_names(model.model)
    for layer in range(1, 1 + len(model.model.decoder.cross_attentions)):
        of_image, of_text = (look[f"decoder {layer} cross source {source}"] for source in (1, 2))
        assert of_image.size == (len(look.output.tokens), 64)
        assert look.names(of_text) == (look.output.tokens, text.tokens)
        both = of_image.weights().sum(-1) + of_text.weights().sum(-1)
        torch.testing.assert_close(both, torch.ones_like(both))
    assert look["source 2 encoder 1"].size == (len(text.tokens), len(text.tokens))
    assert look.rollout(source=1).shape == (len(text.tokens), len(text.tokens))
    with pytest.raises(
        InvalidArgument, match="rollout: wanted self-attention in the encoder; got none"
    ):
        look.rollout()


def test_weights_of_a_source_are_those_of_the_whole_call(seen):
    model, _, look = seen
    cross = model.model.decoder.cross_attentions[-1]
    with regard.capture_attention() as calls:
        look.forward()
    whole = torch.cat([call.weights() for call in calls if call.source is cross], -2)[0]
    name = f"decoder {len(model.model.decoder.cross_attentions)} cross source"
    parts = torch.cat([look[f"{name} {source}"].weights() for source in (1, 2)], -1)
    torch.testing.assert_close(parts, whole.view_as(parts))
    of_text = look[f"{name} 2"]
    torch.testing.assert_close(
        of_text.tile(slice(0, 1), slice(1, 3)), of_text.weights()[:, :1, 1:3]
    )
    assert of_text.weighted().shape == of_text.weights().shape


def test_attributions_are_split_by_source(seen):
    _, _, look = seen
    shares = look.attributions()
    assert {each.name for each in look.maps} == set(shares)
    assert all(shares[each.name].shape == (each.heads, *each.size) for each in look.maps)


def test_words_are_merged_in_each_text():
    model, pixels = questioner(TRANSFORMER), next(questions("test")).sources[0].draw()
    look = regard.look(model, (pixels, "the cats concatenate"), words=True)
    assert look.sources[1].tokens == ("the", "cats", "concatenate", "</s>")
    assert look["decoder 2 cross source 2"].size[1] == 4


def test_views_show_each_source(seen, tmp_path):
    model, _, look = seen
    shown = look_text(look, width=80)
    layers = len(model.model.decoder.cross_attentions)
    shares = [
        float(look[f"decoder {layers} cross source {n}"].weights().mean(0).sum(1).mean())
        for n in (1, 2)
    ]
    for source, share in enumerate(shares, start=1):
        assert f"decoder {layers} cross source {source}, " in shown
        assert f"{share:.0%} of the attention" in shown
    for name in (f"decoder {layers} cross source 1", f"decoder {layers} cross source 2"):
        draw(look, tmp_path / "drawn.svg", map=name)
    told = json.loads(look.to_json())
    assert [each["kind"] for each in told["sources"]] == ["image", "text"]
    assert {each["source"] for each in told["maps"]} == {0, 1}
    assert "sources" in look.to_html()


def test_a_pool_is_shown_by_source():
    parts = {"encoders": [IMAGE, TEXT], "pool": {"kind": "attention"}}
    model = regard.build({**parts, "num_labels": 3, "source_vocab_size": [9]}).eval()
    sources = MultiSource((torch.zeros(1, 3, 64, 64), Tokens.of([[4, 5, 6]])))
    look = regard.look(model, sources)
    assert [look[f"pool source {n}"].size[1] for n in (1, 2)] == [64, 3]
    assert look.sources[1].tokens == ("4", "5", "6")


def test_inputs_are_tuples_or_texts_with_tabs(tmp_path):
    model, scene = questioner(TRANSFORMER), next(questions("test")).sources[0]
    path = tmp_path / "scene.png"
    Image.fromarray(scene.draw()).save(path)
    alone = model.predict([(scene.draw(), "the cats")])
    assert (
        model.predict([(path, "the cats"), [str(path), "the"], f"{path}\tthe cats"])[::2]
        == alone * 2
    )
    for wrong in ("the cats", (path,), (path, "the", "cats")):
        with pytest.raises(
            InvalidArgument, match="texts 1: wanted 2 sources, as a tuple or separated by tabs"
        ):
            model.predict([wrong])
    (score,) = model.score([(path, "the cats")], ["the"])
    assert len(score.log_probabilities) == len(score.tokens)
