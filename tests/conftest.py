"""Shapes are executed here and nowhere else: jaxtyping and beartype check every annotated call of the package."""

import pytest
from jaxtyping import install_import_hook

install_import_hook("regard", "beartype.beartype")

import torch  # noqa: E402  after the hook


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
