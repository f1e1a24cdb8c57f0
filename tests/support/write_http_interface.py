"""Writes tests/golden/http_interface.txt: every route, and every key of requests and answers with its type and default.

python tests/support/write_http_interface.py
"""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from regard.serving.http.app import Server
from regard.serving.http.keys import read_keys
from regard.serving.http.openapi import document
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits

FILE = Path(__file__).parents[1] / "golden" / "http_interface.txt"
METADATA = ("description", "summary", "title")


def interface() -> str:
    """Lines from the OpenAPI document of a server with keys and without models."""
    server = Server(Scheduler(SchedulerLimits(), "cpu"), keys=read_keys(["secret"]))
    return "".join(
        f"{line}\n"
        for line in _lines(msgspec.to_builtins(document(server.table.routes, [], keys=True)))
    )


def _lines(described: dict) -> Iterator[str]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            body, answers = operation.pop("requestBody", {}), operation.pop("responses")
            yield f"{method.upper()} {path} {_compact(operation)}"
            if body:
                yield f"  body{' required' if body.get('required') else ''}"
            yield from (
                f"    {kind} {_compact(each)}" for kind, each in body.get("content", {}).items()
            )
            for status, answer in answers.items():
                content = answer.get("content", {})
                yield f"  {status} {', '.join(f'{kind} {_compact(each)}' for kind, each in content.items())}".rstrip()
    for name, schema in sorted(described["components"]["schemas"].items()):
        own = {key: each for key, each in schema.items() if key not in ("properties", "required")}
        yield f"{name} {_compact(own)}"
        required = schema.get("required", ())
        for key, each in schema.get("properties", {}).items():
            yield f"  {key}{' required' if key in required else ''} {_compact(each)}"


def _compact(value: object) -> str:
    return json.dumps(_without_metadata(value), sort_keys=True, ensure_ascii=False).replace(
        "#/components/schemas/", ""
    )


def _without_metadata(value: object) -> object:
    if isinstance(value, dict):
        left_out = (
            METADATA if "image" not in value else (*METADATA, "image")
        )  # of an example: as Pillow writes it
        kept = {
            key: each
            for key, each in value.items()
            if key not in left_out or not isinstance(each, str)
        }
        return {key: _without_metadata(each) for key, each in kept.items()}
    return [_without_metadata(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    FILE.write_text(interface(), "utf-8")
