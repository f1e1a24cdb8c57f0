"""What several processes must do as one does: TLS, traces, images and requests of many lines."""

import base64
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("opentelemetry.sdk", reason="needs the extra `telemetry`")
pytest.importorskip("PIL", reason="needs the extra `images`")
if sys.platform == "win32" or shutil.which("openssl") is None:
    pytest.skip("needs Unix sockets and the program openssl", allow_module_level=True)

import regard
from regard.checkpoint import store
from regard.checkpoint.format import WEIGHTS, checkpoint_texts
from regard.inference.predictor import Predictor
from regard.model.weights import weights_of
from regard.serving.http.service import IMAGE
from support.captioners import captioner
from support.forged import GOLDEN
from support.servers import PATIENCE, until

pytestmark = pytest.mark.slow

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(HTTPServer):
    """Receives traces, as OpenTelemetry's collector does."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Receive)


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *given: object) -> None:
        pass


class Secure:
    """A server of two front ends with TLS, and the collector of its traces."""

    def __init__(self, port: int, certificate: Path, collector: Collector) -> None:
        self.port, self.collector = port, collector
        self.context = ssl.create_default_context(cafile=certificate)

    def ask(
        self, path: str, body: str, kind: str = "application/json", **headers: str
    ) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=PATIENCE, context=self.context
        )
        try:
            connection.request("POST", path, body, {"content-type": kind, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def saved(model: Predictor, folder: Path) -> Path:
    table = model.recipe.with_sizes(model.sources, model.target)
    texts = checkpoint_texts(
        model.recipe.as_dict(), (model.sources, model.target), table, regard.__version__
    )
    store.write(folder, texts, {WEIGHTS: weights_of(model.model)})
    return folder


@pytest.fixture(scope="module")
def captions(tmp_path_factory) -> Path:
    return saved(captioner("transformer"), tmp_path_factory.mktemp("captions") / "model")


@pytest.fixture(scope="module")
def server(tmp_path_factory, captions) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("t")
    certificate, key, log = folder / "certificate.pem", folder / "key.pem", folder / "log"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    collector = Collector()
    receiving = threading.Thread(target=collector.serve_forever, daemon=True)
    receiving.start()
    command = [
        sys.executable,
        "-m",
        "regard",
        "serve",
        f"en={GOLDEN / 'transformer'}",
        f"captions={captions}",
    ]
    command += [
        "--port",
        "0",
        "--workers",
        "2",
        "--tls-certificate",
        str(certificate),
        "--tls-key",
        str(key),
    ]
    traces = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with log.open("w") as file:
        environment = os.environ | traces | {"TMPDIR": str(folder)}
        process = subprocess.Popen(command, stderr=file, env=environment)
    try:
        serving = re.compile(r"serving en, captions on https://127\.0\.0\.1:(\d+)")
        until(lambda: process.poll() is not None or serving.search(log.read_text()) is not None)
        (port,) = serving.findall(log.read_text())
        yield Secure(int(port), certificate, collector)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        collector.shutdown()
        collector.server_close()
        receiving.join(PATIENCE)


def test_all_front_ends_speak_tls(server):
    body = json.dumps({"model": "en", "input": "abc", "max_length": 8})
    wanted = regard.load(GOLDEN / "transformer").predict(["abc"], max_length=8)
    for _ in range(6):  # connections, which front ends take as they come
        status, answer = server.ask("/predict", body)
        assert (status, [json.loads(answer)["results"][0]["outputs"][0]["text"]]) == (200, wanted)
    with pytest.raises(ssl.SSLCertVerificationError):
        http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE).request(
            "GET", "/health/live"
        )


def test_requests_are_traced_with_the_stages_of_the_engine_process(server):
    body = json.dumps({"model": "en", "input": "abc", "max_length": 8})
    assert server.ask("/predict", body, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")[0] == 200
    trace = bytes.fromhex(TRACE)
    until(lambda: any(trace in each for each in server.collector.received))
    spans = [each for each in server.collector.received if trace in each]
    for name in (b"POST /predict", b"queue", b"generate", b"answer"):
        assert any(name in each for each in spans)


def test_images_are_captioned(server, captions):
    (wanted,) = regard.load(captions).predict([_pixels(captions)], max_length=6)
    status, answer = server.ask(
        "/caption", json.dumps({"model": "captions", "image": IMAGE, "max_length": 6})
    )
    assert (status, json.loads(answer)["results"][0]["outputs"][0]["text"]) == (200, wanted)


def _pixels(captions: Path) -> object:
    from regard.data.images import decode_image

    return decode_image(
        base64.b64decode(IMAGE),
        "image",
        *regard.load(captions).recipe.data.source_fields[0].resizing,
    )


def test_many_lines_are_answered_in_order(server):
    texts = [f"abc {number}" for number in range(40)]
    lines = [json.dumps({"model": "en", "input": text, "max_length": 8}) for text in texts]
    lines[7] = "no JSON"
    status, answer = server.ask("/predict", "\n".join(lines), "application/x-ndjson")
    wanted = regard.load(GOLDEN / "transformer").predict(texts, max_length=8)
    found = [json.loads(line) for line in answer.splitlines()]
    assert (status, len(found)) == (200, len(texts))
    for number, (line, text) in enumerate(zip(found, wanted, strict=True)):
        if number == 7:
            assert "body: wanted a request of this route" in json.dumps(line)
        else:
            assert line["results"][0]["outputs"][0]["text"] == text
