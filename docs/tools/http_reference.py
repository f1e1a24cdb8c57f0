"""Write docs/http.md: every route of the server, what it takes and gives, from the server's own OpenAPI description.

python docs/tools/http_reference.py > docs/http.md
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from regard.serving.http.app import Server
from regard.serving.http.openapi import OpenApiRoutes
from regard.serving.scheduler.scheduler import Scheduler

Table = dict[str, Any]
HIDDEN = (
    "Studio",
    "StudioData",
    "StudioRun",
    "StudioLong",
)  # what the studio's page asks: no API for others
TITLES = {
    "Native": "Regard's own API",
    "OpenAI": "OpenAI",
    "LibreTranslate": "LibreTranslate",
    "OpenNMT": "OpenNMT-py",
}
TITLES |= {
    "OpenInference": "Open Inference Protocol",
    "Operation": "Operations",
    "OpenApi": "Description",
    "Look": "Attention",
}
INTRODUCTION = """# HTTP API

What `regard serve` answers. A running server describes itself at `/openapi.json` (OpenAPI 3.1), with a page to try it
on at `/docs`; [Serving models](serve.md) explains how to use it, its limits, keys and errors. Errors are problem
documents (RFC 9457) with the argument, what was wanted, what was given, and the remedy.

This page is generated from the same description: `python docs/tools/http_reference.py > docs/http.md`.
"""


def description() -> Table:
    """The OpenAPI document of a server without models."""
    table = Server(Scheduler(device="cpu")).table
    routes = next(
        each.handler.__self__
        for each in table.routes
        if isinstance(each.handler.__self__, OpenApiRoutes)
    )
    document: Table = json.loads(asyncio.run(routes.describe(None)).body)
    return document


def reference() -> str:
    document = description()
    schemas = document["components"]["schemas"]
    parts = [INTRODUCTION]
    for tag in (each["name"] for each in document["tags"] if each["name"] not in HIDDEN):
        parts.append(f"## {TITLES[tag]}\n")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag in operation["tags"]:
                    parts += _operation(f"{method.upper()} {path}", operation, schemas)
    return "\n".join(parts)


def _operation(title: str, operation: Table, schemas: Table) -> Iterator[str]:
    yield f"### {title}\n"
    yield f"{operation['summary'].removesuffix('.')}.\n"
    if content := operation.get("requestBody", {}).get("content"):
        yield f"Takes {', '.join(f'`{kind}`' for kind in content)}.\n"
        yield from _fields(
            "request", content.get("application/json", {}).get("schema", {}), schemas
        )
    if content := operation["responses"]["200"].get("content"):
        yield f"Gives {', '.join(f'`{kind}`' for kind in content)}.\n"
        yield from _fields("answer", content.get("application/json", {}).get("schema", {}), schemas)


def _fields(title: str, schema: Table, schemas: Table) -> Iterator[str]:
    schema = _resolved(schema, schemas)
    if properties := schema.get("properties"):
        required = schema.get("required", ())
        rows = [_row(name, entry, name in required, schemas) for name, entry in properties.items()]
        yield "\n".join([f"| {title} | type | default | |", "|---|---|---|---|", *rows, ""])


def _row(name: str, entry: Table, required: bool, schemas: Table) -> str:
    default = (
        "required"
        if required
        else f"`{json.dumps(entry['default'])}`"
        if "default" in entry
        else ""
    )
    cells = (f"`{name}`", _type(entry, schemas), default, entry.get("description", ""))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(schema: Table, schemas: Table) -> str:
    if "$ref" in schema:
        target = _resolved(schema, schemas)
        if "properties" not in target:
            return _type(target, schemas)
        return f"object ({', '.join(f'`{name}`' for name in target['properties'])})"
    if "anyOf" in schema:
        return " or ".join(_choices(schema, schemas))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if schema.get("type") == "array":
        items = schema.get("items")
        if not items:
            return "list"
        choices = _choices(items, schemas)
        deep = [each for each in choices if each.startswith("list of (") and "list" in each[5:]]
        if deep:
            # Such as vectors in a batch: what the inner lists hold is named already.
            choices = [each for each in choices if not each.startswith("list")]
            choices.append("lists of these")
        inner = " or ".join(choices)
        return f"list of ({inner})" if len(choices) > 1 else f"list of {inner}"
    return str(schema.get("type", "any"))


def _choices(schema: Table, schemas: Table) -> list[str]:
    """The types of which a value has one, each once: plain ones, then objects, then lists, and null at the end."""
    resolved = _resolved(schema, schemas)
    if "anyOf" not in resolved:
        return [_type(schema, schemas)]
    found: dict[str, None] = {}
    for each in resolved["anyOf"]:
        found |= dict.fromkeys(_choices(each, schemas))
    return sorted(found, key=_rank)


def _rank(name: str) -> int:
    beginnings = ("object", "list", "null")
    return next((i for i, each in enumerate(beginnings, start=1) if name.startswith(each)), 0)


def _resolved(schema: Table, schemas: Table) -> Table:
    found: Table = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


if __name__ == "__main__":
    print(reference(), end="")
