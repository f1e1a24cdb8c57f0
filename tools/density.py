"""How dense the statements of the code are: several assignments in one, and nested conditional expressions.

    python tools/density.py            # check: no file may be denser than tools/density.json allows
    python tools/density.py --write    # write the present counts there, where they are lower
    python tools/density.py --table    # the figures of each package

A file that tools/density.json does not name may have at most 5 parallel assignments per 1,000 lines of code and no
nested conditional expression. Those that it names are older than this rule: they may keep what they have, no more.
"""

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "tools", "benchmarks", "experiments")
ALLOWED = ROOT / "tools" / "density.json"
PARALLEL_PER_1000 = 5
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


@dataclass
class Density:
    """Counts of one or several files."""

    lines: int = 0
    statements: int = 0
    tokens: int = 0
    parallel: int = 0
    conditional: int = 0
    nested: int = 0
    comments: int = 0

    def __add__(self, other: "Density") -> "Density":
        return Density(
            *(mine + theirs for mine, theirs in zip(self.row(), other.row(), strict=True))
        )

    def row(self) -> tuple[int, ...]:
        return (
            self.lines,
            self.statements,
            self.tokens,
            self.parallel,
            self.conditional,
            self.nested,
            self.comments,
        )


def is_parallel(node: ast.AST) -> bool:
    """Whether a statement assigns several written values at once.

    Unpacking one value, or swapping names, does not count.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    targets = [target for target in node.targets if isinstance(target, ast.Tuple)]
    if not targets:
        return False
    assigned = {ast.unparse(each) for each in targets[0].elts}
    values = {ast.unparse(each) for each in node.value.elts}
    return assigned != values


def measure(source: str) -> Density:
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    conditional = [node for node in nodes if isinstance(node, ast.IfExp)]
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    written = [token for token in tokens if token.type not in LAYOUT]
    own_line = [
        token
        for token in tokens
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
    ]
    return Density(
        lines=len({line for token in written for line in range(token.start[0], token.end[0] + 1)}),
        statements=sum(isinstance(node, ast.stmt) for node in nodes),
        tokens=len(written),
        parallel=sum(is_parallel(node) for node in nodes),
        conditional=len(conditional),
        nested=sum(
            isinstance(inner, ast.IfExp)
            for outer in conditional
            for inner in ast.walk(outer)
            if inner is not outer
        ),
        comments=len(own_line),
    )


def files() -> dict[str, Density]:
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found[str(path.relative_to(ROOT))] = measure(path.read_text("utf-8"))
    return found


def limits(name: str, density: Density, allowed: dict[str, list[int]]) -> tuple[int, int]:
    """The most parallel assignments and nested conditional expressions that a file may have."""
    own = PARALLEL_PER_1000 * density.lines // 1000
    before = allowed.get(name, [0, 0])
    return max(own, before[0]), before[1]


def check(found: dict[str, Density], allowed: dict[str, list[int]]) -> list[str]:
    problems = []
    for name, density in found.items():
        parallel, nested = limits(name, density, allowed)
        if density.parallel > parallel:
            problems.append(
                f"{name}: {density.parallel} parallel assignments, {parallel} allowed. "
                "Write one assignment per line."
            )
        if density.nested > nested:
            problems.append(
                f"{name}: {density.nested} nested conditional expressions, {nested} allowed. "
                "Name the inner value, or write an if statement."
            )
    return problems


def lowered(
    found: dict[str, Density], allowed: dict[str, list[int]] | None
) -> dict[str, list[int]]:
    """What files may keep: what they have, where that is over the limit of new files, and no more than before."""
    kept = {}
    for name, density in found.items():
        counts = [density.parallel, density.nested]
        if allowed is not None:
            before = allowed.get(name, [0, 0])
            counts = [min(now, old) for now, old in zip(counts, before, strict=True)]
        if counts[0] > PARALLEL_PER_1000 * density.lines // 1000 or counts[1]:
            kept[name] = counts
    return kept


def table(found: dict[str, Density]) -> str:
    groups = defaultdict[str, Density](Density)
    for name, density in found.items():
        parts = name.split("/")
        groups["/".join(parts[:3]) if parts[0] == "src" and len(parts) > 3 else parts[0]] += density
        if parts[0] == "src":
            groups["src (all)"] += density
    rows = [
        "tokens  per statement  parallel  conditional  nested  comments  (per 1,000 lines of code)"
    ]
    for name, each in sorted(groups.items()):
        share = 1000 / max(1, each.lines)
        rows.append(
            f"{each.tokens:7,}{each.tokens / max(1, each.statements):13.1f}{each.parallel * share:11.1f}"
            f"{each.conditional * share:12.1f}{each.nested * share:9.1f}{each.comments * share:9.1f}  {name}"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    found = files()
    if options.table:
        print(table(found))
        return 0
    allowed = json.loads(ALLOWED.read_text("utf-8")) if ALLOWED.exists() else None
    if options.write:
        rows = sorted(lowered(found, allowed).items())
        lines = [f"{json.dumps(name)}: {json.dumps(counts)}" for name, counts in rows]
        ALLOWED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
        return 0
    problems = check(found, allowed or {})
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
