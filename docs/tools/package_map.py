"""Draw the packages as import-linter orders them, each with the first line of its docstring: docs/packages.svg.

python docs/tools/package_map.py > docs/packages.svg
"""

import ast
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
HIGH, WIDE, NAME = 30, 920, 110  # of a box, of the drawing, of the column of names


def layers() -> list[tuple[str, bool, str]]:
    """From the top: the name of a package, whether it is optional, and what it is."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    found = []
    for layer in contracts[0]["layers"]:
        name = layer.strip("()").removeprefix("regard.")
        text = (ROOT / "src" / "regard" / name / "__init__.py").read_text("utf-8")
        docstring = ast.get_docstring(ast.parse(text)) or ""
        about = " ".join(docstring.split("\n\n")[0].split())
        found.append((name, layer.startswith("("), about))
    return found


def drawing() -> str:
    rows = layers()
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{len(rows) * (HIGH + 6) + 6}" role="img" '
        'aria-label="The packages of Regard, each above those it may import" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, (name, optional, about) in enumerate(rows):
        top = 6 + number * (HIGH + 6)
        dash = ' stroke-dasharray="5 3"' if optional else ""
        lines += [
            f'<rect x="6" y="{top}" width="{WIDE - 12}" height="{HIGH}" rx="4" fill="#f4f6fa" stroke="#00224e"{dash}/>',
            f'<text x="16" y="{top + 20}" font-weight="bold">{name}</text>',
            f'<text x="{NAME + 16}" y="{top + 20}">{escape(about)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    print(drawing(), end="")
