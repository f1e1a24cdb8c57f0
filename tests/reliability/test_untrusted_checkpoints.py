"""What a checkpoint of somebody else can make a process do: nothing outside its folder, and no code."""

import json
import subprocess
import sys

from support.forged import GOLDEN, forge

AUDITED = """
import json, sys
import regard
ordinary, foreign = sys.argv[1:]
regard.load(ordinary, device="cpu").predict(["abc"])  # imports, compiles and caches what any model needs
seen = []
def hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        seen.append([event, str(path), bool(flags & 3)])
    elif event == "import":
        seen.append([event, arguments[0], False])
    elif event.partition(".")[0] in ("socket", "subprocess", "os", "shutil", "ctypes", "tempfile", "urllib", "pickle"):
        if event not in ("os.listdir", "os.scandir"):
            seen.append([event, repr(arguments), True])
sys.addaudithook(hook)
try:
    list(regard.load(foreign, device="cpu").predict(["abc"]))
except regard.RegardError as error:
    seen.append(["refused", str(error), False])
print(json.dumps(seen))
"""


def foreign_data(config):
    config["recipe"]["data"] |= {"train": "/etc/passwd", "test": "hf:somebody/something:test"}
    config["recipe"]["train"] = config["recipe"].get("train", {}) | {
        "init_from": "/etc",
        "loggers": ["tensorboard"],
    }


def named_code(config):
    config |= {
        "auto_map": {"AutoModel": "modeling.Model"},
        "_target_": "os.system",
        "module": "planted",
    }
    config["registered"] = [{"kind": "encoder", "name": "planted", "package": "planted"}]
    config["recipe"]["model"]["encoder"]["kind"] = config["model"]["encoder"]["kind"] = (
        "planted:Encoder"
    )


def audited(tmp_path, change) -> list[list]:
    folder = forge(tmp_path / "foreign", "config.json", change)
    for name in ("planted.py", "modeling.py"):
        (tmp_path / name).write_text("raise SystemExit('executed')\n")
    ended = subprocess.run(
        [sys.executable, "-c", AUDITED, GOLDEN / "transformer", folder],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_checkpoint_reads_fetches_and_writes_nothing_outside_its_folder(tmp_path):
    seen = audited(tmp_path, foreign_data)
    opened = {path for event, path, _ in seen if event == "open"}
    assert {path for path in opened if str(tmp_path / "foreign") in path}
    outside = {path for path in opened if str(tmp_path / "foreign") not in path}
    assert {path for path in outside if not path.endswith((".py", ".pyc", ".so"))} == set()
    assert [each for each in seen if each[2]] == []  # nothing written, fetched or started


def test_a_configuration_names_no_code(tmp_path):
    """Names of modules and classes in any place: none is imported, and an unknown name is refused."""
    seen = audited(tmp_path, named_code)
    assert {what for event, what, _ in seen if event == "import"} & {"planted", "modeling"} == set()
    (message,) = [what for event, what, _ in seen if event == "refused"]
    assert "planted" in message
