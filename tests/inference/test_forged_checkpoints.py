"""A forged checkpoint, whose hashes agree, is refused before it costs memory or reaches compiled code."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.inference.load import check_sizes
from support.forged import GOLDEN, HOSTILE, forge, leaves, put, rehashed

TOKEN = "<0xFF>"


def setting(*path):
    """A change of one value of a JSON file to the last argument."""
    return lambda content: put(content, path[:-1], path[-1])


def both_models(*path):
    """The same change of the model's table and of the recipe's."""

    def change(config):
        put(config["model"], path[:-1], path[-1])
        put(config["recipe"]["model"], path[:-1], path[-1])

    return change


def padded(content):
    content["padding"] = {
        "strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 2**32 - 1,
        "pad_type_id": 0, "pad_token": TOKEN,
    }  # fmt: skip


FORGED = {
    "an id beyond the table": (
        "tokenizer.json",
        setting("model", "vocab", TOKEN, 100_000),
        "ids other than 0 to 260",
    ),
    "an id of 32 bits": (
        "tokenizer.json",
        setting("model", "vocab", TOKEN, 2**32 - 1),
        "ids other than 0 to 260",
    ),
    "an id that is written slowly": (
        "tokenizer.json",
        setting("model", "vocab", TOKEN, 2 * 10**9),
        "ids other",
    ),
    "one token more": (
        "tokenizer.json",
        setting("model", "vocab", "abc", 261),
        "a row of weights for each id",
    ),
    "padding with any id": ("tokenizer.json", padded, "padding"),
    "a normalizer": (
        "tokenizer.json",
        setting("normalizer", {"type": "Prepend", "prepend": "x"}),
        "normalizer",
    ),
    "a large vocabulary": (
        "config.json",
        setting("model", "vocab_size", 40_000_000),
        "vocab_size = 40000000",
    ),
    "a vocabulary of other rows": ("config.json", setting("model", "vocab_size", 262), "262"),
    "20,000 layers": ("config.json", both_models("encoder", "layers", 20_000), "layers = 20000"),
    "wide layers": ("config.json", both_models("decoder", "ffn_dim", 900_000), "of shape"),
    "a dimension of 2⁶²": ("config.json", both_models("decoder", "dim", 2**62), "decoder.dim"),
    "many heads": ("config.json", both_models("decoder", "heads", 10**9), "heads"),
    "a kind that is a list": ("config.json", both_models("decoder", "kind", ["a"]), "kind"),
    "a large beam": ("config.json", setting("recipe", "decode", "beam_size", 10**9), "beam_size"),
    "no number": (
        "config.json",
        setting("recipe", "decode", "length_penalty", math.nan),
        "length_penalty",
    ),
    "NaN": (
        "model.safetensors",
        lambda weights: weights["decoder.project.bias"].fill_(math.nan),
        "NaN or infinity",
    ),
    "infinity": (
        "model.safetensors",
        lambda weights: weights["decoder.project.bias"].fill_(math.inf),
        "NaN or infi",
    ),
    "integers": (
        "model.safetensors",
        lambda weights: weights.update(
            {"decoder.project.bias": torch.ones(261, dtype=torch.int64)}
        ),
        "int64",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_refused(tmp_path, name):
    file, change, match = FORGED[name]
    with pytest.raises(regard.CheckpointRefused, match=match):
        regard.load(forge(tmp_path / "forged", file, change))


def test_sizes_of_several_encoders_are_checked():
    """Of each, as far as there can be as many as tensors."""
    weights = [6, 8]
    encoders = [{"layers": 1}, {"layers": 2}]
    check_sizes({"encoder": encoders}, weights)
    for place in range(2):
        forged = [*encoders[:place], {"layers": 20_000}, *encoders[place + 1 :]]
        with pytest.raises(ValueError, match=r"encoder\.layers = 20000"):
            check_sizes({"encoder": forged}, weights)


WRITERS = {
    "0.2.0": r"written by a newer version, Regard 0\.2\.0, and this is 0\.1\.0: update Regard",
    "0.1.0": r"changed, or written by another version",
    "0.0.99": r"changed, or written by another version",
    "9.\u202e1": r"changed, or written by another version",
}


@pytest.mark.parametrize("version", WRITERS)
@pytest.mark.parametrize(
    "place", [("train", "new_key"), ("decode", "new_key"), ("model", "decoder", "kind")]
)
def test_a_checkpoint_of_a_newer_version_is_told_from_a_changed_one(
    tmp_path, monkeypatch, version, place
):
    monkeypatch.setattr("regard.checkpoint.format.__version__", "0.1.0")

    def change(config):
        config["regard_version"] = version
        put(config["recipe"], place, "new")

    with pytest.raises(
        regard.CheckpointRefused,
        match=rf"config\.json: wanted a recipe; .*{place[-1]}.*{WRITERS[version]}",
    ):
        regard.load(forge(tmp_path / "other", "config.json", change))


def test_another_tokenizer_is_refused_before_any_weight_is_copied(tmp_path, monkeypatch):
    """One that is valid and as large, in a checkpoint whose hashes agree but for that of the vocabulary."""
    folder = forge(tmp_path / "other", "config.json", lambda config: None)
    content = json.loads((folder / "tokenizer.json").read_bytes())
    vocabulary = content["model"]["vocab"]
    vocabulary["<0x41>"], vocabulary["<0x42>"] = vocabulary["<0x42>"], vocabulary["<0x41>"]
    _replace(folder, "tokenizer.json", json.dumps(content).encode())
    monkeypatch.setattr(
        "regard.inference.load.load_weights", lambda *given: pytest.fail("weights were copied")
    )
    with pytest.raises(
        regard.CheckpointRefused, match="wanted the vocabulary that the model was trained with"
    ):
        regard.load(folder)


def test_a_rewritten_checkpoint_loads(tmp_path):
    """So that the refusals above are not those of a wrong hash."""
    model = regard.load(forge(tmp_path / "same", "config.json", lambda config: None))
    assert model.predict(["abc"]) == regard.load(GOLDEN / "transformer").predict(["abc"])


MEASURED = """
import json, resource, sys, time
import regard
regard.load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for line in sys.stdin:
    start = time.process_time()
    try:
        result = 0
        model = regard.load(line.strip())
        list(model.predict(["abc"]))
    except regard.RegardError as error:
        result = error.exit_code
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(json.dumps([result, time.process_time() - start, grown]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["transformer", "rnn", "convolution", "language-model", "classifier"]
)
def test_forged_checkpoints_are_refused_within_10_seconds_and_1_gb(tmp_path, model):
    """Hostile values in random places of config.json and of the vocabulary: refused, or loaded where harmless.

    Seconds are those of the processor, as other processes may be at work.
    """
    chance, folders = random.Random(model), []
    for file, count in (("config.json", 150), ("tokenizer.json", 50)):
        places = list(leaves(json.loads((GOLDEN / model / file).read_bytes())))
        for number in range(count):
            place, value = chance.choice(places), chance.choice(HOSTILE)
            folders.append(
                forge(tmp_path / f"{file}-{number}", file, setting(*place, value), model)
            )
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED, str(GOLDEN / model)],
        input="\n".join(map(str, folders)), capture_output=True, text=True, timeout=550,
    )  # fmt: skip
    assert measured.returncode == 0, measured.stderr[-2000:]
    results = [json.loads(line) for line in measured.stdout.splitlines()]
    assert len(results) == len(folders)
    assert {code for code, _, _ in results} <= {
        0,
        2,
        4,
    }  # 2: loaded, but its settings refuse this input
    assert sum(code == 4 for code, _, _ in results) > 20
    assert max(seconds for _, seconds, _ in results) < 10
    assert results[-1][2] < 1000  # megabytes


LIMITED = """
import json, os, resource, sys, time
from pathlib import Path
import regard
from regard.checkpoint import store
from regard.training.run_state import RunState

def read(folder):
    regard.load(folder, device="cpu")
    if (folder / "training.json").exists():  # as a resumed run reads it
        RunState.from_dict(store.document(store.read(folder), "training.json", folder), folder)

read(Path(sys.argv[1]))
used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + 10**9, used + 10**9))
for line in sys.stdin:
    start, result, message = time.process_time(), 0, ""
    try:
        read(Path(line.strip()))
    except regard.RegardError as error:
        result, message = error.exit_code, str(error)
    except BaseException as error:
        result, message = -1, repr(error)
    print(json.dumps([result, time.process_time() - start, message]), flush=True)
"""
# Values that are never valid, for each type of value: of other types, or out of range. None may stand for a default.
OTHERS = {
    bool: ("x", [], {}, 7, 1.5),
    int: ("x", [], {"a": 1}, -1, 2**70, 1.5),
    float: ("x", [], {"a": 1}, math.nan, math.inf),
    str: (7, [], {"a": 1}, True),
    list: ("x", {"a": 1}, 7),
    dict: ("x", [], 7),
}
SIZES = (0, 7, 20_000, 40_000_000, 2**31, 40_000_000_000, 2**63)  # of a model that has others
UNCHECKED = (
    "architectures",
    "model_type",
    "regard_version",
    "torch_version",
    "registered",
    "pruned",
)  # only shown
STATE = {
    "step": 7, "epoch": 1, "batch": 2, "tokens": 100, "skipped": 0, "grad_norm": 1.0,
    "loss_since": 3.0, "nll_since": 2.0, "tokens_since": 5,
    "history": {"best": 1.0, "best_step": 7, "waited": 0, "factor": 1.0}, "validated": True,
}  # fmt: skip


def mutated(content, chance):
    """A JSON value with one value of another type or size. Returns where it was and what it is now."""
    places = [
        place
        for place in leaves(content)
        if place[0] not in UNCHECKED and _at(content, place) is not None
    ]
    place = chance.choice(
        [place for place in places if place[-1] != "sha256"]
    )  # which is made to agree
    old = _at(content, place)
    sizes = SIZES if type(old) is int and "model" in place[:2] else ()
    value = chance.choice([other for other in (*OTHERS[type(old)], *sizes) if other != old])
    put(content, place, value)
    return place, value


def _at(content, place):
    for key in place:
        content = content[key]
    return content


@pytest.mark.slow
def test_200_checkpoints_with_other_sizes_and_types_are_refused(tmp_path):
    """In a process that cannot have another gigabyte, each within ten seconds."""
    chance, folders, changes = random.Random(0), [], []
    models = ["transformer", "rnn", "convolution", "language-model", "classifier"]
    for number in range(200):
        file = ("config.json", "tokenizer.json", "training.json")[number % 3]
        folder = forge(
            tmp_path / str(number) / "step-00000007",
            "config.json",
            lambda config: None,
            models[number % 5],
        )
        content = STATE | {"history": dict(STATE["history"])}
        if file != "training.json":
            (folder / "training.json").write_text(json.dumps(content))
            content = json.loads((folder / file).read_bytes())
        changes.append((file, *mutated(content, chance)))
        (folder / file).write_text(json.dumps(content))
        folders.append(rehashed(folder))
    valid = forge(tmp_path / "valid" / "step-00000007", "config.json", lambda config: None)
    (valid / "training.json").write_text(json.dumps(STATE))
    measured = subprocess.run(
        [sys.executable, "-c", LIMITED, str(rehashed(valid))],
        input="\n".join(map(str, folders)), capture_output=True, text=True, timeout=550,
    )  # fmt: skip
    assert measured.returncode == 0, measured.stderr[-2000:]
    results = [json.loads(line) for line in measured.stdout.splitlines()]
    others = [
        f"{change}: {code} {got}"
        for change, (code, *got) in zip(changes, results, strict=True)
        if code != 4
    ]
    assert not others, "\n".join(others)
    assert max(seconds for _, seconds, _ in results) < 10


def test_deep_json_is_refused(tmp_path):
    folder = forge(tmp_path / "deep", "config.json", lambda config: None)
    _replace(folder, "config.json", b"[" * 150_000)
    with pytest.raises(regard.CheckpointRefused, match=r"config\.json"):
        regard.load(folder)


def _replace(folder: Path, name: str, content: bytes) -> None:
    from regard.checkpoint import store

    (folder / name).write_bytes(content)
    files = {
        path.name: store._entry(path.read_bytes())
        for path in folder.iterdir()
        if path.name != store.MANIFEST
    }
    (folder / store.MANIFEST).write_bytes(store._manifest(files))
