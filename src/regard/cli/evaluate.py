"""`regard evaluate`, `compare`, `score`, `shortlist`, `thresholds`, `verify` and `sign`."""

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import regard
from regard.cli import completion
from regard.cli.options import (
    ByLength,
    Cache,
    Column,
    Data,
    DecodeChanges,
    Device,
    Json,
    Metric,
    ModelFolder,
    References,
    Resamples,
    Sources,
    Split,
    Systems,
    TrustDataPaths,
    argument,
    decode_options,
    option,
)
from regard.cli.verb import Verb
from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.core.text_table import counted, text_table
from regard.views.progress import tracked

ENDINGS = (".html", ".svg")


class WithMetrics(Verb):
    """A verb whose help ends with the list of metrics."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from regard.core.metric_names import DESCRIPTIONS, HIGHER_IS_BETTER

        with formatter.section("Metrics (↑ higher is better, ↓ lower)"):
            arrows = {name: "↑" if HIGHER_IS_BETTER[name] else "↓" for name in HIGHER_IS_BETTER}
            formatter.write_dl(
                [(f"{name} {arrow}", DESCRIPTIONS[name]) for name, arrow in arrows.items()]
            )


def evaluate(
    systems: Systems,
    split: Split = None,
    sources: Sources = None,
    references: References = None,
    data: Data = None,
    column: Column = None,
    metric: Metric = None,
    by_length: ByLength = None,
    resamples: Resamples = 1000,
    outputs: Annotated[
        Path | None, option("FILE", "Write the model's outputs to this file, one per line.")
    ] = None,
    set_: DecodeChanges = None,
    device: Device = "auto",
    cache: Cache = None,
    trust_data_paths: TrustDataPaths = False,
    as_json: Json = False,
) -> None:
    """Print metrics of trained models, or of files of outputs, with confidence intervals.

    Several systems are compared with the first by a paired bootstrap test.

    Examples:
    regard evaluate runs/dates --split test

    regard evaluate runs/reviews --data new.csv --column text --column label

    regard evaluate runs/old runs/new --metric bleu --metric ter --by-length 4

    regard evaluate runs/translation --set beam_size=1 --set quantization=int8

    regard evaluate ours.txt theirs.txt --references right.txt
    """
    from regard.evaluation.report_text import report_text

    given = _arguments(
        split,
        sources,
        references,
        data,
        column,
        metric,
        by_length,
        resamples,
        set_,
        device,
        cache,
        trust_data_paths,
    )
    report = regard.evaluate(systems, outputs=outputs, **given)
    if as_json:
        print(json.dumps(asdict(report), ensure_ascii=False))
    else:
        print(report_text(report))


def compare(
    systems: Systems,
    split: Split = None,
    sources: Sources = None,
    references: References = None,
    data: Data = None,
    column: Column = None,
    metric: Metric = None,
    by_length: ByLength = "4",
    sentences: Annotated[
        int, option("N", "Show the N examples whose outputs differ most.", least=0)
    ] = 5,
    resamples: Resamples = 1000,
    out: Annotated[
        Path | None,
        option("FILE", "Write a page (.html), or a figure of quality by source length (.svg)."),
    ] = None,
    set_: DecodeChanges = None,
    device: Device = "auto",
    cache: Cache = None,
    trust_data_paths: TrustDataPaths = False,
    as_json: Json = False,
) -> None:
    """Compare systems on the same examples: metrics, quality by source length,
    and the most different outputs.

    Pages and --json also have an attention map for each output of a model with cross-attention.

    Examples:
    regard compare runs/old runs/new

    regard compare runs/rnn runs/transformer --out compare.html --sentences 20
    """
    from regard.core.atomic_io import atomic_file
    from regard.views.comparison import comparison_figure, comparison_page, comparison_text

    if out is not None and out.suffix not in ENDINGS:
        wanted = f"a name in {' or '.join(ENDINGS)}"
        raise InvalidArgument("out", wanted=wanted, got=str(out), remedy="Choose one of these.")
    given = _arguments(
        split,
        sources,
        references,
        data,
        column,
        metric,
        by_length,
        resamples,
        set_,
        device,
        cache,
        trust_data_paths,
    )
    opened = nullcontext() if out is None else atomic_file(out)
    with opened as file:
        comparison = regard.compare(systems, sentences=sentences, **given)
        if out is not None and file is not None:
            write = comparison_page if out.suffix == ".html" else comparison_figure
            file.write(write(comparison).encode())
    if as_json:
        print(json.dumps(comparison.as_dict(), ensure_ascii=False))
    else:
        print(comparison_text(comparison))


def _arguments(
    split: str | None,
    sources: Path | None,
    references: list[Path] | None,
    data: list[str] | None,
    columns: list[str] | None,
    metrics: list[str] | None,
    by_length: str | None,
    resamples: int,
    changes: list[str] | None,
    device: str,
    cache: Path | None,
    trust_data_paths: bool,
) -> dict[str, Any]:
    """The arguments that `regard.evaluate` and `regard.compare` share, from options."""
    return {
        "split": split,
        "sources": sources,
        "references": references or (),
        "data": data or (),
        "columns": columns or (),
        "metrics": metrics,
        "by_length": by_length,
        "resamples": resamples,
        "decode": decode_options(changes),
        "device": device,
        "cache": cache,
        "trust_data_paths": trust_data_paths,
    }


def score(
    model: ModelFolder,
    files: Annotated[
        list[Path] | None,
        argument(
            "FILE",
            "Sources and targets, or a table of them; texts for a language model [default: stdin].",
        ),
    ] = None,
    column: Column = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Print the log-probability and perplexity of given outputs or labels, line by line.

    On stdin, a source and its target are separated by a tab.

    Examples: regard score runs/translation source.txt target.txt

    regard score runs/language-model text.txt --json

    regard score runs/reviews reviews.csv --column text --column label
    """
    scores = regard.score(regard.load(model, device=device), files or (), columns=column or ())
    for scored in tracked(scores, "lines", printing=True):
        whole = {"log_probability": scored.log_probability, "perplexity": scored.perplexity}
        if as_json:
            print(json.dumps(whole | asdict(scored), ensure_ascii=False))
        else:
            print("\t".join(f"{value:.4f}" for value in whole.values()))
    sys.stdout.flush()


def verify(
    path: ModelFolder,
    key: Annotated[
        Path | None, option("FILE", "The key that each checkpoint must be signed with.")
    ] = None,
) -> None:
    """Check every byte of a checkpoint, or of all checkpoints of a run, against its manifest.

    Hashes that agree show that nothing was damaged, and prove no author: for that, sign it and give
    --key.

    Examples: regard verify runs/dates

    regard verify runs/dates --key team.key
    """
    signed = "" if key is None else ", signed"
    for folder, files in regard.verify(path, key):
        print(f"{folder}: {counted(files, 'file')}, as saved{signed}")


def shortlist(
    model: ModelFolder,
    candidates: Annotated[
        int,
        option("N", "Output tokens of each source token: its most likely translations.", least=1),
    ] = 50,
    frequent: Annotated[
        int, option("N", "Output tokens that every output may have: the most frequent.", least=1)
    ] = 100,
    data: Annotated[
        list[str] | None,
        option(
            "FILE",
            "Learn from other data: a table, or one option each for a file "
            "of sources and one of targets.",
        ),
    ] = None,
    column: Column = None,
    max_examples: Annotated[
        int, option("N", "Learn from at most so many examples, the first.", least=1)
    ] = 200_000,
    trust_data_paths: TrustDataPaths = False,
) -> None:
    """Learn a vocabulary shortlist from a translation model's training data,
    and add it to its checkpoint.

    With `--set shortlist=true`, searches on a CPU generate likely translations (by IBM model 1) of
    the source's tokens and frequent tokens only.

    Examples: regard shortlist runs/translation

    regard predict runs/translation test.en --set shortlist=true
    """
    chosen = {"candidates": candidates, "frequent": frequent, "max_examples": max_examples}
    folder, learned = regard.shortlist(
        model, data=data, columns=column or (), trust_data_paths=trust_data_paths, **chosen
    )
    known = int((learned.likely >= 0).any(1).sum())
    print(
        f"{folder}: {len(learned.frequent):,} frequent tokens, and "
        f"candidates of {known:,} source tokens"
    )


def thresholds(
    model: ModelFolder,
    split: Annotated[
        str | None,
        option(
            "NAME",
            "A split of the model's own data to choose on [default: valid].",
            complete=completion.splits,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        option(
            "FILE",
            "Choose on other data: a table, or one option each for a file "
            "of sources and one of targets.",
        ),
    ] = None,
    column: Column = None,
    device: Device = "auto",
    trust_data_paths: TrustDataPaths = False,
    as_json: Json = False,
) -> None:
    """Choose the threshold of each label with the highest F1 on validation data,
    and add them to the checkpoint.

    A label whose present threshold reaches its highest F1 keeps it. `--set threshold=0.5` predicts
    without them.

    Example: regard thresholds runs/topics
    """
    folder, chosen = regard.thresholds(
        model,
        split=split,
        data=data or (),
        columns=column or (),
        device=device,
        trust_data_paths=trust_data_paths,
    )
    if as_json:
        print(json.dumps([asdict(each) for each in chosen], ensure_ascii=False))
        return
    rows = [["label", "threshold", "f1 before", "f1", "references"]]
    for each in chosen:
        shares = [f"{each.before:.2%}", f"{each.f1:.2%}"]
        rows.append(
            [printable(each.label), f"{each.threshold:.4f}", *shares, f"{each.references:,}"]
        )
    print(f"{folder}\n{text_table(rows)}")


def sign(
    path: ModelFolder,
    key: Annotated[Path, option("FILE", "The key: 32 bytes or more, as openssl rand makes them.")],
) -> None:
    """Sign a checkpoint, or all checkpoints of a run, after checking every byte.

    Example: regard sign runs/dates --key team.key
    """
    for folder in regard.sign(path, key):
        print(f"{folder}: signed")
