"""API keys: their file, who a request comes from, and the rate and concurrency that each key is allowed."""

import hashlib
import hmac
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from math import ceil
from pathlib import Path

from regard.core.errors import InvalidData
from regard.data.text import lines
from regard.serving.http.errors import RequestRefused
from regard.serving.http.hosts import is_loopback

NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")
RATE = re.compile(r"([1-9][0-9]{0,8})/(s|min|h)")
COUNT = re.compile(r"[1-9][0-9]{0,8}")
SECONDS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class ApiKey:
    """A key, as its hash, and what it allows.

    name         in the log and in metrics, instead of the key
    rate         requests and seconds: so many at once, and as many in each such time; None: no limit
    concurrent   requests at a time; None: no limit
    admin        whether it allows the routes under /admin
    """

    digest: bytes = field(repr=False)
    name: str
    rate: tuple[int, int] | None = None
    concurrent: int | None = None
    admin: bool = False

    @property
    def limited(self) -> bool:
        return self.rate is not None or self.concurrent is not None


def read_keys(given: Iterable[str], where: object = "keys") -> list[ApiKey]:
    """Keys, one in each line, with their settings: `KEY name=web rate=10/s concurrent=8 admin`.

    Empty lines and those that begin with `#` are skipped. Errors name the line, and never the key.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(given, start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            keys.append(_key(words, f"key-{len(keys) + 1}", where, number))
            for other in keys[:-1]:
                if keys[-1].digest == other.digest or keys[-1].name == other.name:
                    got = f"the {'key' if keys[-1].digest == other.digest else 'name'} of {other.name} again"
                    wanted = "another key and name in each line"
                    raise InvalidData(where, number, wanted=wanted, got=got, remedy="Change one.")
    return keys


def read_key_file(path: Path) -> list[ApiKey]:
    """The keys of a file; one without keys is refused, since it would let everyone in."""
    keys = read_keys(lines(path), path)
    if not keys:
        raise InvalidData(path, wanted="a key per line", got="none", remedy="Add one.")
    return keys


def _key(words: Sequence[str], name: str, where: object, line: int) -> ApiKey:
    rate: tuple[int, int] | None = None
    concurrent, admin = None, False
    for word in words[1:]:
        setting, _, value = word.partition("=")
        if setting == "name" and NAME.fullmatch(value):
            name = value
        elif setting == "rate" and (fit := RATE.fullmatch(value)):
            rate = int(fit[1]), SECONDS[fit[2]]
        elif setting == "concurrent" and COUNT.fullmatch(value):
            concurrent = int(value)
        elif word == "admin":
            admin = True
        else:
            wanted = "name=NAME (letters, digits, _ . -), rate=10/s (or /min, /h), concurrent=8 or admin after a key"
            got = (
                f"another {setting}"
                if setting in ("name", "rate", "concurrent", "admin")
                else "another setting"
            )
            raise InvalidData(
                where, line, wanted=wanted, got=got, remedy="Change it; a key has no spaces."
            )
    return ApiKey(_digest(words[0]), name, rate, concurrent, admin)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


@dataclass(frozen=True)
class Client:
    """Whom a request comes from: a key, or an address where no keys are needed."""

    name: str
    admin: bool
    key: ApiKey | None = None


class KeyRing:
    """Finds the key of a request."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self.keys = tuple(keys)

    def client(self, authorization: str, address: str) -> Client:
        """Whom a request comes from; refused where it has no key of ours. All keys are compared, in constant time."""
        if not self.keys:
            return Client(address, admin=is_loopback(address))
        scheme, _, given = authorization.partition(" ")
        digest = _digest(given.strip())
        fitting = [key for key in self.keys if hmac.compare_digest(digest, key.digest)]
        if scheme.lower() != "bearer" or not fitting:
            message = (
                "authorization: wanted 'Bearer' and a key of this server; got another. Send a key."
            )
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, message, {"www-authenticate": "Bearer"})
        return Client(fitting[0].name, fitting[0].admin, fitting[0])


class KeyLimiter(ABC):
    """Counts the requests of each key: in this process, or in the one that all front-end processes share."""

    @abstractmethod
    async def enter(self, key: ApiKey) -> None:
        """Count a request that begins; refused where its key has asked too often, or for too many at a time."""

    @abstractmethod
    def leave(self, key: ApiKey) -> None:
        """Count the end of a request that had entered."""


class KeyBudgets(KeyLimiter):
    """Counts the requests of each key in this process."""

    def __init__(self, keys: Sequence[ApiKey], clock: Callable[[], float] = time.monotonic) -> None:
        self._budgets = {key.name: _Budget(key, clock) for key in keys}

    async def enter(self, key: ApiKey) -> None:
        self.enter_name(key.name)

    def leave(self, key: ApiKey) -> None:
        self.leave_name(key.name)

    def enter_name(self, name: str) -> None:
        self._budgets[name].enter()

    def leave_name(self, name: str) -> None:
        self._budgets[name].running -= 1


class _Budget:
    """What a key may ask for now: a token bucket, and the requests that are running."""

    def __init__(self, key: ApiKey, clock: Callable[[], float]) -> None:
        self.key, self.clock = key, clock
        self.running = 0
        self.tokens, self.filled = float(key.rate[0] if key.rate else 0), clock()

    def enter(self) -> None:
        if self.key.concurrent is not None and self.running >= self.key.concurrent:
            message = f"key: wanted at most {self.key.concurrent} requests at a time; got more. Wait for an answer."
            raise _too_many(message, 1, "concurrency")
        if self.key.rate is not None:
            most, seconds = self.key.rate
            now = self.clock()
            self.tokens = min(float(most), self.tokens + (now - self.filled) * most / seconds)
            self.filled = now
            if self.tokens < 1 - 1e-9:
                wait = max(1, ceil((1 - self.tokens) * seconds / most))
                message = f"key: wanted at most {most} requests in {seconds} s; got more. Try again in {wait} s."
                raise _too_many(message, wait, "rate")
            self.tokens -= 1
        self.running += 1


def _too_many(message: str, seconds: int, reason: str) -> RequestRefused:
    return RequestRefused(
        HTTPStatus.TOO_MANY_REQUESTS, message, {"retry-after": str(seconds)}, reason=reason
    )
