"""The scan for known vulnerabilities, with a service on this machine that answers like PyPI's."""

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import lock

ROOT = Path(__file__).parents[2]
FAULT = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["1.1", "2.0"], "withdrawn": None}
SAME = {"id": "GHSA-1", "aliases": ["CVE-1", "PYSEC-1"], "fixed_in": ["2.0"], "withdrawn": None}
WITHDRAWN = {"id": "PYSEC-2", "aliases": [], "fixed_in": [], "withdrawn": "2026-01-01T00:00:00Z"}
UNMENDED = {"id": "PYSEC-3", "aliases": [], "fixed_in": [], "withdrawn": None}


class Service:
    """Documents by their path; 404 for others, and 500 for those that are None."""

    def __init__(self) -> None:
        self.documents, self.asked = dict[str, dict | None](), list[str]()

    def has(self, path: str, version: str, *faults: dict) -> None:
        self.documents[f"/pypi/{path}/json"] = {
            "info": {"version": version},
            "vulnerabilities": faults,
        }


@pytest.fixture
def service() -> Iterator[Service]:
    held = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            held.asked.append(self.path)
            document = held.documents.get(self.path)
            self.send_response(404 if self.path not in held.documents else 200 if document else 500)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        held.address = f"http://127.0.0.1:{server.server_port}/pypi"
        Thread(target=server.serve_forever, daemon=True).start()
        yield held
        server.shutdown()


def scanned(tmp_path: Path, address: str, *pins: str) -> tuple[int, list[str]]:
    """Exit code and printed lines of a scan of these versions."""
    (tmp_path / "constraints.txt").write_text("# pinned\n" + "".join(f"{pin}\n" for pin in pins))
    command = [sys.executable, ROOT / "tools/vulnerabilities.py", "--service", address]
    command += ["--constraints", tmp_path / "constraints.txt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_scan_without_findings_succeeds(service, tmp_path):
    service.has("sample/1.0", "1.0")
    service.has("other/3.2", "3.2", WITHDRAWN)
    code, lines = scanned(tmp_path, service.address, "sample==1.0", "Other==3.2")
    assert (code, lines[0]) == (0, "2 versions, 0 of them not looked up, 0 vulnerabilities")
    assert sorted(service.asked) == ["/pypi/other/3.2/json", "/pypi/sample/1.0/json"]


def test_a_vulnerable_version_is_named_with_those_that_mend_it(service, tmp_path):
    service.has("sample/1.0", "1.0", FAULT, SAME, WITHDRAWN, UNMENDED)
    service.has("other/3.2", "3.2")
    code, lines = scanned(tmp_path, service.address, "sample==1.0", "other==3.2")
    assert (code, lines) == (1, [
        "2 versions, 0 of them not looked up, 2 vulnerabilities",
        "vulnerable: sample 1.0: PYSEC-1 CVE-1, mended in 1.1, 2.0",
        "vulnerable: sample 1.0: PYSEC-3, mended in no version",
    ])  # fmt: skip


def test_the_newest_version_stands_for_itself_alone(service, tmp_path):
    """Where a mirror has no documents of versions, that of the newest says nothing about another version."""
    service.has("sample", "2.0", FAULT)
    code, lines = scanned(tmp_path, service.address, "sample==2.0")
    assert (code, lines[1]) == (1, "vulnerable: sample 2.0: PYSEC-1 CVE-1, mended in 1.1, 2.0")
    code, lines = scanned(tmp_path, service.address, "sample==1.0")
    assert (code, lines[0]) == (2, "1 versions, 1 of them not looked up, 0 vulnerabilities")


def test_what_could_not_be_looked_up_is_no_success(service, tmp_path):
    service.has("sample/1.0", "1.0")
    service.documents["/pypi/failing/1.0/json"] = None
    code, lines = scanned(tmp_path, service.address, "sample==1.0", "failing==1.0", "missing==1.0")
    assert (code, len(lines)) == (2, 3)
    assert lines[1].startswith("not looked up: failing 1.0: HTTPError: ")
    assert lines[2].startswith("not looked up: missing 1.0: LookupError: ")
    code, lines = scanned(tmp_path, "http://127.0.0.1:9/pypi", "sample==1.0")  # no service there
    assert (code, lines[0]) == (2, "1 versions, 1 of them not looked up, 0 vulnerabilities")
    assert (
        scanned(tmp_path, service.address)[0] == 2
    )  # nothing to look up: the file is not what it should be


def test_every_pinned_version_is_scanned_by_make_audit_and_by_ci(service, tmp_path):
    command = ["make", "-n", f"VENV={tmp_path}/venv", "audit"]
    printed = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    assert f"{tmp_path}/venv/bin/python tools/vulnerabilities.py" in printed
    assert "run: make audit" in (ROOT / ".github/workflows/ci.yml").read_text()
    pins = lock.pinned((ROOT / "constraints.txt").read_text())
    for name, version in pins.items():
        service.has(f"{name}/{version}", version, *([UNMENDED] if name == "torch" else []))
    command = [sys.executable, ROOT / "tools/vulnerabilities.py", "--service", service.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, sorted(service.asked)) == (
        1,
        sorted(f"/pypi/{a}/{b}/json" for a, b in pins.items()),
    )
    assert f"vulnerable: torch {pins['torch']}: PYSEC-3" in done.stdout
