"""`regard serve --no-studio`: the API is as it is beside the studio, and no route of the studio is there."""

import json

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.core.errors import InvalidArgument
from regard.serving.http import server as http_server
from regard.serving.http.app import Server
from regard.serving.processes import supervisor
from regard.serving.scheduler.scheduler import Scheduler
from regard.studio.sources import StudioSources
from support.forged import GOLDEN
from support.predictors import translator
from support.served_process import exchange
from support.servers import served


def routes_of(server: Server) -> set[tuple[str, str]]:
    return {(route.method, route.path) for route in server.table.routes}


def test_the_routes_of_the_studio_are_left_out_and_no_other():
    with_studio = routes_of(Server(Scheduler()))
    without = routes_of(Server(Scheduler(), studio=None))
    left_out = with_studio - without
    assert without <= with_studio
    assert ("GET", "/") in left_out
    assert ("POST", "/studio/look") in left_out
    assert {
        path for _, path in left_out if path != "/" and not path.startswith("/studio/")
    } == set()
    assert not any(path.startswith("/studio") for _, path in without)


def test_a_server_without_the_studio_answers_the_api_alone():
    with served({"en-de": translator(decoder="rnn")}, studio=None) as server:
        for path in ("/", "/studio/main.js", "/studio/page/map.js", "/studio/models"):
            assert exchange(server.port, "GET", path, "Host: localhost")[0] == 404, path
        status, _, page = exchange(server.port, "GET", "/docs", "Host: localhost")
        assert (status, b"<html" in page) == (200, True)
        described = exchange(server.port, "GET", "/openapi.json", "Host: localhost")[2]
        paths = json.loads(described)["paths"]
        assert "/predict" in paths
        assert not any(path.startswith("/studio") for path in paths)


@pytest.mark.parametrize("no_studio", [False, True])
def test_serve_leaves_the_studio_out_where_it_is_asked_to(monkeypatch, no_studio):
    served_apps = []

    async def serve_http(app, engine, listening, *_):
        served_apps.append(app)
        listening.close()
        engine.stop()

    monkeypatch.setattr(http_server, "serve_http", serve_http)
    regard.serve({"en": translator(decoder="rnn")}, port=0, no_studio=no_studio)
    (app,) = served_apps
    assert (("POST", "/studio/look") in routes_of(app)) is not no_studio


@pytest.mark.parametrize("no_studio", [False, True])
def test_front_ends_know_whether_the_studio_is_left_out(monkeypatch, no_studio):
    configs = []

    def run_processes(config, listening, count, ready):
        configs.append(config)
        listening.close()

    monkeypatch.setattr(supervisor, "run_processes", run_processes)
    regard.serve({"en": GOLDEN / "rnn"}, port=0, device="cpu", workers=2, no_studio=no_studio)
    assert [config.no_studio for config in configs] == [no_studio]


def test_sources_of_a_studio_that_is_left_out_are_refused():
    with pytest.raises(InvalidArgument, match="no_studio"):
        regard.serve({"en": GOLDEN / "rnn"}, port=0, studio=StudioSources(), no_studio=True)
