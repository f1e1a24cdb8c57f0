"""Every verb with every option, each with hostile values: a result or a message, never a traceback, in bounded time."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from regard.cli import app
from support.command_line import command
from support.forged import GOLDEN
from support.training_runs import rnn_recipe

NUMBERS = ["-1", "0", "1", "1000000000", "9" * 30, "9" * 5000, "1.5", "nan", "x", ""]
TEXTS = [
    "",
    "x",
    "\x1b[31m",
    "é\u202e\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "x" * 20_000,
    "-",
    "None",
]
FILES = [
    "",
    ".",
    "..",
    "missing/file",
    "missing",
    "pairs.tsv",
    "text.txt",
    "deep.json",
    "binary",
    "/dev/null",
    "x" * 300,
]
SETTINGS = [
    "", "=", "x", "a.b=1", "beam_size=1000000000", "seed=1180591620717411303424", "length_penalty=nan", "max_length=-1",
    "temperature=inf", f"x={'[' * 5000}", "model.decoder.kind=['a']", "data.train='a\\u0000b'", "sample=[[]]", "data=1",
]  # fmt: skip
VALUES = {
    "N": NUMBERS, "FILE": FILES, "FOLDER": FILES, "IMAGE": FILES, "KEY=VALUE": SETTINGS, "KEY=A,B,…": SETTINGS,
    "KEY=LOW:HIGH[:log]": [*SETTINGS, "train.seed=1:2", "train.learning_rate=0:1:log", "x=1:2"],
    "MODEL": FILES, "SYSTEM": FILES, "RUN": FILES, "RECIPE": FILES, "SOURCE": FILES, "NAME|FILE": FILES + TEXTS,
}  # fmt: skip
MODEL, PAIRS, TEXT = str(GOLDEN / "transformer"), "pairs.tsv", "text.txt"
VALID = {  # the arguments with which each verb works
    "train": ["recipe.toml", "--out", "run"],
    "prepare": ["recipe.toml", "--cache", "cache"],
    "evaluate": [MODEL, "--data", PAIRS, "--resamples", "2"],
    "compare": [MODEL, MODEL, "--data", PAIRS, "--resamples", "2"],
    "predict": [MODEL, TEXT],
    "caption": [MODEL, "binary"],
    "look": [MODEL, "abc"],
    "align": [MODEL, "--sources", TEXT],
    "score": [MODEL, PAIRS],
    "shortlist": ["nowhere", "--data", PAIRS],  # as below
    "thresholds": ["nowhere", "--data", PAIRS],  # as below
    "verify": [MODEL],
    "transcribe": ["nowhere", "binary"],
    "sign": ["nowhere", "--key", "binary"],  # the checkpoint above is not to be changed
    "serve": [
        "nowhere",
        "--port",
        "0",
    ],  # a model that is there would be served until a signal ends it
    "studio": ["nowhere", "--port", "0", "--no-open"],
    "export": [MODEL, "--list"],
    "import": [str(GOLDEN), "--out", "imported"],
    "convert": [
        str(Path(__file__).parents[1] / "interop/configurations/joeynmt_reverse.yaml"),
        "--from",
        "joeynmt",
    ],
    "sweep": ["recipe.toml", "--out", "sweep", "--grid", "train.seed=1"],
    "average": [MODEL, MODEL, "--out", "averaged"],
    "plot": ["run"],
    "data": [],
    "recipes": [],
    "words train": [TEXT, "--out", "vectors.txt"],
    "words nearest": ["vectors.txt", "abc"],
    "words analogy": ["vectors.txt", "a", "b", "c"],
    "words score": ["vectors.txt", TEXT],
}
CHILD = """
import faulthandler, json, resource, sys, time, traceback
from regard.cli import main
for line in open(sys.argv[1]):
    sys.argv, start, result = ["regard", *json.loads(line)], time.monotonic(), None
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        main()
    except SystemExit as error:
        result = error.code
    except BaseException:
        result = traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps([sys.argv, result, time.monotonic() - start, grown]), file=open("results.jsonl", "a"))
"""


def verbs(group=None, path=()):
    """Every verb with its click command."""
    group = group or typer.main.get_command(app)
    for name, verb in group.commands.items():
        if hasattr(verb, "commands"):
            yield from verbs(verb, (*path, name))
        else:
            yield " ".join((*path, name)), verb


def calls(chance):
    """The arguments of every verb with each hostile value of an option or argument; of many, a few drawn at random."""
    for verb, click_command in verbs():
        if verb == "demo":  # trains two models for minutes
            continue
        valid = VALID[verb]
        for parameter in click_command.params:
            values = VALUES.get(parameter.metavar, NUMBERS if "count" in parameter.name else TEXTS)
            for value in chance.sample(values, min(5, len(values))):
                if parameter.param_type_name == "argument":
                    yield [*verb.split(), value, *valid[1:]]
                elif getattr(parameter, "is_flag", False):
                    yield [*verb.split(), *valid, parameter.opts[0]]
                    break
                else:
                    yield [*verb.split(), *valid, parameter.opts[0], value]


def test_every_verb_is_fuzzed():
    assert {verb for verb, _ in verbs()} == {*VALID, "demo"}


@pytest.mark.slow
def test_hostile_options_give_a_message_and_no_traceback(tmp_path):
    (tmp_path / "recipe.toml").write_text(rnn_recipe())
    (tmp_path / PAIRS).write_text("source\ttarget\nabc\tcba\nab\tba\n")
    (tmp_path / TEXT).write_text("abc\nab\n")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "vectors.txt").write_text("4 2\nabc 1 0\na 0 1\nb 1 1\nc 1 2\n")
    given = list(calls(random.Random(0)))
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(each) + "\n" for each in given))
    with (tmp_path / TEXT).open() as stdin:
        ended = subprocess.run(
            [sys.executable, "-c", CHILD, "calls.jsonl"],
            stdin=stdin, cwd=tmp_path, capture_output=True, timeout=1500,
        )  # fmt: skip
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(results) == len(given), (
        given[len(results)],
        ended.stderr[-3000:].decode("utf-8", "replace"),
    )
    crashed = [
        (arguments, result)
        for arguments, result, _, _ in results
        if result not in (None, 0, 1, 2, 4)
    ]
    report = "\n".join(
        f"{' '.join(arguments)[:300]!r}: {str(result)[-600:]}" for arguments, result in crashed[:20]
    )
    assert not crashed, f"{len(crashed)} of {len(given)}:\n{report}"
    assert b"Traceback" not in ended.stderr
    assert max(seconds for _, _, seconds, _ in results) < 60
    assert results[-1][3] < 4000  # megabytes, with PyTorch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", MODEL, "text.txt", "--attention", "."), "path: wanted a file's name"),
        (("predict", MODEL, "text.txt", "--constraints", "deep.json"), "deep.json, line 1: wanted"),
        (("predict", MODEL, "text.txt", "--beam", "1000000000"), "at most 1000; got 1000000000"),
        (
            ("predict", MODEL, "text.txt", "--set", "length_penalty=nan"),
            "length_penalty: wanted a number of at least -5 and at most 5; got nan",
        ),
        (
            ("predict", MODEL, "text.txt", "--set", "seed=1180591620717411303424"),
            "decode.seed: wanted",
        ),
        (("train", "deep.toml", "--out", "run"), "deep.toml: wanted a TOML file"),
        (
            ("train", "dates", "--out", "run", "--set", "model.decoder.kind=['a']"),
            "model.decoder.kind: wanted one of",
        ),
        (("train", "nul.toml", "--out", "run"), "data.train: wanted a file to read"),
    ],
)
def test_hostile_input_gives_a_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("abc\n")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "deep.toml").write_text(f"x={'[' * 5000}")
    (tmp_path / "nul.toml").write_text(
        '[data]\ntrain = "a\\u0000b"\n[model.decoder]\nkind = "rnn"\n'
    )
    done = command(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_closed_standard_streams_end_nothing(tmp_path):
    (tmp_path / "text.txt").write_text("abc\n")
    program = f"{sys.executable} -m regard predict {MODEL} {tmp_path / 'text.txt'} <&- >&- 2>{tmp_path / 'messages'}"
    assert subprocess.run(program, shell=True, timeout=120).returncode == 0
    assert "Traceback" not in (tmp_path / "messages").read_text()
