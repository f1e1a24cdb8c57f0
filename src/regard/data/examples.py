"""What a recipe's [data] says, and the examples that it stands for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from regard.core.config import Config, Count
from regard.core.errors import InvalidArgument, InvalidData, Problem
from regard.data import caption_datasets, huggingface_datasets, text
from regard.data.image_store import ImageStore, Member, open_image_store
from regard.data.synthetic import scenes
from regard.data.text import Errors

TokenizerKind = Literal["bpe", "unigram", "characters", "words", "bytes"]
Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
AugmentKind = Literal["crop", "flip", "color"]
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
BYTES = 256


@dataclass(frozen=True)
class Example:
    """What to read, where there is something (a picture is a file, packed or not, or to be drawn), and what to give."""

    source: str | Path | Member | scenes.Scene | None
    target: str


@dataclass(frozen=True)
class FieldConfig(Config):
    """One side of an example: [data.source] or [data.target]."""

    kind: Literal["text", "label", "image"] = "text"  # a text becomes tokens, a label one class, an image pixels
    column: str | None = None  # its column, where the file is a table: by name, or by number from "1"
    tokenizer: TokenizerKind = "bpe"  # what a text is cut into
    vocab_size: Count = 8000  # how many different tokens at most, the special ones among them
    lowercase: bool = False  # whether capitals become small letters
    max_tokens: Count | None = None  # training examples with more tokens are left out, and counted
    image_size: Count = scenes.SIDE  # pixels a side of an image, which is made square
    # How images change each time they are trained on. "flip" is wrong where captions say left and right.
    augment: tuple[AugmentKind, ...] | None = None

    def conflicts(self) -> Iterator[Problem]:
        texts = ("tokenizer", "vocab_size", "lowercase", "max_tokens")
        what, idle = {
            "label": ("label", (*texts, "image_size", "augment")),
            "image": ("picture", texts),
            "text": ("text", ("image_size", "augment")),
        }[self.kind]
        if self.kind == "text" and self.tokenizer == "bytes":  # which has a token for each byte, whatever is asked for
            what, idle = "text in bytes", ("vocab_size", "image_size", "augment")
        for key in idle:
            if getattr(self, key) != FieldConfig.__dataclass_fields__[key].default:
                got = repr(getattr(self, key))
                yield Problem(key, f"nothing here: it means nothing to a {what}", got, "Leave it out.")
        least = len(SPECIALS) + (1 if self.tokenizer == "words" else BYTES + 1)
        if self.vocab_size < least and "vocab_size" not in idle:
            why = "the special tokens and one word" if self.tokenizer == "words" else "the special tokens and all bytes"
            yield Problem("vocab_size", f"at least {least}, for {why}", str(self.vocab_size), "Raise it.")

    @property
    def tokenization(self) -> tuple[object, ...]:
        """What two texts must agree on to share one vocabulary."""
        return self.kind, self.tokenizer, self.vocab_size, self.lowercase


@dataclass(frozen=True)
class DataConfig(Config):
    """The table [data] of a recipe.

    Files are one table, whose columns the fields name, or text with an example a line: one file for the target alone,
    two (source, then target) for pairs. hf:NAME:SPLIT, a Hugging Face dataset, is a table too. Pictures with captions
    may also be told in the forms of `captioned`, without columns.
    """

    train: str | tuple[str, ...] | None = None  # what to learn from
    valid: str | tuple[str, ...] | None = None  # what to stop and choose by
    test: str | tuple[str, ...] | None = None  # what to report on
    images: str | None = None  # the folder or .zip file where pictures lie; None: beside the file that tells them
    synthetic: Literal["dates", "copy", "reverse", "sort", "spelling", "shapes"] | None = None  # without any files
    source: FieldConfig | None = None  # what is read; None: nothing is, for a language model
    target: FieldConfig = FieldConfig()  # what is written, or chosen
    shared_vocab: bool = True  # one vocabulary for source and target, where both are texts
    context_length: Count | None = (
        None  # language models: running text in stretches of so many tokens; None: a line each
    )
    encoding_errors: Errors = "strict"  # what to do with bytes that are no UTF-8: refuse, or put U+FFFD in their place
    seed: int = 0  # which data are generated

    def conflicts(self) -> Iterator[Problem]:
        yield from self._wrong_files()
        yield from self._wrong_fields()

    def files(self, split: Split) -> tuple[str, ...]:
        """The files of a split; none where it has none."""
        given = getattr(self, split)
        return () if given is None else (given,) if isinstance(given, str) else given

    @property
    def splits(self) -> tuple[Split, ...]:
        """Those there are."""
        return SPLITS if self.synthetic else tuple(split for split in SPLITS if self.files(split))

    @property
    def columns(self) -> list[str]:
        """Of the source, where there is one, and of the target; none where no file is a table."""
        return [field.column for field in self._fields if field.column is not None]

    @property
    def reads_images(self) -> bool:
        """Whether pictures are read from files."""
        return self.source is not None and self.source.kind == "image" and self.synthetic is None

    def is_caption_list(self, files: Sequence[str]) -> bool:
        """Whether these are lists in one of the forms of `captioned`."""
        return self.reads_images and not self.columns and text.form(files[0]) in caption_datasets.FORMS

    @property
    def has_shared_vocab(self) -> bool:
        return self.shared_vocab and self.source is not None and self.source.kind == self.target.kind == "text"

    def _wrong_files(self) -> Iterator[Problem]:
        there = [split for split in SPLITS if self.files(split)]
        if self.synthetic is None and "train" not in there:
            yield Problem("train", "files to learn from, or generate", "neither", "Add train = 'FILE', say.")
        if self.synthetic is not None:
            for split in there:
                yield Problem(split, "no files beside generate", repr(getattr(self, split)), "Leave one out.")
            if self.encoding_errors != "strict":
                yield Problem(
                    "encoding_errors", "nothing here: no files are read", repr(self.encoding_errors), "Leave it out."
                )
        if self.images is not None and not self.reads_images:
            yield Problem("images", "nothing here: no pictures are read from files", repr(self.images), "Leave it out.")
        if self.seed and self.synthetic in (None, "spelling"):
            yield Problem("seed", "nothing here: nothing is drawn", str(self.seed), "Leave it out.")
        if self.synthetic is None:
            for split in there:
                yield from self._wrong_shape(split)
            if self.encoding_errors != "strict" and all(
                huggingface_datasets.is_dataset(file) for split in there for file in self.files(split)
            ):
                yield Problem(
                    "encoding_errors",
                    "nothing here: datasets hold no bytes",
                    repr(self.encoding_errors),
                    "Leave it out.",
                )

    def _wrong_shape(self, split: Split) -> Iterator[Problem]:
        files, named = self.files(split), self.columns
        got = f"{len(files)} files" if len(files) > 1 else files[0]
        unclear = [
            file for file in files if huggingface_datasets.is_dataset(file) and not huggingface_datasets.is_whole(file)
        ]
        if unclear:
            yield Problem(split, huggingface_datasets.WANTED, unclear[0], "As in hf:owner/name:train.")
        if any(huggingface_datasets.is_dataset(file) or text.form(file) in text.TABLES for file in files):
            if len(files) > 1:
                yield Problem(split, "one table, or files of lines", got, "Put all columns into one table.")
            elif len(named) < len(self._fields):
                names = " and ".join(["source.column"] * (self.source is not None) + ["target.column"])
                yield Problem(split, f"{names}, to say what to read", f"a table ({files[0]})", "Name the columns.")
        elif self.is_caption_list(files):
            most, _ = caption_datasets.FORMS[text.form(files[0])]
            if len(files) > most:
                wanted = "captions, and the names of the split's pictures" if most > 1 else "one file of JSON"
                yield Problem(split, wanted, got, "Leave the others out.")
        elif named:
            yield Problem(split, f"a table ({', '.join(text.TABLES)}), for it has columns", got, "Name no column.")
        elif len(files) != len(self._fields):
            fields = "a file of sources and one of targets" if self.source else "one file, of targets"
            remedy = "Name two." if self.source else "Name one, or add [data.source]."
            yield Problem(split, fields, got, remedy)

    def _wrong_fields(self) -> Iterator[Problem]:
        if self.synthetic is not None:
            if self.source is None:
                yield Problem("source", "a table: generated data have a source", "none", "Add [data.source].")
            source = "image" if self.synthetic == "shapes" else "text"
            for name, field, kind in (("source", self.source, source), ("target", self.target, "text")):
                if field and (field.kind, field.column) != (kind, None):
                    wanted = f"{'an image' if kind == 'image' else 'a text'} without a column, of generated data"
                    yield Problem(name, wanted, repr(field), f"Set kind = {kind!r}, and no column.")
            if self.synthetic == "shapes" and self.source and self.source.image_size != scenes.SIDE:
                yield Problem(
                    "source.image_size", f"{scenes.SIDE}, of shapes", str(self.source.image_size), "Leave it out."
                )
        if self.target.kind == "image":
            yield Problem("target.kind", "'text' or 'label': no pictures are made", "'image'", "Change it.")
        if self.has_shared_vocab and self.source and self.source.tokenization != self.target.tokenization:
            got = "different settings of tokens, vocabulary or lower"
            yield Problem(
                "shared_vocab", "false, unless source and target are cut alike", got, "Set shared_vocab = false."
            )
        if self.context_length is not None:
            if self.source is not None:
                yield Problem(
                    "context_length",
                    "nothing here: pairs are no running text",
                    str(self.context_length),
                    "Leave it out.",
                )
            if self.target.max_tokens is not None:
                got = str(self.target.max_tokens)
                yield Problem("target.max_tokens", "nothing here: stretches are of one length", got, "Leave it out.")
        if self.source is None and self.target.kind == "label":
            yield Problem("source", "something to tell the label from", "none", "Add [data.source].")

    @property
    def _fields(self) -> Sequence[FieldConfig]:
        return [field for field in (self.source, self.target) if field is not None]


def examples(config: DataConfig, split: Split) -> Iterator[Example]:
    """The examples of a split, in the order of its files; at least one."""
    if split not in config.splits:
        raise InvalidArgument(
            "split", wanted=f"one of {', '.join(config.splits)}", got=repr(split), remedy=f"Or set data.{split}."
        )
    found = _generated(config, split) if config.synthetic else _read(config, split)
    first = next(found, None)
    if first is None:
        files = config.files(split)
        raise InvalidData(files[0], wanted="at least one example", got="an empty file", remedy=f"Look at data.{split}.")
    return chain([first], found)


def _generated(config: DataConfig, split: Split) -> Iterator[Example]:
    from regard.data.synthetic import tasks  # which makes Examples

    assert config.synthetic is not None
    return tasks.GENERATED[config.synthetic](split, config.seed)


def _read(config: DataConfig, split: Split) -> Iterator[Example]:
    files, named = config.files(split), config.columns
    rows: Iterable[tuple[str, ...]]
    if huggingface_datasets.is_dataset(files[0]):
        rows = huggingface_datasets.rows(files[0], named)
    elif named:
        rows = text.rows(files[0], named, config.encoding_errors)
    elif config.is_caption_list(files):
        rows = caption_datasets.rows(files, split, config.encoding_errors)
    else:
        rows = text.parallel(files, config.encoding_errors)
    beside = Path() if huggingface_datasets.is_dataset(files[0]) else Path(files[0]).parent
    album = open_image_store(config.images or beside) if config.reads_images else None
    for row in rows:
        source = row[0] if album is None else _picture(files[0], album, row[0])
        yield Example(source if config.source else None, row[-1])


def _picture(file: str, album: ImageStore, told: str) -> Path | Member:
    if not told or "\0" in told:
        raise InvalidData(file, wanted="the path of a picture", got=repr(told), remedy="Give every row one.")
    if "\t" in told:
        remedy = "Name a file of Flickr's form .token.txt."
        raise InvalidData(file, wanted="the path of a picture", got=repr(told)[:60], remedy=remedy)
    return album.find(told)
