"""Shell commands in the pages: found, split into words, and made small enough for a test."""

import gzip
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

SHELL = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)
SERVERS = {"studio", "serve"}  # verbs that run until they are stopped
# Commands that no test runs as they stand, by their beginning or a word of theirs, and why.
NOT_RUN = {
    "arecord": "records from a microphone",
    "regard transcribe runs/digit-strings - --raw": "tests/inference/test_transcript_stream.py reads pipes",
    "pip install": "installs packages; the workflow of releases installs the wheel with tools/install_test.py",
    "python3 -m venv": "sets up an environment for `pip install`",
    "source regard-env/bin/activate": "sets up an environment for `pip install`",
    "make demo": "tests/cli/test_cli.py runs `regard demo`",
    "make quick": "runs tests",
    "make test": "runs tests",
    "make docs": "a step of its own in CI",
    "make experiments": "tests/test_experiments.py runs each experiment, small",
    "REGARD_DATA=/path/to/data make experiments": "tests/test_experiments.py runs each experiment, small",
    "python experiments/": "tests/test_experiments.py runs each experiment, small",
    ".venv/bin/python experiments/": "tests/test_experiments.py runs each experiment, small",
    "make engine-wheel": "tests/release/test_prebuilt_engine.py builds this wheel",
    "podman": "needs a container engine; tests/serving/test_deploy.py checks deploy/Containerfile",
    "kubectl": "needs a cluster; tests/serving/test_deploy.py checks deploy/kubernetes.yaml",
    "kill -HUP PID": "tests/serving/test_reload.py sends SIGHUP to a server",
    "python tests/support/write_studio_model.py": "writes a model into the package, whose hash a test checks",
    "regard demo": "tests/cli/test_cli.py runs it, for minutes",
    "regard data multi30k --fetch": "needs the network",
    "--engine ray": "tests/api/test_predict_ray.py predicts with Ray",
    "regard train masked-language-model": "needs the texts of SST-2; bfloat16 is slow on a CPU",
    "regard train parts-of-speech": "needs UD English EWT",
    "regard evaluate runs/parts-of-speech": "needs the model before it",
    "regard predict runs/parts-of-speech": "needs the model before it",
    "regard thresholds runs/topics": "needs a model of several labels; docs/guides/numbers-and-labels.md has one",
    "regard train classification-pretrained": "needs SST-2 and the model before it",
    "regard evaluate runs/sst2": "needs SST-2 and the model before it",
    "regard average runs/soup": "needs the models before it",
    "python -c import regard; print(regard.evaluate(regard.load([": "needs the models before it",
    "regard train word-language-model": "needs WikiText-2 and, for CUDA graphs, a GPU",
    "regard evaluate runs/wikitext2": "needs WikiText-2",
    "regard train captions-transformer": "needs Flickr8k",
    "regard train captions-self-critical": "needs Flickr8k and the model before it",
    "regard evaluate runs/captions --metric cider": "needs Flickr8k",
    "regard train spelling --out": "needs, for CUDA graphs, a GPU",
    "regard evaluate runs/spelling": "needs the model before it",
    "regard train spelling-rnn": "takes half an hour; docs/guides/spelling.md trains such a model, small",
}
# What makes `regard train` of a recipe small enough for a test.
SMALL = {
    "dates": "train.max_steps=4 train.warmup_steps=2 train.validate_every=4 train.device=cpu",
    "my.toml": "train.max_steps=4 train.warmup_steps=2 train.validate_every=4 train.device=cpu model.encoder.dim=32 "
    "model.encoder.layers=1 model.encoder.heads=2 model.encoder.ffn_dim=64 model.decoder.dim=32 model.decoder.layers=1 "
    "model.decoder.heads=2 model.decoder.ffn_dim=64 data.source.vocab_size=300 data.target.vocab_size=300",
}


def simple_commands(code: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, as words; what stands in quotes is one word."""
    text = COMMENT.sub("", code).replace("\\\n", " ")
    words = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    words.whitespace, words.whitespace_split, words.commenters = " \t", True, ""
    command: list[str] = []
    for word in [*words, "\n"]:
        if word and set(word) <= set("();|&\n"):
            yield command
            command = []
        else:
            command.append(word)


def of_regard(command: list[str]) -> list[str] | None:
    """The arguments of a call of `regard`; None where the command is another."""
    while command and "=" in command[0]:
        command = command[1:]  # settings of the environment
    if command[:1] == ["regard"]:
        return command[1:]
    at = next((i for i, pair in enumerate(pairwise(command)) if pair == ("-m", "regard")), None)
    return None if at is None else command[at + 2 :]


def reason_not_to_run(command: list[str]) -> str:
    """Why no test runs a command; nothing if one does."""
    text = " ".join(command)
    return next(
        (
            why
            for part, why in NOT_RUN.items()
            if text.startswith(part) or f" {part} " in f"{text} "
        ),
        "",
    )


def runner(command: list[str]) -> str:
    """What runs a simple command of a page in tests/docs/test_topic_commands.py; nothing if nothing does."""
    arguments = of_regard(command)
    if reason_not_to_run(command):
        return "none"
    if command[0] == "torchrun":
        return "torchrun"
    if arguments is not None:
        return "server" if arguments[:1] and arguments[0] in SERVERS else "regard"
    return {"curl": "request", "jq": "request", "echo": "echo", "python": "python"}.get(
        command[0], ""
    )


def write_parallel_text(folder: Path) -> None:
    """The files that the recipe `translation` names, small."""
    folder.mkdir()
    pairs = {
        "en": "a dog runs\ntwo men talk\n" * 20,
        "de": "ein Hund rennt\nzwei Männer reden\n" * 20,
    }
    for split in ("train", "val", "test_2016_flickr"):
        for side, text in pairs.items():
            (folder / f"{split}.{side}.gz").write_bytes(gzip.compress(text.encode()))
