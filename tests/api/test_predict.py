"""Lines as they arrive: outputs depend on the line and its number, not on when it came."""

import time

import pytest

from regard.api import evaluate, predict
from regard.api.predict import predict as predict_lines
from regard.core.errors import InvalidArgument
from regard.data.train_tokenizer import train_tokenizer
from regard.recipe.recipe import Recipe
from support.predictors import PARTS, language_model, translator

DRAWN = {"sample": True, "temperature": 2.0}
LINES = ["the cat", "", "a dog", "the cat"] * 3


def said(lines, predictor, **options) -> list[str]:
    return [outputs[0].text for _, outputs in predict_lines(predictor, lines, **options)]


def hesitating(lines):
    for number, line in enumerate(lines):
        if number % 5 == 4:
            time.sleep(5 * predict.TIMEOUT)
        yield line


@pytest.mark.parametrize(
    "predictor", [translator("words"), language_model("words")], ids=["translator", "language"]
)
def test_draws_depend_on_the_line_and_its_number(predictor, monkeypatch):
    wanted = said(LINES, predictor, **DRAWN)
    assert wanted[0] != wanted[4] or wanted[0] != wanted[8]
    assert wanted[2] == predictor.predict([LINES[0], "x", LINES[2]], **DRAWN)[2]
    assert said(hesitating(LINES), predictor, **DRAWN) == wanted
    monkeypatch.setattr(predict, "CHUNK", 3)
    assert said(LINES, predictor, **DRAWN) == wanted


def test_evaluation_draws_by_the_number_of_an_example(monkeypatch):
    predictor = translator("words").with_decode(**DRAWN)
    rows = [(line or "x", [""]) for line in LINES]
    wanted = predictor.predict([source for source, _ in rows])
    monkeypatch.setattr(evaluate, "CHUNK", 5)
    assert [output.text for _, output in evaluate._predict(predictor, iter(rows))] == wanted


def test_a_line_that_is_too_long_is_named_by_its_number():
    with pytest.raises(InvalidArgument, match="line 4: wanted at most 3 tokens"):
        said(["the cat", "", "", "the cat sat on"], translator("words"), max_source_length=3)


def test_references_are_in_the_small_letters_that_a_model_can_write(tmp_path):
    texts = ["ΑΣ ΟΔΥΣΣΕΥΣ", "İSTANBUL", "Straẞe", "ǅ"]
    (tmp_path / "text.txt").write_text("".join(text + "\n" for text in texts))
    path, small = str(tmp_path / "text.txt"), {"tokenizer": "bytes", "lowercase": True}
    data = {"train": [path, path], "valid": [path, path], "source": small, "target": small}
    recipe = Recipe.of({"data": data, "model": {"encoder": PARTS["rnn"], "decoder": PARTS["rnn"]}})
    words = train_tokenizer("bytes", texts, lower=True)
    written = [words.decode(row) for row in words.encode_batch(texts)]
    assert [references for _, references in evaluate.rows_of(recipe, "valid")] == [
        [text] for text in written
    ]
    assert written != [text.lower() for text in texts]
