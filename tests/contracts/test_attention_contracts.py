"""The attention contracts over every score × mask × dtype × implementation."""

from itertools import product

import pytest
import torch

import regard
from support import attention_contracts as contracts
from support.family import DTYPES, MASKS, PATHS, SCORES, SHAPES, Case, has, path

EVERYWHERE = [
    pytest.param(name, score, mask, dtype, id=f"{name}-{score}-{mask}-{dtype}")
    for name, score, mask, dtype in product(PATHS, SCORES, MASKS, DTYPES)
    if has(name, score)
]
BY_SCORE = [
    pytest.param(name, score, id=f"{name}-{score}")
    for name, score in product(PATHS, SCORES)
    if has(name, score)
]


@pytest.mark.parametrize(("name", "score", "mask", "dtype"), EVERYWHERE)
def test_equals_definition(name, score, mask, dtype):
    with path(name) as attend:
        contracts.equals_definition(attend, Case(score, mask, DTYPES[dtype]))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", PATHS)
def test_any_number_of_queries_and_keys(name, mask, shape):
    for score in ("scaled_dot", "additive"):
        if has(name, score):
            with path(name) as attend:
                contracts.equals_definition(attend, Case(score, mask, torch.float64, shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "score"), BY_SCORE)
def test_masked_rows_give_zeros(name, score, dtype):
    with path(name) as attend:
        contracts.masked_rows_give_zeros(attend, Case(score, "fully masked", DTYPES[dtype]))


@pytest.mark.parametrize(
    "mask", [name for name, make in MASKS.items() if make(2, 2, torch.float32).get("causal")]
)
@pytest.mark.parametrize(("name", "score"), BY_SCORE)
def test_future_changes_nothing(name, score, mask):
    for shape, dtype in product(("square", "more keys"), (torch.float32, torch.bfloat16)):
        with path(name) as attend:
            contracts.future_changes_nothing(attend, Case(score, mask, dtype, shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "score"), BY_SCORE)
def test_padding_changes_nothing(name, score, dtype):
    with path(name) as attend:
        contracts.padding_changes_nothing(attend, Case(score, dtype=DTYPES[dtype]))


@pytest.mark.parametrize(("name", "score"), BY_SCORE)
def test_order_of_keys_changes_nothing(name, score):
    with path(name) as attend:
        contracts.order_of_keys_changes_nothing(attend, Case(score))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_capturing_changes_no_bit(score, mask):
    contracts.capturing_changes_no_bit(regard.attend, Case(score, mask))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mask", "shape"),  # PyTorch aligns its causal edge to the upper left, and is right where N = M
    [
        ("everything", "more keys"),
        ("padding", "more keys"),
        ("scattered", "square"),
        ("bias", "square"),
        ("causal", "square"),
    ],
)
@pytest.mark.parametrize("score", ["dot", "scaled_dot"])
def test_agrees_with_torch(score, mask, shape, dtype):
    contracts.agrees_with_torch(regard.attend, Case(score, mask, DTYPES[dtype], shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_weights_are_exact(score, mask, dtype):
    contracts.weights_are_exact(regard.attention_weights, Case(score, mask, DTYPES[dtype]))
    contracts.weights_are_exact(contracts.captured_weights, Case(score, mask, DTYPES[dtype]))


@pytest.mark.parametrize("mask", ["everything", "fully masked", "all at once"])
@pytest.mark.parametrize(("name", "score"), BY_SCORE)
def test_gradcheck(name, score, mask):
    case = Case(score, mask, torch.float64)
    with path(name) as attend:
        parameters = list(case.module.parameters())

        def run(query, key, value, *_parameters):
            return attend(query, key, value, **case.keywords)

        assert torch.autograd.gradcheck(
            run, (case.query, case.key, case.value, *parameters), fast_mode=True
        )


@pytest.mark.parametrize("distance", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck_of_a_learned_bias(causal, distance):
    case = Case(dtype=torch.float64)
    shape = (2, case.n + case.m - 1) if distance else (2, 1, case.m)
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    with path("blockwise in blocks") as attend:

        def run(query, values):
            given = regard.DistanceBias(values) if distance else values
            return attend(query, case.key, case.value, bias=given, causal=causal)

        assert torch.autograd.gradcheck(run, (case.query, bias))
