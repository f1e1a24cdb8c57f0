"""Every option of a verb reaches the Python function behind it, and a verb without options asks for its defaults."""

import inspect
from pathlib import Path

import pytest
import typer

import regard
from regard.cli import app

COMMANDS = typer.main.get_command(app).commands
SHARED = (
    "--split valid --sources s --references r --references q --data d --column a --column b --metric bleu "
    "--by-length 2 --resamples 3 --set beam_size=4 --device cpu --cache k --trust-data-paths"
)
SHARED_ARGUMENTS = {
    "split": "valid", "sources": Path("s"), "references": [Path("r"), Path("q")], "data": ["d"], "columns": ["a", "b"],
    "metrics": ["bleu"], "by_length": "2", "resamples": 3, "decode": {"beam_size": 4}, "device": "cpu",
    "cache": Path("k"), "trust_data_paths": True,
}  # fmt: skip
# By the verb's options: the function, and what it is called with.
CALLS = {
    "sweep dates --out o --grid a=1,2 --grid b=x --range c=1:2:log --trials 3 --set d=4 --cache k": (
        "sweep",
        {"recipe": "dates", "out": Path("o"), "grid": {"a": ["1", "2"], "b": ["x"]}, "ranges": {"c": "1:2:log"},
         "trials": 3, "changes": ["d=4"], "cache": Path("k")},
    ),
    "train dates --out o --resume --allow-changed-data --cache k --set train.max_steps=777": (
        "train",
        {"run": "o", "resume": True, "allow_changed_data": True, "cache": Path("k")},
    ),
    f"evaluate one two --outputs o {SHARED}": (
        "evaluate", {"systems": [Path("one"), Path("two")], "outputs": Path("o"), **SHARED_ARGUMENTS}
    ),
    f"compare one two --sentences 6 {SHARED}": (
        "compare", {"systems": [Path("one"), Path("two")], "sentences": 6, **SHARED_ARGUMENTS}
    ),
    "serve n=m@cuda:1,cpu o/p --host h --port 1 --device cuda --keys k --slots 2 --queue 3 --max-body 4 "
    "--max-image-body 5 --max-inputs 6 --drain-seconds 7 --cors * --allowed-host a --allowed-host b "
    "--max-length 9 --max-beams 10 --search-memory 11 --tls-certificate c --tls-key t --workers 8 --no-studio": (
        "serve",
        {"models": {"n": "m", "p": "o/p"}, "host": "h", "port": 1, "device": {"n": ["cuda:1", "cpu"], "p": ["cuda"]},
         "keys": Path("k"), "slots": 2, "queue": 3, "max_body": 4, "max_image_body": 5, "max_inputs": 6,
         "drain_seconds": 7.0, "cors": ["*"], "allowed_hosts": ["a", "b"],
         "max_length": 9, "max_beams": 10, "search_memory": 11,
         "tls_certificate": Path("c"), "tls_key": Path("t"), "workers": 8, "no_studio": True},
    ),
    "studio n=m --port 1 --device cpu --data d --column a --alignment s t l --trust-data-paths --no-open "
    "--allowed-host a --max-length 9 --max-beams 10 --search-memory 11": (
        "studio",
        {"models": {"n": "m"}, "port": 1, "device": {"n": ["cpu"]}, "data": ["d"], "columns": ["a"],
         "alignment": (Path("s"), Path("t"), Path("l")), "trust_data_paths": True, "open_browser": False,
         "allowed_hosts": ["a"], "max_length": 9, "max_beams": 10, "search_memory": 11},
    ),
    "import s --out o --dtype float16 --pairs": (
        "import_model",
        {"source": "s", "out": Path("o"), "dtype": "float16", "pairs": True},
    ),
    "export m --to onnx --out o --dtype float16 --quantization int8 --attention --report r --examples e --push a/b": (
        "export",
        {"model": Path("m"), "to": "onnx", "out": Path("o"), "dtype": "float16", "quantization": "int8",
         "attention": True, "report": "r", "examples": "e", "push": "a/b"},
    ),
    "convert c --from fairseq": ("convert", {"path": Path("c"), "source": "fairseq"}),
    "average one two --out o": ("average", {"models": [Path("one"), Path("two")], "out": Path("o")}),
    "plot one --data d --column c --out o --example 3 --channel 2 --look-back 5 --device cpu --trust-data-paths": (
        "plot_forecast",
        {"model": Path("one"), "data": ["d"], "columns": ["c"], "out": Path("o"), "example": 3, "channels": ["2"],
         "look_back": 5, "device": "cpu", "trust_data_paths": True},
    ),
    "shortlist m --candidates 2 --frequent 3 --data d --column c --max-examples 4 --trust-data-paths": (
        "shortlist",
        {"model": Path("m"), "candidates": 2, "frequent": 3, "data": ["d"], "columns": ["c"], "max_examples": 4,
         "trust_data_paths": True},
    ),
    "thresholds m --split s --data d --column c --device cpu --trust-data-paths": (
        "thresholds",
        {"model": Path("m"), "split": "s", "data": ["d"], "columns": ["c"], "device": "cpu", "trust_data_paths": True},
    ),
    "verify m --key k": ("verify", {"path": Path("m"), "key": Path("k")}),
    "sign m --key k": ("sign", {"path": Path("m"), "key": Path("k")}),
}  # fmt: skip
WITHOUT_OPTIONS = {
    "sweep dates --out o": "sweep",
    "train dates --out o": "train",
    "evaluate one": "evaluate",
    "compare one two": "compare",
    "serve m": "serve",
    "studio": "studio",
    "export m --to onnx --out o": "export",
    "plot one": "plot",
    "verify m": "verify",
}


class Called(Exception):
    pass


def called_with(line: str, name: str, monkeypatch) -> dict:
    """The arguments that a verb calls a function with, by name; the function itself is not called."""
    monkeypatch.setenv("COLUMNS", "80")  # the width of a terminal, which other tests set
    signature = inspect.signature(getattr(regard, name))
    found = {}

    def called(*arguments, **named):
        bound = signature.bind(*arguments, **named).arguments
        for each, value in bound.items():
            is_mapped = signature.parameters[each].kind is inspect.Parameter.VAR_KEYWORD
            found.update(value if is_mapped else {each: value})
        raise Called

    monkeypatch.setattr(regard, name, called)
    monkeypatch.delenv("REGARD_KEYS", raising=False)
    verb, *arguments = line.split()
    with pytest.raises(Called):
        COMMANDS[verb].main(arguments, standalone_mode=False)
    return found


@pytest.mark.parametrize("line", CALLS)
def test_every_option_is_passed_on(line, monkeypatch):
    name, wanted = CALLS[line]
    found = called_with(line, name, monkeypatch)
    assert {key: found[key] for key in wanted} == wanted
    verb = COMMANDS[line.split()[0]]
    given = [option for option in verb.params if option.param_type_name == "option"]
    unnamed = {"as_json", "dry_run", "list_", "help"}  # of what is printed
    missing = [
        each.opts[0]
        for each in given
        if each.name not in unnamed and not {*each.opts} & {*line.split()}
    ]
    assert missing in ([], ["--out"])  # `compare` writes the page itself
    if name == "train":
        assert found["recipe"].train.max_steps == 777


@pytest.mark.parametrize("line", WITHOUT_OPTIONS)
def test_without_options_a_function_gets_its_defaults(line, monkeypatch):
    name = WITHOUT_OPTIONS[line]
    defaults = {
        key: each.default
        for key, each in inspect.signature(getattr(regard, name)).parameters.items()
    }
    for key, value in called_with(line, name, monkeypatch).items():
        if defaults.get(key, inspect.Parameter.empty) is inspect.Parameter.empty:
            continue
        if key not in ("on_event", "on_ready", "progress", "device", "keys"):
            assert (value or None) == (defaults[key] or None), key
