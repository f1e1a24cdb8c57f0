"""docs/internals.md: the call chains are those of real runs, traced with `sys.setprofile`."""

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import regard
from regard.cli import predict as cli
from regard.generation.engines.cpu import compile as engine
from support.predictors import translator

PAGE = (Path(__file__).parents[2] / "docs" / "internals.md").read_text("utf-8")
CHAINS = [
    block
    for block in re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    if "regard." in block
]
Edge = tuple[
    str | None, str
]  # the nearest listed function that was running, and the one that was called


def tree(block: str) -> list[Edge]:
    """The functions of a chain in their order, each with the one it is indented under."""
    above: list[tuple[int, str]] = []
    edges = []
    for indent, name in re.findall(r"^( *)(regard[\w.]*:[\w.]+)", block, re.MULTILINE):
        while above and above[-1][0] >= len(indent):
            above.pop()
        edges.append((above[-1][1] if above else None, name))
        above.append((len(indent), name))
    return edges


def traced(names: set[str], run: Callable[[], object]) -> list[Edge]:
    """Calls of these functions, in every thread that the run starts, in their order."""
    found: list[Edge] = []
    local = threading.local()

    def profile(frame, event, argument):
        module = frame.f_globals.get("__name__", "")
        if event not in ("call", "return") or not module.startswith("regard"):
            return
        name = f"{module}:{frame.f_code.co_qualname}"
        if name not in names:
            return
        running = local.__dict__.setdefault("running", [])
        if event == "call":
            found.extend((each, name) for each in running or [None])
            running.append(name)
        elif name in running:
            del running[len(running) - 1 - running[::-1].index(name)]

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def wrong(wanted: list[Edge], found: list[Edge]) -> list[str]:
    """What a chain states and the calls do not show."""
    first = {edge: i for i, edge in reversed([*enumerate(found)])}
    problems = [
        f"{name} is not called in {above}" for above, name in wanted if (above, name) not in first
    ]
    siblings: dict[str | None, list[str]] = {}
    for above, name in wanted:
        siblings.setdefault(above, []).append(name)
    for above, names in siblings.items():
        places = [first.get((above, name), -1) for name in names]
        if above is not None and places != sorted(places):
            problems.append(f"in {above}: {', '.join(names)} come in another order")
    return problems


@pytest.fixture(scope="module")
def transformer():
    return translator()


def check(blocks: list[str], run: Callable[[], object]) -> None:
    wanted = [edge for block in blocks for edge in tree(block)]
    assert len(wanted) > 5
    assert wrong(wanted, traced({name for _, name in wanted}, run)) == []


def test_the_page_has_five_chains():
    assert len(CHAINS) == 5


@pytest.mark.slow
def test_a_batch_of_training(tmp_path):
    field, part = (
        {"tokenizer": "bytes"},
        {"kind": "transformer", "dim": 8, "layers": 1, "heads": 2, "ffn_dim": 8},
    )
    recipe = {
        "data": {"source": field, "target": field},
        "model": {"encoder": part, "decoder": part},
        "train": {"max_steps": 2, "warmup_steps": 1, "device": "cpu", "validate_every": 1},
    }
    data = {"train": [("ab", "ba"), ("cd", "dc")], "valid": [("ab", "ba")]}
    train = regard.train  # imports are not traced
    check(
        CHAINS[:1],
        lambda: train(recipe, tmp_path / "run", data=data, cache=tmp_path, progress=False),
    )


@pytest.fixture
def predicts(transformer, tmp_path, monkeypatch):
    """`regard predict` for one line by a beam search, without loading a model."""
    lines = tmp_path / "lines.txt"
    lines.write_text("the cat sat\n")
    monkeypatch.setattr(cli, "_loaded", lambda *given: transformer)

    def run(**more) -> None:
        cli.predict(tmp_path, [lines], beam=2, max_length=4, out=tmp_path / "outputs.txt", **more)

    return run


def test_a_prediction(predicts):
    if engine.library() is None:
        pytest.skip("needs the compiled CPU engine: a C++ compiler, and no REGARD_NATIVE=0")
    check(CHAINS[1:2], predicts)


def test_the_files_from_the_command_line_to_the_slots():
    """As the page counts them: those of its chain, up to the slots."""
    names = [name for _, name in tree(CHAINS[1])]
    last = names.index("regard.generation.batch_plan:BatchPlan.build_strategy")
    files = {name.split(":")[0] for name in names[: last + 1]}
    assert f"these are {len(files)} files" in PAGE
    assert len(files) <= 16


NGRAM = 977  # an option of this value is found wherever it is carried
LINE = 1977


def carries(value: object) -> bool:
    """Whether an attribute has the value of one of these options."""
    values = [*getattr(value, "__dict__", {}).values()]
    if isinstance(value, tuple):
        values = [*value]
    for each in values:
        ints = each if isinstance(each, list | tuple) else [each]
        if any(type(number) is int and number in (NGRAM, LINE, LINE - 1) for number in ints):
            return True
    return False


def carriers(run: Callable[[], object]) -> set[str]:
    """The types of arguments that carry one of these options, except for those that apply it."""
    found = set[str]()

    def profile(frame, event, argument):
        if event != "call" or not frame.f_globals.get("__name__", "").startswith("regard"):
            return
        code = frame.f_code
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            value = frame.f_locals.get(name)
            first = value[0] if type(value) is list and value else value
            kind = type(first)
            if kind.__module__.startswith("regard") and carries(first):
                found.add(f"{kind.__module__}:{kind.__name__}")

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return {name.split(":")[1] for name in found if ".choose." not in name}


def test_the_types_that_carry_options(transformer):
    """The page names them all, five at most: traced by the values of two options."""
    if engine.library() is None:
        pytest.skip("needs the compiled CPU engine: a C++ compiler, and no REGARD_NATIVE=0")
    options = {"beam_size": 2, "max_length": 4, "no_repeat_ngram_size": NGRAM, "lines": [LINE]}
    named = re.findall(r"^\| `(\w+)` \| `", PAGE, re.MULTILINE)
    assert carriers(lambda: transformer.outputs(["the cat sat"], **options)) == set(named)
    assert len(named) == 5


def test_a_look(transformer):
    check(
        CHAINS[2:3],
        lambda: regard.look(transformer, "the cat sat", max_length=4)["decoder 1 cross"].weights(
            rows=[0]
        ),
    )


def test_a_request_over_http(transformer):
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    from support.servers import served

    def ask() -> None:
        with served({"model": transformer}) as server:
            assert (
                server.ask("/predict", {"model": "model", "input": "the cat sat", "max_length": 4})[
                    0
                ]
                == 200
            )

    check(CHAINS[3:], ask)


def test_a_chain_that_is_not_true_is_found():
    wanted = tree("regard.a:f\n  regard.a:g   first\n    regard.b:C.h\n  regard.a:k\n")
    assert wanted == [(None, "regard.a:f"), ("regard.a:f", "regard.a:g"), ("regard.a:g", "regard.b:C.h"),
                      ("regard.a:f", "regard.a:k")]  # fmt: skip
    assert wrong(wanted, wanted) == []
    assert wrong(wanted, [*wanted[:1], *wanted[3:], *wanted[1:3]]) == [
        "in regard.a:f: regard.a:g, regard.a:k come in another order"
    ]
    assert wrong(wanted, wanted[:2]) == [
        "regard.b:C.h is not called in regard.a:g", "regard.a:k is not called in regard.a:f",
        "in regard.a:f: regard.a:g, regard.a:k come in another order",
    ]  # fmt: skip
