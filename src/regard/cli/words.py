"""Word vectors: `regard words` and its own verbs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import Changes, Device, Json

app = typer.Typer(help="Word vectors by word2vec: train, nearest, analogy, score.", no_args_is_help=True)


@app.command("train")
def words_train(
    text: Annotated[Path, typer.Argument(help="Words between spaces, a sentence a line; plain, .gz or .zst.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the vectors.")],
    set_: Changes = None,
    device: Device = "cpu",
) -> None:
    """Learn a vector for each word.

    Example: regard words train corpus.txt --out vectors.txt --set width=100 --set algorithm=cbow
    """
    from regard.api.word_vectors import train_word_vectors

    vectors = train_word_vectors(text, out, set_ or (), device=device, tell=lambda line: print(line, file=sys.stderr))
    print(f"{len(vectors):,} words, {vectors.dim} numbers each: {out}", file=sys.stderr)


@app.command("nearest")
def words_nearest(
    vectors: Annotated[Path, typer.Argument(help="A file of vectors in word2vec's text format.")],
    word: Annotated[str, typer.Argument()],
    count: Annotated[int, typer.Option(min=1)] = 10,
) -> None:
    """The words nearest to one.

    Example: regard words nearest vectors.txt king
    """
    _print_scored(_vectors(vectors).nearest(word, count))


@app.command("analogy")
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


@app.command("score")
def words_score(
    vectors: Annotated[Path, typer.Argument(help="A file of vectors in word2vec's text format.")],
    files: Annotated[list[Path], typer.Argument(help="Word pairs with scores, or questions of analogies.")],
    as_json: Json = False,
) -> None:
    """Rank correlation with people's judgements of word pairs, and accuracy on analogies.

    Example: regard words score vectors.txt wordsim353.tsv questions-words.txt
    """
    from regard.api.word_vectors import evaluate_word_vectors
    from regard.core.sanitize import as_json_line

    for line in evaluate_word_vectors(_vectors(vectors), files):
        print(as_json_line(line) if as_json else "   ".join(f"{value}" for value in line.values()))


def _vectors(path: Path) -> Any:
    from regard.word_vectors.vectors import WordVectors

    return WordVectors.load(path)


def _print_scored(found: list[tuple[str, float]]) -> None:
    for word, cosine in found:
        print(f"{cosine:.4f}\t{word}")
