"""`regard serve`."""

import os
from pathlib import Path
from typing import Annotated

import regard
from regard.cli.options import Device, argument, option
from regard.core.errors import InvalidArgument

KEYS = "REGARD_API_KEYS"


def serve(
    models: Annotated[list[str], argument("[NAME=]MODEL", "Runs or checkpoints, by their folders' names or NAME.")],
    host: Annotated[str, option("ADDRESS", "Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port to listen on; 0: a free one.", least=0, most=65535)] = 8000,
    device: Device = "auto",
    keys: Annotated[
        Path | None, option("FILE", f"API keys, one per line [default: ${KEYS}, separated by commas; none].")
    ] = None,
    slots: Annotated[int, option("N", "Requests that are decoded together.", least=1)] = 64,
    queue: Annotated[int, option("N", "Requests that wait at most; more get status 429.", least=1)] = 256,
    max_body: Annotated[int, option("N", "Bytes of a request.", least=1)] = 1 << 20,
    max_inputs: Annotated[int, option("N", "Inputs of a request.", least=1)] = 256,
    drain_seconds: Annotated[float, option("N", "Time for requests in flight after SIGTERM.", least=0)] = 30.0,
) -> None:
    """Serve models over HTTP, with continuous batching. Listens on this machine only, unless told otherwise.

    Examples: regard serve runs/translation

    regard serve en-de=runs/en-de de-en=runs/de-en --port 9000 --keys keys.txt
    """
    named: dict[str, str | Path | regard.Predictor] = {}
    for each in models:
        name, _, path = each.rpartition("=")
        name = name or Path(path).resolve().name
        if name in named:
            wanted = "models of different names"
            raise InvalidArgument("models", wanted=wanted, got=repr(name), remedy="Give NAME=MODEL for each.")
        named[name] = path
    regard.serve(
        named,
        host=host,
        port=port,
        device=device,
        keys=_keys(keys),
        slots=slots,
        queue=queue,
        max_body=max_body,
        max_inputs=max_inputs,
        drain_seconds=drain_seconds,
    )


def _keys(path: Path | None) -> list[str]:
    from regard.data.text import texts

    lines = os.environ.get(KEYS, "").split(",") if path is None else texts(path, ())
    keys = [line.strip() for line in lines if line.strip()]
    if path is not None and not keys:
        raise InvalidArgument("--keys", wanted="a file with a key per line", got=f"none in {path}", remedy="Add one.")
    return keys
