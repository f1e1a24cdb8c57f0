"""The description of the API: complete, sound, and true of the answers; and the page to try it on, in a browser."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from support.captioners import DECODERS, captioner, questioner
from support.predictors import classifier, language_model, translator
from support.servers import Running, served
from support.write_http_interface import FILE, interface

SERVERS: dict[str, dict] = {
    "one": {"en-de": translator(decoder="rnn")},
    "several": {
        "en-de": translator(decoder="rnn"),
        "labels": classifier(),
        "lines": language_model(),
    },
    "lines": {"lines": language_model()},
    "labels": {"labels": classifier()},
    "captions": {"captions": captioner("rnn")},
}
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
# Routes that some models do not have: a body that is right for others is refused.
GENERATES = ("/v1/completions", "/translator/translate")
EMBEDS = ("/v1/embeddings",)
TRANSLATES = ("/translate", "/detect")
CLASSIFIES = ("/classify",)
CAPTIONS = ("/caption",)
CHAT = ("/v1/chat/completions",)  # no model has it
OF_MODEL = [
    f"/v2/models/{{name}}{version}" for version in ("", "/versions/{version}")
]  # whose inputs are texts
INFERS = tuple(path + end for path in OF_MODEL for end in ("", "/ready", "/infer"))
REFUSED = {
    "one": CLASSIFIES + CAPTIONS + CHAT,
    "several": CAPTIONS + CHAT,
    "lines": TRANSLATES + CLASSIFIES + CAPTIONS + CHAT,
    "labels": GENERATES + TRANSLATES + CAPTIONS + CHAT,
    "captions": GENERATES + TRANSLATES + CLASSIFIES + EMBEDS + INFERS + CHAT,
}


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], Running]]:
    contexts = []
    running = {}

    def started(name: str) -> Running:
        if name not in running:
            contexts.append(served(SERVERS[name]))
            running[name] = contexts[-1].__enter__()
        return running[name]

    yield started
    for context in contexts:
        context.__exit__(None, None, None)


def operations(document: dict) -> Iterator[tuple[str, str, dict]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_every_route_is_described(servers):
    server = servers("one")
    document = server.ask("/openapi.json")[2]
    described = {(method, path) for method, path, _ in operations(document)}
    assert described == {(route.method, route.path) for route in server.app.table.routes}
    assert ("GET", "/openapi.json") in described
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert {tag for _, _, each in operations(document) for tag in each["tags"]} == {
        each["name"] for each in document["tags"]
    }
    assert document["components"]["schemas"]["PredictRequest"]["properties"]["beam_size"][
        "description"
    ]


def bodies(document: dict) -> dict[str, dict]:
    """The tables that requests may have, by name: those of their bodies, and what these refer to."""
    found = {}
    schemas = document["components"]["schemas"]
    content = [each.get("requestBody", {}).get("content", {}) for *_, each in operations(document)]
    waiting = [content["application/json"] for content in content if "application/json" in content]
    while waiting:
        names = {
            *re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(waiting.pop()))
        } - found.keys()
        found |= {name: schemas[name] for name in names}
        waiting += [schemas[name] for name in names]
    return {name: schema for name, schema in found.items() if "properties" in schema}


def test_the_http_interface_is_frozen():
    """Clients rely on every route, key and default: a change is made on purpose, and seen in this file."""
    how = "python tests/support/write_http_interface.py"
    assert interface() == FILE.read_text("utf-8"), f"{how} writes the new one"


@pytest.mark.parametrize("name", SERVERS)
def test_a_request_has_no_unknown_keys(servers, name):
    """A misspelt option is an error, wherever it is. LibreTranslate, which two routes follow, ignores unknown keys."""
    found = bodies(servers(name).ask("/openapi.json")[2])
    assert len(found) > 8
    lenient = {
        each for each, schema in found.items() if schema.get("additionalProperties") is not False
    }
    assert lenient == {"TranslateRequest", "DetectRequest"}


def test_every_reference_leads_somewhere(servers):
    document = servers("one").ask("/openapi.json")[2]
    references = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)))
    assert len(references) > 30
    assert references <= document["components"]["schemas"].keys()


def sent(
    server: Running, method: str, path: str, operation: dict
) -> tuple[int, dict, object] | None:
    """The answer to the example of a route; None where it has no example, as a file has none."""
    for parameter in operation.get("parameters", []):
        if parameter["in"] != "path":
            continue
        if "example" not in parameter:
            return None
        path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
    if method == "GET":
        return server.ask(path)
    content = operation["requestBody"]["content"].get("application/json", {})
    return server.ask(path, content["example"]) if "example" in content else None


@pytest.mark.parametrize("name", SERVERS)
def test_examples_work_and_answers_are_as_described(servers, name):
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    server = servers(name)
    document = server.ask("/openapi.json")[2]
    tried = 0
    for method, path, operation in operations(document):
        if (
            path.startswith(("/admin", "/studio"))
            or (found := sent(server, method, path, operation)) is None
        ):
            continue
        status, headers, answer = found
        refused = path in REFUSED.get(name, ())
        assert (status == 200) != refused, (path, answer)
        tried += 1
        content = operation["responses"]["4XX" if refused else "200"].get("content")
        if content is not None:
            schema = content[headers["content-type"]]["schema"]
            jsonschema.validate(answer, {**schema, "components": document["components"]})
            wrong = {"wrong": 1} if isinstance(answer, list) else [answer]
            with pytest.raises(jsonschema.ValidationError):  # it does complain where there is cause
                jsonschema.validate(wrong, {**schema, "components": document["components"]})
    assert tried > 20


def test_the_description_is_valid_openapi(servers):
    """What the specification demands of a document, as far as this one has it."""
    document = servers("several").ask("/openapi.json")[2]
    assert document["openapi"].startswith("3.1.")
    for method, path, operation in operations(document):
        given = operation.get("parameters", [])
        assert {each["name"] for each in given if each["in"] == "path"} == set(
            re.findall(r"{(\w+)}", path)
        )
        assert all(each["required"] for each in given if each["in"] == "path")
        assert all(each["name"] == "x-timeout-ms" for each in given if each["in"] != "path")
        assert ("requestBody" in operation) == (method == "POST")
        assert all("description" in each for each in operation["responses"].values())
    assert "securitySchemes" not in document["components"]


def test_keys_are_described_where_there_are_some():
    with served(SERVERS["one"], keys=["secret"]) as server:
        assert server.ask("/openapi.json")[0] == 401
        document = server.ask("/openapi.json", authorization="Bearer secret")[2]
        assert document["components"]["securitySchemes"]["key"] == {
            "type": "http",
            "scheme": "bearer",
        }
        for method, path, operation in operations(document):
            route, _ = server.app.table.find(method, path.replace("{file}", "page.js"))
            assert operation["security"] == ([{"key": []}] if route.needs_key else [])
        assert server.ask("/docs")[0] == 200


def test_the_page_has_a_strict_policy_and_nothing_from_elsewhere(servers):
    server = servers("one")
    for path, kind in (
        ("/docs", "html"),
        ("/docs/page.js", "javascript"),
        ("/docs/page.css", "css"),
    ):
        status, headers, answer = server.ask(path)
        assert (status, kind in headers["content-type"]) == (200, True)
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "http" not in answer["text"]
        assert "innerHTML" not in answer["text"]
    for path in ("/docs/..%2fapp.py", "/docs/app.py", "/docs/../../app.py"):
        assert server.ask(path)[0] == 404


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser) -> Iterator[Callable]:
    """Opens a page, which must not complain in its console."""
    contexts = []
    told = []

    def open_page(server: Running, **options: object) -> object:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.goto(f"http://127.0.0.1:{server.port}/docs")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in told if "401" not in text] == []


def test_a_route_is_tried_on_the_page(servers, opened):
    server = servers("one")
    expect = pytest.importorskip("playwright.sync_api").expect
    page = opened(server)
    expect(page.locator("#routes details[id]")).to_have_count(len(server.app.table.routes))
    tried = page.locator("#post_predict")
    tried.locator("summary").first.click()
    assert json.loads(tried.locator("textarea").input_value()) == {"input": "A dog runs."}
    hostile = "<img src=x onerror=document.title='hacked'>"
    tried.locator("textarea").fill(
        json.dumps({"input": "the cat", "prefix": hostile, "max_length": 3})
    )
    tried.get_by_role("button", name="Send").click()
    expect(tried.locator(".status")).to_contain_text("Status 200, application/json")
    wanted = (
        SERVERS["one"]["en-de"].outputs(["the cat"], prefixes=[hostile], max_length=3)[0][0].text
    )
    assert (
        json.loads(tried.locator("pre").text_content())["results"][0]["outputs"][0]["text"]
        == wanted
    )
    assert page.title() == "Regard: the API"
    shown = page.locator("#get_v2_models_name")
    shown.locator("summary").first.click()
    shown.get_by_role("button", name="Send").click()
    expect(shown.locator("pre")).to_contain_text('"name": "en-de"')
    streamed = page.locator("#post_v1_completions")
    streamed.locator("summary").first.click()
    streamed.locator("textarea").fill(
        json.dumps({"prompt": "a dog", "stream": True, "max_tokens": 5})
    )
    streamed.get_by_role("button", name="Send").click()
    expect(streamed.locator("pre")).to_contain_text("data: [DONE]")


def test_an_image_is_uploaded_on_the_page(servers, opened, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs the extra `images`")
    server = servers("captions")
    expect = pytest.importorskip("playwright.sync_api").expect
    path = tmp_path / "photo.png"
    image.radial_gradient("L").save(path)
    page = opened(server)
    tried = page.locator("#post_caption")
    tried.locator("summary").first.click()
    tried.get_by_role("button", name="Send").click()  # the image of the example
    expect(tried.locator(".status")).to_contain_text("Status 200")
    asked = {
        "model": "captions",
        "image": "",
        "min_length": 3,
        "max_length": 5,
        "scores": True,
        "banned": ["red"],
    }
    tried.locator("textarea").fill(json.dumps(asked))
    tried.get_by_label("Images or arrays, sent as a form").set_input_files(path)
    tried.get_by_role("button", name="Send").click()
    expect(tried.locator("pre")).to_contain_text('"score"')
    model = SERVERS["captions"]["captions"]
    options = {"min_length": 3, "max_length": 5, "scores": True}
    (wanted,) = model.outputs([path], banned=["red"], **options)[0]
    (found,) = json.loads(tried.locator("pre").text_content())["results"][0]["outputs"]
    assert (found["text"], found["score"]) == (wanted.text, pytest.approx(wanted.score, abs=1e-5))


@pytest.mark.parametrize("several", [False, True], ids=["a text", "a list"])
def test_a_text_is_sent_beside_an_image(opened, tmp_path, several):
    """As the body has it, alone or in a list: the model reads both."""
    image = pytest.importorskip("PIL.Image", reason="needs the extra `images`")
    expect = pytest.importorskip("playwright.sync_api").expect
    path = tmp_path / "photo.png"
    text = "the red dog"
    image.radial_gradient("L").save(path)
    model = questioner(DECODERS["rnn"])
    wanted = model.predict([(path, text)], max_length=5)[0]
    with served({"questions": model}) as server:
        tried = opened(server).locator("#post_predict")
        tried.locator("summary").first.click()
        body = {"model": "questions", "input": [text] if several else text, "max_length": 5}
        tried.locator("textarea").fill(json.dumps(body))
        tried.get_by_label("Images or arrays, sent as a form").set_input_files(path)
        tried.get_by_role("button", name="Send").click()
        expect(tried.locator(".status")).to_contain_text("Status 200", timeout=60_000)
        (found,) = json.loads(tried.locator("pre").text_content())["results"][0]["outputs"]
    assert found["text"] == wanted


def test_the_page_asks_for_a_key(opened):
    expect = pytest.importorskip("playwright.sync_api").expect
    with served(SERVERS["one"], keys=["secret"]) as server:
        page = opened(server)
        expect(page.locator("#state")).to_have_text("The server needs a key.")
        page.get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#state")).to_contain_text("can be tried here")
        tried = page.locator("#get_v1_models")
        tried.locator("summary").first.click()
        tried.get_by_role("button", name="Send").click()
        expect(tried.locator("pre")).to_contain_text('"id": "en-de"')


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(servers, opened, scheme):
    package = pytest.importorskip(
        "axe_playwright_python", reason="needs axe: pip install axe-playwright-python"
    )
    expect = pytest.importorskip("playwright.sync_api").expect
    axe = Path(package.__path__[0], "axe.min.js").read_text(encoding="utf-8")
    page = opened(servers("one"), color_scheme=scheme)
    expect(page.locator("#state")).to_contain_text("can be tried here")
    tried = page.locator("#post_predict")
    tried.locator("summary").first.click()
    tried.get_by_text("Keys of the body").click()
    tried.get_by_role("button", name="Send").click()
    expect(tried.locator(".status")).to_contain_text("Status 200")
    page.evaluate(axe)
    complaints = "async () => (await axe.run()).violations.map(each => each.id)"
    assert page.evaluate(complaints) == []
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert page.evaluate(complaints) == ["button-name"]
