"""`regard words`: train, nearest, analogy, score."""

import sys
import time
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli import completion
from regard.cli.options import Device, Json, argument, option, show
from regard.cli.verb import Verb
from regard.views.progress import Status, is_live, status_line

VectorFile = Annotated[Path, argument("FILE", "A file of vectors in word2vec's text format.")]
Word = Annotated[str, argument("WORD", "A word.")]
Shown = Annotated[int, option("N", "Show this many.", least=1)]


class WithKeys(Verb):
    """A verb whose help ends with the keys of word2vec."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from regard.word_vectors.config import Word2VecConfig

        rows = []
        for each in fields(Word2VecConfig):
            default = "" if each.default is None else f"={each.default}"
            rows.append((f"{each.name}{default}", each.metadata["doc"]))
        with formatter.section("Keys of --set"):
            formatter.write_dl(rows)


app = typer.Typer(
    help="Word vectors by word2vec: train, nearest, analogy, score.", no_args_is_help=True
)


@app.command("train", cls=WithKeys)
def words_train(
    text: Annotated[
        Path, argument("FILE", "Space-separated words, a sentence per line; plain, .gz or .zst.")
    ],
    out: Annotated[Path, option("FILE", "Where to write the vectors.", "--out", "-o")],
    set_: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "Set one of the keys below; may be repeated.",
            "--set",
            complete=completion.word_vector_keys,
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Train word vectors by word2vec.

    Example: regard words train corpus.txt --out vectors.txt --set dim=100 --set algorithm=cbow
    """
    status = Status("reading the text")
    began = time.perf_counter()

    def progress(now: Any) -> None:
        nonlocal status
        line = f"epoch {now.epoch + 1}   {now.done:.0%} done   loss {now.loss:.4f}"
        if not is_live(sys.stderr):
            print(line, file=sys.stderr)
        elif now.done:
            left = (time.perf_counter() - began) * (1 / now.done - 1)
            status = Status(f"{line}   {timedelta(seconds=int(left))} left", now.done)

    with status_line(lambda: status):
        vectors = regard.train_word_vectors(text, out, set_ or (), device=device, progress=progress)
    print(f"{len(vectors):,} words, {vectors.dim} numbers each: {out}", file=sys.stderr)


@app.command("nearest", cls=Verb)
def words_nearest(
    vectors: VectorFile,
    word: Word,
    count: Shown = 10,
) -> None:
    """The words most similar to one, by cosine.

    Example: regard words nearest vectors.txt king
    """
    from regard.word_vectors.similarity import WordSimilarity

    _print_scored(WordSimilarity.load(vectors).nearest(word, count))


@app.command("analogy", cls=Verb)
def words_analogy(
    vectors: VectorFile,
    a: Annotated[str, argument("A", "A word,")],
    b: Annotated[str, argument("B", "what it is to,")],
    c: Annotated[str, argument("C", "and a word like the first.")],
    count: Shown = 5,
) -> None:
    """A is to B as C is to what?

    Example: regard words analogy vectors.txt man king woman
    """
    from regard.word_vectors.similarity import WordSimilarity

    _print_scored(WordSimilarity.load(vectors).analogy(a, b, c, count))


@app.command("score", cls=Verb)
def words_score(
    vectors: VectorFile,
    files: Annotated[list[Path], argument("FILE", "Word pairs with scores, or analogy questions.")],
    as_json: Json = False,
) -> None:
    """Rank correlation with human similarity judgements, and accuracy on analogies.

    Example: regard words score vectors.txt wordsim353.tsv questions-words.txt
    """
    from regard.api.word_vectors import evaluate_word_vectors
    from regard.core.sanitize import as_json_line

    for line in evaluate_word_vectors(regard.WordVectors.load(vectors), files):
        if as_json:
            print(as_json_line(line))
        else:
            print("   ".join(f"{value}" for value in line.values()))


def _print_scored(words: list[tuple[str, float]]) -> None:
    for word, cosine in words:
        show(f"{cosine:.4f}\t{word}")
