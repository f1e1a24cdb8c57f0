"""What a job may ask for beside the text: an end before a string, the text of each token, the prompt, a wider beam."""

import threading
from collections.abc import Iterator

import pytest

from regard.generation.search import Search
from regard.generation.text_stream import StopStrings
from regard.serving.scheduler.admission import Planner
from regard.serving.scheduler.jobs import Generation, Job
from regard.serving.scheduler.scheduler import Scheduler
from support.predictors import language_model, translator

PATIENCE = 60.0
MODELS = {
    "lines": language_model(),
    "running": language_model(context_length=8),
    "rnn": translator(decoder="rnn"),
}
SAMPLE = {"sample": True, "temperature": 2.0, "min_length": 20, "max_length": 20}
BEAM = {"beam_size": 3, "min_length": 12, "max_length": 12, "no_repeat_ngram_size": 2}


@pytest.fixture(scope="module")
def engine() -> Iterator[Scheduler]:
    engine = Scheduler()
    for name, predictor in MODELS.items():
        engine.load(name, "1", predictor)
    engine.start()
    yield engine
    engine.stop(PATIENCE)


def outputs(
    engine: Scheduler, model: str, *given: object, pieces: list[str] | None = None, **work: object
) -> list:
    ended, results = threading.Event(), []
    job = Job(
        model, Generation(*given, **work), lambda result: (results.append(result), ended.set())
    )
    if pieces is not None:
        job.on_text = pieces.append
    engine.submit(job)
    assert ended.wait(PATIENCE)
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


@pytest.mark.parametrize("model", MODELS)
def test_the_texts_of_the_tokens_are_the_text(engine, model):
    (output,) = outputs(engine, model, "the cat", SAMPLE, token_texts=True, scores=True)
    assert (
        output.text
        == MODELS[model].predict(["the cat"], **SAMPLE)[0]
        == "".join(output.token_texts)
    )
    assert len(output.token_texts) == len(output.tokens)
    assert output.input_tokens == len(MODELS[model].encode("the cat")[0])


@pytest.mark.parametrize("model", MODELS)
def test_a_beam_ends_before_a_string_as_without_a_server(engine, model):
    (whole,) = outputs(engine, model, "the cat", BEAM)
    options = {**BEAM, "num_hypotheses": 3, "stop": (whole.text[3:5],)}
    found = outputs(engine, model, "the cat", options, scores=True)
    wanted = MODELS[model].outputs(["the cat"], scores=True, **options)[0]
    assert [each.text for each in found] == [each.text for each in wanted]
    assert [each.score for each in found] == pytest.approx([each.score for each in wanted])
    assert [each.finish_reason for each in found] == [each.finish_reason for each in wanted]
    assert "end" in [each.finish_reason for each in found]


@pytest.mark.parametrize("model", MODELS)
def test_an_output_ends_before_a_string(engine, model):
    options = SAMPLE
    (whole,) = outputs(engine, model, "the cat", options, token_texts=True, scores=True)
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 3]
    place = whole.text.find(stop)
    stopping = {**options, "stop": ("\0", stop)}
    (output,) = outputs(engine, model, "the cat", stopping, token_texts=True, scores=True)
    assert (output.text, output.finish_reason) == (whole.text[:place], "end")
    assert "".join(output.token_texts) == output.text
    count = len(output.tokens)
    assert len(output.log_probabilities) == len(output.token_ids) == count < len(whole.tokens)
    assert output.tokens == whole.tokens[:count]
    assert (
        len("".join(whole.token_texts[: count - 1]))
        < place
        <= len("".join(whole.token_texts[:count]))
    )


def test_requests_with_other_stop_strings_share_a_search():
    predictor = MODELS["rnn"]
    planner = Planner(predictor, predictor.pipeline)
    works = [Generation("a", {"stop": strings}) for strings in (("x",), ("y", "z"), ["y", "z"])]
    assert len({planner.settings(work).number for work in works}) == 1
    assert [planner.settings(work).task.stops.strings for work in works] == [
        ("x",),
        ("y", "z"),
        ("y", "z"),
    ]


def test_a_stream_ends_before_a_string_and_frees_its_slot(engine, monkeypatch):
    (whole,) = outputs(engine, "rnn", "the cat", SAMPLE)
    steps, advance = [], Search.advance
    monkeypatch.setattr(Search, "advance", lambda *given: (steps.append(1), advance(*given))[1])
    stop, pieces = whole.text[len(whole.text) // 2 :][:4], []
    (output,) = outputs(engine, "rnn", "the cat", {**SAMPLE, "stop": (stop,)}, pieces=pieces)
    assert "".join(pieces) == output.text == whole.text[: whole.text.find(stop)]
    assert len(output.tokens) <= len(steps) < len(whole.tokens)
    assert engine.busy == 0
    assert not any(model.groups for model in engine.models.values())


@pytest.mark.parametrize("model", ["lines", "running"])
def test_the_prompt_comes_back(engine, model):
    """With its log-probabilities, which are those of a score."""
    predictor, prompt, pieces = MODELS[model], "the cat sat", []
    options = {"max_length": 3, "min_length": 3}
    (output,) = outputs(
        engine, model, prompt, options, echo=True, scores=True, token_texts=True, pieces=pieces
    )
    assert output.text == "".join(pieces) == prompt + predictor.predict([prompt], **options)[0]
    scores = predictor.score([prompt])[0].log_probabilities
    count = output.input_tokens
    assert "".join(output.token_texts[:count]) == prompt
    assert output.log_probabilities[:count] == pytest.approx(scores[:count], abs=1e-4)
    (output,) = outputs(engine, model, prompt, {**options, "stop": ("t",)}, echo=True)
    assert output.text.startswith(prompt)


def test_a_beam_is_as_wide_as_its_outputs(engine):
    found = outputs(engine, "rnn", "a dog", {"num_hypotheses": 3, "max_length": 5}, widen_beam=True)
    wanted = MODELS["rnn"].outputs(["a dog"], num_hypotheses=3, beam_size=3, max_length=5)[0]
    assert [each.text for each in found] == [each.text for each in wanted]
    sampled = {**SAMPLE, "num_hypotheses": 3}
    found = outputs(engine, "rnn", "a dog", sampled, widen_beam=True)
    assert [each.text for each in found] == [
        each.text for each in MODELS["rnn"].outputs(["a dog"], **sampled)[0]
    ]


@pytest.mark.parametrize(
    ("strings", "pieces", "wanted"),
    [
        (["stop"], ["no st", "art st", "op more", "x"], ["no ", "start ", "", ""]),
        (["aab"], ["aa", "a", "b"], ["", "a", ""]),
        (["b", "abc"], ["a", "b"], ["", "a"]),
        ([""], ["any"], ["any"]),
        (["end"], ["the e", "n"], ["the ", "en"]),
    ],
)
def test_what_may_begin_a_stop_string_is_withheld(strings, pieces, wanted):
    stops = StopStrings(strings)
    assert [stops.add(piece, last=piece is pieces[-1]) for piece in pieces] == wanted


def test_sampling_can_be_switched_off():
    """Also where the recipe samples from the most likely tokens."""
    sampling = MODELS["rnn"].with_decode(sample=True, top_k=5)
    assert sampling.predict(["a dog"], sample=False) == MODELS["rnn"].predict(["a dog"])
