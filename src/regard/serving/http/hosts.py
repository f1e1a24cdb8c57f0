"""The host names that a server answers to, and whether a page of another origin sends a request."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus

from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.serving.http.errors import RequestRefused

NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
# https://www.rfc-editor.org/rfc/rfc9110#field.host
HOST = re.compile(r"(?P<name>\[[^\[\]]*\]|[^\[\]:]*)(?::[0-9]*)?")


class AllowedHosts:
    """The names that the Host header of a request may have.

    Any site can let its own name point to 127.0.0.1 (DNS rebinding). A browser then takes this
    server for that site and lets the site's pages read every answer. Only the Host header shows it.
    So a server that listens on a loopback address answers to the names of this machine and to those
    that its operator lists. On other addresses it answers to every name, unless some are listed.

    names     that the operator lists, without ports
    address   on which the server listens
    host      the name that the operator gave for this address
    """

    def __init__(self, names: Sequence[str] = (), *, address: str = "", host: str = "") -> None:
        if isinstance(names, str):
            raise InvalidArgument(
                "allowed_hosts",
                wanted="a list of names",
                got=f"the text {names!r}",
                remedy=f"Give [{names!r}].",
            )
        self.listed = frozenset(_listed_name(each) for each in names)
        self.answers_to_all = not names and not is_loopback(address)
        self._own_name = _plain(host)

    def check(self, given: Sequence[bytes], *, needed: bool) -> None:
        """Refuse a request with these Host headers, unless it names this server.

        needed   whether there must be one, as in HTTP/1.1
        """
        if len(given) > 1 or (needed and not given):
            got = "several Host headers" if given else "no Host header"
            raise RequestRefused(
                HTTPStatus.BAD_REQUEST, f"The request has {got}. Send one, as HTTP/1.1 demands."
            )
        if given and not self.answers_to_all:
            name = _name_of(given[0].decode("latin-1"))
            if name is None or not self._allows(name):
                raise _misdirected(name)

    def lists(self, authority: str) -> bool:
        """Whether the operator has listed the name of this host and port."""
        name = _name_of(authority)
        return name is not None and name in self.listed

    def _allows(self, name: str) -> bool:
        if name == "localhost" or name in self.listed:
            return True
        return is_loopback(name) or (bool(name) and name == self._own_name)


def from_another_origin(headers: Mapping[str, str], hosts: AllowedHosts) -> bool:
    """Whether a browser says that a page of another origin sends the request.

    Browsers say so in Sec-Fetch-Site (https://www.w3.org/TR/fetch-metadata), which no page can set.
    They leave it out for plain HTTP to other machines. There the Origin header, which every POST of
    a page has, is compared with the Host header. Behind a reverse proxy that changes the Host
    header, the two differ: the operator lists the name that browsers know.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    authority = origin.partition("://")[2].lower()  # empty where the origin is "null"
    is_own = authority == headers.get("host", "").lower() or hosts.lists(authority)
    return not (authority and is_own)


@lru_cache(maxsize=256)
def is_loopback(address: str) -> bool:
    """Whether an address, as text, is one of this machine only."""
    try:
        given = ipaddress.ip_address(address)
    except ValueError:  # a name, or a socket without addresses
        return False
    mapped = getattr(given, "ipv4_mapped", None)
    return (mapped or given).is_loopback


@lru_cache(maxsize=256)
def _name_of(host: str) -> str | None:
    """The name or address in a Host header, without its port; None where it is not one."""
    fit = HOST.fullmatch(host.strip(" \t"))
    return None if fit is None else _plain(fit["name"])


def _plain(name: str) -> str:
    """A name in lower case, without the dot of the root and without the brackets of IPv6."""
    return name.lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _listed_name(given: str) -> str:
    name = _plain(given)
    has_brackets = given.startswith("["), given.endswith("]")
    is_address = has_brackets in ((True, True), (False, False)) and _is_address(name)
    if not NAME.fullmatch(given) and not is_address:
        raise InvalidArgument(
            "allowed_hosts",
            wanted="a host name or an address, as studio.example.org",
            got=repr(given),
            remedy="Leave out the scheme, the port and the path; name each host.",
        )
    return name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _misdirected(name: str | None) -> RequestRefused:
    shown = "another host" if name is None else f"the host name {printable(name)[:100]!r}"
    # Only a name that is safe to paste into a shell becomes a part of the command.
    is_name = name is not None and len(name) <= 100 and NAME.fullmatch(name) is not None
    option = f"--allowed-host {name if is_name else 'NAME'}"
    return RequestRefused(
        HTTPStatus.MISDIRECTED_REQUEST,
        f"This server does not answer to {shown}. If the name is right, start it with {option}.",
    )
