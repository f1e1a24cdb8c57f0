"""Whether Triton kernels can be launched is probed, and logged once; without a GPU here."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Event, Timer, current_thread, main_thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import regard
from regard.kernels import triton_launch
from regard.kernels.attention import additive, varlen, weights
from regard.kernels.layers import conv_unfold, linear, residual_norm
from regard.kernels.recurrent import rnn_cuda

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.delenv("REGARD_TRITON", raising=False)
    monkeypatch.setattr(triton_launch, "find_spec", lambda name: name)
    monkeypatch.setattr(sys, "platform", "linux")
    for known in (triton_launch.available, triton_launch._warn):
        known.cache_clear()
    yield
    for known in (triton_launch.available, triton_launch._warn):
        known.cache_clear()


def failing(tried: list[torch.device]):
    def fail(device: torch.device) -> None:
        tried.append(device)
        raise RuntimeError("There is no C compiler.\nMore of it")

    return fail


def test_a_failing_probe_runs_once_per_device_and_is_logged_once(monkeypatch, caplog):
    tried: list[torch.device] = []
    monkeypatch.setattr(triton_launch, "_try", failing(tried))
    assert [triton_launch.available(each) for each in (FIRST, FIRST, SECOND, SECOND)] == [False] * 4
    assert tried == [FIRST, SECOND]
    message = (
        "Triton kernels are unavailable on this GPU, PyTorch's are slower: There is no C compiler"
    )
    assert caplog.messages == [message]


def test_a_working_probe_runs_once(monkeypatch, caplog):
    tried: list[torch.device] = []
    monkeypatch.setattr(triton_launch, "_try", tried.append)
    assert triton_launch.available(FIRST)
    assert triton_launch.available(FIRST)
    assert tried == [FIRST]
    assert caplog.messages == []


def test_a_model_for_a_gpu_is_loaded_while_another_thread_probes(monkeypatch):
    """And who needs the answer meanwhile waits for it: no two probes run at once."""
    entered, released, events = Event(), Event(), list[str]()

    def slow(device: torch.device) -> None:
        events.append(f"begin {device} {current_thread() is main_thread()}")
        entered.set()
        assert released.wait(60)
        events.append("end")

    monkeypatch.setattr(triton_launch, "_try", slow)
    triton_launch.prepare("cpu")
    triton_launch.prepare("cuda")
    assert entered.wait(60)
    Timer(0.2, released.set).start()
    assert triton_launch.available(FIRST)
    assert events == ["begin cuda:0 False", "end", "begin cuda:0 True", "end"]
    triton_launch.prepare("cuda:0")
    assert triton_launch.available(FIRST)
    assert len(events) == 4


def test_loading_a_model_prepares_its_device(monkeypatch):
    monkeypatch.setattr(triton_launch, "prepare", (prepared := []).append)
    regard.load(Path(__file__).parents[1] / "golden" / "0.1.0" / "classifier", device="cpu")
    assert prepared == ["cpu"]


@pytest.mark.parametrize("without", ["disabled", "no Triton", "no Linux"])
def test_disabled_or_unsupported_platforms_are_not_probed(without, monkeypatch, caplog):
    monkeypatch.setattr(triton_launch, "_try", failing(tried := []))
    if without == "disabled":
        monkeypatch.setenv("REGARD_TRITON", "0")
    elif without == "no Triton":
        monkeypatch.setattr(triton_launch, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(sys, "platform", "win32")
    assert not triton_launch.available(FIRST)
    assert tried == []
    assert caplog.messages == []


def test_an_old_gpu_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not triton_launch.available(FIRST)
    assert "wanted a GPU of compute capability 8.0 or more; got 7.5" in caplog.text


def test_pytorch_computes_the_same_without_triton(monkeypatch, caplog):
    """With tensors that claim to be on a GPU."""
    query, key, value = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    score = regard.Additive(4, 4, 6)
    wanted = regard.attend(query, key, value, score=score)
    tried: list[torch.device] = []
    monkeypatch.setattr(triton_launch, "_try", failing(tried))
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)
        got = [regard.attend(query, key, value, score=score) for _ in range(2)]
    assert tried == [query.device]
    assert all(torch.equal(each, wanted) for each in got)
    assert caplog.text.count("Triton kernels are unavailable") == 1


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="tested on the GPU by test_cuda.py"
)
def test_the_probe_notices_wrong_results(monkeypatch):
    pytest.importorskip("triton", reason="needs Triton, which exists for Linux on x86_64")
    from regard.kernels import jit_triton

    jit_triton.probe(torch.device("cpu"))
    right = jit_triton._double[(1,)]
    wrong = {(1,): lambda x, out, **constants: right(x + 1, out, **constants)}
    monkeypatch.setattr(jit_triton, "_double", wrong)
    with pytest.raises(RuntimeError, match=r"a kernel computed \[2.0, 4.0"):
        jit_triton.probe(torch.device("cpu"))


def test_without_a_gpu_no_triton_module_is_imported():
    """Of this package; PyTorch imports some of its own."""
    program = """
import sys, torch, regard
from regard.generation.engines.cuda.engine import CudaEngine
x = torch.randn(1, 2, 3, 4)
regard.attend(x, x, x, score=regard.Additive(4, 4, 6))
regard.attention_summary(x, x)
side = {"kind": "transformer", "dim": 8, "layers": 1, "heads": 2}
model = regard.build({"encoder": side, "decoder": side, "vocab_size": 9})
assert CudaEngine().decoder_for(model.eval(), max_length=4) is None
print([name for name in sys.modules if name.endswith("_triton")])
"""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_cache_that_others_could_write_to_is_not_used(monkeypatch, tmp_path, caplog):
    """Triton loads compiled code from it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "open"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert not triton_launch.available(FIRST)
    assert "others cannot write to" in caplog.text


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (additive, "ROWS KEYS OWN COLUMNS TILE WIDTH"),
        (weights, "ROWS KEYS WARPS MAX_TOP"),
        (varlen, "LOOP_STEP"),
        (rnn_cuda, "BLOCK"),
        (conv_unfold, "ROWS COLUMNS"),
        (linear, "ROWS COLUMNS"),
        (residual_norm, "TILE BACKWARD_TILE MAX_WIDTH"),
    ],
    ids=lambda each: getattr(each, "__name__", "").rpartition(".")[2],
)
def test_sizes_of_tiles_are_powers_of_two(module, names):
    """Which Triton demands of a range, and its interpreter, in which tests run, does not."""
    sizes = {name: getattr(module, name) for name in names.split()}
    assert {name: size.bit_count() for name, size in sizes.items()} == dict.fromkeys(sizes, 1)


@pytest.mark.parametrize(
    ("name", "begun", "wanted"), [("cuda", False, 0), ("cuda", True, 5), ("cuda:3", True, 3)]
)
def test_the_current_gpu_is_probed_unless_one_is_named(monkeypatch, name, begun, wanted):
    """Where CUDA has not begun, asking for the current one would begin it."""
    asked = Mock()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: begun)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    monkeypatch.setattr(triton_launch, "available", asked)
    monkeypatch.setattr(
        triton_launch,
        "Thread",
        lambda target, args, name: SimpleNamespace(start=lambda: target(*args)),
    )
    triton_launch.prepare(name)
    asked.assert_called_once_with(torch.device("cuda", wanted))
