"""Transcription by CTC: what differs from other tasks, which tests/tasks/test_contracts.py tests alike."""

import copy
import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe
from regard.core.sequence import Tokens, Vectors
from regard.data.batching import Batch
from regard.data.columns import Column
from regard.data.corpus import Corpus
from regard.data.special_tokens import DEFAULT_TOKENS
from regard.generation import ctc
from regard.model.build import parse_model
from regard.recipe.recipe import Recipe
from regard.serving.http.schemas import OPTIONS
from regard.tasks.ctc_loss import PlainTargets, ctc_losses, first_too_long
from regard.tasks.objective import Objective
from support.tasks import BY_WORDS, CASES, ENCODER, SOUND_INPUT, TRAIN, as_json, sounds, texts

LATENTS = {
    "kind": "perceiver",
    "dim": 16,
    "heads": 2,
    "queries": 3,
    "layers": 1,
    "input": SOUND_INPUT,
}
START = DEFAULT_TOKENS.start
END = DEFAULT_TOKENS.end


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A recognizer that has learned its sounds, and its run."""
    folder = tmp_path_factory.mktemp("run") / "run"
    train = {**TRAIN, "max_steps": 90, "validate_every": 45, "monitor": "error_rate"}
    case = CASES["transcribe, vectors"]
    splits = {"train": sounds(200, 0), "valid": sounds(30, 1)}
    return regard.train({**case.recipe(), "train": train}, folder, data=splits), folder


def model_with_ctc(**tables):
    torch.manual_seed(0)
    encoder = {**ENCODER, "input": SOUND_INPUT}
    table = {"encoder": encoder, "head": "ctc", "vocab_size": 9, "source_dim": 3, **tables}
    return regard.build(table)


def targets_of(*rows):
    return Tokens.of([[START, *row, END] for row in rows])


def test_it_learns_to_transcribe(trained):
    model, _ = trained
    rows = sounds(30, 2)
    found = model.predict(as_json(rows), beam_size=1)
    right = sum(text == target for text, (_, target) in zip(found, rows, strict=True))
    assert right >= 24


def test_the_loss_is_the_sum_over_tokens_of_ctc_loss_alone():
    model = model_with_ctc().eval()
    rows = [torch.randn(length, 3) for length in (12, 7, 9)]
    gold = ([5, 6, 6], [7], [])
    batch = Batch(Vectors.of(rows), targets_of(*gold), 7, torch.arange(3))
    found = Objective()(model, batch)
    expected = 0.0
    for row, tokens in zip(rows, gold, strict=True):
        frames = model(Vectors.of([row]))[0].log_softmax(-1)
        scores = ctc.token_log_probabilities(frames, torch.tensor(tokens, dtype=torch.int64), 9)
        expected -= float(scores.detach().sum())
    assert float(found.nll) == pytest.approx(expected, rel=1e-5)
    assert found.predictions == 4


def test_the_padding_of_a_batch_changes_neither_loss_nor_gradient():
    gradients = []
    for together in (True, False):
        model = model_with_ctc().eval()
        torch.manual_seed(1)
        rows = [torch.randn(length, 3) for length in (12, 4)]
        gold = ([5, 6], [7])
        groups = [slice(0, 2)] if together else [slice(0, 1), slice(1, 2)]
        for group in groups:
            batch = Batch(
                Vectors.of(rows[group]), targets_of(*gold[group]), 3, torch.arange(2)[group]
            )
            Objective()(model, batch).loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("tokens", "needed"), [([5, 6, 7], 3), ([5, 5, 5], 5), ([5, 5, 6], 4)])
def test_a_target_that_has_no_path_is_refused_with_its_number(tokens, needed):
    logits = torch.randn(1, 4, 10)
    targets = PlainTargets.of(targets_of(tokens), DEFAULT_TOKENS)
    assert targets.needed.tolist() == [needed]
    if needed <= 4:
        assert ctc_losses(logits, targets, torch.tensor([4]), 9).isfinite().all()
        return
    with pytest.raises(InvalidArgument, match=r"example 8: wanted a target that fits into the 4"):
        ctc_losses(logits, targets, torch.tensor([4]), 9, rows=[7])


def test_training_on_a_target_that_is_too_long_is_refused(tmp_path):
    case = CASES["transcribe, vectors"]
    rows = [*sounds(20, 0), ([[0.0, 0.0, 0.0]] * 4, "1 1 1")]
    message = r"^data\['train'\], row 21: wanted a target that fits into the 2 .* needs 5"
    with pytest.raises(InvalidArgument, match=message):
        regard.train(case.recipe(), tmp_path / "run", data={"train": rows}, cache=tmp_path)


@pytest.mark.parametrize("with_decoder", [False, True])
def test_a_target_that_is_too_long_is_found_in_its_file(tmp_path, with_decoder):
    recipe = CASES["transcribe, vectors"].recipe()
    if with_decoder:
        decoder = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 16}
        recipe["model"] = recipe["model"] | {"decoder": decoder}
    rows = [{"source": vectors, "target": text} for vectors, text in sounds(5, 0)]
    rows.append({"source": [[0.0, 0.0, 0.0]] * 6, "target": "1 2 1"})  # 3 positions
    table = tmp_path / "t.jsonl"
    recipe["data"] = copy.deepcopy(recipe["data"]) | {"train": str(table)}
    for name in ("source", "target"):
        recipe["data"][name]["column"] = name

    def prepared(extra):
        lines = [json.dumps(row) for row in [*rows, *extra]]
        table.write_text("\n".join(lines) + "\n")
        return regard.prepare(Recipe.of(recipe), tmp_path / "cache")

    assert len(prepared([]).train) == 6
    with pytest.raises(InvalidData, match=r"t.jsonl, line 7: wanted a target.* needs 4"):
        # As many tokens as positions, but for the blank between two that are equal.
        prepared([rows[-1] | {"target": "1 1 2"}])


def test_the_early_check_finds_what_the_loss_refuses():
    drawn = torch.Generator().manual_seed(3)
    shortened = {"kind": "vectors", "kernel": 3, "stride": 2, "layers": 2}
    model = parse_model({"encoder": {**ENCODER, "input": shortened}, "head": "ctc"}, sized=False)
    refused = 0
    for _ in range(200):
        frames, length = torch.randint(1, 14, (2,), generator=drawn).tolist()
        ids = torch.randint(5, 7, (length,), generator=drawn).tolist()
        corpus = Corpus(Lengths([frames]), Lengths([length + 2], [[START, *ids, END]]))
        found = first_too_long(corpus, model, DEFAULT_TOKENS)
        states = (((frames + 1) // 2) + 1) // 2
        targets = PlainTargets.of(targets_of(ids), DEFAULT_TOKENS)
        is_long = bool(targets.needed[0] > states)
        assert (found is not None) == is_long
        refused += is_long
    assert 50 < refused < 190


@dataclass(frozen=True)
class Lengths(Column):
    """A column of which only lengths and rows are known."""

    each: list[int]
    rows: list[list[int]] = ()

    def __len__(self):
        return len(self.each)

    def lengths(self, indices):
        return np.array(self.each)[indices]

    def row(self, i):
        return self.rows[i]

    def gather(self, indices):
        raise NotImplementedError


def test_a_score_is_a_log_probability_and_sums_to_one_over_texts(trained):
    model, _ = trained
    source = as_json(sounds(1, 5))[0]
    (outputs,) = model.outputs([source], beam_size=6, num_hypotheses=6, scores=True)
    assert len({each.text for each in outputs}) == 6
    scored = model.score([source] * 6, [each.text for each in outputs])
    for output, score in zip(outputs, scored, strict=True):
        assert len(score.tokens) == len(score.log_probabilities)
        assert score.log_probability == pytest.approx(output.log_probability, abs=1e-4)
    assert 0.5 < sum(math.exp(each.log_probability) for each in outputs) <= 1.0 + 1e-6


def test_scoring_a_text_that_is_too_long_is_refused(trained):
    model, _ = trained
    with pytest.raises(InvalidArgument, match=r"targets 1: wanted a text that fits into"):
        model.score(["[[0, 0, 0], [0, 0, 0]]"], ["1 1"])


def test_a_look_shows_where_each_token_is(trained):
    model, _ = trained
    rows = [row for row in sounds(20, 7) if row[1].count(" ") == 2]
    source, target = rows[0]
    look = regard.look(model, as_json([(source, target)])[0], output=target)
    each = look["ctc"]
    weights = each.weights()[0]
    assert look.output.tokens == tuple(target.split())
    assert look.names(each)[0] == look.output.tokens
    assert weights.shape == (3, len(source) // 2)
    # A digit has four vectors and two of silence follow: three positions after the convolution.
    for place, row in enumerate(weights):
        assert row[3 * place : 3 * place + 3].sum() > 0.5
    assert "ctc" not in look.attributions()
    assert sum(look.output.scores) <= 0.0


def test_a_language_model_with_another_tokenizer_is_refused(trained, tmp_path):
    model, _ = trained
    other = regard.train(
        CASES["generate, language model"].recipe(max_steps=3),
        tmp_path / "other",
        data={"train": texts(40, 0), "valid": texts(5, 1)},
    )
    assert other.task.name == "generate"
    with pytest.raises(InvalidArgument, match="one with the tokenizer of the model"):
        model.predict(as_json(sounds(1, 0)), language_model=str(tmp_path / "other"))


def test_a_language_model_changes_what_is_found(trained, tmp_path):
    """It has read texts that repeat one digit: with a large weight, so do the outputs."""
    model, _ = trained
    # A vocabulary is in the order of how often its words occur.
    digits = [token for token in model.target.tokens() if token.isdigit()]
    repeated = [
        " ".join([digit] * length)
        for place, digit in enumerate(digits)
        for length in range(1, 5)
        for _ in range(6 - place)
    ]
    train = {**TRAIN, "max_steps": 60, "validate_every": 60}
    recipe = {"model": {"decoder": ENCODER}, "data": {"target": BY_WORDS}, "train": train}
    regard.train(recipe, tmp_path / "lm", data={"train": repeated, "valid": repeated[::6]})
    rows = [row for row in sounds(30, 9) if len({*row[1].split()}) == 3][:3]
    inputs = as_json(rows)
    plain = model.predict(inputs, beam_size=8)
    fused = model.predict(
        inputs, beam_size=8, language_model=str(tmp_path / "lm"), language_model_weight=20.0
    )
    assert all(len({*text.split()}) > 1 for text in plain)
    assert all(len({*text.split()}) <= 1 for text in fused)


def test_a_request_to_a_server_names_no_language_model():
    """It is the path of a run, which only the operator of a server chooses."""
    assert "language_model" not in OPTIONS
    assert "beam_size" in OPTIONS


def test_a_length_bonus_makes_texts_longer(trained):
    model, _ = trained
    inputs = as_json(sounds(5, 11))
    plain = model.predict(inputs, beam_size=8)
    longer = model.predict(inputs, beam_size=8, length_bonus=10.0)
    for one, other in zip(plain, longer, strict=True):
        assert len(other) > len(one)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"train": {"label_smoothing": 0.1}}, "train.label_smoothing"),
        ({"train": {"r_drop": 1.0}}, "train.r_drop"),
        ({"train": {"ctc_weight": 0.5}}, "train.ctc_weight: wanted nothing without"),
        ({"decode": {"language_model": "x"}}, "decode.beam_size: wanted at least 2"),
        ({"decode": {"language_model_weight": 0.5}}, "language_model_weight: wanted nothing"),
        ({"model": {"tie_embeddings": "all"}}, "model.tie_embeddings"),
        ({"model": {"output_bias": False}}, "model.output_bias: wanted nothing here"),
        ({"model": {"encoder": LATENTS}}, "model.encoder.kind: wanted an encoder with a state"),
    ],
)
def test_settings_that_mean_nothing_are_refused(tables, message):
    case = CASES["transcribe, vectors"]
    recipe = {**case.recipe(), "decode": {}}
    source = {"kind": "vectors", "column": "1"}
    target = {**BY_WORDS, "column": "2"}
    recipe["data"] = {"train": "x.jsonl", "source": source, "target": target}
    for name, table in tables.items():
        recipe[name] = {**recipe[name], **table}
    with pytest.raises(InvalidRecipe, match=message):
        Recipe.of(recipe)


def test_a_decoder_is_trained_with_a_head_beside_it():
    case = CASES["generate, ctc beside the decoder"]
    table = {**case.model, "vocab_size": 9, "source_dim": 3}
    torch.manual_seed(0)
    model = regard.build(table).eval()
    rows = [torch.randn(length, 3) for length in (12, 7)]
    batch = Batch(Vectors.of(rows), targets_of([5, 6], [7]), 5, torch.arange(2))
    alone = Objective()(model, batch)
    both = Objective(ctc_weight=0.5)(model, batch)
    memory = model.encode(batch.source)
    logits = model.auxiliary_head(memory)
    plain = PlainTargets.of(batch.targets, DEFAULT_TOKENS)
    expected = ctc_losses(logits, plain, memory.mask.sum(1), 9).sum()
    assert float((both.loss - alone.loss).detach()) == pytest.approx(
        0.5 * float(expected.detach()), rel=1e-4
    )
    assert float(both.nll) == pytest.approx(float(alone.nll), rel=1e-5)
    both.loss.backward()
    assert model.auxiliary_head.proj.weight.grad.abs().sum() > 0
    with_r_drop = Objective(ctc_weight=0.5, r_drop=1.0)(model, batch)
    assert float(with_r_drop.loss.detach()) == pytest.approx(float(both.loss.detach()), rel=1e-4)
