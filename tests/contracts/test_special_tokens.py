"""Where special tokens lie in a vocabulary changes nothing: the same model in another order gives the same outputs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import regard
from regard.api.train import train
from regard.checkpoint import store
from regard.checkpoint.format import WEIGHTS, checkpoint_texts
from regard.core.sequence import Tokens
from regard.data.corpus import prepare
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.inference.predictor import Predictor
from regard.model.weights import weights_of
from regard.recipe.recipe import Recipe
from regard.tasks.predict_masked import mask_tokens
from support.permuted import (
    permutation,
    permuted,
    permuted_model,
    permuted_tokenizer,
    special_tokens,
)
from support.predictors import PARTS, language_model, translator
from support.search import STRATEGIES, model, sources

TEXTS = ["the cat sat", "", "a dog"]
DECODERS = {
    "transformer": (0.7, 5.0),
    "rnn": (2.0, 4.0),
    "conv": (0.7, 4.0),
}  # scale of the logits, bias of the end
SEARCHES = {
    "greedy": {"scores": True},
    "beam": {"beam_size": 3, "num_hypotheses": 2, "length_penalty": 0.6, "min_length": 3},
    "diverse": {
        "beam_size": 4,
        "beam_groups": 2,
        "diversity_penalty": 0.5,
        "no_repeat_ngram_size": 2,
    },
    "coverage": {"beam_size": 3, "coverage_penalty": 0.2, "prefixes": ["th", "", "a"]},
    "constrained": {"beam_size": 3, "required": [["cat"], ["dog"], []], "banned": ["e"]},
}


def mixed(decoder):
    """A translator of which some outputs end and others do not, with logits far enough apart that ties are rare."""
    predictor, (scale, bias) = translator("bytes", decoder), DECODERS[decoder]
    weight = scale * torch.randn(261, 16, generator=torch.Generator().manual_seed(4))
    project = predictor.model.decoder.project
    project.weight, project.bias.data[2] = nn.Parameter(weight), bias
    return predictor


def seen(outputs):
    return [
        [(one.tokens, one.finish_reason, len(one.token_ids)) for one in each] for each in outputs
    ]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("decoder", DECODERS)
def test_outputs_do_not_depend_on_the_ids_of_special_tokens(decoder, name):
    plain = mixed(decoder)
    other = permuted(plain)
    order = permutation(plain.target.size)
    assert other.target.special_tokens.end == 9
    assert other.target.encode("cat") != plain.target.encode("cat")
    options = {"max_length": 10, **SEARCHES[name]}
    wanted, got = plain.outputs(TEXTS, **options), other.outputs(TEXTS, **options)
    assert seen(got) == seen(wanted)
    assert name == "constrained" or any(
        one.finish_reason == "end" for each in wanted for one in each
    )
    for ours, theirs in zip(wanted, got, strict=True):
        for one, two in zip(ours, theirs, strict=True):
            assert [order[i] for i in one.token_ids] == list(two.token_ids)
            assert two.log_probabilities == pytest.approx(one.log_probabilities, abs=1e-5)
            assert two.score == pytest.approx(one.score, abs=1e-5)


@pytest.mark.parametrize("decoder", DECODERS)
def test_scores_looks_streams_and_alignments_do_not_depend_on_them(decoder):
    plain = mixed(decoder)
    other = permuted(plain)
    for one, two in zip(plain.score(TEXTS, TEXTS), other.score(TEXTS, TEXTS), strict=True):
        assert one.tokens == two.tokens
        assert two.log_probabilities == pytest.approx(one.log_probabilities, abs=1e-5)
    merges = translator("bpe", decoder)
    assert "".join(permuted(merges).stream("a dog")) == merges.predict(["a dog"])[0]
    one, two = regard.look(plain, "a dog", output="cat"), regard.look(other, "a dog", output="cat")
    for ours, theirs in zip(one.maps, two.maps, strict=True):
        torch.testing.assert_close(theirs.weights(), ours.weights(), atol=1e-5, rtol=1e-4)
    links = [
        [each.links for each in regard.align(m, ["the cat"], ["a dog sat"])] for m in (plain, other)
    ]
    assert links[0] == links[1]


@pytest.mark.parametrize("running", [False, True], ids=["lines", "running text"])
def test_language_models_do_not_depend_on_them(running):
    plain = language_model("bytes", **({"context_length": 16} if running else {}))
    other = permuted(plain)
    if running:
        other = replace(other, target=other.target.for_running_text())
    for options in ({}, {"beam_size": 2}):
        assert other.predict(TEXTS, max_length=6, **options) == plain.predict(
            TEXTS, max_length=6, **options
        )


@pytest.mark.parametrize("options", STRATEGIES, ids=["greedy", "beam", "sample"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_forced_prefix_costs_nothing_and_counts_as_length(decoder, options):
    made, rows = model(decoder), sources()
    config = DecodeConfig(max_length=6, length_penalty=0.0, **options)

    def found(special, prefix, longest):
        task = SearchTask(
            made,
            Tokens.of,
            replace(config, max_length=longest),
            special_tokens=special,
            scored=True,
        )
        hits = dict(search(task, [GenerationRequest(row, len(row), prefix) for row in rows]))
        return [hits[i] for i in range(len(rows))]

    forced, given = replace(DEFAULT_TOKENS, target_prefix=(6, 8)), (6, 8)
    for ours, theirs in zip(found(forced, (), 6), found(DEFAULT_TOKENS, given, 4), strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        for one, two in zip(ours, theirs, strict=True):
            assert one.tokens[:2] == (6, 8)
            assert one.log_probabilities[:2] == (0.0, 0.0)
            assert one.log_probabilities[2:] == pytest.approx(two.log_probabilities[2:], abs=1e-5)
            assert one.score == pytest.approx(sum(two.log_probabilities[2:]), abs=1e-5)
    made.decoder.project.bias.data[2] = -1e9  # no output ends before its limit
    lengths = [len(one.log_probabilities) for each in found(forced, (5,), 6) for one in each]
    assert set(lengths) == {7}  # the user's own prefix comes in addition


def test_the_length_penalty_counts_a_forced_prefix():
    made, rows = model("transformer"), sources()
    special = replace(DEFAULT_TOKENS, target_prefix=(6, 8))
    config = DecodeConfig(max_length=6, beam_size=3, length_penalty=1.0)
    for _, hypotheses in search(
        SearchTask(made, Tokens.of, config, special_tokens=special),
        [GenerationRequest(row, len(row)) for row in rows],
    ):
        best = hypotheses[0]
        assert best.score == pytest.approx(
            sum(best.log_probabilities) / len(best.log_probabilities), abs=1e-5
        )


def test_texts_are_surrounded_by_the_tokens_of_their_vocabulary(tmp_path):
    plain = translator("bytes")
    around = replace(
        DEFAULT_TOKENS, source_prefix=(10, 3), source_suffix=(2, 11), target_prefix=(12,)
    )
    words = Tokenizer(plain.target._inner, around)
    predictor = replace(plain, sources=(words,), target=words)
    ids, batch = predictor.encode("cat")
    assert batch.row(0) == [10, 3, *ids, 2, 11]
    assert regard.look(predictor, "cat", output="dog").output.tokens[0] == words.pieces([12])[0]
    for part, text in (("source", "cat\n"), ("target", "dog\n")):
        (tmp_path / part).write_text(text)
    files = (str(tmp_path / "source"), str(tmp_path / "target"))
    data = replace(plain.recipe.data, synthetic=None, train=files)
    made = prepare(data, tmp_path, vocabularies=((words,), words))
    assert made.target.special_tokens == around
    source, target = made.train.row(0)
    assert source.tolist() == [10, 3, *words.encode("cat"), 2, 11]
    assert target.tolist() == [1, 12, *words.encode("dog"), 2]
    other = prepare(data, tmp_path, vocabularies=((plain.target,), plain.target))
    assert other.key != made.key  # the same tokens, without those around them


def test_a_text_without_a_start_token_begins_with_its_own_first_token():
    plain = language_model("bytes")
    words = Tokenizer(
        plain.target._inner, replace(DEFAULT_TOKENS, start=None, unknown=None, source_suffix=())
    )
    predictor = replace(plain, target=words)
    decoder = plain.model.decoder.requires_grad_(False)
    for text in ("the cat", "a"):
        ids = words.encode(text)
        for _ in range(6):
            logits = decoder(torch.tensor([ids]), None)[0, -1]
            logits[[0, 1, 4]] = -torch.inf
            ids.append(int(logits.argmax()))
        (output,) = predictor.outputs([text], max_length=6)[0]
        wanted = ids[len(words.encode(text)) :]
        assert list(output.token_ids) == wanted[: wanted.index(2) + 1] if 2 in wanted else wanted
    (score,) = predictor.score(["cat"])
    log_p = decoder(torch.tensor([words.encode("cat")]), None)[0].log_softmax(-1)
    assert score.log_probabilities == pytest.approx(
        [float(log_p[n, i]) for n, i in enumerate([*words.encode("cat")[1:], 2])], abs=1e-5
    )
    assert len(regard.look(predictor, "cat", output="").output.tokens) == 3
    with pytest.raises(regard.InvalidArgument, match="has no token that begins one"):
        predictor.predict([""])


def test_special_tokens_are_never_masked_nor_drawn():
    special = special_tokens(permutation(30))
    ids = torch.randint(0, 30, (64, 40), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    inputs, chosen = mask_tokens(Tokens(ids, torch.full((64,), 40)), 0.5, 30, special)
    assert not set(ids[chosen].tolist()) & special.ids
    changed = inputs.ids[chosen & (inputs.ids != ids)].tolist()
    assert changed.count(special.mask) > 300
    assert set(changed) & special.ids == {special.mask}


@pytest.mark.parametrize("size", [5, 6, 9])
def test_special_tokens_beyond_a_vocabulary_need_no_row_in_it(size):
    special = SpecialTokens(pad=0, unknown=1, start=2, end=3, mask=5)
    tokens = Tokens(torch.tensor([[2, 4, 4, 3]]), torch.tensor([4]))
    chosen = mask_tokens(tokens, 0.0, size, special)[1]
    assert chosen.sum() == 1
    assert tokens.ids[chosen].tolist() == [4]


def checkpoint(folder, predictor):
    table = predictor.recipe.with_sizes(predictor.sources, predictor.target)
    texts = checkpoint_texts(
        predictor.recipe.as_dict(), (predictor.sources, predictor.target), table, "0.1.0"
    )
    store.write(folder, texts, {WEIGHTS: weights_of(predictor.model)})
    return folder


def imported(size=None):
    """A predictor such as an imported model's: a foreign tokenizer, no data, more rows than tokens."""
    plain = translator("bytes")
    order = permutation(plain.target.size)
    inner = permuted_tokenizer(plain.target, order)._inner
    words = Tokenizer(inner, special_tokens(order), size)
    table = {"encoder": PARTS["rnn"], "decoder": PARTS["transformer"]}
    torch.manual_seed(3)
    made = regard.build({**table, "vocab_size": words.size}).eval()
    pretrained = {"tokenizer": "pretrained"}
    recipe = Recipe.of({"data": {"source": pretrained, "target": pretrained}, "model": table})
    return Predictor(made, recipe, (words,), words)


def test_a_checkpoint_keeps_them(tmp_path):
    predictor = imported(300)
    again = regard.load(checkpoint(tmp_path / "model", predictor))
    assert again.target.special_tokens == predictor.target.special_tokens
    assert again.target.size == 300
    assert again.target.tokens()[299] == "<299>"
    assert again.predict(TEXTS, max_length=5) == predictor.predict(TEXTS, max_length=5)


def test_training_an_imported_model_names_what_is_missing(tmp_path):
    folder = checkpoint(tmp_path / "model", imported())
    recipe = regard.load(folder).recipe
    with pytest.raises(regard.InvalidRecipe) as error:
        train(recipe, tmp_path / "run")
    assert {problem.key for problem in error.value.problems} == {
        "data.train", "data.source.tokenizer", "data.target.tokenizer",
    }  # fmt: skip
    tuned = {**recipe.as_dict(), "paths": {}}
    tuned["train"] |= {
        "init_from": str(folder),
        "max_steps": 1,
        "warmup_steps": 1,
        "batch_tokens": 200,
        "device": "cpu",
    }
    made = train(
        tuned, tmp_path / "run", data={"train": [("a cat", "a dog")] * 8}, cache=tmp_path / "cache"
    )
    assert made.target.special_tokens == regard.load(folder).target.special_tokens


def test_a_permuted_model_computes_the_same():
    """So that the tests above compare models that differ in nothing else."""
    plain = translator("bytes")
    order = permutation(plain.target.size)
    other = permuted_model(plain.model, order)
    source, target = [[20, 30, 2]], [[1, 40, 50]]
    wanted = plain.model(Tokens.of(source), torch.tensor(target))
    moved = [[[order[i] for i in row] for row in side] for side in (source, target)]
    got = other(Tokens.of(moved[0]), torch.tensor(moved[1]))
    torch.testing.assert_close(got[..., order], wanted, atol=1e-6, rtol=1e-5)


WRONG = {
    "no table": (3, "no table"),
    "a key too few": ({"pad": 0}, "other keys"),
    "an id beyond the vocabulary": (
        DEFAULT_TOKENS.as_dict() | {"end": 300},
        "special_tokens.end = 300",
    ),
    "a negative id": (DEFAULT_TOKENS.as_dict() | {"pad": -1}, "special_tokens.pad = -1"),
    "a text": (DEFAULT_TOKENS.as_dict() | {"start": "1"}, "special_tokens.start = '1'"),
    "a bool": (DEFAULT_TOKENS.as_dict() | {"pad": True}, "special_tokens.pad = True"),
    "none where one is needed": (
        DEFAULT_TOKENS.as_dict() | {"end": None},
        "special_tokens.end = None",
    ),
    "no list": (
        DEFAULT_TOKENS.as_dict() | {"source_suffix": 2},
        "source_suffix = 2, which is no list",
    ),
    "a list of texts": (
        DEFAULT_TOKENS.as_dict() | {"target_prefix": ["a"]},
        "special_tokens.target_prefix",
    ),
    "a long list": (
        DEFAULT_TOKENS.as_dict() | {"source_prefix": [5] * 200},
        "source_prefix of 200 tokens",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_special_tokens_are_refused(name):
    table, message = WRONG[name]
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        SpecialTokens.of(table, 261)
