"""Registries of named parts: registration, unknown names, and names in configurations."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from regard.core import config
from regard.core.config import Config
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.registry import Registry

COLORS: Registry[int] = Registry("color", {"red": 1, "green": 2})


@dataclass(frozen=True)
class PaintConfig(Config):
    color: Annotated[str, COLORS] = "red"
    border: Annotated[str, COLORS] | None = None


@pytest.fixture
def blue():
    COLORS.register("blue", 3, package="regard-paint")
    yield
    COLORS.unregister("blue")


def test_a_registered_name_is_found_with_its_package(blue):
    assert COLORS["blue"] == 3
    assert list(COLORS) == ["red", "green", "blue"]
    assert COLORS.package("blue") == "regard-paint"
    assert COLORS.package("red") is None


def test_a_taken_name_is_refused(blue):
    for name in ("red", "blue"):
        with pytest.raises(
            InvalidArgument, match=f"name: wanted a color name that is not taken; got '{name}'"
        ):
            COLORS.register(name, 4)
    with pytest.raises(InvalidArgument, match="name: wanted a name for the color; got ''"):
        COLORS.register("", 4)
    assert COLORS["red"] == 1


def test_only_run_time_entries_can_be_removed():
    with pytest.raises(KeyError):
        COLORS.unregister("red")
    assert COLORS["red"] == 1


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(
        InvalidArgument,
        match=r"color: wanted one of 'red', 'green'; got 'gren'\. Did you mean 'green'",
    ):
        COLORS["gren"]
    assert 3 not in COLORS
    with pytest.raises(InvalidArgument, match="Register one first"):
        Registry("color")["red"]


def test_a_configuration_takes_names_registered_after_its_class_was_made(blue):
    assert PaintConfig(color="blue", border="blue").color == "blue"
    assert config.read(PaintConfig, {"color": "blue"}, "paint") == PaintConfig(color="blue")


def test_a_configuration_refuses_unregistered_names():
    for value in ("blue", 3):
        with pytest.raises(
            InvalidRecipe,
            match=f"color: wanted one of 'red', 'green'; got {value!r}. Choose one of these.",
        ):
            PaintConfig(color=value)
    with pytest.raises(
        InvalidRecipe,
        match=r"border: wanted one of 'red', 'green'; got 'gren'\. Did you mean 'green'",
    ):
        PaintConfig(border="gren")
