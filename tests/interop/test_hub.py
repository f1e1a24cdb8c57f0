"""Models by their name in the Hugging Face Hub, from its local cache."""

import pytest

from regard.core.errors import InvalidArgument
from regard.interop.hub import local_folder

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
