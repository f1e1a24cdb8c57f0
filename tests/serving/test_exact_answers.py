"""On a CPU a served answer is what the model gives for the input alone, bit for bit, whatever is computed beside it.

Over the members of the family; requests arrive at random times with random options, and some are cancelled. Steps of a
compiled decoder do not depend on the batch. Those of one that PyTorch executes do, so that each request has a search of
its own.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

import regard
from regard.generation.request import SearchTask
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe
from regard.serving.scheduler import searches
from regard.serving.scheduler.jobs import Generation, Job
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from regard.tasks.generate import SequencePipeline
from regard.tasks.pipeline import OutputOptions
from support.captioners import captioner, questioner
from support.predictors import COPY, PARTS, language_model, tokenizer

TRANSFORMER, RNN = PARTS["transformer"], PARTS["rnn"]
ENCODERS = {
    "bag": {"kind": "bag", "dim": 16},
    "gru": {**RNN, "cell": "gru"},
    "lstm": {**RNN, "cell": "lstm", "layers": 2},
    "mlp": {"kind": "mlp", "dim": 16, "ffn_dim": 24},
    "conv": PARTS["conv"],
    "transformer": TRANSFORMER,
    "perceiver": {**TRANSFORMER, "kind": "perceiver", "queries": 5},
    "rotary": {**TRANSFORMER, "positions": "rotary"},
}
DECODERS: dict[str, dict] = {
    "rnn": {**RNN, "attention": "none"},
    "bahdanau": {**RNN, "attention": "bahdanau"},
    "luong": {**RNN, "cell": "lstm", "attention": "luong"},
    "conv": PARTS["conv"],
    "transformer": TRANSFORMER,
}
VARIANTS = {
    "rotary": {"positions": "rotary"},
    "grouped": {"kv_heads": 1},
    "gated": {"activation": "swiglu"},
    "alibi": {"positions": "alibi"},
    "relative": {"positions": "relative"},
    "like Llama": {"norm": "rms", "activation": "swiglu", "positions": "rotary", "kv_heads": 1, "head_dim": 10,
                   "attention_bias": "none", "ffn_bias": False, "qk_norm": True},
    "like T5": {"norm": "rms", "activation": "geglu", "positions": "relative", "score": "dot", "head_dim": 6},
    "like BART": {"positions": "learned", "norm_input": True, "norm_first": False},
}  # fmt: skip
UNCOMPILED = {
    "additive": {"score": "additive"},
    "bilinear": {"score": "bilinear"},
    "windowed": {"positions": "rotary", "sliding_window": 3},
    "concatenated": {"position_mode": "concatenate"},
}
DECODERS |= {name: {**TRANSFORMER, **options} for name, options in (VARIANTS | UNCOMPILED).items()}
TEXTS = [
    "the cat sat",
    "a dog ran on the mat",
    "the",
    "on the mat the red cat sat; a dogma",
    "dog",
    "",
    "the " * 40,
]
OPTIONS = [
    {"max_length": 9},
    {"max_length": 25, "min_length": 6},
    {"max_length": 20, "beam_size": 3, "num_hypotheses": 2},
    {"max_length": 15, "sample": True, "temperature": 0.8, "seed": 3},
]
PATIENCE = 60.0
COUNT = 24


def translator(encoder: dict, decoder: dict) -> Predictor:
    words, parts = tokenizer(), {"encoder": encoder, "decoder": decoder}
    torch.manual_seed(1)
    model = regard.build({**parts, "vocab_size": words.size}).eval()
    with torch.no_grad():
        model.decoder.project.weight *= 2
    return Predictor(
        model,
        Recipe.of({"data": COPY, "model": parts, "decode": {"max_length": 30}}),
        (words,),
        words,
    )


def pictures(count: int) -> list[np.ndarray]:
    return [
        np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8) for seed in range(count)
    ]


PAIRS = [
    *((each, "transformer") for each in ENCODERS),
    *(("lstm", each) for each in DECODERS if each != "transformer" and each not in UNCOMPILED),
    *(("transformer", each) for each in UNCOMPILED),
    ("conv", "conv"),
    ("transformer", "luong"),
]
MEMBERS: dict[str, tuple[Callable[[], Predictor], list]] = {
    **{" to ".join(pair): (partial(lambda *names: translator(ENCODERS[names[0]], DECODERS[names[1]]), *pair), TEXTS)
       for pair in PAIRS},
    "language model": (language_model, [text for text in TEXTS if text]),
    "image to rnn": (lambda: captioner("rnn"), pictures(6)),
    "image to transformer": (lambda: captioner("transformer"), pictures(6)),
    "image and text": (lambda: questioner(DECODERS["luong"]), [*zip(pictures(6), TEXTS[:6], strict=True)]),
}  # fmt: skip


def assert_exact(
    predictor: Predictor,
    inputs: list,
    slots: int,
    seed: int = 0,
    count: int = COUNT,
    threads: int = 1,
) -> None:
    engine = Scheduler(
        SchedulerLimits(slots=slots, queued_jobs=1000, queued_tokens=1 << 30, searches=threads),
        "cpu",
    )
    engine.load("m", "1", predictor)
    engine.start()
    answers: list[tuple[Generation, list, threading.Event]] = []
    cancelled = set[int]()

    def client(number: int) -> None:
        chance = random.Random(10 * seed + number)
        for _ in range(count // 2):
            work = Generation(
                chance.choice(inputs),
                chance.choice(OPTIONS),
                scores=True,
                number=chance.randrange(3),
                truncate=True,
            )
            found, ended = [], threading.Event()
            job = Job(
                "m",
                work,
                lambda result, found=found, ended=ended: (found.append(result), ended.set()),
            )
            engine.submit(job)
            answers.append((work, found, ended))
            if chance.random() < 0.15:
                engine.cancel(job)
                cancelled.add(id(work))
            time.sleep(chance.random() * 0.004)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checked = 0
    for work, found, ended in answers:
        if id(work) in cancelled:
            continue
        assert ended.wait(PATIENCE)
        options = {"scores": True, "truncate": True, "lines": [work.number + 1]}
        (alone,) = predictor.outputs([work.input], **options, **work.options)
        numbers = [[(each.text, each.token_ids, each.score, each.log_probabilities) for each in outputs]
                   for outputs in (found[0], alone)]  # fmt: skip
        assert numbers[0] == numbers[1], (work.options, checked)
        checked += 1
    assert checked > count // 2
    assert engine.stop(PATIENCE)


@pytest.mark.parametrize("member", MEMBERS)
def test_an_answer_does_not_depend_on_what_is_computed_beside_it(member):
    make, inputs = MEMBERS[member]
    assert_exact(make(), inputs, slots=8)


@pytest.mark.parametrize(
    "member", ["lstm to bahdanau", "conv to conv", "transformer to transformer"]
)
def test_nor_on_which_of_several_searches_computes_it(member, monkeypatch):
    """With searches of two hypotheses or more in two threads at once, of which small ones are interrupted."""
    monkeypatch.setattr(searches, "FULL_ROWS", 2)
    begun, compute = Counter[str](), searches.SearchGroup.compute

    def counted(group: searches.SearchGroup) -> searches.Round:
        begun[threading.current_thread().name] += 1
        return compute(group)

    monkeypatch.setattr(searches.SearchGroup, "compute", counted)
    make, inputs = MEMBERS[member]
    assert_exact(make(), inputs, slots=8, threads=2)
    assert len([name for name in begun if "search" in name]) == 2, begun


@pytest.mark.parametrize("decoder", VARIANTS)
def test_variants_of_the_transformer_share_searches(decoder):
    """Their steps are compiled: none has a search for each request."""
    assert searches.exact_in_batches(task_of(translator(ENCODERS["bag"], DECODERS[decoder])))


@pytest.mark.parametrize("decoder", UNCOMPILED)
def test_what_pytorch_executes_has_a_search_for_each_request(decoder):
    assert not searches.exact_in_batches(task_of(translator(ENCODERS["bag"], DECODERS[decoder])))


def task_of(predictor: Predictor) -> SearchTask:
    pipeline = predictor.pipeline
    assert isinstance(pipeline, SequencePipeline)
    return pipeline.task(predictor.decode_config({}), OutputOptions())
