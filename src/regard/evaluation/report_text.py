"""A report as plain text."""

from regard.core.text_table import counted, text_table
from regard.evaluation.label_table import Confusion, confusions_text, label_table_text
from regard.evaluation.metrics import METRICS
from regard.evaluation.report import MetricResult, Report
from regard.evaluation.undefined import UNDEFINED

MISSING = "–"
SHOWN_CONFUSIONS = 10  # of a system; its report has all


def report_text(report: Report) -> str:
    """Metrics with intervals, differences and p-values of several systems, classes, length buckets, and notes."""
    metrics = text_table(metric_rows(report), left=2 if len(report.systems) > 1 else 1)
    lengths = [
        f"{metric_heading}\n{text_table(rows)}" for metric_heading, rows in length_tables(report)
    ]
    return "\n\n".join([metrics, *_classes(report), *lengths, *notes(report)])


def metric_rows(report: Report) -> list[list[str]]:
    """A row of headings, then a row for every metric and system."""
    several = len(report.systems) > 1
    heads = [
        "metric",
        *(["system"] if several else []),
        "value",
        f"{report.confidence:.0%} interval",
    ]
    rows = [heads + (["difference", "p"] if several else [])]
    for name in dict.fromkeys(name for system in report.systems for name in system.metrics):
        for system in report.systems:
            result = system.metrics.get(name)
            if result is None:
                continue
            names = [metric_heading(name), system.name] if several else [metric_heading(name)]
            value = UNDEFINED if result.value is None else format_value(name, result.value)
            row = [*names, value, _interval(name, result)]
            p = MISSING if result.p is None else f"{result.p:.4f}"
            rows.append(
                row + ([format_value(name, result.difference, sign="+"), p] if several else [])
            )
    return rows


def _classes(report: Report) -> list[str]:
    tables = []
    for system in report.systems:
        if system.classes:
            tables.append(f"{system.name}, class by class\n{label_table_text(system.classes)}")
        if system.spans:
            tables.append(f"{system.name}, spans by type\n{label_table_text(system.spans)}")
        if system.confusions:
            most = [Confusion(**one) for one in system.confusions[:SHOWN_CONFUSIONS]]
            tables.append(f"{system.name}, most frequent confusions\n{confusions_text(most)}")
    return tables


def length_tables(report: Report) -> list[tuple[str, list[list[str]]]]:
    """For each metric a heading and a table, with a row per system and a column per length bucket."""
    groups = report.systems[0].lengths
    if not groups:
        return []
    heads = [f"{group.first}–{group.last} ({group.examples:,})" for group in groups]
    tables = []
    for name in groups[0].metrics:
        rows = [["", *heads]]
        for system in report.systems:
            cells = [group.metrics.get(name) for group in system.lengths]
            rows.append(
                [system.name, *(MISSING if one is None else _with_half(name, one) for one in cells)]
            )
        tables.append((f"{metric_heading(name)} by source length (examples)", rows))
    return tables


def notes(report: Report) -> list[str]:
    """Signatures of the metrics, and how intervals and p-values were computed."""
    results = report.systems[0].metrics.items()
    lines = [f"{name}: {result.signature}" for name, result in results if result.signature]
    if report.examples:
        examples, resamples = (
            counted(report.examples, "example"),
            counted(report.resamples, "resample"),
        )
        lines.append(f"{examples}; bootstrap of {resamples}, seed {report.seed}")
    if len(report.systems) > 1:
        lines.append(f"differences from {report.systems[0].name}; p by paired bootstrap, two-sided")
    return ["\n".join(lines)] if lines else []


def metric_heading(name: str) -> str:
    """A metric's name, its variant if it has one, and its direction."""
    metric = METRICS[name]
    variant = f" ({metric.variant()})" if metric.variant else ""
    return f"{name}{variant} {'↑' if metric.higher_is_better else '↓'}"


def format_value(name: str, value: float | None, sign: str = "") -> str:
    if value is None:
        return MISSING
    return (
        f"{value:{sign}.2%}" if METRICS[name].percent else f"{value:{sign}.{METRICS[name].digits}f}"
    )


def _interval(name: str, result: MetricResult) -> str:
    if result.low is None or result.high is None:
        return MISSING
    return f"{format_value(name, result.low)} to {format_value(name, result.high)}"


def _with_half(name: str, result: MetricResult) -> str:
    """A value and half the width of its interval."""
    if result.value is None:
        return UNDEFINED
    if result.low is None or result.high is None:
        return format_value(name, result.value)
    return (
        f"{format_value(name, result.value)} ± {format_value(name, (result.high - result.low) / 2)}"
    )
