"""A look of the studio in parts: the maps that a request leaves out come later, from the same computation."""

import asyncio
import gc
import weakref
from importlib import import_module
from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.data.images import load_image
from regard.data.synthetic.shapes import shapes
from regard.studio import jobs as studio_jobs, long_inputs
from regard.studio.jobs import LiveLook
from regard.studio.routes import studio
from support.captioners import captioner
from support.predictors import translator
from support.servers import served

TEXT = "the red dog sat"
EDITS = [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 0}]


@pytest.fixture
def computed(monkeypatch):
    """One for each look that was computed."""
    made, compute = [], LiveLook._computed
    monkeypatch.setattr(LiveLook, "_computed", lambda *given: made.append(1) or compute(*given))
    return made


def test_the_parts_are_those_of_one_look(computed):
    model = translator().with_decode(max_length=8)
    look = regard.look(model, TEXT, edits=EDITS, beam_size=1)
    asked = {"input": [TEXT], "edits": EDITS, "beam_size": 1}
    with served({"en-de": model}) as server:
        whole = server.ask("/studio/look", asked)[2]
        assert [each["name"] for each in whole["maps"]] == [each.name for each in look.maps]
        assert whole["output"]["tokens"] == list(look.output.tokens)
        for chosen in (slice(2, 3), slice(3, None), slice(0, 0)):
            wanted = whole["maps"][chosen]
            names = [each["name"] for each in wanted]
            assert server.ask("/studio/look", asked | {"maps": names})[2] == whole | {
                "maps": wanted
            }
        assert len(computed) == 1
        for other in ("alternatives", "export", "watch"):  # which give no maps, or all of them
            more = {"position": 0} if other == "alternatives" else {}
            assert server.ask(f"/studio/{other}", asked | more | {"maps": []})[0] in (400, 422)
        status, _, problem = server.ask("/studio/look", asked | {"maps": ["decoder 1 cros"]})
    assert status == 400
    assert "decoder 1 cross" in problem["detail"]


def test_a_prepared_look_is_not_computed_again_and_a_refused_edit_is_told(computed):
    model = translator().with_decode(max_length=8)
    asked = {"input": [TEXT], "edits": EDITS, "beam_size": 1}
    unknown = [{"edit": "replace_token", "position": 1, "token": "no such token"}]
    with served({"en-de": model}) as server:
        assert server.ask("/studio/prepare", asked)[::2] == (200, {"refusal": None})
        assert server.ask("/studio/look", asked)[0] == 200
        assert len(computed) == 1
        status, _, answer = server.ask("/studio/prepare", asked | {"edits": unknown})
        assert (status, "no such token" in answer["refusal"]) == (200, True)
        assert (
            server.ask("/studio/look", asked | {"edits": unknown})[2]["detail"] == answer["refusal"]
        )
        assert server.ask("/studio/prepare", asked | {"model": "other"})[0] == 404
        assert server.ask("/studio/prepare", asked | {"maps": []})[0] in (400, 422)


@pytest.mark.parametrize(
    "other",
    [
        {"input": "a cat"},
        {"edits": ({**EDITS[0], "head": 1},)},
        {"output": "ein Hund"},
        {"options": {"beam_size": 2}},
        {"words": True},
    ],
    ids=lambda other: next(iter(other)),
)
def test_anything_else_is_another_look(computed, other):
    model, asked = translator(), {"input": TEXT, "edits": tuple(EDITS), "options": {}}
    looks = [LiveLook(**given).look(model) for given in (asked, asked, asked | other)]
    assert looks[0] is looks[1]
    assert len(computed) == 2


def test_samples_without_a_seed_are_drawn_anew(computed):
    model = translator()
    for options in ({"sample": True}, {"sample": True, "seed": 7}):
        computed.clear()
        for _ in range(3):
            LiveLook(TEXT, options=options).look(model)
        assert len(computed) == (1 if "seed" in options else 3)


def test_pictures_are_told_apart(computed):
    model = captioner("transformer")
    first, second = (load_image(each.sources[0], 64) for each in shapes("valid", 0, 2))
    looks = [LiveLook(given).look(model) for given in (first, first.copy(), second)]
    assert looks[0] is looks[1]
    assert len(computed) == 2


def test_a_look_that_is_too_large_is_not_kept(computed, monkeypatch):
    model = translator()
    monkeypatch.setattr(import_module("regard.studio.speculative_edits"), "LARGEST", 0)
    for _ in range(2):
        LiveLook(TEXT).look(model)
    assert len(computed) == 2
    assert studio_jobs._last_looks.of(model).value == (None, None)


def test_what_is_kept_for_a_model_is_released_with_it():
    model = translator()
    LiveLook(TEXT).look(model)
    opened = long_inputs._remembered(TEXT)
    long_inputs._of(model, opened)
    weights = weakref.ref(model.model)
    del model
    gc.collect()
    assert weights() is None


@pytest.mark.parametrize(("seconds", "most"), [(0.01, 0.09), (0.3, 0.6)])
def test_looks_at_an_unfinished_output_leave_time_for_the_search(monkeypatch, seconds, most):
    """By a clock that only the search, of 10 ms a token, and the looks move."""
    clock, ended, pauses = SimpleNamespace(now=0.0), [], []
    monkeypatch.setattr(studio, "time", SimpleNamespace(monotonic=lambda: clock.now))

    class Client:
        async def tokens(self, search):
            for token in range(400):
                clock.now += 0.01
                await asyncio.sleep(0)
                yield token
            yield [SimpleNamespace(token_ids=(1, 2))]

        async def results(self, works):
            pauses.extend(clock.now - each for each in ended[-1:])
            clock.now += seconds
            ended.append(clock.now)
            return [b"{}"]

    async def watched():
        return [event async for event in studio._watched(Client(), None, LiveLook(TEXT))]

    events = asyncio.run(watched())
    assert len(events) == len(ended) > 4
    assert events[-1].startswith(b'data: {"last": true')
    assert pauses[:-1] == pytest.approx(
        [most] * (len(pauses) - 1), abs=0.031
    )  # up to three tokens until it is noticed
