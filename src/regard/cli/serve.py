"""`regard serve`."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import regard
from regard.cli import completion
from regard.cli.options import argument, flag, option
from regard.core.errors import InvalidArgument

KEYS = "REGARD_API_KEYS"
DEVICE = r"(?:auto|cpu|cuda(?::[0-9]+)?)"
PLACED = re.compile(rf"(?P<model>.+)@(?P<devices>{DEVICE}(?:,{DEVICE})*)", re.DOTALL)
MaxLength = Annotated[
    int,
    option("N", "Tokens of an output that a request may ask for; a recipe may have more.", least=1),
]
MaxBeams = Annotated[
    int,
    option(
        "N",
        "Hypotheses of a beam, and outputs of an input, that a request may ask for; likewise.",
        least=1,
    ),
]
SearchMemory = Annotated[
    int | None,
    option(
        "MIB",
        "Memory that all searches together may take, beside the models; requests wait for it, and "
        "one that needs more is refused [default: 512 on a CPU, half of what is free on a GPU].",
        least=1,
    ),
]


def serve(
    models: Annotated[
        list[str],
        argument(
            "[NAME=]MODEL[@DEVICE,…]", "Runs or checkpoints, by their folders' names or NAME."
        ),
    ],
    host: Annotated[
        str, option("ADDRESS", "Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("N", "Port to listen on; 0: a free one.", least=0, most=65535)
    ] = 8000,
    device: Annotated[
        list[str],
        option(
            "NAME",
            "cpu, cuda, cuda:1, or auto: a GPU where there is one. Repeated: a "
            "replica of each model on each.",
            complete=completion.devices,
        ),
    ] = ["auto"],  # noqa: B006  read only
    keys: Annotated[
        Path | None,
        option("FILE", f"API keys, one per line [default: ${KEYS}, separated by commas; none]."),
    ] = None,
    slots: Annotated[int, option("N", "Requests that are decoded together.", least=1)] = 64,
    queue: Annotated[
        int, option("N", "Requests that wait at most; more get status 429.", least=1)
    ] = 256,
    max_body: Annotated[int, option("N", "Bytes of a request.", least=1)] = 1 << 20,
    max_image_body: Annotated[
        int, option("N", "Bytes of a request with images, where a model reads images.", least=1)
    ] = 16 << 20,
    max_inputs: Annotated[int, option("N", "Inputs of a request.", least=1)] = 256,
    max_length: MaxLength = 4096,
    max_beams: MaxBeams = 128,
    search_memory: SearchMemory = None,
    drain_seconds: Annotated[
        float, option("N", "Time for requests in flight after SIGTERM.", least=0)
    ] = 30.0,
    cors: Annotated[
        list[str] | None,
        option(
            "ORIGIN", "Pages of it may ask from a browser: https://example.org, or *; repeatable."
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Host name that requests may have, beside this machine's, as behind "
            "a reverse proxy; repeatable.",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, option("FILE", "Certificate with its chain, for HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, option("FILE", "Key of the certificate.")] = None,
    workers: Annotated[
        int,
        option(
            "N",
            "Front-end processes over one engine process; 0: one process does both.",
            least=0,
            most=256,
        ),
    ] = 0,
    no_studio: Annotated[
        bool, flag("--no-studio", "Serve the API alone: neither the studio nor its routes.")
    ] = False,
) -> None:
    """Serve models over HTTP, with continuous batching. Listens on this machine only,
    unless told otherwise.

    Examples: regard serve runs/translation

    regard serve en-de=runs/en-de de-en=runs/de-en --port 9000 --keys keys.txt

    regard serve en-de=runs/en-de@cuda:0,cuda:1 de-en=runs/de-en@cuda:2
    """
    named, devices = placed_models(models, device)
    regard.serve(
        named,
        host=host,
        port=port,
        device=devices,
        keys=keys_of_environment() if keys is None else keys,
        slots=slots,
        queue=queue,
        max_body=max_body,
        max_image_body=max_image_body,
        max_inputs=max_inputs,
        max_length=max_length,
        max_beams=max_beams,
        search_memory=search_memory,
        drain_seconds=drain_seconds,
        cors=cors or (),
        allowed_hosts=allowed_host or (),
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        workers=workers,
        no_studio=no_studio,
    )


def keys_of_environment() -> list[str]:
    """The keys of the variable; none where it is not set. A blank one would let everyone in."""
    given = os.environ.get(KEYS)
    if given is None:
        return []
    if not given.replace(",", "").strip():
        wanted = "keys, separated by commas"
        remedy = "Unset it to let everyone in."
        raise InvalidArgument(KEYS, wanted=wanted, got=repr(given), remedy=remedy)
    return given.split(",")


def placed_models(
    models: Sequence[str], device: list[str]
) -> "tuple[dict[str, str | Path | regard.Predictor], dict[str, list[str]]]":
    """The paths of models by name, that given before a "=" or that of the folder;
    and their devices, or these.
    """
    named: dict[str, str | Path | regard.Predictor] = {}
    devices: dict[str, list[str]] = {}
    for each in models:
        placed = PLACED.fullmatch(each)
        name, _, path = (each if placed is None else placed["model"]).rpartition("=")
        name = name or Path(path).resolve().name
        if name in named:
            wanted = "models of different names"
            raise InvalidArgument(
                "models", wanted=wanted, got=repr(name), remedy="Give NAME=MODEL for each."
            )
        named[name] = path
        devices[name] = device if placed is None else placed["devices"].split(",")
    return named, devices
