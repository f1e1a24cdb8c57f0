"""`regard.convert`: a configuration of Joey NMT, OpenNMT-py or fairseq as a recipe,
and what it could not take over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidArgument, InvalidData, MissingExtra
from regard.core.sanitize import one_line
from regard.interop.configurations import fairseq, fairseq_commands, joeynmt, opennmt
from regard.recipe.recipe import Recipe
from regard.recipe.toml_text import toml_lines

TOOLKITS = {
    "joeynmt": joeynmt.converted,
    "opennmt": opennmt.converted,
    "fairseq": fairseq.converted,
}
LARGEST = 1_000_000  # bytes of a file


@dataclass(frozen=True)
class ConvertedRecipe:
    """A recipe made from a configuration of another toolkit.

    tables   the tables of the recipe, as `regard.train` takes them
    notes    options that were not taken over, or whose meaning changed, with the reason
    origin   the toolkit and the file that it was made from
    """

    tables: Mapping[str, Any]
    notes: Mapping[str, str]
    origin: str

    def toml(self) -> str:
        """The recipe as TOML, with the notes as comments before it."""
        head = [
            f"# From {one_line(self.origin)}. Check what follows, then: regard train "
            "THIS.toml --out RUN --dry-run"
        ]
        if self.notes:
            head += ["#", "# Not taken over, or changed in meaning:"]
            head += [f"#   {one_line(f'{name}: {why}')}" for name, why in self.notes.items()]
        return "\n".join([*head, *toml_lines(self.tables)]) + "\n"


def convert(path: str | Path, source: str) -> ConvertedRecipe:
    """The recipe of a configuration file of another toolkit.

    path     a YAML file of Joey NMT, OpenNMT-py or fairseq-hydra-train, or a shell script with a
             command fairseq-train
    source   joeynmt, opennmt or fairseq

    The recipe holds the other toolkit's defaults where the file gives no value, and has passed the
    checks of recipes. YAML needs the extra `yaml`.
    """
    if source not in TOOLKITS:
        wanted = f"one of {', '.join(TOOLKITS)}"
        raise InvalidArgument(
            "source", wanted=wanted, got=repr(source), remedy="Name the toolkit of the file."
        )
    path = Path(path)
    text = _read(path)
    if source == "fairseq":
        if path.suffix in (".yaml", ".yml"):
            given = fairseq_commands.options_of_hydra(_yaml(text, path))
        else:
            given = fairseq_commands.options_of_script(text, str(path))
    else:
        given = _yaml(text, path)
    options = TOOLKITS[source](given)
    for name in options.remaining():
        options.note(name, "no option that this version of Regard knows")
    Recipe.of(options.recipe)  # all problems at once, as for every recipe
    tables = {name: options.recipe[name] for name in ("data", "model", "train", "decode")}
    return ConvertedRecipe(tables, dict(options.notes), f"{path.name} of {options.toolkit}")


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            wanted = f"at most {LARGEST:,} bytes"
            got = f"{path.stat().st_size:,}"
            raise InvalidData(path, wanted=wanted, got=got, remedy="Give a configuration file.")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(
            str(path), wanted="a configuration file", got=got, remedy="Check the path."
        ) from None


def _yaml(text: str, path: Path) -> dict[str, Any]:
    """The tables of a YAML file: plain values only, as `safe_load` makes them."""
    try:
        import yaml
    except ImportError:
        raise MissingExtra("yaml", "yaml", "Reading YAML") from None
    try:
        tables = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        got = " ".join(str(error).split())[:200]
        raise InvalidArgument(str(path), wanted="a YAML file", got=got, remedy="Mend it.") from None
    if not isinstance(tables, dict) or not all(isinstance(key, str) for key in tables):
        got = type(tables).__name__
        raise InvalidArgument(
            str(path), wanted="a YAML file with options by name", got=got, remedy="Check the file."
        )
    return tables
