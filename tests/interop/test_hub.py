"""Models by their name in the Hugging Face Hub, from its local cache."""

import pytest

from regard.core.errors import InvalidArgument
from regard.interop.hub import local_folder
from support.command_line import command

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The hub's cache, without a connection."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_a_cached_model_is_found_without_a_connection(cache, revision):
    model = cache / "models--owner--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert local_folder(f"hf:owner/name{revision}") == snapshot


def test_a_model_that_is_not_cached_is_refused_without_a_connection(cache):
    message = r"hf:owner/name: wanted a model that can be downloaded; .*[^.]\. Import it once without HF_HUB_OFFLINE"
    with pytest.raises(InvalidArgument, match=message):
        local_folder("hf:owner/name")


@pytest.mark.parametrize("name", ["", "../secret", "owner/name/more", "owner name"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(
        InvalidArgument, match=r"wanted hf:owner/name; got .* hf:Helsinki-NLP/opus-mt-en-de"
    ):
        local_folder(f"hf:{name}")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gpt2", "Did you mean hf:gpt2, of the Hugging Face Hub?"),
        ("owner/name", "Did you mean hf:owner/name, of the Hugging Face Hub?"),
        ("a/b/c", "Check the spelling."),
        ("file", "Check the spelling."),
    ],
)
def test_a_folder_that_is_not_there_may_be_a_name_of_the_hub(tmp_path, monkeypatch, name, remedy):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = command("import", name, "--out", "model")
    assert done.returncode == 2
    assert f"{name}: wanted the folder of a model of transformers; got" in done.stderr
    assert done.stderr.strip().endswith(remedy)
    assert not (tmp_path / "model").exists()
