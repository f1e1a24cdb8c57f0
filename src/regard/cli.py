"""The command line: one function per verb, which parses, calls and prints. Nothing heavy is imported until it runs.

Results go to stdout, messages to stderr. Exit codes: 0 done; 1 failure; 2 usage or bad input; 3 training diverged;
4 checkpoint refused; 130 and 143 stopped by a signal.
"""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import __version__
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


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


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


@app.command()
def evaluate(
    model: ModelFolder,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    metric: Annotated[
        list[str] | None, typer.Option(help="bleu, bleu_lower, chrf, accuracy or error_rate; may be repeated.")
    ] = None,
    device: Device = "cpu",
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Loss and metrics of a trained model on a split of its data.

    Example: regard evaluate runs/dates --split test
    """
    from regard.jobs import evaluating
    from regard.serving.loading import load

    found = evaluating.evaluate(load(model, device=device), split=split, metrics=metric, cache=cache)
    if as_json:
        print(json.dumps({name: vars(scored) for name, scored in found.items()}))
        return
    for name, scored in found.items():
        print(f"{name:<11} {scored.value:.4f}{'   ' + scored.signature if scored.signature else ''}")


@app.command()
def predict(
    model: ModelFolder,
    files: Annotated[list[Path] | None, typer.Argument(help="Texts, one a line; stdin if there are none.")] = None,
    longest: Annotated[int | None, typer.Option(min=1, help="Tokens of an output, at most.")] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """An output for every line of stdin or of files, line for line, to stdout.

    Example: echo "3 March 1999" | regard predict runs/dates
    """
    from regard.serving.loading import load

    predictor = load(model, device=device)
    for lines in _chunks(_input(files or [])):
        for line, output in zip(lines, predictor.predict(lines, longest=longest), strict=True):
            print(json.dumps({"input": line, "output": output}, ensure_ascii=False) if as_json else _one_line(output))
        sys.stdout.flush()


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


def _chunks(lines: Iterator[str], size: int = 1024) -> Iterator[list[str]]:
    """Enough at once to sort by length; from a pipe, what there is when it ends."""
    from itertools import islice

    while chunk := list(islice(lines, size)):
        yield chunk


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
