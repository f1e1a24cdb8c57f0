"""`regard.serve`: models behind HTTP, until a signal ends it."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.core.errors import InvalidArgument, MissingExtra
from regard.core.log_output import logging_in_background
from regard.inference.predictor import Predictor

if TYPE_CHECKING:
    from regard.serving.http.keys import ApiKey
    from regard.studio.sources import StudioSources

log = logging.getLogger(__name__)


# The supervisor of several processes logs here, too: its work must not wait for who reads the log.
@logging_in_background()
def serve(
    models: str | Path | Mapping[str, str | Path | Predictor],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "auto",
    keys: Path | Sequence[str] = (),
    slots: int = 64,
    queue: int = 256,
    max_body: int = 1 << 20,
    max_image_body: int = 16 << 20,
    max_inputs: int = 256,
    max_length: int = 4096,
    max_beams: int = 128,
    search_memory: int | None = None,
    drain_seconds: float = 30.0,
    cors: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    workers: int = 0,
    on_ready: Callable[[str], None] | None = None,
    studio: "StudioSources | None" = None,
    no_studio: bool = False,
    show_paths: bool = False,
) -> None:
    """Serve models over HTTP until SIGTERM or SIGINT: then no request is taken any more, and those in flight end first.

    models          a run or checkpoint, or several by name
    host, port      where to listen; "0.0.0.0" is every network interface, port 0 any free port
    device          "cpu", "cuda", "cuda:1", or "auto": a GPU where there is one; several: each holds a replica of every
                    model; or the devices of each model, by its name
    keys            API keys, one of which each request must name: a file of them, or its lines (`KEY name=web admin`);
                    none: whoever reaches the server may use it
    slots           requests that are decoded together, with equal settings, on each device
    queue           requests that wait at most, for each device; more are refused with status 429
    max_body        bytes of a request
    max_image_body  bytes of a request with images or vectors, where a model reads these
    max_inputs      inputs of a request
    max_length      tokens of an output that a request may ask for; the recipe of a model may have more
    max_beams       hypotheses of a beam, and outputs of an input, that a request may ask for; likewise
    search_memory   MiB that all searches together may take, beside the models, on each device: requests wait for it,
                    and one that needs more alone is refused; None: 512 on a CPU, half of what is free on a GPU
    drain_seconds   in which requests in flight must end after a signal
    cors            origins (https://example.org, or "*") whose pages may ask from a browser
    allowed_hosts   names by which requests may address the server, beside those of this machine; behind a reverse
                    proxy, the name that browsers know. Without any, a server that listens on this machine only answers
                    to no other name, and one that other machines reach answers to all
    tls_certificate file of the certificate and its chain, for HTTPS; with `tls_key`, the file of its key
    workers         front-end processes, which answer HTTP and share one engine process; 0: this process does both
    on_ready        is called with the address, as "http://127.0.0.1:8000/", when the server listens there
    studio          the data and the training runs that the studio shows (`regard.studio`)
    no_studio       the studio and what its page asks are not served
    show_paths      clients may learn the paths of the models: the studio writes them into commands
    """
    try:
        from regard.serving.http.app import Server
        from regard.serving.http.cors import CrossOrigin
        from regard.serving.http.hosts import AllowedHosts
        from regard.serving.http.server import fastest_loop, serve_http
        from regard.serving.http.service import HttpLimits
        from regard.serving.http.tls import Tls
        from regard.serving.http.tracing import tracing_of_environment
        from regard.serving.processes.messages import ServerConfig
        from regard.serving.processes.process_end import ProcessEnd
        from regard.serving.processes.supervisor import run_processes
        from regard.serving.scheduler.model_loader import ModelLoader
        from regard.serving.scheduler.placement import Placement
        from regard.serving.scheduler.scheduler import SchedulerLimits
        from regard.serving.scheduler.search_limits import OptionCaps
        from regard.studio.sources import StudioSources
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "Serving models") from None
    sizes = {"max_length": max_length, "max_beams": max_beams, "search_memory": search_memory}
    for name, value in sizes.items():
        if value is not None and value < 1:
            remedy = "Leave it out for the default."
            raise InvalidArgument(name, wanted="1 or more", got=str(value), remedy=remedy)
    named = models if isinstance(models, Mapping) else {Path(models).resolve().name: models}
    if not named:
        raise InvalidArgument("models", wanted="at least one", got="none", remedy="Give a run.")
    check_names(named)
    known = _keys(keys)
    origins = CrossOrigin(cors)
    tls = Tls.of(tls_certificate, tls_key)
    if known and "*" in origins.origins:
        log.warning(
            "cors: pages of every origin may use the API with a key that they know or ask for"
        )
    elif "*" in origins.origins:
        log.warning(
            "cors: there are no keys, so every page that a user of this server opens in a browser may use the API "
            "(but not /admin and the studio). List the origins instead, or add keys"
        )
    if workers and show_paths:
        raise InvalidArgument(
            "show_paths", wanted="none beside workers", got="both", remedy="Leave one out."
        )
    placement = Placement.of(named, device)
    if workers and studio is not None:
        wanted = "none beside workers, which have no data or runs"
        remedy = "Set workers to 0."
        raise InvalidArgument("studio", wanted=wanted, got="some", remedy=remedy)
    if no_studio and studio is not None:
        raise InvalidArgument(
            "no_studio",
            wanted="a server without data and runs for the studio",
            got="some",
            remedy="Leave one out.",
        )
    AllowedHosts(allowed_hosts)  # a wrong name is refused before the server listens
    if workers:
        config = ServerConfig(
            models=_paths(named),
            devices={
                name: [placement.devices[each] for each in own]
                for name, own in placement.engines.items()
            },
            slots=slots,
            queue=queue,
            keys=known,
            max_body=max_body,
            max_image_body=max_image_body,
            max_inputs=max_inputs,
            max_length=max_length,
            max_beams=max_beams,
            search_memory=search_memory,
            bulk_lines=_bulk_lines(queue, workers),
            drain_seconds=drain_seconds,
            cors=list(cors),
            host=host,
            allowed_hosts=list(allowed_hosts),
            tls=None if tls is None else (str(tls.certificate), str(tls.key)),
            no_studio=no_studio,
        )
    listening = _listen(host, port)
    address, chosen = listening.getsockname()[:2]
    shown = f"{'http' if tls is None else 'https'}://{f'[{address}]' if ':' in address else address}:{chosen}"

    def ready() -> None:
        log.info("serving %s on %s", ", ".join(named), shown)
        if on_ready is not None:
            on_ready(f"{shown}/")

    if workers:
        run_processes(config, listening, workers, ready)
        return
    engine = placement.engine(
        SchedulerLimits(
            slots=slots,
            queued_jobs=queue,
            queued_tokens=256 * queue,
            caps=OptionCaps(max_length, max_beams),
            search_memory=search_memory,
        )
    )
    loader = ModelLoader(engine, named)
    loader.load_all()
    engine.start()
    shown_models = named.items() if show_paths else ()
    paths = {name: str(path) for name, path in shown_models if not isinstance(path, Predictor)}
    limits = HttpLimits(
        max_body, max_inputs, image_body=max_image_body, bulk_lines=_bulk_lines(queue, 1)
    )
    tracing = tracing_of_environment()
    sources = StudioSources() if studio is None else studio
    app = Server(
        engine,
        limits=limits,
        keys=known,
        admin=loader,
        cors=origins,
        hosts=AllowedHosts(allowed_hosts, address=address, host=host),
        tracing=tracing,
        paths=paths,
        studio=None if no_studio else sources,
    )

    ending = ProcessEnd(drain_seconds)

    async def run() -> None:
        if hasattr(signal, "SIGHUP"):  # not on Windows
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(
                signal.SIGHUP, lambda: loop.run_in_executor(None, loader.load_all_anew)
            )
        await serve_http(app, engine, listening, drain_seconds, tls, ending)

    ready()
    with ending, asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(run())


def _keys(given: Path | Sequence[str]) -> "list[ApiKey]":
    """The keys of a file or of its lines. Lines without a key would let everyone in, and are refused."""
    from regard.serving.http.keys import read_key_file, read_keys

    if isinstance(given, Path):
        return read_key_file(given)
    if isinstance(given, str):
        wanted = "a list of keys, or the path of a file"
        remedy = "Give [KEY], or Path(FILE)."
        raise InvalidArgument("keys", wanted=wanted, got="a text", remedy=remedy)
    known = read_keys(given)
    if given and not known:
        wanted = "at least one key"
        remedy = "Add one, or give none at all to let everyone in."
        raise InvalidArgument("keys", wanted=wanted, got="blank ones only", remedy=remedy)
    return known


def check_names(names: Iterable[str]) -> None:
    """Refuse a name of a model that cannot be a part of an address."""
    for name in names:
        if not name or "/" in name or name in (".", "..") or not name.isprintable():
            wanted = "names of models that can be a part of an address, without '/'"
            raise InvalidArgument(
                "models", wanted=wanted, got=repr(name), remedy="Give another name: NAME=PATH."
            )


def _bulk_lines(queue: int, processes: int) -> int:
    """Lines of requests of many that each process has in the queue at a time: half of it, so that others find room."""
    return max(1, queue // 2 // processes)


def _paths(models: Mapping[str, str | Path | Predictor]) -> dict[str, str]:
    """The models of a scheduler process, which loads them itself."""
    for name, each in models.items():
        if isinstance(each, Predictor):
            wanted = "paths of models, which another process loads"
            remedy = "Save it, or set workers to 0."
            raise InvalidArgument(
                "models", wanted=wanted, got=f"{name!r} as an object", remedy=remedy
            )
    if sys.platform == "win32":
        raise InvalidArgument(
            "workers", wanted="0 on Windows", got="others", remedy="Leave it out."
        )
    return {name: str(each) for name, each in models.items()}


def _listen(host: str, port: int) -> socket.socket:
    # The socket module listens on all interfaces where the text is empty, as of a variable that is
    # not set. It raises a TypeError for a text that is not printable, and leaves a socket open.
    if not host.strip() or not host.isprintable():
        raise InvalidArgument(
            "host",
            wanted="a name or an address",
            got=repr(host),
            remedy="Give 127.0.0.1 for this machine only, or 0.0.0.0 for all interfaces.",
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        wanted = "an address and a port that are free"
        remedy = "Choose others: --host, --port."
        raise InvalidArgument(
            "port", wanted=wanted, got=f"{host}:{port}: {error}", remedy=remedy
        ) from None
