"""Writes the tables of modules in docs/architecture.md from the first line of each module's docstring.

python tests/support/write_module_tables.py
"""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "regard"
PAGE = ROOT / "docs" / "architecture.md"
START, END = (
    "<!-- modules: written by tests/support/write_module_tables.py -->\n",
    "<!-- end of modules -->\n",
)


def first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    first_paragraph = docstring.split("\n\n")[0]
    return " ".join(first_paragraph.split()).removesuffix(".").replace("|", "\\|")


def packages() -> list[str]:
    """From the top, as the import rules order them; those that do not exist yet are left out."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    names = [layer.strip("()").removeprefix("regard.") for layer in contracts[0]["layers"]]
    return [name for name in names if (SOURCE / name).is_dir()]


def tables() -> str:
    parts = []
    for package in packages():
        rows = [
            f"| `{path.relative_to(SOURCE / package).with_suffix('')}` | {first_line(path)} |"
            for path in sorted((SOURCE / package).rglob("*.py"))
            if path.name != "__init__.py"
        ]
        parts.append(
            f"\n### {package}\n\n{first_line(SOURCE / package / '__init__.py')}.\n\n| module | |\n|---|---|\n"
        )
        parts.append("\n".join(rows) + "\n")
    return "".join(parts)


def written(page: str) -> str:
    return re.sub(
        f"{START}.*?{END}", lambda match: f"{START}{tables()}\n{END}", page, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
