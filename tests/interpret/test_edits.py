"""Edits of attention: the same in a forward pass, in decoding steps, padded and alone, for every architecture."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import MultiSource, Tokens
from regard.data.special_tokens import START
from regard.generation.engines import selection
from regard.inference.predictor import Predictor
from regard.interpret.editing import editing
from regard.interpret.edits import (
    KINDS,
    Edit,
    MaskSource,
    PaintRow,
    ReplaceToken,
    ScaleHead,
    SwitchHeadOff,
    edits_json,
    read_edits,
)
from regard.interpret.sites import attention_sites
from regard.kernels.attention import reference
from regard.model.capture import capture_attention, intercepting
from regard.model.embedding import Projection
from regard.model.multi_source import MultiSourceEncoder
from regard.model.pooling import AttentionPool, AttentionPoolConfig
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Seq2Seq
from support.captioners import TEXT, captioner, questioner
from support.models import WIDTH, decoder, encoder, one, source, without_zeros
from support.predictors import classifier, language_model, translator


@cache
def made(kind: str) -> Predictor:
    return translator(decoder=kind)


def several() -> nn.Module:
    torch.manual_seed(4)
    return without_zeros(MultiSourceEncoder([encoder("transformer"), encoder("cnn")])).eval()


def labels(name: str) -> nn.Module:
    torch.manual_seed(3)
    return without_zeros(
        Classifier(encoder(name), AttentionPool(AttentionPoolConfig(2, 2), WIDTH), 3)
    ).eval()


DECODERS = [
    "lstm bahdanau",
    "gru luong",
    "gru luong input-feeding",
    "conv",
    "transformer",
    "transformer like Mistral",
    "transformer rms swiglu grouped",
]
FAMILY = {
    **{
        f"{n} ← transformer": lambda n=n: (
            Seq2Seq(encoder("transformer"), decoder(n)),
            "transformer",
        )
        for n in DECODERS
    },
    "transformer ← gru": lambda: (Seq2Seq(encoder("gru"), decoder("transformer")), "gru"),
    "language model": lambda: (Seq2Seq(None, decoder("transformer", None)), None),
    "captioner": lambda: (Seq2Seq(encoder("vit"), decoder("transformer")), "vit"),
    "recurrent captioner": lambda: (Seq2Seq(encoder("cnn"), decoder("lstm bahdanau")), "cnn"),
    "several sources": lambda: (Seq2Seq(several(), decoder("transformer")), "several"),
    "several sources, recurrent": lambda: (Seq2Seq(several(), decoder("gru luong")), "several"),
    "classifier cls_token": lambda: (labels("transformer cls_token"), "transformer cls_token"),
    "masked tokens": lambda: (
        MaskedLanguageModel(encoder("transformer"), Projection(WIDTH, 11)).eval(),
        "transformer",
    ),
}
DECODING = [
    *(name for name in FAMILY if "←" in name),
    "language model",
    "captioner",
    "several sources",
]
TARGETS = torch.tensor([[START, 5, 6, 7], [START, 3, 9, 4], [START, 8, 8, 5]])


def given(name: str) -> object:
    if name == "several":
        return MultiSource((source("transformer"), source("cnn")))
    return None if name is None else source(name)


def alone(batch: object, i: int) -> object:
    if isinstance(batch, MultiSource):
        return MultiSource(tuple(one(part, i) for part in batch.parts))
    return None if batch is None else one(batch, i)


@torch.no_grad()
def run(
    model: nn.Module, batch: object, edits=(), targets=TARGETS
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and the captured weights (B, H, N, M) of each site."""
    names, found = {module: site.name for module, site in attention_sites(model).items()}, {}
    with editing(model, edits), capture_attention() as calls:
        logits = model(batch, targets) if isinstance(model, Seq2Seq) else model(batch)
    for call in calls:
        weights = call.weights()
        weights = weights if weights.dim() == 4 else weights[:, None]
        found.setdefault(names[call.source], []).append(weights)
    return logits, {name: torch.cat(each, 2) for name, each in found.items()}


def oracle(model: nn.Module, batch: object, change) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """As `run`, all weights in memory, and changed by `change(name, first row, weights)`."""
    names, found, rows = (
        {module: site.name for module, site in attention_sites(model).items()},
        {},
        {},
    )

    def materialised(module, result):
        first = rows.get(module, 0)
        rows[module] = first + result.spec.n
        weights = change(
            names[module], first, reference.softmax(reference.scores(result.spec)).clone()
        )
        found.setdefault(names[module], []).append(weights)
        return result._replace(out=weights @ reference.repeat_heads(result.value, weights.shape[1]))

    with torch.no_grad(), intercepting(materialised):
        logits = model(batch, TARGETS) if isinstance(model, Seq2Seq) else model(batch)
    return logits, {name: torch.cat(each, 2) for name, each in found.items()}


def close(found, wanted) -> None:
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-5)
    assert found[1].keys() == wanted[1].keys()
    for name, weights in found[1].items():
        torch.testing.assert_close(weights, wanted[1][name], rtol=1e-4, atol=1e-5)


def some(weights: dict) -> list[str]:
    """The first attention, and the last."""
    return list(dict.fromkeys([next(iter(weights)), list(weights)[-1]]))


@pytest.fixture(params=FAMILY)
def case(request):
    model, reads = FAMILY[request.param]()
    return model, given(reads)


def test_edits_that_change_nothing_change_no_bit(case):
    model, batch = case
    plain, weights = run(model, batch)
    for edits in ([], [ScaleHead(map=name, factor=1.0) for name in weights]):
        logits, found = run(model, batch, edits)
        assert torch.equal(logits, plain)
        assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_a_scale_of_zero_switches_a_head_off(case):
    model, batch = case
    plain, weights = run(model, batch)
    for name in some(weights):
        head = weights[name].shape[1] - 1
        zero, _ = run(model, batch, [ScaleHead(map=name, head=head, factor=0.0)])
        off, kept = run(model, batch, [SwitchHeadOff(map=name, head=head)])
        assert torch.equal(zero, off)
        assert not torch.allclose(off, plain, atol=1e-6)
        if name == next(iter(weights)):
            assert torch.equal(kept[name], weights[name])
        half = run(model, batch, [ScaleHead(map=name, head=head, factor=0.5)])[0]
        for found, factor in ((off, 0.0), (half, 0.5)):

            def scaled(site, row, weights, name=name, head=head, factor=factor):
                if site == name:
                    weights[:, head] *= factor
                return weights

            torch.testing.assert_close(found, oracle(model, batch, scaled)[0], rtol=1e-4, atol=1e-5)


def test_painting_a_row_with_its_own_weights_changes_nothing(case):
    model, batch = case
    plain = run(model, batch)
    for name in some(plain[1]):
        own = plain[1][name][0, 0, 1]  # of the first sequence
        keys = tuple(own.nonzero()[:, 0].tolist())
        edit = PaintRow(
            map=name, head=0, row=1, keys=keys, weights=tuple(own[list(keys)].clamp(0, 1).tolist())
        )
        found, weights = run(model, alone(batch, 0), [edit], TARGETS[:1])
        torch.testing.assert_close(found, plain[0][:1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(weights[name][0, 0, 1], own)


@pytest.mark.parametrize("renormalize", [True, False])
def test_painted_rows_are_those_of_the_oracle(case, renormalize):
    model, batch = case
    for name in some(run(model, batch)[1]):
        edit = PaintRow(
            map=name, head=0, row=1, keys=(1, 0), weights=(0.7, 0.1), renormalize=renormalize
        )

        def painted(site, first, weights, name=name):
            if site == name and first <= 1 < first + weights.shape[2]:
                row = weights[:, 0, 1 - first]
                rest = row[:, 2:].sum(-1, keepdim=True)
                if renormalize:
                    row[:, 2:] *= torch.where(rest > 1e-9, 0.2 / rest, 0)
                row[:, 0], row[:, 1] = 0.1, 0.7
                if renormalize:
                    row /= row.sum(-1, keepdim=True)
            return weights

        found = run(model, batch, [edit])
        close(found, oracle(model, batch, painted))
        shown = found[1][name][:, 0, 1]
        if renormalize:
            torch.testing.assert_close(shown.sum(-1), torch.ones(len(shown)))
            assert torch.allclose(shown[:, 1] / shown[:, 0], torch.tensor(7.0))
        else:
            torch.testing.assert_close(
                shown[:, :2], torch.tensor([[0.1, 0.7]]).expand(len(shown), 2)
            )


def test_a_masked_token_gets_no_weight_and_the_others_share_it(case):
    model, batch = case
    sites = {site.name: site for site in attention_sites(model).values()}
    if not any(site.key_side == "source" for site in sites.values()):
        with pytest.raises(
            InvalidArgument, match="edit 1: wanted a model with attention to its source"
        ):
            run(model, batch, [MaskSource(token=1)])
        return
    for number in range(2 if isinstance(batch, MultiSource) else 1):
        first = (
            batch.parts[0].lengths if number else torch.zeros(1, dtype=torch.int64)
        )  # keys before those of a source

        def masked(site, row, weights, number=number, first=first):
            place = sites[site]
            hidden = torch.zeros(len(weights), 1, 1, weights.shape[-1], dtype=torch.bool)
            if place.part == "encoder" and place.source == number and place.kind != "grid":
                hidden[..., 1] = True
            elif place.part != "encoder" and place.key_side == "source":
                hidden.scatter_(3, (first + 1).expand(len(weights))[:, None, None, None], True)
            weights = weights.masked_fill(hidden, 0)
            return weights / weights.sum(-1, keepdim=True) if hidden.any() else weights

        found = run(model, batch, [MaskSource(token=1, source=number)])
        close(found, oracle(model, batch, masked))
        assert not torch.allclose(found[0], run(model, batch)[0], atol=1e-6)


def test_a_token_masked_after_a_row_was_painted_leaves_its_weight_to_the_others(case):
    """The painted weights of the other keys are scaled to the sum that the row had before."""
    model, batch = case
    sites = [site for site in attention_sites(model).values() if site.key_side == "source"]
    if isinstance(batch, MultiSource) or not isinstance(batch, Tokens):
        return
    text = alone(batch, 1)
    keys = range(int(text.lengths[0]))
    given = tuple(0.1 * (1 + key) for key in keys)
    for name in (site.name for site in sites):
        paint = PaintRow(
            map=name, head=0, row=0, keys=tuple(keys), weights=given, renormalize=False
        )
        _, plain = run(model, text, [paint], TARGETS[:1])
        if plain[name].shape[-1] != len(keys):
            continue  # a [CLS] token is a key too, whose weight is not given
        _, masked = run(model, text, [paint, MaskSource(token=1)], TARGETS[:1])
        kept = [0.0 if key == 1 else weight for key, weight in enumerate(given)]
        wanted = torch.tensor(kept) * sum(given) / sum(kept)
        torch.testing.assert_close(plain[name][0, 0, 0], torch.tensor(given))
        torch.testing.assert_close(masked[name][0, 0, 0], wanted)


def mixture(model: nn.Module) -> list[Edit]:
    """Edits of every kind, on the last attention and all heads, in an order that matters."""
    sites = list(attention_sites(model).values())
    last = sites[-1]
    paint = PaintRow(map=last.name, row=1, keys=(0, 1), weights=(0.25, 0.5), renormalize=False)
    scale = ScaleHead(map=last.name, head=0, factor=-1.5)
    mask = [MaskSource(token=2)] if any(site.key_side == "source" for site in sites) else []
    own = [
        PaintRow(map=site.name, head=0, row=3, keys=(2,), weights=(0.9,))
        for site in sites
        if site.kind == "self"
    ]
    return [
        *own,
        paint,
        *mask,
        scale,
        PaintRow(map=last.name, head=0, row=1, keys=(1,), weights=(0.6,)),
    ]


def test_padded_sequences_are_edited_as_they_are_alone(case):
    model, batch = case
    edits = [each for each in mixture(model) if not (isinstance(each, PaintRow) and each.row == 3)]
    logits, weights = run(model, batch, edits)
    assert not torch.allclose(logits, run(model, batch)[0], atol=1e-6)
    for i in range(3):
        found, own = run(model, alone(batch, i), edits, TARGETS[i : i + 1])
        torch.testing.assert_close(
            found[0], logits[i][: found.shape[1]] if found.dim() == 3 else logits[i]
        )
        for name, each in own.items():
            torch.testing.assert_close(
                each[0], weights[name][i, :, : each.shape[2], : each.shape[3]]
            )


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("name", DECODING)
def test_decoding_steps_are_edited_as_the_forward_pass(name, beams):
    """Hypotheses change places at each step; at the third, a sequence is admitted, whose rows count from there."""
    model, reads = FAMILY[name]()
    batch, edits = given(reads), mixture(model)
    several = isinstance(batch, MultiSource)  # their searches have one request each
    batch = alone(batch, 0) if several else batch
    lines = [TARGETS, torch.cat((TARGETS[:, :1], (TARGETS[:, 1:] + 2) % 11), 1)]
    lines = [line[:1] for line in lines] if several else lines
    wanted = torch.stack([run(model, batch, edits, line)[0] for line in lines])  # (line, B, T, V)
    with editing(model, edits):
        stepper, encoded = selection.decoder_for(model, max_length=8), model.encode(batch)

        def start(index, capacity):
            chosen = None if encoded is None else encoded.reorder(torch.tensor(index))
            return stepper.start(chosen, batch=len(index), capacity=capacity, beams=beams)

        rows = (
            [(0, 0)] if several else [(0, 0), (2, 0)]
        )  # the sequence in each slot, and the step at which it came
        state = start([row for row, _ in rows], 12)
        for step in range(4 if several else 6):
            if step == 2 and not several:
                state, rows = state.admit(torch.tensor([1]), start([1], 0)), [(0, 0), (1, 2)]
            place = [(row, min(step - entered, 3)) for row, entered in rows]
            follows = [(step + k) % beams for k in range(beams)]  # the line of each hypothesis
            tokens = torch.stack([lines[line][row, t] for row, t in place for line in follows])
            logits, state = stepper.step(tokens, state)
            found = iter(logits)
            for (row, t), (_, entered) in zip(place, rows, strict=True):
                for line in follows:
                    each = next(found)
                    if step - entered < 4:
                        torch.testing.assert_close(each, wanted[line, row, t], rtol=1e-4, atol=1e-5)
            state = state.follow(torch.tensor([[1, 0][-beams:]] * len(rows)))


def test_every_kind_of_edit_survives_json():
    edits = [
        SwitchHeadOff(map="encoder 1"),
        ScaleHead(map="decoder cross", head=1, factor=-0.5),
        PaintRow(
            map="decoder 1 cross source 2",
            head=0,
            row=2,
            keys=(0, 3),
            weights=(0.5, 1.0),
            renormalize=False,
        ),
        MaskSource(token=0, source=1),
        ReplaceToken(position=2, token="ß\u202e", side="output"),
        ReplaceToken(position=2, token=7),
    ]
    assert {each.kind for each in edits} == set(KINDS)
    assert read_edits(json.loads(edits_json(edits))) == tuple(edits)
    assert json.loads(edits_json(edits))[0] == {"edit": "switch_head_off", "map": "encoder 1"}
    assert read_edits(edits) == tuple(edits)


PAINT = {"edit": "paint_row", "map": "decoder 1 cross", "row": 0, "keys": [0], "weights": [0.5]}
REFUSED = {
    "edits: wanted a list of edits; got str": "scale_head",
    "edit 1: wanted a table of keys and values; got 3": [3],
    "edit 2.edit: wanted one of .*; got 'scale'. Did you mean 'scale_head'?": [
        PAINT,
        {"edit": "scale"},
    ],
    "edit 1.factor: wanted a value; got none. Add it.": [
        {"edit": "scale_head", "map": "encoder 1"}
    ],
    "edit 1.hed: wanted a key of edit 1": [
        {"edit": "switch_head_off", "map": "encoder 1", "hed": 1}
    ],
    "edit 1.factor: wanted .*; got nan": [
        {"edit": "scale_head", "map": "encoder 1", "factor": float("nan")}
    ],
    "edit 1.head: wanted .*; got -1": [{"edit": "switch_head_off", "map": "encoder 1", "head": -1}],
    "edit 1.head: wanted .*; got True": [
        {"edit": "switch_head_off", "map": "encoder 1", "head": True}
    ],
    "edit 1.weights: wanted one for each of 1 keys; got 2": [{**PAINT, "weights": [0.5, 0.5]}],
    "edit 1.weights: wanted a list": [{**PAINT, "weights": [1.5]}],
    "edit 1.keys: wanted each key once": [{**PAINT, "keys": [1, 1], "weights": [0.5, 0.5]}],
    "edit 1.keys: wanted a list": [{**PAINT, "keys": [], "weights": []}],
    "edit 1.map: wanted the name of an attention map; got 'decoder 3 cross'. Did you mean": [
        {**PAINT, "map": "decoder 3 cross"}
    ],
    "edit 1.head: wanted a head of decoder 1 cross, from 0 to 1; got 2": [{**PAINT, "head": 2}],
    "edit 1.keys: wanted keys that row 0 of decoder 1 cross may attend to; got 99": [
        {**PAINT, "keys": [99]}
    ],
    "edit 1.keys: wanted keys that row 0 of decoder 1 self may attend to; got 1": [
        {**PAINT, "map": "decoder 1 self", "keys": [1]}
    ],
    "edit 1.row: wanted a row of decoder 1 cross; got 99": [{**PAINT, "row": 99}],
    "edit 1.source: wanted a source, from 0 to 0; got 1": [
        {**PAINT, "map": "decoder 1 cross source 2"}
    ],
    "edit 1.token: wanted a token of the source; got 99": [{"edit": "mask_source", "token": 99}],
    "edit 1.source: wanted a source": [{"edit": "mask_source", "token": 1, "source": 1}],
    "edit 1.position: wanted the position of a token of the source; got 99": [
        {"edit": "replace_token", "position": 99, "token": "a"}
    ],
    "edit 1.position: wanted the position of a token of the output; got 99": [
        {"edit": "replace_token", "side": "output", "position": 99, "token": "a"}
    ],
    "edit 1.token: wanted one token; got 'the cat', which is": [
        {"edit": "replace_token", "position": 0, "token": "the cat"}
    ],
    "edit 1.token: wanted an id below": [{"edit": "replace_token", "position": 0, "token": 9999}],
    "edit 1.source: wanted one of 1 sources": [
        {"edit": "replace_token", "position": 0, "token": 7, "source": 1}
    ],
}


@pytest.mark.parametrize("message", REFUSED)
def test_edits_that_cannot_be_applied_are_refused(message):
    with pytest.raises((InvalidArgument, InvalidRecipe), match=message.replace("?", r"\?")):
        regard.look(
            made("transformer"), "the cat sat", output="a dog", edits=read_edits(REFUSED[message])
        )


def test_a_word_is_the_token_that_begins_with_a_space_where_it_is_no_token_alone():
    model = translator()
    vocabulary = model.sources[0]
    assert vocabulary.pieces(vocabulary.encode("red")) == ["r", "ed"]
    edit = {"edit": "replace_token", "position": 2, "token": "red"}
    look = regard.look(model, "the old cat sat", edits=[edit])
    assert look.sources[0].tokens[2] == "▁red"
    assert (
        look.output
        == regard.look(model, "the old cat sat", edits=[{**edit, "token": "▁red"}]).output
    )


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", ["transformer", "rnn", "conv"])
def test_a_look_under_edits_shows_the_output_that_predict_gives(kind, beam):
    model, text = made(kind), "the cat sat on the mat"
    edits = [
        ScaleHead(map="decoder 1 cross", head=0, factor=3.0),
        PaintRow(map="decoder 1 cross", row=1, keys=(0,), weights=(1.0,)),
        MaskSource(token=3),
        ReplaceToken(position=1, token="dog"),
        ReplaceToken(position=2, token="mat", side="output"),
    ]
    options = {"beam_size": beam, "max_length": 8, "min_length": 5}
    look = regard.look(model, text, edits=edits, **options)
    ((best,),) = model.outputs([text], edits=edits, scores=True, **options)
    plain = model.predict([text, text], **options)
    assert plain[0] == plain[1] != best.text
    assert (
        model.predict([text, "a catalogue of the dogs"], edits=edits, **options)[0]
        == best.text
        == look.output.text
    )
    assert look.output.scores == pytest.approx(best.log_probabilities, abs=1e-4)
    assert look.sources[0].tokens[1] == model.source.pieces([model.source.encode("dog")[0]])[0]
    assert look.output.tokens[2] == model.target.pieces(model.target.encode("mat"))[0]
    cross = look["decoder 1 cross"].weights()
    torch.testing.assert_close(cross[:, 1, 0], torch.ones(len(cross)))
    assert float(cross[:, :, 3].max()) == 0.0
    assert (
        regard.look(model, text, edits=[each.as_dict() for each in edits], **options).to_json()
        == look.to_json()
    )
    assert read_edits(json.loads(look.to_json())["edits"]) == tuple(edits)
    by_id = [
        replace(x, token=model.target.encode(x.token)[0]) if isinstance(x, ReplaceToken) else x
        for x in edits
    ]
    assert regard.look(model, text, edits=by_id, **options).output == look.output
    with pytest.raises(InvalidArgument, match="attributions: wanted a look without edits"):
        look.attributions()


def test_edits_of_a_language_model_count_its_text_as_output():
    model = language_model()
    edits = [
        ReplaceToken(position=0, token="dog", side="output"),
        PaintRow(map="decoder 2 self", head=1, row=3, keys=(1,), weights=(0.8,)),
    ]
    look = regard.look(model, "the cat sat", edits=edits, max_length=6)
    assert look.output.text == model.target.decode(
        [*model.target.encode("dog"), *model.target.encode("the cat sat")[1:]]
    ) + "".join(model.predict(["the cat sat"], edits=edits, max_length=6))
    assert float(look["decoder 2 self"].weights()[1, 3, 1]) == pytest.approx(0.8, abs=1e-6)
    with pytest.raises(InvalidArgument, match=r"edit 1.source: wanted one of 0 sources"):
        model.predict(["the cat"], edits=[ReplaceToken(position=0, token="dog")])
    running = language_model(context_length=8)
    with pytest.raises(
        InvalidArgument, match="max_length: wanted at most 8 tokens with the prompt"
    ):
        running.predict(["the cat"], edits=[SwitchHeadOff(map="decoder 1 self")], max_length=20)


def test_edits_of_captions_of_several_sources_and_of_labels():
    for kind in ("rnn", "transformer"):
        model = captioner(kind)
        pixels = torch.randint(0, 255, (32, 32, 3), dtype=torch.uint8).numpy()
        look = regard.look(model, pixels, edits=[MaskSource(token=5)])
        assert float(look["decoder 1 cross"].weights()[..., 5].max()) == 0.0
        with pytest.raises(
            InvalidArgument, match=r"edit 1.source: wanted a source of tokens; got 0"
        ):
            regard.look(model, pixels, edits=[ReplaceToken(position=0, token=3)])
    model = questioner(TEXT)
    edits = [
        MaskSource(token=9),
        PaintRow(map="decoder 2 cross source 2", head=1, row=0, keys=(1,), weights=(0.75,)),
        ReplaceToken(position=0, token="dog", source=1),
    ]
    look = regard.look(model, (pixels, "the cats concatenate"), edits=edits)
    assert float(look["decoder 2 cross source 2"].weights()[1, 0, 1]) == pytest.approx(
        0.75, abs=1e-6
    )
    assert float(look["decoder 2 cross source 1"].weights()[..., 9].max()) == 0.0
    assert look.sources[1].tokens[0] == "dog"
    assert model.predict([(pixels, "the cats concatenate")], edits=edits) == [look.output.text]
    labelled, text = classifier(), "the cat sat"
    replaced = regard.look(labelled, text, edits=[ReplaceToken(position=0, token="dog")])
    ((best,),) = labelled.outputs([text], edits=replaced.edits, scores=True)
    assert (best.text, best.score) == (
        replaced.output.label,
        pytest.approx(replaced.output.score, abs=1e-5),
    )
    with pytest.raises(InvalidArgument, match=r"edit 1.side: wanted 'source'"):
        labelled.predict([text], edits=[ReplaceToken(position=0, token="a", side="output")])


def test_a_model_without_vocabularies_is_looked_at_under_edits():
    """Its tokens are named by their ids, also those that an edit puts in place of others."""
    model = made("rnn").model
    look = regard.look(
        model, Tokens.of([[7, 8, 9, 2]]), edits=[ReplaceToken(position=1, token=5)], max_length=4
    )
    assert look.sources[0].tokens == ("7", "5", "9", "2")
    wanted = regard.look(model, Tokens.of([[7, 5, 9, 2]]), max_length=4)
    assert look.output.tokens == wanted.output.tokens
    torch.testing.assert_close(
        look["decoder 1 cross"].weights(), wanted["decoder 1 cross"].weights()
    )
