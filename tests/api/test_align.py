"""Word alignments from attention, and their evaluation."""

import json
import random
from pathlib import Path

import pytest
import torch

import regard
from golden.write import HERE
from regard.api.align import align, choose, with_markup
from regard.api.heads import best_agreements
from regard.data.special_tokens import END
from regard.data.tokenizer import Tokenizer
from regard.evaluation.alignment_error import Agreement, read_links
from regard.interpret.alignment import STEPS, AlignmentHeads
from support.command_line import command
from support.predictors import classifier, language_model, tokenizer, translator

GOLDEN = HERE / "0.1.0"
KINDS = ("bpe", "unigram", "characters", "bytes", "words")
SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu"]


def reversals(count: int, seed: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    said = [[chance.choice(SYLLABLES) for _ in range(chance.randint(2, 5))] for _ in range(count)]
    return [(" ".join(words), " ".join(words[::-1])) for words in said]


@pytest.fixture(scope="module", params=["rnn", "conv"])
def reverser(request, tmp_path_factory) -> regard.Predictor:
    """A model that has learned to reverse the words of a text."""
    place = tmp_path_factory.mktemp("reverse")
    words, steps = {"tokenizer": "words"}, {"rnn": 150, "conv": 120}[request.param]
    conv, rnn = {"kind": "conv", "dim": 24, "dilations": [1, 2]}, {"kind": "rnn", "dim": 24}
    parts = {"rnn": (rnn, {**rnn, "attention": "luong"}), "conv": (conv, conv)}[request.param]
    train = {
        "max_steps": steps,
        "warmup_steps": 10,
        "batch_tokens": 256,
        "learning_rate": 1.5e-2,
        "validate_every": steps,
        "device": "cpu",
    }
    model = dict(zip(("encoder", "decoder"), parts, strict=True))
    recipe = {"data": {"source": words, "target": words}, "model": model, "train": train}
    return regard.train(recipe, place / "run", data={"train": reversals(1000, 1)}, cache=place)


def test_a_reversed_text_is_aligned_crosswise(reverser):
    pairs = reversals(30, 2)
    for targets in ([target for _, target in pairs], None):
        right = words = 0
        for each in regard.align(reverser, [source for source, _ in pairs], targets):
            last = len(each.source_words) - 1
            right += sum(origin == last - word for word, origin in enumerate(each.origins))
            words += len(each.output_words)
        assert right / words > 0.95


def test_tags_follow_their_words(reverser):
    (found,) = with_markup(reverser, ["ba <b>ce di</b> <i>fo</i>"])
    assert found == "<i>fo</i> <b>di ce</b> ba"
    with pytest.raises(ValueError, match="line 2: wanted <b> to be closed first"):
        list(with_markup(reverser, ["ba", "<b>ce"]))


def test_the_heads_that_align_best_are_chosen(tmp_path):
    """Against every choice, judged by itself."""
    predictor = translator()
    pairs = [
        ("the cat sat", "a dog sat"),
        ("", ""),
        ("a red car and", "the mat,"),
        ("on the mat", "dogma words"),
    ]
    wanted = AlignmentHeads(2, 1, "input")
    links = [str(each) for each in align(predictor, *zip(*pairs, strict=True), heads=wanted)]
    files = [tmp_path / name for name in ("s", "t", "l")]
    for path, lines in zip(files, [*zip(*pairs, strict=True), links], strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    best, agreement = choose(predictor, files)
    assert agreement.error_rate == 0
    assert str(best) == "--head 2.1 --step input"
    rates = {}
    for layer, head in [(None, None), (1, None), (2, None), (1, 0), (1, 1), (2, 0), (2, 1)]:
        for step in STEPS:
            rates[layer, head, step] = Agreement()
            for number, each in enumerate(
                align(predictor, *zip(*pairs, strict=True), heads=AlignmentHeads(layer, head, step))
            ):
                rates[layer, head, step].add(
                    each.links, read_links(links[number], each.sizes, "l", number + 1)
                )
    assert min(rates, key=lambda one: rates[one].error_rate) == (2, 1, "input")
    assert sum(rate.error_rate == 0 for rate in rates.values()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_linked_with_the_word_they_attend_to_most(kind):
    predictor = translator(kind)
    source, target = "the  cat\tsat on dogma ", " a red  catalogue"
    (found,) = align(predictor, [source], [target], heads=AlignmentHeads(2, 1))
    assert (found.source_words, found.output_words) == (
        tuple(source.split()),
        tuple(target.split()),
    )
    (read, said) = (predictor.source.encode(text) for text in (source, target))
    weights = regard.look(predictor, source, output=target)["decoder 2 cross"].weights(heads=[1])[0]
    for word, origin in enumerate(found.origins):
        rows = [i for i, place in enumerate(_places(predictor.target, said)) if place == word]
        sums = [
            sum(
                float(weights[i, k])
                for i in rows
                for k, place in enumerate(_places(predictor.source, read))
                if place == n
            )
            for n in range(5)
        ]
        assert origin == sums.index(max(sums))


def _places(vocabulary: Tokenizer, ids: list[int]) -> list[int | None]:
    """By how many words there are up to each token and with it."""
    if vocabulary.encode("§ §")[0] == vocabulary.encode("zzz zzz")[0]:  # whole words, known or not
        return list(range(len(ids)))
    found = []
    for end in range(1, len(ids) + 1):
        text = vocabulary.decode(ids[:end])
        found.append(
            None if not vocabulary.decode(ids[end - 1 : end]).strip() else len(text.split()) - 1
        )
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_know_the_word_of_the_text_they_are_of(kind):
    vocabulary = tokenizer(kind)
    text = "the cat,  sat\n\ton ▁mats "
    ids = [*vocabulary.encode(text), END]
    spans, word_indices = vocabulary.spans(text), vocabulary.word_indices(ids)
    assert [text[a:b] for a, b in spans] == text.split()
    assert word_indices[-1] is None
    if kind != "words":
        for word, (start, end) in enumerate(spans):
            tokens = [i for i, place in zip(ids, word_indices, strict=True) if place == word]
            assert vocabulary.decode(tokens).strip() == text[start:end]
    else:
        # `decode` shows an unknown word as <unk>, which is a word of the text too.
        assert vocabulary.word_indices(vocabulary.encode("the zzz cat")) == [0, 1, 2]


def test_the_error_rate_is_that_of_a_worked_example():
    """Three links are found; of these one is sure, one is possible, one is wrong; two sure ones were wanted."""
    reference = read_links("0-0 1-2 1?1", (3, 3), "x", 1)
    agreement = Agreement()
    agreement.add([(0, 0), (1, 1), (2, 0)], reference)
    assert (agreement.precision, agreement.recall) == (pytest.approx(2 / 3), pytest.approx(1 / 2))
    assert agreement.error_rate == pytest.approx(1 - (1 + 2) / (3 + 2))
    agreement.add([(0, 0)], read_links("0-0", (1, 1), "x", 2))
    assert agreement.error_rate == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert Agreement().error_rate == 0
    for told in ("0-3", "3-0", "0:1", "0-", "-1-0", "0_1"):
        with pytest.raises(
            ValueError, match=r"x, line 7: wanted links as 0-0 and 1\?2 between 3 words and 3; got"
        ):
            read_links(f"0-0 {told}", (3, 3), "x", 7)


def test_the_command_aligns_line_for_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s").write_text("the cat sat\n\na dog\n")
    Path("t").write_text("THE CAT\n\nA DOG HA\n")
    done = command(
        "align", GOLDEN / "transformer", "--sources", "s", "--targets", "t", "--head", "1.1"
    )
    assert done.returncode == 0, done.stderr
    model = regard.load(GOLDEN / "transformer")
    found = list(
        align(
            model,
            ["the cat sat", "", "a dog"],
            ["THE CAT", "", "A DOG HA"],
            heads=AlignmentHeads(1, 1),
        )
    )
    assert done.stdout.splitlines() == [str(each) for each in found]
    assert (done.stdout.splitlines()[1], len(found[0].links), len(found[2].links)) == ("", 2, 3)
    Path("l").write_text(done.stdout)
    told = command("align", GOLDEN / "transformer", "--sources", "s", "--targets", "t", "--choose", "s", "t", "l",
                   "--references", "l", "--json")  # fmt: skip
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [line["links"] for line in lines[:3]] == [
        [list(link) for link in each.links] for each in found
    ]
    assert lines[3]["alignment_error_rate"] == 0
    assert "alignment error rate 0.0%, precision 100.0%, recall 100.0% on l" in told.stderr
    own = command("align", GOLDEN / "rnn", "--sources", "s", "--set", "max_length=4", "--json")
    first, _, third = regard.load(GOLDEN / "rnn").predict(
        ["the cat sat", "a", "a dog"], max_length=4
    )
    assert [json.loads(line)["output"] for line in own.stdout.splitlines()] == [first, "", third]


REFUSED = {
    "language model": (("language-model",), "model: wanted a model from text to text"),
    "classifier": (("classifier",), "model: wanted a model from text to text"),
    "head": (("transformer", "--head", "1.2"), r"head: wanted one of 1.0 to 1.1; got --head 1.2"),
    "layer": (("rnn", "--head", "2"), r"head: wanted one of 1.0 to 1.0; got --head 2"),
    "no head": (("rnn", "--head", "x"), "head: wanted a layer, or a layer and a head"),
    "step": (("rnn", "--step", "hears"), "step: wanted output or input; got 'hears'"),
    "too many": (
        ("rnn", "--choose", "s", "s", "s", "--head", "1"),
        "head: wanted none beside --choose",
    ),
    "fewer targets": (
        ("rnn", "--targets", "one"),
        "line 2: wanted a source and a target; got no target",
    ),
    "fewer links": (
        ("rnn", "--targets", "s", "--references", "one"),
        "one, line 2: wanted a line for each source",
    ),
    "links": (("rnn", "--targets", "s", "--references", "s"), "s, line 1: wanted links as"),
    "nothing sure": (("rnn", "--choose", "s", "s", "none"), "choose: wanted links that are sure"),
    "searching": (
        ("rnn", "--targets", "s", "--beam", "3"),
        "beam_size: wanted nothing where no output is searched",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, text in {"s": "a b\nb a\n", "one": "0-0\n", "none": "0?0\n\n"}.items():
        Path(path).write_text(text)
    (model, *arguments), message = REFUSED[name]
    done = command("align", GOLDEN / model, "--sources", "s", *arguments)
    assert done.returncode == 2
    with pytest.raises(ValueError, match=message):
        raise ValueError(done.stderr)


def test_a_text_that_is_too_long_is_named_by_its_line():
    with pytest.raises(ValueError, match="line 2: wanted at most 1000 tokens; got 1500"):
        list(align(translator("words"), ["the cat", "cat " * 1500], ["a", "b"]))
    _, (found) = align(translator("words"), ["the cat", "cat " * 1500], ["a", "b"], truncate=True)
    assert len(found.source_words) == 1500
    assert found.origins[0] < 1000
    (whole,) = align(translator("words"), ["cat " * 1500], ["a"], max_source_length=2000)
    assert whole.sizes == (1500, 1)


def test_nothing_is_searched_where_targets_are_given():
    with pytest.raises(ValueError, match="beam_size: wanted nothing where no output is searched"):
        next(align(translator(), ["a"], ["b"], beam_size=3))
    with pytest.raises(ValueError, match="num_hypotheses: wanted 1; got 2"):
        next(align(translator(), ["a"], beam_size=3, num_hypotheses=2))


def test_models_that_align_nothing_are_refused():
    for model in (language_model(), classifier()):
        with pytest.raises(ValueError, match="model: wanted a model from text to text"):
            next(align(model, ["a"]))
        with pytest.raises(ValueError, match="model: wanted a model from text to text"):
            next(with_markup(model, ["a"]))


def test_an_output_that_never_ends_is_aligned():
    """Its last word is never an input: with the step that reads a token, it has no link."""
    predictor = translator("words", "conv")
    with torch.no_grad():
        predictor.model.decoder.project.bias[10] = 100.0
    (said,) = align(predictor, ["the cat"], max_length=3)
    (read,) = align(predictor, ["the cat"], max_length=3, heads=AlignmentHeads(step="input"))
    assert None not in said.origins
    assert read.origins[-1] is None
    assert len(read.links) == 2


def test_the_command_carries_markup(tmp_path):
    (tmp_path / "in").write_text("a <b>cat</b>\n\n")
    done = command("predict", GOLDEN / "rnn", tmp_path / "in", "--markup", "--max-length", 4)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines == [
        *with_markup(regard.load(GOLDEN / "rnn"), ["a <b>cat</b>", ""], max_length=4),
        "",
    ]
    assert "<b>" in lines[0]
    both = command("predict", GOLDEN / "rnn", tmp_path / "in", "--markup", "--scores")
    assert (both.returncode, "scores: wanted nothing beside --markup" in both.stderr) == (2, True)


def test_the_agreement_of_a_head_is_that_of_its_better_step():
    """Means of heads have none, nor have heads where no link is sure."""
    good, bad, none = Agreement(4, 4, 3, 3), Agreement(4, 4, 1, 2), Agreement(4, 0, 0, 2)
    agreements = {
        AlignmentHeads(1, 1, "output"): bad,
        AlignmentHeads(1, 1, "input"): good,
        AlignmentHeads(2, 3, "output"): bad,
        AlignmentHeads(2, 1, "output"): none,
        AlignmentHeads(2, None, "output"): good,
        AlignmentHeads(None, None, "input"): good,
    }
    found = best_agreements(agreements)
    assert found == {
        ("decoder 1 cross", 1): 1 - good.error_rate,
        ("decoder 2 cross", 3): 1 - bad.error_rate,
    }


def test_a_target_that_is_too_long_is_named_by_its_line_and_loses_no_other_alignment():
    model = translator("words")
    sources = ["the cat", "the cat", "a dog"]
    targets = ["a", "cat " * 1500, "c"]
    with pytest.raises(ValueError, match=r"line 2: target: wanted at most 1000 tokens; got 150\d"):
        list(align(model, sources, targets, truncate=True))
    first, refused, last = align(model, sources, targets, skip_too_long=True)
    assert [first, last] == list(align(model, [sources[0], sources[2]], ["a", "c"]))
    assert refused.refused.startswith("line 2: target: wanted at most 1000 tokens")
    (whole,) = align(model, ["the cat"], ["cat " * 1500], max_source_length=2000)
    assert whole.sizes == (2, 1500)


def test_a_text_that_is_too_long_loses_no_other_alignment():
    model = translator("words")
    texts = ["the cat", "cat " * 1500, "a dog"]
    given = ["a", "b", "c"]
    for targets in (given, None):
        options = {"targets": targets} if targets else {"max_length": 4}
        others = None if targets is None else [targets[0], targets[2]]
        wanted = align(model, ["the cat", "a dog"], **(options | {"targets": others}))
        first, refused, last = align(model, texts, skip_too_long=True, **options)
        assert [first, last] == list(wanted)
        assert refused.links == []
        assert refused.output == ("b" if targets else "")
        assert refused.refused.startswith("line 2: wanted at most 1000 tokens; got 1500")
        assert first.refused is None
    marked = ["<b>the</b> cat", "<b>cat</b> " * 1500, "a <i>dog</i>"]
    found = list(with_markup(model, marked, skip_too_long=True, max_length=4))
    assert found == [
        *with_markup(model, marked[:1], max_length=4),
        "",
        *with_markup(model, marked[2:], max_length=4),
    ]


TOO_LONG = (
    "regard: line 2: wanted at most 9 tokens; got 20. Split it; truncate=True (--truncate) drops its "
    "end; or raise decode.max_source_length."
)


@pytest.mark.parametrize("given", [False, True])
def test_the_command_aligns_the_lines_beside_one_that_is_too_long(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s").write_text(f"the cat\n{'y' * 20}\na dog\n")
    Path("short").write_text("the cat\n\na dog\n")
    Path("t").write_text("THE CAT\nYY\nA DOG\n")
    Path("links").write_text("0-0 1-1\n0-0\n0-0 1-1\n")
    options = ("--targets", "t") if given else ("--set", "max_length=4")
    arguments = ("align", GOLDEN / "rnn", *options, "--set", "max_source_length=9")
    done = command(*arguments, "--sources", "s")
    wanted = command(*arguments, "--sources", "short")
    assert (done.returncode, wanted.returncode) == (2, 0), (done.stderr, wanted.stderr)
    assert done.stdout == wanted.stdout
    assert done.stdout.splitlines()[1] == ""
    last = "regard: 1 line was too long and has no links"
    assert done.stderr.splitlines() == [TOO_LONG, last]
    told = command(*arguments, "--sources", "s", "--json")
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [line.get("error") for line in lines] == [None, TOO_LONG.removeprefix("regard: "), None]
    if given:
        counted = command(*arguments, "--sources", "s", "--references", "links", "--json")
        assert counted.returncode == 2
        *_, agreement = (json.loads(line) for line in counted.stdout.splitlines())
        # A reference link of the line that has no links is missed.
        assert agreement["recall"] <= 4 / 5


def test_the_command_carries_the_markup_of_lines_beside_one_that_is_too_long(tmp_path):
    (tmp_path / "in").write_text(f"a <b>cat</b>\n<b>{'y' * 20}</b>\na <i>dog</i>\n")
    (tmp_path / "short").write_text("a <b>cat</b>\n\na <i>dog</i>\n")
    arguments = ("predict", GOLDEN / "rnn", "--markup", "--set", "max_source_length=9")
    done = command(*arguments, tmp_path / "in")
    wanted = command(*arguments, tmp_path / "short")
    assert (done.returncode, wanted.returncode) == (2, 0)
    assert done.stdout == wanted.stdout
    assert "<i>" in done.stdout
    told = [line for line in done.stderr.splitlines() if "too long" in line or "wanted" in line]
    last = "regard: 1 line was too long and has an empty output"
    assert told == [TOO_LONG, last]
