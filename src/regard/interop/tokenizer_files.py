"""The files of tokenizers in a model folder of Hugging Face's layout, each made into a `tokenizers.Tokenizer`.

tokenizer.json                          as it is
source.spm, target.spm, vocab.json      Marian: SentencePiece models, and the ids of their pieces
spiece.model, tokenizer.model           SentencePiece models of T5 and of Llama
sentencepiece.bpe.model                 mBART and XLM-R: fairseq's ids
vocab.txt                               BERT: word pieces
vocab.json, merges.txt                  GPT-2, BART, RoBERTa: byte-level BPE
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from regard.core.errors import InvalidData
from regard.data.spelling import HIDDEN
from regard.interop.sentencepiece import SentencePieceModel, read_sentencepiece, to_tokenizer
from regard.interop.tensors import read_json

LARGEST = 1 << 28  # bytes of a file
SENTENCEPIECE = {
    "t5": "spiece.model", "mt5": "spiece.model", "llama": "tokenizer.model", "mistral": "tokenizer.model",
    "gemma": "tokenizer.model", "mbart": "sentencepiece.bpe.model", "xlm-roberta": "sentencepiece.bpe.model",
}  # fmt: skip
WORD_PIECES = ("bert", "distilbert")
# The models whose vocab.json and merges.txt are split as GPT-2's.
BYTE_LEVEL = ("gpt2", "bart", "roberta")


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer, the file it was read from, and the tokens around every text."""

    path: Path
    inner: tokenizers.Tokenizer
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    # Further tokens without a row of the embedding: they stand for the unknown token.
    spare: int = 0

    def id_of(self, *names: str | None) -> int | None:
        """The id of the first of these names that is a token."""
        for name in names:
            if name is None:
                continue
            found: int | None = self.inner.token_to_id(name)
            if found is not None:
                return found
        return None


def read_settings(folder: Path) -> dict[str, Any]:
    """special_tokens_map.json and tokenizer_config.json, as far as they are there."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name)
    return settings


def token_name(settings: Mapping[str, Any], role: str) -> str | None:
    """The name of a special token: a text, or a table with its content."""
    value = settings.get(role)
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def read_files(
    folder: Path, settings: Mapping[str, Any], model_type: str
) -> tuple[TokenizerFile, TokenizerFile]:
    """The tokenizers of the source and of the target: the same one where there are not two."""
    names: set[str] = set()
    if folder.is_dir():
        names = {path.name for path in folder.iterdir()}
    sentencepiece = SENTENCEPIECE.get(model_type)
    if {"source.spm", "target.spm"} <= names:
        return _marian(folder, settings)
    if "tokenizer.json" in names:
        file = _tokenizer_json(folder / "tokenizer.json")
        # Regard exports outputs with a vocabulary of their own in this way.
        of_target = folder / "target" / "tokenizer.json"
        if of_target.is_file():
            return file, _tokenizer_json(of_target)
    elif sentencepiece is not None and sentencepiece in names:
        file = _sentencepiece(folder / sentencepiece, settings)
    elif "vocab.txt" in names and model_type in WORD_PIECES:
        file = _word_pieces(folder / "vocab.txt", settings)
    elif {"vocab.json", "merges.txt"} <= names and model_type in BYTE_LEVEL:
        file = _byte_level(folder, settings, model_type)
    else:
        remedy = "Write it with `AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER)`."
        raise InvalidData(
            folder, wanted="tokenizer.json", got=f"none, for a {model_type}", remedy=remedy
        )
    return file, file


def _tokenizer_json(path: Path) -> TokenizerFile:
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"more than {LARGEST >> 20} MiB")
        inner = tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
    except Exception as error:
        # The library raises nothing narrower.
        remedy = "Download the file again."
        raise InvalidData(path, wanted="a tokenizer", got=str(error)[:200], remedy=remedy) from None
    return TokenizerFile(path, inner, *_template(inner))


def _template(inner: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that a tokenizer's post-processor puts before and after a text."""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pending = []
    if inner.post_processor is not None:
        pending = [json.loads(inner.post_processor.__getstate__())]
    while pending:
        part = pending.pop(0)
        pending += part.get("processors", ())
        # The processors of BERT and RoBERTa have these keys, others have a template.
        if "cls" in part and "sep" in part:
            before = (part["cls"][1], *before)
            after = (*after, part["sep"][1])
        sides: list[list[int]] = [[], []]
        for item in part.get("single", ()):
            if "Sequence" in item:
                sides.reverse()
            else:
                sides[0] += part["special_tokens"][item["SpecialToken"]["id"]]["ids"]
        if part.get("single"):
            before = (*sides[1], *before)
            after = (*after, *sides[0])
    return before, after


def _marian(folder: Path, settings: Mapping[str, Any]) -> tuple[TokenizerFile, TokenizerFile]:
    target_vocabulary = folder / "vocab.json"
    own_vocabulary = folder / "target_vocab.json"
    if own_vocabulary.is_file() and settings.get("separate_vocabs") is not False:
        target_vocabulary = own_vocabulary
    source = _marian_side(folder / "source.spm", folder / "vocab.json")
    target = _marian_side(folder / "target.spm", target_vocabulary)
    return source, target


def _marian_side(path: Path, vocabulary: Path) -> TokenizerFile:
    """Read the pieces of one language. Pieces of the other language, which share the vocabulary, match no text."""
    model = read_sentencepiece(path)
    listed = read_vocabulary(vocabulary)
    if "</s>" not in listed or "<unk>" not in listed:
        wanted = "</s> and <unk> among its tokens"
        remedy = "Download the file again."
        raise InvalidData(vocabulary, wanted=wanted, got=f"{len(listed):,} others", remedy=remedy)
    pieces = {piece.text for piece in model.pieces}
    languages = [name for name in listed if name.startswith(">>") and name.endswith("<<")]
    shown = {*pieces, "</s>", "<unk>", "<pad>", *languages}
    names = [name if name in shown else HIDDEN + name for name in listed]
    spare = [piece.text for piece in model.pieces if piece.text not in listed]
    inner = to_tokenizer(model, [*names, *spare], names.index("<unk>"))
    return TokenizerFile(path, inner, (), (names.index("</s>"),), len(spare))


def _sentencepiece(path: Path, settings: Mapping[str, Any]) -> TokenizerFile:
    model = read_sentencepiece(path)
    if path.name == "sentencepiece.bpe.model":
        return _fairseq(path, model, settings)
    names = model.names
    if path.name == "spiece.model":
        # T5's sentinels are the last tokens, the first of them last.
        count = settings.get("extra_ids", 100)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 10_000:
            where = path.with_name("tokenizer_config.json: extra_ids")
            wanted = "a number of sentinel tokens"
            got = repr(count)[:80]
            raise InvalidData(where, wanted=wanted, got=got, remedy="Download the file again.")
        sentinels = [f"<extra_id_{i}>" for i in reversed(range(count))]
        names += [name for name in sentinels if name not in names]
    file = TokenizerFile(path, to_tokenizer(model, names, model.unknown))
    if path.name == "spiece.model":
        end = file.id_of(token_name(settings, "eos_token"), "</s>")
        return replace(file, suffix=() if end is None else (end,))
    start = file.id_of(token_name(settings, "bos_token"), "<s>")
    return replace(file, prefix=() if start is None else (start,))


FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # the first tokens


def _fairseq(path: Path, model: SentencePieceModel, settings: Mapping[str, Any]) -> TokenizerFile:
    """MBART's and XLM-R's ids: other special tokens first, languages and the mask last."""
    more = settings.get("additional_special_tokens") or settings.get("extra_special_tokens") or []
    codes: list[str] = []
    if isinstance(more, list):
        given = [token_name({"": each}, "") for each in more]
        codes = [name for name in given if name is not None]
    multilingual = str(settings.get("tokenizer_class", "")).startswith("MBart")
    if multilingual and not codes:
        wanted = "additional_special_tokens, the codes of its languages"
        remedy = "Write it again with `save_pretrained`."
        raise InvalidData(
            path.with_name("tokenizer_config.json"), wanted=wanted, got="none", remedy=remedy
        )
    names = list(dict.fromkeys([*FAIRSEQ, *model.names[3:], *codes, "<mask>"]))
    file = TokenizerFile(path, to_tokenizer(model, names, names.index("<unk>")))
    if not multilingual:
        return TokenizerFile(path, file.inner, (0,), (2,))
    language = file.id_of(token_name(settings, "src_lang"), "en_XX")
    if language is None:
        wanted = "src_lang, a language of the model"
        remedy = "Name one."
        raise InvalidData(
            path.with_name("tokenizer_config.json"), wanted=wanted, got="none", remedy=remedy
        )
    # mBART-50 puts the language before a text, mBART after its end.
    if "50" in str(settings["tokenizer_class"]):
        return TokenizerFile(path, file.inner, (language,), (2,))
    return TokenizerFile(path, file.inner, (), (2, language))


def _word_pieces(path: Path, settings: Mapping[str, Any]) -> TokenizerFile:
    try:
        listed = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        remedy = "Download the file again."
        raise InvalidData(
            path, wanted="a token a line", got=str(error)[:200], remedy=remedy
        ) from None
    ids = {token: i for i, token in enumerate(listed)}
    unknown = token_name(settings, "unk_token") or "[UNK]"
    inner = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    strip_accents = settings.get("strip_accents")
    if not isinstance(strip_accents, bool):
        strip_accents = None
    inner.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=strip_accents,
        lowercase=settings.get("do_lower_case") is not False,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    roles = {
        role: token_name(settings, f"{role}_token") or f"[{role.upper()}]"
        for role in ("cls", "sep", "pad", "mask")
    }
    missing = [name for name in (unknown, roles["cls"], roles["sep"]) if name not in ids]
    if missing or len(ids) < len(listed):
        got = "a token twice"
        if missing:
            got = f"none of {', '.join(missing)}"
        wanted = "each token once, with the special tokens"
        remedy = "Download the file again."
        raise InvalidData(path, wanted=wanted, got=got, remedy=remedy)
    special = [name for name in (*roles.values(), unknown) if name in ids]
    inner.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    return TokenizerFile(path, inner, (ids[roles["cls"]],), (ids[roles["sep"]],))


def _byte_level(folder: Path, settings: Mapping[str, Any], model_type: str) -> TokenizerFile:
    path = folder / "vocab.json"
    ids = {name: i for i, name in enumerate(read_vocabulary(path))}
    try:
        merges = list(_merges(folder / "merges.txt"))
        inner = tokenizers.Tokenizer(models.BPE(ids, merges))
    except Exception as error:
        # The library raises nothing narrower.
        wanted = f"merges of the tokens of {path.name}"
        remedy = "Download both files again."
        raise InvalidData(
            folder / "merges.txt", wanted=wanted, got=str(error)[:200], remedy=remedy
        ) from None
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=settings.get("add_prefix_space") is True
    )
    inner.decoder = decoders.ByteLevel()
    defaults = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if model_type == "gpt2":
        defaults = ["<|endoftext|>"]
    roles = [
        token_name(settings, f"{role}_token")
        for role in ("bos", "eos", "unk", "pad", "mask", "cls", "sep")
    ]
    for name in dict.fromkeys(name for name in (*roles, *defaults) if name in ids):
        assert name is not None
        # A space before the mask belongs to it.
        token = AddedToken(name, lstrip=name == "<mask>", normalized=False, special=True)
        inner.add_special_tokens([token])
    file = TokenizerFile(path, inner)
    start = file.id_of(token_name(settings, "bos_token"), "<s>")
    end = file.id_of(token_name(settings, "eos_token"), "</s>")
    if model_type == "gpt2" or start is None or end is None:
        return file
    return TokenizerFile(path, inner, (start,), (end,))


def _merges(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text("utf-8").split("\n"):
        if line and not line.startswith("#version"):
            first, _, second = line.partition(" ")
            yield first, second


def read_vocabulary(path: Path) -> list[str]:
    """The tokens of a vocab.json by id. Each number from 0 on must be the id of one token."""
    table = read_json(path)
    names: list[str | None] = [None] * len(table)
    for name, number in table.items():
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not 0 <= number < len(names) or names[number]:
            got = f"{name!r:.40}: {number!r:.40}"
            wanted = f"ids from 0 to {len(table) - 1}, each once"
            remedy = "Download the file again."
            raise InvalidData(path, wanted=wanted, got=got, remedy=remedy)
        names[number] = name
    return [name or "" for name in names]
