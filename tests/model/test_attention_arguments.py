"""Invalid arguments raise a ValueError that names the argument, what was wanted, what was given, and the remedy."""

import json
import subprocess
import sys

import pytest
import torch

import regard

Q, K, V = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 4)
HEADED = torch.randn(2, 4, 5, 8)

REFUSED = {
    "tokens instead of vectors": (lambda: regard.attend(torch.ones(2, 3, dtype=torch.long), K, V), r"query: wanted a floating-point tensor.*int64 of shape \(2, 3\).*Embed"),
    "one vector": (lambda: regard.attend(torch.randn(8), K, V), r"query: .*\(8,\).*x\[None\]"),
    "other dtype": (lambda: regard.attend(Q, K.double(), V), "key: wanted torch.float32 on cpu.*got torch.float64"),
    "keys without values": (lambda: regard.attend(Q, K, V[:, :4]), "value: wanted one value per key, 5 of them; got 4"),
    "dims differ": (lambda: regard.attend(Q, K[..., :6], V), "key: wanted the query's dim, 8, for ScaledDot.*dim 6.*Bilinear"),
    "batches differ": (lambda: regard.attend(Q, torch.randn(3, 5, 8), V), r"leading axes that broadcast; got query \(2, 3, 8\), key \(3, 5, 8\)"),
    "score of another dim": (lambda: regard.attend(Q, K, V, score=regard.Bilinear(8, 9)), "key: wanted dim 9.*got dim 8"),
    "additive of another dim": (lambda: regard.attend(Q, K, V, score=regard.Additive(7, 8, 4)), "query: wanted dim 7.*got dim 8"),
    "float mask": (lambda: regard.attend(Q, K, V, mask=torch.zeros(3, 5)), "mask: wanted a boolean tensor, True = may attend; got torch.float32.*bias="),
    "integer mask": (lambda: regard.attend(Q, K, V, mask=torch.ones(3, 5, dtype=torch.int)), r"mask: wanted a boolean.*int32.*mask.bool\(\)"),
    "mask that cannot broadcast": (lambda: regard.attend(Q, K, V, mask=torch.ones(2, 5, dtype=torch.bool)), r"mask: wanted a shape that broadcasts to \(2, 3, 5\).*got \(2, 5\).*mask\[:, None, :\]"),
    "mask with too many axes": (lambda: regard.attend(Q, K, V, mask=torch.ones(1, 2, 3, 5, dtype=torch.bool)), r"broadcasts to \(2, 3, 5\)"),
    "boolean bias": (lambda: regard.attend(Q, K, V, bias=torch.ones(3, 5, dtype=torch.bool)), "bias: wanted a floating-point tensor.*torch.bool.*mask="),
    "bias that cannot broadcast": (lambda: regard.attend(Q, K, V, bias=torch.ones(3, 4)), r"bias: .*\(2, 3, 5\); got \(3, 4\)"),
    "distances that are too few": (lambda: regard.attend(Q, K, V, bias=regard.DistanceBias(torch.ones(6))), r"bias: .*\(2, 7\); got \(6,\)"),
    "negative window": (lambda: regard.attend(Q, K, V, window=-1), "window: wanted a number of keys ≥ 0.*got -1"),
    "dropout of one": (lambda: regard.attend(Q, K, V, dropout=1.0), "dropout: wanted a probability.*got 1.0"),
    "rows that do not exist": (lambda: regard.attention_weights(Q, K, rows=[3]), r"rows: wanted whole numbers from -3 to 2; got \[3\]"),
    "rows by a mask": (lambda: regard.attention_weights(Q, K, rows=torch.ones(3, dtype=torch.bool)), "rows: .*torch.bool"),
    "heads without a head axis": (lambda: regard.attention_weights(Q, K, heads=0), "heads: .*no head axis"),
    "heads that do not exist": (lambda: regard.attention_weights(HEADED, HEADED, heads=4), "heads: wanted whole numbers from -4 to 3"),
    "log-sum-exp of another shape": (lambda: regard.attention_weights(Q, K, lse=torch.ones(2, 5)), r"lse: .*\(2, 3\); got \(2, 5\)"),
    "negative top": (lambda: regard.attention_summary(Q, K, top=-1), "top: wanted a count"),
    "rotary of another head dim": (lambda: regard.Rotary(4)(Q, torch.arange(3)), r"x: wanted heads of dim 4.*got dim 8.*Rotary\(8\)"),
    "ALiBi of no heads": (lambda: regard.Alibi(0), "heads: wanted at least 1; got 0"),
    "negative start position": (lambda: regard.Add(regard.Learned(8, 5))(Q, start=-1), "start: wanted a position of at least 0; got -1"),
    "mass of keys given as numbers": (lambda: regard.attention_summary(Q, K, on=torch.ones(5)), r"on: wanted one boolean per key, shape \(5,\)"),
    "heads that do not divide": (lambda: regard.MultiHead(10, 4), "heads: wanted a divisor of the dim 10; got 4. The nearest is 5"),
    "key heads that do not divide": (lambda: regard.MultiHead(12, 4, kv_heads=3), "kv_heads: wanted a divisor of heads = 4; got 3"),
    "no heads": (lambda: regard.MultiHead(12, 0), "at least 1; got 12, 0"),
    "unknown score": (lambda: regard.MultiHead(12, 4, score="addtive"), "score: wanted one of 'dot'.*Did you mean 'additive'"),
    "dropout of a layer": (lambda: regard.MultiHead(12, 4, dropout=1.5), "dropout: .*got 1.5"),
    "input of another dim": (lambda: regard.MultiHead(12, 4)(Q), r"\(batch, positions, 12\); got shape \(2, 3, 8\)"),
    "input without a batch": (lambda: regard.MultiHead(8, 4)(Q[0]), r"\(batch, positions, 8\); got shape \(3, 8\).*x\[None\]"),
    "padding mask without queries": (lambda: regard.MultiHead(8, 4)(Q, mask=torch.ones(2, 3, dtype=torch.bool)), r"mask: .*got shape \(2, 3\).*mask\[:, None\]"),
    "float mask of a layer": (lambda: regard.MultiHead(8, 4)(Q, mask=torch.ones(2, 1, 3)), "mask: wanted a boolean"),
    "mask of another batch": (lambda: regard.MultiHead(8, 4)(Q, mask=torch.ones(3, 1, 3, dtype=torch.bool)), r"broadcasts to \(2, 4, 3, 3\)"),
    "rotary across sequences": (lambda: regard.MultiHead(8, 4, rotary=regard.Rotary(2))(Q, K), "source: .*rotary=None"),
    "mask on another device": (lambda: regard.attend(Q, K, V, mask=torch.ones(3, 5, dtype=torch.bool, device="meta")), "mask: wanted a mask on cpu.*meta"),
    "bias on another device": (lambda: regard.attend(Q, K, V, bias=torch.ones(3, 5, device="meta")), "bias: .*on cpu.* got .* on meta"),
    "other number of heads than the score": (lambda: regard.attend(HEADED, HEADED, HEADED, score=regard.Additive(8, 8, 4, heads=3)), r"query: wanted a head axis of 3.*got 4 in shape \(2, 4, 5, 8\)"),
    "source of another batch": (lambda: regard.MultiHead(8, 4)(Q, torch.randn(1, 5, 8)), r"memory: .*\(2, 4, 5\).*got \(1, 4, 5, 2\)"),
    "memory of another layer": (lambda: regard.MultiHead(8, 4).attend_memory(Q, regard.MultiHead(8, 8).project_memory(Q)), "memory: .*from this layer"),
    "layer of another dtype": (lambda: regard.MultiHead(8, 4)(Q.double()), "wanted torch.float32 on cpu, as the layer; got torch.float64"),
    "head dim of nothing": (lambda: regard.MultiHead(8, 4, head_dim=0), "at least 1; got 8, 4, 4, 0"),
    "rotary with a uniform score": (lambda: regard.MultiHead(8, 4, score="uniform", rotary=regard.Rotary(2)), "score: .*'uniform'"),
    "score of no dim": (lambda: regard.Additive(8, 8, 0), "at least 1; got 8, 0, None"),
    "cache of another batch": (lambda: step_into(Q, Q[:1]), r"cache: .*\(2, 4, 2\).*got \(1, 4, 2\)"),
    "beams by a mask": (lambda: regard.MultiHead(8, 4).project_memory(Q).reorder(torch.tensor([False, True])), "index: wanted row numbers.*torch.bool"),
    "cache that is full": (lambda: fill(2), "cache: wanted at most 2 positions.*got 3.*larger capacity"),
}  # fmt: skip


@torch.no_grad()
def fill(capacity: int) -> None:
    layer = regard.MultiHead(8, 4)
    layer.step(Q, layer.empty_cache(Q, capacity))


@torch.no_grad()
def step_into(started: torch.Tensor, stepped: torch.Tensor) -> None:
    layer = regard.MultiHead(8, 4)
    layer.step(stepped, layer.empty_cache(started, 9))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert isinstance(caught.value, regard.RegardError)


UNCHECKED = {
    "regard.attend([1.0], x, x)": "query: wanted a floating-point tensor (..., positions, dim); got [1.0].",
    "regard.attend(x, x, x, window=(1.5, 2))": "window: wanted a number of keys ≥ 0",
    "regard.attend(x, x, x, score=regard.Dot)": "score: wanted a score such as regard.Additive(8, 8, 4), or None",
    "regard.attend(x, x, x, score='dot')": "or None; got 'dot'. Make one: regard.Dot()",
    "regard.attention_weights(x, x, rows='all')": "rows: wanted whole numbers from -3 to 2; got 'all'",
    "regard.attention_summary(x, x, on=[True])": "on: wanted one boolean per key, shape (3,); got [True]",
    "regard.attention_summary(x, x, top=1.5)": "top: wanted a count; got 1.5",
    "regard.attend(x, x, x, bias=1.0)": "bias: wanted a floating-point tensor",
    "regard.MultiHead(8, 2, score=regard.Dot())": "score: wanted one of 'dot', 'scaled_dot'",
    "regard.MultiHead(8, 2)([1])": "wanted (batch, positions, 8); got [1]",
    "regard.attend(x, x, x, mask=[True])": "mask: wanted a boolean tensor, True = may attend; got [True].",
}


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    """The messages of these calls, in a process of their own: in this one, the type checks of the tests raise first."""
    program = """
import json, sys, regard, torch
x, found = torch.randn(2, 3, 8), {}
for call in sys.argv[1:]:
    try:
        eval(call)
    except regard.RegardError as error:
        found[call] = str(error)
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *UNCHECKED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("call", UNCHECKED)
def test_refused_where_nothing_checks_types(refusals, call):
    assert UNCHECKED[call] in refusals[call]


def test_a_cache_refuses_what_needs_gradient():
    layer = regard.MultiHead(8, 4)
    with torch.no_grad():
        cache = layer.empty_cache(Q, 5)
    with pytest.raises(ValueError, match=r"cache: .*torch.no_grad\(\)"):
        layer.step(Q, cache)
    assert cache.length == 0


@pytest.mark.parametrize(("n", "m"), [(0, 5), (3, 0), (0, 0)])
@pytest.mark.parametrize("score", [None, regard.Additive(8, 8, 4)])
def test_no_queries_or_no_keys_give_zeros(n, m, score):
    query, key, value = (torch.randn(2, size, 8, requires_grad=True) for size in (n, m, m))
    out = regard.attend(query, key, value, score=score, causal=True)
    assert torch.equal(out, torch.zeros(2, n, 8))
    out.sum().backward()
    assert torch.equal(query.grad, torch.zeros_like(query))


@pytest.mark.parametrize("axes", [(), (3,), (2, 3), (2, 1, 3), (2, 2, 3, 4)])
@pytest.mark.parametrize("score", [None, regard.Additive(8, 8, 4)])
def test_any_leading_axes(axes, score):
    query, key, value = (torch.randn(*axes, size, 8) for size in (3, 5, 5))
    mask = torch.rand(*axes, 3, 5) > 0.3
    out = regard.attend(query, key, value, score=score, mask=mask)
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (query, key, value, mask)]
    each = [regard.attend(q, k, v, score=score, mask=m) for q, k, v, m in zip(*flat, strict=True)]
    torch.testing.assert_close(out, torch.stack(each).reshape(out.shape))


def test_leading_axes_broadcast():
    query, key, value = torch.randn(2, 1, 4, 3, 8), torch.randn(5, 1, 6, 8), torch.randn(5, 4, 6, 8)
    mask, bias = torch.rand(5, 1, 1, 6) > 0.3, torch.randn(2, 1, 1, 3, 6)
    full = [x.expand(2, 5, 4, *x.shape[-2:]) for x in (query, key, value)]
    torch.testing.assert_close(
        regard.attend(query, key, value, mask=mask, bias=bias),
        regard.attend(*full, mask=mask.expand(2, 5, 4, 3, 6), bias=bias.expand(2, 5, 4, 3, 6)),
    )


def test_keys_projected_once():
    for score in (regard.Bilinear(8, 6), regard.ReducedRank(8, 6, 2), regard.Additive(8, 6, 4)):
        key = K[..., :6]
        ready = regard.attend(Q, score.keys(key), V, score=regard.ProjectedKeys(score))
        assert torch.equal(ready, regard.attend(Q, key, V, score=score))


def test_a_reduced_rank_score_is_a_bilinear_one():
    low, full = regard.ReducedRank(8, 6, 2), regard.Bilinear(8, 6)
    with torch.no_grad():
        full.weight.copy_(low.key_weight @ low.query_weight.mT)
    key = K[..., :6]
    torch.testing.assert_close(
        regard.attend(Q, key, V, score=low), regard.attend(Q, key, V, score=full)
    )


def test_uniform_is_mean_pooling():
    mask = torch.tensor([[True, True, False, True, False]] * 2)[:, None]
    pooled = regard.attend(Q, K, V, score=regard.Uniform(), mask=mask)
    torch.testing.assert_close(pooled, V[:, [0, 1, 3]].mean(1, keepdim=True).expand(2, 3, 4))


@pytest.mark.parametrize("score", [None, regard.Additive(8, 8, 4)])
def test_dropout_is_unbiased_and_seeded(score):
    draw = lambda: regard.attend(Q, K, V, score=score, dropout=0.4)  # noqa: E731
    torch.manual_seed(1)
    first = draw()
    torch.manual_seed(1)
    assert torch.equal(first, draw())
    assert not torch.equal(first, draw())
    many = torch.stack([draw() for _ in range(3000)])
    error = many.mean(0) - regard.attend(Q, K, V, score=score)
    assert (error.abs() < 5 * many.std(0) / 3000**0.5 + 1e-6).all()


@pytest.mark.parametrize(
    "score", [regard.ScaledDot(), regard.Additive(8, 8, 4).double()], ids=["dot", "additive"]
)
def test_gradient_through_dropout_is_that_of_the_same_draw(score, monkeypatch):
    monkeypatch.setattr(
        "regard.kernels.attention.blockwise.BLOCK", 10
    )  # several blocks, each with its own draw

    def run(query, key, value):
        torch.manual_seed(5)
        return regard.attend(query, key, value, score=score, dropout=0.3, causal=True)

    assert torch.autograd.gradcheck(
        run, [x.double().requires_grad_() for x in (Q, K, V)], fast_mode=True
    )
