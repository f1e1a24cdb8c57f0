"""Methods of the routes: HEAD as GET without a body, OPTIONS and Allow with those that are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.http import http1_protocol
from support.predictors import translator
from support.served_process import exchange
from support.servers import Running, served

HOST = "Host: localhost"
DOCS = Path(__file__).parents[2] / "docs" / "serve.md"


@pytest.fixture(scope="module", params=["h11", "httptools"])
def running(request) -> Iterator[Running]:
    if request.param == "httptools":
        pytest.importorskip("httptools", reason="needs the extra `http`")
    parser = http1_protocol.H11 if request.param == "h11" else http1_protocol.fastest()
    with served({"en-de": translator(decoder="rnn")}, protocol=parser) as server:
        yield server


def get_paths(server: Running) -> list[str]:
    """The path of every route for GET, of this model and of a file that is there."""
    values = {"name": "en-de", "model": "en-de", "version": "7"}
    paths = []
    for route in server.app.table.routes:
        file = "page.js" if route.path.startswith("/docs") else "main.js"
        names = {**values, "file": file}
        path = re.sub(r"\{(\w+)\}", lambda found, names=names: names.get(found[1], "1"), route.path)
        if route.method == "GET":
            paths.append(path)
    return paths


def test_head_is_get_without_a_body(running):
    counted = ("date", "x-request-id", "content-length")
    paths = get_paths(running)
    assert len(paths) > 20
    for path in paths:
        status, headers, body = exchange(running.port, "GET", path, HOST)
        head_status, head_headers, nothing = exchange(running.port, "HEAD", path, HOST)
        assert nothing == b"", path
        assert (head_status, head_headers.keys()) == (status, headers.keys()), path
        same = {name: value for name, value in headers.items() if name not in counted}
        assert same.items() <= head_headers.items(), path
        if path != "/metrics":  # which counts the requests
            assert int(head_headers["content-length"]) == len(body), path


def test_head_is_refused_where_get_is(running):
    status, headers, body = exchange(running.port, "HEAD", "/predict", HOST)
    assert (status, headers["allow"], body) == (405, "post, options", b"")
    assert exchange(running.port, "HEAD", "/none", HOST)[0] == 404


def test_a_connection_goes_on_after_the_answer_to_head(running):
    connection = running.connect()
    for method in ("HEAD", "GET", "HEAD", "GET"):
        connection.request(method, "/models")
        answer = connection.getresponse()
        body = answer.read()
        assert (answer.status, body == b"") == (200, method == "HEAD")
    connection.close()


def test_options_and_allow_list_the_methods_that_a_path_has(running):
    methods: dict[str, set[str]] = {}
    for route in running.app.table.routes:
        if "{" not in route.path:
            own = {"GET", "HEAD"} if route.method == "GET" else {route.method}
            methods.setdefault(route.path, {"OPTIONS"}).update(own)
    for path, wanted in methods.items():
        status, headers, body = exchange(running.port, "OPTIONS", path, HOST)
        assert (status, body) == (204, b""), path
        assert set(headers["allow"].upper().split(", ")) == wanted, path
        status, headers, _ = exchange(running.port, "DELETE", path, HOST)
        assert status == 405, path
        assert set(headers["allow"].upper().split(", ")) == wanted, path
    assert exchange(running.port, "OPTIONS", "/none", HOST)[0] == 404


def test_options_of_a_route_that_needs_a_key_need_one():
    with served({"en-de": translator(decoder="rnn")}, keys=["k"]) as server:
        for path, wanted in (("/predict", 401), ("/none", 401), ("/health/live", 204)):
            assert exchange(server.port, "OPTIONS", path, HOST)[0] == wanted
        key = "Authorization: Bearer k"
        assert exchange(server.port, "OPTIONS", "/predict", HOST, key)[0] == 204


def test_the_docs_list_the_routes_that_need_no_key(running):
    """Exactly these: an operator who reads the page must know what is open."""
    (listed,) = re.findall(
        r"needs\s+no key:\s+(.*?)\.\n", DOCS.read_text(encoding="utf-8"), re.DOTALL
    )
    documented = re.findall(r"`(?:GET )?(/[^`]*)`", listed)
    assert len(set(documented)) == len(documented)
    open_routes = {route.path for route in running.app.table.routes if not route.needs_key}
    assert set(documented) == open_routes


def test_the_routes_that_need_no_key_are_answered_without_one():
    with served({"en-de": translator(decoder="rnn")}, keys=["k"]) as server:
        for path in get_paths(server):
            route, _ = server.app.table.find("GET", path)
            status = exchange(server.port, "GET", path, HOST)[0]
            assert (status == 401) is route.needs_key, path
