"""A comparison for people: as text, as a page, and as a figure."""

from collections.abc import Sequence
from functools import partial

from regard.api.compare import ComparedExample, Comparison, SystemAnswer
from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.evaluation.report import Report, System
from regard.evaluation.report_text import (
    MISSING,
    format_value,
    length_tables,
    metric_heading,
    metric_rows,
    notes,
    report_text,
    table,
)
from regard.views import charts
from regard.views.canvas import SvgCanvas


def as_text(found: Comparison) -> str:
    """Figures, then the sentences that differ most."""
    names = [system.name for system in found.report.systems]
    return "\n\n".join([report_text(found.report), *(_sentence_told(each, names) for each in found.sentences)])


def _sentence_told(sentence: ComparedExample, names: Sequence[str]) -> str:
    sides = [("source", sentence.source), *(("reference", one) for one in sentence.references)]
    rows = [[name, "", printable(text)] for name, text in sides]
    rows += [
        [name, _scores(answer), printable(answer.output)] for name, answer in zip(names, sentence.answers, strict=True)
    ]
    return f"example {sentence.number:,}: outputs differ by {sentence.difference:.0%}\n{table(rows, left=3)}"


def _scores(answer: SystemAnswer) -> str:
    return "  ".join(f"{name} {format_value(name, value)}" for name, value in answer.scores.items())


def as_figure(found: Comparison) -> str:
    """Quality by source length as SVG, a figure for each metric."""
    figures = _figures(found.report)
    if not figures:
        wanted, remedy = "systems whose outputs are judged", "Write a page: .html."
        raise InvalidArgument("out", wanted=wanted, got="language models", remedy=remedy)
    return charts.below("Quality by source length", figures).content().decode()


def _figures(report: Report) -> list[SvgCanvas]:
    groups = report.systems[0].lengths
    return [
        charts.lines(
            f"{metric_heading(name)} by source length",
            [f"{group.first}–{group.last}" if group.first < group.last else str(group.first) for group in groups],
            [charts.ChartLine(system.name, _points(system, name)) for system in report.systems],
            partial(format_value, name),
        )
        for name in (groups[0].metrics if groups else ())
    ]


def _points(system: System, name: str) -> list[tuple[float, float, float] | None]:
    scored = [group.metrics.get(name) for group in system.lengths]
    return [
        None if one is None or one.low is None or one.high is None else (one.low, one.value, one.high) for one in scored
    ]


def as_page(found: Comparison) -> str:
    """All of it as one file of HTML, with a map of attention for each answer that has one."""
    report = found.report
    names = [system.name for system in report.systems]
    parts = [charts.table(metric_rows(report))]
    for drawing, (title, rows) in zip(_figures(report), length_tables(report), strict=True):
        parts += [
            f"<h2>{charts.text(title)}</h2>",
            f"<figure>{drawing.content().decode()}</figure>",
            charts.table(rows),
        ]
    if found.sentences:
        parts.append("<h2>Where outputs differ most</h2>")
    for sentence in found.sentences:
        parts += _section(sentence, names)
    parts += [f"<pre>{charts.text(note)}</pre>" for note in notes(report)]
    return charts.page(" · ".join(names), parts)


def _section(sentence: ComparedExample, names: Sequence[str]) -> list[str]:
    metrics = list(dict.fromkeys(name for answer in sentence.answers for name in answer.scores))
    rows = [["", "text", *map(metric_heading, metrics)], ["source", sentence.source, *[""] * len(metrics)]]
    rows += [["reference", one, *[""] * len(metrics)] for one in sentence.references]
    for name, answer in zip(names, sentence.answers, strict=True):
        cells = [
            format_value(metric, answer.scores[metric]) if metric in answer.scores else MISSING for metric in metrics
        ]
        rows.append([name, answer.output, *cells])
    maps = [
        f"<figure>{charts.heat_map(name, seen.rows, seen.keys, seen.weights).content().decode()}</figure>"
        for name, seen in zip(names, (answer.attention for answer in sentence.answers), strict=True)
        if seen is not None
    ]
    return [
        f"<h3>Example {sentence.number:,}: outputs differ by {sentence.difference:.0%}</h3>",
        charts.table(rows, of_texts=True),
        *([f'<div class="maps">{"".join(maps)}</div>'] if maps else []),
    ]
