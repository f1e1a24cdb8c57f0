"""The table [data] of a recipe and its fields [data.source] (or several [[data.sources]]) and [data.target]."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from regard.core.config import Config, Count, Probability, doc
from regard.core.errors import InvalidArgument, InvalidRecipe, Problem
from regard.core.registry import Registry
from regard.data import caption_datasets, conll, huggingface_datasets, text
from regard.data.example import SPLITS, Split
from regard.data.fields.base import Field, make_field
from regard.data.series_config import SeriesConfig
from regard.data.synthetic.scenes import SIDE
from regard.data.synthetic.tasks import TASKS
from regard.data.text import Errors

if TYPE_CHECKING:
    from regard.data.sources import DataSource

NEVER_TOKEN_LINES = (".csv", ".jsonl", ".parquet")  # whatever `format` says of other files
DATA_SOURCES: "Registry[type[DataSource]]" = Registry("data source")  # the user's own, by name


@dataclass(frozen=True)
class DataConfig(Config):
    """The table [data] of a recipe.

    Files are one table, whose columns the fields name, or text with an example per line: one file for the target
    alone, two (source, then target) for pairs, one more for each further source. hf:NAME:SPLIT, a Hugging Face dataset,
    is a table too. Words with tags may also be in files with a token a line (`conll`). Captioned images may also be
    listed in the formats of `caption_datasets`, without columns; images or arrays with labels may be a folder or a .zip
    file, with a folder of them for each class.
    """

    train: str | tuple[str, ...] | None = doc(None, "training files")
    valid: str | tuple[str, ...] | Probability | None = doc(
        None,
        "validation files, for early stopping and choosing a checkpoint; or the share of the training examples, as "
        "0.05, that is held out: examples of the same source are held out together",
    )
    test: str | tuple[str, ...] | Probability | None = doc(
        None, "test files, for reports; or a share, as of valid"
    )
    images: str | None = doc(
        None, "folder or .zip file of images; by default the folder of the file that lists them"
    )
    files_from: str | None = doc(
        None,
        "folder or .zip file of the arrays (.npy, .npz) that cells of vectors name; by default the folder of their "
        "table",
    )
    series: SeriesConfig | None = doc(
        None, "windows of long series in a table, whose continuation is the target; left out: none"
    )
    synthetic: Annotated[str, TASKS] | None = doc(None, "generated task, without any files")
    format: Literal["conll"] | None = doc(
        None,
        "conll: files with a token a line and blank lines between sentences; by default those named .conll, .conllu, "
        ".iob, .iob2 or .bio. Columns are numbers, or names of CoNLL-U; by default words are the first or FORM, and "
        "tags the last or UPOS",
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
        "read the texts of all sources as one sequence, with one encoder and one vocabulary: pairs of texts, to one "
        "label or number. Each text ends with its end token, or as the pretrained tokenizer separates them",
    )
    target: Field = doc(make_field(), "what the decoder writes, or the label to predict")
    shared_vocab: bool | None = doc(
        None,
        "one vocabulary for all texts, sources and target; by default where they are tokenized alike",
    )
    context_length: Count | None = doc(
        None,
        "language models: split running text, with its line breaks, into contexts of this many tokens; by default "
        "each line is a text of its own",
    )
    encoding_errors: Errors = doc(
        "strict", "bytes that are not UTF-8: refuse them, or replace them by U+FFFD"
    )
    seed: int = doc(0, "seed of the generated data")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_vocab is None:
            object.__setattr__(self, "shared_vocab", self._is_tokenized_alike)

    def conflicts(self) -> Iterator[Problem]:
        if self.join_sources:
            yield from self._not_joinable()
        yield from self._wrong_files()
        yield from self._wrong_fields()

    def _not_joinable(self) -> Iterator[Problem]:
        fields = self.sources or ()
        if len(fields) < 2:
            yield Problem(
                "join_sources",
                "false without two or more [[data.sources]]",
                "true",
                "Write [[data.sources]] for each text.",
            )
        elif {field.kind for field in fields} != {"text"}:
            got = ", ".join(repr(field.kind) for field in fields)
            yield Problem("join_sources", "true for texts alone", got, "Use an encoder for each.")
        elif len({field.tokenization for field in fields}) > 1:
            yield Problem(
                "join_sources",
                "sources that are tokenized alike, as they have one vocabulary",
                "others",
                "Give all of them the same tokenizer, vocab_size and lowercase.",
            )

    def files(self, split: Split) -> tuple[str, ...]:
        """The files of a split; empty where it has none."""
        given = getattr(self, self.files_key(split))
        if given is None:
            return ()
        return (given,) if isinstance(given, str) else given

    def files_key(self, split: Split) -> Split:
        """The key that names the files of a split: "train" where it is a part of the training files."""
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
        return SPLITS if self.synthetic else tuple(split for split in SPLITS if self.files(split))

    @property
    def source_fields(self) -> tuple[Field, ...]:
        """What the encoders read; empty for a language model."""
        return self.sources or (() if self.source is None else (self.source,))

    @property
    def fields(self) -> dict[str, Field]:
        """Sources and target by name: "source", or "sources.1", "sources.2", ...; "target"."""
        if self.sources is None:
            return {
                name: field
                for name in ("source", "target")
                if (field := getattr(self, name)) is not None
            }
        return {f"sources.{i}": field for i, field in enumerate(self.sources, start=1)} | {
            "target": self.target
        }

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
        """The columns to read of a table of such examples: those given, the configured ones, or else the first.

        `inputs` leaves out the target, which a language model has alone.
        """
        names = list(self.fields)[:-1] if inputs and self.source_fields else list(self.fields)
        if given and len(given) != len(names):
            wanted = (
                f"one for each of {', '.join(names)}"
                if len(names) > 1
                else f"one, of the {names[0]}"
            )
            remedy = "Give them in this order."
            raise InvalidArgument(
                "--column", wanted=wanted, got=f"{len(given)} ({', '.join(given)})", remedy=remedy
            )
        own = self.columns[: len(names)]
        return list(given) or (
            own if len(own) == len(names) else [str(i) for i in range(1, len(names) + 1)]
        )

    def with_files(self, files: Sequence[str], columns: Sequence[str] = ()) -> "DataConfig":
        """The same kind of data in other files, as the split "train": one table, or a file for each field.

        Its columns are those of `table_columns`. No example is left out for its length.
        """
        tokens = len(files) == 1 and self.is_token_file(files[0])
        table = len(files) == 1 and (
            text.is_table(files[0]) or huggingface_datasets.is_dataset(files[0])
        )
        chosen: Sequence[str | None] = [None] * len(self.fields)
        if self.series is not None:
            return self._with_series(files, columns)
        if tokens:
            chosen = self.token_columns(files[0], columns)
        elif table:
            chosen = self.table_columns(columns)
        *sources, target = (
            field.for_new_files(column)
            for field, column in zip(self.fields.values(), chosen, strict=True)
        )
        changed: dict[str, Any] = (
            {"sources": tuple(sources)} if self.sources else {"source": next(iter(sources), None)}
        )
        changed |= {
            "synthetic": None,
            "seed": 0,
            "format": self.format if tokens else None,
            "train": tuple(files),
            "valid": None,
            "test": None,
        }
        try:
            return replace(self, target=target, **changed)
        except InvalidRecipe as error:
            problem = error.problems[0]
            raise InvalidArgument(
                "data", wanted=problem.wanted, got=problem.got, remedy=problem.remedy
            ) from None

    def _with_series(self, files: Sequence[str], columns: Sequence[str]) -> "DataConfig":
        """The same kind of series in another table, all of whose windows are of the split "train"."""
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
        """Whether such data in this file have a token a line, by `format` or by the name of the file."""
        if not self._has_token_lists:
            return False
        if self.format is None or huggingface_datasets.is_dataset(str(file)):
            return conll.has_token_lines(file)
        return text.form(file) not in NEVER_TOKEN_LINES

    def token_columns(
        self, file: str | Path, given: Sequence[str] = (), *, inputs: bool = False
    ) -> list[str]:
        """The columns to read of a file with a token a line: those given, or the configured ones of such a file.

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
    def _format_says_nothing(self) -> str | None:
        """Why the key `format` means nothing for these data; None where it does."""
        if not self._has_token_lists:
            return "files with a token a line are of words and tags"
        files = chain.from_iterable(map(self.files, self.splits))
        return None if any(map(self.is_token_file, files)) else "no such file is read"

    @property
    def _files_say_nothing(self) -> str | None:
        """Why the key `files_from` means nothing for these data; None where it does."""
        keys = {field.folder_key for field in self.fields.values() if field.stored is not None}
        if "files_from" in keys and self.reads_named_files:
            return None
        return "no arrays are read"

    @property
    def _or_conll(self) -> str:
        """What else helps where files of words and tags are not read as such."""
        return ', or set format = "conll" for a token a line' if self._has_token_lists else ""

    @property
    def _has_token_lists(self) -> bool:
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
        """Whether these files are one folder or .zip file, in which files are in a folder of their class."""
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
        """Whether a source bounds the length of its output, unless decode.max_length_ratio says so."""
        return bool(self.source_fields) and all(
            field.bounds_outputs for field in self.fields.values()
        )

    def _wrong_files(self) -> Iterator[Problem]:
        given = [split for split in SPLITS if self.files(split)]
        if given and "train" not in given:  # data without any files are those of an imported model
            yield Problem(
                "train", "files to learn from, beside others", "none", "Add train = 'FILE', say."
            )
        if self.synthetic is not None:
            for split in (each for each in SPLITS if getattr(self, each) is not None):
                wanted = f"no {'share' if split in self.shares else 'files'} beside synthetic"
                yield Problem(split, wanted, repr(getattr(self, split)), "Leave one out.")
        unused = {
            "images": not self.reads_images and "no images are read from files",
            "files_from": self._files_say_nothing,
            "reader": self.synthetic is not None and "no files are read",
            "format": self._format_says_nothing,
            "seed": self.synthetic in (None, "spelling") and "nothing is drawn at random",
            "encoding_errors": all(
                huggingface_datasets.is_dataset(file)
                for split in given
                for file in self.files(split)
            )
            and ("no files are read" if self.synthetic else "datasets hold no bytes"),
        }
        if self.series is not None:
            unused["reader"] = "windows of series are read"
            unused["series"] = None
        for key, why in unused.items():
            if why and getattr(self, key) != DataConfig.__dataclass_fields__[key].default:
                yield Problem(
                    key, f"nothing here: {why}", repr(getattr(self, key)), "Leave it out."
                )
        if self.synthetic is None and self.reader is None:
            for split in given:
                yield from self._wrong_shape(split)
            if any(self.is_token_file(self.files(split)[0]) for split in given):
                yield from self._wrong_token_columns()

    def _wrong_shape(self, split: Split) -> Iterator[Problem]:
        """Problems of the number and formats of a split's files."""
        files = self.files(split)
        named = self.columns
        if self.series is not None:
            if len(files) != 1 or not text.is_table(files[0]):
                wanted = f"one table ({', '.join(text.TABLES)}) of series"
                yield Problem(split, wanted, ", ".join(files), "Name one.")
            return
        if self.is_token_file(files[0]):
            yield from self._wrong_token_file(split)
            return
        got = f"{len(files)} files" if len(files) > 1 else files[0]
        datasets = [file for file in files if huggingface_datasets.is_dataset(file)]
        for incomplete in [
            address for address in datasets if not huggingface_datasets.is_complete(address)
        ][:1]:
            yield Problem(
                split, huggingface_datasets.WANTED, incomplete, "As in hf:owner/name:train."
            )
        if datasets or any(text.form(file) in text.TABLES for file in files):
            if len(files) > 1:
                yield Problem(
                    split, "one table, or files of lines", got, "Put all columns into one table."
                )
            elif len(named) < len(self.fields):
                names = " and ".join(f"{name}.column" for name in self.fields)
                yield Problem(
                    split,
                    f"{names}, to say what to read",
                    f"a table ({files[0]})",
                    f"Name the columns{self._or_conll}.",
                )
        elif self.is_caption_list(files):
            most, _ = caption_datasets.FORMS[text.form(files[0])]
            if len(files) > most:
                wanted = (
                    "captions, and the names of the split's images"
                    if most > 1
                    else "one file of JSON"
                )
                yield Problem(split, wanted, got, "Leave the others out.")
        elif named:
            yield Problem(
                split,
                f"a table ({', '.join(text.TABLES)}), for it has columns",
                got,
                "Name no column.",
            )
        elif len(files) != len(self.fields) and not self.is_class_folder(files):
            wanted = "one file, of targets"
            remedy = "Name one, or add [data.source]."
            if self.source_fields:
                wanted = f"a file for each of {', '.join(self.fields)}"
                remedy = f"Name {len(self.fields)}{self._or_conll}."
            yield Problem(split, wanted, got, remedy)

    def _wrong_token_file(self, split: Split) -> Iterator[Problem]:
        files = self.files(split)
        if len(files) > 1:
            wanted = "one file with words and tags"
            yield Problem(split, wanted, f"{len(files)} files", "Join them into one.")

    def _wrong_token_columns(self) -> Iterator[Problem]:
        for name, field in self.fields.items():
            if field.column is not None and not conll.is_column(field.column):
                wanted = f"a number from '1', or one of {', '.join(conll.CONLLU_COLUMNS)}"
                yield Problem(f"{name}.column", wanted, repr(field.column), "Change it.")

    def _wrong_series(self, series: SeriesConfig) -> Iterator[Problem]:
        """Fields and splits that do not go with windows of series."""
        for split in self.shares:
            wanted = "a file, or nothing beside [data.series], whose windows overlap"
            got = str(getattr(self, split))
            yield Problem(split, wanted, got, "Set data.series.split.")
        for split in series.split_parts[1:]:
            if self.synthetic is None and isinstance(getattr(self, split), str | tuple):
                wanted = "nothing beside data.series.split, which has a part for it"
                yield Problem(split, wanted, repr(getattr(self, split)), "Leave one of them out.")
        for name in ("source", "target"):
            field = getattr(self, name)
            if field is None or not field.reads_windows:
                got = "none" if field is None else repr(field.kind)
                wanted = "'vectors' beside [data.series]"
                yield Problem(f"{name}.kind", wanted, got, f"Write [data.{name}] kind = 'vectors'.")
            elif field.column is not None:
                wanted = "nothing beside [data.series], which names the columns"
                yield Problem(f"{name}.column", wanted, repr(field.column), "Leave it out.")
            elif field.limit_key is not None:
                wanted = "nothing beside [data.series], whose windows are of one length"
                got = str(getattr(field, field.limit_key))
                yield Problem(f"{name}.{field.limit_key}", wanted, got, "Leave it out.")

    def _wrong_fields(self) -> Iterator[Problem]:
        if self.series is not None:
            yield from self._wrong_series(self.series)
        if self.synthetic is not None:
            yield from self._wrong_synthetic_fields(self.synthetic)
        if self.target.is_file:
            yield Problem(
                "target.kind", "'text' or 'label': no images are generated", "'image'", "Change it."
            )
        for name, field in self.fields.items():
            if name != "target" and not field.is_source:
                wanted = "a kind that an encoder reads"
                yield Problem(f"{name}.kind", wanted, repr(field.kind), "Make it the target.")
        if self.sources is not None:
            yield from self._wrong_sources(self.sources)
        if self.has_shared_vocab and not self._is_tokenized_alike:
            got = "true with different settings of tokenizer, vocab_size or lowercase"
            wanted = "false, unless all texts are tokenized alike"
            yield Problem("shared_vocab", wanted, got, "Leave it out, or set it to false.")
        if self.shares and self.context_length is not None:
            yield Problem(
                next(iter(self.shares)),
                "a file: running text is not split",
                "a share",
                "Name a file.",
            )
        if sum(self.shares.values()) >= 1.0:
            yield Problem(
                "valid", "shares that leave something to train on", "all of it", "Lower them."
            )
        if self.context_length is not None:
            if self.source_fields:
                got = str(self.context_length)
                yield Problem(
                    "context_length",
                    "nothing here: pairs are not running text",
                    got,
                    "Leave it out.",
                )
            if self.target.limit_key is not None:
                got = str(getattr(self.target, self.target.limit_key))
                yield Problem(
                    f"target.{self.target.limit_key}",
                    "nothing here: contexts are of one length",
                    got,
                    "Leave it out.",
                )
        if not self.source_fields and self.target.needs_source:
            wanted = f"something to predict the {self.target.kind} from"
            yield Problem("source", wanted, "none", "Add [data.source].")

    def _wrong_synthetic_fields(self, task: str) -> Iterator[Problem]:
        if TASKS[task].series is not None and self.series is None:
            wanted = f"windows of the series of {task!r}"
            yield Problem("series", wanted, "none", "Write [data.series].")
            return
        if TASKS[task].series is None and self.series is not None:
            wanted = f"nothing beside {task!r}, which has no series"
            yield Problem("series", wanted, "a table", "Leave it out.")
            return
        kinds = TASKS[task].sources
        if len(self.source_fields) != len(kinds):
            tables = "[data.source]" if len(kinds) == 1 else f"{len(kinds)} tables [[data.sources]]"
            got = f"{len(self.source_fields)} sources"
            yield Problem(
                "source", f"{tables}: {task!r} has {' and '.join(kinds)}", got, f"Write {tables}."
            )
            return
        for (name, field), kind in zip(
            self.fields.items(), (*kinds, TASKS[task].target), strict=True
        ):
            if (field.kind, field.column) != (kind, None):
                wanted = f"kind = {kind!r} without a column, of generated data"
                yield Problem(name, wanted, repr(field), f"Set kind = {kind!r}, and no column.")
            elif field.resizing is not None and field.resizing[0] != SIDE:
                yield Problem(
                    f"{name}.image_size",
                    f"{SIDE}, of {task}",
                    str(field.resizing[0]),
                    "Leave it out.",
                )

    def _wrong_sources(self, sources: Sequence[Field]) -> Iterator[Problem]:
        if self.source is not None:
            yield Problem(
                "sources",
                "nothing beside [data.source]",
                f"{len(sources)} tables",
                "Leave one out.",
            )
        elif len(sources) < 2:
            yield Problem("sources", "at least two tables", "one", "Write [data.source].")
        images = [field for field in sources if field.is_file]
        if len({field.random_changes for field in images}) > 1:
            yield Problem(
                "sources", "one augment for all images", "different ones", "Make them equal."
            )

    @property
    def _is_tokenized_alike(self) -> bool:
        """Whether the tokenizers of all texts have the same settings; true where there is one text or none."""
        if self.target.tokenization is None:
            return True
        return {field.tokenization for field in self._tokenized_sources} <= {
            self.target.tokenization
        }

    @property
    def _tokenized_sources(self) -> list[Field]:
        return [field for field in self.source_fields if field.tokenization is not None]
