"""What is wrong with the table [data] of a recipe: files and fields that do not go together."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from regard.core.errors import Problem
from regard.data import caption_datasets, conll, huggingface_datasets, text
from regard.data.example import SPLITS, Split
from regard.data.fields.base import Field
from regard.data.series_config import SeriesConfig
from regard.data.synthetic.scenes import SIDE
from regard.data.synthetic.tasks import TASKS

if TYPE_CHECKING:
    from regard.data.config import DataConfig


def data_problems(config: "DataConfig") -> Iterator[Problem]:
    """All keys of the table whose values contradict each other."""
    if config.join_sources:
        yield from _join_problems(config)
    yield from _file_problems(config)
    yield from _field_problems(config)


def _join_problems(config: "DataConfig") -> Iterator[Problem]:
    fields = config.sources or ()
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


def _file_problems(config: "DataConfig") -> Iterator[Problem]:
    given = [split for split in SPLITS if config.files(split)]
    if given and "train" not in given:  # data without any files are those of an imported model
        yield Problem(
            "train", "files to learn from, beside others", "none", "Add train = 'FILE', say."
        )
    if config.synthetic is not None:
        for split in SPLITS:
            value = getattr(config, split)
            if value is not None:
                wanted = f"no {'share' if split in config.shares else 'files'} beside synthetic"
                yield Problem(split, wanted, repr(value), "Leave one out.")
    for key, why in _unused_keys(config).items():
        value = getattr(config, key)
        if value != config.__dataclass_fields__[key].default:
            yield Problem(key, f"nothing here: {why}", repr(value), "Leave it out.")
    if config.synthetic is None and config.reader is None:
        for split in given:
            yield from _split_problems(config, split)
        if any(config.is_token_file(config.files(split)[0]) for split in given):
            yield from _token_column_problems(config)


def _unused_keys(config: "DataConfig") -> dict[str, str]:
    """The keys that mean nothing for these data, and why."""
    unused = {}
    if not config.reads_images:
        unused["images"] = "no images are read from files"
    if (why := _files_say_nothing(config)) is not None:
        unused["files_from"] = why
    if config.series is not None:
        unused["reader"] = "windows of series are read"
    elif config.synthetic is not None:
        unused["reader"] = "no files are read"
    if (why := _format_says_nothing(config)) is not None:
        unused["format"] = why
    if config.synthetic in (None, "spelling"):
        unused["seed"] = "nothing is drawn at random"
    files = chain.from_iterable(map(config.files, SPLITS))
    if all(map(huggingface_datasets.is_dataset, files)):
        unused["encoding_errors"] = "datasets hold no bytes"
        if config.synthetic:
            unused["encoding_errors"] = "no files are read"
    return unused


def _files_say_nothing(config: "DataConfig") -> str | None:
    """Why the key `files_from` means nothing for these data; None where it does."""
    keys = {field.folder_key for field in config.fields.values() if field.stored is not None}
    if "files_from" in keys and config.reads_named_files:
        return None
    return "no arrays are read"


def _format_says_nothing(config: "DataConfig") -> str | None:
    """Why the key `format` means nothing for these data; None where it does."""
    if not config.has_token_lists:
        return "files with a token a line are of words and tags"
    files = chain.from_iterable(map(config.files, config.splits))
    if any(map(config.is_token_file, files)):
        return None
    return "no such file is read"


def _split_problems(config: "DataConfig", split: Split) -> Iterator[Problem]:
    """Problems of the number and formats of a split's files."""
    files = config.files(split)
    named = config.columns
    if config.series is not None:
        if len(files) != 1 or not text.is_table(files[0]):
            wanted = f"one table ({', '.join(text.TABLES)}) of series"
            yield Problem(split, wanted, ", ".join(files), "Name one.")
        return
    if config.is_token_file(files[0]):
        yield from _token_file_problems(config, split)
        return
    got = f"{len(files)} files" if len(files) > 1 else files[0]
    datasets = [file for file in files if huggingface_datasets.is_dataset(file)]
    incomplete = [file for file in datasets if not huggingface_datasets.is_complete(file)]
    if incomplete:
        remedy = "As in hf:owner/name:train."
        yield Problem(split, huggingface_datasets.WANTED, incomplete[0], remedy)
    if datasets or any(text.form(file) in text.TABLES for file in files):
        if len(files) > 1:
            remedy = "Put all columns into one table."
            yield Problem(split, "one table, or files of lines", got, remedy)
        elif len(named) < len(config.fields):
            names = " and ".join(f"{name}.column" for name in config.fields)
            wanted = f"{names}, to say what to read"
            remedy = f"Name the columns{_or_conll(config)}."
            yield Problem(split, wanted, f"a table ({files[0]})", remedy)
    elif config.is_caption_list(files):
        most, _ = caption_datasets.FORMS[text.form(files[0])]
        if len(files) > most:
            wanted = "one file of JSON"
            if most > 1:
                wanted = "captions, and the names of the split's images"
            yield Problem(split, wanted, got, "Leave the others out.")
    elif named:
        wanted = f"a table ({', '.join(text.TABLES)}), for it has columns"
        yield Problem(split, wanted, got, "Name no column.")
    elif len(files) != len(config.fields) and not config.is_class_folder(files):
        wanted = "one file, of targets"
        remedy = "Name one, or add [data.source]."
        if config.source_fields:
            wanted = f"a file for each of {', '.join(config.fields)}"
            remedy = f"Name {len(config.fields)}{_or_conll(config)}."
        yield Problem(split, wanted, got, remedy)


def _or_conll(config: "DataConfig") -> str:
    """What else helps where files of words and tags are not read as such."""
    if not config.has_token_lists:
        return ""
    return ', or set format = "conll" for a token a line'


def _token_file_problems(config: "DataConfig", split: Split) -> Iterator[Problem]:
    files = config.files(split)
    if len(files) > 1:
        wanted = "one file with words and tags"
        yield Problem(split, wanted, f"{len(files)} files", "Join them into one.")


def _token_column_problems(config: "DataConfig") -> Iterator[Problem]:
    for name, field in config.fields.items():
        if field.column is not None and not conll.is_column(field.column):
            wanted = f"a number from '1', or one of {', '.join(conll.CONLLU_COLUMNS)}"
            yield Problem(f"{name}.column", wanted, repr(field.column), "Change it.")


def _field_problems(config: "DataConfig") -> Iterator[Problem]:
    if config.series is not None:
        yield from _series_problems(config, config.series)
    if config.synthetic is not None:
        yield from _synthetic_problems(config, config.synthetic)
    if config.target.is_file:
        yield Problem(
            "target.kind", "'text' or 'label': no images are generated", "'image'", "Change it."
        )
    for name, field in config.fields.items():
        if name != "target" and not field.is_source:
            wanted = "a kind that an encoder reads"
            yield Problem(f"{name}.kind", wanted, repr(field.kind), "Make it the target.")
    if config.sources is not None:
        yield from _source_problems(config, config.sources)
    if config.has_shared_vocab and not config.is_tokenized_alike:
        got = "true with different settings of tokenizer, vocab_size or lowercase"
        wanted = "false, unless all texts are tokenized alike"
        yield Problem("shared_vocab", wanted, got, "Leave it out, or set it to false.")
    if config.shares and config.context_length is not None:
        yield Problem(
            next(iter(config.shares)),
            "a file: running text is not split",
            "a share",
            "Name a file.",
        )
    if sum(config.shares.values()) >= 1.0:
        yield Problem(
            "valid", "shares that leave something to train on", "all of it", "Lower them."
        )
    if config.context_length is not None:
        if config.source_fields:
            got = str(config.context_length)
            yield Problem(
                "context_length",
                "nothing here: pairs are not running text",
                got,
                "Leave it out.",
            )
        if config.target.limit_key is not None:
            got = str(getattr(config.target, config.target.limit_key))
            yield Problem(
                f"target.{config.target.limit_key}",
                "nothing here: contexts are of one length",
                got,
                "Leave it out.",
            )
    if not config.source_fields and config.target.needs_source:
        wanted = f"something to predict the {config.target.kind} from"
        yield Problem("source", wanted, "none", "Add [data.source].")


def _series_problems(config: "DataConfig", series: SeriesConfig) -> Iterator[Problem]:
    """Fields and splits that do not go with windows of series."""
    for split in config.shares:
        wanted = "a file, or nothing beside [data.series], whose windows overlap"
        got = str(getattr(config, split))
        yield Problem(split, wanted, got, "Set data.series.split.")
    for split in series.split_parts[1:]:
        if config.synthetic is None and isinstance(getattr(config, split), str | tuple):
            wanted = "nothing beside data.series.split, which has a part for it"
            yield Problem(split, wanted, repr(getattr(config, split)), "Leave one of them out.")
    for name in ("source", "target"):
        field = getattr(config, name)
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


def _synthetic_problems(config: "DataConfig", task: str) -> Iterator[Problem]:
    if TASKS[task].series is not None and config.series is None:
        wanted = f"windows of the series of {task!r}"
        yield Problem("series", wanted, "none", "Write [data.series].")
        return
    if TASKS[task].series is None and config.series is not None:
        wanted = f"nothing beside {task!r}, which has no series"
        yield Problem("series", wanted, "a table", "Leave it out.")
        return
    kinds = TASKS[task].sources
    if len(config.source_fields) != len(kinds):
        tables = "[data.source]" if len(kinds) == 1 else f"{len(kinds)} tables [[data.sources]]"
        got = f"{len(config.source_fields)} sources"
        yield Problem(
            "source", f"{tables}: {task!r} has {' and '.join(kinds)}", got, f"Write {tables}."
        )
        return
    for (name, field), kind in zip(
        config.fields.items(), (*kinds, TASKS[task].target), strict=True
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


def _source_problems(config: "DataConfig", sources: Sequence[Field]) -> Iterator[Problem]:
    if config.source is not None:
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
        yield Problem("sources", "one augment for all images", "different ones", "Make them equal.")
