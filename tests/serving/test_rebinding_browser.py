"""A page of another site in a browser, whose name points to this machine, and which sends forms."""

import http.server
import threading

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from support.browsers import CHROMIUM
from support.forged import GOLDEN
from support.served_process import command

ATTACK = """async ({rebound, local}) => {
  const found = {};
  for (const path of ["studio/models", "models", "metrics", "admin/models"]) {
    const answer = await fetch(`${rebound}/${path}`).catch((error) => null);
    found[path] = answer === null ? "unreadable" : answer.status;
  }
  const form = new FormData();
  form.set("input", "abc");
  await fetch(`${local}/predict`, { method: "POST", mode: "no-cors", body: form }).catch(() => null);
  return found;
}"""


@pytest.mark.slow
def test_a_page_of_another_site_reads_nothing_and_runs_nothing():
    """The browser resolves evil.example to 127.0.0.1, as after DNS rebinding."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, *given) -> None:
            return

    arguments = [
        "--no-sandbox",
        "--host-resolver-rules=MAP evil.example 127.0.0.1",
        # Local network access, which newer browsers ask the user about, is not what protects us.
        "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
    ]
    with (
        command("serve", f"en={GOLDEN / 'transformer'}") as (port, _),
        playwright.sync_playwright() as started,
    ):
        launched = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = launched.new_page()
        # The page comes from the site itself. Then its name points to the server, on the same port.
        rebound = f"http://evil.example:{port}"
        content = "<!doctype html><title>evil</title>"
        page.route(
            f"{rebound}/", lambda route: route.fulfill(body=content, content_type="text/html")
        )
        page.goto(f"{rebound}/")
        found = page.evaluate(ATTACK, {"rebound": rebound, "local": f"http://127.0.0.1:{port}"})
        assert set(found.values()) == {421}, found
        # And a page of a site elsewhere, which sends a form here.
        site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        try:
            page.goto(f"http://evil.example:{site.server_port}/")
            local = f"http://127.0.0.1:{port}"
            found = page.evaluate(ATTACK, {"rebound": local, "local": local})
            assert set(found.values()) == {"unreadable"}
        finally:
            site.shutdown()
            thread.join()
            site.server_close()
        own = launched.new_page()
        own.goto(f"http://127.0.0.1:{port}/docs")
        metrics = own.evaluate("async () => (await fetch('/metrics')).text()")
        assert 'regard_requests_total{route="/predict",status="403"}' in metrics
        assert 'regard_requests_total{route="/predict",status="200"}' not in metrics
        form = """async () => {
          const form = new FormData();
          form.set("input", "abc");
          return (await fetch("/predict", { method: "POST", body: form })).status;
        }"""
        assert own.evaluate(form) == 200
        launched.close()
