"""Files of the pages that a server sends: from its package only, with a policy that admits nothing from elsewhere."""

from functools import cache
from http import HTTPStatus
from importlib.resources import files

from starlette.responses import Response

from regard.serving.http.errors import RequestRefused

MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_files(package: str, folder: str) -> list[str]:
    """The names of the files of this folder."""
    return list(_contents(package, folder))


def page_file(package: str, folder: str, name: str) -> Response:
    """A file of this folder of a package; refused where it has none of this name."""
    contents = _contents(package, folder)
    if name not in contents:
        message = f"file: wanted one of {', '.join(contents)}; got another. Choose one."
        raise RequestRefused(HTTPStatus.NOT_FOUND, message)
    return page_response(contents[name], MEDIA_TYPES[name.rpartition(".")[2]])


def page_response(content: bytes, media_type: str = "text/html") -> Response:
    return Response(
        content, headers={"content-security-policy": PAGE_POLICY}, media_type=media_type
    )


@cache
def _contents(package: str, folder: str) -> dict[str, bytes]:
    """The files of a folder by name: a request chooses among them and never names a path."""
    found = sorted(files(package).joinpath(folder).iterdir(), key=lambda each: each.name)
    return {
        each.name: each.read_bytes()
        for each in found
        if each.name.rpartition(".")[2] in MEDIA_TYPES
    }
