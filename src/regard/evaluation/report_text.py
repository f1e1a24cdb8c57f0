"""A report as text, for people."""

from collections.abc import Sequence

from regard.core.sanitize import printable
from regard.evaluation.metrics import METRICS
from regard.evaluation.report import MetricResult, Report

NONE = "–"


def told(report: Report) -> str:
    """Figures with intervals; differences and p-values where there are several systems; classes; lengths."""
    figures = table(figure_rows(report), left=2 if len(report.systems) > 1 else 1)
    lengths = [f"{heading}\n{table(rows)}" for heading, rows in length_tables(report)]
    return "\n\n".join([figures, *_classes(report), *lengths, *notes(report)])


def figure_rows(report: Report) -> list[list[str]]:
    """Every metric of every system, under a row of headings."""
    several = len(report.systems) > 1
    heads = ["metric", *(["system"] if several else []), "value", f"{report.confidence:.0%} interval"]
    rows = [heads + (["difference", "p"] if several else [])]
    for name in dict.fromkeys(name for system in report.systems for name in system.metrics):
        for system in report.systems:
            found = system.metrics.get(name)
            if found is None:
                continue
            row = [
                headed(name),
                *([system.name] if several else []),
                shown(name, found.value),
                _interval(name, found),
            ]
            rows.append(row + ([shown(name, found.difference, sign="+"), _p(found.p)] if several else []))
    return rows


def _classes(report: Report) -> list[str]:
    tables = []
    for system in report.systems:
        if system.classes:
            rows = [["label", "precision", "recall", "f1", "references", "outputs"]]
            for one in system.classes:
                shares = [f"{one[name]:.2%}" for name in rows[0][1:4]]
                rows.append([printable(one["label"]), *shares, f"{one['references']:,}", f"{one['outputs']:,}"])
            tables.append(f"{system.name}, class by class\n{table(rows)}")
    return tables


def length_tables(report: Report) -> list[tuple[str, list[list[str]]]]:
    """A heading and a table for each metric: systems, by source length."""
    groups = report.systems[0].lengths
    if not groups:
        return []
    heads = [f"{group.first}–{group.last} ({group.examples:,})" for group in groups]
    tables = []
    for name in groups[0].metrics:
        rows = [["", *heads]]
        for system in report.systems:
            cells = [group.metrics.get(name) for group in system.lengths]
            rows.append([system.name, *(NONE if one is None else _with_half(name, one) for one in cells)])
        tables.append((f"{headed(name)} by source length (examples)", rows))
    return tables


def notes(report: Report) -> list[str]:
    """How the figures came about."""
    signed = {name: found.signature for name, found in report.systems[0].metrics.items() if found.signature}
    lines = [f"{name}: {signature}" for name, signature in signed.items()]
    if report.examples:
        lines.append(f"{report.examples:,} examples; bootstrap of {report.resamples:,} resamples, seed {report.seed}")
    if len(report.systems) > 1:
        lines.append(f"differences from {report.systems[0].name}; p by paired bootstrap, two-sided")
    return ["\n".join(lines)] if lines else []


def table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns side by side, the first `left` of them flush left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "   ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def headed(name: str) -> str:
    return f"{name} {'↑' if METRICS[name].higher else '↓'}"


def shown(name: str, value: float | None, sign: str = "") -> str:
    if value is None:
        return NONE
    if METRICS[name].share:
        return f"{value:{sign}.2%}"
    return f"{value:{sign}.{METRICS[name].digits}f}"


def _interval(name: str, found: MetricResult) -> str:
    if found.low is None or found.high is None:
        return NONE
    return f"{shown(name, found.low)} to {shown(name, found.high)}"


def _with_half(name: str, found: MetricResult) -> str:
    """A figure and half the width of its interval."""
    assert found.low is not None
    assert found.high is not None
    return f"{shown(name, found.value)} ± {shown(name, (found.high - found.low) / 2)}"


def _p(p: float | None) -> str:
    return NONE if p is None else f"{p:.4f}"
