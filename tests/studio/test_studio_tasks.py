"""The studio with a model of every task: it shows what `regard predict` gives, and what was attended to."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.inference.predictor import Predictor
from support.browsers import browser, settled, strict_pages, until, violations
from support.servers import Running, served
from support.tasks import CASES

pytestmark = pytest.mark.slow
SHOWN = [name for name, case in CASES.items() if case.has_outputs and "target" in case.fields]
WITH_SOURCE = [name for name in SHOWN if {"source", "sources"} & CASES[name].fields.keys()]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Predictor]:
    folder: Path = tmp_path_factory.mktemp("studio")
    return {
        name: regard.train(CASES[name].recipe(), folder / name, data=CASES[name].splits())
        for name in WITH_SOURCE
    }


@pytest.fixture(scope="module")
def server(models) -> Iterator[Running]:
    with served(models) as running:
        yield running


@pytest.fixture
def opened(server) -> Iterator[Callable]:
    with browser() as started, strict_pages(started) as open_page:
        yield lambda: settled(open_page(f"http://127.0.0.1:{server.port}/#/type"))


@pytest.mark.parametrize("name", WITH_SOURCE)
def test_the_output_of_what_is_typed_is_shown(opened, models, name):
    page = opened()
    given = CASES[name].inputs[0]
    parts = given if isinstance(given, tuple) else (given,)
    page.select_option("#model", name)
    is_series = CASES[name].fields.get("source", {}).get("kind") == "vectors"
    if is_series:
        # A series is typed as numbers, a line for each vector.
        given = json.loads(given)
        page.click(".numbers summary")
        page.fill("#numbers-0", "\n".join(", ".join(map(str, vector)) for vector in given))
        until(page, "() => document.querySelector('#map option') !== null")
    else:
        for place, text in enumerate(parts):
            page.fill(f"#input-{place}", text)
        until(page, "(text) => location.hash.includes(text)", parts[-1].split()[-1])
    settled(page)
    # The studio searches without beams.
    options = {"beam_size": 1} if models[name].task.searches else {}
    look = regard.look(models[name], given, **options)
    said = page.locator("#said").text_content()
    if not look.output.text.startswith("["):
        for part in look.output.text.split():
            assert part in said
    maps = page.locator("#map option").all_text_contents()
    assert len(maps) == len(look.maps)
    assert violations(page) == []
