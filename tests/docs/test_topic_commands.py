"""The commands of the pages run, in a folder with small models and files of the names that the pages use."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pytest
from PIL import Image

import regard
from regard.data.synthetic import sampling
from regard.data.wav import write_wav
from support.command_line import command, process
from support.page_blocks import ROOT, Block, run_by
from support.page_commands import (
    COMMENT,
    SMALL,
    of_regard,
    runner,
    simple_commands,
    write_parallel_text,
)
from support.processes import free_ports

pytestmark = pytest.mark.slow
SIZES = {"dim": 16, "layers": 2, "heads": 2, "ffn_dim": 32}
PART = {"kind": "transformer", **SIZES}
VIT = {
    "kind": "vit",
    "patch_size": 16,
    "transformer": {**SIZES, "positions": "learned", "max_positions": 16},
}
TRAIN = {
    "max_steps": 4,
    "warmup_steps": 2,
    "validate_every": 4,
    "batch_tokens": 256,
    "device": "cpu",
}
PAGES = sorted({block.page for block in run_by("commands")})
RUNS = ("old", "new", "translation", "en-de", "de-en", "rnn", "transformer", "small", "large", "one", "two", "other",
        "seed-1", "seed-2", "seed-3")  # fmt: skip  # copies of one run
CONFIGURATIONS = {  # of other libraries, for `regard convert`
    "opennmt_transformer.yaml": "train.yaml",
    "joeynmt_transformer.yaml": "transformer.yaml",
    "fairseq_iwslt.sh": "train.sh",
}
EDITS = [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 0}]
# Of the models that are served.
NAMES = ("en-de", "de-en", "captions", "pets", "stories", "series")
WAIT = 120.0  # seconds
CHANGES = {  # for `regard train`, by the recipe that a page names
    "my.toml": SMALL["my.toml"],
    "translation": SMALL["my.toml"],
    "dates": SMALL["dates"],
    "shapes-classification": SMALL["dates"],
    "shapes-transformer": SMALL["dates"],
    "models/en-de/recipe.toml": SMALL["dates"],
}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NEEDED = {"docs/cli.md": ("ctranslate2", "onnx", "optuna", "sacrebleu", "uvicorn", "yaml")}
WITHOUT = {
    "docs/claims.md"
}  # pages of which no command runs here: see NOT_RUN of support/page_commands.py
README_VERBS = [
    "train",
    "look",
    "recipes",
    "convert",
    "train",
    "evaluate",
    "predict",
    "look",
    "import",
    "export",
]
HERE = (  # what a page names of other machines and long runs, and what stands for it on this one
    ("hf:Helsinki-NLP/opus-mt-en-de", "theirs"),  # a folder of transformers
    ("/shared/", ""),
    ("@cuda:0,cuda:1", "@cpu"),
    ("@cuda:2", "@cpu"),
    (" --device cuda:0 --device cuda:1", " --device cpu"),
    ("--workers 4", "--workers 2"),
    ("--trials 30", "--trials 2"),
    ("--grid model.encoder.layers=2,4", "--grid model.encoder.layers=1,2"),
    ("http://collector:4318", "http://127.0.0.1:9"),  # nothing listens there
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Models and files under the names that the pages have for the user's own."""
    place = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("REGARD_CACHE", str(place / ".cache"))
        _write_images()
        _write_series()
        _write_models()
        _write_models_of_series()
        _write_files()
    return place


def _write_models() -> None:
    write_parallel_text(Path("multi30k"))
    text = {"tokenizer": "words"}
    files = {
        name: [f"multi30k/{split}.en.gz", f"multi30k/{split}.de.gz"]
        for name, split in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr"))
    }
    data = {**files, "source": text, "target": text, "shared_vocab": True}
    recipe = {
        "data": data,
        "model": {"encoder": PART, "decoder": PART, "tie_embeddings": "all"},
        "train": TRAIN,
    }
    regard.train({**recipe, "decode": {"max_length": 8}}, "runs/mine")
    for name in RUNS:
        shutil.copytree("runs/mine", f"runs/{name}")
    regard.export("runs/mine", "huggingface", "theirs")
    assert command("import", "theirs", "--out", "models/en-de").returncode == 0
    story = {
        "data": {"target": text},
        "model": {"decoder": {**PART, "positions": "learned"}, "output_bias": False},
    }
    regard.train(
        {**story, "train": TRAIN},
        "runs/stories",
        data={"train": ["once upon a time a dog runs"] * 8},
    )
    for name in ("tales", "language-model"):
        shutil.copytree("runs/stories", f"runs/{name}")
    regard.export("runs/stories", "huggingface", "downloads/gpt2")
    image, label = {"kind": "image", "image_size": 64}, {"kind": "label"}
    navy, red = (str(Path(f"{name}.png").resolve()) for name in ("cat", "dog"))
    captions = {
        "data": {"source": image, "target": text},
        "model": {"encoder": VIT, "decoder": PART},
        "train": TRAIN,
    }
    shown = {"train": [(navy, "a blue picture"), (red, "a red one")] * 4}
    regard.train({**captions, "decode": {"max_length": 5}}, "runs/captions", data=shown)
    pets = {
        "data": {"source": image, "target": label},
        "model": {"encoder": VIT, "pool": {"kind": "mean"}},
    }
    regard.train(
        {**pets, "train": TRAIN},
        "runs/pets",
        data={"train": [(navy, "cat"), (red, "dog"), (red, "fox")] * 4},
    )
    letters = {"tokenizer": "characters"}
    dates = {
        "data": {"source": letters, "target": letters},
        "model": {"encoder": PART, "decoder": PART},
        "train": TRAIN,
    }
    days = {"train": [("2 March 1972", "1972-03-02"), ("3 May 2001", "2001-05-03")] * 4}
    regard.train({**dates, "decode": {"max_length": 10}}, "runs/dates", data=days)
    rows = [("a dog runs", "good"), ("two men talk", "bad")] * 4
    reviews = {
        "data": {"source": text, "target": label},
        "model": {"encoder": PART, "pool": {"kind": "mean"}},
        "train": TRAIN,
    }
    regard.train(reviews, "runs/reviews", data={"train": rows})
    shutil.copytree("runs/reviews", "runs/classification")
    shutil.copytree("runs/pets", "runs/shapes-classification")


def _write_series() -> None:
    """Sequences of vectors, and a recording of half a second."""
    chance = np.random.default_rng(1)
    for name in ("one.npy", "two.npy"):
        np.save(name, chance.normal(size=(12, 3)).astype(np.float32))
    samples = chance.normal(scale=0.1, size=4000)
    Path("recording.wav").write_bytes(write_wav(samples, 8000))
    Path("table.tsv").write_text("audio\ttext\nrecording.wav\tone two\n", "utf-8")


def _write_models_of_series() -> None:
    """A classifier of series, a forecaster, a model of speech, and a language model with the tokenizer of its texts."""
    encoder = {**PART, "input": {"kind": "vectors", "kernel": 3, "stride": 2}}
    shapes = {
        "data": {"source": {"kind": "vectors"}, "target": {"kind": "label"}},
        "model": {"encoder": encoder, "pool": {"kind": "mean"}},
        "train": TRAIN,
    }
    rows = [(np.load("one.npy"), "up"), (np.load("two.npy"), "down")] * 4
    regard.train(shapes, "runs/series", data={"train": rows})
    vectors = {"kind": "vectors"}
    forecast = {
        "data": {"source": vectors, "target": vectors},
        "model": {"encoder": encoder, "head": "horizon"},
        "train": TRAIN,
    }
    past_and_future = [(np.load("one.npy"), np.load("two.npy")[:4])] * 8
    regard.train(
        forecast, "runs/forecast", data={"train": past_and_future, "test": past_and_future}
    )
    measured = np.random.default_rng(2).normal(size=(60, 2))
    np.savetxt("weather.csv", measured, "%.3f", ",", header="temperature,wind", comments="")
    windows = {"window": 12, "horizon": 4, "split": [0.6, 0.2, 0.2]}
    series = {"train": "weather.csv", "source": vectors, "target": vectors, "series": windows}
    weather = {**forecast, "data": series}
    regard.train(weather, "runs/weather")
    words = {"tokenizer": "words"}
    features = {"kind": "log-mel", "sample_rate": 8000, "mels": 20}
    speech = {
        "data": {"source": {"kind": "vectors", "features": features}, "target": words},
        "model": {"encoder": encoder, "head": "ctc"},
        "train": TRAIN,
    }
    spoken = [(Path("recording.wav").resolve(), "one two")] * 8
    regard.train(speech, "runs/digit-strings", data={"train": spoken})
    shutil.copytree("runs/digit-strings", "runs/words")
    texts = {"data": {"target": words}, "model": {"decoder": PART}, "train": TRAIN}
    regard.train(texts, "runs/texts", data={"train": ["one two"] * 8})


def _write_images() -> None:
    Path("photos").mkdir()
    for name in (
        "photos/one.png",
        "photos/two.jpg",
        "photo.png",
        "photo.jpg",
        "scene.png",
        "dog.jpg",
        "cat.png",
    ):
        Image.new("RGB", (64, 64), "navy").save(name)
    Image.new("RGB", (64, 64), "red").save("dog.png")
    with zipfile.ZipFile("photos.zip", "w") as file:
        file.write("dog.png")


def _write_files() -> None:
    lines = {
        "sentences.txt": "a dog runs\ntwo men talk\n", "source.txt": "a dog runs\ntwo men talk\n",
        "page.txt": "a <b>dog</b> runs\n", "dates.txt": "2 March 1972\n3 May 2001\n",
        "theirs.txt": "ein Hund rennt\nzwei Männer reden\n" * 20, "ours.txt": "ein Hund rennt\nzwei Männer\n" * 20,
        "references.txt": "ein Hund rennt\nzwei Männer reden\n" * 20,
        "new.csv": "text,label\na dog runs,good\ntwo men talk,bad\n",
        "test.tsv": "source\ttarget\na dog runs\tein Hund rennt\n",
        "corpus.txt": "the king and the queen, the man and the woman\n" * 200,
        "team.key": "0123456789abcdef" * 4 + "\n",
        "train.en": "a dog runs\ntwo men talk\n" * 20, "train.de": "ein Hund rennt\nzwei Männer reden\n" * 20,
        "dev.links": "0-0 1-1 2-2\n", "links.txt": "0-0 1-1 2-2\n", "edits.json": json.dumps(EDITS),
        "target.txt": "ein Hund rennt\nzwei Männer reden\n", "text.txt": "once upon a time\n",
        "right.txt": "ein Hund rennt\nzwei Männer reden\n" * 20,
        "reviews.csv": "text,label\na dog runs,good\ntwo men talk,bad\n", "reviews.txt": "a dog runs\n",
        "keys.txt": "3vJ0qkS8 name=web rate=10/s concurrent=8\n",
        "wordsim353.tsv": "king\tqueen\t8.6\nman\twoman\t8.3\nking\tman\t5.0\n",
        "questions-words.txt": ": family\nking queen man woman\n",
    }  # fmt: skip
    for name in ("a", "dev", "test"):
        lines |= {f"{name}.en": "a dog runs\n", f"{name}.de": "ein Hund rennt\n"}
    for name, content in lines.items():
        Path(name).write_text(content, "utf-8")
    for name in ("team.key", "keys.txt"):
        Path(name).chmod(0o600)
    configurations = ROOT / "tests/interop/configurations"
    for theirs, name in CONFIGURATIONS.items():
        shutil.copyfile(configurations / theirs, name)
    Path("my.toml").write_text(command("recipes", "translation").stdout, "utf-8")
    Path("old.txt").write_bytes(b"a d\xf6g runs\n")


def _changes(settings: str) -> list[str]:
    return [word for each in settings.split() for word in ("--set", each)]


class Session:
    """Runs the commands of a page one after the other, as a reader would, in the current folder."""

    def __init__(self) -> None:
        self.ran, self.verbs, self.said = (
            0,
            list[str](),
            None,
        )  # said: what `echo` gives to the next command
        self.updates = 4

    def run(self, block: Block) -> None:
        code = block.code.replace("$ regard", "regard")
        for there, here in HERE:
            code = code.replace(there, here)
        if re.search(r"^for |^\(", code, re.MULTILINE):
            self.script(code)
            return
        for words in (words for words in simple_commands(code) if words):
            how = runner(words)
            assert how, f"{block.page}:{block.line}: nothing runs {' '.join(words)!r}"
            if how in ("regard", "server", "torchrun", "python", "echo"):
                getattr(self, how)(words)
                self.ran += 1

    def echo(self, words: list[str]) -> None:
        self.said = " ".join(words[1:]) + "\n"

    def regard(self, words: list[str]) -> None:
        arguments = of_regard(words)
        assert arguments is not None
        verb = arguments[0]
        self.verbs.append(verb)
        if (
            verb in ("train", "export", "import", "sweep")
            and "--out" in arguments
            and "--resume" not in arguments
        ):
            out = Path(arguments[arguments.index("--out") + 1])  # pages use a name again
            shutil.rmtree(out, ignore_errors=True)
            out.unlink(missing_ok=True)
        elif verb == "train" and not {"--resume", "--dry-run"} & {*arguments}:
            # Without --out the run is named after its recipe, and numbered where that name is taken.
            shutil.rmtree(Path("runs", Path(arguments[1]).stem), ignore_errors=True)
        if verb == "verify" and "--key" in arguments:  # the reference has it before `regard sign`
            assert command("sign", *arguments[1:]).returncode == 0
        if verb == "train":
            arguments += _changes(CHANGES[arguments[1]])
        if verb == "sweep":
            arguments += _changes(CHANGES["my.toml"].replace("model.encoder.layers=1 ", ""))
        read, written = (_redirected(arguments, sign) for sign in "<>")
        text = self.said or "a dog runs\n" if read is None else Path(read).read_text("utf-8")
        self.said = None
        arguments = [
            word
            for each in arguments
            for word in (sorted(glob.glob(each)) if "*" in each else [each])
        ]
        start = (
            process if verb == "export" else command
        )  # PyTorch exports no type checks, which tests have
        done = start(*arguments, text=text)
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
        if "--out" in arguments and "--dry-run" not in arguments:
            assert Path(arguments[arguments.index("--out") + 1]).exists(), " ".join(arguments)
        if written is not None and verb != "convert":  # whose recipe names files that are not here
            Path(written).write_text(done.stdout, "utf-8")

    def server(self, words: list[str]) -> None:
        with started(words) as address:
            done = subprocess.run(
                ["curl", "-sf", f"{address}/health/ready"], capture_output=True, check=False
            )
            assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr.decode()}"

    def torchrun(self, words: list[str]) -> None:
        """With two processes: of one machine, or of two that are this one."""
        self.updates = self.updates + 4 if "--resume" in words else 4  # a resumed run goes on
        line = " ".join(
            [*words, *_changes(CHANGES["my.toml"]), "--set", f"train.max_steps={self.updates}"]
        )
        several = "--nnodes 4" in line
        line = re.sub(r"--nproc-per-node 8", f"--nproc-per-node {1 if several else 2}", line)
        line = line.replace("--nnodes 4", "--nnodes 2").replace(
            "first-machine:29500", f"localhost:{free_ports(1)[0]}"
        )
        out = Path(words[words.index("--out") + 1])
        if "--resume" not in words:
            shutil.rmtree(out, ignore_errors=True)
        arguments = [sys.executable, "-m", "torch.distributed.run", *line.split()[1:]]
        machines = [
            subprocess.Popen(
                arguments,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | ONE_THREAD,
            )
            for _ in range(2 if several else 1)
        ]
        said = [machine.communicate(timeout=2 * WAIT)[0] for machine in machines]
        assert [machine.returncode for machine in machines] == [0] * len(machines), (
            f"{line}\n{said}"
        )
        saved = json.loads((out / f"step-{self.updates:08}" / "training.json").read_text("utf-8"))
        assert saved["environment"]["processes"] == 2, line

    def python(self, words: list[str]) -> None:
        done = subprocess.run(
            [sys.executable, *words[1:]], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr}"

    def script(self, code: str) -> None:
        """By bash; every `regard train` is made small."""
        settings = " ".join(_changes(CHANGES["my.toml"]))
        settings = re.sub(r"--set train\.max_steps=\d+", "", settings)
        function = f"""regard() {{
  case $1 in
    train) "$TESTED_PYTHON" -m regard "$@" {settings} --set train.max_steps=4 ;;
    *) "$TESTED_PYTHON" -m regard "$@" ;;
  esac
}}
"""
        shutil.rmtree("runs/translation")
        environment = os.environ | {"TESTED_PYTHON": sys.executable}
        done = subprocess.run(
            ["bash", "-ec", function + code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        self.ran += 1


@contextmanager
def started(words: list[str]) -> Iterator[str]:
    """The address of a server that a command starts as a process, on a free port; SIGTERM must end it."""
    arguments = of_regard(words)
    assert arguments is not None
    if "--port" in arguments:
        at = arguments.index("--port")
        del arguments[at : at + 2]
    arguments += ["--port", "0", *(["--no-open"] if arguments[0] == "studio" else [])]
    environment = os.environ | dict(word.split("=", 1) for word in words[: words.index("regard")])
    with NamedTemporaryFile("w+", encoding="utf-8") as said:  # a pipe that nothing reads would fill
        running = subprocess.Popen(
            [sys.executable, "-m", "regard", *arguments],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            yield _address(running, Path(said.name))
            running.send_signal(signal.SIGTERM)
            assert running.wait(WAIT) == 0, Path(said.name).read_text("utf-8")
        finally:
            running.kill()
            running.wait()


def _address(running: subprocess.Popen, output: Path) -> str:
    """That of a server, as it prints it."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end and running.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+(?=\s)", output.read_text("utf-8")):
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"{running.args} did not start:\n{output.read_text('utf-8')}")


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page, folder, monkeypatch, tmp_path):
    """Each ends well, in the order of the page. Requests to a server have a test of their own."""
    for package in {"docs/interop.md": ("ctranslate2", "onnx", "transformers"), **NEEDED}.get(
        page, ()
    ):
        pytest.importorskip(package, reason="needs the extras of the commands")
    monkeypatch.setattr(
        sampling, "SIZES", {"train": 200, "valid": 20, "test": 20}
    )  # of generated data
    monkeypatch.setenv("REGARD_CACHE", str(folder / ".cache"))
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "copy"))
    session = Session()
    for block in run_by("commands"):
        if block.page == page:
            session.run(block)
    assert session.ran or page in WITHOUT, f"{page} has no command that runs"
    if page == "README.md":
        assert session.verbs == README_VERBS
        assert Path("look.html").stat().st_size > 10_000
        assert Path("mine/config.json").exists()


def _redirected(arguments: list[str], sign: str) -> str | None:
    """The file that a command reads or writes, which is taken out of its arguments."""
    if sign not in arguments:
        return None
    at = arguments.index(sign)
    _, file = arguments[at : at + 2]
    del arguments[at : at + 2]
    return file


@pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("jq") is None, reason="needs curl and jq"
)
def test_the_requests_to_a_server_run(folder, tmp_path):
    """The requests of docs/serve.md, with curl, jq and Python, to a server of the models that they name."""
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    from support.servers import served

    answered = []
    with served({name: folder / "runs" / name for name in NAMES}) as running:
        for block in run_by("commands"):
            for line in (
                _requests(COMMENT.sub("", block.code), running.port)
                if block.page == "docs/serve.md"
                else ()
            ):
                answer = _ask(line, folder)
                if "> target.txt" in line:
                    texts = (folder / "target.txt").read_text("utf-8").splitlines()
                    assert len(texts) == 2, line
                    assert "null" not in texts, line  # which jq prints for a line that was refused
                else:
                    said = json.loads(answer)
                    assert not (isinstance(said, dict) and said.get("status", 200) >= 400), (
                        f"{line}\n{answer}"
                    )
                answered.append(line)
        for block in run_by("requests"):
            program = block.code.replace("localhost:8000", f"127.0.0.1:{running.port}")
            program = program.replace(
                'asked = {"input"', 'asked = {"model": "en-de", "input"'
            )  # of several
            (tmp_path / block.file).write_text(program, "utf-8")
            done = subprocess.run(
                [sys.executable, tmp_path / block.file],
                capture_output=True,
                text=True,
                check=False,
                timeout=WAIT,
            )
            assert done.returncode == 0, f"{block.file}\n{done.stderr}"
            answered.append(block.file)
    assert len(answered) >= 13


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_request_to_the_studio_runs(folder, monkeypatch):
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("REGARD_CACHE", str(folder / ".cache"))
    lines = [
        line
        for block in run_by("commands")
        if block.page == "docs/studio.md"
        for line in block.code.splitlines()
        if line.startswith("curl ")
    ]
    assert lines
    with started(["regard", "studio", "runs/translation", "--data", "test"]) as address:
        for line in lines:
            end = time.monotonic() + WAIT
            while not (answer := json.loads(_ask(line.replace("localhost:8700", address), folder)))[
                "examples"
            ]:
                assert answer["data"]["error"] is None, answer
                assert time.monotonic() < end, answer
                time.sleep(0.1)


def _ask(line: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-ec", line],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def _requests(code: str, port: int) -> list[str]:
    """The calls of curl and jq in a block, to this port; each names its model where the server has several."""
    calls = re.findall(
        r"^(?:curl|jq) [^\n]*(?:\n +[^\n]*)*", code.replace("\\\n", " "), re.MULTILINE
    )
    named = []
    for call in calls:
        call = call.replace("localhost:8000", f"127.0.0.1:{port}").rstrip()
        if "/caption" in call:
            call += " -F model=captions"
        call = call.replace("'{input: .", """'{model: "en-de", input: .""")
        named.append(re.sub(r"'\{(?=\"(?:input|prompt))", """'{"model": "en-de", """, call))
    return named
