"""The table [data] of a recipe and its fields [data.source] (or several [[data.sources]])
and [data.target].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from regard.core.config import Config, Count, Probability, doc
from regard.core.errors import InvalidArgument, InvalidRecipe, Problem
from regard.core.registry import Registry
from regard.data import caption_datasets, conll, huggingface_datasets, text
from regard.data.config_problems import data_problems
from regard.data.example import SPLITS, Split
from regard.data.fields.base import Field, make_field
from regard.data.series_config import SeriesConfig
from regard.data.synthetic.tasks import TASKS
from regard.data.text import Errors

if TYPE_CHECKING:
    from regard.data.sources import DataSource

NEVER_TOKEN_LINES = (".csv", ".jsonl", ".parquet")  # whatever `format` says of other files
DATA_SOURCES: "Registry[type[DataSource]]" = Registry("data source")  # the user's own, by name


@dataclass(frozen=True)
class DataConfig(Config):
    """The table [data] of a recipe.

    Files are one table, whose columns the fields name, or text with an example per line: one file
    for the target alone, two (source, then target) for pairs, one more for each further source.
    hf:NAME:SPLIT, a Hugging Face dataset, is a table too. Words with tags may also be in files with
    a token a line (`conll`). Captioned images may also be listed in the formats of
    `caption_datasets`, without columns; images or arrays with labels may be a folder or a .zip
    file, with a folder of them for each class.
    """

    train: str | tuple[str, ...] | None = doc(None, "training files")
    valid: str | tuple[str, ...] | Probability | None = doc(
        None,
        "validation files, for early stopping and choosing a checkpoint; or the share "
        "of the training examples, as 0.05, that is held out: examples of the same "
        "source are held out together",
    )
    test: str | tuple[str, ...] | Probability | None = doc(
        None, "test files, for reports; or a share, as of valid"
    )
    images: str | None = doc(
        None, "folder or .zip file of images; by default the folder of the file that lists them"
    )
    files_from: str | None = doc(
        None,
        "folder or .zip file of the arrays (.npy, .npz) that cells of vectors name; by default "
        "the folder of their table",
    )
    series: SeriesConfig | None = doc(
        None, "windows of long series in a table, whose continuation is the target; left out: none"
    )
    synthetic: Annotated[str, TASKS] | None = doc(None, "generated task, without any files")
    format: Literal["conll"] | None = doc(
        None,
        "conll: files with a token a line and blank lines between sentences; by default those "
        "named .conll, .conllu, .iob, .iob2 or .bio. Columns are numbers, or names of CoNLL-U; by "
        "default words are the first or FORM, and tags the last or UPOS",
    )
    reader: Annotated[str, DATA_SOURCES] | None = doc(
        None, "registered data source that reads the files; by default chosen by their names"
    )
    source: Field | None = doc(None, "what the encoder reads; left out for a language model")
    sources: tuple[Field, ...] | None = doc(
        None, "several sources of each example instead of one, each with a table of model.encoders"
    )
    join_sources: bool = doc(
        False,
        "read the texts of all sources as one sequence, with one encoder and one vocabulary: "
        "pairs of texts, to one label or number. Each text ends with its end token, or as the "
        "pretrained tokenizer separates them",
    )
    target: Field = doc(make_field(), "what the decoder writes, or the label to predict")
    shared_vocab: bool | None = doc(
        None,
        "one vocabulary for all texts, sources and target; by default "
        "where they are tokenized alike",
    )
    context_length: Count | None = doc(
        None,
        "language models: split running text, with its line breaks, into contexts of this many "
        "tokens; by default each line is a text of its own",
    )
    encoding_errors: Errors = doc(
        "strict", "bytes that are not UTF-8: refuse them, or replace them by U+FFFD"
    )
    seed: int = doc(0, "seed of the generated data")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_vocab is None:
            object.__setattr__(self, "shared_vocab", self.is_tokenized_alike)

    def conflicts(self) -> Iterator[Problem]:
        return data_problems(self)

    def files(self, split: Split) -> tuple[str, ...]:
        """The files of a split; empty where it has none."""
        given = getattr(self, self.files_key(split))
        if given is None:
            return ()
        return (given,) if isinstance(given, str) else given

    def files_key(self, split: Split) -> Split:
        """The key that names the files of a split:
        "train" where it is a part of the training files.
        """
        if split in self.shares:
            return "train"
        parts = () if self.series is None else self.series.split_parts
        return "train" if split in parts and getattr(self, split) is None else split

    @property
    def shares(self) -> dict[Split, float]:
        """The splits that are shares of the training files."""
        given = {split: getattr(self, split) for split in SPLITS}
        return {split: share for split, share in given.items() if isinstance(share, float | int)}

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that have data."""
        if self.synthetic and self.series is not None:
            return self.series.split_parts
        if self.synthetic:
            return SPLITS
        return tuple(split for split in SPLITS if self.files(split))

    @property
    def source_fields(self) -> tuple[Field, ...]:
        """What the encoders read; empty for a language model."""
        if self.sources:
            return self.sources
        return () if self.source is None else (self.source,)

    @property
    def fields(self) -> dict[str, Field]:
        """Sources and target by name: "source", or "sources.1", "sources.2", ...; "target"."""
        fields = {}
        if self.sources is not None:
            fields = {f"sources.{i}": field for i, field in enumerate(self.sources, start=1)}
        elif self.source is not None:
            fields = {"source": self.source}
        return fields | {"target": self.target}

    @property
    def augment(self) -> tuple[Any, ...]:
        """Random changes of the training images; the same for all images of an example."""
        changes = (field.random_changes for field in self.source_fields)
        return next((each for each in changes if each is not None), ())

    @property
    def columns(self) -> list[str]:
        """Columns of the sources and of the target; empty where no file is a table."""
        return [field.column for field in self.fields.values() if field.column is not None]

    def table_columns(self, given: Sequence[str] = (), *, inputs: bool = False) -> list[str]:
        """The columns to read of a table of such examples: those given, the configured ones,
        or else the first.

        `inputs` leaves out the target, which a language model has alone.
        """
        names = list(self.fields)
        if inputs and self.source_fields:
            names.pop()
        if given and len(given) != len(names):
            wanted = f"one, of the {names[0]}"
            if len(names) > 1:
                wanted = f"one for each of {', '.join(names)}"
            got = f"{len(given)} ({', '.join(given)})"
            remedy = "Give them in this order."
            raise InvalidArgument("--column", wanted=wanted, got=got, remedy=remedy)
        if given:
            return list(given)
        own = self.columns[: len(names)]
        if len(own) == len(names):
            return own
        return [str(i) for i in range(1, len(names) + 1)]

    def with_files(self, files: Sequence[str], columns: Sequence[str] = ()) -> "DataConfig":
        """The same kind of data in other files, as the split "train": one table,
        or a file for each field.

        Its columns are those of `table_columns`. No example is left out for its length.
        """
        tokens = len(files) == 1 and self.is_token_file(files[0])
        if self.series is not None:
            return self._with_series(files, columns)
        chosen: Sequence[str | None] = [None] * len(self.fields)
        if tokens:
            chosen = self.token_columns(files[0], columns)
        elif len(files) == 1 and (
            text.is_table(files[0]) or huggingface_datasets.is_dataset(files[0])
        ):
            chosen = self.table_columns(columns)
        *sources, target = (
            field.for_new_files(column)
            for field, column in zip(self.fields.values(), chosen, strict=True)
        )
        changed: dict[str, Any] = {
            "synthetic": None,
            "seed": 0,
            "format": self.format if tokens else None,
            "train": tuple(files),
            "valid": None,
            "test": None,
        }
        if self.sources:
            changed["sources"] = tuple(sources)
        else:
            changed["source"] = sources[0] if sources else None
        try:
            return replace(self, target=target, **changed)
        except InvalidRecipe as error:
            problem = error.problems[0]
            raise InvalidArgument(
                "data", wanted=problem.wanted, got=problem.got, remedy=problem.remedy
            ) from None

    def _with_series(self, files: Sequence[str], columns: Sequence[str]) -> "DataConfig":
        """The same kind of series in another table,
        all of whose windows are of the split "train".
        """
        if len(files) != 1 or not text.is_table(files[0]):
            got = ", ".join(files)
            raise InvalidArgument(
                "data", wanted="one table of series", got=got, remedy="Name one .csv file, say."
            )
        if columns:
            raise InvalidArgument(
                "--column",
                wanted="nothing for a model of [data.series], which names its columns",
                got=", ".join(columns),
                remedy="Leave it out.",
            )
        assert self.series is not None
        stride = self.series.evaluation_stride
        series = replace(self.series, split=None, stride=stride)
        splits: dict[str, Any] = {"train": tuple(files), "valid": None, "test": None}
        return replace(self, series=series, synthetic=None, seed=0, **splits)

    def is_token_file(self, file: str | Path) -> bool:
        """Whether such data in this file have a token a line,
        by `format` or by the name of the file.
        """
        if not self.has_token_lists:
            return False
        if self.format is None or huggingface_datasets.is_dataset(str(file)):
            return conll.has_token_lines(file)
        return text.form(file) not in NEVER_TOKEN_LINES

    def token_columns(
        self, file: str | Path, given: Sequence[str] = (), *, inputs: bool = False
    ) -> list[str]:
        """The columns to read of a file with a token a line: those given,
        or the configured ones of such a file.

        `inputs` leaves out that of the target.
        """
        count = 1 if inputs else 2
        if given:
            return self.table_columns(given, inputs=inputs)
        own = self.files("train")
        similar = own and self.is_token_file(own[0])
        chosen = [conll.WORDS, conll.TAGS]
        if similar and conll.is_conllu(own[0]) == conll.is_conllu(file):
            pairs = zip(self.fields.values(), chosen, strict=True)
            chosen = [field.column or default for field, default in pairs]
        return chosen[:count]

    @property
    def has_token_lists(self) -> bool:
        """Whether an example is a list of words and one of tags."""
        fields = self.fields.values()
        return len(fields) == 2 and all(field.is_token_list for field in fields)

    @property
    def reads_images(self) -> bool:
        """Whether images are read from files."""
        return self.synthetic is None and any(field.is_file for field in self.source_fields)

    @property
    def reads_named_files(self) -> bool:
        """Whether cells of a table may name files: images, or arrays."""
        if self.synthetic is not None or self.series is not None:
            return False
        return any(field.stored is not None for field in self.fields.values())

    def is_caption_list(self, files: Sequence[str]) -> bool:
        """Whether these files list captions in one of the formats of `caption_datasets`."""
        pairs = self.reads_images and len(self.source_fields) == 1
        return pairs and not self.columns and text.form(files[0]) in caption_datasets.FORMS

    def is_class_folder(self, files: Sequence[str]) -> bool:
        """Whether these files are one folder or .zip file,
        in which files are in a folder of their class.
        """
        sources = self.source_fields
        is_labeled = self.target.names_folders and len(sources) == 1
        if not is_labeled or self.synthetic is not None or sources[0].stored is None:
            return False
        return not self.columns and len(files) == 1 and not self._lists_examples(files[0])

    def _lists_examples(self, file: str) -> bool:
        form = text.form(file)
        return (
            huggingface_datasets.is_dataset(file)
            or form in text.TABLES
            or form in caption_datasets.FORMS
        )

    @property
    def has_shared_vocab(self) -> bool:
        """Whether the texts among the sources have one vocabulary with the target, a text too."""
        is_text_to_text = self.target.tokenization is not None and bool(self._tokenized_sources)
        return bool(self.shared_vocab) and is_text_to_text

    @property
    def bounds_outputs(self) -> bool:
        """Whether a source bounds the length of its output,
        unless decode.max_length_ratio says so.
        """
        return bool(self.source_fields) and all(
            field.bounds_outputs for field in self.fields.values()
        )

    @property
    def is_tokenized_alike(self) -> bool:
        """Whether the tokenizers of all texts have the same settings;
        true where there is one text or none.
        """
        if self.target.tokenization is None:
            return True
        return {field.tokenization for field in self._tokenized_sources} <= {
            self.target.tokenization
        }

    @property
    def _tokenized_sources(self) -> list[Field]:
        return [field for field in self.source_fields if field.tokenization is not None]
