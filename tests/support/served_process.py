"""`regard serve` and `regard studio` as processes, and requests to them as bytes."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from support.servers import PATIENCE

READY = re.compile(r"on http://\[?[0-9a-f.:]+\]?:(\d+)")


@contextmanager
def command(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """The port of a server that a command has started, and what it logged until it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments, "--port", "0"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    logged: list[str] = []
    reader = None
    try:
        for line in process.stderr:
            logged.append(line)
            if found := READY.search(line):
                # A pipe that nobody reads fills up, and the server would wait for its reader.
                reader = threading.Thread(target=process.stderr.read, daemon=True)
                reader.start()
                yield int(found[1]), logged
                return
        raise AssertionError("".join(logged))
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            if reader is not None:
                reader.join(PATIENCE)
            process.stderr.close()


def exchange(
    port: int,
    method: str,
    path: str,
    *headers: str,
    body: bytes = b"",
    client: str = "127.0.0.1",
    server: str = "127.0.0.1",
    version: str = "1.1",
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request with exactly these header lines.

    client   the address that it comes from
    server   the address that it goes to
    """
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {path} HTTP/{version}", *headers, *length, "Connection: close", "", ""]
    with socket.create_connection(
        (server, port), timeout=PATIENCE, source_address=(client, 0)
    ) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1") + body)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    head, _, content = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    found = dict(line.lower().split(": ", 1) for line in rest)
    return int(first.split()[1]), found, content
