"""Packed sequences: the same losses and gradients as padded ones, in PyTorch and in Triton kernels."""

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
from regard.api.train import epochs, prepare, train
from regard.checkpoint import store
from regard.core.errors import InvalidRecipe
from regard.core.sequence import PackedVectors, SequenceOffsets, Tokens, Vectors
from regard.data.batching import Batch, PackedCapacity, batches, pack_batch
from regard.kernels import cuda_graphs, triton_launch
from regard.kernels.attention import varlen
from regard.kernels.layers import conv_unfold, cross_entropy, residual_norm
from regard.kernels.layers.dropout import Dropout
from regard.kernels.layers.residual_norm import PendingResidual, add_norm
from regard.kernels.recurrent import rnn_cuda
from regard.recipe.recipe import Recipe
from regard.tasks import losses
from regard.tasks.losses import plain_token_loss, token_loss
from regard.tasks.objective import Objective
from regard.training import epoch_batches, graphed_update
from regard.training.graphed_update import GraphedUpdate
from support.poison import poison

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 24, "dropout": 0.0}
KINDS = {
    "default": {},
    "post-norm": {"norm_first": False},
    "RMSNorm, SwiGLU": {"norm": "rms", "activation": "swiglu", "norm_input": True},
    "rotary, grouped heads": {"positions": "rotary", "heads": 4, "kv_heads": 2, "qk_norm": True},
    "learned positions, concatenated": {
        "positions": "learned",
        "position_mode": "concatenate",
        "max_positions": 12,
    },
    "bilinear, activation checkpointing": {"score": "bilinear", "activation_checkpointing": True},
    "no biases, rms_offset, geglu": {
        "norm": "rms_offset",
        "activation": "geglu",
        "attention_bias": "none",
        "ffn_bias": False,
        "head_dim": 6,
    },
    "biases of queries, keys and values": {
        "attention_bias": "qkv",
        "positions": "rotary",
        "rotary_base": 20.0,
    },
    "a sliding window": {"positions": "rotary", "sliding_window": 3},
    "dot products": {"score": "dot", "positions": "none"},
}
CONV = {"kind": "conv", "dim": 16, "dilations": [1, 3], "dropout": 0.0}
ONE = CONV | {"dilations": [2]}
CONVOLUTIONS = {  # encoder and decoder
    "convolutions": (CONV, CONV),
    "causal, kernel size 2, two heads": (
        CONV | {"causal": True, "kernel_size": 2},
        ONE | {"kernel_size": 2, "heads": 2},
    ),
    "even kernel size, dilation beyond the length": (
        CONV | {"kernel_size": 4, "dilations": [2, 9]},
        ONE | {"kernel_size": 4},
    ),
    "bilinear, kernel size 1": (ONE | {"kernel_size": 1}, ONE | {"score": "bilinear"}),
    "convolutions, then a Transformer": (ONE, SIDE),
    "a Transformer, then convolutions": (SIDE, ONE),
    "a language model": (None, CONV),
}
RNN = {"kind": "rnn", "dim": 16, "dropout": 0.0}
DEEP, LUONG = RNN | {"cell": "lstm", "layers": 2}, {"attention": "luong", "score": "bilinear"}
RECURRENCES = {
    "LSTMs": (DEEP, DEEP | LUONG),
    "GRUs, Bahdanau attention": (RNN, RNN),
    "unidirectional, without attention": (
        RNN | {"bidirectional": False},
        RNN | {"attention": "none"},
    ),
    "input feeding": (
        RNN | {"cell": "elman"},
        RNN | LUONG | {"cell": "elman", "input_feeding": True},
    ),
    "a recurrent language model": (None, DEEP),
}
SOURCES = [[7, 8, 9, 10, 11], [12], [13, 5, 6], [14, 15, 16, 17, 18, 19, 5]]
TARGETS = [[1, 5, 6, 2], [1, 7, 8, 9, 10, 2], [1, 2], [1, 12, 13, 2]]


@pytest.fixture(params=["plain", "kernels"])
def implementation(request, monkeypatch):
    """PyTorch, and the Triton kernels: on a GPU, else in Triton's interpreter."""
    if request.param == "plain":
        monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
        return
    pytest.importorskip("triton", reason="needs Triton, which exists for Linux on x86_64")
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
    monkeypatch.setattr(losses, "chunk_size", lambda device: 20 * 6)


def batch(source: bool = True) -> Batch:
    targets = Tokens.of(TARGETS)
    count = sum(map(len, TARGETS)) - len(TARGETS)
    return Batch(Tokens.of(SOURCES) if source else None, targets, count, torch.arange(len(TARGETS)))


def capacity_of(*, filled: bool) -> PackedCapacity:
    return PackedCapacity((24, 20), (7, 5), 6, filled)


def gradients(
    model: nn.Module, given: Batch, objective: Objective
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    result = objective(model, given.to(DEVICE)).loss
    result.backward()
    return result.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_near(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert got.shape == wanted.shape
    assert (got.double() - wanted.double()).norm() <= tolerance * wanted.double().norm() + 1e-5


USUAL = (
    "default",
    "a sliding window",
)  # the others with R-Drop take minutes with the interpreter of Triton


@pytest.mark.parametrize(
    ("kind", "r_drop", "filled"),
    [pytest.param(kind, 0.0, False, id=f"{kind}-exact") for kind in KINDS]
    + [
        pytest.param(
            kind,
            2.0,
            True,
            id=f"{kind}-R-Drop, filled",
            marks=() if kind in USUAL else pytest.mark.slow,
        )
        for kind in KINDS
    ],
)
def test_packed_equals_padded(kind, r_drop, filled, implementation, monkeypatch):
    side = SIDE | KINDS[kind]
    plain = side.get("attention_bias") is None
    options = {"tie_embeddings": "all", "output_bias": plain, "scale_logits": not plain}
    causal = {"causal": True} if "sliding_window" in side else {}
    model = regard.build(
        {"encoder": side | causal, "decoder": side, "vocab_size": 20} | options
    ).to(DEVICE)
    objective = Objective(label_smoothing=0.1, r_drop=r_drop)
    got, changes = gradients(model, pack_batch(batch(), capacity_of(filled=filled)), objective)
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted, expected = gradients(model, batch(), objective)
    assert_near(got, wanted)
    for name, change in changes.items():
        assert_near(change, expected[name])


@pytest.mark.parametrize("kind", CONVOLUTIONS | RECURRENCES)
def test_packed_convolutions_and_rnns_equal_padded_ones(kind, implementation, monkeypatch):
    encoder, decoder = (CONVOLUTIONS | RECURRENCES)[kind]
    sides = (
        {"decoder": decoder}
        if encoder is None
        else {"encoder": encoder, "decoder": decoder, "tie_embeddings": "all"}
    )
    model = regard.build(sides | {"vocab_size": 20}).to(DEVICE)
    objective, given = Objective(label_smoothing=0.1), batch(source=encoder is not None)
    monkeypatch.setattr(varlen, "MAX_HELD_DIM", 8)  # kernels loop over heads of 16
    monkeypatch.setattr(rnn_cuda, "can_launch", triton_launch.can_launch)  # in float32 too
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    got, changes = gradients(model, pack_batch(given, capacity_of(filled=True)), objective)
    for module in (triton_launch, rnn_cuda):
        monkeypatch.setattr(module, "can_launch", lambda *tensors: False)
    wanted, expected = gradients(model, given, objective)
    assert_near(got, wanted)
    for name, change in changes.items():
        assert_near(change, expected[name])


LINEAR = {"kind": "vectors"}
WIDE = {"kind": "vectors", "kernel": 4}
OF_VECTORS = {  # encoder, its input module, and decoder
    "transformers": (SIDE, LINEAR, SIDE),
    "rotary, grouped heads": (SIDE | KINDS["rotary, grouped heads"], WIDE, SIDE),
    "the last vector again": (SIDE, WIDE | {"padding": "end"}, SIDE),
    "learned positions": (SIDE | KINDS["learned positions, concatenated"], LINEAR, SIDE),
    "convolutions": (CONV, WIDE, CONV),
    "a bilinear score": (SIDE | {"score": "bilinear"}, WIDE, ONE),
    "an MLP": ({"kind": "mlp", "dim": 16, "ffn_dim": 24, "dropout": 0.0}, WIDE, SIDE),
    "RNNs": (DEEP, WIDE, RNN),
}
VECTORS = [torch.randn(len(ids), 3, generator=torch.Generator().manual_seed(3)) for ids in SOURCES]


@pytest.mark.parametrize(
    ("kind", "filled"), [("convolutions", False), *((kind, True) for kind in OF_VECTORS)]
)
def test_packed_vectors_equal_padded_ones(kind, filled, implementation, monkeypatch):
    """In the loss, and in its gradient for every parameter, those of the input module among them."""
    encoder, module, decoder = OF_VECTORS[kind]
    torch.manual_seed(0)
    table = {"encoder": encoder | {"input": module}, "decoder": decoder, "vocab_size": 20}
    model = regard.build(table | {"source_dim": 3}).to(DEVICE)
    given = replace(batch(), source=Vectors.of(VECTORS))
    packed = pack_batch(given, capacity_of(filled=filled))
    assert isinstance(packed.source, PackedVectors)
    assert len(packed.source.values) == (24 if filled else sum(map(len, VECTORS)))
    got, changes = gradients(model, packed, Objective(label_smoothing=0.1))
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted, expected = gradients(model, given, Objective(label_smoothing=0.1))
    assert_near(got, wanted)
    for name, change in changes.items():
        assert_near(change, expected[name])


def test_filled_batches_of_vectors_have_one_shape():
    """As CUDA graphs need: every tensor that a recording reads."""
    shapes = set()
    for chosen in ([0, 1, 2, 3], [1], [3, 0], [2, 1]):
        given = Batch(
            Vectors.of([VECTORS[i] for i in chosen]),
            Tokens.of([TARGETS[i] for i in chosen]),
            sum(len(TARGETS[i]) - 1 for i in chosen),
            torch.tensor(chosen),
        )
        packed = pack_batch(given, capacity_of(filled=True))
        shapes.add(tuple(each.shape for each in graphed_update.batch_tensors(packed)))
    (shape,) = shapes
    assert shape[0] == (24, 3)


def test_dropout_does_not_apply_to_the_context(implementation, monkeypatch):
    """With a dropout of 1 only the attention context is left, packed or padded."""
    torch.manual_seed(0)
    model = regard.build({"encoder": ONE, "decoder": CONV, "vocab_size": 20}).to(DEVICE)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 1.0
    got, _ = gradients(model, pack_batch(batch(), capacity_of(filled=True)), Objective())
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted, _ = gradients(model, batch(), Objective())
    assert_near(got, wanted)


def test_a_packed_language_model_equals_a_padded_one(implementation, monkeypatch):
    model = regard.build({"decoder": SIDE, "vocab_size": 20}).to(DEVICE)
    got, changes = gradients(
        model, pack_batch(batch(source=False), capacity_of(filled=True)), Objective()
    )
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted, expected = gradients(model, batch(source=False), Objective())
    assert_near(got, wanted)
    for name, change in changes.items():
        assert_near(change, expected[name])


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize(
    "kind", ["relu", "gelu", "gelu_tanh", "swiglu", "conv", "rnn", "rnn bahdanau"]
)
def test_half_precision_is_near_float32(kind):
    """All gradients together: kernels in bfloat16, and PyTorch in float32."""
    side = SIDE | {"dim": 64, "heads": 4, "ffn_dim": 96, "activation": kind, "layers": 2}
    side = CONV | {"dim": 320} if kind == "conv" else side  # kernels loop over its one head
    side = DEEP | {"dim": 320} if "rnn" in kind else side
    attention = LUONG if kind == "rnn" else {}  # few keys, one wide head
    model = regard.build(
        {"encoder": side, "decoder": side | attention, "vocab_size": 20, "tie_embeddings": "all"}
    ).to(DEVICE)
    _, wanted = gradients(model, batch(), Objective(label_smoothing=0.1))
    with torch.autocast(DEVICE, torch.bfloat16):
        _, result = gradients(
            model, pack_batch(batch(), capacity_of(filled=True)), Objective(label_smoothing=0.1)
        )
    assert_near(
        torch.cat([x.flatten() for x in result.values()]),
        torch.cat([x.flatten() for x in wanted.values()]),
        2e-2,
    )


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_take_flash_attention(causal):
    offsets, layout = (
        SequenceOffsets.of([200, 3, 0, 130]).to(DEVICE),
        varlen.HeadLayout(4, 2, 16, 0.25, causal),
    )
    query = torch.randn(333, 8 * 16, device=DEVICE, requires_grad=True)
    d_out = torch.randn(333, 64, device=DEVICE)
    wanted = varlen.attend_padded(varlen.PackedAttentionSpec(layout, query, None, offsets, offsets))
    expected = torch.autograd.grad(wanted, query, d_out)[0]
    got = varlen.attend(
        varlen.PackedAttentionSpec(layout, query.bfloat16(), None, offsets, offsets)
    )
    assert_near(got, wanted, 1e-2)
    assert_near(torch.autograd.grad(got, query, d_out.bfloat16())[0], expected, 1e-2)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize(
    "layout",
    [varlen.HeadLayout(2, 2, 128, 0.1), varlen.HeadLayout(4, 2, 256, 0.1, True)],
    ids=["own keys", "shared keys"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_heads_that_a_program_cannot_hold(dtype, layout):
    offsets, dim = (
        SequenceOffsets.of([128, 3, 0, 70]).to(DEVICE),
        (layout.heads + 2 * layout.kv_heads) * layout.dim,
    )
    query = torch.randn(201, dim, device=DEVICE, requires_grad=True)
    d_out = torch.randn(201, layout.heads * layout.dim, device=DEVICE)
    wanted = varlen.attend_padded(varlen.PackedAttentionSpec(layout, query, None, offsets, offsets))
    expected = torch.autograd.grad(wanted, query, d_out)[0]
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    got = varlen.attend(varlen.PackedAttentionSpec(layout, query.to(dtype), None, offsets, offsets))
    assert_near(got, wanted, tolerance)
    assert_near(torch.autograd.grad(got, query, d_out.to(dtype))[0], expected, tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_kernels_loop_over_wide_heads(heads, causal, implementation, monkeypatch):
    """16 of 40 dimensions at a time; sequences of every tile, one without keys, and one without queries."""
    monkeypatch.setattr(varlen, "MAX_HELD_DIM", 32)
    monkeypatch.setattr(varlen, "LOOP_STEP", 16)
    monkeypatch.setattr(varlen, "TILES", (16, 32))
    offsets = SequenceOffsets.of([3, 20, 5, 0, 7]).to(DEVICE)
    kv_offsets = offsets if causal else SequenceOffsets.of([9, 17, 0, 4, 32]).to(DEVICE)
    layout = varlen.HeadLayout(heads, heads, 40, 0.3, causal)
    query = torch.randn(35, heads * 40, device=DEVICE, requires_grad=True)
    kv = torch.randn(len(kv_offsets.positions), 2 * heads * 40, device=DEVICE, requires_grad=True)
    d_out = torch.randn(35, heads * 40, device=DEVICE)
    got = varlen.attend(varlen.PackedAttentionSpec(layout, query, kv, offsets, kv_offsets))
    result = torch.autograd.grad(got, (query, kv), d_out)
    wanted = varlen.attend_padded(
        varlen.PackedAttentionSpec(layout, query, kv, offsets, kv_offsets)
    )
    for mine, theirs in zip(
        (got, *result), (wanted, *torch.autograd.grad(wanted, (query, kv), d_out)), strict=True
    ):
        assert_near(mine, theirs)


def test_kernels_do_not_loop_over_heads_that_share_keys(implementation, monkeypatch):
    monkeypatch.setattr(varlen, "MAX_HELD_DIM", 8)
    monkeypatch.setattr(varlen._Short, "apply", lambda *_: pytest.fail("looped"))
    offsets = SequenceOffsets.of([5, 3]).to(DEVICE)
    layout, query = varlen.HeadLayout(2, 1, 16, 1.0), torch.ones(8, 64, device=DEVICE)
    same = varlen.attend(varlen.PackedAttentionSpec(layout, query, None, offsets, offsets))
    assert_near(same, torch.ones(8, 32, device=DEVICE))


@pytest.mark.parametrize(
    "taps", [range(-4, 1, 2), range(-1, 3), range(1), range(-40, 41, 20)], ids=str
)
def test_unfold(taps, implementation):
    """Against the definition, position by position."""
    lengths = [5, 0, 1, 30, 7]
    x = torch.randn(43, 20, device=DEVICE, requires_grad=True)
    got = conv_unfold.unfold(
        x, conv_unfold.Neighbors.of(SequenceOffsets.of(lengths).to(DEVICE)), taps
    )
    wanted = []
    for rows in x.split(lengths):
        for position in range(len(rows)):
            taken = [
                rows[position + tap] if 0 <= position + tap < len(rows) else 0 * rows[0]
                for tap in taps
            ]
            wanted.append(torch.cat(taken))
    assert torch.equal(got, torch.stack(wanted))
    d_out = torch.randn_like(got)
    assert_near(
        torch.autograd.grad(got, x, d_out)[0], torch.autograd.grad(torch.stack(wanted), x, d_out)[0]
    )


@pytest.mark.parametrize("side", [SIDE, CONV, DEEP], ids=["transformer", "conv", "rnn"])
def test_other_sequences_and_later_tokens_change_nothing(side, implementation):
    """The states of a sequence depend on its own earlier tokens only."""
    model = regard.build({"decoder": side, "vocab_size": 20}).to(DEVICE).eval()
    whole = pack_batch(batch(source=False), capacity_of(filled=False)).targets.to(DEVICE)
    alone = pack_batch(
        Batch(None, Tokens.of(TARGETS[1:2]), 5, torch.arange(1)), capacity_of(filled=False)
    ).targets.to(DEVICE)  # fmt: skip
    assert_near(
        model.decoder.hidden_packed(whole, None)[3:8], model.decoder.hidden_packed(alone, None)
    )
    later = replace(whole, ids=torch.where(torch.arange(12, device=DEVICE) < 5, whole.ids, 19))
    assert torch.equal(
        model.decoder.hidden_packed(later, None)[:5], model.decoder.hidden_packed(whole, None)[:5]
    )


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("added", [True, False], ids=["sum", "alone"])
def test_residual_sum_and_norm(kind, added, implementation, monkeypatch):
    norm = (nn.LayerNorm if kind == "layer" else nn.RMSNorm)(12).to(DEVICE)
    nn.init.normal_(norm.weight)
    x, change = (torch.randn(3, 5, 12, device=DEVICE, requires_grad=True) for _ in range(2))
    given = PendingResidual(x, change if added else None)
    d_out = [torch.randn(3, 5, 12, device=DEVICE) for _ in range(2)]
    wrt = [x, *([change] if added else []), *norm.parameters()]
    got = add_norm(given, Dropout(0.0), norm)
    result = torch.autograd.grad(got, wrt, d_out)
    monkeypatch.setattr(triton_launch, "can_launch", lambda *tensors: False)
    wanted = add_norm(given, Dropout(0.0), norm)
    for mine, theirs in zip(
        (*got, *result), (*wanted, *torch.autograd.grad(wanted, wrt, d_out)), strict=True
    ):
        assert_near(mine, theirs)


def test_dropout_is_the_same_in_the_backward_pass(implementation):
    norm, dropout = nn.LayerNorm(64).to(DEVICE), Dropout(0.25)
    x, change = (
        torch.zeros(40, 64, device=DEVICE),
        torch.ones(40, 64, device=DEVICE, requires_grad=True),
    )
    total, _ = add_norm(PendingResidual(x, change), dropout, norm)
    total.sum().backward()
    assert torch.equal(change.grad, total.detach())
    assert 0.2 < (total == 0).float().mean() < 0.3
    assert total.max().item() == pytest.approx(4 / 3, rel=1e-4)
    again, _ = add_norm(PendingResidual(x, change), dropout, norm)
    assert not torch.equal(total, again)


@pytest.mark.parametrize("widest", [varlen.MAX_HELD_DIM, 4], ids=["held", "looped"])
def test_attention_dropout_is_the_same_in_the_backward_pass(widest, implementation, monkeypatch):
    """With unit vectors as values the outputs are the weights; the gradient of the values sums the kept ones."""
    monkeypatch.setattr(varlen, "MAX_HELD_DIM", widest)
    n = 5
    offsets, layout = (
        SequenceOffsets.of([n, n]).to(DEVICE),
        varlen.HeadLayout(1, 1, n, 1.0, False, 0.5),
    )
    query = torch.zeros(2 * n, n, device=DEVICE)
    value = torch.eye(n, device=DEVICE).repeat(2, 1).requires_grad_()
    kv = torch.cat((torch.zeros_like(value), value), 1)
    out = varlen.attend(varlen.PackedAttentionSpec(layout, query, kv, offsets, offsets))
    out.sum().backward()
    kept = torch.cat([part.detach().sum(0) for part in out.chunk(2)])
    assert_near(value.grad.mean(1), kept)
    assert set(out.detach().mul(n).round(decimals=3).unique().tolist()) <= {0.0, 2.0}
    assert 0 < (out == 0).sum() < out.numel()


@pytest.mark.parametrize("r_drop", [0.0, 1.5])
def test_loss_of_rows_with_a_target(r_drop, implementation, monkeypatch):
    project = regard.build({"decoder": SIDE, "vocab_size": 40}).to(DEVICE).decoder.project
    states = torch.randn(14, 16, device=DEVICE, requires_grad=True)
    gold = torch.tensor([3, 3, -1, -1, 39, 39, 0, 0, 20, 20, 1, 1, -1, -1], device=DEVICE)
    wrt = [states, project.weight, project.bias]
    got, nll = token_loss(states, project, gold, label_smoothing=0.2, r_drop=r_drop)
    result = torch.autograd.grad(got, wrt)
    there = gold >= 0
    wanted, plain = plain_token_loss(
        states[there], project, gold[there], label_smoothing=0.2, r_drop=r_drop
    )
    for mine, theirs in zip(
        (got, nll, *result), (wanted, plain, *torch.autograd.grad(wanted, wrt)), strict=True
    ):
        assert_near(mine, theirs)


def test_sequence_offsets():
    offsets = SequenceOffsets.of([3, 0, 2])
    assert offsets.cu_seqlens.tolist() == [0, 3, 3, 5]
    assert offsets.positions.tolist() == [0, 1, 2, 0, 1]
    assert offsets.mask.tolist() == [[True, True, True], [False] * 3, [True, True, False]]
    x = torch.arange(5.0)[:, None]
    assert torch.equal(offsets.packing.pack(offsets.pad(x)), x)
    assert offsets.sequence_ids.tolist() == [0, 0, 0, 2, 2]
    assert offsets.remaining.tolist() == [2, 1, 0, 1, 0]
    assert offsets.duplicate().cu_seqlens.tolist() == [0, 3, 3, 5, 8, 8, 10]


def test_the_first_batch_is_shown_as_text(tmp_path):
    examples = [
        line
        for line in dry_run(Recipe.of(LEARNED), tmp_path).splitlines()
        if line.startswith("  target")
    ]
    assert len(examples) == 3
    words = Path(LETTERS).read_text().splitlines()
    assert all(line.split()[1] in words and line.endswith("</s>)") for line in examples)


def test_unpackable_models_are_refused():
    table = {
        "data": {
            "synthetic": "dates",
            "source": {"tokenizer": "characters"},
            "target": {"tokenizer": "characters"},
        },
        "model": {"encoder": SIDE | {"positions": "alibi"}, "decoder": SIDE},
        "train": {"packed": True},
    }
    with pytest.raises(
        InvalidRecipe, match=r"train\.packed: wanted false with model\.encoder\.positions = 'alibi'"
    ):
        Recipe.of(table)
    table["model"] = {"encoder": SIDE, "decoder": CONV | {"score": "additive"}}
    with pytest.raises(
        InvalidRecipe, match=r"train\.packed: wanted false with model\.decoder\.score = 'additive'"
    ):
        Recipe.of(table)
    table["model"] = {"encoder": SIDE | {"value_dim": 3}, "decoder": SIDE}
    with pytest.raises(
        InvalidRecipe, match=r"train\.packed: wanted false with model\.encoder\.value_dim = 3"
    ):
        Recipe.of(table)
    table["model"] = {"encoder": {"kind": "rnn"}, "decoder": SIDE}
    kinds = r"model\.encoder\.kind = 'rnn' and model\.decoder\.kind = 'transformer'"
    with pytest.raises(InvalidRecipe, match=rf"train\.packed: wanted false with {kinds}"):
        Recipe.of(table)
    strided = SIDE | {"input": {"kind": "vectors", "kernel": 2, "stride": 2}}
    of_vectors = {**table, "data": {"train": "rows.jsonl"}}
    of_vectors["data"] |= {"source": {"kind": "vectors", "column": "x"}}
    of_vectors["data"] |= {"target": {"tokenizer": "characters", "column": "y"}}
    with pytest.raises(
        InvalidRecipe, match=r"train\.packed: wanted false with model\.encoder\.input\.stride = 2"
    ):
        Recipe.of(of_vectors | {"model": {"encoder": strided, "decoder": SIDE}})
    of_vectors["data"]["source"] |= {"missing": "mask"}
    with pytest.raises(
        InvalidRecipe, match=r"train\.packed: wanted false with data\.source\.missing = 'mask'"
    ):
        Recipe.of(of_vectors | {"model": {"encoder": SIDE, "decoder": SIDE}})
    table["model"] = {"encoder": {"kind": "bag"}, "decoder": SIDE}
    with pytest.raises(
        InvalidRecipe, match=r"train\.packed: wanted false with model\.encoder\.kind = 'bag'"
    ):
        Recipe.of(table)


LETTERS = str(Path(__file__).parents[1] / "fixtures" / "letters.txt")
PAIRS = {"source": {"tokenizer": "bytes"}, "target": {"tokenizer": "bytes"}} | {
    split: [LETTERS, LETTERS] for split in ("train", "valid")
}


def test_recurrent_steps_on_padding_get_a_warning(tmp_path, monkeypatch):
    lines = tmp_path / "lines.txt"
    lines.write_text("ab\n" * 200 + "a long one " * 9)
    data = {side: {"tokenizer": "bytes"} for side in ("source", "target")} | {
        "train": [str(lines)] * 2
    }
    table = {
        "data": data,
        "model": {"encoder": RNN, "decoder": RNN},
        "train": {"packed": True, "batch_tokens": 256},
    }
    recipe = Recipe.of(table)
    result = prepare(recipe, tmp_path / "cache").train
    on_gpu = replace(epochs(recipe, result), device="cuda")
    assert "longest, 100: " in on_gpu.padding_warning()
    monkeypatch.setattr(epoch_batches, "WASTE", 100)
    assert on_gpu.padding_warning() is None


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    recipe = Recipe.of({"data": PAIRS, "model": {"encoder": SIDE, "decoder": SIDE}, "train": {}})
    result = prepare(recipe, tmp_path_factory.mktemp("cache")).train
    assert result is not None
    return result


@pytest.mark.parametrize("filled", [False, True], ids=["exact", "filled"])
def test_an_epoch_packs_every_example_once(corpus, filled):
    capacity = PackedCapacity.of(corpus, 160, filled=filled)
    made = list(batches(corpus, budget=160, seed=3, epoch=1, capacity=capacity))
    rows = torch.cat([each.rows for each in made])
    assert sorted(rows.tolist()) == list(range(len(corpus)))
    for each in made:
        assert len(each.source.ids) <= capacity.positions[0]
        assert len(each.targets.ids) <= capacity.positions[1]
        assert int((each.targets.gold >= 0).sum()) == each.tokens
    shapes = {
        (each.source.ids.shape, each.targets.ids.shape, each.source.offsets.cu_seqlens.shape)
        for each in made
    }
    assert (len(shapes) == 1) == filled
    used = sum(each.tokens for each in made[:-1]) / (len(made) - 1)
    assert used > 0.9 * capacity.positions[1]  # the capacity is used
    again = batches(corpus, budget=160, seed=3, epoch=1, capacity=capacity, start=2)
    assert torch.equal(next(again).targets.ids, made[2].targets.ids)


def test_a_batch_has_no_more_sequences_than_its_capacity(corpus):
    usual = PackedCapacity.of(corpus, 160, filled=True)
    full = replace(usual, rows=usual.fillers((0, 0)) + 1)
    made = list(batches(corpus, budget=160, seed=3, epoch=1, capacity=full))
    assert {
        len(side.offsets.cu_seqlens) for each in made for side in (each.source, each.targets)
    } == {full.rows + 1}
    assert sorted(torch.cat([each.rows for each in made]).tolist()) == list(range(len(corpus)))
    fewer = max(len(each.rows) for each in made)
    assert fewer < max(
        len(each.rows) for each in batches(corpus, budget=160, seed=3, epoch=1, capacity=usual)
    )


def test_ranks_pack_the_same_examples(corpus):
    capacity = PackedCapacity.of(corpus, 160)
    whole = list(batches(corpus, budget=160, seed=3, epoch=0, capacity=capacity))
    parts = [
        list(batches(corpus, budget=160, seed=3, epoch=0, capacity=capacity, rank=rank, world=2))
        for rank in (0, 1)
    ]
    rows = [each.rows for part in parts for each in part if not each.borrowed]
    assert sorted(torch.cat(rows).tolist()) == sorted(
        torch.cat([each.rows for each in whole]).tolist()
    )


TRAIN = {
    "max_steps": 9,
    "batch_tokens": 256,
    "validate_every": 3,
    "warmup_steps": 2,
    "log_samples": 0,
    "packed": True,
    "device": "cpu",
}
LEARNED = {
    "data": PAIRS,
    "model": {"encoder": SIDE | {"dropout": 0.1}, "decoder": SIDE},
    "train": TRAIN,
}


def weights(run):
    return load_file(store.step_folder(run, 9) / "model.safetensors")


@pytest.mark.parametrize("side", [SIDE, CONV, RNN], ids=["transformer", "conv", "rnn"])
def test_a_packed_run_resumes_exactly(side, tmp_path):
    learned = LEARNED | {"model": {"encoder": side | {"dropout": 0.1}, "decoder": side}}
    train(learned, tmp_path / "whole", cache=tmp_path)
    train(learned | {"train": TRAIN | {"max_steps": 3}}, tmp_path / "parts", cache=tmp_path)
    train(learned, tmp_path / "parts", cache=tmp_path, resume=True)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    logged = [
        json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()
    ]
    losses_ = [line["loss"] for line in logged if line["event"] == "validation"]
    assert losses_[-1] < losses_[0]


def test_a_replay_computes_the_current_batch(tmp_path, monkeypatch):
    """Without a GPU a recording is the work itself, computed again from the current content of its inputs."""
    right, recorded = PackedCapacity.of, []
    monkeypatch.setattr(
        PackedCapacity,
        "of",
        staticmethod(lambda corpus, budget, **_: right(corpus, budget, filled=True)),
    )
    train(LEARNED, tmp_path / "launched", cache=tmp_path)

    def static(batch):
        recorded.append(batch)
        return right_batch(
            replace(batch, source=copied(batch.source), targets=copied(batch.targets))
        )

    right_batch, enabled = (
        graphed_update.RecordedBatch,
        property(lambda self: True, lambda self, value: None),
    )
    monkeypatch.setattr(graphed_update, "RecordedBatch", static)
    monkeypatch.setattr(cuda_graphs, "capture", lambda work, **_: work)
    monkeypatch.setattr(GraphedUpdate, "enabled", enabled, raising=False)
    train(LEARNED | {"train": TRAIN | {"cuda_graphs": True}}, tmp_path / "replayed", cache=tmp_path)
    assert len(recorded) == 1
    launched, replayed = weights(tmp_path / "launched"), weights(tmp_path / "replayed")
    assert all(torch.equal(launched[name], replayed[name]) for name in launched)


def copied(side):
    offsets = SequenceOffsets(
        side.offsets.cu_seqlens.clone(), side.offsets.positions.clone(), side.offsets.max_length
    )
    return replace(
        side,
        ids=side.ids.clone(),
        offsets=offsets,
        gold=None if side.gold is None else side.gold.clone(),
    )
