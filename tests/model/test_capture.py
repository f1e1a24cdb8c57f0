"""Listening, exact rows and streamed summaries."""

import asyncio
import importlib.util
import threading

import pytest
import torch

import regard
from measure import grad_run, peak_bytes
from regard.model import capture
from regard.model.interfaces import AttentionModule
from support.family import MASKS, SCORES, Case
from support.models import DECODERS, ENCODERS, VOCABULARY, decoder, encoder, memory, source

MIB = 2**20


def captured(run) -> list[regard.AttentionCall]:
    calls: list[regard.AttentionCall] = []
    with regard.capture_attention(calls.append):
        run()
    return calls


def test_nothing_is_captured_after_the_block_even_when_it_fails():
    x, calls = torch.randn(2, 3, 4), []

    def work():
        with regard.capture_attention(calls.append):
            regard.attend(x, x, x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    regard.attend(x, x, x)
    assert len(calls) == 1


def test_nested_captures_get_every_call():
    x, outer, inner = torch.randn(2, 3, 4), [], []
    with regard.capture_attention(outer.append):
        regard.attend(x, x, x)
        with regard.capture_attention(inner.append):
            regard.attend(x, x, x)
        regard.attend(x, x, x)
    assert (len(outer), len(inner)) == (3, 1)


def test_a_thread_captures_only_its_own_calls():
    x, mine, its = torch.randn(2, 3, 4), [], []

    def work():
        with regard.capture_attention(its.append):
            regard.attend(x, x, x)
            regard.attend(x, x, x)

    with regard.capture_attention(mine.append):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        regard.attend(x, x, x)
    assert (len(mine), len(its)) == (1, 2)


def test_a_task_captures_only_its_own_calls():
    x = torch.randn(2, 3, 4)

    async def work(times: int) -> int:
        calls: list[regard.AttentionCall] = []
        with regard.capture_attention(calls.append):
            for _ in range(times):
                regard.attend(x, x, x)
                await asyncio.sleep(0)
        return len(calls)

    async def both():
        return await asyncio.gather(work(2), work(3))

    assert asyncio.run(both()) == [2, 3]


def test_captured_tensors_hold_no_graph():
    x = torch.randn(2, 3, 4, requires_grad=True)
    (call,) = captured(lambda: regard.attend(x, x, x, score=regard.Additive(4, 4, 5)))
    assert not any(
        t.requires_grad
        for t in (call.spec.query, call.spec.key, call.spec.score_function.weight, call.lse)
    )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_chosen_rows_are_those_of_the_whole(score, mask):
    case = Case(score, mask, torch.float64)
    (call,) = captured(lambda: regard.attend(case.query, case.key, case.value, **case.keywords))
    whole = call.weights()
    for rows in ([3, 0], 2, slice(1, 4), torch.tensor([-1])):
        some = [2] if rows == 2 else rows
        torch.testing.assert_close(call.weights(rows=rows), whole[:, some], rtol=0, atol=1e-12)
        alone = regard.attention_weights(case.query, case.key, **case.keywords, rows=rows)
        torch.testing.assert_close(alone, whole[:, some], rtol=0, atol=1e-12)
        given = regard.attention_weights(
            case.query, case.key, **case.keywords, rows=rows, lse=call.lse[:, 0]
        )
        torch.testing.assert_close(given, whole[:, some], rtol=0, atol=1e-12)


def test_weights_carry_gradient_unless_the_log_sum_exp_is_given():
    case = Case("additive", "fully masked", torch.float64)
    run = lambda *inputs: regard.attention_weights(*inputs, rows=[0, 2], **case.keywords)  # noqa: E731
    assert torch.autograd.gradcheck(run, (case.query, case.key))
    lse = torch.zeros(2, case.n)
    assert not regard.attention_weights(
        case.query, case.key, **case.keywords, lse=lse
    ).requires_grad


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_summaries_are_those_of_the_weights(score, mask, known, monkeypatch):
    monkeypatch.setattr("regard.kernels.attention.blockwise.BLOCK", 10)  # several blocks
    case = Case(score, mask, torch.float64)
    on = torch.arange(case.m) % 3 == 0
    (call,) = captured(lambda: regard.attend(case.query, case.key, case.value, **case.keywords))
    if known:
        found = call.summary(top=3, on=on)
    else:
        found = regard.attention_summary(case.query, case.key, **case.keywords, top=3, on=on)
    weights = call.weights()
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
    apart = (torch.arange(case.m) - torch.arange(case.n)[:, None] - (case.m - case.n)).abs()
    best = weights.topk(3)
    torch.testing.assert_close(found.entropy, entropy)
    torch.testing.assert_close(found.distance, (weights * apart).sum(-1))
    torch.testing.assert_close(found.mass, (weights * on).sum(-1))
    torch.testing.assert_close(found.top_weights, best.values)
    positive = best.values > 0
    assert (found.top_keys[~positive] == -1).all()
    at_top = weights.gather(-1, found.top_keys.clamp(min=0))
    torch.testing.assert_close(at_top[positive], best.values[positive])


def test_heads_are_chosen_with_their_masks_biases_and_scores():
    query, key, value = (torch.randn(2, 4, size, 6) for size in (5, 7, 7))
    keywords = {
        "score": regard.Additive(6, 6, 3, heads=4),
        "mask": torch.rand(2, 4, 5, 7) > 0.2,
        "bias": regard.DistanceBias(torch.randn(4, 11)),
    }
    whole = regard.attention_weights(query, key, value, **keywords)
    some = regard.attention_weights(query, key, **keywords, heads=[3, 1], rows=[-1, 0])
    torch.testing.assert_close(some, whole[:, [3, 1]][:, :, [-1, 0]])
    torch.testing.assert_close(regard.attend(query, key, value, **keywords), whole @ value)


HEADS = 2  # time grows with them, and so does memory, alike for all that is compared


def long_call(n: int):
    query, key, value = (torch.randn(1, HEADS, n, 64, requires_grad=True) for _ in range(3))
    return [query, key, value]


def test_rows_of_weights_cost_no_more_memory_than_the_fused_call():
    """8,192 tokens, forwards and backwards, then 64 rows of every head: nothing near N × M (512 MiB) is ever held."""
    inputs = long_call(8192)

    def asked() -> None:
        calls: list[regard.AttentionCall] = []
        with regard.capture_attention(calls.append):
            out = regard.attend(*inputs)
        torch.autograd.grad(out, inputs, torch.ones_like(out))
        assert calls[0].weights(rows=range(64)).shape == (1, HEADS, 64, 8192)

    fused = peak_bytes(grad_run(torch.nn.functional.scaled_dot_product_attention, inputs))
    # The measure itself: output and its gradient, three gradients, the kernel's own.
    assert 11 * HEADS * MIB < fused < 14 * HEADS * MIB
    assert peak_bytes(asked) <= 1.1 * fused


@torch.no_grad()
def test_rows_of_weights_cost_their_own_size():
    inputs = long_call(4096)
    (call,) = captured(lambda: regard.attend(*inputs))
    size = HEADS * 64 * 4096 * 4
    assert peak_bytes(lambda: call.weights(rows=range(64))) <= 1.1 * size
    of_a_head = size / HEADS + 2 * 4096 * 64 * 4  # its rows, and its queries and keys
    assert peak_bytes(lambda: call.weights(rows=range(64), heads=1)) <= 1.1 * of_a_head


@torch.no_grad()
def test_summaries_cost_memory_that_grows_with_length_alone():
    peaks = []
    for n in (2048, 4096):
        (call,) = captured(lambda n=n: regard.attend(*long_call(n)))
        peaks.append(peak_bytes(lambda call=call: call.summary(top=16)))
    assert peaks[1] <= 2.1 * peaks[0]
    assert peaks[1] < HEADS * 4096 * 4096 * 4 / 8  # an eighth of N × M


@pytest.mark.parametrize(
    "keywords",
    [{"causal": True}, {"causal": True, "window": 64}, {"bias": "distance"}, {"dropout": 0.1}],
    ids=str,
)
def test_attending_costs_memory_that_grows_with_length_alone(keywords):
    """Masks, windows, biases and dropout included: twice the length takes at most about twice the memory."""
    peaks = []
    for n in (1536, 3072):
        given = dict(keywords)
        if "bias" in given:
            given["bias"] = regard.Alibi(HEADS)(n, n)
        run = grad_run(lambda q, k, v, given=given: regard.attend(q, k, v, **given), long_call(n))
        peaks.append(peak_bytes(run))
    assert peaks[1] <= 2.2 * peaks[0]


def test_additive_attention_never_holds_the_cube():
    """Batch 2, 256 × 256, width 256: under a twentieth of what the written-out form holds."""
    score = regard.Additive(256, 256, 256)
    inputs = [torch.randn(2, 256, 256, requires_grad=True) for _ in range(3)]

    def naive(query, key, value):
        hidden = score.queries(query)[:, :, None] + score.keys(key)[:, None]
        return (torch.tanh(hidden) @ score.weight[0]).softmax(-1) @ value

    ours = lambda *qkv: regard.attend(*qkv, score=score)  # noqa: E731
    torch.testing.assert_close(ours(*inputs), naive(*inputs))
    assert peak_bytes(grad_run(ours, inputs)) < 0.05 * peak_bytes(grad_run(naive, inputs))


@pytest.mark.parametrize(
    ("kind", "name"), [*(("decoder", x) for x in DECODERS), *(("encoder", x) for x in ENCODERS)]
)
def test_each_attention_module_has_as_many_heads_as_its_calls(kind, name):
    """Edits, ablations and pages ask the module."""
    part = decoder(name) if kind == "decoder" else encoder(name)
    calls, modules = (
        [],
        [module for module in part.modules() if isinstance(module, AttentionModule)],
    )
    with regard.capture_attention(calls.append), torch.no_grad():
        part(torch.randint(VOCABULARY, (3, 4)), memory()) if kind == "decoder" else part(
            source(name)
        )
    found = {call.source: call.spec.query.shape[1] for call in calls if call.source is not None}
    assert {*found} <= {*modules}
    assert {module: module.heads for module in found} == found


def test_nothing_is_captured_when_the_module_is_loaded():
    """Before the first block, in this process: every call would look for one."""
    spec = importlib.util.spec_from_file_location("regard_capture_anew", capture.__file__)
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    assert not anew.capturing()
    assert not anew.intercepted()
    with anew.capture_attention():
        assert (anew.capturing(), anew.intercepted()) == (True, False)
        with anew.intercepting(lambda module, result: result):
            assert (anew.capturing(), anew.intercepted()) == (True, True)
    assert (anew.capturing(), anew.intercepted()) == (False, False)
