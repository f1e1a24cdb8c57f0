"""Sequences laid end to end: the same losses and gradients as padded ones, by PyTorch and by the kernels of a GPU."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import regard
from regard.api.dry_run import dry_run
from regard.api.train import epochs, prepared, train
from regard.checkpoint import store
from regard.core.errors import InvalidRecipe
from regard.core.sequence import SequenceOffsets, Tokens
from regard.data.batching import Batch, PackedCapacity, batches, pack_batch
from regard.kernels import triton_launch
from regard.kernels.attention import varlen
from regard.kernels.layers import conv_unfold, cross_entropy, residual_norm
from regard.kernels.layers.dropout import Dropout
from regard.kernels.layers.residual_norm import PendingResidual, add_norm
from regard.kernels.recurrent import rnn_cuda
from regard.recipe.recipe import Recipe
from regard.runtime.cuda import cuda_graphs, graphed_update
from regard.runtime.cuda.graphed_update import GraphedUpdate
from regard.training import epoch_batches, losses
from regard.training.losses import plain_token_loss, token_loss
from regard.training.objective import Objective
from support.poison import poison

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 24, "dropout": 0.0}
KINDS = {
    "as they are": {},
    "norms last": {"norm_first": False},
    "mean squares, gated": {"norm": "rms", "activation": "swiglu", "norm_input": True},
    "rotary, shared heads": {"positions": "rotary", "heads": 4, "kv_heads": 2, "qk_norm": True},
    "learned, beside": {"positions": "learned", "position_mode": "concatenate", "max_positions": 12},
    "bilinear, recomputed": {"score": "bilinear", "activation_checkpointing": True},
    "plain products": {"score": "dot", "positions": "none"},
}
CONV = {"kind": "conv", "dim": 16, "dilations": [1, 3], "dropout": 0.0}
ONE = CONV | {"dilations": [2]}
CONVOLUTIONS = {  # encoder and decoder
    "convolutions": (CONV, CONV),
    "causal, of two, two heads": (CONV | {"causal": True, "kernel_size": 2}, ONE | {"kernel_size": 2, "heads": 2}),
    "of an even number, farther than there are": (
        CONV | {"kernel_size": 4, "dilations": [2, 9]},
        ONE | {"kernel_size": 4},
    ),
    "bilinear, of one": (ONE | {"kernel_size": 1}, ONE | {"score": "bilinear"}),
    "convolutions, then a Transformer": (ONE, SIDE),
    "a Transformer, then convolutions": (SIDE, ONE),
    "a language model": (None, CONV),
}
RNN = {"kind": "rnn", "dim": 16, "dropout": 0.0}
DEEP, LOOKS = RNN | {"cell": "lstm", "layers": 2}, {"attention": "luong", "score": "bilinear"}
RECURRENCES = {
    "LSTMs": (DEEP, DEEP | LOOKS),
    "GRUs that look before": (RNN, RNN),
    "in one direction, with the summary": (RNN | {"bidirectional": False}, RNN | {"attention": "none"}),
    "fed": (RNN | {"cell": "elman"}, RNN | LOOKS | {"cell": "elman", "input_feeding": True}),
    "a recurrent language model": (None, DEEP),
}
SOURCES = [[7, 8, 9, 10, 11], [12], [13, 5, 6], [14, 15, 16, 17, 18, 19, 5]]
TARGETS = [[1, 5, 6, 2], [1, 7, 8, 9, 10, 2], [1, 2], [1, 12, 13, 2]]


@pytest.fixture(params=["plain", "kernels"])
def way(request, monkeypatch):
    """PyTorch's way, and through the kernels: on a GPU, else in Triton's interpreter."""
    if request.param == "plain":
        monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
        return
    pytest.importorskip("triton", reason="needs Triton, which is there for Linux on x86_64")
    if DEVICE == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("needs a GPU, or TRITON_INTERPRET=1 before Triton is imported")
        monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: True)
    poison(monkeypatch)
    monkeypatch.setattr(residual_norm, "PROGRAMS", 3)
    monkeypatch.setattr(residual_norm, "TILE", 128)
    monkeypatch.setattr(residual_norm, "BACKWARD_TILE", 32)
    monkeypatch.setattr(conv_unfold, "ROWS", 4)
    monkeypatch.setattr(conv_unfold, "COLUMNS", 16)
    monkeypatch.setattr(cross_entropy, "TILE", {"U": 2, "C": 16})
    monkeypatch.setattr(losses, "_chunk_size", lambda device: 20 * 6)


def batch(source: bool = True) -> Batch:
    targets = Tokens.of(TARGETS)
    count = sum(map(len, TARGETS)) - len(TARGETS)
    return Batch(Tokens.of(SOURCES) if source else None, targets, count, torch.arange(len(TARGETS)))


def room(*, filled: bool) -> PackedCapacity:
    return PackedCapacity((24, 20), (7, 5), 6, filled)


def gradients(model: nn.Module, given: Batch, objective: Objective) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    found, _, _ = objective(model, given.to(DEVICE))
    found.backward()
    return found.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def near(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert got.shape == wanted.shape
    assert (got.double() - wanted.double()).norm() <= tolerance * wanted.double().norm() + 1e-5


@pytest.mark.parametrize(("r_drop", "filled"), [(0.0, False), (2.0, True)], ids=["exact", "agreeing, filled"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_equals_padded(kind, r_drop, filled, way, monkeypatch):
    side = SIDE | KINDS[kind]
    model = regard.build({"encoder": side, "decoder": side, "vocab_size": 20, "tie_embeddings": "all"}).to(DEVICE)
    objective = Objective(label_smoothing=0.1, r_drop=r_drop)
    got, changes = gradients(model, pack_batch(batch(), room(filled=filled)), objective)
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted, expected = gradients(model, batch(), objective)
    near(got, wanted)
    for name, change in changes.items():
        near(change, expected[name])


@pytest.mark.parametrize("kind", CONVOLUTIONS | RECURRENCES)
def test_packed_others_equal_padded_ones(kind, way, monkeypatch):
    encoder, decoder = (CONVOLUTIONS | RECURRENCES)[kind]
    sides = (
        {"decoder": decoder} if encoder is None else {"encoder": encoder, "decoder": decoder, "tie_embeddings": "all"}
    )
    model = regard.build(sides | {"vocab_size": 20}).to(DEVICE)
    objective, given = Objective(label_smoothing=0.1), batch(source=encoder is not None)
    monkeypatch.setattr(varlen, "MAX_HELD_DIM", 8)  # heads of 16 are walked
    monkeypatch.setattr(rnn_cuda, "can_launch", triton_launch.can_launch)  # in float32 too
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    got, changes = gradients(model, pack_batch(given, room(filled=True)), objective)
    for module in (triton_launch, rnn_cuda):
        monkeypatch.setattr(module, "can_launch", lambda *tensors: False)
    wanted, expected = gradients(model, given, objective)
    near(got, wanted)
    for name, change in changes.items():
        near(change, expected[name])


def test_dropout_drops_layers_and_not_attention_weights(way, monkeypatch):
    """With all layer outputs dropped, only cross-attention is left, packed or padded."""
    torch.manual_seed(0)
    model = regard.build({"encoder": ONE, "decoder": CONV, "vocab_size": 20}).to(DEVICE)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 1.0
    got, _ = gradients(model, pack_batch(batch(), room(filled=True)), Objective())
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted, _ = gradients(model, batch(), Objective())
    near(got, wanted)


def test_a_packed_language_model_equals_a_padded_one(way, monkeypatch):
    model = regard.build({"decoder": SIDE, "vocab_size": 20}).to(DEVICE)
    got, changes = gradients(model, pack_batch(batch(source=False), room(filled=True)), Objective())
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted, expected = gradients(model, batch(source=False), Objective())
    near(got, wanted)
    for name, change in changes.items():
        near(change, expected[name])


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["relu", "gelu", "gelu_tanh", "swiglu", "conv", "rnn", "rnn that looks before"])
def test_half_precision_is_near_the_whole(kind):
    """All gradients together, of kernels in bfloat16 and of PyTorch's in float32."""
    side = SIDE | {"dim": 64, "heads": 4, "ffn_dim": 96, "activation": kind, "layers": 2}
    side = CONV | {"dim": 320} if kind == "conv" else side  # whose one head is walked
    side = DEEP | {"dim": 320} if "rnn" in kind else side
    looks = LOOKS if kind == "rnn" else {}  # at few keys, with one wide head
    model = regard.build({"encoder": side, "decoder": side | looks, "vocab_size": 20, "tie_embeddings": "all"}).to(
        DEVICE
    )
    _, wanted = gradients(model, batch(), Objective(label_smoothing=0.1))
    with torch.autocast(DEVICE, torch.bfloat16):
        _, found = gradients(model, pack_batch(batch(), room(filled=True)), Objective(label_smoothing=0.1))
    near(torch.cat([x.flatten() for x in found.values()]), torch.cat([x.flatten() for x in wanted.values()]), 2e-2)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_go_another_way(causal):
    ends, kind = SequenceOffsets.of([200, 3, 0, 130]).to(DEVICE), varlen.HeadLayout(4, 2, 16, 0.25, causal)
    asked = torch.randn(333, 8 * 16, device=DEVICE, requires_grad=True)
    into = torch.randn(333, 64, device=DEVICE)
    wanted = varlen.attend_padded(varlen.PackedAttentionSpec(kind, asked, None, ends, ends))
    expected = torch.autograd.grad(wanted, asked, into)[0]
    got = varlen.attend(varlen.PackedAttentionSpec(kind, asked.bfloat16(), None, ends, ends))
    near(got, wanted, 1e-2)
    near(torch.autograd.grad(got, asked, into.bfloat16())[0], expected, 1e-2)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize(
    "kind", [varlen.HeadLayout(2, 2, 128, 0.1), varlen.HeadLayout(4, 2, 256, 0.1, True)], ids=["alone", "shared"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_a_program_cannot_hold_goes_another_way(dtype, kind):
    ends, dim = SequenceOffsets.of([128, 3, 0, 70]).to(DEVICE), (kind.heads + 2 * kind.kv_heads) * kind.dim
    asked = torch.randn(201, dim, device=DEVICE, requires_grad=True)
    into = torch.randn(201, kind.heads * kind.dim, device=DEVICE)
    wanted = varlen.attend_padded(varlen.PackedAttentionSpec(kind, asked, None, ends, ends))
    expected = torch.autograd.grad(wanted, asked, into)[0]
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    got = varlen.attend(varlen.PackedAttentionSpec(kind, asked.to(dtype), None, ends, ends))
    near(got, wanted, tolerance)
    near(torch.autograd.grad(got, asked, into.to(dtype))[0], expected, tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_wide_heads_are_walked(heads, causal, way, monkeypatch):
    """Parts of 16 numbers of 40; sequences of every tile, one without keys, and one without queries."""
    monkeypatch.setattr(varlen, "MAX_HELD_DIM", 32)
    monkeypatch.setattr(varlen, "LOOP_STEP", 16)
    monkeypatch.setattr(varlen, "TILES", (16, 32))
    ends, around = SequenceOffsets.of([3, 20, 5, 0, 7]).to(DEVICE), SequenceOffsets.of([9, 17, 0, 4, 32]).to(DEVICE)
    around = ends if causal else around
    kind = varlen.HeadLayout(heads, heads, 40, 0.3, causal)
    asked = torch.randn(35, heads * 40, device=DEVICE, requires_grad=True)
    known = torch.randn(len(around.positions), 2 * heads * 40, device=DEVICE, requires_grad=True)
    into = torch.randn(35, heads * 40, device=DEVICE)
    got = varlen.attend(varlen.PackedAttentionSpec(kind, asked, known, ends, around))
    found = torch.autograd.grad(got, (asked, known), into)
    wanted = varlen.attend_padded(varlen.PackedAttentionSpec(kind, asked, known, ends, around))
    for mine, theirs in zip((got, *found), (wanted, *torch.autograd.grad(wanted, (asked, known), into)), strict=True):
        near(mine, theirs)


def test_heads_that_share_keys_are_not_walked(way, monkeypatch):
    monkeypatch.setattr(varlen, "MAX_HELD_DIM", 8)
    monkeypatch.setattr(varlen._Short, "apply", lambda *_: pytest.fail("walked"))
    ends = SequenceOffsets.of([5, 3]).to(DEVICE)
    kind, asked = varlen.HeadLayout(2, 1, 16, 1.0), torch.ones(8, 64, device=DEVICE)
    same = varlen.attend(varlen.PackedAttentionSpec(kind, asked, None, ends, ends))
    near(same, torch.ones(8, 32, device=DEVICE))


@pytest.mark.parametrize("taps", [range(-4, 1, 2), range(-1, 3), range(1), range(-40, 41, 20)], ids=str)
def test_windows(taps, way):
    """Against a definition written out position by position."""
    lengths = [5, 0, 1, 30, 7]
    x = torch.randn(43, 20, device=DEVICE, requires_grad=True)
    got = conv_unfold.unfold(x, conv_unfold.Neighbors.of(SequenceOffsets.of(lengths).to(DEVICE)), taps)
    wanted = []
    for rows in x.split(lengths):
        for place in range(len(rows)):
            seen = [rows[place + tap] if 0 <= place + tap < len(rows) else 0 * rows[0] for tap in taps]
            wanted.append(torch.cat(seen))
    assert torch.equal(got, torch.stack(wanted))
    into = torch.randn_like(got)
    near(torch.autograd.grad(got, x, into)[0], torch.autograd.grad(torch.stack(wanted), x, into)[0])


@pytest.mark.parametrize("side", [SIDE, CONV, DEEP], ids=["transformer", "conv", "rnn"])
def test_others_in_the_batch_change_nothing(side, way):
    """What a sequence's states are depends on no neighbour, and on nothing that comes later."""
    model = regard.build({"decoder": side, "vocab_size": 20}).to(DEVICE).eval()
    whole = pack_batch(batch(source=False), room(filled=False)).targets.to(DEVICE)
    alone = pack_batch(
        Batch(None, Tokens.of(TARGETS[1:2]), 5, torch.arange(1)), room(filled=False)
    ).targets.to(DEVICE)  # fmt: skip
    near(model.decoder.hidden_packed(whole, None)[3:8], model.decoder.hidden_packed(alone, None))
    later = replace(whole, ids=torch.where(torch.arange(12, device=DEVICE) < 5, whole.ids, 19))
    assert torch.equal(model.decoder.hidden_packed(later, None)[:5], model.decoder.hidden_packed(whole, None)[:5])


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("added", [True, False], ids=["sum", "as it is"])
def test_sums_and_norms(kind, added, way, monkeypatch):
    norm = (nn.LayerNorm if kind == "layer" else nn.RMSNorm)(12).to(DEVICE)
    nn.init.normal_(norm.weight)
    x, change = (torch.randn(3, 5, 12, device=DEVICE, requires_grad=True) for _ in range(2))
    given = PendingResidual(x, change if added else None)
    into = [torch.randn(3, 5, 12, device=DEVICE) for _ in range(2)]
    wrt = [x, *([change] if added else []), *norm.parameters()]
    got = add_norm(given, Dropout(0.0), norm)
    found = torch.autograd.grad(got, wrt, into)
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted = add_norm(given, Dropout(0.0), norm)
    for mine, theirs in zip((*got, *found), (*wanted, *torch.autograd.grad(wanted, wrt, into)), strict=True):
        near(mine, theirs)


def test_dropout_drops_the_same_in_the_backward(way):
    norm, dropout = nn.LayerNorm(64).to(DEVICE), Dropout(0.25)
    x, change = torch.zeros(40, 64, device=DEVICE), torch.ones(40, 64, device=DEVICE, requires_grad=True)
    total, _ = add_norm(PendingResidual(x, change), dropout, norm)
    total.sum().backward()
    assert torch.equal(change.grad, total.detach())
    assert 0.2 < (total == 0).float().mean() < 0.3
    assert total.max().item() == pytest.approx(4 / 3, rel=1e-4)
    again, _ = add_norm(PendingResidual(x, change), dropout, norm)
    assert not torch.equal(total, again)


@pytest.mark.parametrize("widest", [varlen.MAX_HELD_DIM, 4], ids=["held", "walked"])
def test_attention_drops_the_same_in_the_backward(widest, way, monkeypatch):
    """Values that are the unit vectors make outputs weights; their gradient sums what was let through."""
    monkeypatch.setattr(varlen, "MAX_HELD_DIM", widest)
    n = 5
    ends, kind = SequenceOffsets.of([n, n]).to(DEVICE), varlen.HeadLayout(1, 1, n, 1.0, False, 0.5)
    asked = torch.zeros(2 * n, n, device=DEVICE)
    value = torch.eye(n, device=DEVICE).repeat(2, 1).requires_grad_()
    known = torch.cat((torch.zeros_like(value), value), 1)
    out = varlen.attend(varlen.PackedAttentionSpec(kind, asked, known, ends, ends))
    out.sum().backward()
    let = torch.cat([part.detach().sum(0) for part in out.chunk(2)])
    near(value.grad.mean(1), let)
    assert set(out.detach().mul(n).round(decimals=3).unique().tolist()) <= {0.0, 2.0}
    assert 0 < (out == 0).sum() < out.numel()


@pytest.mark.parametrize("r_drop", [0.0, 1.5])
def test_the_loss_of_rows_that_count(r_drop, way, monkeypatch):
    project = regard.build({"decoder": SIDE, "vocab_size": 40}).to(DEVICE).decoder.project
    states = torch.randn(14, 16, device=DEVICE, requires_grad=True)
    gold = torch.tensor([3, 3, -1, -1, 39, 39, 0, 0, 20, 20, 1, 1, -1, -1], device=DEVICE)
    wrt = [states, project.weight, project.bias]
    got = token_loss(states, project, gold, label_smoothing=0.2, r_drop=r_drop)
    found = torch.autograd.grad(got, wrt)
    there = gold >= 0
    wanted = plain_token_loss(states[there], project, gold[there], label_smoothing=0.2, r_drop=r_drop)
    for mine, theirs in zip((got, *found), (wanted, *torch.autograd.grad(wanted, wrt)), strict=True):
        near(mine, theirs)


def test_ends():
    ends = SequenceOffsets.of([3, 0, 2])
    assert ends.cu_seqlens.tolist() == [0, 3, 3, 5]
    assert ends.positions.tolist() == [0, 1, 2, 0, 1]
    assert ends.mask.tolist() == [[True, True, True], [False] * 3, [True, True, False]]
    x = torch.arange(5.0)[:, None]
    assert torch.equal(ends.packing.pack(ends.pad(x)), x)
    assert ends.sequence_ids.tolist() == [0, 0, 0, 2, 2]
    assert ends.remaining.tolist() == [2, 1, 0, 1, 0]
    assert ends.duplicate().cu_seqlens.tolist() == [0, 3, 3, 5, 8, 8, 10]


def test_the_first_batch_is_shown_as_text(tmp_path):
    examples = [line for line in dry_run(Recipe.of(LEARNED), tmp_path).splitlines() if line.startswith("  target")]
    assert len(examples) == 3
    words = Path(LETTERS).read_text().splitlines()
    assert all(line.split()[1] in words and line.endswith("</s>)") for line in examples)


def test_what_cannot_be_packed_is_refused():
    table = {
        "data": {"synthetic": "dates", "source": {"tokenizer": "characters"}, "target": {"tokenizer": "characters"}},
        "model": {"encoder": SIDE | {"positions": "alibi"}, "decoder": SIDE},
        "train": {"packed": True},
    }
    with pytest.raises(InvalidRecipe, match=r"train\.packed: wanted false with model\.encoder\.positions = 'alibi'"):
        Recipe.of(table)
    table["model"] = {"encoder": SIDE, "decoder": CONV | {"score": "additive"}}
    with pytest.raises(InvalidRecipe, match=r"train\.packed: wanted false with model\.decoder\.score = 'additive'"):
        Recipe.of(table)
    table["model"] = {"encoder": {"kind": "rnn"}, "decoder": SIDE}
    kinds = r"model\.encoder\.kind = 'rnn' and model\.decoder\.kind = 'transformer'"
    with pytest.raises(InvalidRecipe, match=rf"train\.packed: wanted false with {kinds}"):
        Recipe.of(table)
    table["model"] = {"encoder": {"kind": "bag"}, "decoder": SIDE}
    with pytest.raises(InvalidRecipe, match=r"train\.packed: wanted false with model\.encoder\.kind = 'bag'"):
        Recipe.of(table)


LETTERS = str(Path(__file__).parents[1] / "fixtures" / "letters.txt")  # to be copied
PAIRS = {"source": {"tokenizer": "bytes"}, "target": {"tokenizer": "bytes"}} | {
    split: [LETTERS, LETTERS] for split in ("train", "valid")
}


def test_recurrent_steps_on_padding_get_a_warning(tmp_path, monkeypatch):
    lines = tmp_path / "lines.txt"
    lines.write_text("ab\n" * 200 + "a long one " * 9)
    data = {side: {"tokenizer": "bytes"} for side in ("source", "target")} | {"train": [str(lines)] * 2}
    table = {"data": data, "model": {"encoder": RNN, "decoder": RNN}, "train": {"packed": True, "batch_tokens": 256}}
    recipe = Recipe.of(table)
    found = prepared(recipe, tmp_path / "cache").train
    on_gpu = replace(epochs(recipe, found), device="cuda")
    assert "longest, 100: " in on_gpu.padding_warning()
    monkeypatch.setattr(epoch_batches, "WASTE", 100)
    assert on_gpu.padding_warning() is None


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    recipe = Recipe.of({"data": PAIRS, "model": {"encoder": SIDE, "decoder": SIDE}, "train": {}})
    found = prepared(recipe, tmp_path_factory.mktemp("cache")).train
    assert found is not None
    return found


@pytest.mark.parametrize("filled", [False, True], ids=["exact", "filled"])
def test_an_epoch_lays_every_example_once(corpus, filled):
    room = PackedCapacity.of(corpus, 160, filled=filled)
    made = list(batches(corpus, budget=160, seed=3, epoch=1, capacity=room))
    rows = torch.cat([each.rows for each in made])
    assert sorted(rows.tolist()) == list(range(len(corpus)))
    for each in made:
        assert len(each.source.ids) <= room.positions[0]
        assert len(each.targets.ids) <= room.positions[1]
        assert int((each.targets.gold >= 0).sum()) == each.tokens
    shapes = {(each.source.ids.shape, each.targets.ids.shape, each.source.offsets.cu_seqlens.shape) for each in made}
    assert (len(shapes) == 1) == filled
    used = sum(each.tokens for each in made[:-1]) / (len(made) - 1)
    assert used > 0.9 * room.positions[1]  # the room is used
    again = batches(corpus, budget=160, seed=3, epoch=1, capacity=room, start=2)
    assert torch.equal(next(again).targets.ids, made[2].targets.ids)


def test_a_batch_has_no_more_sequences_than_there_is_room_for(corpus):
    usual = PackedCapacity.of(corpus, 160, filled=True)
    full = replace(usual, rows=usual.fillers((0, 0)) + 1)
    made = list(batches(corpus, budget=160, seed=3, epoch=1, capacity=full))
    assert {len(side.offsets.cu_seqlens) for each in made for side in (each.source, each.targets)} == {full.rows + 1}
    assert sorted(torch.cat([each.rows for each in made]).tolist()) == list(range(len(corpus)))
    fewer = max(len(each.rows) for each in made)
    assert fewer < max(len(each.rows) for each in batches(corpus, budget=160, seed=3, epoch=1, capacity=usual))


def test_ranks_lay_the_same_examples(corpus):
    room = PackedCapacity.of(corpus, 160)
    whole = list(batches(corpus, budget=160, seed=3, epoch=0, capacity=room))
    parts = [list(batches(corpus, budget=160, seed=3, epoch=0, capacity=room, rank=rank, world=2)) for rank in (0, 1)]
    rows = [each.rows for part in parts for each in part if not each.borrowed]
    assert sorted(torch.cat(rows).tolist()) == sorted(torch.cat([each.rows for each in whole]).tolist())


TRAIN = {
    "max_steps": 9,
    "batch_tokens": 256,
    "validate_every": 3,
    "warmup_steps": 2,
    "log_samples": 0,
    "packed": True,
    "device": "cpu",
}
LEARNED = {"data": PAIRS, "model": {"encoder": SIDE | {"dropout": 0.1}, "decoder": SIDE}, "train": TRAIN}


def weights(run):
    return load_file(store.step_folder(run, 9) / "model.safetensors")


@pytest.mark.parametrize("side", [SIDE, CONV, RNN], ids=["transformer", "conv", "rnn"])
def test_a_packed_run_resumes_as_if_it_had_not_stopped(side, tmp_path):
    learned = LEARNED | {"model": {"encoder": side | {"dropout": 0.1}, "decoder": side}}
    train(learned, tmp_path / "whole", cache=tmp_path)
    train(learned | {"train": TRAIN | {"max_steps": 3}}, tmp_path / "parts", cache=tmp_path)
    train(learned, tmp_path / "parts", cache=tmp_path, resume=True)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    logged = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    losses_ = [line["loss"] for line in logged if line["event"] == "validation"]
    assert losses_[-1] < losses_[0]


def test_a_replay_computes_the_current_batch(tmp_path, monkeypatch):
    """A recording for machines without a GPU: it computes again, from what stands in its inputs by then."""
    right, recorded = PackedCapacity.of, []
    monkeypatch.setattr(
        PackedCapacity, "of", staticmethod(lambda corpus, budget, **_: right(corpus, budget, filled=True))
    )
    train(LEARNED, tmp_path / "launched", cache=tmp_path)

    def static(batch):
        recorded.append(batch)
        return right_batch(replace(batch, source=copied(batch.source), targets=copied(batch.targets)))

    right_batch, enabled = graphed_update.RecordedBatch, property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(graphed_update, "RecordedBatch", static)
    monkeypatch.setattr(cuda_graphs, "capture", lambda work, **_: work)
    monkeypatch.setattr(GraphedUpdate, "enabled", enabled, raising=False)
    train(LEARNED | {"train": TRAIN | {"cuda_graphs": True}}, tmp_path / "replayed", cache=tmp_path)
    assert len(recorded) == 1
    launched, replayed = weights(tmp_path / "launched"), weights(tmp_path / "replayed")
    assert all(torch.equal(launched[name], replayed[name]) for name in launched)


def copied(side):
    ends = SequenceOffsets(side.offsets.cu_seqlens.clone(), side.offsets.positions.clone(), side.offsets.max_length)
    return replace(side, ids=side.ids.clone(), offsets=ends, gold=None if side.gold is None else side.gold.clone())
