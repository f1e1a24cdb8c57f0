"""Taggers: what holds for every encoder and head, and what only some of them do."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe
from regard.core.sequence import Tokens
from regard.data.tagging_schemes import first_violation
from regard.data.word_arrays import collate_words
from regard.data.word_pieces import EncodedWords
from regard.model.crf import LinearChainCRF
from regard.recipe.recipe import Recipe
from regard.tasks.tag import crf_loss
from regard.tasks.tag_windows import joined, windows, word_scores
from support.tagging import ENCODERS, HEADS, noun_phrases, recipe, splits

MEMBERS = [
    *[(encoder, "softmax") for encoder in ENCODERS],
    *[("rnn", head) for head in HEADS if head != "softmax"],
    ("learned positions", "crf"),
    ("transformer", "mean of pieces"),
]
SENTENCES = [
    "the big red dog sees a cat",
    "a bird",
    "the unheard-of quokka eats the house likes an old cat",
    "dog",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a trained model, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("taggers")
    made = {}

    def get(encoder: str = "rnn", head: str = "softmax") -> Path:
        name = f"{encoder}, {head}"
        if name not in made:
            made[name] = folder / name
            regard.train(recipe(encoder, head), made[name], data=splits())
        return made[name]

    return get


@pytest.mark.parametrize(("encoder", "head"), MEMBERS)
def test_a_sentence_in_a_batch_has_the_tags_that_it_has_alone(trained, encoder, head):
    model = regard.load(trained(encoder, head))
    together = model.outputs(SENTENCES, scores=True)
    for sentence, (output,) in zip(SENTENCES, together, strict=True):
        [[alone]] = model.outputs([sentence], scores=True)
        assert output.tags == alone.tags
        assert output.tag_probabilities == pytest.approx(alone.tag_probabilities, abs=1e-5)
        assert output.score == pytest.approx(alone.score, abs=1e-4)
        assert output.words == tuple(sentence.split())
        assert len(output.tags) == len(output.words)


@pytest.mark.parametrize(("encoder", "head"), [("words", "softmax"), ("transformer", "crf")])
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, encoder, head):
    table = recipe(encoder, head, {"validate_every": 5})
    whole = regard.train(table, tmp_path / "whole", data=splits())
    shorter = recipe(encoder, head, {"validate_every": 5, "max_steps": 10})
    regard.train(shorter, tmp_path / "parts", data=splits())
    parts = regard.train(table, tmp_path / "parts", data=splits(), resume=True)
    for name, weight in whole.model.state_dict().items():
        assert parts.model.state_dict()[name].equal(weight), name


@pytest.mark.parametrize("head", HEADS)
def test_a_tagger_learns_the_tags(tmp_path, head):
    table = recipe("rnn", head, {"max_steps": 60})
    model = regard.train(table, tmp_path / "run", data=splits())
    sentences = noun_phrases(30, 3)
    outputs = model.outputs([words for words, _ in sentences])
    gold = [tag for _, tags in sentences for tag in tags]
    predicted = [tag for (output,) in outputs for tag in output.tags]
    right = sum(a == b for a, b in zip(predicted, gold, strict=True))
    assert right / len(gold) > 0.95


# The distribution over all sequences of tags.


def paths_of(model, sentence):
    """All sequences of tags of a sentence and their log-probabilities, by their definition."""
    _, batch = model.encode(sentence)
    head = model.model.head
    with torch.no_grad():
        [scores] = model.model(batch).double()
    words, labels = scores.shape
    paths = list(product(range(labels), repeat=words))
    crf = None if head.crf is None else head.crf.requires_grad_(requires_grad=False)
    totals = []
    for path in paths:
        total = sum(scores[word, tag] for word, tag in enumerate(path))
        if crf is not None:
            total = total + crf.start_transitions[path[0]] + crf.end_transitions[path[-1]]
            total = total + sum(crf.transitions[a, b] for a, b in pairwise(path))
        totals.append(float(total))
    return paths, torch.tensor(totals).log_softmax(0)


@pytest.mark.parametrize("head", HEADS)
def test_probabilities_are_those_of_all_sequences_of_tags(trained, head):
    model = regard.load(trained("rnn", head))
    sentence = "the big red dog sees"
    paths, log_p = paths_of(model, sentence)
    [[output]] = model.outputs([sentence], scores=True)
    names = model.target.names
    permitted = [first_violation([names[tag] for tag in path], "IOB2") is None for path in paths]
    best = int(log_p.masked_fill(~torch.tensor(permitted), -torch.inf).argmax())
    assert output.tags == tuple(names[tag] for tag in paths[best])
    assert output.score == pytest.approx(float(log_p[best]), abs=1e-5)
    for word, tag in enumerate(paths[best]):
        share = sum(
            float(value.exp())
            for path, value in zip(paths, log_p, strict=True)
            if path[word] == tag
        )
        assert output.tag_probabilities[word] == pytest.approx(share, abs=1e-5)
    [score] = model.score([sentence], [" ".join(output.tags)])
    assert sum(score.log_probabilities) == pytest.approx(output.score, abs=1e-5)
    seen = regard.look(model, sentence)
    assert seen.output.tokens == output.tags
    shares = [float(torch.tensor(each).exp()) for each in seen.output.scores]
    assert shares == pytest.approx(output.tag_probabilities, abs=1e-5)


def test_no_sequence_breaks_the_scheme_unless_it_may(tmp_path):
    """A model that knows nothing would: after B-X comes I-Y as often as I-X."""
    table = recipe("rnn", "softmax", {"max_steps": 1, "warmup_steps": 0})
    data = splits(20)
    for rows in data.values():
        for row, (_, tags) in enumerate(rows):
            if row % 2:
                tags[:] = [tag.replace("NP", "THING") for tag in tags]
    sentences = [words for words, _ in noun_phrases(40, 5)]
    broken = {}
    for constrained in (True, False):
        table["model"]["head"] = {"kind": "tags", "constraints": constrained}
        model = regard.train(table, tmp_path / str(constrained), data=data)
        torch.manual_seed(0)
        torch.nn.init.normal_(model.model.head.proj.weight, std=20.0)
        outputs = model.outputs(sentences)
        broken[constrained] = sum(
            first_violation(output.tags, "IOB2") is not None for (output,) in outputs
        )
    assert broken[True] == 0
    assert broken[False] > 0


def test_label_smoothing_of_a_crf_moves_probability_to_all_sequences():
    torch.manual_seed(0)
    crf = LinearChainCRF(3)
    for weights in crf.parameters():
        torch.nn.init.normal_(weights)
    scores = torch.randn(1, 4, 3)
    gold = Tokens.of([[0, 2, 1, 1]])
    paths = torch.tensor(list(product(range(3), repeat=4)))
    mask = torch.ones(len(paths), 4, dtype=torch.bool)
    log_p = crf.log_likelihood(scores.expand(len(paths), -1, -1), paths, mask)
    target = torch.full_like(log_p, 0.2 / len(paths))
    target[(paths == gold.ids).all(1)] += 0.8
    found = crf_loss(crf, scores, gold, 0.2)
    torch.testing.assert_close(found.loss, -(target * log_p).sum())
    torch.testing.assert_close(found.nll, -log_p[(paths == gold.ids).all(1)].sum())


# Windows.


@pytest.mark.parametrize("limit", [1, 2, 5, 8, 30])
def test_windows_hold_all_words_and_fit(limit):
    sizes = [1, 3, 1, 1, 2, 6, 1, 1, 1, 4, 1, 1]
    spans = windows(sizes, limit)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(sizes)
    for (first, last), (following, _) in pairwise(spans):
        assert first < following <= last
    for first, last in spans:
        # A word that is longer than a window is alone in it.
        assert sum(sizes[first:last]) <= limit or last == first + 1


def test_a_sentence_without_words_has_one_window():
    assert windows([], 4) == [(0, 0)]


def test_each_word_is_of_the_window_in_which_it_has_more_context():
    spans = [(0, 6), (4, 10), (8, 12)]
    scores = [torch.full((last - first, 1), float(i)) for i, (first, last) in enumerate(spans)]
    assert [len(each) for each in scores] == [6, 6, 4]
    assert joined(spans, scores)[:, 0].tolist() == [0.0] * 5 + [1.0] * 4 + [2.0] * 3


@pytest.mark.parametrize("head", ["softmax", "crf"])
def test_a_sentence_longer_than_the_positions_is_tagged_whole(trained, head):
    model = regard.load(trained("learned positions", head))
    words = [word for sentence, _ in noun_phrases(12, 7) for word in sentence]
    [[output]] = model.outputs([words])
    assert len(output.tags) == len(output.words) == len(words)
    assert not output.truncated
    together = model.outputs([["a", "dog"], words, [*words, *words]])
    assert together[1][0].tags == output.tags
    assert together[0][0].tags == model.outputs(["a dog"])[0][0].tags


@pytest.mark.parametrize("encoder", ["pieces", "words", "with a learned token"])
def test_scores_in_windows_are_those_of_the_windows(encoder):
    """Also with a gradient: training reads sentences of any length."""
    torch.manual_seed(0)
    table = {
        "kind": "transformer",
        "dim": 16,
        "heads": 2,
        "layers": 1,
        "positions": "learned",
        "max_positions": 9,
    }
    if encoder == "words":
        table["input"] = {"kind": "words", "characters": "none"}
    table["cls_token"] = encoder == "with a learned token"
    model = regard.build(
        {"encoder": table, "head": {"kind": "tags"}, "source_vocab_size": 20, "num_labels": 3}
    )
    model.eval()

    def batch(*sentences):
        complete = [
            EncodedWords((*range(4, 4 + count), 2), tuple(range(count)), count, ("w",) * count)
            for count in sentences
        ]
        return collate_words(complete, characters=False)

    # Nine positions: for the end token and eight words; for nine words; for the learned one, the end and seven words.
    room = {"pieces": 8, "words": 9, "with a learned token": 7}[encoder]
    scores = word_scores(model, batch(12, 3))
    assert scores.shape == (2, 12, 3)
    torch.testing.assert_close(scores[1, :3], model(batch(3))[0], atol=1e-5, rtol=1e-4)
    spans = windows([1] * 12, room)
    assert len(spans) > 1
    ids = torch.arange(4, 16)
    parts = []
    for first, last in spans:
        count = last - first
        part = batch(count)
        parts.append(
            model(replace(part, ids=torch.cat((ids[first:last], torch.tensor([2])))[None]))
        )
    wanted = joined(spans, [part[0] for part in parts])
    torch.testing.assert_close(scores[0], wanted, atol=1e-5, rtol=1e-4)
    in_steps = word_scores(model, batch(12, 3), batch_tokens=10)
    torch.testing.assert_close(in_steps, scores, atol=1e-5, rtol=1e-4)
    scores[0, 11].sum().backward()
    assert all(weight.grad is not None for weight in model.head.parameters())


def test_a_look_at_a_sentence_longer_than_the_positions_is_refused(trained):
    model = regard.load(trained("learned positions"))
    with pytest.raises(InvalidArgument, match="text: wanted at most 34 tokens"):
        regard.look(model, " ".join(["dog"] * 40))


def test_a_look_at_given_tags_shows_their_probabilities(trained):
    model = regard.load(trained("rnn", "crf"))
    sentence = "the big red dog"
    paths, log_p = paths_of(model, sentence)
    names = model.target.names
    seen = regard.look(model, sentence, output="O O B-NP I-NP")
    assert seen.output.tokens == ("O", "O", "B-NP", "I-NP")
    for word, tag in enumerate(seen.output.tokens):
        same = torch.tensor([names[path[word]] == tag for path in paths])
        share = float(log_p[same].exp().sum())
        assert float(torch.tensor(seen.output.scores[word]).exp()) == pytest.approx(share, abs=1e-5)
    with pytest.raises(InvalidArgument, match="output: wanted 4 tags, one for each word; got 1"):
        regard.look(model, sentence, output="O")


# What a word becomes.


def test_every_word_has_a_tag_even_one_that_the_tokenizer_drops(trained):
    model = regard.load(trained())
    [[output]] = model.outputs([["dog", "\u0301", "\u200b", "cat"]])
    assert len(output.tags) == 4


def test_characters_tell_unknown_words_apart(trained):
    model = regard.load(trained("characters by an LSTM"))
    [[one], [other]] = model.outputs([["zebra"], ["gnu"]])
    assert one.tag_probabilities != other.tag_probabilities


def test_an_empty_line_has_no_tags(trained):
    outputs = regard.load(trained("words")).outputs(["", "a dog"])
    assert [output.tags for (output,) in outputs] == [(), outputs[1][0].tags]


@pytest.mark.parametrize(("encoder", "head"), MEMBERS)
def test_a_sentence_without_words_is_read_alone(trained, encoder, head):
    model = regard.load(trained(encoder, head))
    [[output]] = model.outputs([" "], scores=True)
    assert output.tags == ()
    assert output.score == pytest.approx(0.0, abs=1e-5)
    assert model.score([""], [""])[0].log_probabilities == ()
    assert regard.look(model, "").output.tokens == ()
    # A sentence without words in a batch with another has a vector, too.
    vector = model.embed([""])[0].tolist()
    assert vector == pytest.approx(model.embed(["", "a dog"])[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_scores_of_several_sentences_are_those_of_each(trained, head):
    model = regard.load(trained("rnn", head))
    tags = [" ".join("O" for _ in sentence.split()) for sentence in SENTENCES]
    together = model.score(SENTENCES, tags)
    for sentence, given, score in zip(SENTENCES, tags, together, strict=True):
        [alone] = model.score([sentence], [given])
        total = sum(score.log_probabilities)
        assert total == pytest.approx(sum(alone.log_probabilities), abs=1e-4)


# Refused.


def with_files(table):
    """A recipe whose data are files: complete, to be checked."""
    table["data"] |= {"train": "a.tsv", "valid": "a.tsv"}
    table["data"]["source"]["column"] = "words"
    table["data"]["target"]["column"] = "tags"


def test_a_row_with_more_tags_than_words_is_refused_by_its_place(tmp_path):
    data = splits(20)
    data["train"][7][1].append("O")
    words = len(data["train"][7][0])
    with pytest.raises(
        InvalidData, match=rf"(?s)8.*wanted {words} tags, one for each word.*{words + 1}"
    ):
        regard.train(recipe(), tmp_path / "run", data=data)


@pytest.mark.parametrize("key", ["r_drop", "distillation"])
def test_a_crf_has_no_loss_of_single_distributions(key):
    value = {"r_drop": 1.0, "distillation": {"teachers": ["t"], "weight": 0.5}}[key]
    table = recipe("rnn", "crf", {key: value})
    with_files(table)
    with pytest.raises(InvalidRecipe, match=rf"train\.{key}: wanted nothing with model\.head\.crf"):
        Recipe.of(table)


def test_characters_that_the_field_does_not_give_are_refused():
    table = recipe("words")
    with_files(table)
    table["data"]["source"]["characters"] = False
    with pytest.raises(InvalidRecipe, match=r"data\.source\.characters: wanted true"):
        Recipe.of(table)


def test_a_text_that_is_not_split_into_words_has_no_tags():
    table = recipe()
    with_files(table)
    table["data"]["source"]["kind"] = "text"
    with pytest.raises(InvalidRecipe, match=r"data\.source\.kind: wanted 'words'"):
        Recipe.of(table)
