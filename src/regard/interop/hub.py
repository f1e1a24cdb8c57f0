"""Models of the Hugging Face Hub, downloaded to and uploaded from a local folder by huggingface_hub."""

import re
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidArgument, MissingExtra

PREFIX = "hf:"
PUSHING = "Pushing a model to the Hugging Face Hub"
# Weights, configurations, tokenizers. Nothing that is code, and no pickles.
PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.json",
    "*.spm",
    "*.model",
    "vocab.txt",
    "merges.txt",
)
NAME = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")


def local_folder(source: str | Path) -> Path:
    """The folder of a model: `source` itself, or for hf:owner/name a folder of the hub's cache, downloaded if needed.

    hf:owner/name@revision is a branch, a tag or a commit. With HF_HUB_OFFLINE=1 only the cache is used.
    """
    if not str(source).startswith(PREFIX):
        _check_folder(source)
        return Path(source)
    name, _, revision = str(source).removeprefix(PREFIX).partition("@")
    check_name(name, str(source), PREFIX)
    hub = _hub("A model of the Hugging Face Hub")
    try:
        found = hub.snapshot_download(
            name, revision=revision or None, allow_patterns=list(PATTERNS), ignore_patterns=["*/*"]
        )
    except Exception as error:
        # The network, the hub and the cache raise errors of many kinds.
        remedy = "Check the name and the connection; HF_HUB_OFFLINE=1 uses the cache only."
        if hub.constants.HF_HUB_OFFLINE:
            remedy = "Import it once without HF_HUB_OFFLINE, which allows the cache only, or give a local folder."
        wanted = "a model that can be downloaded"
        raise InvalidArgument(
            str(source), wanted=wanted, got=_first_line(error), remedy=remedy
        ) from None
    return Path(found)


def _check_folder(source: str | Path) -> None:
    """Refuse a folder that is not there, which may be meant as the name of a model of the hub."""
    if Path(source).is_dir():
        return
    got = "a file" if Path(source).exists() else "no such folder"
    remedy = "Check the spelling."
    if NAME.fullmatch(str(source)) and not Path(source).exists():
        remedy = f"Did you mean {PREFIX}{source}, of the Hugging Face Hub?"
    wanted = "the folder of a model of transformers"
    raise InvalidArgument(str(source), wanted=wanted, got=got, remedy=remedy)


def push(folder: Path, name: str, client: Any = None) -> str:
    """Upload the files of a folder to a repository of the hub, which is made if it is not there. Returns its address.

    client   an object with the methods of huggingface_hub.HfApi; default: one with the user's own login
    """
    check_name(name, "push")
    if client is None:
        client = _hub(PUSHING).HfApi()
    try:
        address = str(client.create_repo(name, repo_type="model", exist_ok=True))
        client.upload_folder(
            repo_id=name, folder_path=str(folder), commit_message="Upload a model of Regard"
        )
    except Exception as error:
        remedy = "Log in with `hf auth login`; the exported folder is complete and can be uploaded later."
        raise InvalidArgument(
            "push", wanted=f"to upload to {name}", got=_first_line(error), remedy=remedy
        ) from None
    return address


def check_login() -> None:
    """Refuse to push without a token, before a model is exported."""
    if _hub(PUSHING).get_token() is None:
        remedy = "Log in with `hf auth login`, or set HF_TOKEN."
        raise InvalidArgument(
            "push", wanted="a login at the Hugging Face Hub", got="none", remedy=remedy
        )


def check_name(name: str, given: str, prefix: str = "") -> None:
    if not NAME.fullmatch(name) or ".." in name:
        remedy = f"{prefix}Helsinki-NLP/opus-mt-en-de, for example."
        raise InvalidArgument(given, wanted=f"{prefix}owner/name", got=repr(name), remedy=remedy)


def _first_line(error: Exception) -> str:
    """The kind of an error and the first line of its text."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}"[:300].rstrip(".")


def _hub(why: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub", why) from None
    return huggingface_hub
