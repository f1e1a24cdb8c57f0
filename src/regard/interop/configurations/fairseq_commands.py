"""The options of fairseq: of a shell script with its commands, or of a file of fairseq-hydra-train."""

import re
import shlex
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from regard.core.errors import InvalidArgument

SHORT = {"-s": "--source-lang", "-t": "--target-lang", "-a": "--arch"}
GROUPS = {"model": "arch", "task": "task", "criterion": "criterion", "optimizer": "optimizer",
          "lr_scheduler": "lr_scheduler"}  # fmt: skip
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)")
COMMANDS = ("fairseq-train", "fairseq-preprocess", "fairseq-generate", "fairseq-interactive")


def options_of_script(text: str, path: str) -> dict[str, Any]:
    """The options of fairseq-train in a script, together with options of fairseq-preprocess and fairseq-generate.

    Variables of the script are replaced by their values; nothing is run.
    """
    found: dict[str, dict[str, Any]] = {}
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        try:
            split = shlex.split(line, comments=True)
            words = [Template(word).safe_substitute(variables) for word in split]
        except ValueError as error:
            got = f"{line.strip()[:60]!r}: {error}"
            raise InvalidArgument(
                path, wanted="a shell script", got=got, remedy="Mend it."
            ) from None
        # Assignments may stand before a command, as in A=1 B=2 fairseq-train.
        while words and (match := ASSIGNMENT.fullmatch(words[0])):
            variables[match[1]] = match[2]
            words = words[1:]
        for i, word in enumerate(words):
            command = word.rpartition("/")[2]
            if command in COMMANDS:
                found[command] = arguments(words[i + 1 :])
                break
    if "fairseq-train" not in found:
        remedy = "Or give a .yaml file of fairseq-hydra-train."
        raise InvalidArgument(
            path, wanted="a script with a command fairseq-train", got="none", remedy=remedy
        )
    prepared = dict(found.get("fairseq-preprocess", {}))
    prepared.pop("workers", None)
    generate = found.get("fairseq-generate", found.get("fairseq-interactive", {}))
    decoding = {key: value for key, value in generate.items() if key in GENERATION}
    return decoding | prepared | found["fairseq-train"]


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """Arguments of a command by name, with underscores. A flag is true; a word without an option is `data`."""
    found: dict[str, Any] = {}
    name: str | None = None
    for word in words:
        if word in ("|", "&&", ";", ">", "2>&1", "&"):
            break
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+(e-?\d+)?", word):
            option, equals, value = SHORT.get(word, word).partition("=")
            name = option.lstrip("-").replace("-", "_")
            found[name] = True
            if equals:
                found[name] = value
                name = None
        elif name is None:
            found["data"] = word
        else:
            # The value of the option before it, or a further value.
            before = found[name]
            if before is True:
                found[name] = word
            else:
                values = before if isinstance(before, list) else [before]
                found[name] = [*values, word]
            name = name if name in LISTS else None
    return found


def options_of_hydra(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a configuration of fairseq-hydra-train, under the names of the command line."""
    found: dict[str, Any] = {}
    for group, table in tables.items():
        if not isinstance(table, Mapping):
            found[f"{group}"] = table
            continue
        for name, value in table.items():
            # This means the value of another option.
            if isinstance(value, str) and value.startswith("${"):
                continue
            if name == "_name":
                found[GROUPS.get(group, group)] = value
            elif isinstance(value, Mapping):
                found |= {f"{name}_{inner}": each for inner, each in value.items()}
            else:
                found[name] = value
    return found


LISTS = ("lr", "update_freq")
GENERATION = (
    "beam", "nbest", "max_len_a", "max_len_b", "min_len", "unnormalized", "lenpen", "no_repeat_ngram_size", "sampling",
    "sampling_topk", "sampling_topp", "temperature", "diverse_beam_groups", "diverse_beam_strength", "replace_unk",
    "print_alignment", "sacrebleu", "remove_bpe", "scoring", "no_early_stop",
)  # fmt: skip
