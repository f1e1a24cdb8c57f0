"""What the studio shows beside its models: a data set and training runs. Their paths come from the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class DataSet:
    """The data that the command line names: a split of the model's own data, or files like those it was trained on.

    alignment   files of sources, targets and reference links, with which the links of heads are compared; or none
    """

    names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    trust_data_paths: bool = False
    alignment: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(Path(name).name for name in self.names)


@dataclass(frozen=True)
class StudioSources:
    """A data set to browse, and the folders of runs by name."""

    data: DataSet | None = None
    runs: Mapping[str, Path] = field(default_factory=dict)
