"""The site: a strict build, every link and anchor, and each page in a browser, light and dark, by the rules of axe."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.browsers import browser, strict_pages, violations

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class Links(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets, self.anchors = [], {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.targets += [given[name] for name in ("href", "src") if given.get(name)]
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}


@contextmanager
def http_server(folder: Path) -> Iterator[str]:
    """Axe reads the style sheets of a page, which a browser allows over HTTP only."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for package in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(package, reason="needs the extra `docs`: pip install 'regard[docs]'")
    out = tmp_path_factory.mktemp("site")
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        out / "doctrees",
    ]
    done = subprocess.run(
        [*build, ROOT / "docs", out / "html"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def broken(site: Path) -> list[str]:
    """Links to files or anchors that the site does not have. Addresses elsewhere are not asked for."""
    pages = {path: Links(path.read_text("utf-8")) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "data", "mailto"):
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.is_file() or (
                file in pages and unquote(parts.fragment) not in pages[file].anchors
            ):
                found.append(f"{path.relative_to(site)}: {target}")
    return found


def test_every_link_of_the_site_leads_somewhere(site, tmp_path):
    assert len(list(site.rglob("*.html"))) > 20
    assert broken(site) == []
    assert 'href="../index.html#install"' in (site / "guides" / "translate.html").read_text("utf-8")
    assert 'href="../claims.html"' in (site / "course" / "01-bottleneck.html").read_text("utf-8")
    (tmp_path / "page.html").write_text(
        "<a href='none.html'>x</a><a href='#none'>y</a><a href='#is'>z</a><p id='is'>"
    )
    assert broken(tmp_path) == ["page.html: none.html", "page.html: #none"]


def test_the_site_asks_nothing_of_the_network(site):
    """No script, style, font or image is elsewhere."""
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        assert 'src="http' not in text, path
        assert "https://cdn" not in text, path
    assert [path for path in site.rglob("*.css") if "url(http" in path.read_text("utf-8")] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_satisfies_the_rules_of_accessibility(site, theme):
    names = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    with http_server(site) as address, browser() as launched, strict_pages(launched) as opened:
        page = opened(f"{address}/index.html", color_scheme=theme)
        found = {}
        for name in names:
            page.goto(f"{address}/{name}")
            if problems := violations(page):
                found[name] = problems
    assert found == {}


def test_the_search_finds_a_page_offline(site):
    with browser() as launched, strict_pages(launched) as opened:
        page = opened(f"{(site / 'search.html').as_uri()}?q=sinusoidal")
        page.wait_for_selector("#search-results li a")
        names = page.eval_on_selector_all(
            "#search-results li a", "links => links.map(each => each.href)"
        )
    assert any("api.html" in name for name in names)
