"""Which kernel a GPU is asked for, and with which tiles: decided in Python, from tensors that claim to be on a GPU."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from regard.core.sequence import SequenceOffsets
from regard.generation.engines import choice_kernels
from regard.generation.engines.cuda.kernels import step
from regard.kernels import triton_launch
from regard.kernels.attention import sdpa, small_kv, varlen, weights
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.attention.varlen import HeadLayout, PackedAttentionSpec
from regard.kernels.layers import linear as linears
from regard.kernels.layers.linear import linear

HALF, FULL = torch.bfloat16, torch.float32


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    monkeypatch.setattr(triton_launch, "available", lambda device: True)
    return monkeypatch


def compiling(monkeypatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def dots(
    n: int, m: int, dim: int, dtype=FULL, heads: int = 2, kv_heads: int = 2, **changes
) -> AttentionSpec:
    query, key = (
        torch.zeros(1, heads, n, dim, dtype=dtype),
        torch.zeros(1, kv_heads, m, dim, dtype=dtype),
    )
    return replace(AttentionSpec(DotScoreFunction(1.0), query, key, AttentionMask()), **changes)


def test_kernels_take_tensors_of_their_kinds(gpu):
    x = torch.zeros(2, 3)
    assert triton_launch.can_launch(x)
    assert triton_launch.can_launch(x, x.half(), x.bfloat16())
    assert not triton_launch.can_launch(x, x.double())
    assert not triton_launch.can_launch(x, torch.zeros(0, 3))
    with gpu.context() as patch:
        compiling(patch)
        assert not triton_launch.can_launch(x)
    with gpu.context() as patch:
        patch.setattr(triton_launch, "available", lambda device: False)
        assert not triton_launch.can_launch(x)
    gpu.setattr(torch.Tensor, "is_cuda", property(lambda tensor: False), raising=False)
    assert not triton_launch.can_launch(x)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"dim": 256}, False),  # PyTorch has kernels up to there
        ({"dtype": FULL}, False),
        ({"n": 514, "m": 514, "dim": 257}, True),  # the weights are as large as queries and keys
        ({"n": 515, "m": 515, "dim": 257}, False),
        ({"kv_heads": 1}, False),
        ({"dropout": 0.1}, False),
        ({"learned": True}, False),
        ({"value_dim": 256}, False),
        ({"compiled": True}, False),
    ],
)
def test_wide_heads_over_few_keys(gpu, changes, wanted):
    given = {
        "n": 4,
        "m": 5,
        "dim": 257,
        "dtype": HALF,
        "kv_heads": 2,
        "dropout": 0.0,
        "value_dim": None,
    } | changes
    learned, compiled = given.pop("learned", False), given.pop("compiled", False)
    dropout, value_dim = given.pop("dropout"), given.pop("value_dim")
    spec = dots(**given)
    if learned:
        spec = replace(spec, bias=torch.zeros(1, 1, 1, spec.m, requires_grad=True))
    value = spec.key if value_dim is None else spec.key[..., :value_dim]
    if compiled:
        compiling(gpu)
    assert small_kv.supports(spec, value, dropout) is wanted
    with torch.no_grad():
        assert small_kv.supports(spec, value, dropout) is (wanted or learned)
    gpu.setattr(torch.Tensor, "is_cuda", property(lambda tensor: False), raising=False)
    assert not small_kv.supports(spec, value, dropout)


@pytest.mark.parametrize(("dim", "wanted"), [(256, True), (257, False)])
def test_weights_of_plain_dot_products(gpu, dim, wanted):
    assert weights.triton_supports(dots(4, 5, dim)) is wanted
    assert not weights.triton_supports(dots(4, 5, dim, bias=torch.zeros(1, 1, 1, 5)))
    assert not weights.triton_supports(dots(4, 5, dim, dtype=torch.float64))


SHARED = 227 << 10


@pytest.mark.parametrize(
    ("dim", "length", "dtype", "grouped", "shared", "looped"),
    [
        (64, 32, FULL, False, SHARED, False),
        (64, 128, HALF, False, SHARED, False),
        (64, 129, HALF, False, SHARED, None),  # longer than any tile
        (64, 128, FULL, False, SHARED, None),  # (8 · 128 · 64 + 2 · 128²) · 4 bytes do not fit
        (64, 64, FULL, False, SHARED, False),
        (64, 64, FULL, False, (8 * 64 * 64 + 2 * 64**2) * 4, False),
        (64, 64, FULL, False, (8 * 64 * 64 + 2 * 64**2) * 4 - 1, True),
        (256, 32, FULL, False, SHARED, True),  # 8 · 32 · 256 · 4 bytes do not fit
        (257, 32, HALF, False, SHARED, True),
        (257, 32, HALF, True, SHARED, None),
        (1024, 64, FULL, False, SHARED, True),
        (1025, 64, FULL, False, SHARED, None),
        (1024, 128, HALF, False, SHARED, True),
        (1024, 65, FULL, False, SHARED, None),  # a tile of 128 in float32 compiles for a minute
        (512, 32, HALF, False, 80 << 10, True),
        (512, 32, HALF, False, (80 << 10) - 1, None),
    ],
)
def test_heads_that_a_program_holds_or_loops_over(
    monkeypatch, dim, length, dtype, grouped, shared, looped
):
    monkeypatch.setattr(triton_launch, "shared_memory_bytes", lambda device: shared)
    layout = HeadLayout(4, 2 if grouped else 4, dim, 1.0)
    assert varlen._looped(layout, length, torch.zeros(1, dtype=dtype)) is looped


def packed(length: int, dim: int, dtype=HALF, **layout) -> PackedAttentionSpec:
    offsets = SequenceOffsets.of(torch.tensor([length, 2]))
    return PackedAttentionSpec(
        HeadLayout(**{"heads": 2, "kv_heads": 2, "dim": dim, "scale": 0.5} | layout),
        torch.zeros(length + 2, 6 * dim, dtype=dtype), None, offsets, offsets,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("length", "dim", "dtype", "layout", "wanted"),
    [
        (8, 16, HALF, {}, "short"),
        (8, 16, FULL, {}, "short"),
        (8, 16, HALF, {"window": 3}, "padded"),
        (200, 16, HALF, {}, "flash"),
        (200, 12, HALF, {}, "padded"),  # no multiple of 8
        (200, 256, HALF, {}, "flash"),
        (200, 264, HALF, {}, "padded"),
        (200, 16, FULL, {}, "padded"),
    ],
)
def test_kernels_of_packed_sequences(gpu, length, dim, dtype, layout, wanted):
    asked = []
    out = torch.zeros(length + 2, 2 * dim)
    gpu.setattr(varlen._Short, "apply", lambda *given: asked.append("short") or out)
    gpu.setattr(varlen, "_flash", lambda spec: asked.append("flash") or out)
    gpu.setattr(varlen, "attend_padded", lambda spec: asked.append("padded") or out)
    varlen.attend(packed(length, dim, dtype, **layout))
    assert asked == [wanted]


def test_tiles_of_packed_sequences(monkeypatch):
    """One launch for each tile up to the longest sequence, for those too long for the one before."""
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *given, **constants: launched.append((grid, given[-1], constants))

    plain = {"CAUSAL": False, "DROP": False}
    varlen._launch(Kernel(), 2, False, packed(65, 20), torch.zeros(1))
    tiles = [(0, 32, 1), (32, 64, 4), (64, 128, 8)]
    assert launched == [
        (
            (2, 2),
            before,
            {"R": size, "C": size, "LOOPED": False, "D": 32, "num_warps": warps, **plain},
        )
        for before, size, warps in tiles
    ]
    launched.clear()
    varlen._launch(Kernel(), 2, True, packed(64, 20, causal=True, dropout=0.5), torch.zeros(1))
    dropped = {"CAUSAL": True, "DROP": True, "LOOPED": True, "num_stages": 2}
    assert launched == [
        ((2, 2), before, {"R": size, "C": size, "D": 128, "num_warps": warps, **dropped})
        for before, size, warps in ((0, 32, 2), (32, 64, 4))
    ]
    launched.clear()
    varlen._launch(Kernel(), 2, False, packed(32, 20), torch.zeros(1))
    assert [before for _, before, _ in launched] == [0]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"activation": "gelu"}, True),
        ({"activation": "silu"}, False),  # whose derivative the kernel has not
        ({"dtype": FULL}, False),
        ({"dtype": FULL, "autocast": HALF}, True),
        ({"bias": None}, False),
        ({"grad": False}, False),
    ],
)
def test_linear_layers_in_half_precision(gpu, changes, wanted):
    given = {
        "dtype": HALF,
        "activation": None,
        "grad": True,
        "autocast": None,
        "bias": True,
    } | changes
    x, weight = torch.ones(2, 3, dtype=given["dtype"]), torch.ones(4, 3, dtype=given["dtype"])
    bias = torch.zeros(4, dtype=given["dtype"]) if given["bias"] else None
    asked = []
    gpu.setattr(
        linears._Linear, "apply", lambda *tensors: asked.append(tensors[3:]) or torch.zeros(2, 4)
    )
    if given["autocast"] is not None:
        gpu.setattr(triton_launch, "autocast_dtype", lambda x: given["autocast"])
    with torch.set_grad_enabled(given["grad"]):
        linear(x, weight, bias, given["activation"])
    assert asked == [(given["activation"], HALF)] * wanted


def test_steps_of_a_decoder_have_kernels_on_a_gpu(gpu):
    x = torch.zeros(1)
    gpu.setattr(choice_kernels, "_kernels", lambda: step)
    assert choice_kernels.kernels(x) is step
    with gpu.context() as patch:
        patch.setattr(triton_launch, "available", lambda device: False)
        assert choice_kernels.kernels(x) is None
    gpu.setattr(torch.Tensor, "is_cuda", property(lambda tensor: False), raising=False)
    assert choice_kernels.kernels(x) is None


def test_shared_memory_of_a_gpu(monkeypatch):
    properties = SimpleNamespace(shared_memory_per_block_optin=1234)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    triton_launch.shared_memory_bytes.cache_clear()
    assert triton_launch.shared_memory_bytes(torch.device("cuda:0")) == 1234
    assert triton_launch.shared_memory_bytes(torch.device("cpu")) == 227 * 1024
    del properties.shared_memory_per_block_optin
    assert (
        triton_launch.shared_memory_bytes(torch.device("cuda:1")) == 227 * 1024
    )  # that of the smallest supported
    triton_launch.shared_memory_bytes.cache_clear()


def test_tiles_are_powers_of_two():
    assert [triton_launch.next_power_of_2(size) for size in (1, 16, 17, 32, 33)] == [
        16,
        16,
        32,
        32,
        64,
    ]
    assert [triton_launch.next_power_of_2(size, 1) for size in (1, 2, 3, 5)] == [1, 2, 4, 8]


def test_the_folder_of_compiled_kernels_is_that_of_triton(monkeypatch, tmp_path):
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert triton_launch.cache_folder() == Path.home() / ".triton" / "cache"
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    assert triton_launch.cache_folder() == tmp_path / ".triton" / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    assert triton_launch.cache_folder() == tmp_path / "own"


def test_arguments_of_masks():
    like = torch.zeros(1)
    allowed = torch.ones(2, 1, 3, 4, dtype=torch.bool)
    (mask, *numbers), constants = triton_launch.mask_arguments(
        AttentionMask(allowed, 5, None), like
    )
    assert mask.data_ptr() == allowed.data_ptr()
    assert numbers == [12, 0, 4, 1, 5, 2**30]
    assert constants == {"MASKED": True, "BANDED": True}
    (mask, *numbers), constants = triton_launch.mask_arguments(AttentionMask(), like)
    assert (mask.shape, mask.dtype) == ((1,), torch.uint8)
    assert numbers == [0, 0, 0, 0, 2**30, 2**30]
    assert constants == {"MASKED": False, "BANDED": False}


@pytest.mark.parametrize(
    ("n", "m", "mask", "rows"),
    [
        (300, 300, AttentionMask(), 300),
        (300, 300, AttentionMask(None, None, 0), 300),  # PyTorch's own causal mask
        (1, 300, AttentionMask(None, 5, 0), 1),
        (300, 300, AttentionMask(None, 5, 0), 128),
        (300, 300, AttentionMask(None, 199, 50), 250),  # as tall as the window is wide
        (300, 300, AttentionMask(None, 5, None), 300),
        (300, 200, AttentionMask(None, None, 0), 300),
        (300, 300, AttentionMask(torch.ones(1, 1, 1, 300, dtype=torch.bool)), 300),
        (300, 2**14, AttentionMask(None, None, 0), 128),  # 2²¹ elements of a mask at a time
    ],
)
def test_rows_of_one_call_of_pytorch(n, m, mask, rows):
    """A mask that differs by row is materialized in blocks."""
    assert min(n, sdpa._rows(dots(n, m, 4, visible=mask))) == rows


def test_the_memory_efficient_kernel_gives_all_gradients(monkeypatch):
    """Of queries, keys and values, and none of the mask; those of grouped keys are summed. Without memory of a GPU."""
    asked = []

    def backward(d_out, q, k, v, mask, out, lse, seed, offset, dropout, wanted, causal, *, scale):
        asked.append((mask, lse.shape, dropout, causal, scale))
        return [x if want else None for x, want in zip((q, k, v, mask), wanted, strict=True)]

    kernel = SimpleNamespace(default=backward)
    fake = SimpleNamespace(_scaled_dot_product_efficient_attention_backward=kernel)
    monkeypatch.setattr(sdpa, "aten", fake)
    q, k, v = (torch.zeros(2, heads, 5, 8, device="meta") for heads in (4, 2, 2))
    out, lse = torch.zeros_like(q), torch.zeros(2, 4, 5, device="meta")
    d_q, d_k, d_v = sdpa._backward(torch.zeros_like(q), q, k, v, out, lse, None, 0.5)
    assert [each.shape for each in (d_q, d_k, d_v)] == [q.shape, k.shape, v.shape]
    assert asked == [
        (None, (2, 4, 32), 0.0, False, 0.5)
    ]  # rows of the log-sum-exp are a multiple of 32


@pytest.mark.parametrize(("m", "stride"), [(5, 16), (16, 16), (17, 32)])
def test_masks_of_the_memory_efficient_kernel_are_aligned(m, stride):
    q, k = torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, m, 8)
    mask = torch.arange(4.0 * m).view(1, 1, 4, m)
    found = sdpa._aligned(mask, q, k)
    assert found.shape == (2, 3, 4, m)
    assert found.stride()[-2:] == (stride, 1)
    assert torch.equal(found, mask.expand(2, 3, 4, m))
    assert sdpa._aligned(None, q, k) is None


BY_KEY, BY_ROW = (
    torch.ones(3, 1, 1, 50, dtype=torch.bool),
    torch.ones(3, 1, 100, 50, dtype=torch.bool),
)


@pytest.mark.parametrize(
    ("allowed", "bias", "rows"),
    [
        (None, None, 100),
        (BY_KEY, None, 100),
        (BY_KEY, torch.zeros(1, 2, 1, 50), 100),
        (BY_ROW, None, 20),
        (None, torch.zeros(1, 2, 100, 50), 30),
        (BY_KEY, torch.zeros(1, 2, 100, 50), 10),  # one of them differs by row
        (BY_ROW, torch.zeros(1, 2, 1, 50), 10),
        (torch.ones(90, 1, 100, 50, dtype=torch.bool), None, 1),
    ],
)
def test_masks_that_differ_by_row_exist_in_parts(monkeypatch, allowed, bias, rows):
    monkeypatch.setattr(sdpa, "TILE", 3000)
    spec = dots(100, 50, 8, visible=AttentionMask(allowed=allowed), bias=bias)
    assert sdpa._rows(spec) == rows


@pytest.mark.parametrize(
    ("shape", "activation", "grid"),
    [
        ((40, 128), None, (1, 2)),  # 32 rows each at least
        ((40, 129), "relu", (2, 2)),
        ((2048, 1), None, (1, 64)),
        ((2049, 256), None, (2, 33)),
        ((8192, 300), "gelu", (3, 128)),
    ],
)
def test_programs_of_the_gradient_before_an_activation(monkeypatch, shape, activation, grid):
    """Of 128 columns each; no more than there are columns and rows for."""
    linear_triton = pytest.importorskip(
        "regard.kernels.layers.linear_triton", reason="needs Triton"
    )
    asked = []

    class Kernel:
        def __getitem__(self, grid):
            asked.append(grid)
            return lambda *given, **options: None

    monkeypatch.setattr(linear_triton, "activation_backward", Kernel())
    monkeypatch.setattr(triton_launch, "on_device_of", lambda x: nullcontext())
    d_out = torch.zeros(shape)
    _, sums, largest = linears.activation_backward(d_out, d_out, activation, magnitude=True)
    assert asked == [grid]
    assert (sums.shape, largest.shape) == ((shape[1],), ())
