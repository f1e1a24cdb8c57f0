"""`build`: every combination of parts, and the errors of invalid model tables."""

from itertools import product

import pytest
import torch

import regard
from regard.core.sequence import Tokens
from regard.model.build import DECODERS, ENCODERS, POOLS
from regard.model.transformer_config import TransformerConfig

SMALL = {"dim": 16, "layers": 2, "heads": 2, "ffn_dim": 24}
ENCODER = {
    "label": {"dim": 16},
    "bag": {"dim": 16},
    "rnn": {"dim": 16},
    "mlp": {"dim": 16, "ffn_dim": 24},
    "conv": {"dim": 16, "dilations": [1, 2]},
    "transformer": SMALL,
    "perceiver": SMALL | {"queries": 3},
    "cnn": {"dim": 16, "channels": [4, 8]},
    "cnn+transformer": {"channels": [4, 8], "transformer": SMALL},
    "vit": {"patch_size": 4, "transformer": SMALL},
}
DECODER = {"rnn": {"dim": 16}, "conv": {"dim": 16, "dilations": [1, 2]}, "transformer": SMALL}
TARGETS = torch.randint(30, (3, 5))


def source(kind: str):
    reads = ENCODERS[kind].made.reads
    if reads == "image":
        return torch.rand(3, 3, 8, 12)
    return torch.arange(3) if reads == "label" else Tokens.of([[1, 2, 3], [4], [5, 6]])


def test_every_registered_kind_is_listed():
    assert ENCODER.keys() == set(ENCODERS)
    assert DECODER.keys() == set(DECODERS)


@pytest.mark.parametrize(("encoder", "decoder"), list(product(ENCODER, DECODER)))
def test_any_encoder_with_any_decoder(encoder, decoder):
    model = regard.build(
        {
            "encoder": {"kind": encoder, **ENCODER[encoder]},
            "decoder": {"kind": decoder, **DECODER[decoder]},
            "vocab_size": 30,
        }
    )
    assert model(source(encoder), TARGETS).shape == (3, 5, 30)


@pytest.mark.parametrize("decoder", DECODER)
def test_a_decoder_alone_is_a_language_model(decoder):
    model = regard.build({"decoder": {"kind": decoder, **DECODER[decoder]}, "vocab_size": 30})
    assert model(None, TARGETS).shape == (3, 5, 30)


# Refused: tests/model/test_pools_read_all.py.
ONE_TOKEN = {("bag", "last"), ("bag", "first"), ("mlp", "last"), ("mlp", "first")}


@pytest.mark.parametrize(
    ("encoder", "pool"), [pair for pair in product(ENCODER, POOLS) if pair not in ONE_TOKEN]
)
def test_any_encoder_with_any_pool(encoder, pool):
    model = regard.build(
        {"encoder": {"kind": encoder, **ENCODER[encoder]}, "pool": {"kind": pool}, "num_labels": 4}
        | ({} if ENCODERS[encoder].made.reads == "image" else {"source_vocab_size": 30})
    )
    assert model(source(encoder)).shape == (3, 4)


def test_masked_language_model_ties_its_head():
    model = regard.build(
        {"encoder": {"kind": "transformer", **SMALL}, "head": "mlm", "vocab_size": 30}
    )
    assert model(source("transformer")).shape == (3, 3, 30)
    assert model.project.weight is model.encoder.embed_tokens.weight


def test_a_cls_token_is_not_a_position_of_the_source():
    encoder = {"kind": "transformer", **SMALL, "cls_token": True}
    tokens = source("transformer")
    model = regard.build({"encoder": encoder, "head": "mlm", "vocab_size": 30}).eval()
    assert model(tokens).shape == (3, 3, 30)
    pooled = regard.build(
        {"encoder": encoder, "pool": {"kind": "first"}, "num_labels": 4, "source_vocab_size": 30}
    ).eval()
    memory = pooled.encoder(tokens)
    assert memory.cls_tokens == 1
    assert memory.states.shape[1] == memory.mask.shape[1] == tokens.ids.shape[1] + 1
    assert torch.equal(pooled.pool(memory), memory.states[:, 0])
    pooled.encoder.cls_token.embedding.data += 1.0
    assert not torch.equal(
        pooled.encoder(tokens).states[:, 1:], memory.states[:, 1:]
    )  # other positions attend to it


@pytest.mark.parametrize(("tie", "matrices"), [("none", 3), ("target", 2), ("all", 1)])
def test_tied_embeddings_share_a_matrix(tie, matrices):
    table = {
        "encoder": {"kind": "transformer", **SMALL},
        "decoder": {"kind": "transformer", **SMALL},
        "vocab_size": 31,
    }
    model = regard.build({**table, "tie_embeddings": tie})
    shared = {id(p) for p in model.parameters() if p.shape == (31, 16)}
    assert len(shared) == matrices


TRANSFORMER = {"kind": "transformer", **SMALL}
REFUSED = {
    "unknown key": ({"decoder": {**TRANSFORMER, "dimm": 3}, "vocab_size": 9}, ["model.decoder.dimm: wanted a key of model.decoder; got an unknown one. Did you mean 'dim'?"]),
    "unknown kind": ({"decoder": {"kind": "transfomer"}, "vocab_size": 9}, ["model.decoder.kind: wanted one of rnn, conv, transformer; got 'transfomer'. Did you mean 'transformer'?"]),
    "no kind": ({"decoder": {"dim": 3}, "vocab_size": 9}, ["model.decoder: wanted a table with a kind; got {'dim': 3}. Kinds: rnn, conv, transformer."]),
    "unknown part": ({"decodr": TRANSFORMER, "decoder": TRANSFORMER, "vocab_size": 9}, ["model.decodr: wanted a key of model; got an unknown one. Did you mean 'decoder'?"]),
    "several problems at once": (
        {"encoder": {"kind": "rnn", "cell": "gruu", "dim": "wide"}, "decoder": {**TRANSFORMER, "heads": 0, "dropout": 1.5, "norm_first": 1}, "tie_embeddings": "some"},
        [
            "model.encoder.cell: wanted one of 'elman', 'gru', 'lstm'; got 'gruu'. Did you mean 'gru'?",
            "model.encoder.dim: wanted a whole number of at least 1; got 'wide'.",
            "model.decoder.heads: wanted a whole number of at least 1; got 0.",
            "model.decoder.dropout: wanted a number of at least 0 and below 1; got 1.5.",
            "model.decoder.norm_first: wanted true or false; got 1.",
            "model.tie_embeddings: wanted one of 'none', 'target', 'all'; got 'some'.",
        ],
    ),
    "heads that do not divide": ({"decoder": {**TRANSFORMER, "heads": 3}, "vocab_size": 9}, ["model.decoder.heads: wanted a divisor of dim = 16; got 3."]),
    "stages beside a backbone": ({"encoder": {"kind": "cnn", "channels": [4], "attention": True, "backbone": {"kind": "efficientnet-lite0"}}, "pool": {"kind": "mean"}, "num_labels": 2}, ["model.encoder.channels: wanted nothing here: the backbone has its own stages; got [4].", "model.encoder.attention: wanted nothing here"]),
    "a backbone's stride": ({"encoder": {"kind": "cnn", "backbone": {"kind": "efficientnet-lite0", "stride": 8}}, "pool": {"kind": "mean"}, "num_labels": 2}, ["model.encoder.backbone.stride: wanted 16 or 32; got 8."]),
    "an unknown backbone": ({"encoder": {"kind": "cnn", "backbone": {"kind": "resnet34"}}, "pool": {"kind": "mean"}, "num_labels": 2}, ["model.encoder.backbone.kind: wanted one of 'efficientnet-lite0', 'resnet18', 'resnet50'; got 'resnet34'."]),
    "a backbone without weights": ({"encoder": {"kind": "cnn", "backbone": {"kind": "resnet18"}}, "pool": {"kind": "mean"}, "num_labels": 2}, ["model.encoder.backbone.weights: wanted torchvision's file of resnet18; got none."]),
    "learned queries of a dim that is no multiple of 4": ({"encoder": {"kind": "cnn", "dim": 6, "queries": 2}, "decoder": {"kind": "rnn"}, "vocab_size": 9}, ["model.encoder.dim: wanted a multiple of 4 with queries"]),
    "zero learned queries": ({"encoder": {"kind": "cnn", "queries": 0}, "decoder": {"kind": "rnn"}, "vocab_size": 9}, ["model.encoder.queries: wanted"]),
    "learned queries before a pool": ({"encoder": {"kind": "cnn", "queries": 2}, "pool": {"kind": "mean"}, "num_labels": 2}, ["model.encoder.queries: wanted nothing here: nothing here reads the summary; got 2."]),
    "learned queries before a Transformer decoder": ({"encoder": {"kind": "cnn", "queries": 2}, "decoder": TRANSFORMER, "vocab_size": 9}, ["model.encoder.queries: wanted nothing here"]),
    "learned queries with a zero initial state": ({"encoder": {"kind": "cnn", "queries": 2}, "decoder": {"kind": "rnn", "initial_state": "zero"}, "vocab_size": 9}, ["model.encoder.queries: wanted nothing here"]),
    "nested": ({"encoder": {"kind": "vit", "transformer": {"widht": 1}}, "pool": {"kind": "mean"}, "num_labels": 2}, ["model.encoder.transformer.widht: "]),
    "rotary positions in a vision Transformer": ({"encoder": {"kind": "vit", "transformer": {**SMALL, "positions": "rotary"}}, "pool": {"kind": "mean"}, "num_labels": 2}, ["model.encoder.transformer.positions: wanted 'sinusoidal' (of row and column)"]),
    "cls_token in a causal encoder": ({"encoder": {**TRANSFORMER, "cls_token": True, "causal": True}, "pool": {"kind": "first"}, "num_labels": 2, "source_vocab_size": 9}, ["model.encoder.cls_token: wanted false in a causal encoder"]),
    "a distillation head without its token": ({"encoder": {"kind": "vit", "transformer": {**SMALL, "cls_token": True}}, "pool": {"kind": "first", "distillation_head": True}, "num_labels": 2}, ["model.pool.distillation_head: wanted an encoder with a distillation_token; got none."]),
    "a distillation head after a projection": ({"encoder": {"kind": "vit", "transformer": {**SMALL, "cls_token": True}}, "pool": {"kind": "first", "distillation_head": True, "projection": "tanh"}, "num_labels": 2}, ["model.pool.projection: wanted 'none' with a distillation_head; got 'tanh'."]),
    "cls_token in a decoder": ({"decoder": {**TRANSFORMER, "cls_token": True}, "vocab_size": 9}, ["model.decoder.cls_token: wanted nothing here"]),
    "concatenated ALiBi positions": ({"decoder": {**TRANSFORMER, "positions": "alibi", "position_mode": "concatenate"}, "vocab_size": 9}, ["model.decoder.position_mode: wanted 'add' unless positions are sinusoidal or learned"]),
    "scale_embeddings without embeddings": ({"encoder": {"kind": "cnn"}, "pool": {"kind": "mean"}, "num_labels": 2, "scale_embeddings": False}, ["model.scale_embeddings: wanted nothing here"]),
    "pool without an encoder": ({"pool": {"kind": "mean"}, "num_labels": 2}, ["model.pool: wanted an encoder for it to read; got none."]),
    "no output": ({"encoder": TRANSFORMER, "vocab_size": 9}, ["model: wanted one of decoder, pool and head; got none."]),
    "two outputs": ({"encoder": TRANSFORMER, "decoder": TRANSFORMER, "pool": {"kind": "mean"}, "num_labels": 2, "vocab_size": 9}, ["model: wanted one of decoder, pool and head; got decoder, pool."]),
    "no num_labels": ({"encoder": TRANSFORMER, "pool": {"kind": "mean"}, "source_vocab_size": 9}, ["model.num_labels: wanted the number of labels"]),
    "no vocab_size": ({"decoder": TRANSFORMER}, ["model.vocab_size: wanted the number of tokens"]),
    "masked language model with a causal encoder": ({"encoder": {**TRANSFORMER, "causal": True}, "head": "mlm", "vocab_size": 9}, ["model.encoder.causal: wanted false for a masked-token head; got true."]),
    "masked language model with a unidirectional encoder": ({"encoder": {"kind": "rnn", "bidirectional": False}, "head": "mlm", "vocab_size": 9}, ["model.encoder.bidirectional: wanted true"]),
    "masked language model over images": ({"encoder": {"kind": "cnn"}, "head": "mlm", "vocab_size": 9}, ["model.head: wanted one encoder, of tokens; got one of images."]),
    "attention without an encoder": ({"decoder": {"kind": "rnn", "attention": "luong", "score": "dot"}, "vocab_size": 9}, ["model.decoder.attention: wanted nothing here: without an encoder", "model.decoder.score: wanted nothing here: without an encoder"]),
    "dot score of two dims": ({"encoder": {"kind": "rnn", "dim": 8}, "decoder": {"kind": "rnn", "dim": 16, "score": "dot"}, "vocab_size": 9}, ["model.decoder.score: wanted equal dims for 'dot'; got 16 and 8."]),
    "tied embeddings of two vocabularies": ({"encoder": TRANSFORMER, "decoder": TRANSFORMER, "vocab_size": 9, "source_vocab_size": 8, "tie_embeddings": "all"}, ["model.source_vocab_size: wanted one vocabulary"]),
    "input feeding with Bahdanau attention": ({"encoder": TRANSFORMER, "decoder": {"kind": "rnn", "input_feeding": True}, "vocab_size": 9}, ["model.decoder.input_feeding: wanted false unless attention = 'luong'; got true."]),
    "context gate with Luong attention": ({"encoder": TRANSFORMER, "decoder": {"kind": "rnn", "attention": "luong", "context_gate": True}, "vocab_size": 9}, ["model.decoder.context_gate: wanted false unless attention = 'bahdanau'; got true."]),
    "a decoder that is not causal": ({"decoder": {**TRANSFORMER, "causal": False}, "vocab_size": 9}, ["model.decoder.causal: wanted nothing here"]),
    "score of a convolutional encoder": ({"encoder": {"kind": "conv", "score": "dot", "heads": 2}, "decoder": TRANSFORMER, "vocab_size": 9}, ["model.encoder.score: wanted nothing here", "model.encoder.heads: wanted nothing here"]),
    "max_positions of sinusoidal positions": ({"decoder": {**TRANSFORMER, "max_positions": 7}, "vocab_size": 9}, ["model.decoder.max_positions: wanted nothing here: only learned positions"]),
    "a score without attention": ({"encoder": TRANSFORMER, "decoder": {"kind": "rnn", "attention": "none", "score": "dot"}, "vocab_size": 9}, ["model.decoder.score: wanted nothing here: with attention = 'none'"]),
    "num_labels without a pool": ({"decoder": TRANSFORMER, "vocab_size": 9, "num_labels": 3}, ["model.num_labels: wanted nothing here"]),
    "source_vocab_size of an image encoder": ({"encoder": {"kind": "cnn"}, "pool": {"kind": "mean"}, "num_labels": 2, "source_vocab_size": 5}, ["model.source_vocab_size: wanted nothing here"]),
    "tie_embeddings of a classifier": ({"encoder": TRANSFORMER, "pool": {"kind": "mean"}, "num_labels": 2, "source_vocab_size": 5, "tie_embeddings": "none"}, ["model.tie_embeddings: wanted nothing here"]),
    "pool with heads that do not divide": ({"encoder": TRANSFORMER, "pool": {"kind": "attention", "heads": 3}, "num_labels": 2, "source_vocab_size": 5}, ["model.pool.heads: wanted a divisor of the encoder's dim = 16; got 3."]),
    "vocab_size that is no number": ({"decoder": TRANSFORMER, "vocab_size": "many"}, ["model.vocab_size: wanted a whole number"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    table, wanted = REFUSED[name]
    with pytest.raises(regard.InvalidRecipe) as caught:
        regard.build(table)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems) == len(wanted)
    for start in wanted:
        assert any(line.startswith(start) for line in lines), lines


def test_a_configuration_is_checked_when_it_is_made():
    with pytest.raises(regard.InvalidRecipe, match=r"heads: wanted a divisor of dim = 10; got 3"):
        TransformerConfig(dim=10, heads=3)
    with pytest.raises(
        regard.InvalidRecipe, match="layers: wanted a whole number of at least 1; got 0"
    ):
        TransformerConfig(layers=0)
