"""Positions: the four things one wants of them, and the identities that each kind must keep."""

import math

import pytest
import torch

import regard
from regard.model.positions import POSITIONS, PositionOptions
from regard.model.transformer_block import InputLayer
from regard.model.transformer_config import TransformerConfig

WIDTH = 32
ABSOLUTE = {"sinusoidal": regard.Sinusoidal(WIDTH), "learned": regard.Learned(WIDTH, 512)}


def encoded(name: str, length: int, start: int = 0) -> torch.Tensor:
    return ABSOLUTE[name](torch.arange(start, start + length)).detach()


@pytest.mark.parametrize("name", ABSOLUTE)
def test_each_position_is_unique(name):
    table = encoded(name, 512)
    apart = torch.cdist(table, table) + torch.eye(512) * 9
    assert apart.min() > 1e-2


@pytest.mark.parametrize("name", ABSOLUTE)
def test_a_position_is_the_same_in_sentences_of_every_length(name):
    """So the distance between two of them is too; and it is deterministic."""
    assert torch.equal(encoded(name, 40), encoded(name, 512)[:40])
    assert torch.equal(encoded(name, 40, start=100), encoded(name, 512)[100:140])
    assert torch.equal(encoded(name, 512), encoded(name, 512))


def test_sinusoidal_distances_are_the_same_everywhere():
    """|p(i + k) − p(i)| does not depend on i: moving is a rotation."""
    table = encoded("sinusoidal", 5000).double()
    for k in (1, 7, 100):
        apart = (table[k:] - table[:-k]).norm(dim=-1)
        assert apart.std() < 2e-4 * apart.mean()


def test_sinusoidal_is_bounded_and_extrapolates():
    far = encoded("sinusoidal", 1000, start=10**6)
    assert far.abs().max() <= 1
    assert far.unique(dim=0).shape[0] == 1000


def test_sinusoidal_is_the_formula_of_the_paper():
    table = encoded("sinusoidal", 50)
    for position, i in ((0, 0), (3, 1), (49, 15), (17, 8)):
        angle = position / 10_000 ** (2 * i / WIDTH)
        assert table[position, i].item() == pytest.approx(
            math.sin(angle), abs=1e-5
        )  # all sines, then all cosines
        assert table[position, WIDTH // 2 + i].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_learned_table_refuses_a_longer_sequence_with_a_remedy():
    add = regard.Add(regard.Learned(WIDTH, 10))
    add(torch.zeros(2, 10, WIDTH))
    with pytest.raises(
        ValueError, match=r"at most 10 positions.*got 11\..*larger limit, or use sinusoidal"
    ):
        add(torch.zeros(2, 11, WIDTH))
    with pytest.raises(ValueError, match="got 11"):
        add(torch.zeros(2, 1, WIDTH), start=10)


@pytest.mark.parametrize("name", ABSOLUTE)
def test_added_and_concatenated(name):
    x, table = torch.randn(2, 5, WIDTH), encoded(name, 5, start=3)
    torch.testing.assert_close(regard.Add(ABSOLUTE[name])(x, start=3), x + table)
    out = regard.Concatenate(ABSOLUTE[name])(x[..., :6], start=3)
    torch.testing.assert_close(out, torch.cat((x[..., :6], table.expand(2, 5, WIDTH)), -1))
    with pytest.raises(ValueError, match=f"x: wanted dim {WIDTH}.*got dim 6.*Concatenate"):
        regard.Add(ABSOLUTE[name])(x[..., :6])


def test_rotary_is_a_complex_rotation():
    rotary, x = regard.Rotary(8), torch.randn(2, 3, 5, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 5, 100, 7])
    rates = 10_000 ** (-torch.arange(4, dtype=torch.float64) / 4)
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(
        torch.ones(()).double(), positions[:, None] * rates
    )
    torch.testing.assert_close(
        rotary(x, positions), torch.cat((turned.real, turned.imag), -1), atol=1e-5, rtol=1e-5
    )


def test_rotary_products_see_distance_alone():
    rotary = regard.Rotary(16)
    q, k = torch.randn(1, 16, dtype=torch.float64), torch.randn(1, 16, dtype=torch.float64)
    at = lambda x, p: rotary(x, torch.tensor([p]))  # noqa: E731
    here = at(q, 3) @ at(k, 10).mT
    torch.testing.assert_close(at(q, 203) @ at(k, 210).mT, here, atol=1e-4, rtol=1e-4)
    assert (at(q, 3) @ at(k, 11).mT - here).abs() > 1e-3


def test_alibi_slopes_are_those_of_the_paper():
    torch.testing.assert_close(regard.Alibi(8).slopes, 0.5 ** torch.arange(1.0, 9))
    torch.testing.assert_close(
        regard.Alibi(4).slopes, torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])
    )
    twelve = torch.cat((0.5 ** torch.arange(1.0, 9), 0.5 ** torch.tensor([0.5, 1.5, 2.5, 3.5])))
    torch.testing.assert_close(regard.Alibi(12).slopes, twelve)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (2, 6), (6, 3)])
def test_alibi_is_slope_times_distance(n, m):
    query, key = torch.zeros(1, 4, n, 8), torch.zeros(1, 4, m, 8)
    weights = regard.attention_weights(query, key, bias=regard.Alibi(4)(n, m))
    apart = (torch.arange(m) - (torch.arange(n)[:, None] + m - n)).abs()
    wanted = (-regard.Alibi(4).slopes[:, None, None] * apart).softmax(-1)
    torch.testing.assert_close(weights[0], wanted)


def test_relative_buckets_are_those_of_t5():
    """The values that T5's published code gives for 32 buckets and a maximal distance of 128."""
    distance = torch.tensor(
        [
            -500,
            -128,
            -127,
            -100,
            -64,
            -33,
            -16,
            -15,
            -9,
            -8,
            -7,
            -1,
            0,
            1,
            7,
            8,
            12,
            16,
            32,
            64,
            127,
            500,
        ]
    )
    both = [15, 15, 15, 15, 14, 12, 10, 9, 8, 8, 7, 1, 0, 17, 23, 24, 25, 26, 28, 30, 31, 31]
    behind = [31, 31, 31, 30, 26, 21, 16, 15, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert regard.RelativeBias(2).bucket(distance).tolist() == both
    assert regard.RelativeBias(2, bidirectional=False).bucket(distance).tolist() == behind


def test_relative_bias_is_learned():
    relative, x = regard.RelativeBias(2, buckets=8, max_distance=10), torch.randn(1, 2, 20, 4)
    regard.attend(x, x, x, bias=relative(20, 20)).square().sum().backward()
    used = relative.bucket(torch.arange(-19, 20)).unique()
    assert len(used) == 7  # a key ahead is at least one place ahead: the bucket for none is idle
    assert (relative.table.grad[:, used].abs() > 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regard.Sinusoidal(7), "dim: wanted a multiple of 2; got 7"),
        (lambda: regard.Rotary(5), "dim: wanted a multiple of 2; got 5"),
        (lambda: regard.RelativeBias(2, buckets=2), "at least 4 buckets"),
        (
            lambda: regard.RelativeBias(2, buckets=32, max_distance=4),
            "max_distance beyond the 8 exact ones",
        ),
        (
            lambda: regard.MultiHead(16, 4, rotary=regard.Rotary(8)),
            r"heads of dim 4; got Rotary\(8\)",
        ),
    ],
)
def test_impossible_positions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Ramp(regard.PositionEncoding):
    """position / 10 in every dimension: an encoding of the user's own."""

    multiple_of = 4

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    @classmethod
    def build(cls, options: PositionOptions) -> regard.PositionEncoding:
        return cls(options.dim)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return positions[..., None].expand(*positions.shape, self.dim) / 10


class Nearest(regard.PositionBias):
    """Minus the distance, alike in all heads: a bias of the user's own."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    @classmethod
    def build(cls, options: PositionOptions) -> regard.PositionBias:
        return cls(options.heads)

    def forward(self, n: int, m: int) -> regard.DistanceBias:
        return regard.DistanceBias(
            -regard.DistanceBias.distances(n, m).abs().float().expand(self.heads, -1)
        )


@pytest.fixture
def registered():
    entries = {"ramp": Ramp, "nearest": Nearest}
    for name, entry in entries.items():
        POSITIONS.register(name, entry)
    yield
    for name in entries:
        POSITIONS.unregister(name)


def test_registered_positions_are_built_by_name(registered):
    x = torch.zeros(1, 3, 8)
    ramp = InputLayer(
        TransformerConfig(dim=8, heads=2, dropout=0.0, positions="ramp"), bidirectional=True
    )
    assert torch.equal(ramp(x, 2), torch.tensor([0.2, 0.3, 0.4])[None, :, None].expand(1, 3, 8))
    nearest = InputLayer(
        TransformerConfig(dim=8, heads=2, dropout=0.0, positions="nearest"), bidirectional=True
    )
    assert torch.equal(nearest(x), x)
    assert nearest.bias(1, 3).values.tolist() == [[-2.0, -1.0, 0.0]] * 2


def test_a_configuration_reads_what_registered_positions_declare(registered):
    with pytest.raises(
        regard.InvalidRecipe, match="dim: wanted a multiple of 4, for ramp positions; got 6"
    ):
        TransformerConfig(dim=6, heads=2, positions="ramp")
    assert TransformerConfig(positions="ramp").not_packable() is None
    assert TransformerConfig(positions="nearest").not_packable() == "positions = 'nearest'"
    with pytest.raises(
        regard.InvalidRecipe, match=r"positions: wanted one of .* got 'rampp'\. Did you mean 'ramp'"
    ):
        TransformerConfig(positions="rampp")
