"""Whether kernels can be launched is found out, and said, without a GPU here."""

import os
import subprocess
import sys

import pytest
import torch

import regard
from regard.kernels import triton_launch

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.delenv("REGARD_TRITON", raising=False)
    monkeypatch.setattr(triton_launch, "find_spec", lambda name: name)
    monkeypatch.setattr(sys, "platform", "linux")
    for known in (triton_launch.present, triton_launch._without):
        known.cache_clear()
    yield
    for known in (triton_launch.present, triton_launch._without):
        known.cache_clear()


def failing(tried: list[torch.device]):
    def fail(device: torch.device) -> None:
        tried.append(device)
        raise RuntimeError("There is no C compiler.\nMore of it")

    return fail


def test_a_kernel_that_fails_is_tried_and_told_once(monkeypatch, capsys):
    tried: list[torch.device] = []
    monkeypatch.setattr(triton_launch, "_try", failing(tried))
    assert [triton_launch.present(each) for each in (FIRST, FIRST, SECOND, SECOND)] == [False] * 4
    assert tried == [FIRST, SECOND]
    told = "regard: on this GPU without kernels of its own, which is slower: There is no C compiler"
    assert capsys.readouterr().err == f"{told}\n"


def test_one_that_works_is_tried_once(monkeypatch, capsys):
    tried: list[torch.device] = []
    monkeypatch.setattr(triton_launch, "_try", tried.append)
    assert triton_launch.present(FIRST)
    assert triton_launch.present(FIRST)
    assert tried == [FIRST]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("without", ["told not to", "no Triton", "no Linux"])
def test_where_nobody_wants_them_nothing_is_tried_or_told(without, monkeypatch, capsys):
    monkeypatch.setattr(triton_launch, "_try", failing(tried := []))
    if without == "told not to":
        monkeypatch.setenv("REGARD_TRITON", "0")
    elif without == "no Triton":
        monkeypatch.setattr(triton_launch, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(sys, "platform", "win32")
    assert not triton_launch.present(FIRST)
    assert tried == []
    assert capsys.readouterr().err == ""


def test_an_old_gpu_is_told_of(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not triton_launch.present(FIRST)
    assert "wanted a GPU of compute capability 8.0 or more; got 7.5" in capsys.readouterr().err


def test_then_pytorch_does_the_same(monkeypatch, capsys):
    """Tensors that say that they are on a GPU, where nothing can be launched."""
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
    assert capsys.readouterr().err.count("without kernels of its own") == 1


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="there is a GPU: test_cuda.py has it")
def test_the_smallest_kernel_notices_wrong_results(monkeypatch):
    pytest.importorskip("triton", reason="needs Triton, which is there for Linux on x86_64")
    from regard.kernels import probe_triton

    probe_triton.probe(torch.device("cpu"))
    right = probe_triton._twice[(1,)]
    wrong = {(1,): lambda given, found, **constants: right(given + 1, found, **constants)}
    monkeypatch.setattr(probe_triton, "_twice", wrong)
    with pytest.raises(RuntimeError, match=r"a kernel computed \[2.0, 4.0"):
        probe_triton.probe(torch.device("cpu"))


def test_without_a_gpu_nothing_of_triton_is_imported():
    """By us: parts of PyTorch try to."""
    program = """
import sys, torch, regard
from regard.runtime.cuda.static_decoder import static_decoder
x = torch.randn(1, 2, 3, 4)
regard.attend(x, x, x, score=regard.Additive(4, 4, 6))
regard.attention_summary(x, x)
side = {"kind": "transformer", "dim": 8, "layers": 1, "heads": 2}
model = regard.build({"encoder": side, "decoder": side, "vocab_size": 9})
assert static_decoder(model.eval().decoder, 4) is None
print([name for name in sys.modules if name.endswith("_triton")])
"""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "[]\n", done.stderr
