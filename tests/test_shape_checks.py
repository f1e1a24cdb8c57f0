"""The checks of types and shapes that all tests run with: support/shape_checks.py."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation
from jaxtyping import TypeCheckError

import regard
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.attention import reference
from support.shape_checks import checked

check = checked(typechecker=beartype)


@check
def scaled(
    x: Float[Tensor, "B S"], by: float, weights: Float[Tensor, "#B S"] | None = None
) -> Float[Tensor, "B S"]:
    return x[:1] if by == 0 else x.long() if by == 1 else x * by


@check
def both(
    x: Float[Tensor, "B S"], y: Float[Tensor, "S B"]
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B B"]]:
    return scaled(y, 2.0).T / 2, x @ y  # within: B and S have each other's size


@check
def crossed(x: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    return both(x, x.T[:, 1:])[0]


@check
def counted(text: str, times: int = 1) -> list[str]:
    return text if times == 0 else [text] * times


@check
def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def test_arguments_and_results_of_a_call_agree_on_their_axes():
    x = torch.rand(2, 3)
    assert torch.equal(scaled(x, 3.0, torch.rand(1, 3)), 3 * x)
    assert torch.equal(scaled(x.T.contiguous(), by=3.0), 3 * x.T)  # another call, other sizes
    y, product = both(x, x.T)
    assert torch.equal(y, x)
    assert torch.equal(product, x @ x.T)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        pytest.param(lambda x: scaled(x[0], 2.0), "Param", id="an axis less"),
        pytest.param(lambda x: scaled(x.long(), 2.0), "Param", id="integers"),
        pytest.param(lambda x: scaled(x, "2"), "Param", id="text for a number"),
        pytest.param(
            lambda x: scaled(x, 2.0, torch.rand(2, 4)), "Param", id="two sizes of an axis"
        ),
        pytest.param(
            lambda x: scaled(x, 2.0, weights=torch.rand(3, 3)), "Param", id="neither equal nor one"
        ),
        pytest.param(lambda x: scaled(x, 0.0), "Return", id="a row of two"),
        pytest.param(lambda x: scaled(x, 1.0), "Return", id="integers returned"),
        pytest.param(lambda x: both(x, x), "Param", id="two arguments disagree"),
        pytest.param(lambda x: both(x, x.T[:, :1]), "Param", id="a column less"),
        pytest.param(lambda x: counted(3), "Param", id="no axes: a number for text"),
        pytest.param(lambda x: counted("a", 0), "Return", id="no axes: text for a list"),
    ],
)
def test_what_disagrees_with_an_annotation_is_an_error(call: Callable, kind: str):
    errors = {"Param": BeartypeCallHintParamViolation, "Return": BeartypeCallHintReturnViolation}
    with pytest.raises(errors[kind]):
        call(torch.rand(2, 3))
    assert scaled(torch.rand(4, 5), 2.0).shape == (4, 5)  # the scope of the failed call is closed


def test_the_error_names_the_sizes_of_the_innermost_call():
    with pytest.raises(BeartypeCallHintParamViolation) as caught:
        crossed(torch.rand(2, 3))
    (note,) = caught.value.__notes__
    assert "B=2" in note
    assert "S=3" in note


def test_generators_are_checked_by_jaxtyping():
    assert list(numbers(3)) == [0, 1, 2]
    with pytest.raises(TypeCheckError):
        numbers("3")


def test_fields_of_a_dataclass_are_checked_once_also_of_one_that_inherits():
    @check
    @dataclass
    class Batch:
        ids: Int[Tensor, "B S"]
        lengths: Int[Tensor, "B"]

    @check
    class Named(Batch):
        name = "x"

    ids = torch.zeros(2, 3, dtype=torch.long)
    assert torch.equal(Named(ids, ids[:, 0]).ids, ids)
    assert Named.__init__ is Batch.__init__
    for kind in Batch, Named:
        with pytest.raises(BeartypeCallHintParamViolation):
            kind(ids, ids[0])


def test_names_that_are_not_defined_are_not_checked_and_annotations_stay_as_written():
    @check
    def chained(x: "Later", count: int, more: "int" = 0) -> "Later":
        return x

    assert chained(3, 1) == 3
    assert chained.__annotations__ == {"x": "Later", "count": int, "more": "int", "return": "Later"}
    for given in [(3, "1"), (3, 1, "2")]:
        with pytest.raises(BeartypeCallHintParamViolation):
            chained(*given)


def test_calls_of_the_package_are_checked():
    query = torch.rand(2, 1, 3, 4)
    with pytest.raises(BeartypeCallHintParamViolation):
        regard.attend(query, query, query, causal="no")
    with pytest.raises(BeartypeCallHintParamViolation):
        reference.softmax(query.long())
