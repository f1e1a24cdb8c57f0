"""`regard.studio`: the studio of models, in a browser on this machine."""

import webbrowser
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

from regard.checkpoint.format import find_checkpoint
from regard.core.errors import InvalidArgument, RegardError
from regard.inference.predictor import Predictor
from regard.serving.run import serve
from regard.studio.sources import DataSet, StudioSources
from regard.training.telemetry.log_file import LOG_FILE

MODEL = "dates"  # of the package, for a studio without models


def studio(
    models: Mapping[str, str | Path | Predictor] | str | Path | None = None,
    *,
    port: int = 8700,
    device: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "auto",
    data: Sequence[str] = (),
    columns: Sequence[str] = (),
    trust_data_paths: bool = False,
    alignment: Sequence[str | Path] = (),
    max_length: int = 4096,
    max_beams: int = 128,
    search_memory: int | None = None,
    allowed_hosts: Sequence[str] = (),
    open_browser: bool = True,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Show models in a browser: what they attend to, token by token, and what follows from edits of it.

    models         a run or checkpoint, or several by name; by default a small model of dates, which the package has
    port           0: a free one
    device         as of `regard.serve`
    data           to browse: a split of the models' own data, or files like those they were trained on (`columns` of a
                   table); `trust_data_paths` is that of `regard.evaluate`
    alignment      files of sources, targets and reference links: adds each head's agreement with them; needs `data`
    max_length, max_beams, search_memory   as of `regard.serve`
    allowed_hosts  names by which browsers reach it through a reverse proxy, as of `regard.serve`
    open_browser   otherwise the address is logged only
    on_ready       is called with the address when the server listens there

    The log of a run is drawn as it trains. A run that has no checkpoint yet is shown beside the models, without one.
    It listens on this machine only, until SIGTERM or SIGINT. `regard.serve` has the same page for others.
    """

    def show(address: str) -> None:
        if on_ready is not None:
            on_ready(address)
        if open_browser:
            webbrowser.open(address)

    if alignment and (len(alignment) != 3 or not data):
        wanted, remedy = (
            "files of sources, targets and reference links, beside data",
            "Give data=['test'] as well.",
        )
        got = f"{len(alignment)} files{'' if data else ' without data'}"
        raise InvalidArgument("alignment", wanted=wanted, got=got, remedy=remedy)
    given: Mapping[str, str | Path | Predictor]
    if models is None:
        given = {}
    elif isinstance(models, Mapping):
        given = models
    else:
        given = {Path(models).resolve().name: models}
    runs = {
        name: Path(each)
        for name, each in given.items()
        if not isinstance(each, Predictor) and is_run(Path(each))
    }
    named = {
        name: each for name, each in given.items() if name not in runs or has_checkpoint(runs[name])
    }
    if isinstance(device, Mapping):
        device = {name: each for name, each in device.items() if name in named} or "auto"
    files_of_links = tuple(str(each) for each in alignment)
    browsed = (
        DataSet(tuple(data), tuple(columns), trust_data_paths, files_of_links) if data else None
    )
    sources = StudioSources(browsed, runs)
    with as_file(files("regard.studio").joinpath("example_model", MODEL)) as shipped:
        shown = named or {MODEL: shipped}
        serve(
            shown,
            port=port,
            device=device,
            max_length=max_length,
            max_beams=max_beams,
            search_memory=search_memory,
            allowed_hosts=allowed_hosts,
            on_ready=show,
            show_paths=True,
            studio=sources,
        )


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a training run, which may just have begun."""
    return (folder / LOG_FILE).is_file()


def has_checkpoint(run: Path) -> bool:
    try:
        find_checkpoint(run)
    except RegardError:
        return False
    return True
