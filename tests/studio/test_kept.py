"""What a server keeps from one request to the next is bounded: what was used last stays."""

import asyncio
from collections import OrderedDict
from unittest.mock import Mock

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.core.errors import InvalidArgument, InvalidRecipe, Overloaded
from regard.serving.http.request_handler import RequestHandler
from regard.serving.http.service import Service
from regard.serving.routes.libretranslate import _fields
from regard.serving.scheduler.admission import Planner
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import Generation
from regard.studio import data as studio_data, long_inputs
from regard.studio.data import DataSet
from regard.studio.routes.data import StudioDataRoutes
from support.predictors import translator


@pytest.fixture
def looks(monkeypatch) -> list[str]:
    """The long inputs that were looked at, in order; none is open."""
    seen: list[str] = []

    def look(predictor, given, **options):
        seen.append(given)
        return real(predictor, given, **options)

    real = long_inputs.look
    monkeypatch.setattr(long_inputs, "look", look)
    monkeypatch.setattr(long_inputs, "_inputs", OrderedDict())
    return seen


def test_eight_long_inputs_are_open(looks):
    names = [long_inputs._remembered(f"text {number}") for number in range(8)]
    assert long_inputs._remembered("text 0") == names[0]  # used again: not the next to go
    names.append(long_inputs._remembered("text 8"))
    model = translator()
    for number in (0, 2, 8):
        long_inputs._of(model, names[number])
    assert looks == ["text 0", "text 2", "text 8"]
    with pytest.raises(InvalidArgument, match="id: wanted an input that is open"):
        long_inputs._of(model, names[1])


def test_two_looks_at_long_inputs_are_kept(looks):
    model, (a, b, c) = translator(), [long_inputs._remembered(text) for text in "abc"]
    for name in (a, b, a, b, a, c, a, b):
        long_inputs._of(model, name)
    assert looks == ["a", "b", "c", "b"]
    assert long_inputs._of(translator(), b).look is not long_inputs._of(model, b).look


def test_a_data_set_is_measured_with_four_models(monkeypatch):
    ended: list[str] = []

    async def measure(self, found, data):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(f"{found.model.name} {found.model.version}")

    monkeypatch.setattr(StudioDataRoutes, "_measure", measure)

    async def ask() -> None:
        routes = StudioDataRoutes(object.__new__(Service), DataSet(("x.tsv",)))
        models = [ModelInfo(name, version) for name, version in ("a1", "a2", "b1", "c1", "d1")]
        first = routes._measurements(models[0])
        for model in (*models[1:4], models[0], models[3]):
            routes._measurements(model)
            await asyncio.sleep(0)
        assert routes._measurements(models[0]) is first
        assert not ended
        routes._measurements(models[4])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ended == ["a 2"]
        for each in routes._of_models.values():
            each.task.cancel()
        await asyncio.sleep(0)

    asyncio.run(ask())


def test_settings_of_requests_are_kept_up_to_a_number(monkeypatch):
    """Clients choose options: each of millions must not stay in memory."""
    predictor = translator()
    planner = Planner(predictor, predictor.pipeline)
    made: list[int] = []
    settings = planner.settings(Generation("a"))

    def new_settings(self, work):
        made.append(work.options["seed"])
        return settings._replace(number=work.options["seed"])

    monkeypatch.setattr(Planner, "_new_settings", new_settings)
    one, other = (
        [planner.settings(Generation("a", options={"seed": seed})) for seed in (1, 1, 2)]
        for _ in "ab"
    )
    assert all(a is b for a, b in zip(one, other, strict=True))
    assert one[0] is one[1] is not one[2]
    assert made == [1, 2]
    largest = 0
    for seed in range(3, 3000):
        planner.settings(Generation("a", options={"seed": seed}))
        largest = max(largest, len(planner._settings))
    assert largest == 1024
    assert len(made) == 2999
    planner.settings(Generation("a", options={"seed": 2999}))
    assert len(made) == 2999


def test_a_value_that_cannot_be_compared_is_refused_as_any_other():
    predictor = translator()
    planner = Planner(predictor, predictor.pipeline)
    for wrong in ([1], {"a": 1}):
        with pytest.raises(InvalidRecipe, match="seed: wanted"):
            planner.settings(Generation("a", options={"seed": wrong}))
    assert not planner._settings


def test_ten_thousand_examples_of_a_data_set_are_read(monkeypatch):
    for count, known, more in (
        (9_999, 9_999, False),
        (10_000, 10_000, False),
        (10_001, 10_000, True),
    ):
        monkeypatch.setattr(
            studio_data,
            "pairs_of",
            lambda *given, count=count, **options: iter([("a", "b")] * count),
        )
        found = studio_data._measured(translator(), DataSet(("x.tsv",)))
        assert (len(found.pairs), found.more) == (known, more)


def test_heads_are_measured_over_128_examples_and_ablated_over_32(monkeypatch):
    """In their order, each once."""
    model, data = translator(), DataSet(("x.tsv",))
    monkeypatch.setattr(
        studio_data, "pairs_of", lambda *given, **options: iter([("the cat", "a")] * 200)
    )
    measured = studio_data._measured(model, data)
    for before, index, added in ((0, 0, 1), (0, 1, 0), (127, 127, 1), (127, 126, 0), (128, 128, 0)):
        measured.meter = Mock(inputs=before)
        studio_data.ExampleMeasurement("", data, index)._example(model)
        assert measured.meter.add.call_count == added, (before, index)
    lengths: list[int] = []
    monkeypatch.setattr(
        studio_data,
        "_loss",
        lambda predictor, pairs: float(lengths.append(len(pairs)) or len(lengths)),
    )
    left = [studio_data.AblationStep("", data)._step(model) for _ in range(3)]
    assert lengths == [32, 32, 32]
    assert [*measured.ablation.values()] == [1.0, 2.0]  # losses without a head, less the first
    assert left[0] - 1 == left[1] == left[2] + 1


def test_sixteen_large_bodies_are_in_memory():
    exchange = object.__new__(RequestHandler)
    exchange.server = Mock()
    exchange.server.service.large_bodies, exchange.large = 15, False
    exchange._count_large_body()
    exchange._count_large_body()  # the same
    assert (exchange.server.service.large_bodies, exchange.large) == (16, True)
    exchange.large = False
    with pytest.raises(Overloaded) as refused:
        exchange._count_large_body()
    assert refused.value.retry_after == 1
    assert exchange.server.service.large_bodies == 16


def test_forms_have_a_thousand_fields():
    assert len(_fields(b"&".join(b"a%d=1" % number for number in range(1000)))) == 1000
    assert _fields(b"q=a&q=b&source=en&empty=") == {"q": ["a", "b"], "source": "en", "empty": ""}
    with pytest.raises(ValueError, match="Max number of fields exceeded"):
        _fields(b"&".join(b"a%d=1" % number for number in range(1001)))
