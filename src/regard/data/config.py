"""The table [data] of a recipe and its fields [data.source] (or several [[data.sources]]) and [data.target]."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from regard.core.config import Config, Count, Probability, Range, doc
from regard.core.errors import InvalidArgument, InvalidRecipe, Problem
from regard.core.registry import Registry
from regard.data import caption_datasets, huggingface_datasets, text
from regard.data.example import SPLITS, Split
from regard.data.special_tokens import SPECIALS
from regard.data.synthetic.scenes import SIDE
from regard.data.synthetic.tasks import TASKS
from regard.data.text import Errors

if TYPE_CHECKING:
    from regard.data.sources import DataSource

TokenizerKind = Literal["bpe", "unigram", "characters", "words", "bytes", "pretrained"]
AugmentKind = Literal["crop", "flip", "color"]
ResizeFilter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]  # Pillow's
SUBWORDS_AND_WORDS = ("bpe", "unigram", "words")
BYTES = 256
HALVES = (0.5, 0.5, 0.5)
DATA_SOURCES: "Registry[type[DataSource]]" = Registry("data source")  # the user's own, by name


@dataclass(frozen=True)
class FieldConfig(Config):
    """One part of every example: [data.source], one of [[data.sources]], or [data.target]."""

    kind: Literal["text", "label", "image"] = doc(
        "text", "a text becomes tokens, a label one class, an image pixels"
    )
    column: str | None = doc(None, 'column of a table: its name, or its number from "1"')
    tokenizer: TokenizerKind = doc(
        "bpe",
        'kind of tokens a text is split into; "pretrained": those of the model that training starts from',
    )
    vocab_size: Count = doc(8000, "largest number of different tokens, special tokens included")
    lowercase: bool = doc(False, "convert texts to lower case")
    max_tokens: Count | None = doc(
        None, "training examples with more tokens are left out and counted"
    )
    image_size: Count = doc(SIDE, "height and width in pixels to which images are resized")
    image_resize: ResizeFilter = doc("bicubic", "filter with which images are resized")
    image_crop_from: Count | None = doc(
        None,
        "height and width to which images are resized instead, before their center of image_size is cropped",
    )
    image_mean: tuple[Probability, ...] = doc(
        HALVES, "subtracted from red, green and blue, which are in [0, 1]"
    )
    image_std: tuple[Annotated[float, Range(1e-3)], ...] = doc(
        HALVES, "by which they are divided then"
    )
    augment: tuple[AugmentKind, ...] | None = doc(
        None,
        'random changes of each training image. "flip" is wrong where captions say left and right',
    )

    def conflicts(self) -> Iterator[Problem]:
        of_text = ("tokenizer", "vocab_size", "lowercase", "max_tokens")
        of_image = (
            "image_size",
            "image_resize",
            "image_crop_from",
            "image_mean",
            "image_std",
            "augment",
        )
        subject, unused = {
            "label": ("a label", of_text + of_image),
            "image": ("an image", of_text),
            "text": ("a text", of_image),
        }[self.kind]
        if (
            self.kind == "text" and self.tokenizer == "bytes"
        ):  # a token for each byte: no vocabulary is learned
            subject, unused = "a text in bytes", ("vocab_size", *of_image)
        if self.kind == "text" and self.tokenizer == "pretrained":
            subject, unused = "a pretrained tokenizer", ("vocab_size", "lowercase", *of_image)
        for key in unused:
            if getattr(self, key) != FieldConfig.__dataclass_fields__[key].default:
                got = repr(getattr(self, key))
                yield Problem(
                    key, f"nothing here: it means nothing to {subject}", got, "Leave it out."
                )
        least = len(SPECIALS) + (1 if self.tokenizer == "words" else BYTES + 1)
        if self.vocab_size < least and "vocab_size" not in unused:
            why = (
                "the special tokens and one word"
                if self.tokenizer == "words"
                else "the special tokens and all bytes"
            )
            yield Problem(
                "vocab_size", f"at least {least}, for {why}", str(self.vocab_size), "Raise it."
            )
        if self.kind == "image":
            yield from self._wrong_image()

    def _wrong_image(self) -> Iterator[Problem]:
        if self.image_crop_from is not None and self.image_crop_from < self.image_size:
            wanted, got = f"at least image_size = {self.image_size}", str(self.image_crop_from)
            yield Problem("image_crop_from", wanted, got, "Raise it.")
        for key in ("image_mean", "image_std"):
            if len(getattr(self, key)) != 3:
                got, remedy = str(list(getattr(self, key))), f"As in {key} = [0.5, 0.5, 0.5]."
                yield Problem(key, "three numbers: of red, green and blue", got, remedy)
        if not self.normalized_to_one and "color" in (self.augment or ()):
            wanted = "no 'color' with another image_mean or image_std than 0.5"
            yield Problem("augment", wanted, str(list(self.augment or ())), "Leave one out.")

    @property
    def normalized_to_one(self) -> bool:
        """Whether the numbers of an image are in [-1, 1]."""
        return self.image_mean == self.image_std == HALVES

    @property
    def resizing(self) -> tuple[int, ResizeFilter, int | None]:
        """The arguments of `images.load_image` beside the image."""
        return self.image_size, self.image_resize, self.image_crop_from

    @property
    def tokenization(self) -> tuple[object, ...]:
        """The settings that two texts with a shared vocabulary have in common."""
        return self.kind, self.tokenizer, self.vocab_size, self.lowercase


@dataclass(frozen=True)
class DataConfig(Config):
    """The table [data] of a recipe.

    Files are one table, whose columns the fields name, or text with an example per line: one file for the target
    alone, two (source, then target) for pairs, one more for each further source. hf:NAME:SPLIT, a Hugging Face dataset,
    is a table too. Captioned images may also be listed in the formats of `caption_datasets`, without columns; images
    with labels may be a folder or a .zip file, with a folder of images for each class.
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
    synthetic: Annotated[str, TASKS] | None = doc(None, "generated task, without any files")
    reader: Annotated[str, DATA_SOURCES] | None = doc(
        None, "registered data source that reads the files; by default chosen by their names"
    )
    source: FieldConfig | None = doc(None, "what the encoder reads; left out for a language model")
    sources: tuple[FieldConfig, ...] | None = doc(
        None, "several sources of each example instead of one, each with a table of model.encoders"
    )
    target: FieldConfig = doc(FieldConfig(), "what the decoder writes, or the label to predict")
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
        yield from self._wrong_files()
        yield from self._wrong_fields()

    def files(self, split: Split) -> tuple[str, ...]:
        """The files of a split; empty where it has none."""
        given = getattr(self, "train" if split in self.shares else split)
        return () if given is None else (given,) if isinstance(given, str) else given

    @property
    def shares(self) -> dict[Split, float]:
        """The splits that are shares of the training files."""
        given = {split: getattr(self, split) for split in SPLITS}
        return {split: share for split, share in given.items() if isinstance(share, float | int)}

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that have data."""
        return SPLITS if self.synthetic else tuple(split for split in SPLITS if self.files(split))

    @property
    def source_fields(self) -> tuple[FieldConfig, ...]:
        """What the encoders read; empty for a language model."""
        return self.sources or (() if self.source is None else (self.source,))

    @property
    def fields(self) -> dict[str, FieldConfig]:
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
    def augment(self) -> tuple[AugmentKind, ...]:
        """Random changes of the training images; the same for all images of an example."""
        return next(
            (field.augment for field in self.source_fields if field.augment is not None), ()
        )

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
        table = len(files) == 1 and (
            text.is_table(files[0]) or huggingface_datasets.is_dataset(files[0])
        )
        chosen = self.table_columns(columns) if table else [None] * len(self.fields)
        *sources, target = (
            replace(field, max_tokens=None, column=column)
            for field, column in zip(self.fields.values(), chosen, strict=True)
        )
        changed: dict[str, Any] = (
            {"sources": tuple(sources)} if self.sources else {"source": next(iter(sources), None)}
        )
        changed |= {
            "synthetic": None,
            "seed": 0,
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

    @property
    def reads_images(self) -> bool:
        """Whether images are read from files."""
        return self.synthetic is None and any(field.kind == "image" for field in self.source_fields)

    def is_caption_list(self, files: Sequence[str]) -> bool:
        """Whether these files list captions in one of the formats of `caption_datasets`."""
        pairs = self.reads_images and len(self.source_fields) == 1
        return pairs and not self.columns and text.form(files[0]) in caption_datasets.FORMS

    def is_class_folder(self, files: Sequence[str]) -> bool:
        """Whether these files are one folder or .zip file, in which images are in a folder of their class."""
        labeled = self.reads_images and len(self.source_fields) == 1 and self.target.kind == "label"
        return (
            labeled and not self.columns and len(files) == 1 and not self._lists_examples(files[0])
        )

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
        is_text_to_text = self.target.kind == "text" and bool(self._text_sources)
        return bool(self.shared_vocab) and is_text_to_text

    @property
    def bounds_outputs(self) -> bool:
        """Whether a source bounds the length of its output, unless decode.max_length_ratio says so.

        Letters and bytes do not: one of them may become many in another script. A pretrained
        tokenizer is that of an imported model, which generates as it did where it comes from.
        """
        kinds = [field.tokenizer for field in self.fields.values() if field.kind == "text"]
        has_only_texts = len(kinds) == len(self.fields)
        if not (self.source_fields and has_only_texts):
            return False
        return all(kind in SUBWORDS_AND_WORDS for kind in kinds)

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
            "reader": self.synthetic is not None and "no files are read",
            "seed": self.synthetic in (None, "spelling") and "nothing is drawn at random",
            "encoding_errors": all(
                huggingface_datasets.is_dataset(file)
                for split in given
                for file in self.files(split)
            )
            and ("no files are read" if self.synthetic else "datasets hold no bytes"),
        }
        for key, why in unused.items():
            if why and getattr(self, key) != DataConfig.__dataclass_fields__[key].default:
                yield Problem(
                    key, f"nothing here: {why}", repr(getattr(self, key)), "Leave it out."
                )
        if self.synthetic is None and self.reader is None:
            for split in given:
                yield from self._wrong_shape(split)

    def _wrong_shape(self, split: Split) -> Iterator[Problem]:
        """Problems of the number and formats of a split's files."""
        files, named = self.files(split), self.columns
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
                    "Name the columns.",
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
            wanted, remedy = "one file, of targets", "Name one, or add [data.source]."
            if self.source_fields:
                wanted, remedy = (
                    f"a file for each of {', '.join(self.fields)}",
                    f"Name {len(self.fields)}.",
                )
            yield Problem(split, wanted, got, remedy)

    def _wrong_fields(self) -> Iterator[Problem]:
        if self.synthetic is not None:
            yield from self._wrong_synthetic_fields(self.synthetic)
        if self.target.kind == "image":
            yield Problem(
                "target.kind", "'text' or 'label': no images are generated", "'image'", "Change it."
            )
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
            if self.target.max_tokens is not None:
                got = str(self.target.max_tokens)
                yield Problem(
                    "target.max_tokens",
                    "nothing here: contexts are of one length",
                    got,
                    "Leave it out.",
                )
        if not self.source_fields and self.target.kind == "label":
            yield Problem(
                "source", "something to predict the label from", "none", "Add [data.source]."
            )

    def _wrong_synthetic_fields(self, task: str) -> Iterator[Problem]:
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
            elif kind == "image" and field.image_size != SIDE:
                yield Problem(
                    f"{name}.image_size",
                    f"{SIDE}, of {task}",
                    str(field.image_size),
                    "Leave it out.",
                )

    def _wrong_sources(self, sources: Sequence[FieldConfig]) -> Iterator[Problem]:
        if self.source is not None:
            yield Problem(
                "sources",
                "nothing beside [data.source]",
                f"{len(sources)} tables",
                "Leave one out.",
            )
        elif len(sources) < 2:
            yield Problem("sources", "at least two tables", "one", "Write [data.source].")
        if len({field.augment for field in sources if field.kind == "image"}) > 1:
            yield Problem(
                "sources", "one augment for all images", "different ones", "Make them equal."
            )

    @property
    def _is_tokenized_alike(self) -> bool:
        """Whether the tokenizers of all texts have the same settings; true where there is one text or none."""
        if self.target.kind != "text":
            return True
        return {field.tokenization for field in self._text_sources} <= {self.target.tokenization}

    @property
    def _text_sources(self) -> list[FieldConfig]:
        return [field for field in self.source_fields if field.kind == "text"]
