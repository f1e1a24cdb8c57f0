"""The command line: one function per verb, which parses, calls and prints. Nothing heavy is imported until it runs.

Results go to stdout, messages to stderr. Exit codes: 0 done; 1 failure; 2 usage or bad input; 3 training diverged;
4 checkpoint refused; 130 and 143 stopped by a signal.
"""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from regard import __version__, look_command
from regard.errors import RegardError

app = typer.Typer(
    name="regard",
    help="Train, look inside and serve attention models.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help answers three times as fast
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
words = typer.Typer(help="Word vectors by word2vec: train, nearest, analogy, score.", no_args_is_help=True)
app.add_typer(words, name="words")

RecipeFile = Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a recipe of ours.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; may be repeated.")
]
Cache = Annotated[
    Path | None, typer.Option(help="Where prepared data lie [default: $REGARD_CACHE, or ~/.cache/regard].")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a run, or of a checkpoint.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, look inside and serve attention models."""


@app.command()
def train(
    recipe: RecipeFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the run.")],
    set_: Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and the first batch, and stop.")
    ] = False,
    allow_changed_data: Annotated[
        bool, typer.Option("--allow-changed-data", help="Resume though the data are not what they were.")
    ] = False,
    cache: Cache = None,
) -> None:
    """Train a model as a recipe says, with checkpoints on the way.

    A run that was stopped or killed goes on with --resume, and ends as if it had never stopped.

    Examples:
    regard train dates --out runs/dates

    regard train my.toml --out runs/mine --set train.rate=5e-4 --set model.encoder.layers=6

    regard train my.toml --out runs/mine --resume
    """
    from regard.recipe import find_recipe, read_recipe
    from regard.views.progress import Progress

    found = read_recipe(find_recipe(recipe), set_ or ())
    if dry_run:
        from regard.jobs.outlook import outlook

        print(outlook(found, cache))
        return
    from regard.jobs import training

    progress = Progress(sys.stderr)
    try:
        model = training.train(
            found, out, resume=resume, cache=cache, allow_changed_data=allow_changed_data, tell=progress
        )
    finally:
        progress.close()
    print(model.folder)


@app.command()
def prepare(recipe: RecipeFile, set_: Changes = None, cache: Cache = None, as_json: Json = False) -> None:
    """Tokenize the data of a recipe once; training finds them again by their content.

    Example: regard prepare my.toml
    """
    from regard.jobs.training import prepared
    from regard.recipe import find_recipe, read_recipe
    from regard.views.progress import Progress

    progress = Progress(sys.stderr)
    data = prepared(read_recipe(find_recipe(recipe), set_ or ()), cache, progress)
    progress.close()
    record = {"folder": str(data.folder), "splits": data.record["splits"]}
    if as_json:
        print(json.dumps(record))
        return
    for name, split in record["splits"].items():
        tokens = "".join(f"   {count:,} {side} tokens" for side, count in split["tokens"].items())
        left = "".join(f"   {count:,} left out: {why}" for why, count in split["left_out"].items() if count)
        print(f"{name:<6} {split['examples']:,} examples{tokens}{left}")
    print(data.folder)


class WithMetrics(TyperCommand):
    """A verb whose help ends with the metrics there are."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from regard.evaluation.metrics import METRICS

        with formatter.section("Metrics (↑ higher is better, ↓ lower)"):
            formatter.write_dl([(f"{name} {'↑' if m.higher else '↓'}", m.tells) for name, m in METRICS.items()])


@app.command(cls=WithMetrics)
def evaluate(
    systems: Annotated[
        list[Path], typer.Argument(metavar="SYSTEM", help="Runs, checkpoints, or files of outputs, one a line.")
    ],
    split: Annotated[str | None, typer.Option(help="train, valid or test of a run's data [default: test].")] = None,
    sources: Annotated[Path | None, typer.Option(help="Judge on this file instead, one a line.")] = None,
    references: Annotated[
        list[Path] | None, typer.Option(help="What is right for each line of it; may be repeated.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="One of those below; may be repeated [default: those of the task].")
    ] = None,
    by_length: Annotated[
        str | None,
        typer.Option(metavar="N|A,B,…", help="Also by source length: in N groups, or in groups that end at A, B, …"),
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Of examples, for intervals and p-values.")] = 1000,
    outputs: Annotated[Path | None, typer.Option(help="Write the model's outputs to this file, one a line.")] = None,
    device: Device = "cpu",
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Metrics of trained models, or of outputs in files, with intervals; p-values against the first of several.

    Examples:
    regard evaluate runs/dates --split test

    regard evaluate runs/old runs/new --metric bleu --metric ter --by-length 4

    regard evaluate ours.txt theirs.txt --references right.txt
    """
    from regard.evaluation.told import told
    from regard.files import whole_file
    from regard.jobs.evaluating import compare

    with whole_file(outputs) if outputs else nullcontext() as file:
        found = compare(
            systems,
            split=split,
            sources=sources,
            references=references or (),
            metrics=metric,
            resamples=resamples,
            by_length=by_length,
            keep=(lambda output: file.write(f"{_one_line(output)}\n".encode())) if file else None,
            cache=cache,
            device=device,
        )
    print(json.dumps(asdict(found), ensure_ascii=False) if as_json else told(found))


@app.command()
def predict(
    model: ModelFolder,
    files: Annotated[list[Path] | None, typer.Argument(help="Texts, one a line; stdin if there are none.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses that are followed at once.")] = None,
    nbest: Annotated[int | None, typer.Option(min=1, help="Outputs for each line, best first, a line each.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens by their probability.")] = False,
    longest: Annotated[int | None, typer.Option(min=1, help="Tokens of an output, at most.")] = None,
    prefix: Annotated[Path | None, typer.Option(help="A file: what each output begins with, line for line.")] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(help='A file: {"required": ["…"], "banned": ["…"]} for each line, or an empty line.'),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Each output's log-probability before it.")] = False,
    attention: Annotated[
        Path | None, typer.Option(help="Write where each output looked to this file, as JSON, a line each.")
    ] = None,
    cut: Annotated[bool, typer.Option("--cut", help="Read the beginning of lines that are too long.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key of the recipe's [decode]: temperature=0.8.")
    ] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """An output for every line of stdin or of files, line for line, to stdout.

    Examples: echo "3 March 1999" | regard predict runs/dates

    regard predict runs/translation source.txt --beam 5 --nbest 3 --scores
    """
    from regard.jobs import predicting
    from regard.recipe import changed
    from regard.serving.loading import load

    predictor = load(model, device=device)
    options: dict[str, Any] = {"beam": beam, "nbest": nbest, "sample": sample or None, "longest": longest}
    for change in set_ or []:
        options = changed(options, change)
    beside: dict[str, Iterator[Any]] = {} if prefix is None else {"prefixes": _input([prefix])}
    if constraints is not None:
        beside |= predicting.constraints(constraints)
    found = predicting.predict_lines(
        predictor,
        _input(files or []),
        beside=beside,
        scores=scores or as_json,
        attention=attention is not None,
        cut=cut,
        **options,
    )
    shortened = 0
    with nullcontext() if attention is None else _written(attention) as looks:
        for line, outputs in found:
            shortened += outputs[0].cut if outputs else 0
            if looks is not None:
                looks.write(json.dumps(_looks(line, outputs), ensure_ascii=False).encode() + b"\n")
            if as_json:
                print(json.dumps(_as_json(line, outputs), ensure_ascii=False))
            for output in () if as_json else outputs:
                known = scores and output.log_probability is not None  # an empty line stays empty
                print(f"{output.log_probability:.4f}\t{_one_line(output.text)}" if known else _one_line(output.text))
            sys.stdout.flush()
    if shortened:
        print(f"regard: {shortened} lines were too long, and only their beginning was read", file=sys.stderr)


def _written(path: Path) -> Any:
    from regard.files import whole_file

    return whole_file(path)


def _looks(line: str, outputs: list[Any]) -> dict[str, Any]:
    """For every output its tokens and, by layer and head, a row of weights for each."""
    told = [
        {"tokens": each.tokens, "attention": None if each.attention is None else each.attention.tolist()}
        for each in outputs
    ]
    return {"input": line, "outputs": told}


def _as_json(line: str, outputs: list[Any]) -> dict[str, Any]:
    return {
        "input": line,
        "output": outputs[0].text,
        "outputs": [
            {
                "text": each.text,
                "log_probability": each.log_probability,
                "score": each.score,
                "tokens": each.tokens,
                "log_probabilities": each.log_probabilities,
            }
            for each in outputs
        ],
    }


app.command()(look_command.look)


@app.command()
def score(
    model: ModelFolder,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Sources and targets, or a language model's texts; stdin if there are none."),
    ] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """How likely a model finds given outputs or labels: log-probability and perplexity of each, line for line.

    From stdin, a source and its target are parted by a tab.

    Examples: regard score runs/translation source.txt target.txt

    regard score runs/language-model text.txt --json
    """
    from regard.serving.loading import load
    from regard.serving.scoring import pairs, score_lines

    predictor = load(model, device=device)
    for found in score_lines(predictor, pairs(predictor, files or [])):
        if as_json:
            parts = {"tokens": found.tokens, "log_probabilities": found.log_probabilities}
            whole = {"log_probability": found.log_probability, "perplexity": found.perplexity}
            print(json.dumps(whole | parts, ensure_ascii=False))
        else:
            print(f"{found.log_probability:.4f}\t{found.perplexity:.4f}")
    sys.stdout.flush()


@app.command()
def verify(path: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a checkpoint.")]) -> None:
    """Check every byte of a checkpoint, or of all checkpoints of a run, against its manifest.

    Example: regard verify runs/dates
    """
    from regard.serving import loading

    for folder, files in loading.verify(path):
        print(f"{folder}: {files} files, all as they were saved")


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one.")] = None,
) -> None:
    """List the recipes that come with Regard, or print one to begin yours from.

    Example: regard recipes dates > my.toml
    """
    from regard.recipe import find_recipe, our_recipes

    if name is not None:
        print(find_recipe(name).read_text("utf-8"), end="")
        return
    for path in our_recipes():
        first = path.read_text("utf-8").partition("\n")[0].lstrip("# ")
        print(f"{path.stem:<22} {first}")


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Everything random is drawn from this.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Keep the runs in this folder.")] = None,
) -> None:
    """Train two small models to read dates, and see where they look.

    An RNN with attention and a Transformer learn dates in several languages; under three minutes on two cores, and no
    data needed.

    Example: regard demo --out runs/demo
    """
    from regard import demo as demonstration

    demonstration.run(seed=seed, out=out)


@words.command("train")
def words_train(
    text: Annotated[Path, typer.Argument(help="Words between spaces, a sentence a line; plain, .gz or .zst.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the vectors.")],
    set_: Changes = None,
    device: Device = "cpu",
) -> None:
    """Learn a vector for each word.

    Example: regard words train corpus.txt --out vectors.txt --set width=100 --set algorithm=cbow
    """
    from regard.jobs.words import learn_words

    vectors = learn_words(text, out, set_ or (), device=device, tell=lambda line: print(line, file=sys.stderr))
    print(f"{len(vectors):,} words, {vectors.width} numbers each: {out}", file=sys.stderr)


@words.command("nearest")
def words_nearest(
    vectors: Annotated[Path, typer.Argument(help="A file of vectors in word2vec's text format.")],
    word: Annotated[str, typer.Argument()],
    count: Annotated[int, typer.Option(min=1)] = 10,
) -> None:
    """The words nearest to one.

    Example: regard words nearest vectors.txt king
    """
    _print_scored(_vectors(vectors).nearest(word, count))


@words.command("analogy")
def words_analogy(
    vectors: Annotated[Path, typer.Argument(help="A file of vectors in word2vec's text format.")],
    a: Annotated[str, typer.Argument()],
    b: Annotated[str, typer.Argument()],
    c: Annotated[str, typer.Argument()],
    count: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    """A is to B as C is to what?

    Example: regard words analogy vectors.txt man king woman
    """
    _print_scored(_vectors(vectors).analogy(a, b, c, count))


@words.command("score")
def words_score(
    vectors: Annotated[Path, typer.Argument(help="A file of vectors in word2vec's text format.")],
    files: Annotated[list[Path], typer.Argument(help="Word pairs with scores, or questions of analogies.")],
    as_json: Json = False,
) -> None:
    """Rank correlation with people's judgements of word pairs, and accuracy on analogies.

    Example: regard words score vectors.txt wordsim353.tsv questions-words.txt
    """
    from regard.jobs.words import score_words

    for line in score_words(_vectors(vectors), files):
        print(json.dumps(line) if as_json else "   ".join(f"{value}" for value in line.values()))


def _vectors(path: Path) -> Any:
    from regard.model.words import WordVectors

    return WordVectors.load(path)


def _print_scored(found: list[tuple[str, float]]) -> None:
    for word, cosine in found:
        print(f"{cosine:.4f}\t{word}")


def _input(files: list[Path]) -> Iterator[str]:
    from regard.data.text import lines

    for path in files or [Path("/dev/stdin")]:
        yield from lines(path)


def _one_line(text: str) -> str:
    """An output takes one line, whatever is in it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") if set(text) & {"\n", "\r"} else text


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without arrows shows question marks, and not a traceback
    try:
        app()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
