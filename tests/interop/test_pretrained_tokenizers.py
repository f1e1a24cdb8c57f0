"""Tokenizers of model folders: the same encodings as transformers' own, and roles from every file."""

import io
import json
import random
from functools import cache

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import regard
from regard.core.errors import InvalidData
from regard.data.special_tokens import SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.interop.pretrained_tokenizers import read_tokenizers
from regard.interop.sentencepiece import read_sentencepiece

spm = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

SCRIPTS = [
    "The cat sat on the mat, and the other cat's dog ran away from it!", "Der Hund läuft über die Straße; 42 Mädchen",
    "Ωραία ημέρα σήμερα, φίλε μου", "Съешь ещё этих мягких булок", "日本語の文章です。東京タワー",
    "مرحبا بالعالم كيف حالك",
    "ﬁne ① ² Å é e\u0301 ½ don't won't", "two   spaces ", "😀👩‍👩‍👧 emoji", "......!!!!----", "hahahaha aaaaaaa ____",
]  # fmt: skip
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
LLAMA = {
    **FAIRSEQ,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
ROWS = 1200


@cache
def lines():
    chance, words = random.Random(3), " ".join(SCRIPTS).split(" ")
    return [
        *SCRIPTS,
        *(" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(150)),
        "",
        " ",
        " x",
    ]


@cache
def trained(kind="unigram", seed=0, vocab_size=560, **options):
    file = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()[seed:]), model_writer=file, model_type=kind, vocab_size=vocab_size,
        hard_vocab_limit=False, minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    return file.getvalue()


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def as_source(tokenizer, text):
    return tokenizer.special_tokens.source(tokenizer.encode(text))


def as_prompt(tokenizer, text):
    start = tokenizer.special_tokens.start
    return [*([] if start is None else [start]), *tokenizer.encode(text)]


def check(theirs, ours, read=as_source):
    """Every line is encoded and decoded alike, also by the tokenizer as a checkpoint keeps it."""
    again = Tokenizer.from_json(ours.to_json(), ours.settings)
    assert again.hash == ours.hash
    for line in lines():
        ids = theirs(line).input_ids
        assert read(ours, line) == read(again, line) == ids, line
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), line


def check_pieces(model, ours):
    """Every line is split as SentencePiece does, whose pieces are tokens of other ids."""
    theirs, names = spm.SentencePieceProcessor(model_proto=model), ours.tokens()
    for line in lines():
        known = [
            piece if piece in names else "<unk>" for piece in theirs.encode(line, out_type=str)
        ]
        assert [names[i] for i in ours.encode(line)] == known, line


def saved(theirs, folder):
    """The folder that transformers writes: tokenizer.json and its settings."""
    theirs.save_pretrained(folder)
    assert (folder / "tokenizer.json").is_file()
    return folder


def test_marian(tmp_path):
    write(
        tmp_path,
        source__spm=trained(),
        target__spm=trained("unigram", 60, normalization_rule_name="nfkc_cf"),
    )
    pieces = [
        piece
        for side in ("source", "target")
        for piece in read_sentencepiece(tmp_path / f"{side}.spm").names
    ]
    pieces = [piece for piece in dict.fromkeys(pieces) if piece not in ("</s>", "<unk>", "<s>")]
    lacking = [piece for piece in pieces if len(piece) > 2][3:40:4]
    names = [
        "</s>",
        "<unk>",
        *(piece for piece in reversed(pieces) if piece not in lacking),
        ">>de<<",
        "<pad>",
    ]
    ids, pad = {name: i for i, name in enumerate(names)}, len(names) - 1
    write(
        tmp_path, vocab__json=ids, tokenizer_config__json={"source_lang": "en", "target_lang": "de"}
    )
    config = {
        "model_type": "marian",
        "is_encoder_decoder": True,
        "eos_token_id": 0,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }
    source, target = read_tokenizers(tmp_path, config | {"suppress_tokens": [pad]}, len(names))
    assert target.special_tokens == SpecialTokens(pad, pad, 0, 1, None, (pad,), (), (0,), ())
    assert source.special_tokens == SpecialTokens(pad, None, 0, 1, None, (), (), (0,), ())
    assert (source.size, target.size) == (len(names), len(names))
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = transformers.MarianTokenizer.from_pretrained(str(tmp_path))
    unknown = 0
    for line in [*lines(), ">>de<< the cat"]:
        assert as_source(source, line) == theirs(line).input_ids, line
        assert (
            target.special_tokens.output(target.encode(line)) == theirs(text_target=line).input_ids
        ), line
        unknown += source.encode(line).count(1)
        ids = [i for i in target.encode(line) if i != 1 and names[i] != ">>de<<"]
        assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True), line
    assert unknown > 20  # pieces that the vocabulary lacks
    other = names.index(next(piece for piece in names if piece in pieces[:300] and piece not in
                             read_sentencepiece(tmp_path / "target.spm").names and len(piece) > 2))  # fmt: skip
    assert target.decode([other]) == theirs.decode([other]).strip()
    assert "\uffff" not in target.pieces([other])[0]
    again = Tokenizer.from_json(source.to_json(), source.settings)
    assert [again.encode(line) for line in lines()] == [source.encode(line) for line in lines()]


def marian_folder(tmp_path, separate=False):
    """A random Marian model as transformers saves it, with the files of its tokenizer."""
    write(tmp_path, source__spm=trained(), target__spm=trained("unigram", 60))
    listed = {
        side: read_sentencepiece(tmp_path / f"{side}.spm").names[3:]
        for side in ("source", "target")
    }
    both = list(dict.fromkeys([*listed["source"], *listed["target"]]))
    for side, name in (("source", "vocab"), ("target", "target_vocab"))[: 1 + separate]:
        names = ["</s>", "<unk>", *(listed[side] if separate else both), "<pad>"]
        write(tmp_path, **{f"{name}__json": {piece: i for i, piece in enumerate(names)}})
    settings = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    write(tmp_path, tokenizer_config__json=settings)
    sizes = [
        len(json.loads(path.read_text()))
        for path in sorted(tmp_path.glob("*vocab.json"), reverse=True)
    ]
    torch.manual_seed(4)
    config = transformers.MarianConfig(
        vocab_size=sizes[0], decoder_vocab_size=sizes[-1], share_encoder_decoder_embeddings=not separate, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, max_position_embeddings=64, eos_token_id=0, pad_token_id=sizes[-1] - 1,
        decoder_start_token_id=sizes[-1] - 1, forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    for parameter in model.parameters():
        parameter.data += parameter.requires_grad * 0.3 * torch.randn_like(parameter)
    model.generation_config = transformers.GenerationConfig(
        max_new_tokens=9, num_beams=2, eos_token_id=0, pad_token_id=sizes[-1] - 1, decoder_start_token_id=sizes[-1] - 1,
        bad_words_ids=[[sizes[-1] - 1]],
    )  # fmt: skip
    model.save_pretrained(tmp_path)
    return model


@pytest.mark.parametrize("separate", [False, True], ids=["one vocabulary", "two vocabularies"])
def test_marian_is_imported_with_its_tokenizers(tmp_path, separate):
    """From text to text, as transformers does, also as a checkpoint: there is no tokenizer.json for Marian."""
    theirs = marian_folder(tmp_path, separate)
    more = {"target_vocab_file": str(tmp_path / "target_vocab.json")} if separate else {}
    with pytest.warns(UserWarning, match="sacremoses"):
        words = transformers.MarianTokenizer.from_pretrained(str(tmp_path), **more)
    ours = regard.from_pretrained(tmp_path)
    regard.import_model(tmp_path, tmp_path / "checkpoint")
    again = regard.load(tmp_path / "checkpoint", device="cpu")
    texts = lines()[:6]
    for text, one, two in zip(texts, ours.outputs(texts), again.outputs(texts), strict=True):
        with torch.no_grad():
            (row,) = theirs.generate(**words(text, return_tensors="pt"))
        wanted = [int(i) for i in row[1:]]
        assert (
            [*one[0].token_ids]
            == [*two[0].token_ids]
            == wanted[: wanted.index(0) + 1 if 0 in wanted else None]
        )
        assert one[0].text == two[0].text == words.decode(row, skip_special_tokens=True)


def test_marian_with_two_vocabularies(tmp_path):
    write(tmp_path, source__spm=trained(), target__spm=trained("unigram", 60))
    for side, name in (("source", "vocab"), ("target", "target_vocab")):
        names = ["</s>", "<unk>", *read_sentencepiece(tmp_path / f"{side}.spm").names[3:], "<pad>"]
        write(tmp_path, **{f"{name}__json": {piece: i for i, piece in enumerate(names)}})
    write(
        tmp_path,
        tokenizer_config__json={"separate_vocabs": True, "source_lang": "en", "target_lang": "de"},
    )
    config = {
        "model_type": "marian",
        "is_encoder_decoder": True,
        "eos_token_id": 0,
        "decoder_start_token_id": 3,
    }
    source, target = read_tokenizers(tmp_path, config, ROWS)
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = transformers.MarianTokenizer.from_pretrained(
            str(tmp_path), target_vocab_file=str(tmp_path / "target_vocab.json")
        )
    for line in lines()[:40]:
        assert as_source(source, line) == theirs(line).input_ids, line
        assert [*target.encode(line), 0] == theirs(text_target=line).input_ids, line


def test_t5(tmp_path):
    folder = write(tmp_path / "files", spiece__model=trained(**T5))
    theirs = transformers.T5Tokenizer.from_pretrained(str(folder))
    config = {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }
    for path in (folder, saved(theirs, tmp_path / "saved")):
        source, target = read_tokenizers(path, config, ROWS)
        assert source is target
        assert source.special_tokens == SpecialTokens(0, 0, 1, 2, None, (), (), (1,), ())
        assert source.size == ROWS > len(theirs)
        check(theirs, source)
        text = "the <extra_id_0> sat <extra_id_1>"
        assert as_source(source, text)[-1] == 1
        assert set(theirs.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_1>"])) <= set(
            as_source(source, text)
        )


@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_mbart(tmp_path, name):
    folder = write(tmp_path / "files", sentencepiece__bpe__model=trained(**FAIRSEQ))
    theirs = getattr(transformers, name).from_pretrained(str(folder), src_lang="de_DE")
    german, french = theirs.convert_tokens_to_ids(["de_DE", "fr_XX"])
    codes = [token for token in theirs.get_vocab() if len(token) == 5 and token[2] == "_"]
    codes.sort(key=theirs.get_vocab().get)
    settings = {"tokenizer_class": name, "src_lang": "de_DE", "additional_special_tokens": codes}
    write(folder, tokenizer_config__json=settings)
    config = {
        "model_type": "mbart",
        "is_encoder_decoder": True,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
    }
    for path in (folder, saved(theirs, tmp_path / "saved")):
        source, _ = read_tokenizers(path, config | {"forced_bos_token_id": french}, ROWS)
        around = ((german,), (2,)) if "50" in name else ((), (2, german))
        mask = theirs.convert_tokens_to_ids("<mask>")
        assert source.special_tokens == SpecialTokens(1, 2, 2, 3, mask, (), *around, (french,))
        if path == folder:  # transformers 5 forgets the normalization of the file
            check_pieces(trained(**FAIRSEQ), source)
        else:
            check(theirs, source)
    write(folder, tokenizer_config__json={"tokenizer_class": name})
    with pytest.raises(
        InvalidData, match="wanted additional_special_tokens, the codes of its languages; got none"
    ):
        read_tokenizers(folder, config, ROWS)


def test_llama(tmp_path):
    folder = write(tmp_path / "files", tokenizer__model=trained("bpe", 0, 700, **LLAMA))
    write(folder, tokenizer_config__json={"add_bos_token": True})
    theirs = transformers.LlamaTokenizer.from_pretrained(str(folder))
    config = {"model_type": "llama", "eos_token_id": 2, "bos_token_id": 1}
    for path in (folder, saved(theirs, tmp_path / "saved")):
        source, target = read_tokenizers(path, config, ROWS)
        assert source is None
        assert target.special_tokens == SpecialTokens(2, 1, 2, 0, None, (), (), (), ())
        if path == folder:  # transformers 5 adds no space before a text that begins with one
            for line in lines():
                ids = spm.SentencePieceProcessor(
                    model_proto=trained("bpe", 0, 700, **LLAMA)
                ).encode(line)
                assert target.encode(line) == ids
                assert line.startswith(" ") or as_prompt(target, line) == theirs(line).input_ids
        else:
            check(theirs, target, as_prompt)
    write(folder, tokenizer_config__json={"add_bos_token": False})
    assert read_tokenizers(folder, config, ROWS)[1].special_tokens.start is None
    write(folder, tokenizer_config__json={"add_bos_token": True, "add_eos_token": True})
    with pytest.raises(
        InvalidData,
        match="one token before a prompt, or none, and none after it; got 1 before and 1 a",
    ):
        read_tokenizers(folder, config, ROWS)


@pytest.mark.parametrize("lower", [True, False], ids=["lower case", "cased"])
def test_bert(tmp_path, lower):
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False)
    inner.train_from_iterator([line.lower() if lower else line for line in lines()[:30]], trainer)
    listed = sorted(inner.get_vocab(), key=inner.get_vocab().get)
    folder = write(tmp_path / "files", vocab__txt="\n".join(listed).encode())
    write(folder, tokenizer_config__json={"do_lower_case": lower})
    theirs = transformers.BertTokenizer.from_pretrained(str(folder))
    for path in (folder, saved(theirs, tmp_path / "saved")):
        source, target = read_tokenizers(path, {"model_type": "bert", "pad_token_id": 0}, ROWS)
        assert source is target
        assert source.special_tokens == SpecialTokens(0, 2, 3, 1, 4, (), (2,), (3,), ())
        check(theirs, source)
        assert source.encode("the [MASK] sat").count(4) == 1
    ids = source.encode("The mat, cat's")
    words = source.pieces(ids)
    assert [source.words(ids)[n] for n, word in enumerate(words) if not word.startswith("##")] == [
        *range(sum(not word.startswith("##") for word in words))
    ]
    assert [("The mat, cat's"[a:b]) for a, b in source.spans("The mat, cat's")] == [
        "The",
        "mat",
        ",",
        "cat",
        "'",
        "s",
    ]
    assert source.word_indices(ids, unknown=True) == source.words(ids)
    write(folder, vocab__txt=b"[CLS]\n[UNK]\na")
    with pytest.raises(
        InvalidData,
        match=r"vocab\.txt: wanted each token once, with the special tokens; got none of",
    ):
        read_tokenizers(folder, {"model_type": "bert"}, ROWS)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, ["cafe", "中", "国"]),  # without accents, as it is in lower case
        ({"strip_accents": None}, ["cafe", "中", "国"]),
        ({"strip_accents": False}, ["café", "中", "国"]),
        ({"do_lower_case": False}, ["Café", "中", "国"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Cafe", "中", "国"]),
        ({"tokenize_chinese_chars": False}, ["cafe", "中国"]),
    ],
)
def test_bert_reads_a_text_as_its_settings_say(tmp_path, settings, wanted):
    names = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "cafe",
        "café",
        "Café",
        "Cafe",
        "中",
        "国",
        "中国",
    ]
    folder = write(
        tmp_path / "files", vocab__txt="\n".join(names).encode(), tokenizer_config__json=settings
    )
    source, _ = read_tokenizers(folder, {"model_type": "bert", "pad_token_id": 0}, len(names))
    assert source.pieces(source.encode("Café 中国")) == wanted
    theirs = transformers.BertTokenizer.from_pretrained(str(folder))
    assert list(theirs.tokenize("Café 中国")) == wanted


def byte_level(names):
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=names, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(lines()[:60], trainer)
    model = json.loads(inner.to_str())["model"]
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    return {"vocab__json": model["vocab"], "merges__txt": "\n".join(merges).encode()}


def test_gpt2(tmp_path):
    folder = write(tmp_path / "files", **byte_level(["<|endoftext|>"]))
    theirs = transformers.GPT2Tokenizer.from_pretrained(str(folder))
    config = {"model_type": "gpt2", "eos_token_id": 0, "bos_token_id": 0}
    for path in (folder, saved(theirs, tmp_path / "saved")):
        source, target = read_tokenizers(path, config, ROWS)
        assert source is None
        assert target.special_tokens == SpecialTokens(0, None, 0, None, None, (), (), (), ())
        check(theirs, target, as_prompt)
    ids = target.encode("the cats über")
    assert b"".join(target.spellings(ids)) == "the cats über".encode()
    assert target.words(ids)[-1] == 2
    caption = {
        "model_type": "vision-encoder-decoder",
        "decoder_start_token_id": 0,
        "eos_token_id": 0,
    }
    source, target = read_tokenizers(path, caption, ROWS)
    assert source is None
    assert target.special_tokens.start == 0
    with pytest.raises(InvalidData, match=r"wanted tokenizer\.json; got none, for a qwen2"):
        read_tokenizers(folder, {"model_type": "qwen2"}, ROWS)


@pytest.mark.parametrize("name", ["bart", "roberta"])
def test_bart_and_roberta(tmp_path, name):
    folder = write(tmp_path / "files", **byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    kind = transformers.BartTokenizer if name == "bart" else transformers.RobertaTokenizer
    theirs = kind.from_pretrained(str(folder))
    config = {"model_type": name, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}
    config |= (
        {"is_encoder_decoder": True, "decoder_start_token_id": 2, "forced_bos_token_id": 0}
        if name == "bart"
        else {}
    )
    for path in (folder, saved(theirs, tmp_path / "saved")):
        source, _ = read_tokenizers(path, config, ROWS)
        start, forced = (2, (0,)) if name == "bart" else (0, ())
        assert source.special_tokens == SpecialTokens(1, start, 2, 3, 4, (), (0,), (2,), forced)
        check(theirs, source)
    assert as_source(source, "the <mask> sat") == theirs("the <mask> sat").input_ids


def test_a_mask_takes_the_space_before_it(tmp_path):
    """As in the tokenizer that RoBERTa was trained with, and unlike other special tokens."""
    folder = write(tmp_path / "files", **byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    config = {"model_type": "roberta", "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}
    source, _ = read_tokenizers(folder, config, ROWS)
    assert source.encode("the <mask> sat") == [*source.encode("the"), 4, *source.encode(" sat")]
    assert source.encode("the <unk> sat") == [*source.encode("the "), 3, *source.encode(" sat")]
    assert source.encode("the ") != source.encode("the")


WRONG = {
    "an id beyond the embedding": (
        {"decoder_start_token_id": 5000},
        "config.json: decoder_start_token_id: wanted",
    ),
    "a text": ({"eos_token_id": "1"}, "config.json: eos_token_id: wanted the id of a token"),
    "a bool": (
        {"pad_token_id": True},
        "pad_token_id: wanted the id of a token, from 0 to 1199; got True",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_roles_are_refused(tmp_path, name):
    folder = write(tmp_path / "files", spiece__model=trained(**T5))
    config = {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
    }
    change, message = WRONG[name]
    with pytest.raises(InvalidData, match=message):
        read_tokenizers(folder, config | change, ROWS)


def test_damaged_and_missing_files_are_refused(tmp_path):
    config = {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
    }
    with pytest.raises(InvalidData, match=r"wanted tokenizer\.json; got none"):
        read_tokenizers(tmp_path / "missing", config, ROWS)
    folder = write(tmp_path / "files", spiece__model=trained(**T5))
    with pytest.raises(
        InvalidData,
        match=r"spiece\.model: wanted at most 200 tokens, the rows of the embedding; got \d+",
    ):
        read_tokenizers(folder, config, 200)
    for count in ("many", True, -1, 10_001):
        write(folder, tokenizer_config__json={"extra_ids": count})
        with pytest.raises(
            InvalidData, match=f"extra_ids: wanted a number of sentinel tokens; got {count!r}"
        ):
            read_tokenizers(folder, config, ROWS)
    write(folder, tokenizer_config__json=[1])
    with pytest.raises(InvalidData, match=r"tokenizer_config\.json"):
        read_tokenizers(folder, config, ROWS)
    (folder / "tokenizer_config.json").unlink()
    for content in (b"", b"{}", b"\xff", b'{"model": 3}'):
        write(folder, tokenizer__json=content)
        with pytest.raises(InvalidData, match=r"tokenizer\.json: wanted a tokenizer; got"):
            read_tokenizers(folder, config, ROWS)
    rules = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    rules.normalizer = normalizers.Precompiled(b"\4\0\0\0" + b"\0\1\0\0" + "é\0".encode())
    write(folder, tokenizer__json=rules.to_str().encode())
    with pytest.raises(
        InvalidData, match=r"tokenizer\.json: .*precompiled_charsmap that leads out of itself"
    ):
        read_tokenizers(folder, config, ROWS)
    write(tmp_path, source__spm=trained(), target__spm=trained())
    for vocabulary in (
        {"</s>": 0, "<unk>": 2},
        {"</s>": 0, "<unk>": 0},
        {"</s>": 0, "<unk>": "1"},
        {"a": 0, "b": True},
    ):
        write(tmp_path, vocab__json=vocabulary)
        with pytest.raises(
            InvalidData, match=r"vocab\.json: wanted ids from 0 to 1, each once; got"
        ):
            read_tokenizers(tmp_path, {"model_type": "marian", "is_encoder_decoder": True}, ROWS)
    write(tmp_path, vocab__json={"a": 0})
    with pytest.raises(InvalidData, match=r"vocab\.json: wanted </s> and <unk> among its tokens"):
        read_tokenizers(tmp_path, {"model_type": "marian", "is_encoder_decoder": True}, ROWS)
