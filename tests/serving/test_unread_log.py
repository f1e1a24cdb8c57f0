"""A server whose stderr is a pipe that nobody reads goes on, and ends when it is asked to."""

import fcntl
import http.client
import logging
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
if sys.platform != "linux":
    pytest.skip("sets the size of a pipe", allow_module_level=True)

from regard.core.log_output import logging_in_background, logging_to_stderr
from support.forged import GOLDEN
from support.predictors import translator
from support.servers import served

log = logging.getLogger("regard.test")
MODEL = GOLDEN / "transformer"
PATIENCE = 60.0
SMALLEST_PIPE = 4096


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_log_that_nobody_reads_stops_nothing(workers):
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    command = [sys.executable, "-m", "regard", "serve", f"en={MODEL}", "--port", "0"]
    process = subprocess.Popen([*command, "--workers", str(workers)], stderr=writing)
    os.close(writing)
    try:
        said = ""
        while (found := re.search(r"serving en on http://127\.0\.0\.1:(\d+)\n", said)) is None:
            more = os.read(reading, SMALLEST_PIPE).decode()
            assert more, said
            said += more
        for _ in range(200):
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)
            connection.request("GET", "/health/live", headers={"x-request-id": "x" * 64})
            assert connection.getresponse().status == 200
            connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(reading)


def test_lines_that_were_dropped_are_counted_in_the_metrics():
    """More is logged than anyone reads; the server answers, and says how much is lost."""
    reading, writing = os.pipe()
    with (
        os.fdopen(writing, "w", encoding="utf-8") as stream,
        redirect_stderr(stream),
        logging_to_stderr("regard: "),
        logging_in_background(),
        served({"rnn": translator(decoder="rnn")}) as server,
    ):
        before = server.ask("/metrics")[2]["text"]
        for _ in range(600):
            log.info("%s", "x" * 10_000)
        after = server.ask("/metrics")[2]["text"]
        os.close(reading)
    assert dropped(before) == 0
    assert 100 < dropped(after) < 600


def dropped(metrics: str) -> float:
    return float(re.search(r"^regard_log_lines_dropped_total (\S+)", metrics, re.MULTILINE)[1])
