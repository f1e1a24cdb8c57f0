"""`regard evaluate`, `score` and `verify`."""

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from regard.cli.options import (
    Cache,
    DecodeChanges,
    Device,
    Json,
    ModelFolder,
    References,
    Resamples,
    Sources,
    Split,
    Systems,
    decode_options,
    one_line,
)


class WithMetrics(TyperCommand):
    """A verb whose help ends with the list of metrics."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from regard.evaluation.metrics import METRICS

        with formatter.section("Metrics (↑ higher is better, ↓ lower)"):
            formatter.write_dl(
                [(f"{name} {'↑' if m.higher_is_better else '↓'}", m.description) for name, m in METRICS.items()]
            )


def evaluate(
    systems: Systems,
    split: Split = None,
    sources: Sources = None,
    references: References = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="One of those below; may be repeated [default: those of the task]."),
    ] = None,
    by_length: Annotated[
        str | None,
        typer.Option(metavar="N|A,B,…", help="Also by source length: N buckets, or buckets that end at A, B, …"),
    ] = None,
    resamples: Resamples = 1000,
    outputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the model's outputs to this file, one per line.")
    ] = None,
    set_: DecodeChanges = None,
    device: Device = "cpu",
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Print metrics of trained models, or of files of outputs, with confidence intervals.

    Several systems are compared with the first by a paired bootstrap test.

    Examples:
    regard evaluate runs/dates --split test

    regard evaluate runs/old runs/new --metric bleu --metric ter --by-length 4

    regard evaluate runs/translation --set beam_size=1 --set quantization=int8

    regard evaluate ours.txt theirs.txt --references right.txt
    """
    from regard.api.evaluate import evaluate_systems
    from regard.core.atomic_io import atomic_file
    from regard.evaluation.report_text import report_text

    with atomic_file(outputs) if outputs else nullcontext() as file:
        report = evaluate_systems(
            systems,
            split=split,
            sources=sources,
            references=references or (),
            metrics=metric,
            resamples=resamples,
            by_length=by_length,
            keep=(lambda output: file.write(f"{one_line(output)}\n".encode())) if file else None,
            cache=cache,
            device=device,
            decode=decode_options(set_),
        )
    print(json.dumps(asdict(report), ensure_ascii=False) if as_json else report_text(report))


def score(
    model: ModelFolder,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Sources and targets, or texts for a language model [default: stdin]."),
    ] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Print the log-probability and perplexity of given outputs or labels, line by line.

    On stdin, a source and its target are separated by a tab.

    Examples: regard score runs/translation source.txt target.txt

    regard score runs/language-model text.txt --json
    """
    from regard.inference.load import load
    from regard.inference.score import pairs, score_lines

    predictor = load(model, device=device)
    for scored in score_lines(predictor, pairs(predictor, files or [])):
        if as_json:
            parts = {"tokens": scored.tokens, "log_probabilities": scored.log_probabilities}
            whole = {"log_probability": scored.log_probability, "perplexity": scored.perplexity}
            print(json.dumps(whole | parts, ensure_ascii=False))
        else:
            print(f"{scored.log_probability:.4f}\t{scored.perplexity:.4f}")
    sys.stdout.flush()


def verify(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a checkpoint.")],
) -> None:
    """Check every byte of a checkpoint, or of all checkpoints of a run, against its manifest.

    Example: regard verify runs/dates
    """
    from regard.checkpoint import format as checkpoint_format

    for folder, files in checkpoint_format.verify(path):
        print(f"{folder}: {files} files, all as they were saved")
