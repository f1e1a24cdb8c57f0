"""The CPU engine: compiled steps equal PyTorch's, and nothing depends on a compiler."""

import gc
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary, ref

import pytest
import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.cpu import compile, engine as engine_module
from regard.generation.engines.cpu.decoder import NativeDecoder
from regard.generation.engines.cpu.engine import CpuEngine, Packed, _warn_no_int8
from regard.generation.engines.cpu.support import decodes
from regard.generation.engines.plain_transformer import is_plain
from regard.generation.engines.torch import PyTorchDecoder
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.model import capture
from regard.model.embedding import Embedding, Projection
from regard.model.memory import Memory
from regard.model.scores import Additive
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder, TransformerEncoder
from support.models import (
    DECODERS,
    SMALL,
    TEXT_ENCODERS,
    VOCABULARY,
    WIDTH,
    decoder,
    encoder,
    memory,
    words,
)
from support.search import LONGEST, decode, model, sources, token_ids

COMPILED = ("transformer", "transformer post-norm", "transformer sinusoidal", "transformer learned", "transformer none",
            "transformer rms_offset, no biases")  # fmt: skip
DECODED = (*COMPILED, "transformer rms swiglu grouped", "transformer like T5", "transformer like Qwen",
           "transformer like BART", "transformer rotary", "transformer alibi", "transformer relative")  # fmt: skip
RECURRENT = tuple(
    name for name in DECODERS if not name.startswith("transformer")
)  # convolutional ones among them
ENGINE = CpuEngine()
needs_compiler = pytest.mark.skipif(compile.library() is None, reason="no C++ compiler here")


@needs_compiler
@pytest.mark.parametrize("name", ["transformer", "lstm bahdanau", "conv"])
def test_under_autocast_pytorch_decodes(name):
    """States are bfloat16 there: compiled code, which reads float32, would write beyond the end of its tensors."""
    made, options = model(name), {"max_length": LONGEST}
    assert not isinstance(selection.decoder_for(made, **options), PyTorchDecoder)
    with torch.autocast("cpu", torch.bfloat16):
        assert isinstance(selection.decoder_for(made, **options), PyTorchDecoder)
        assert len(decode(made, sources(), beam_size=2)) == len(sources())


@needs_compiler
@pytest.mark.parametrize("name", DECODERS)
def test_which_decoders_are_supported(name):
    assert (ENGINE.compile_decoder(decoder(name)) is not None) == (
        name in (*DECODED, *RECURRENT, "transformer checkpointed")
    )


@needs_compiler
@pytest.mark.parametrize("name", [*DECODED, *RECURRENT])
@pytest.mark.parametrize("beams", [1, 3])
@torch.inference_mode()
def test_compiled_steps_equal_plain_ones(name, beams):
    """Through follow, reorder, admit and eviction."""
    plain = decoder(name)
    compiled = ENGINE.compile_decoder(plain)
    assert compiled is not None
    given = memory()
    states = [each.start(given, batch=3, capacity=8, beams=beams) for each in (plain, compiled)]
    generator = torch.Generator().manual_seed(1)

    def step(rows: int) -> None:
        tokens = torch.randint(VOCABULARY, (rows * beams,), generator=generator)
        logits, states[0] = plain.step(tokens, states[0])
        mine, states[1] = compiled.step(tokens, states[1])
        torch.testing.assert_close(mine, logits, atol=2e-5, rtol=1e-4)
        parents = torch.randint(beams, (rows, beams), generator=generator)
        states[:] = [each.follow(parents) for each in states]

    for _ in range(4):
        step(3)
    fresh = [
        each.start(given.reorder(torch.tensor([2, 0])), batch=2, capacity=0, beams=beams)
        for each in (plain, compiled)
    ]
    states[:] = [
        mine.admit(torch.tensor([0, 2]), new) for mine, new in zip(states, fresh, strict=True)
    ]
    for _ in range(3):
        step(3)
    states[:] = [each.reorder(torch.tensor([2, 0])) for each in states]  # the ones admitted later
    for _ in range(4):  # past the capacity: the older half is evicted
        step(2)


@needs_compiler
@pytest.mark.parametrize("options", [{}, {"beam_size": 3, "num_hypotheses": 3}])
def test_search_results_equal_plain_ones(monkeypatch, options):
    made, rows = model("transformer"), sources()
    compiled = decode(made, rows, **options, batch_tokens=13)
    monkeypatch.setattr(selection, "ENGINES", (selection.PyTorchEngine(),))
    plain = decode(made, rows, **options, batch_tokens=13)
    assert token_ids(compiled) == token_ids(plain)
    for one, other in zip(compiled, plain, strict=True):
        assert [each.score for each in one] == pytest.approx(
            [each.score for each in other], abs=1e-4
        )


@needs_compiler
@pytest.mark.parametrize("name", [*DECODED, *RECURRENT])
@pytest.mark.parametrize("beams", [1, 3])
@torch.inference_mode()
def test_a_row_does_not_depend_on_the_batch(name, beams):
    """Bit for bit, with the padding of longer sources beside it."""
    compiled, given = ENGINE.compile_decoder(decoder(name)), memory()
    rows = torch.randint(VOCABULARY, (5, 3, beams), generator=torch.Generator().manual_seed(1))
    together = compiled.start(given, batch=3, capacity=8, beams=beams)
    lengths = given.mask.sum(1).tolist()
    alone = []
    for row, length in enumerate(lengths):
        part = Memory(
            given.states[row : row + 1, :length],
            given.mask[row : row + 1, :length],
            given.summary[[row]],
        )
        alone.append(compiled.start(part, batch=1, capacity=8, beams=beams))
    assert len(set(lengths)) > 1
    for tokens in rows:
        logits, together = compiled.step(tokens.flatten(), together)
        logits = logits.clone()
        for row in range(3):
            mine, alone[row] = compiled.step(tokens[row], alone[row])
            assert torch.equal(mine, logits.view(3, beams, -1)[row])


def stepped(module: nn.Module, *, fused: bool) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=fused)
    module(torch.tensor([[1, 5]]), memory().reorder(torch.tensor([0]))).sum().backward()
    optimizer.step()


def one_weight(module: nn.Module) -> None:
    with torch.no_grad():
        module.project.weight[3, 2] += 0.5


@needs_compiler
@pytest.mark.parametrize("name", COMPILED)
@torch.inference_mode()
def test_heads_are_scaled_as_their_outputs_are(name):
    plain, given, tokens = decoder(name), memory(), torch.tensor([5, 6, 7])
    compiled, last = ENGINE.compile_decoder(plain), plain.stack.layers[-1]
    factors = {last.self_attn: {0: 0.0}, last.cross_attn: {0: -2.0, 1: 0.5}}

    def scale(module, result):
        scaled = torch.tensor(
            [factors.get(module, {}).get(head, 1.0) for head in range(result.out.shape[1])]
        )
        return result._replace(out=result.out * scaled[:, None, None])

    def logits(engine) -> torch.Tensor:
        state, steps = engine.start(given, batch=3, capacity=4), []
        for _ in range(3):
            step, state = engine.step(tokens, state)
            steps.append(step.clone())
        return torch.stack(steps)

    unchanged, scaled = logits(compiled), logits(compiled.with_scaled_heads(factors))
    with capture.intercepting(scale):
        torch.testing.assert_close(scaled, logits(plain), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(scaled, unchanged, atol=1e-3)
    assert torch.equal(logits(compiled), unchanged)
    assert torch.equal(logits(compiled.with_scaled_heads({})), unchanged)


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        partial(stepped, fused=False),
        partial(stepped, fused=True),
        one_weight,
        lambda module: module.stack.layers[0].self_attn.q_proj.weight.data.mul_(2),
    ],
    ids=["optimizer", "fused optimizer", "one weight", "data"],
)
def test_changed_weights_are_noticed(change):
    """Also changes that PyTorch's version counter misses."""
    plain = decoder("transformer")
    before = ENGINE.compile_decoder(plain)
    assert ENGINE.compile_decoder(plain) is before
    change(plain)
    assert ENGINE.compile_decoder(plain) is not before


@needs_compiler
def test_constant_weights_are_not_compared():
    """The engine for them shares what is compiled, and compares nothing again."""
    plain = decoder("transformer")
    before = ENGINE.compile_decoder(plain)
    constant = ENGINE.with_constant_weights()
    assert constant.compile_decoder(plain) is before
    plain.project.weight.data.mul_(2)
    assert constant.compile_decoder(plain) is before
    assert ENGINE.compile_decoder(plain) is not before


@needs_compiler
@pytest.mark.parametrize("constant", [False, True])
def test_a_search_hands_on_that_weights_are_constant(constant, monkeypatch):
    made = model("transformer")
    compared = []
    monkeypatch.setattr(engine_module, "fingerprint", lambda *given: compared.append(1) or [1])
    task = SearchTask(made, Tokens.of, DecodeConfig(max_length=3), constant_weights=constant)
    requests = [GenerationRequest(row, len(row)) for row in sources()[:2]]
    list(search(task, requests))
    compared.clear()
    found = list(search(task, requests))
    assert len(found) == 2
    assert bool(compared) is not constant


@needs_compiler
@pytest.mark.parametrize("columns", [slice(0, 64), slice(64, 128), slice(192, 256)])
def test_changed_columns_of_a_large_matrix_are_noticed(columns):
    wide = replace(SMALL, dim=256, heads=4, ffn_dim=256)
    plain = TransformerDecoder(
        wide, Embedding(VOCABULARY, 256), Projection(256, VOCABULARY), WIDTH
    ).eval()
    before = ENGINE.compile_decoder(plain)
    plain.stack.layers[0].self_attn.out_proj.weight.data[:, columns] *= 2
    assert ENGINE.compile_decoder(plain) is not before


@needs_compiler
@pytest.mark.parametrize("part", ["out_proj.weight", "q_proj.weight", "q_proj.bias"])
def test_a_change_of_the_last_number_of_a_weight_is_noticed(part):
    """Of a large weight not every number is compared, but its end always is."""
    wide = replace(SMALL, dim=256, heads=4, ffn_dim=256)
    plain = TransformerDecoder(
        wide, Embedding(VOCABULARY, 256), Projection(256, VOCABULARY), WIDTH
    ).eval()
    before = ENGINE.compile_decoder(plain)
    plain.stack.layers[0].self_attn.get_parameter(part).data.view(-1)[-1] += 1
    assert ENGINE.compile_decoder(plain) is not before


@needs_compiler
@pytest.mark.parametrize("name", TEXT_ENCODERS)
def test_compiled_encoders_equal_plain_ones(name):
    made = Seq2Seq(encoder(name), decoder("transformer")).eval()
    with torch.inference_mode():
        same_memory(made, Tokens.of(sources()))
    assert (made.encoder in ENGINE.compiled) == (name in COMPILED)


@needs_compiler
def test_compiled_encoders_with_post_norm_and_empty_sources():
    made = Seq2Seq(
        TransformerEncoder(replace(SMALL, norm_first=False), words()), decoder("transformer")
    ).eval()
    with torch.inference_mode():
        same_memory(made, Tokens.of(sources()))
        same_memory(made, Tokens.of([[3, 4], []]))


def same_memory(made: Seq2Seq, source: Tokens) -> None:
    mine, plain = (
        ENGINE.encode(made, source, half=False) or made.encode(source),
        made.encode(source),
    )
    for one, other in (
        (mine.states, plain.states),
        (mine.summary, plain.summary),
        (mine.mask, plain.mask),
    ):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize("name", [*DECODED, *RECURRENT])
@torch.inference_mode()
def test_int8_is_close(name):
    plain = decoder(name)
    compiled, given = ENGINE.compile_decoder(plain, int8=True), memory()
    if not compiled.weights.int8_max_inputs:
        pytest.skip("this processor has no int8 products")
    states = [each.start(given, batch=3, capacity=8) for each in (plain, compiled)]
    for tokens in torch.randint(VOCABULARY, (8, 3)):
        logits, states[0] = plain.step(tokens, states[0])
        mine, states[1] = compiled.step(tokens, states[1])
        assert 0 < (mine - logits).norm() / logits.norm() < 0.03


@needs_compiler
@torch.inference_mode()
def test_int8_leaves_widths_that_four_does_not_divide():
    """Its products read four bytes at a time."""
    odd = replace(SMALL, dim=18, heads=2, ffn_dim=22)
    plain = TransformerDecoder(
        odd, Embedding(VOCABULARY, 18), Projection(18, VOCABULARY), WIDTH
    ).eval()
    compiled, given = ENGINE.compile_decoder(plain, int8=True), memory()
    if compiled is None or not compiled.weights.int8_max_inputs:
        pytest.skip("this processor has no int8 products")
    states = [each.start(given, batch=3, capacity=8) for each in (plain, compiled)]
    for tokens in torch.randint(VOCABULARY, (8, 3)):
        logits, states[0] = plain.step(tokens, states[0])
        mine, states[1] = compiled.step(tokens, states[1])
        assert (mine - logits).norm() / logits.norm() < 0.03


def test_unsupported_int8_is_logged_once(caplog):
    made, rows = model("transformer additive"), sources()[:3]
    _warn_no_int8.cache_clear()
    assert (
        token_ids(decode(made, rows, quantization="int8"))
        == token_ids(decode(made, rows))
        == token_ids(decode(made, rows, quantization="int8"))
    )
    assert caplog.text.count("int8 is not supported") == 1


@needs_compiler
@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_under_capture_keeps_the_engine_and_every_bit(beams):
    """A call's tensors are overwritten by later steps, so that its weights are computed at once."""
    made, rows, options = (
        model("transformer"),
        sources()[:5],
        {"beam_size": beams, "batch_tokens": 13},
    )
    plain = decode(made, rows, **options)
    modules, sums = set(), []

    def collect(call: capture.AttentionCall) -> None:
        modules.add(call.source)
        sums.append(call.weights().sum(-1).flatten())

    with capture.capture_attention(collect):
        assert ENGINE.compile_decoder(made.decoder) is not None
        assert decode(made, rows, **options) == plain
    assert len(modules) == len(made.encoder.stack.layers) + 2 * len(made.decoder.stack.layers)
    total = torch.cat(sums)  # zero in the padding of a source
    assert ((total - 1).abs() < 1e-5).sum() + (total == 0).sum() == len(total)


@needs_compiler
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", [*DECODED, "lstm bahdanau", "gru luong input-feeding", "conv"])
@torch.inference_mode()
def test_captured_weights_equal_those_of_plain_steps(name, beams):
    """Through follow and admit."""
    plain, given = decoder(name), memory()
    both = plain, ENGINE.compile_decoder(plain)
    states = [each.start(given, batch=3, capacity=8, beams=beams) for each in both]
    generator = torch.Generator().manual_seed(1)
    for number in range(5):
        tokens = torch.randint(VOCABULARY, (3 * beams,), generator=generator)
        calls = []
        for i, each in enumerate(both):
            with capture.capture_attention() as captured:
                _, states[i] = each.step(tokens, states[i])
            calls.append(captured)
        assert len(calls[0]) == len(calls[1]) > 0
        for one, other in zip(*calls, strict=True):
            assert one.source is other.source
            torch.testing.assert_close(other.weights(), one.weights(), atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(other.value, one.value, atol=2e-5, rtol=1e-4)
        parents = torch.randint(beams, (3, beams), generator=generator)
        states[:] = [each.follow(parents) for each in states]
        if number == 2:
            fresh = [
                each.start(given.reorder(torch.tensor([1])), batch=1, capacity=0, beams=beams)
                for each in both
            ]
            states[:] = [
                mine.admit(torch.tensor([0]), new) for mine, new in zip(states, fresh, strict=True)
            ]


@needs_compiler
def test_an_interceptor_disables_the_engine_in_its_own_thread_only():
    plain = decoder("transformer")
    with ThreadPoolExecutor(1) as other, capture.intercepting(lambda source, result: result):
        assert ENGINE.compile_decoder(plain) is None
        assert other.submit(ENGINE.compile_decoder, plain, int8=True).result() is not None


class Contested(WeakKeyDictionary):
    """A dictionary in which another thread replaces every value at once."""

    def __setitem__(self, key, value) -> None:
        super().__setitem__(key, {False: Packed([], "of another thread")})


@needs_compiler
def test_a_decoder_compiled_by_another_thread_is_not_returned(monkeypatch):
    monkeypatch.setattr(ENGINE, "compiled", Contested())
    assert isinstance(ENGINE.compile_decoder(decoder("transformer")), NativeDecoder)


@needs_compiler
def test_interceptors_change_a_search():
    made, rows = model("transformer"), sources()[:3]
    with capture.intercepting(
        lambda source, result: result._replace(out=torch.zeros_like(result.out))
    ):
        zeroed = decode(made, rows)
    plain = decode(made, rows)
    assert [each[0].score for each in zeroed] != pytest.approx(
        [each[0].score for each in plain], abs=1e-3
    )


@needs_compiler
def test_learned_positions_end_with_their_table():
    """Positions count from a sequence's admission, not from the start of the search."""
    short = replace(SMALL, positions="learned", max_positions=LONGEST)
    plain = TransformerDecoder(short, words(), Projection(WIDTH, VOCABULARY), WIDTH)
    made, rows = Seq2Seq(encoder("transformer"), plain).eval(), sources()
    assert ENGINE.compile_decoder(made.decoder) is not None
    wanted = token_ids(decode(made, rows, min_length=LONGEST))
    assert token_ids(decode(made, rows, min_length=LONGEST, batch_tokens=8)) == wanted
    assert token_ids(decode(made, rows, min_length=LONGEST + 1, max_length=LONGEST + 2)) == wanted


@needs_compiler
@torch.inference_mode()
def test_an_encoder_refuses_a_source_beyond_its_learned_positions():
    short = replace(SMALL, positions="learned", max_positions=LONGEST)
    plain = TransformerEncoder(short, words())
    made = Seq2Seq(plain, decoder("transformer")).eval()
    longest = Tokens.of([[5] * LONGEST])
    assert ENGINE.encode(made, longest, half=False) is not None
    with pytest.raises(InvalidArgument, match=f"at most {LONGEST} positions"):
        ENGINE.encode(made, Tokens.of([[5] * (LONGEST + 1)]), half=False)


@needs_compiler
@pytest.mark.parametrize("wrong", [VOCABULARY, 100_000, 2**32 - 1, -1])
@pytest.mark.parametrize("name", ["transformer", "lstm bahdanau", "rnn", "conv"])
@torch.inference_mode()
def test_ids_out_of_range_are_refused(name, wrong):
    """As PyTorch refuses them; without a check, compiled code would read other memory."""
    compiled = ENGINE.compile_decoder(decoder(name))
    state = compiled.start(memory(), batch=3, capacity=8)
    with pytest.raises(IndexError, match="token id"):
        compiled.step(torch.tensor([1, wrong, 2]), state)
    with pytest.raises(IndexError):
        compiled.step(torch.ones(4, dtype=torch.int64), state)
    if name != "transformer":
        return
    made = Seq2Seq(encoder("transformer"), decoder("transformer")).eval()
    with pytest.raises(IndexError, match="token id"):
        ENGINE.encode(made, Tokens.of([[3, wrong], [1]]), half=False)


@needs_compiler
@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("parents", 3, "parent"),
        ("parents", -1, "parent"),
        ("admitted", 1, "admission"),
        ("admitted", -1, "admission"),
    ],
)
@torch.inference_mode()
def test_states_out_of_range_are_refused(field, value, match):
    compiled = ENGINE.compile_decoder(decoder("transformer"))
    state = compiled.start(memory(), batch=3, capacity=8, beams=3)
    _, state = compiled.step(torch.ones(9, dtype=torch.long), state)
    getattr(state, field).fill_(value if field == "parents" else 2 * value)
    with pytest.raises(IndexError, match=match):
        compiled.step(torch.ones(9, dtype=torch.long), state)
    with pytest.raises(IndexError, match="cache"):
        compiled.step(torch.ones(12, dtype=torch.long), state)


@needs_compiler
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="the sanitizers of GCC are used")
def test_compiled_code_passes_the_sanitizers(tmp_path):
    """The tests of steps and of loops with a library built by AddressSanitizer and UndefinedBehaviorSanitizer."""
    compiler = tmp_path / "c++"
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
    compiler.write_text(f'#!/bin/sh\nexec g++ "$@" {flags}\n')
    compiler.chmod(0o755)
    runtimes = [
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "CXX": str(compiler),
        "REGARD_CACHE": str(tmp_path),
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    files = [__file__, str(Path(__file__).with_name("test_search_loop.py"))]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *files,
    ]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    assert list(tmp_path.rglob("*.so"))


def test_a_block_of_another_kind_leaves_its_stack_to_pytorch():
    made, coder = decoder("transformer"), encoder("transformer")
    for module, compiled in ((made.eval(), decodes), (coder.eval(), is_plain)):
        first, last = module.stack.layers[0], module.stack.layers[-1]
        assert first is not last
        assert compiled(module)
        for block in (first, last):
            score, block.self_attn.score = block.self_attn.score, Additive(8, 8, 4)
            assert not compiled(module)
            block.self_attn.score = score
        assert compiled(module)
    coder.stack.layers[
        -1
    ].self_attn.kv_heads = 1  # grouped heads, which compiled encoders do not have
    assert (decodes(coder), is_plain(coder)) == (True, False)


@needs_compiler
@pytest.mark.parametrize("name", ["transformer", "rnn", "conv"])
def test_each_quantization_is_packed_once(name):
    """A server that drafts in float32 for a model in int8 would pack all weights at every turn."""
    made = decoder(name)
    plain = ENGINE.compile_decoder(made)
    int8 = ENGINE.compile_decoder(made, int8=True)
    assert plain is not int8
    for _ in range(3):
        assert ENGINE.compile_decoder(made) is plain
        assert ENGINE.compile_decoder(made, int8=True) is int8


@needs_compiler
def test_changed_weights_are_packed_again_for_each_quantization():
    made = decoder("transformer")
    before = [ENGINE.compile_decoder(made, int8=int8) for int8 in (False, True)]
    packed = [ref(each) for each in before]
    with torch.no_grad():
        made.embed_tokens.weight.mul_(1.5)
    after = ENGINE.compile_decoder(made)
    assert after is not before[0]
    del before
    gc.collect()
    # Neither copy of the old weights is kept.
    assert [each() for each in packed] == [None, None]
    assert ENGINE.compile_decoder(made, int8=True) is not after


@needs_compiler
def test_packed_weights_live_as_long_as_their_module():
    made = decoder("transformer")
    packed = [ref(ENGINE.compile_decoder(made, int8=int8)) for int8 in (False, True)]
    gc.collect()
    assert all(each() is not None for each in packed)
    del made
    gc.collect()
    assert all(each() is None for each in packed)
