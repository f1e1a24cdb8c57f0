"""Several sources: an encoder for each, their memories concatenated."""

import pytest
import torch

import regard
from regard.core.errors import InvalidRecipe
from regard.core.sequence import MultiSource, Tokens
from regard.model.multi_source import MultiSourceEncoder, source_encoders
from support.models import VOCABULARY, WIDTH

TEXT = {"kind": "transformer", "dim": WIDTH, "heads": 2, "layers": 1, "ffn_dim": 16}
IMAGE = {"kind": "cnn", "dim": WIDTH, "channels": [4, 8]}
ENCODERS = {
    "label, text": ([{"kind": "label", "dim": WIDTH}, TEXT], [4, VOCABULARY]),
    "narrow label, text": ([{"kind": "label", "dim": 6}, TEXT], [4, VOCABULARY]),
    "image, text": ([IMAGE, TEXT], [VOCABULARY]),
    "text, text": ([{"kind": "rnn", "dim": WIDTH}, TEXT], [VOCABULARY, VOCABULARY]),
    "text with a [CLS] token, image": ([TEXT | {"cls_token": True}, IMAGE], [VOCABULARY]),
}
DECODER = {"kind": "transformer", "dim": WIDTH, "heads": 2, "layers": 1, "ffn_dim": 16}


def build(name, **parts):
    encoders, sizes = ENCODERS[name]
    torch.manual_seed(0)
    parts = parts or {"decoder": DECODER, "vocab_size": VOCABULARY}
    return regard.build({"encoders": encoders, "source_vocab_size": sizes, **parts}).eval()


def batch(name, rows=(0, 1, 2)):
    """Sources of different lengths, the same for each row whatever the batch."""
    lengths, parts = (3, 7, 1), []
    for number, encoder in enumerate(ENCODERS[name][0]):
        draws = [torch.Generator().manual_seed(10 * row + number) for row in rows]
        if encoder["kind"] == "label":
            parts.append(torch.tensor([row % 4 for row in rows]))
        elif encoder["kind"] == "cnn":
            parts.append(torch.stack([torch.rand(3, 16, 16, generator=draw) for draw in draws]))
        else:
            sizes = [lengths[(row + number) % 3] for row in rows]
            drawn = [
                torch.randint(4, VOCABULARY, (n,), generator=d)
                for n, d in zip(sizes, draws, strict=True)
            ]
            parts.append(Tokens.of([each.tolist() for each in drawn]))
    return MultiSource(tuple(parts))


@pytest.mark.parametrize("name", ENCODERS)
def test_a_memory_holds_the_states_of_each_source_in_order(name):
    model, sources = build(name), batch(name)
    memory = model.encode(sources)
    parts = [
        encoder(part)
        for encoder, part in zip(source_encoders(model.encoder), sources.parts, strict=True)
    ]
    assert isinstance(model.encoder, MultiSourceEncoder)
    for row in range(3):
        states = [
            project(part.states[row][part.mask[row]])
            for project, part in zip(model.encoder.projections, parts, strict=True)
        ]
        count = sum(map(len, states))
        assert memory.mask[row].tolist() == [True] * count + [False] * (
            memory.mask.shape[1] - count
        )
        torch.testing.assert_close(memory.states[row, :count], torch.cat(states))
        assert [int(span.lengths[row]) for span in memory.spans] == list(map(len, states))
    assert [span.grid for span in memory.spans] == [part.grid for part in parts]


@pytest.mark.parametrize("name", ENCODERS)
def test_an_example_in_a_batch_equals_the_example_alone(name):
    model = build(name)
    targets = torch.tensor([[1, 5, 6], [1, 7, 8], [1, 9, 4]])
    together = model(batch(name), targets)
    for row in range(3):
        torch.testing.assert_close(
            together[row : row + 1], model(batch(name, (row,)), targets[row : row + 1])
        )


@pytest.mark.parametrize(
    "kind", [{"kind": "rnn", "dim": WIDTH}, {"kind": "conv", "dim": WIDTH}, DECODER]
)
@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_steps_equal_the_forward_pass(name, kind):
    model = build(name, decoder=kind, vocab_size=VOCABULARY)
    targets = torch.tensor([[1, 5, 6], [1, 7, 8], [1, 9, 4]])
    whole, state = (
        model(batch(name), targets),
        model.decoder.start(model.encode(batch(name)), batch=3, capacity=3),
    )
    for step in range(3):
        logits, state = model.decoder.step(targets[:, step], state)
        torch.testing.assert_close(logits, whole[:, step])


@pytest.mark.parametrize("pool", ["mean", "last", "attention"])
def test_labels_of_several_sources(pool):
    model = build("image, text", pool={"kind": pool}, num_labels=3)
    together = model(batch("image, text"))
    alone = torch.cat([model(batch("image, text", (row,))) for row in range(3)])
    torch.testing.assert_close(together, alone)


def test_gradients_reach_every_encoder():
    model = build("narrow label, text")
    model(batch("narrow label, text"), torch.tensor([[1, 5, 6]] * 3)).sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.any()
        for parameter in model.encoder.parameters()
    )


REFUSED = {
    "one table": ({"encoders": [TEXT]}, "model.encoders: wanted two or more tables"),
    "no tables": ({"encoders": TEXT}, "model.encoders: wanted two or more tables"),
    "beside one": (
        {"encoders": [TEXT, TEXT], "encoder": TEXT},
        "model.encoders: wanted two or more tables, and no",
    ),
    "a wrong key": (
        {"encoders": [TEXT, TEXT | {"leyers": 2}]},
        "model.encoders.2.leyers: wanted a key",
    ),
    "an unknown kind": (
        {"encoders": [TEXT, {"kind": "tex"}]},
        "model.encoders.2.kind: wanted one of",
    ),
    "sizes": (
        {"encoders": [TEXT, IMAGE], "source_vocab_size": [9, 9]},
        "model.source_vocab_size: wanted 1 numbers",
    ),
    "an unused key": (
        {"encoders": [TEXT, TEXT | {"norm": "layer", "score": "additive", "kv_heads": 3}]},
        "model.encoders.2.",
    ),
    "a shared matrix of two dimensions": (
        {"encoders": [TEXT | {"dim": 8}, TEXT], "tie_embeddings": "all"},
        "model.encoders.1.dim: wanted the decoder's dim",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    table, message = REFUSED[name]
    with pytest.raises(InvalidRecipe, match=message):
        regard.build({"decoder": DECODER, "vocab_size": 9, **table})


def test_texts_share_one_matrix():
    label = {"kind": "label", "dim": 6}
    parts = {
        "encoders": [label, TEXT],
        "decoder": DECODER,
        "vocab_size": 9,
        "source_vocab_size": [3, 9],
    }
    model = regard.build({**parts, "tie_embeddings": "all"})
    _, text = source_encoders(model.encoder)
    assert text.embed_tokens is model.decoder.embed_tokens


def test_masked_tokens_need_a_single_encoder():
    with pytest.raises(
        InvalidRecipe, match=r"model\.head: wanted one encoder, of tokens; got one of tokens"
    ):
        regard.build({"encoders": [TEXT, TEXT], "head": "mlm", "vocab_size": 9})
