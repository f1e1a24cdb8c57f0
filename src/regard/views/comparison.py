"""A comparison of systems as text, as an HTML page, and as a figure."""

from collections.abc import Sequence
from functools import partial

from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.core.text_table import text_table
from regard.evaluation.comparison import ComparedExample, Comparison, SystemAnswer
from regard.evaluation.output_difference import marked_changes
from regard.evaluation.report import Report, System
from regard.evaluation.report_text import (
    format_value,
    length_tables,
    metric_heading,
    metric_rows,
    notes,
    report_text,
)
from regard.views import charts
from regard.views.canvas import Canvas, SvgCanvas, shortened


def comparison_text(comparison: Comparison) -> str:
    """The report, then the sentences whose outputs differ most."""
    names = [system.name for system in comparison.systems]
    return "\n\n".join(
        [
            report_text(comparison.report),
            *(_sentence_text(each, names) for each in comparison.sentences),
        ]
    )


def _sentence_text(sentence: ComparedExample, names: Sequence[str]) -> str:
    sides = [("source", sentence.source), *(("reference", one) for one in sentence.references)]
    rows = [[name, "", printable(text)] for name, text in sides]
    for name, answer in zip(names, sentence.answers, strict=True):
        rows.append([name, _scores(answer), printable(answer.output)])
        if answer.difference:
            rows.append(["", "changes", printable(marked_changes(answer.difference))])
    title = f"example {sentence.number:,}: outputs differ by {sentence.difference:.0%}"
    return f"{title}\n{text_table(rows, left=3)}"


def _scores(answer: SystemAnswer) -> str:
    return "  ".join(f"{name} {format_value(name, value)}" for name, value in answer.scores.items())


def comparison_figure(comparison: Comparison) -> str:
    """Quality by source length as SVG, a chart for each metric."""
    figures = _charts(comparison.report)
    if not figures:
        wanted = "systems with outputs"
        remedy = "Write a page: .html."
        raise InvalidArgument("out", wanted=wanted, got="language models", remedy=remedy)
    return charts.below("Quality by source length", figures).content().decode()


def _charts(report: Report) -> list[SvgCanvas]:
    groups = report.systems[0].lengths
    if not groups:
        return []
    lengths = [
        f"{group.first}–{group.last}" if group.first < group.last else str(group.first)
        for group in groups
    ]
    figures = []
    for name in groups[0].metrics:
        lines = [charts.ChartLine(system.name, _points(system, name)) for system in report.systems]
        title = f"{metric_heading(name)} by source length"
        figures.append(charts.lines(title, lengths, lines, partial(format_value, name)))
    return figures


def _points(system: System, name: str) -> list[tuple[float, float, float] | None]:
    """The interval and the value of each group; None where one of them is undefined."""
    points: list[tuple[float, float, float] | None] = []
    for group in system.lengths:
        found = group.metrics.get(name)
        if found is None or found.low is None or found.value is None or found.high is None:
            points.append(None)
        else:
            points.append((found.low, found.value, found.high))
    return points


def comparison_page(comparison: Comparison) -> str:
    """Everything as one HTML page, with an attention map for each answer that has one."""
    report = comparison.report
    names = [system.name for system in report.systems]
    parts = [charts.table(metric_rows(report))]
    for chart, (title, rows) in zip(_charts(report), length_tables(report), strict=True):
        parts += [f"<h2>{charts.text(title)}</h2>", _figure(chart), charts.table(rows)]
    if comparison.sentences:
        parts.append("<h2>Where outputs differ most</h2>")
    for sentence in comparison.sentences:
        parts += _section(sentence, names)
    parts += [f"<pre>{charts.text(note)}</pre>" for note in notes(report)]
    return charts.page(" · ".join(names), parts)


def _section(sentence: ComparedExample, names: Sequence[str]) -> list[str]:
    metrics = list(dict.fromkeys(name for answer in sentence.answers for name in answer.scores))
    rows = [
        ["", "text", *map(metric_heading, metrics)],
        ["source", sentence.source, *[""] * len(metrics)],
    ]
    rows += [["reference", one, *[""] * len(metrics)] for one in sentence.references]
    maps = []
    for name, answer in zip(names, sentence.answers, strict=True):
        cells = [format_value(metric, answer.scores.get(metric)) for metric in metrics]
        rows.append([name, answer.output, *cells])
        if answer.difference:
            rows.append(["changes", marked_changes(answer.difference), *[""] * len(metrics)])
        if (seen := answer.attention) is not None:
            maps.append(
                _figure(charts.heat_map(shortened(name, 40), seen.rows, seen.keys, seen.weights))
            )
    parts = [
        f"<h3>Example {sentence.number:,}: outputs differ by {sentence.difference:.0%}</h3>",
        charts.table(rows, of_texts=True),
    ]
    if maps:
        parts.append(f'<div class="maps">{"".join(maps)}</div>')
    return parts


def _figure(canvas: Canvas) -> str:
    return f"<figure>{canvas.content().decode()}</figure>"
