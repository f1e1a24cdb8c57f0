"""The commands of the topic pages run, in a folder with small models and files of the names that the pages use."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

import regard
from regard.data.synthetic import sampling
from support.command_line import command, process
from support.page_commands import COMMENT, ELSEWHERE, SHELL, SMALL, of_regard, simple_commands, write_parallel_text

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
SIZES = {"dim": 16, "layers": 2, "heads": 2, "ffn_dim": 32}
PART = {"kind": "transformer", **SIZES}
VIT = {"kind": "vit", "patch_size": 16, "transformer": {**SIZES, "positions": "learned", "max_positions": 16}}
TRAIN = {"max_steps": 4, "warmup_steps": 2, "validate_every": 4, "batch_tokens": 256, "device": "cpu"}
PAGES = ("data", "decoding", "evaluation", "interop", "interpret", "serve", "training")
EDITS = [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 0}]
NAMES = ("en-de", "de-en", "captions", "pets")  # of the models that are served
CHANGES = {  # for `regard train`, by the recipe that a page names
    "my.toml": SMALL["my.toml"],
    "shapes-classification": SMALL["dates"],
    "models/en-de/recipe.toml": SMALL["dates"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Models and files under the names that the pages have for the user's own."""
    place = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("REGARD_CACHE", str(place / ".cache"))
        _write_images()
        _write_models()
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
    recipe = {"data": data, "model": {"encoder": PART, "decoder": PART, "tie_embeddings": "all"}, "train": TRAIN}
    regard.train({**recipe, "decode": {"max_length": 8}}, "runs/mine")
    for name in ("old", "new", "translation", "en-de", "de-en"):
        shutil.copytree("runs/mine", f"runs/{name}")
    regard.export("runs/mine", "huggingface", "theirs")
    assert command("import", "theirs", "--out", "models/en-de").returncode == 0
    image, label = {"kind": "image", "image_size": 64}, {"kind": "label"}
    navy, red = (str(Path(f"{name}.png").resolve()) for name in ("cat", "dog"))
    captions = {"data": {"source": image, "target": text}, "model": {"encoder": VIT, "decoder": PART}, "train": TRAIN}
    shown = {"train": [(navy, "a blue picture"), (red, "a red one")] * 4}
    regard.train({**captions, "decode": {"max_length": 5}}, "runs/captions", data=shown)
    pets = {"data": {"source": image, "target": label}, "model": {"encoder": VIT, "pool": {"kind": "mean"}}}
    regard.train({**pets, "train": TRAIN}, "runs/pets", data={"train": [(navy, "cat"), (red, "dog"), (red, "fox")] * 4})
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


def _write_images() -> None:
    Path("photos").mkdir()
    for name in ("photos/one.png", "photo.png", "photo.jpg", "scene.png", "dog.jpg", "cat.png"):
        Image.new("RGB", (64, 64), "navy").save(name)
    Image.new("RGB", (64, 64), "red").save("dog.png")


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
        "dev.links": "0-0 1-1 2-2\n", "edits.json": json.dumps(EDITS),
    }  # fmt: skip
    for name in ("a", "dev"):
        lines |= {f"{name}.en": "a dog runs\n", f"{name}.de": "ein Hund rennt\n"}
    for name, content in lines.items():
        Path(name).write_text(content, "utf-8")
    Path("team.key").chmod(0o600)
    Path("old.txt").write_bytes(b"a d\xf6g runs\n")


def _changes(settings: str) -> list[str]:
    return [word for each in settings.split() for word in ("--set", each)]


def _blocks(page: str) -> list[str]:
    return SHELL.findall((ROOT / f"docs/{page}.md").read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page, folder, monkeypatch, tmp_path):
    """As far as they are `regard`'s: each ends well, in the order of the page."""
    for package in ("ctranslate2", "onnx", "transformers") if page == "interop" else ():
        pytest.importorskip(package, reason="needs the extras of exports")
    own, ran = tmp_path / "copy", []
    monkeypatch.setattr(sampling, "SIZES", {"train": 200, "valid": 20, "test": 20})  # of generated data
    monkeypatch.setenv("REGARD_CACHE", str(folder / ".cache"))
    monkeypatch.chdir(shutil.copytree(folder, own))
    for words in (words for code in _blocks(page) for words in simple_commands(code.replace("$ regard", "regard"))):
        arguments = of_regard(words)
        if arguments is None or arguments[0] in ELSEWHERE or "ray" in arguments:
            continue
        if arguments[0] in ("train", "export") and "--resume" not in arguments:  # pages use a folder's name again
            shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)
        if arguments[0] == "train":
            arguments += _changes(CHANGES[arguments[1]])
        read, written = (_redirected(arguments, sign) for sign in "<>")
        run = process if arguments[0] == "export" else command  # PyTorch exports no type checks, which tests have
        done = run(*arguments, text="a dog runs\n" if read is None else Path(read).read_text())
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
        if written is not None:
            Path(written).write_text(done.stdout, "utf-8")
        ran.append(arguments[0])
    assert ran, f"docs/{page}.md has no command"


def _redirected(arguments: list[str], sign: str) -> str | None:
    """The file that a command reads or writes, which is taken out of its arguments."""
    if sign not in arguments:
        return None
    at = arguments.index(sign)
    _, file = arguments[at : at + 2]
    del arguments[at : at + 2]
    return file


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_requests_to_a_server_run(folder):
    """The requests of docs/serve.md with curl, to a server of the models that they name."""
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    from support.servers import served

    models = {name: folder / "runs" / name for name in NAMES}
    answered = []
    with served(models) as running:
        for code in _blocks("serve"):
            for line in _requests(COMMENT.sub("", code), running.port):
                done = subprocess.run(
                    ["bash", "-ec", line], cwd=folder, capture_output=True, text=True, check=False, timeout=120
                )
                assert done.returncode == 0, f"{line}\n{done.stderr}"
                answer = json.loads(done.stdout)
                assert not (isinstance(answer, dict) and answer.get("status", 200) >= 400), f"{line}\n{answer}"
                answered.append(line)
    assert len(answered) >= 9


def _requests(code: str, port: int) -> list[str]:
    """The calls of curl in a block, to this port; each names its model where the server has several."""
    calls = re.findall(r"^curl [^\n]*(?:\n +[^\n]*)*", code.replace("\\\n", " "), re.MULTILINE)
    named = []
    for call in calls:
        call = call.replace("localhost:8000", f"127.0.0.1:{port}").rstrip()
        if "/caption" in call:
            call += " -F model=captions"
        named.append(re.sub(r"'\{(?=\"(?:input|prompt))", """'{"model": "en-de", """, call))
    return named
