"""Classifiers of transformers that read pairs of texts, as one sequence: the same logits for both texts together."""

import json

import pytest
import torch

import regard
from regard.core.errors import InputTooLong, InvalidArgument, InvalidRecipe
from regard.core.joined_tokens import JoinedTokens
from regard.core.sequence import Tokens
from regard.interop.huggingface import _write_tokenizer
from regard.recipe.recipe import Recipe
from support.predictors import tokenizer
from support.pretrained import CASES, assert_same_logits, random_theirs

pytest.importorskip("transformers")
WORDS = tokenizer()
END = 2
PAIRS = [
    ("the cat sat on the mat", "a dog ran"),
    ("a", "the red car and the cat"),
    ("category", ""),
]
# How each architecture writes a pair: the ids around the texts, whose template has nothing before them here.
SEPARATORS = {"bert": [END], "roberta": [END, END], "distilbert": [END]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def get(architecture):
        if architecture not in made:
            folder = tmp_path_factory.mktemp(architecture)
            options = {
                **CASES[architecture][2],
                "vocab_size": WORDS.size,
                "num_labels": 3,
                "problem_type": "multi_label_classification",
                "pad_token_id": 1 if architecture == "roberta" else 0,
            }
            if architecture == "roberta":
                options["type_vocab_size"] = 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(CASES, architecture, (*CASES[architecture][:2], options))
                theirs = random_theirs(architecture)
            theirs.save_pretrained(folder)
            _write_tokenizer(WORDS, folder, has_source=True)
            made[architecture] = theirs, folder
        return made[architecture]

    return get


@torch.no_grad()
def probabilities_of(theirs, architecture, pair):
    one, other = (WORDS.encode(text) for text in pair)
    first = [*one, *SEPARATORS[architecture]]
    second = [*other, END]
    inputs = {"input_ids": torch.tensor([[*first, *second]])}
    if architecture == "bert":
        inputs["token_type_ids"] = torch.tensor([[0] * len(first) + [1] * len(second)])
    return theirs(**inputs).logits[0].sigmoid()


@pytest.mark.parametrize("architecture", SEPARATORS)
def test_pairs_have_their_logits(architecture, folders, tmp_path):
    theirs, folder = folders(architecture)
    regard.import_model(folder, tmp_path / "checkpoint", pairs=True)
    for model in (
        regard.from_pretrained(folder, pairs=True),
        regard.load(tmp_path / "checkpoint"),
    ):
        for pair, (output,) in zip(PAIRS, model.outputs(PAIRS), strict=True):
            found = torch.tensor([output.probabilities[f"LABEL_{i}"] for i in range(3)])
            assert_same_logits(found, probabilities_of(theirs, architecture, pair))
        # A tab stands between the texts of a line.
        assert model.predict(["\t".join(PAIRS[0])]) == model.predict(PAIRS[:1])


@pytest.mark.parametrize("architecture", SEPARATORS)
def test_what_is_exported_reads_pairs_with_its_tokenizer(architecture, folders, tmp_path):
    import transformers

    theirs, folder = folders(architecture)
    model = regard.from_pretrained(folder, pairs=True)
    regard.export(model, "huggingface", tmp_path / "exported")
    written = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "exported"
    ).eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    for pair in PAIRS[:2]:  # Their tokenizer takes an empty second text for none.
        has_segments = architecture == "bert"
        inputs = words(*pair, return_tensors="pt", return_token_type_ids=has_segments)
        with torch.no_grad():
            found = written(**inputs).logits[0].sigmoid()
        assert_same_logits(found, probabilities_of(theirs, architecture, pair))


def test_segments_matter_to_bert(folders):
    """Without the second segment, the probabilities are others: the test above sees it."""
    theirs, _ = folders("bert")
    one, other = (WORDS.encode(text) for text in PAIRS[0])
    ids = torch.tensor([[*one, END, *other, END]])
    with torch.no_grad():
        without = theirs(input_ids=ids).logits[0].sigmoid()
    assert (without - probabilities_of(theirs, "bert", PAIRS[0])).abs().max() > 1e-3


def test_texts_that_are_too_long_together_are_cut_at_the_longer(folders):
    theirs, folder = folders("bert")
    model = regard.from_pretrained(folder, pairs=True)
    long = " ".join(["the cat"] * 10)
    short = "a dog"
    with pytest.raises(InputTooLong):
        model.predict([(short, long)], max_source_length=10)
    [[output]] = model.outputs([(short, long)], max_source_length=10, truncate=True)
    assert output.truncated
    kept = 10 - len(WORDS.encode(short))
    first = [*WORDS.encode(short), END]
    second = [*WORDS.encode(long)[:kept], END]
    with torch.no_grad():
        wanted = theirs(
            input_ids=torch.tensor([[*first, *second]]),
            token_type_ids=torch.tensor([[0] * len(first) + [1] * len(second)]),
        )
    found = torch.tensor([output.probabilities[f"LABEL_{i}"] for i in range(3)])
    assert_same_logits(found, wanted.logits[0].sigmoid())


def test_a_look_shows_both_texts_as_one(folders):
    _, folder = folders("bert")
    model = regard.from_pretrained(folder, pairs=True)
    seen = regard.look(model, PAIRS[0])
    tokens = [WORDS.pieces([i])[0] for i in (*WORDS.encode(PAIRS[0][0]), END)]
    assert list(seen.sources[0].tokens[: len(tokens)]) == tokens
    assert seen["encoder 1"].size[0] == len(seen.sources[0].tokens)


def test_only_classifiers_of_texts_read_pairs(folders, tmp_path):
    _, folder = folders("bert")
    config = json.loads((folder / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    theirs = random_theirs("bert-mlm")
    theirs.save_pretrained(tmp_path)
    _write_tokenizer(WORDS, tmp_path, has_source=True)
    with pytest.raises(InvalidArgument, match="pairs: wanted false"):
        regard.from_pretrained(tmp_path, pairs=True)


def test_joined_tokens_are_the_sequences_one_after_the_other():
    one = Tokens.of([[5, 6, 2], [7, 2]])
    other = Tokens.of([[8, 2], [9, 10, 11, 2]])
    joined = JoinedTokens.join([one, other])
    assert joined.row(0) == [5, 6, 2, 8, 2]
    assert joined.row(1) == [7, 2, 9, 10, 11, 2]
    assert [part.row(1) for part in joined.parts(2)] == [[7, 2], [9, 10, 11, 2]]
    assert joined.types.tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1]]


TEXT = {"kind": "text", "tokenizer": "words"}
MODEL = {
    "encoder": {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "ffn_dim": 32},
    "pool": {"kind": "mean"},
}
WRONG = {
    "one source": (
        {"data": {"source": TEXT, "join_sources": True}},
        "join_sources: wanted false without",
    ),
    "other tokenizers": (
        {"data": {"sources": [TEXT, {**TEXT, "lowercase": True}], "join_sources": True}},
        "join_sources: wanted sources that are tokenized alike",
    ),
    "a label": (
        {"data": {"sources": [TEXT, {"kind": "label"}], "join_sources": True}},
        "join_sources: wanted true for texts alone",
    ),
    "two encoders": (
        {
            "data": {"sources": [TEXT, TEXT], "join_sources": True},
            "model": {"encoders": [MODEL["encoder"], MODEL["encoder"]], "pool": {"kind": "mean"}},
        },
        r"model\.encoders: wanted one \[model\.encoder\]",
    ),
    "one encoder for two sources that are not joined": (
        {"data": {"sources": [TEXT, TEXT]}},
        r"model\.encoders: wanted 2 encoders",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_joined_is_refused(wrong):
    tables, message = WRONG[wrong]
    data = {
        "train": ["train.a", "train.b", "train.y"],
        "target": {"kind": "label"},
        **tables["data"],
    }
    if "source" in data:
        data["train"] = ["train.a", "train.y"]
    with pytest.raises(InvalidRecipe, match=message):
        Recipe.of({"data": data, "model": tables.get("model", MODEL), "train": {}})
