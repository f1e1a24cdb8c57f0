"""The tokenizers of a model folder in Hugging Face's layout, with the special tokens that its configuration names."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidArgument, InvalidData
from regard.data.special_tokens import SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.interop.tokenizer_files import TokenizerFile, read_files, read_settings, token_name

CONFIG = "config.json"
ENCODERS = ("bert", "distilbert", "roberta", "xlm-roberta")


def read_tokenizers(
    folder: Path, config: Mapping[str, Any], rows: int, source_rows: int | None = None
) -> tuple[Tokenizer | None, Tokenizer]:
    """The tokenizers of the source and of the target of a model folder.

    For a decoder alone, and for one that reads images, the source is None. For an encoder alone, both are the same.

    config        model_type, is_encoder_decoder, and ids of special tokens, by their names in config.json
    rows          rows of the embedding: a vocabulary with more tokens is refused
    source_rows   rows of the encoder's embedding, where it has its own
    """
    settings = read_settings(folder)
    model_type = str(config.get("model_type"))
    source, target = read_files(folder, settings, model_type)
    _check_count(target, rows)
    _check_count(source, source_rows or rows)
    roles = _Roles(folder / CONFIG, config, settings, rows)
    if config.get("is_encoder_decoder") is True:
        made = _tokenizer(target, roles.of_output(source, target), rows)
        if source is target and source_rows in (None, rows):
            return made, made
        special = made.special_tokens if source is target else _of_source(source)
        return _tokenizer(source, special, source_rows or rows), made
    if model_type in ENCODERS:
        made = _tokenizer(target, roles.of_encoder(target), rows)
        return made, made
    return None, _tokenizer(target, roles.of_decoder(target), rows)


def _check_count(file: TokenizerFile, rows: int) -> None:
    count = max(file.inner.get_vocab().values(), default=-1) + 1 - file.spare
    if count > rows:
        wanted = f"at most {rows:,} tokens, the rows of the embedding"
        remedy = "Use the tokenizer of this model."
        raise InvalidData(file.path, wanted=wanted, got=f"{count:,}", remedy=remedy)


def _tokenizer(file: TokenizerFile, special: SpecialTokens, rows: int) -> Tokenizer:
    try:
        return Tokenizer(file.inner, special, rows, spare=file.spare)
    except InvalidArgument as error:
        wanted = "a tokenizer and its special tokens"
        remedy = "Use the tokenizer of this model."
        raise InvalidData(file.path, wanted=wanted, got=str(error)[:300], remedy=remedy) from None


def _of_source(file: TokenizerFile) -> SpecialTokens:
    """The special tokens of a vocabulary that is only read."""
    end = file.suffix[-1]
    pad = file.id_of("<pad>")
    return SpecialTokens(
        pad=end if pad is None else pad,
        start=None,
        end=end,
        unknown=file.id_of("<unk>"),
        mask=None,
        suppressed=(),
        source_prefix=file.prefix,
        source_suffix=file.suffix,
        target_prefix=(),
    )


@dataclass(frozen=True)
class _Roles:
    """The special tokens of a model, from its configuration and, where that is silent, from its tokenizer."""

    path: Path
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    rows: int

    def of_output(self, source: TokenizerFile, target: TokenizerFile) -> SpecialTokens:
        """The special tokens of an encoder and a decoder."""
        start = self._id("decoder_start_token_id")
        if start is None:
            start = self._either("bos", target, "<s>")
        if start is None:
            raise self._missing("decoder_start_token_id")
        forced = self._id("forced_bos_token_id")
        target_prefix = () if forced is None else (forced,)
        return self._special(target, start, source.prefix, source.suffix, target_prefix)

    def of_encoder(self, file: TokenizerFile) -> SpecialTokens:
        """The special tokens of an encoder alone: its texts begin and end with the tokens of its template."""
        special = self._special(file, None, file.prefix, file.suffix, ())
        if len(file.prefix) != 1 or len(file.suffix) != 1:
            return special
        (start,) = file.prefix
        (end,) = file.suffix
        return SpecialTokens(
            pad=special.pad,
            start=start,
            end=end,
            unknown=special.unknown,
            mask=special.mask,
            suppressed=special.suppressed,
            source_prefix=file.prefix,
            source_suffix=file.suffix,
            target_prefix=(),
        )

    def of_decoder(self, file: TokenizerFile) -> SpecialTokens:
        """The special tokens of a decoder alone. A prompt begins with one token or none, a caption with one."""
        before = list(file.prefix)
        after = list(file.suffix)
        start = self._either("bos", file, "<s>")
        end = self._either("eos", file, "</s>")
        for key, tokens, token in (("add_bos_token", before, start), ("add_eos_token", after, end)):
            wanted = self.settings.get(key)
            if wanted is False and token in tokens:
                tokens.remove(token)
            elif wanted is True and token is not None and token not in tokens:
                tokens.append(token)
        first = self._id("decoder_start_token_id")
        if len(before) > 1 or (after and first is None):
            got = f"{len(before)} before and {len(after)} after"
            wanted_tokens = "one token before a prompt, or none, and none after it"
            remedy = "Use another model."
            raise InvalidData(file.path, wanted=wanted_tokens, got=got, remedy=remedy)
        forced = self._id("forced_bos_token_id")
        begin = first
        if first is None and before:
            begin = before[0]
        target_prefix = () if forced is None or first is None else (forced,)
        return self._special(file, begin, (), (), target_prefix)

    def _special(
        self,
        file: TokenizerFile,
        start: int | None,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        forced: tuple[int, ...],
    ) -> SpecialTokens:
        end = self._either("eos", file, "</s>", "<|endoftext|>", "[SEP]")
        if end is None:
            raise self._missing("eos_token_id")
        pad = self._either("pad", file, "<pad>", "[PAD]")
        unknown = file.id_of(token_name(self.settings, "unk_token"), "<unk>", "[UNK]")
        mask = file.id_of(token_name(self.settings, "mask_token"), "<mask>", "[MASK]")
        # Padding may be done with the end token. A name of the unknown token may be that of another role.
        if pad is None:
            pad = end
        if unknown in (start, end):
            unknown = None
        suppressed = self.config.get("suppress_tokens") or ()
        other_ends = self.config.get("other_eos_token_ids") or ()
        return SpecialTokens(
            pad=pad,
            start=start,
            end=end,
            unknown=unknown,
            mask=mask,
            suppressed=tuple(self._checked("suppress_tokens", i) for i in suppressed),
            source_prefix=prefix,
            source_suffix=suffix,
            target_prefix=forced,
            other_ends=tuple(self._checked("eos_token_id", i) for i in other_ends),
        )

    def _either(self, role: str, file: TokenizerFile, *names: str) -> int | None:
        """The id of a role: from the configuration, else from the tokenizer, else by the usual names."""
        own = self._id(f"{role}_token_id")
        if own is None:
            return file.id_of(token_name(self.settings, f"{role}_token"), *names)
        return own

    def _id(self, key: str) -> int | None:
        value = self.config.get(key)
        if value is None:
            return None
        return self._checked(key, value)

    def _checked(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < self.rows:
            wanted = f"the id of a token, from 0 to {self.rows - 1}"
            remedy = "Use the configuration of this model."
            raise InvalidData(
                f"{self.path}: {key}", wanted=wanted, got=repr(value)[:80], remedy=remedy
            )
        return value

    def _missing(self, key: str) -> InvalidData:
        return InvalidData(
            f"{self.path}: {key}", wanted="the id of a token", got="none", remedy="Add it."
        )
