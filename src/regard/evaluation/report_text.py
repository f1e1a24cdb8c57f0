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
    # Metrics, and the names of systems if there are several, are aligned to the left.
    left_columns = 2 if len(report.systems) > 1 else 1
    metrics = text_table(metric_rows(report), left=left_columns)
    lengths = [f"{heading}\n{text_table(rows)}" for heading, rows in length_tables(report)]
    return "\n\n".join([metrics, *_classes(report), *lengths, *notes(report)])


def metric_rows(report: Report) -> list[list[str]]:
    """A row of headings, then a row for every metric and system."""
    several = len(report.systems) > 1
    interval_head = f"{report.confidence:.0%} interval"
    heads = ["metric", "value", interval_head]
    if several:
        heads = ["metric", "system", "value", interval_head, "difference", "p"]
    rows = [heads]
    every_name = dict.fromkeys(name for system in report.systems for name in system.metrics)
    for name in every_name:
        for system in report.systems:
            result = system.metrics.get(name)
            if result is None:
                continue
            value = UNDEFINED
            if result.value is not None:
                value = format_value(name, result.value)
            interval = _interval(name, result)
            row = [metric_heading(name), value, interval]
            if several:
                p = MISSING
                if result.p is not None:
                    p = f"{result.p:.4f}"
                difference = format_value(name, result.difference, sign="+")
                row = [metric_heading(name), system.name, value, interval, difference, p]
            rows.append(row)
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
            row = [system.name]
            for group in system.lengths:
                result = group.metrics.get(name)
                row.append(MISSING if result is None else _with_half(name, result))
            rows.append(row)
        tables.append((f"{metric_heading(name)} by source length (examples)", rows))
    return tables


def notes(report: Report) -> list[str]:
    """Signatures of the metrics, and how intervals and p-values were computed."""
    results = report.systems[0].metrics.items()
    lines = [f"{name}: {result.signature}" for name, result in results if result.signature]
    if report.examples:
        examples = counted(report.examples, "example")
        resamples = counted(report.resamples, "resample")
        lines.append(f"{examples}; bootstrap of {resamples}, seed {report.seed}")
    if len(report.systems) > 1:
        lines.append(f"differences from {report.systems[0].name}; p by paired bootstrap, two-sided")
    if lines:
        return ["\n".join(lines)]
    return []


def metric_heading(name: str) -> str:
    """A metric's name, its variant if it has one, and its direction."""
    metric = METRICS[name]
    variant = ""
    if metric.variant:
        variant = f" ({metric.variant()})"
    direction = "↑" if metric.higher_is_better else "↓"
    return f"{name}{variant} {direction}"


def format_value(name: str, value: float | None, sign: str = "") -> str:
    if value is None:
        return MISSING
    if METRICS[name].percent:
        return f"{value:{sign}.2%}"
    return f"{value:{sign}.{METRICS[name].digits}f}"


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
    half = (result.high - result.low) / 2
    return f"{format_value(name, result.value)} ± {format_value(name, half)}"
