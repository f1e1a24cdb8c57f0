"""A pool reads the whole source: it takes states that have seen every token, or is refused."""

import json
import logging
import random
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

import regard
from regard.core.errors import InvalidRecipe
from regard.core.sequence import MultiSource, Packed, SequenceOffsets, Tokens
from regard.model.seq2seq import Classifier
from regard.recipe.recipe import Recipe
from support.forged import rehashed

RNN = {"kind": "rnn", "dim": 16}
TRANSFORMER = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 16}
CONV = {"kind": "conv", "dim": 16, "dilations": [1, 2]}
BAG = {"kind": "bag", "dim": 16}
ROWS = [[5, 6, 7, 8, 9], [6], [9, 8, 7]]
GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0" / "classifier"


def classifier(encoder: dict, pool: str) -> Classifier:
    torch.manual_seed(3)
    table = {"encoder": encoder, "pool": {"kind": pool}, "num_labels": 3, "source_vocab_size": 12}
    return regard.build(table).eval()


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_the_last_state_of_both_directions_is_that_of_pytorch(cell, layers):
    """Forward at the end and backward at the start: `h_n` of the last layer."""
    model = classifier({**RNN, "cell": cell, "layers": layers}, "last")
    encoder = model.encoder
    module = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell]
    theirs = module(16, 8, layers, batch_first=True, bidirectional=True)
    theirs.load_state_dict(encoder.rnn.state_dict())
    source = Tokens.of(ROWS)
    embedded = encoder.embed_tokens(source.ids)
    packed = pack_padded_sequence(embedded, source.lengths, True, enforce_sorted=False)
    _, hidden = theirs(packed)
    h_n = hidden[0] if cell == "lstm" else hidden
    wanted = torch.cat((h_n[-2], h_n[-1]), -1)  # (B, W)
    torch.testing.assert_close(model.pool(encoder(source)), wanted)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_changes_nothing(bidirectional, grad):
    model = classifier({**RNN, "bidirectional": bidirectional}, "last")
    with torch.set_grad_enabled(grad):
        together = model(Tokens.of(ROWS))
        alone = torch.cat([model(Tokens.of([row])) for row in ROWS])
        rows = Packed(
            torch.tensor([*ROWS[0], *ROWS[1], *ROWS[2]]),
            SequenceOffsets.of([len(row) for row in ROWS]),
        )
        packed = model.pool(model.encoder.forward_packed(rows))
        torch.testing.assert_close(together, alone)
        torch.testing.assert_close(model.classifier(packed), together)


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("pool", ["first", "last", "mean", "attention"])
@torch.no_grad()
def test_every_token_changes_what_a_pool_gives(pool, place):
    model = classifier(RNN, pool)
    changed = [11 if at == place else token for at, token in enumerate(ROWS[0])]
    difference = model(Tokens.of([ROWS[0]])) - model(Tokens.of([changed]))
    assert difference.abs().max() > 1e-5


def test_of_several_sources_the_last_state_is_that_of_the_last():
    torch.manual_seed(3)
    table = {"encoders": [TRANSFORMER, {**RNN, "dim": 12}], "pool": {"kind": "last"}}
    model = regard.build({**table, "num_labels": 3, "source_vocab_size": 12}).eval()
    one = Tokens.of(ROWS)
    two = Tokens.of(ROWS[::-1])
    with torch.no_grad():
        found = model.pool(model.encoder(MultiSource((one, two))))
        own = model.encoder.encoders[1](two)
        wanted = model.encoder.projections[1](own.summary)
    torch.testing.assert_close(found, wanted)


def test_a_label_that_is_the_first_of_25_words_is_learned():
    """The default encoder with pool "last" was at chance: its backward half had read one token."""
    chance = random.Random(1)
    rows = [[chance.randrange(8) for _ in range(25)] for _ in range(700)]
    labels = torch.tensor([row[0] for row in rows])
    source = Tokens.of(rows)
    torch.manual_seed(0)
    table = {"encoder": {"kind": "rnn", "dim": 48, "dropout": 0.0}, "pool": {"kind": "last"}}
    model = regard.build({**table, "num_labels": 8, "source_vocab_size": 8})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(90):
        chosen = torch.arange(step * 64, step * 64 + 64) % 600
        batch = Tokens(source.ids[chosen], source.lengths[chosen])
        loss = F.cross_entropy(model(batch), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        held_out = Tokens(source.ids[600:], source.lengths[600:])
        right = (model(held_out).argmax(-1) == labels[600:]).float().mean()
    assert right >= 0.95


BLIND = {
    "first, unidirectional rnn": ({**RNN, "bidirectional": False}, "first"),
    "first, causal transformer": ({**TRANSFORMER, "causal": True}, "first"),
    "first, causal convolution": ({**CONV, "causal": True}, "first"),
    "first, bag": (BAG, "first"),
    "last, bag": (BAG, "last"),
}


@pytest.mark.parametrize(("encoder", "pool"), BLIND.values(), ids=BLIND)
def test_a_pool_that_sees_one_token_is_refused(encoder, pool):
    with pytest.raises(InvalidRecipe, match=r"model\.pool\.kind.*'mean'.*one token"):
        classifier(encoder, pool)


@pytest.mark.parametrize(("encoder", "pool"), BLIND.values(), ids=BLIND)
def test_in_a_recipe_too(encoder, pool):
    recipe = {
        "data": {
            "train": "a.csv",
            "source": {"column": "text"},
            "target": {"kind": "label", "column": "label"},
        },
        "model": {"encoder": encoder, "pool": {"kind": pool}},
    }
    with pytest.raises(InvalidRecipe, match=r"model\.pool\.kind.*one token"):
        Recipe.of(recipe)


SEEING = {
    "first": [TRANSFORMER, CONV, {**TRANSFORMER, "cls_token": True}, RNN],
    "last": [RNN, {**RNN, "bidirectional": False}, {**TRANSFORMER, "causal": True}, CONV],
    "mean": [RNN, BAG, {**TRANSFORMER, "causal": True}],
    "attention": [RNN, BAG, {**CONV, "causal": True}],
}


@pytest.mark.parametrize("pool", SEEING)
def test_others_are_built(pool):
    for encoder in SEEING[pool]:
        assert isinstance(classifier(encoder, pool), Classifier)


def trained(folder: Path, pool: str) -> Path:
    """The checkpoint of a classifier with the default encoder."""
    recipe = {
        "data": {"source": {"tokenizer": "bytes"}, "target": {"kind": "label"}},
        "model": {"encoder": RNN, "pool": {"kind": pool}},
        "train": {"max_steps": 1, "warmup_steps": 0, "device": "cpu"},
    }
    rows = [("a b", "one"), ("b a", "two"), ("a a", "one"), ("b b", "two")]
    model = regard.train(recipe, folder / "run", data={"train": rows}, cache=folder / "cache")
    assert model.folder is not None
    return model.folder


def in_the_first_format(folder: Path) -> Path:
    """The checkpoint as versions wrote it whose pool read the last token in both directions."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format": 1}))
    return rehashed(folder)


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_a_checkpoint_that_computes_differently_now_says_so(pool, tmp_path, caplog):
    folder = trained(tmp_path, pool)
    caplog.clear()
    regard.load(folder)
    assert not caplog.records
    regard.load(in_the_first_format(folder))
    said = [record.getMessage() for record in caplog.records]
    if pool == "mean":
        assert not said
    else:
        assert len(said) == 1
        assert "pool" in said[0]
        assert "rain it again" in said[0]


def test_the_golden_classifier_loads_without_a_warning(caplog, tmp_path):
    with caplog.at_level(logging.WARNING):
        regard.load(shutil.copytree(GOLDEN, tmp_path / "golden"))
    assert not caplog.records
    assert json.loads((GOLDEN / "config.json").read_text())["format"] == 1
