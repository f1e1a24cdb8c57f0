"""Training: the gradient of an update, exact resume, validation, failures."""

import errno
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

import regard
import regard.api.train as train_module
from regard.api.train import epochs, make_model, prepare, train
from regard.checkpoint import store
from regard.checkpoint.format import find_checkpoint, regular_steps
from regard.core.errors import InterruptedTraining
from regard.core.sanitize import as_json_line
from regard.data import batching as batches_module
from regard.data.batching import Batch
from regard.data.columns import RunningTextColumn
from regard.data.corpus import Corpus
from regard.data.prefetch import THREAD
from regard.kernels import cuda_graphs
from regard.model.weights import weights_of
from regard.recipe.load import read_recipe
from regard.recipe.recipe import Recipe
from regard.tasks.objective import Objective
from regard.tasks.predict_masked import mask_tokens
from regard.tasks.sequence_loss import shift_targets
from regard.training import graphed_update
from regard.training.checkpointing import average_checkpoints
from regard.training.config import TrainConfig
from regard.training.graphed_update import GraphedUpdate
from regard.training.monitor import Validation, ValidationHistory
from regard.training.schedules import learning_rate_at
from regard.training.telemetry.log_file import truncate_log
from regard.training.trainer import Trainer
from regard.training.validation import mean_loss
from regard.views.progress import TrainingProgress
from support.command_line import command
from support.processes import seconds_to_end
from support.training_runs import (
    CONV,
    LETTERS,
    PAIRS,
    RNN,
    SHORT,
    TRANSFORMER,
    dropout_free,
    hidden_tokens,
    interrupted,
    log,
    same,
    table,
    weights,
)


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def whole(tmp_path_factory, cache) -> Path:
    """A complete run of `table()`, not to be changed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(table(), run, cache=cache)
    return run


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    """A copy of the same run that a test may change."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def text(tmp_path) -> dict:
    """Data of a language model: a small text in a file."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 60)
    path = str(tmp_path / "text.txt")
    return {"train": path, "valid": path, "target": {"tokenizer": "bytes"}, "context_length": 16}


MEMBERS = {
    "transformer": table(),
    "rnn with attention": table(RNN, RNN),
    "conv": table(CONV, CONV),
    "r-drop": table(r_drop=2.0),
    "ema": table(ema_decay=0.9),
    "accumulated": table(accumulate_steps=3),
    "mixed lengths": table(mixed_lengths=True),
    "gated, doubly stochastic": table(RNN, RNN | {"context_gate": True}, doubly_stochastic=0.5),
    "scheduled sampling": table(RNN, RNN, scheduled_sampling={"teacher_forcing": 0.7}),
    "plateau": table(lr_schedule="plateau", plateau=1),
    "frozen at first": table(freeze=["encoder.*"], unfreeze_after=1, weight_decay=0.1),
    "clipped, decayed": table(clip_norm=0.1, weight_decay=0.1),
    "muon": table(optimizer="muon", weight_decay=0.1),
    "epochs": table(max_steps=None, max_epochs=2, batch_tokens=128, lr_schedule="cosine"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_resumed_equals_uninterrupted(name, tmp_path, cache, whole):
    recipe = MEMBERS[name]
    if name != "transformer":
        whole = tmp_path / "whole"
        train(recipe, whole, cache=cache)
    interrupted(recipe, tmp_path / "parts", 5, cache)
    assert store.steps(tmp_path / "parts")[-1] == 5
    interrupted(recipe, tmp_path / "parts", 4, cache, resume=True)
    train(recipe, tmp_path / "parts", cache=cache, resume=True)
    assert same(weights(whole), weights(tmp_path / "parts"))
    assert log(whole) == log(tmp_path / "parts")


@pytest.mark.parametrize(
    "decoder", [TRANSFORMER, RNN, CONV], ids=["transformer", "rnn carried", "conv"]
)
def test_a_language_model_resumes_exactly(decoder, tmp_path, cache, text):
    changes = {"carry_state": True} if decoder is RNN else {}
    recipe = {"data": text, "model": {"decoder": decoder}, "train": SHORT | changes}
    train(recipe, tmp_path / "whole", cache=cache)
    interrupted(recipe, tmp_path / "parts", 7, cache)
    train(recipe, tmp_path / "parts", cache=cache, resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def epochs_recipe(**changes) -> dict:
    return table(max_steps=None, batch_tokens=512, log_every=100, validate_every=1000, **changes)


def test_a_run_ends_after_its_epochs(tmp_path, cache):
    """Each example is trained on once an epoch; the last update is logged, validated and saved."""
    recipe = read_recipe(epochs_recipe(max_epochs=2))
    assert recipe.train.max_steps is None
    corpus = prepare(recipe, cache).train
    planned = len(list(batches_module.plan(corpus, budget=512, seed=1, epoch=0)))
    assert epochs(recipe, corpus).total_steps == 2 * planned
    assert epochs(
        read_recipe(epochs_recipe(max_epochs=2, accumulate_steps=3)), corpus
    ).total_steps == 2 * -(-planned // 3)
    train(recipe, tmp_path, cache=cache)
    assert regular_steps(tmp_path) == [2 * planned]
    assert [(line["event"], line["step"]) for line in log(tmp_path)] == [
        ("train", 2 * planned),
        ("validation", 2 * planned),
    ]
    assert log(tmp_path)[0]["epoch"] == 1
    state = json.loads((store.step_folder(tmp_path, 2 * planned) / "training.json").read_text())
    assert (state["epoch"], state["batch"]) == (2, 0)


def test_stopped_after_the_last_update_a_run_of_epochs_ends_the_same(tmp_path, cache):
    recipe = epochs_recipe(max_epochs=1)
    train(recipe, tmp_path / "whole", cache=cache)
    last = store.steps(tmp_path / "whole")[-1]
    interrupted(recipe, tmp_path / "parts", last, cache)
    assert regular_steps(tmp_path / "parts") == []
    train(recipe, tmp_path / "parts", cache=cache, resume=True)
    assert log(tmp_path / "whole") == log(tmp_path / "parts")
    ends = [store.read(store.step_folder(tmp_path / run, last)) for run in ("whole", "parts")]
    assert ends[0] == ends[1]
    longer = train(epochs_recipe(max_epochs=2), tmp_path / "parts", cache=cache, resume=True)
    both = train(epochs_recipe(max_epochs=2), tmp_path / "both", cache=cache)
    assert same(weights_of(longer.model), weights_of(both.model))


@pytest.mark.parametrize("log_every", [1, 1000])
def test_the_throughput_of_each_line_is_of_its_own_time(log_every, tmp_path, cache):
    """Also of the last line of a run of epochs, which ends before the next is due: no line took longer than the run."""
    recipe = table(
        max_steps=None, max_epochs=1, batch_tokens=512, validate_every=1000, log_every=log_every
    )
    events, began = [], time.perf_counter()
    train(recipe, tmp_path, cache=cache, on_event=events.append)
    took = time.perf_counter() - began
    lines = [event for event in events if event["event"] == "train"]
    assert (len(lines) == 1) == (log_every == 1000)
    state = json.loads(
        (store.step_folder(tmp_path, store.steps(tmp_path)[-1]) / "training.json").read_text()
    )
    fewest = state["tokens"] / len(lines) / 4  # of a line: batches differ in size
    assert all(line["tokens_per_second"] > fewest / took for line in lines)


def test_a_line_of_the_log_has_the_rate_of_its_last_update(tmp_path, cache):
    train(
        table(RNN, RNN, max_steps=6, learning_rate=0.01, lr_schedule="linear"),
        tmp_path,
        cache=cache,
    )
    lines = [line for line in log(tmp_path) if line["event"] == "train"]
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert [line["rate"] for line in lines] == pytest.approx(
        [0.005, 0.01, 0.0]
    )  # warmed up in four steps


def test_steps_or_epochs_whichever_comes_first(tmp_path, cache):
    assert TrainConfig().max_steps == 10_000
    assert TrainConfig(max_epochs=3).max_steps is None
    train(table(max_steps=3, max_epochs=2, warmup_steps=1), tmp_path / "steps", cache=cache)
    assert store.steps(tmp_path / "steps") == [3]
    recipe = read_recipe(
        epochs_recipe(max_epochs=1) | {"train": SHORT | {"max_steps": 500, "max_epochs": 1}}
    )
    expected = epochs(recipe, prepare(recipe, cache).train).total_steps
    assert expected < 500
    train(recipe, tmp_path / "epochs", cache=cache)
    assert store.steps(tmp_path / "epochs")[-1] == expected


def test_muon_trains_hidden_matrices_only(tmp_path, cache):
    made = trainer(read_recipe(table(optimizer="muon")), cache, tmp_path)
    optimizer = made.updater.optimizer
    names = {parameter: name for name, parameter in made.model.named_parameters()}
    matrices = {names[p] for group in optimizer.muon.param_groups for p in group["params"]}
    others = {names[p] for group in optimizer.adamw.param_groups for p in group["params"]}
    assert matrices | others == set(names.values())
    assert not matrices & others
    assert "encoder.stack.layers.0.ffn.up.weight" in matrices
    assert "decoder.stack.layers.0.cross_attn.q_proj.weight" in matrices
    assert not any(
        "embed" in name or "project" in name or name.endswith("bias") for name in matrices
    )
    made.fit()
    saved = optimizer.state_tensors()
    assert {
        key.partition(".")[2] for key in saved if key.startswith("momentum_buffer.")
    } == matrices
    assert {key.partition(".")[2] for key in saved if key.startswith("exp_avg.")} == others
    with pytest.raises(regard.InvalidRecipe, match=r"train.fsdp: wanted nothing with optimizer"):
        read_recipe(table(optimizer="muon", fsdp=True))


def test_another_seed_gives_other_weights(tmp_path, cache, whole):
    train(table(seed=2), tmp_path, cache=cache)
    assert not same(weights(whole), weights(tmp_path))


def trainer(recipe: Recipe, cache: Path, run: Path, **options) -> Trainer:
    data = prepare(recipe, cache)
    model = make_model(recipe, recipe.sized(data))
    return Trainer(model, epochs(recipe, data.train), texts={}, run=run, data_key="", **options)


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_accumulated_batches_weigh_by_their_tokens(r_drop, tmp_path, cache):
    """The gradient of an update of three batches is that of the mean over all their tokens."""
    recipe = read_recipe(
        table(dropout_free(), dropout_free(), accumulate_steps=3, clip_norm=1e9, r_drop=r_drop)
    )
    made = trainer(recipe, cache, tmp_path)
    group = next(made._groups())
    assert len({batch.tokens for batch in group}) > 1
    model, objective = made.model.train(), Objective(recipe.train.label_smoothing)
    losses = [objective(model, batch) for batch in group]
    mean = sum(each.loss for each in losses) / sum(each.predictions for each in losses)
    wanted = torch.autograd.grad(mean, list(model.parameters()))
    made.updater.optimizer.step = lambda: None
    made._update(group)
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


NOTHING = {
    "empty": ([""] * 150, {"tokenizer": "bytes"}),
    "unknown": ([f"x{n}" for n in range(60)], {"tokenizer": "words", "vocab_size": 9}),
}


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize(
    "changes", [{}, {"r_drop": 1.0, "ema_decay": 0.9}, {"accumulate_steps": 2}], ids=str
)
def test_batches_without_predictions_change_no_weight(name, changes, tmp_path, cache):
    empty, target = NOTHING[name]
    texts, changes = (
        ["abc def", "ghi jkl"] * 20 + empty,
        {"batch_tokens": 64, "weight_decay": 0.1} | changes,
    )
    recipe = read_recipe(hidden_tokens(texts, target, tmp_path / "text.txt", **changes))
    made = trainer(recipe, cache, tmp_path)
    update, still = made._update, []

    def noted(group):
        nothing = all(row >= 40 for batch in group for row in batch.rows.tolist())
        before = {name: tensor.clone() for name, tensor in weights_of(made.model).items()}
        update(group)
        still.append(nothing)
        assert same(before, weights_of(made.model)) == nothing

    made._update = noted
    assert made.fit().step == 12
    assert set(still) == {True, False}


KINDS = {
    "text": (
        {"encoder": TRANSFORMER | {"dropout": 0.3}, "decoder": TRANSFORMER | {"dropout": 0.3}},
        "vocab_size",
    ),
    "label": (
        {
            "encoder": TRANSFORMER | {"dropout": 0.3},
            "pool": {"kind": "mean"},
            "source_vocab_size": 30,
        },
        "num_labels",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_r_drop_is_of_two_forward_passes(kind):
    """The mean loss of two passes with different dropout, plus the weighted mean of their KL divergences."""
    model_table, size = KINDS[kind]
    torch.manual_seed(0)
    model = regard.build(model_table | {size: 30}).train()
    source = regard.Tokens(torch.randint(5, 30, (3, 6)), torch.full((3,), 6))
    ids = torch.randint(5, 30, (3, 5))
    targets = regard.Tokens(ids, torch.full((3,), 5)) if kind == "text" else ids[:, 0]
    batch = Batch(source, targets, 12 if kind == "text" else 3, torch.arange(3))
    double = regard.Tokens(source.ids.repeat(2, 1), source.lengths.repeat(2))
    torch.manual_seed(1)
    logits = (
        model(double, ids[:, :-1].repeat(2, 1)).flatten(0, 1) if kind == "text" else model(double)
    )
    one, other = logits.log_softmax(-1).chunk(2)
    gold = ids[:, 1:].flatten() if kind == "text" else ids[:, 0]
    losses = [
        F.cross_entropy(reading, gold, reduction="sum", label_smoothing=0.1)
        for reading in (one, other)
    ]
    apart = [
        F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((one, other), (other, one))
    ]
    assert sum(apart).item() > 0.01
    torch.manual_seed(1)
    loss, nll, count, _ = Objective(0.1, r_drop=2.0)(model, batch)
    torch.testing.assert_close(loss, sum(losses) / 2 + 2.0 * sum(apart) / 2)
    unsmoothed = [F.cross_entropy(reading, gold, reduction="sum") for reading in (one, other)]
    torch.testing.assert_close(nll, sum(unsmoothed).detach() / 2)
    assert count == len(gold)


@pytest.mark.parametrize("masked", [False, True])
def test_without_dropout_r_drop_changes_nothing(masked):
    encoder = dropout_free()
    parts = {"head": "mlm"} if masked else {"decoder": encoder}
    model = regard.build({"encoder": encoder, "vocab_size": 30} | parts)
    tokens = regard.Tokens.of([[1, 7, 8, 9, 2], [1, 9, 2]])
    batch = Batch(None if masked else tokens, tokens, 6, torch.arange(2))
    found = []
    for r_drop in (0.0, 5.0):
        torch.manual_seed(0)
        loss, nll, count, _ = Objective(0.1, r_drop=r_drop)(model, batch)
        found.append(
            (loss, nll, torch.tensor(count), *torch.autograd.grad(loss, list(model.parameters())))
        )
    for once, both in zip(*found, strict=True):
        torch.testing.assert_close(both, once, atol=1e-5, rtol=1e-4)


def shown_and_logged(folder: Path, cache: Path, **changes) -> tuple[str, dict, dict]:
    """What the terminal shows of a short run, and the lines of its log: of training and of validation."""
    with (folder / "shown").open("w") as stream:
        train(
            table(max_steps=2, warmup_steps=1, **changes),
            folder / "run",
            cache=cache,
            on_event=TrainingProgress(stream),
        )
    return (folder / "shown").read_text(), *log(folder / "run")


def test_perplexity_is_without_label_smoothing_and_r_drop(tmp_path, cache):
    """In the log, in the line on the terminal and in validations, where the loss has neither."""
    shown, event, validation = shown_and_logged(tmp_path, cache, label_smoothing=0.3, r_drop=1.0)
    assert event["loss"] > event["nll"] + 0.1
    assert event["perplexity"] == pytest.approx(math.exp(event["nll"]))
    assert validation["perplexity"] == pytest.approx(math.exp(validation["loss"]))
    assert f"loss {event['loss']:.4f}   nll {event['nll']:.4f}   " in shown
    assert f"   perplexity {event['perplexity']:.2f}\n" in shown


def test_a_loss_without_smoothing_is_shown_once(tmp_path, cache):
    shown, event, _ = shown_and_logged(tmp_path, cache, label_smoothing=0.0)
    assert event["loss"] == event["nll"]
    assert f"loss {event['loss']:.4f}   " in shown
    assert "nll" not in shown


def test_an_epoch_of_batches_of_all_lengths(cache, text):
    recipe = read_recipe(table(mixed_lengths=True))
    corpus = prepare(recipe, cache).train
    found = [batch.rows.tolist() for batch in epochs(recipe, corpus)(2, 1)]
    wanted = [
        rows.tolist()
        for rows in batches_module.plan(corpus, budget=256, seed=1, epoch=2, mixed=True)
    ]
    assert found == wanted[1:]
    with pytest.raises(
        regard.InvalidRecipe, match=r"train.mixed_lengths: wanted nothing with packed"
    ):
        read_recipe(table(mixed_lengths=True, packed=True))
    with pytest.raises(
        regard.InvalidRecipe, match=r"train.mixed_lengths: wanted false with running text"
    ):
        read_recipe(
            {"data": text, "model": {"decoder": TRANSFORMER}, "train": {"mixed_lengths": True}}
        )


def recurrent_reader() -> tuple[torch.nn.Module, Corpus]:
    torch.manual_seed(0)
    model = regard.build({"decoder": RNN | {"cell": "lstm"}, "vocab_size": 30}).eval()
    ids = np.random.default_rng(0).integers(5, 30, 200).astype(np.uint16)
    return model, Corpus(None, RunningTextColumn(ids, 16))


@pytest.mark.parametrize("rows", [1, 3])
def test_validation_carries_the_state_to_the_end_of_the_text(rows):
    """Each lane is one text; the remainder continues from the end of the last lane."""
    model, corpus = recurrent_reader()
    text = torch.from_numpy(corpus.target.ids.astype(np.int64))
    length = 199 // rows
    ends = [*(length * (lane + 1) for lane in range(rows - 1)), 199]
    with torch.no_grad():
        losses = [
            F.cross_entropy(
                model(None, text[None, start:end])[0], text[start + 1 : end + 1], reduction="sum"
            )
            for start, end in zip([0, *ends], ends, strict=False)
        ]
    found = mean_loss(model, corpus, budget=16 * rows, carry=True)
    assert found == pytest.approx(float(sum(losses)) / 199, rel=1e-5)
    assert abs(found - mean_loss(model, corpus, budget=16)) > 1e-4


@pytest.mark.parametrize("overlap", [1, 12, 15])
@torch.no_grad()
def test_contexts_that_overlap_predict_each_token_once_with_more_before_it(overlap):
    model, corpus = recurrent_reader()
    text, total = torch.from_numpy(corpus.target.ids.astype(np.int64)), 0.0
    for position in range(
        1, 200
    ):  # the token at a position is predicted in the first context that reaches it
        context = max(0, -(-(position - 16) // (16 - overlap)))
        start = context * (16 - overlap)
        total -= float(model.log_probabilities(None, text[None, start : position + 1])[0, -1])
    found = mean_loss(model, corpus, budget=48, overlap=overlap)
    assert found == pytest.approx(total / 199, rel=1e-5)
    assert abs(found - mean_loss(model, corpus, budget=48)) > 1e-4


def test_an_overlap_of_contexts_is_evaluated_and_refused_where_it_means_nothing(
    tmp_path, cache, text
):
    settings = SHORT | {"evaluation_overlap": 4}
    recipe = {"data": text, "model": {"decoder": TRANSFORMER}, "train": settings}
    model = train(recipe, tmp_path / "run", cache=cache)
    corpus = prepare(model.recipe, cache).valid
    wanted = mean_loss(model.model, corpus, budget=settings["batch_tokens"], overlap=4)
    assert regard.evaluate(model, split="valid", cache=cache)["loss"].value == pytest.approx(wanted)
    for changes, reason in (
        ({"evaluation_overlap": text["context_length"]}, "less than data.context_length"),
        ({"evaluation_overlap": 4, "carry_state": True}, "nothing with evaluation_overlap"),
    ):
        with pytest.raises(regard.InvalidRecipe, match=reason):
            read_recipe({"data": text, "model": {"decoder": RNN}, "train": SHORT | changes})
    with pytest.raises(
        regard.InvalidRecipe, match=r"train.evaluation_overlap: wanted 0 without running text"
    ):
        read_recipe(table(RNN, RNN, evaluation_overlap=1))


def test_a_model_with_carried_state_is_evaluated_with_it(tmp_path, cache, text):
    recipe = {"data": text, "model": {"decoder": RNN}, "train": SHORT | {"carry_state": True}}
    model = train(recipe, tmp_path / "run", cache=cache)
    corpus = prepare(model.recipe, cache).valid
    wanted = mean_loss(model.model, corpus, budget=256, carry=True)
    assert regard.evaluate(model, split="valid", cache=cache)["loss"].value == pytest.approx(wanted)
    logged = [line["loss"] for line in log(tmp_path / "run") if line["event"] == "validation"]
    assert min(logged) == pytest.approx(wanted)


def test_without_a_gpu_cuda_graphs_warn_and_change_nothing(tmp_path, cache, text):
    recipe = {"data": text, "model": {"decoder": TRANSFORMER}, "train": SHORT}
    train(recipe, tmp_path / "launched", cache=cache)
    events = []
    again = recipe | {"train": SHORT | {"cuda_graphs": True, "device": "cpu"}}
    train(again, tmp_path / "replayed", cache=cache, on_event=events.append)
    assert same(weights(tmp_path / "launched"), weights(tmp_path / "replayed"))
    assert [
        e["message"]
        for e in events
        if e["event"] == "warning" and "train.cuda_graphs: wanted a GPU" in e["message"]
    ]


def test_a_replayed_graph_reads_the_current_batch_and_no_padding(
    tmp_path, cache, text, monkeypatch
):
    """The text's last context is a shorter row in a batch whose shape may be that of a recorded one.

    The stand-in for a CUDA graph computes again from the current content of the recorded tensors.
    """
    recipe = {
        "data": text | {"context_length": 48},
        "model": {"decoder": TRANSFORMER},
        "train": SHORT | {"max_steps": 40},
    }
    train(recipe, tmp_path / "launched", cache=cache)
    recorded = []

    def static(batch):
        ids = batch.targets.ids.clone()
        recorded.append(ids.shape)
        return right(replace(batch, targets=replace(batch.targets, ids=ids)))

    right = graphed_update.RecordedBatch
    before, padded = GraphedUpdate.__call__, []

    def called(self, batch, compute):
        self.enabled = True
        padded.append(
            (batch.targets.ids.shape,) in self.recorded and int(batch.targets.lengths.min()) < 49
        )
        return before(self, batch, compute)

    monkeypatch.setattr(graphed_update, "RecordedBatch", static)
    monkeypatch.setattr(cuda_graphs, "capture", lambda work, **_: work)
    monkeypatch.setattr(GraphedUpdate, "__call__", called)
    train(
        recipe | {"train": recipe["train"] | {"cuda_graphs": True}},
        tmp_path / "replayed",
        cache=cache,
    )
    assert recorded
    assert any(padded)
    assert same(weights(tmp_path / "launched"), weights(tmp_path / "replayed"))


def test_cuda_graphs_are_refused_where_shapes_differ(text):
    with pytest.raises(
        regard.InvalidRecipe, match=r"train.cuda_graphs: wanted false unless batches are packed"
    ):
        read_recipe(table(cuda_graphs=True))
    with pytest.raises(
        regard.InvalidRecipe, match=r"train.cuda_graphs: wanted nothing with accumulate"
    ):
        read_recipe(
            {
                "data": text,
                "model": {"decoder": TRANSFORMER},
                "train": {"cuda_graphs": True, "accumulate_steps": 2},
            }
        )


def test_decoder_inputs_are_the_targets_shifted_by_one():
    tokens = regard.Tokens.of([[1, 7, 8, 2], [1, 9, 2]])
    inputs, gold, there = shift_targets(tokens)
    assert inputs[0].tolist() == [1, 7, 8]
    assert gold[0].tolist() == [7, 8, 2]
    assert there.tolist() == [[True, True, True], [True, True, False]]


def test_tokens_are_masked_as_in_bert():
    torch.manual_seed(0)
    ids = torch.randint(5, 100, (50, 200))
    ids[:, 0] = 1
    tokens = regard.Tokens(ids, torch.full((50,), 200))
    shown, hidden = mask_tokens(tokens, 0.15, 100)
    assert not hidden[:, 0].any()
    assert abs(float(hidden.float().mean()) - 0.15) < 0.01
    assert torch.equal(shown.ids[~hidden], ids[~hidden])
    masked = float((shown.ids[hidden] == 4).float().mean())
    kept = float((shown.ids[hidden] == ids[hidden]).float().mean())
    assert abs(masked - 0.8) < 0.03
    assert abs(kept - 0.1) < 0.03
    one, found = mask_tokens(regard.Tokens(torch.tensor([[1, 7, 2]]), torch.tensor([3])), 0.0, 100)
    assert found.tolist() == [[False, True, False]]
    assert one.ids.shape == (1, 3)


RATES = {
    "inverse_root": lambda step: (step + 1) / 4 if step < 4 else (4 / (step + 1)) ** 0.5,
    "constant": lambda step: min(1.0, (step + 1) / 4),
    "linear": lambda step: (step + 1) / 4 if step < 4 else 1 - (step - 3) / 8,
}


@pytest.mark.parametrize("schedule", RATES)
def test_learning_rates(schedule):
    config = TrainConfig(max_steps=12, warmup_steps=4, learning_rate=0.5, lr_schedule=schedule)
    for step in range(12):
        assert learning_rate_at(step, config) == pytest.approx(0.5 * RATES[schedule](step))


def test_cosine_ends_at_the_minimum_learning_rate():
    config = TrainConfig(
        max_steps=100,
        warmup_steps=10,
        learning_rate=1.0,
        min_learning_rate=0.1,
        lr_schedule="cosine",
    )
    assert learning_rate_at(9, config) == pytest.approx(1.0)
    assert learning_rate_at(54, config) == pytest.approx(0.55)
    assert learning_rate_at(99, config) == pytest.approx(0.1)


def test_validation_history_stops_early_and_halves_the_rate():
    config = TrainConfig(lr_schedule="plateau", plateau=2, patience=3)
    history = ValidationHistory()
    for step, loss in enumerate([3.0, 2.0, 2.5, 2.5, 2.5]):
        assert not history.exhausted(config)
        history = history.after({"loss": loss}, step, config)
    assert (history.best, history.best_step, history.waited, history.factor) == (2.0, 1, 3, 0.5)
    assert history.after({"loss": 2.0}, 5, config) == ValidationHistory(
        2.0, 5, 4, 0.25
    )  # the last of equals
    unknown = ValidationHistory().after({"loss": math.nan}, 0, config)
    assert unknown.after({"loss": 9.0}, 1, config) == ValidationHistory(9.0, 1)
    assert history.exhausted(config)
    higher = replace(config, monitor="accuracy")
    assert ValidationHistory(best=1.0, best_step=0).after({"accuracy": 2.0}, 1, higher).best == 2.0


def test_the_best_checkpoint_is_kept_and_loaded(tmp_path, cache):
    values = iter([1.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    recipe = read_recipe(
        table(max_steps=12, validate_every=2, keep_checkpoints=1, monitor="accuracy")
    )
    made = trainer(
        recipe, cache, tmp_path, validate=lambda model: Validation({"accuracy": next(values)})
    )
    made.fit()
    assert store.steps(tmp_path) == [4, 12]
    assert made.state.history.best_step == 4
    assert find_checkpoint(tmp_path) == store.step_folder(tmp_path, 4)


def test_without_validations_the_newest_checkpoint_is_loaded(tmp_path, cache):
    trainer(read_recipe(table(max_steps=4, validate_every=2)), cache, tmp_path).fit()
    assert store.steps(tmp_path) == [2, 4]
    assert find_checkpoint(tmp_path) == store.step_folder(tmp_path, 4)


def test_early_stopping(tmp_path, cache):
    values = iter([5.0, 4.0, 3.0, 2.0])
    recipe = read_recipe(table(max_steps=100, validate_every=2, patience=2, monitor="accuracy"))
    made = trainer(
        recipe, cache, tmp_path, validate=lambda model: Validation({"accuracy": next(values)})
    )
    assert made.fit().step == 6


def poisoned(monkeypatch, at: set[int]) -> None:
    right = Objective.__call__

    def wrong(self, model, batch, *, step=0, carried=None):
        result = right(self, model, batch, step=step, carried=carried)
        return (
            result._replace(loss=result.loss * float("nan"))
            if step in at and model.training
            else result
        )

    monkeypatch.setattr(Objective, "__call__", wrong)


def asynchronous(monkeypatch) -> None:
    """Updates are settled when the next has begun, as on a GPU."""
    right = Trainer.__init__

    def made(self, *given, **options):
        right(self, *given, **options)
        self.asynchronous = True

    monkeypatch.setattr(Trainer, "__init__", made)


@pytest.fixture(params=["waiting", "asynchronous"])
def _either(request, monkeypatch):
    if request.param == "asynchronous":
        asynchronous(monkeypatch)


@pytest.mark.usefixtures("_either")
def test_a_nan_loss_stops_the_run(tmp_path, cache, monkeypatch):
    poisoned(monkeypatch, {6})
    with pytest.raises(
        regard.Diverged, match=r"step 7: wanted a finite loss and gradient; got loss nan"
    ) as caught:
        train(table(), tmp_path, cache=cache)
    assert caught.value.exit_code == 3
    assert store.steps(tmp_path) == [4]
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())


@pytest.mark.usefixtures("_either")
def test_a_nan_loss_is_skipped(tmp_path, cache, monkeypatch):
    poisoned(monkeypatch, {6})
    train(table(on_nan="skip"), tmp_path, cache=cache)
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())
    poisoned(monkeypatch, set(range(100)))
    with pytest.raises(
        regard.Diverged, match=r"step 10: .*, 10 updates in a row\. .* or clip more\.$"
    ):
        train(table(on_nan="skip"), tmp_path / "again", cache=cache)
    events = [line for line in log(tmp_path / "again") if line["event"] == "train"]
    assert events
    assert all(
        line["loss"] is line["nll"] is line["perplexity"] is line["norm"] is None for line in events
    )


def test_a_log_is_truncated_line_by_line(tmp_path):
    path = tmp_path / "log.jsonl"
    events = [{"step": 1, "text": "one\u2028line\x85"}, {"step": 2, "loss": math.inf}, {"step": 3}]
    whole = "".join(as_json_line(each) + "\n" for each in events).encode()
    path.write_bytes(whole + '{"step": 1, "text": "é'.encode()[:-1])
    truncate_log(tmp_path, 2)
    assert path.read_bytes() == whole[: whole.rindex(b'{"step": 3')]
    assert json.loads(path.read_bytes().split(b"\n")[1])["loss"] is None


def test_clip_norm_zero_clips_nothing(tmp_path, cache):
    for name, clip in (("none", 0.0), ("far", 1e9)):
        train(table(clip_norm=clip), tmp_path / name, cache=cache)
    assert same(weights(tmp_path / "none"), weights(tmp_path / "far"))


def test_a_nan_loss_is_not_validated(tmp_path, cache, monkeypatch):
    poisoned(monkeypatch, {7})
    asynchronous(monkeypatch)
    with pytest.raises(regard.Diverged, match="step 8"):
        train(table(log_every=3), tmp_path, cache=cache)
    assert [line["step"] for line in log(tmp_path) if line["event"] == "validation"] == [4]


@pytest.mark.parametrize("name", ["ema", "carried"])
def test_state_that_the_next_update_needs_is_waited_for(name, tmp_path, cache, text, monkeypatch):
    carried = {"data": text, "model": {"decoder": RNN}, "train": SHORT | {"carry_state": True}}
    recipe = {"ema": table(ema_decay=0.9), "carried": carried}[name]
    train(recipe, tmp_path / "waiting", cache=cache)
    asynchronous(monkeypatch)
    train(recipe, tmp_path / "on", cache=cache)
    assert same(weights(tmp_path / "waiting"), weights(tmp_path / "on"))


@pytest.mark.parametrize("log_every", [2, 3])  # with every validation, and not
def test_an_update_may_be_settled_when_the_next_has_begun(log_every, tmp_path, cache, monkeypatch):
    poisoned(monkeypatch, {2, 5, 6})
    recipe = table(on_nan="skip", log_every=log_every)
    train(recipe, tmp_path / "waiting", cache=cache)
    asynchronous(monkeypatch)
    train(recipe, tmp_path / "on", cache=cache)
    interrupted(recipe, tmp_path / "stopped", 10, cache)
    train(recipe, tmp_path / "stopped", cache=cache, resume=True)
    for run in ("on", "stopped"):
        assert same(weights(tmp_path / "waiting"), weights(tmp_path / run))
        assert log(tmp_path / "waiting") == log(tmp_path / run)
        ends = [store.read(store.step_folder(tmp_path / each, 12)) for each in ("waiting", run)]
        assert ends[0]["training.json"] == ends[1]["training.json"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried 3.00 GiB"),
        RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 3000000000 bytes."
        ),
    ],
    ids=["GPU", "CPU"],
)
def test_out_of_memory_names_the_batch_and_changes_nothing(error, tmp_path, cache, monkeypatch):
    made = trainer(read_recipe(table()), cache, tmp_path)
    before = {name: p.clone() for name, p in made.model.named_parameters()}

    def greedy(*arguments, **options):
        raise error

    monkeypatch.setattr(Objective, "__call__", greedy)
    with pytest.raises(
        regard.TrainingFailed,
        match=r"a batch of \d+ examples, the longest source \d+ tokens.*batch_tokens",
    ):
        made.fit()
    assert made.state.step == 0
    assert same(before, dict(made.model.named_parameters()))


def test_another_error_of_an_update_is_told_as_it_is(tmp_path, cache, monkeypatch):
    def wrong(*arguments, **options):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(Objective, "__call__", wrong)
    with pytest.raises(RuntimeError, match=r"^shapes do not fit$"):
        trainer(read_recipe(table()), cache, tmp_path).fit()


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(
    tmp_path, cache, whole, monkeypatch
):
    save, count = safetensors.torch.save_file, 0

    def full(*arguments):
        nonlocal count
        count += 1
        if count > 2:
            raise OSError(28, "No space left on device")
        return save(*arguments)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(
        regard.TrainingFailed,
        match=r"step-00000008: wanted to save a checkpoint; got No space left",
    ):
        train(table(), tmp_path, cache=cache)
    assert store.steps(tmp_path) == [4]
    monkeypatch.undo()
    train(table(), tmp_path, cache=cache, resume=True)
    assert same(weights(tmp_path), weights(whole))


ENDS = {"an error": lambda: os.stat("/nowhere/at/all"), "an exit": sys.exit}


@pytest.mark.parametrize("name", ENDS)
def test_a_failing_prefetch_thread_is_reported_and_the_run_resumes(
    name, tmp_path, cache, whole, monkeypatch
):
    """Any failure of the prefetch thread is reported; the resumed run ends with the same weights."""
    right, count = batches_module._collate, 0

    def wrong(corpus, rows, capacity=None):
        nonlocal count
        if threading.current_thread().name == THREAD:
            count += 1
            if count == 8:
                ENDS[name]()
        return right(corpus, rows, capacity)

    monkeypatch.setattr(batches_module, "_collate", wrong)
    with pytest.raises(
        regard.TrainingFailed, match=r"step \d+: wanted its batches; got .*resume"
    ) as caught:
        train(table(), tmp_path, cache=cache)
    assert caught.value.exit_code == 1
    assert store.steps(tmp_path) == [4]
    monkeypatch.undo()
    train(table(), tmp_path, cache=cache, resume=True)
    assert same(weights(whole), weights(tmp_path))


def test_outputs_end_where_learned_positions_do(tmp_path, cache):
    learned = TRANSFORMER | {"positions": "learned", "max_positions": 80}
    recipe = table(decoder=learned, max_steps=4, monitor="bleu") | {"decode": {"max_length": 200}}
    train(recipe, tmp_path, cache=cache)
    assert "bleu" in log(tmp_path)[-1]


@pytest.mark.parametrize("at", [4, 12])
def test_a_failing_validation_leaves_a_checkpoint(at, tmp_path, cache, whole, monkeypatch):
    validated = Trainer._validation

    def fails(self, validate):
        if self.state.step == at:
            raise RuntimeError("no memory for it")
        return validated(self, validate)

    monkeypatch.setattr(Trainer, "_validation", fails)
    with pytest.raises(RuntimeError, match="no memory for it"):
        train(table(), tmp_path, cache=cache)
    assert store.steps(tmp_path)[-1] == at
    assert at not in regular_steps(tmp_path)
    monkeypatch.undo()
    train(table(), tmp_path, cache=cache, resume=True)
    assert regular_steps(tmp_path) == regular_steps(whole) == [4, 8, 12]
    assert same(weights(tmp_path), weights(whole))
    assert log(tmp_path) == log(whole)


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path, cache):
    (tmp_path / "file").write_text("")
    with pytest.raises(regard.InvalidArgument, match="wanted a folder to write to"):
        train(table(), tmp_path / "file" / "run", cache=cache)


def test_a_run_does_not_overwrite_another(copy, cache):
    with pytest.raises(regard.InvalidArgument, match="--resume"):
        train(table(), copy, cache=cache)


def test_a_resumed_run_keeps_its_recipe(copy, cache):
    with pytest.raises(
        regard.CheckpointRefused,
        match=r"began with; got another \(train\.learning_rate = 0\.5, which was 0\.0",
    ):
        train(table(learning_rate=0.5), copy, cache=cache, resume=True)
    changed = PAIRS | {"target": {"tokenizer": "characters"}, "shared_vocab": False}
    with pytest.raises(
        regard.CheckpointRefused,
        match=r"got others \(data\.target\.tokenizer = 'characters', which was ",
    ):
        train(table() | {"data": changed}, copy, cache=cache, resume=True)
    for key, value in {"warmup_steps": 5, "seed": 2, "batch_tokens": 128, "clip_norm": 2.0}.items():
        with pytest.raises(
            regard.CheckpointRefused, match=rf"got another \(train\.{key} = {value}"
        ):
            train(table(**{key: value}), copy, cache=cache, resume=True)
    train(table(max_steps=16), copy, cache=cache, resume=True)
    assert store.steps(copy)[-1] == 16


def test_changed_data_are_refused(tmp_path, cache, text):
    recipe = {"data": text, "model": {"decoder": TRANSFORMER}, "train": SHORT}
    train(recipe, tmp_path / "run", cache=cache)
    with Path(text["train"]).open("a") as file:
        file.write("one line more\n")
    with pytest.raises(regard.CheckpointRefused, match="wanted the data that the run began with"):
        train(recipe, tmp_path / "run", cache=cache, resume=True)


def test_changed_data_are_allowed_when_asked_for(tmp_path, cache):
    """They are tokenized with the vocabulary that the weights were trained with."""
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and the dog sat on the log\n" * 20)
    data = {"train": str(path), "target": {"tokenizer": "words", "vocab_size": 40}}
    recipe = {"data": data, "model": {"decoder": RNN}, "train": SHORT}
    before = train(recipe, tmp_path / "run", cache=cache)
    path.write_text(
        "an owl and a fox met the cat at the old mill and sat on the log until it was dark\n" * 20
    )
    more = recipe | {"train": SHORT | {"max_steps": 16}}
    after = train(more, tmp_path / "run", cache=cache, resume=True, allow_changed_data=True)
    assert store.steps(tmp_path / "run")[-1] == 16
    assert after.target.hash == before.target.hash
    again = train(
        more, tmp_path / "run", cache=cache, resume=True
    )  # these are now the data of the run
    assert same(weights_of(again.model), weights_of(after.model))


def test_evaluating_a_run_prepares_nothing_again(tmp_path):
    made = train(table(RNN, RNN), tmp_path / "run", cache=tmp_path / "cache")
    corpora = sorted((tmp_path / "cache").iterdir())
    regard.evaluate(tmp_path / "run", split="valid", metrics=["accuracy"], cache=tmp_path / "cache")
    assert sorted((tmp_path / "cache").iterdir()) == corpora
    train(table(RNN, RNN, max_steps=13), tmp_path / "run", cache=tmp_path / "cache", resume=True)
    assert sorted((tmp_path / "cache").iterdir()) == corpora
    assert made.source is not None


def test_a_damaged_checkpoint_is_skipped(copy, cache, whole, caplog):
    last, events = store.step_folder(copy, 12), []
    damaged = bytearray((last / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (last / "model.safetensors").write_bytes(damaged)
    shutil.copytree(last, copy / "step-00000011")
    regard.load(copy)
    assert "damaged checkpoint skipped: " in caplog.text
    train(table(), copy, cache=cache, resume=True, on_event=events.append)
    assert [event["step"] for event in events if event["event"] == "resumed"] == [8]
    assert any("damaged checkpoint skipped" in event.get("message", "") for event in events)
    assert same(weights(whole), weights(copy))


def test_frozen_weights_stay_and_others_learn(tmp_path, cache):
    recipe = read_recipe(table(freeze=["encoder.*"]))
    made = trainer(recipe, cache, tmp_path)
    before = {name: p.clone() for name, p in made.model.named_parameters()}
    made.fit()
    moved = {name for name, p in made.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert not any(name.startswith("encoder.") for name in moved)
    with pytest.raises(
        regard.InvalidRecipe, match=r"train.freeze: wanted patterns that match.*'encodr"
    ):
        trainer(read_recipe(table(freeze=["encodr.*"])), cache, tmp_path)


def test_frozen_weights_learn_after_unfreeze_epochs(tmp_path, cache):
    recipe = read_recipe(table(freeze=["encoder.*"], unfreeze_after=1))
    made = trainer(recipe, cache, tmp_path)
    before = {name: p.clone() for name, p in made.model.named_parameters()}
    update, moved = made._update, {False: set(), True: set()}

    def noted(group):
        later = made.state.epoch >= 1
        update(group)
        moved[later] |= {
            name for name, p in made.model.named_parameters() if not torch.equal(p, before[name])
        }

    made._update = noted
    made.fit()
    assert moved[False]
    assert not any(name.startswith("encoder.") for name in moved[False])
    assert moved[True] == before.keys()
    with pytest.raises(
        regard.InvalidRecipe, match=r"train\.unfreeze_after: wanted nothing without freeze"
    ):
        read_recipe(table(unfreeze_after=1))


def test_fine_tuning_starts_from_the_weights_and_vocabulary(cache, whole):
    first = regard.load(whole)
    recipe = read_recipe(table(init_from=str(whole)))
    data = prepare(recipe, cache)
    model = make_model(recipe, recipe.sized(data))
    assert same(weights_of(model), weights_of(first.model))
    assert data.target.hash == first.target.hash
    recipe, events = read_recipe(table(TRANSFORMER | {"ffn_dim": 48}, init_from=str(whole))), []
    make_model(recipe, recipe.sized(data), on_event=events.append)
    assert (
        "weights match and were copied; initialized anew: encoder.stack.layers.0.ffn.up"
        in events[0]["message"]
    )


FINE_TUNED = {
    "classifier": ({"target": {"kind": "label"}}, {"pool": {"kind": "mean"}}),
    "translator": (
        {"target": {"tokenizer": "bytes"}, "shared_vocab": False},
        {"decoder": TRANSFORMER},
    ),
    "of one vocabulary": (
        {"target": {"tokenizer": "words", "vocab_size": 12}},
        {"decoder": TRANSFORMER},
    ),
}


@pytest.mark.parametrize("name", FINE_TUNED)
def test_a_masked_language_model_is_fine_tuned(name, tmp_path, cache):
    words = {"tokenizer": "words", "vocab_size": 12}
    texts = ["the cat sat", "the dog ran", "a dog sat"] * 20
    first = train(
        hidden_tokens(texts, words, tmp_path / "text.txt"), tmp_path / "first", cache=cache
    )
    (tmp_path / "sources.txt").write_text("the cat ran\nthe owl sat\n" * 20)
    (tmp_path / "targets.txt").write_text("one\ntwo\n" * 20)
    data, model = FINE_TUNED[name]
    data = {
        "train": [str(tmp_path / "sources.txt"), str(tmp_path / "targets.txt")],
        "source": words,
    } | data
    tuned = SHORT | {"init_from": str(tmp_path / "first")}
    recipe = {"data": data, "model": {"encoder": TRANSFORMER} | model, "train": tuned}
    made = make_model(
        read_recipe(recipe), read_recipe(recipe).sized(prepare(read_recipe(recipe), cache))
    )
    theirs = weights_of(first.model)
    mine = weights_of(made)
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs if key.startswith("encoder."))
    found = train(recipe, tmp_path / "run", cache=cache)
    assert found.source.hash == first.target.hash
    assert (found.target.hash == first.target.hash) == (name == "of one vocabulary")
    corpora = sorted(cache.iterdir())
    more = train(recipe, tmp_path / "run", changes=["train.max_steps=14"], cache=cache, resume=True)
    assert more.source.hash == first.target.hash
    assert sorted(cache.iterdir()) == corpora
    assert found.predict(["the cat sat"])


def test_an_encoder_decoder_becomes_a_classifier(tmp_path, cache, whole):
    """Its encoder and its source vocabulary are taken; the labels are learned."""
    first = regard.load(whole)
    (tmp_path / "sources.txt").write_text("abc\ncba\n" * 20)
    (tmp_path / "labels.txt").write_text("one\ntwo\n" * 20)
    data = {"train": [str(tmp_path / "sources.txt"), str(tmp_path / "labels.txt")]}
    data |= {"source": table()["data"]["source"], "target": {"kind": "label"}}
    model = {"encoder": TRANSFORMER, "pool": {"kind": "mean"}}
    recipe = read_recipe({"data": data, "model": model, "train": SHORT | {"init_from": str(whole)}})
    prepared = prepare(recipe, cache)
    assert prepared.sources[0].hash == first.sources[0].hash
    assert prepared.target.names == ("one", "two")
    mine, theirs = weights_of(make_model(recipe, recipe.sized(prepared))), weights_of(first.model)
    shared = [name for name in theirs if name.startswith("encoder.")]
    assert shared
    assert all(torch.equal(mine[name], theirs[name]) for name in shared)


def test_a_vocabulary_size_that_contradicts_the_checkpoint_is_refused(tmp_path, cache):
    words = {"tokenizer": "words", "vocab_size": 12}
    train(
        hidden_tokens(["the cat sat"] * 20, words, tmp_path / "text.txt"),
        tmp_path / "first",
        cache=cache,
    )
    again = hidden_tokens(["the cat sat"] * 20, words | {"vocab_size": 50}, tmp_path / "text.txt")
    again["train"] = again["train"] | {"init_from": str(tmp_path / "first")}
    with pytest.raises(
        regard.InvalidRecipe,
        match=r"data\.target\.vocab_size: wanted \d+, of the vocabulary of .*; got 50",
    ):
        prepare(read_recipe(again), cache)


def test_averaged_weights_are_the_mean(tmp_path, cache):
    found = train(table(average_checkpoints=3, keep_checkpoints=3), tmp_path, cache=cache)
    every = []
    for step in (4, 8, 12):
        folder = store.step_folder(tmp_path, step)
        every.append(store.tensors(store.read(folder), "model.safetensors", folder))
    for name, tensor in weights_of(found.model).items():
        torch.testing.assert_close(tensor, sum(each[name] for each in every) / 3)
    assert found.folder == tmp_path / "averaged"
    (store.step_folder(tmp_path, 8) / "model.safetensors").write_bytes(b"")
    events = []
    mean = average_checkpoints(tmp_path, 3, events.append)
    torch.testing.assert_close(mean[name], (every[0][name] + every[2][name]) / 2)
    assert [event["message"].partition(":")[0] for event in events] == ["left out of the average"]


def test_weights_are_averaged_where_that_is_asked_for_only(tmp_path, cache):
    found = train(table(max_steps=1, warmup_steps=0), tmp_path, cache=cache)
    assert found.folder == store.step_folder(tmp_path, 1)


def test_a_resumed_run_averages_again(tmp_path, cache):
    first = train(table(average_checkpoints=2), tmp_path, cache=cache)
    more = train(table(average_checkpoints=2, max_steps=16), tmp_path, cache=cache, resume=True)
    assert not same(weights_of(first.model), weights_of(more.model))
    again = regard.load(tmp_path)
    assert same(weights_of(again.model), weights_of(more.model))


def test_a_stopped_run_averages_the_same_checkpoints(tmp_path, cache):
    recipe = table(average_checkpoints=3, keep_checkpoints=3, max_steps=22)
    whole = train(recipe, tmp_path / "whole", cache=cache)
    interrupted(recipe, tmp_path / "parts", 18, cache)
    assert store.steps(tmp_path / "parts") == [8, 12, 16, 18]
    interrupted(recipe, tmp_path / "parts", 1, cache, resume=True)
    assert store.steps(tmp_path / "parts") == [8, 12, 16, 19]
    parts = train(recipe, tmp_path / "parts", cache=cache, resume=True)
    assert store.steps(tmp_path / "parts") == store.steps(tmp_path / "whole") == [16, 20, 22]
    assert same(weights_of(parts.model), weights_of(whole.model))


def test_a_run_may_end_where_it_was_stopped(tmp_path, cache):
    interrupted(table(average_checkpoints=2), tmp_path / "parts", 7, cache)
    parts = train(
        table(average_checkpoints=2, max_steps=7), tmp_path / "parts", cache=cache, resume=True
    )
    whole = train(table(average_checkpoints=2, max_steps=7), tmp_path / "whole", cache=cache)
    assert same(weights_of(parts.model), weights_of(whole.model))
    assert [line for line in log(tmp_path / "parts") if line["event"] == "validation"] == [
        line for line in log(tmp_path / "whole") if line["event"] == "validation"
    ]


def test_settings_that_need_validation_are_refused_without_it():
    alone = {key: value for key, value in PAIRS.items() if key != "valid"}
    with pytest.raises(regard.InvalidRecipe) as caught:
        read_recipe(table(patience=2, monitor="bleu", lr_schedule="plateau") | {"data": alone})
    assert {problem.key for problem in caught.value.problems} == {
        "train.patience",
        "train.monitor",
        "train.lr_schedule",
    }


def test_the_moving_average_is_saved(tmp_path, cache):
    recipe = read_recipe(table(ema_decay=0.5))
    made = trainer(recipe, cache, tmp_path)
    made.fit()
    kept = weights(tmp_path)
    means = dict(zip(made.ema.names, made.ema.means, strict=True))
    assert same(kept, means)
    assert not same(kept, weights_of(made.model))


def test_a_loaded_model_gives_the_same_outputs(copy, cache):
    model = train(table(max_steps=13), copy, cache=cache, resume=True)
    again = regard.load(copy)
    texts = ["abc", "", "a much longer text", "b"]
    assert again.predict(texts) == model.predict(texts)
    assert [again.predict([text])[0] for text in texts] == again.predict(texts)
    assert replace(again, folder=None) != model


KILLED = """
import sys
from pathlib import Path
from regard.api.train import train
import json
recipe, run, cache = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
train(recipe, run, cache=cache, resume=True, on_event=lambda event: print(event["event"], flush=True))
"""


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_the_same(tmp_path, cache):
    recipe = table(max_steps=60, validate_every=6, batch_tokens=512)
    train(recipe, tmp_path / "whole", cache=cache)
    command = [sys.executable, "-c", KILLED, json.dumps(recipe), str(tmp_path / "run"), str(cache)]
    kills = 0
    for wait in (0.05, 0.4, 0.2, 0.6):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.strip() == "start":
                    break
            time.sleep(wait)
            kills += process.poll() is None
            process.kill()
    assert kills
    subprocess.run(command, check=True, capture_output=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))


@pytest.mark.slow
def test_the_environment_changes_nothing(tmp_path, whole):
    """Clock, hash seed, locale, time zone and worker threads: the same weights."""
    surroundings = {
        "PYTHONHASHSEED": "7",
        "LC_ALL": "C",
        "TZ": "Pacific/Apia",
        "TOKENIZERS_PARALLELISM": "false",
    }
    surroundings |= {"RAYON_NUM_THREADS": "3"}
    backwards = (
        "import time\nnow = time.time\ntime.time = lambda: 4e9 - now()\n"  # in another century
    )
    command = [
        sys.executable,
        "-c",
        backwards + KILLED,
        json.dumps(table()),
        str(tmp_path / "there"),
        str(tmp_path / "cache"),
    ]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | surroundings)
    assert same(weights(whole), weights(tmp_path / "there"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_saves_and_ends_the_command(number, tmp_path, cache):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[data]\ntrain = ["{LETTERS}", "{LETTERS}"]\n'
        'source = {tokenizer = "bytes"}\ntarget = {tokenizer = "bytes"}\n'
        '[model]\nencoder = {kind = "rnn", dim = 16}\ndecoder = {kind = "rnn", dim = 16}\n'
        "[train]\nmax_steps = 100000\nlog_every = 1\nbatch_tokens = 512\n"
    )
    command = [
        sys.executable,
        "-m",
        "regard",
        "train",
        str(recipe),
        "--out",
        str(tmp_path / "run"),
        "--cache",
        str(cache),
    ]
    # A command in the background of a script ignores SIGINT, and one under nohup SIGHUP, which training obeys.
    default = partial(signal.signal, number, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=default)
    for line in process.stderr:
        if line.startswith("step 3/"):
            break
    seconds, errors = seconds_to_end(process, number)
    assert seconds < 10
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert store.verify(store.step_folder(tmp_path / "run", store.steps(tmp_path / "run")[-1]))


FOREIGN = ["averaged/model.bin", "log.jsonl", ".notes.tmp", "thesis.txt"]


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_other_files_is_refused_and_left_alone(name, resume, tmp_path, cache):
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(
        regard.InvalidArgument,
        match=r"out: wanted the folder of a run, or an empty or a new one; got",
    ):
        train(table(max_steps=4), tmp_path / "out", cache=cache, resume=resume)
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "mine"


def test_an_empty_name_is_no_folder(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command(
        "train", "dates", "--out", "", "--set", "train.max_steps=1", "--set", "train.warmup_steps=0"
    )
    assert done.returncode == 2
    assert "run: wanted the folder of the run; got an empty name" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_keeps_files_that_are_not_its_own(copy, cache):
    ours, others = copy / ".step-00000016.123.tmp", [copy / ".notes.tmp", copy / "notes.txt"]
    for path in (ours, *others):
        path.write_text("")
    train(table(), copy, cache=cache, resume=True)
    assert not ours.exists()
    assert all(path.exists() for path in others)


def test_a_run_that_failed_before_its_first_checkpoint_may_begin_again(
    tmp_path, cache, monkeypatch
):
    monkeypatch.setattr(Trainer, "_update", lambda self, batches: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(table(max_steps=4), tmp_path / "run", cache=cache)
    monkeypatch.undo()
    train(table(max_steps=4), tmp_path / "run", cache=cache)


@pytest.mark.parametrize("resume", [False, True])
def test_two_trainings_of_one_folder_are_refused(resume, tmp_path, cache):
    refused = []

    def again(event):
        if event["event"] == "checkpoint" and not refused:
            with pytest.raises(
                regard.InvalidArgument, match=rf"no other process.*got process {os.getpid()} on "
            ) as e:
                train(table(), tmp_path / "run", cache=cache, resume=resume)
            refused.append(e.value.exit_code)

    train(table(), tmp_path / "run", cache=cache, on_event=again)
    assert refused == [2]


HARM = {
    "removed": shutil.rmtree,
    "renamed": lambda run: run.rename(run.with_name("elsewhere")),
    "emptied": lambda run: [path.unlink() for path in run.iterdir() if path.is_file()],
}


@pytest.mark.parametrize("name", HARM)
def test_a_folder_that_is_removed_while_it_is_trained_in_is_noticed_at_once(
    name, tmp_path, cache, monkeypatch
):
    update, steps = Trainer._update, []

    def harmful(self, batches):
        update(self, batches)
        steps.append(self.state.step)
        if self.state.step == 5:
            HARM[name](self.run)

    monkeypatch.setattr(Trainer, "_update", harmful)
    with pytest.raises(regard.TrainingFailed, match="was removed or renamed while training"):
        train(table(), tmp_path / "run", cache=cache)
    assert steps[-1] == 5
    assert (tmp_path / "run").exists() == (name == "emptied")


def limit_file_size(run: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))  # EFBIG


def fail_to_sync(run: Path) -> None:
    def fsync(handle):
        raise OSError(errno.EIO, "Input/output error")

    os.fsync = fsync


def fill_the_log(run: Path) -> None:
    (run / "log.jsonl").unlink()
    (run / "log.jsonl").symlink_to("/dev/full")  # ENOSPC


DISKS = {
    "file too large": (
        limit_file_size,
        "checkpoint",
        r"step-00000008: wanted to save a checkpoint; got .*File too large",
    ),
    "error": (
        fail_to_sync,
        "checkpoint",
        r"step-00000008: wanted to save a checkpoint; got Input/output error",
    ),
    "full, for the log": (
        fill_the_log,
        "start",
        r"log\.jsonl: wanted to write the log; got No space left on device",
    ),
}


@pytest.mark.parametrize("name", DISKS)
def test_an_error_of_the_disk_names_its_remedy_and_loses_nothing(
    name, tmp_path, cache, whole, monkeypatch
):
    fail, when, message = DISKS[name]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(os, "fsync", os.fsync)

    def on_event(event):
        if event["event"] == when:
            (tmp_path / "run" / "log.jsonl").touch()
            fail(tmp_path / "run")

    try:
        with pytest.raises(regard.TrainingFailed, match=message + ".*make room, and resume"):
            train(table(), tmp_path / "run", cache=cache, on_event=on_event)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        monkeypatch.undo()
    assert store.steps(tmp_path / "run") == ([4] if when == "checkpoint" else [])
    if when == "start":
        (tmp_path / "run" / "log.jsonl").unlink()
    train(table(), tmp_path / "run", cache=cache, resume=True)
    assert same(weights(tmp_path / "run"), weights(whole))
    assert log(tmp_path / "run") == log(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_other_signals_save_too(number, tmp_path, cache, whole):
    before = signal.signal(
        number, signal.SIG_DFL
    )  # `nohup make test` ignores SIGHUP, which training obeys
    try:
        interrupted(table(), tmp_path / "run", 5, cache, number)
    finally:
        signal.signal(number, before)
    train(table(), tmp_path / "run", cache=cache, resume=True)
    assert same(weights(tmp_path / "run"), weights(whole))


def test_nohup_is_obeyed(tmp_path, cache, whole, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        train(
            table(),
            tmp_path / "run",
            cache=cache,
            on_event=lambda _: os.kill(os.getpid(), signal.SIGHUP),
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert same(weights(tmp_path / "run"), weights(whole))


@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_signal_ends_a_long_validation(ema, tmp_path, cache, monkeypatch):
    recipe, validation, validated = table(ema_decay=ema), train_module.validation, []
    train(recipe, tmp_path / "whole", cache=cache)

    def slow(recipe, data):
        def validate(model):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
            validated.append(model)
            return validation(recipe, data)(model)

        return validate

    monkeypatch.setattr(train_module, "validation", slow)
    with pytest.raises(InterruptedTraining):
        train(recipe, tmp_path / "run", cache=cache)
    assert not validated
    assert store.steps(tmp_path / "run") == [4]
    assert regular_steps(tmp_path / "run") == []
    monkeypatch.undo()
    train(recipe, tmp_path / "run", cache=cache, resume=True)
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert log(tmp_path / "run") == log(tmp_path / "whole")


def test_a_closed_stderr_ends_nothing(tmp_path, cache, whole):
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    train(table(), tmp_path / "run", cache=cache, on_event=TrainingProgress(stream))
    with pytest.raises(BrokenPipeError):
        stream.close()
    assert same(weights(tmp_path / "run"), weights(whole))
    TrainingProgress(None)({"event": "warning", "message": "a process may have no stderr"})
