"""The vocabularies of a model folder: its tokenizer with the special tokens of its configuration."""

from pathlib import Path

import tokenizers

from regard.core.errors import InvalidData
from regard.data.corpus import SourceVocabularies, VocabularyType
from regard.data.special_tokens import SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.interop.generation import Generation
from regard.interop.pretrained import PretrainedFolder
from regard.interop.tensors import read_json

Vocabularies = tuple[SourceVocabularies, VocabularyType]
FILE = "tokenizer.json"
PROBE = "a"  # a text that every tokenizer has tokens for


def read_vocabularies(pretrained: PretrainedFolder, generation: Generation) -> Vocabularies:
    """The vocabularies of the sources and of the target; of a classifier, whose target are labels, that of the source.

    Refused where the tokenizer has more tokens than the model's embedding has rows.
    """
    model, path = pretrained.model, pretrained.folder / FILE
    rows = [size for size in (*model.source_vocab_sizes(), model.options.vocab_size) if size is not None]
    inner = _read(path)
    if (largest := max(inner.get_vocab().values(), default=0)) >= min(rows):
        wanted = f"at most {min(rows):,} tokens, the rows of the embedding"
        remedy = "Tokenizer and weights are of different models."
        raise InvalidData(path, wanted=wanted, got=f"{largest + 1:,}", remedy=remedy)
    special = _special_tokens(inner, pretrained, generation)
    vocabulary = Tokenizer(inner, special, rows[-1])
    if not model.encoders or pretrained.head == "mlm":
        return (), vocabulary
    if model.reads == ("image",):
        return (None,), vocabulary
    source = vocabulary if len(set(rows)) == 1 else Tokenizer(inner, special, rows[0])
    return (source,), vocabulary


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        remedy = "Write one with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        raise InvalidData(path, wanted="a tokenizer", got=str(error)[:200], remedy=remedy) from None


def _special_tokens(inner: tokenizers.Tokenizer, pretrained: PretrainedFolder, generation: Generation) -> SpecialTokens:
    keys, model = pretrained.keys, pretrained.model
    alone = inner.encode(PROBE, add_special_tokens=False).ids
    around = inner.encode(PROBE, add_special_tokens=True).ids
    at = next((i for i in range(len(around)) if around[i : i + len(alone)] == alone), 0)
    before, after = tuple(around[:at]), tuple(around[at + len(alone) :])
    end = generation.end if generation.end is not None else keys.eos_token_id
    end = end[0] if isinstance(end, tuple) else end
    end = (after[-1] if after else 0) if end is None else end
    pad = generation.pad if generation.pad is not None else keys.pad_token_id
    start: int | None = before[0] if before else None
    if model.encoders and model.decoder is not None:
        start = generation.start if generation.start is not None else pretrained.architecture.decoder_start(keys)
    return SpecialTokens(
        pad=end if pad is None else pad,
        start=start,
        end=end,
        unknown=_id(inner, getattr(inner.model, "unk_token", None)),
        mask=_id(inner, _named(pretrained.folder, "mask_token")),
        suppressed=tuple(token for token in generation.suppressed if token != end),
        source_prefix=before,
        source_suffix=after,
        target_prefix=generation.target_prefix,
    )


def _named(folder: Path, role: str) -> str | None:
    """The name of a special token in tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    given = read_json(path).get(role) if path.is_file() else None
    given = given.get("content") if isinstance(given, dict) else given
    return given if isinstance(given, str) else None


def _id(inner: tokenizers.Tokenizer, name: str | None) -> int | None:
    return None if name is None else inner.token_to_id(name)
