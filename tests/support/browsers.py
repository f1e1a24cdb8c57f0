"""Pages in Debian's chromium, through Playwright: whatever they report to their console fails the test."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 1</script>",
    "<!--<script>",
    "--><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'>",
    "<svg><script>window.hacked = 1</script></svg>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "<a href='javascript:window.hacked = 1'>x</a>",
    "javascript:window.hacked = 1",
    "' onfocus='window.hacked = 1' autofocus='",
    '" onmouseover="window.hacked = 1" x="',
    "</title><script>window.hacked = 1</script>",
    "</style><script>window.hacked = 1</script>",
    "<style>* { display: none }</style>",
    "<base href='https://example.org/'>",
    "<meta http-equiv='refresh' content='0;url=https://example.org/'>",
    "<form action='https://example.org/'><input name=x></form>",
    "${window.hacked = 1}",
    "&lt;script&gt;&#x3c;\u202e\u0000\u2028]]>",
]
VIOLATIONS = "async (options) => (await axe.run(options)).violations.map(each => `${each.id}: ${each.nodes[0].html}`)"


@contextmanager
def browser() -> Iterator[object]:
    """A browser; where there is none, the test is skipped."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextmanager
def strict_pages(
    browser: object, allowed: Callable[[str], bool] = lambda text: False
) -> Iterator[Callable]:
    """Opens pages at addresses. In the end none has reported an error, but what is `allowed`, nor asked elsewhere."""
    contexts, told, asked = [], [], []

    def opened(address: str, **options: object) -> object:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: told.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    errors = [text for text in told if not allowed(text)]
    assert not errors, errors
    own = ("http://127.0.0.1:", "file:", "data:", "blob:", "about:")
    elsewhere = [url for url in asked if not url.startswith(own)]
    assert not elsewhere, elsewhere


def number(text: str) -> float:
    """A number as pages write it, with a minus sign."""
    return float(text.replace("−", "-"))


def fixed(value: float) -> str:
    """A number as pages write it: three digits, a minus sign, and none before zero."""
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def until(page: object, function: str, argument: object = None) -> None:
    """Wait until a function of the page gives true. Playwright's own way evaluates text, which policies forbid."""
    end = time.monotonic() + 30
    while not page.evaluate(function, argument):
        assert time.monotonic() < end, function
        page.wait_for_timeout(50)


def settled(page: object) -> object:
    """The page, once it shows what its address asks for: a view is busy from the event that changes it on."""
    page.wait_for_selector("main:not([aria-busy])", state="attached")
    return page


def violations(page: object, rules: Sequence[str] = ()) -> list[str]:
    """What the rules of https://github.com/dequelabs/axe-core find on a page: all of them, or those named."""
    package = pytest.importorskip(
        "axe_playwright_python", reason="needs axe: pip install axe-playwright-python"
    )
    if not page.evaluate("Boolean(globalThis.axe)"):
        page.evaluate(Path(package.__path__[0], "axe.min.js").read_text(encoding="utf-8"))
    return page.evaluate(VIOLATIONS, {"runOnly": list(rules)} if rules else {})
