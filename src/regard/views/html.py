"""A look as one page: it needs nothing from anywhere, and its policy lets nothing else in.

The page is the modules in `page/`, joined as they are. What a look says is JSON in it, and becomes text, nothing else.
"""

import html
import json
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

# What a module imports stands before it.
MODULES = ("data.js", "colours.js", "state.js", "words.js", "picture.js", "heads.js", "map.js", "save.js", "main.js")
HEIGHT = 720  # pixels of a page in a notebook


def page(told: dict[str, Any]) -> str:
    """What `Look.as_dict` gives, as HTML."""
    script, style = _script(), _read("page.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    look = json.dumps(told, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")  # no tag, no comment begins
    title = html.escape(f"{told['title']} · Regard" if told["title"] else "Regard")
    return Template(_read("page.html")).substitute(policy=policy, title=title, style=style, look=look, script=script)


def framed(page: str) -> str:
    """A page within another, from which it can take nothing."""
    return (
        f'<iframe title="A look" width="100%" height="{HEIGHT}" frameborder="0" '
        f'sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(page)}"></iframe>'
    )


@cache
def _script() -> str:
    """All modules as one: each keeps its names to itself, and hands on what it exports."""
    return "\n".join(map(_enclosed, MODULES))


def _enclosed(name: str) -> str:
    source = _read(name)
    exported = ", ".join(re.findall(r"^export (?:async )?(?:function|const) (\w+)", source, re.MULTILINE))
    source = re.sub(r"^import (\{[^}]*\}) from \"\./(\w+)\.js\";", r"const \1 = \2_js;", source, flags=re.MULTILINE)
    source = re.sub(r"^export ", "", source, flags=re.MULTILINE)
    return f"const {name.removesuffix('.js')}_js = (() => {{\n{source}\nreturn {{ {exported} }};\n}})();"


def _read(name: str) -> str:
    return files("regard.views").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
