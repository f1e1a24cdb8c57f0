"""Exported pages, which several files of tests open."""

import os
from collections.abc import Iterator

import pytest

from support.page_exports import PageExports, page_exports


@pytest.fixture(scope="session")
def exports(tmp_path_factory) -> Iterator[PageExports]:
    """Exports each page once, also where several workers run the tests: they have one folder above their own."""
    base = tmp_path_factory.getbasetemp()
    with page_exports(
        (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "page-exports"
    ) as made:
        yield made
