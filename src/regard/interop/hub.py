"""Models of the Hugging Face Hub, downloaded to and uploaded from a local folder by huggingface_hub."""

import re
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidArgument, MissingExtra

PREFIX = "hf:"
# Weights, configurations, tokenizers. Nothing that is code, and no pickles.
PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.spm", "*.model", "vocab.txt", "merges.txt")
NAME = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")


def local_folder(source: str | Path) -> Path:
    """The folder of a model: `source` itself, or for hf:owner/name that of the hub's cache, downloaded if needed.

    hf:owner/name@revision is a branch, a tag or a commit. With HF_HUB_OFFLINE=1 only the cache is used.
    """
    if not str(source).startswith(PREFIX):
        return Path(source)
    name, _, revision = str(source).removeprefix(PREFIX).partition("@")
    check_name(name, str(source))
    hub = _hub("A model of the Hugging Face Hub")
    try:
        found = hub.snapshot_download(
            name, revision=revision or None, allow_patterns=list(PATTERNS), ignore_patterns=["*/*"]
        )
    except Exception as error:  # of the network, of the hub, of the cache
        remedy = "Check the name and the connection; HF_HUB_OFFLINE=1 uses the cache only."
        got = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
        raise InvalidArgument(str(source), wanted="a model that can be downloaded", got=got, remedy=remedy) from None
    return Path(found)


def push(folder: Path, name: str, client: Any = None) -> str:
    """Upload the files of a folder to a repository of the hub, which is made if it is not there. Returns its address.

    client   an object with the methods of huggingface_hub.HfApi; default: one with the user's own login
    """
    check_name(name, name)
    client = _hub("Pushing a model to the Hugging Face Hub").HfApi() if client is None else client
    try:
        address = str(client.create_repo(name, repo_type="model", exist_ok=True))
        client.upload_folder(repo_id=name, folder_path=str(folder), commit_message="Upload a model of Regard")
    except Exception as error:
        got = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
        remedy = "Log in with `hf auth login`; the exported folder is complete and can be uploaded later."
        raise InvalidArgument("push", wanted=f"to upload to {name}", got=got, remedy=remedy) from None
    return address


def check_name(name: str, given: str) -> None:
    if not NAME.fullmatch(name) or ".." in name:
        remedy = "hf:Helsinki-NLP/opus-mt-en-de, for example."
        raise InvalidArgument(given, wanted="hf:owner/name", got=repr(name), remedy=remedy)


def _hub(why: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub", why) from None
    return huggingface_hub
