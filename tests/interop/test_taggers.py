"""Taggers of transformers as ours and back: the same tag of each word, from the state of its first token."""

import json
from pathlib import Path

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument
from regard.interop.pretrained import PretrainedFolder
from support.command_line import command
from support.pretrained import CASES, random_theirs
from support.tagging import noun_phrases

transformers = pytest.importorskip("transformers")
LABELS = ["O", "B-NP", "I-NP", "B-VP", "I-VP"]
KINDS = ("bert-tags", "roberta-tags", "distilbert-tags")
SENTENCES = [
    ["the", "bigger", "dog", "sees", "New-York", "!"],
    ["unaffordable", "cats"],
    ["a"],
    ["dogs,", "house", "don't"],
]


def tokenizer_of(kind):
    """A small tokenizer of the architecture, trained by transformers' library."""
    from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer

    lines = [" ".join(words) for words, _ in noun_phrases(200, 0)] + [
        " ".join(words) for words in SENTENCES[:2]
    ]
    if kind == "roberta-tags":
        trained = ByteLevelBPETokenizer(add_prefix_space=True)
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained.train_from_iterator(lines, vocab_size=290, special_tokens=names)
        roles = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
        roles |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
        before = ("<s>", 0)
        after = ("</s>", 2)
    else:
        trained = BertWordPieceTokenizer(lowercase=True)
        trained.train_from_iterator(lines, vocab_size=60, limit_alphabet=40)
        roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
        roles |= {"unk_token": "[UNK]", "mask_token": "[MASK]"}
        before = ("[CLS]", trained.token_to_id("[CLS]"))
        after = ("[SEP]", trained.token_to_id("[SEP]"))
    from tokenizers.processors import TemplateProcessing

    inner = trained._tokenizer
    inner.post_processor = TemplateProcessing(
        single=f"{before[0]} $A {after[0]}", special_tokens=[before, after]
    )
    inner.no_padding()
    inner.no_truncation()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Their model of each kind, its tokenizer, and the folder in which they saved both."""
    made = {}

    def get(kind):
        if kind not in made:
            tokenizer = tokenizer_of(kind)
            options = CASES[kind][2] | {
                "vocab_size": len(tokenizer),
                "pad_token_id": tokenizer.pad_token_id,
                "id2label": dict(enumerate(LABELS)),
                "label2id": {name: i for i, name in enumerate(LABELS)},
            }
            options.pop("num_labels", None)
            folder = tmp_path_factory.mktemp(kind)
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(CASES, kind, (*CASES[kind][:2], options))
                theirs = random_theirs(kind)
            theirs.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[kind] = theirs.eval(), tokenizer, folder
        return made[kind]

    return get


@torch.no_grad()
def their_scores(theirs, tokenizer, words):
    """The scores of the tags of each word, at the first of its tokens."""
    given = tokenizer(
        words, is_split_into_words=True, return_tensors="pt", return_token_type_ids=False
    )
    logits = theirs(**given).logits[0]
    places = given.word_ids(0)
    return torch.stack([logits[places.index(word)] for word in range(len(words))])


@torch.no_grad()
def our_scores(model, words):
    _, batch = model.encode(words)
    return model.model(batch)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_tags_of_words_are_theirs(kind, saved):
    theirs, tokenizer, folder = saved(kind)
    model = regard.from_pretrained(folder)
    assert model.target.names == tuple(LABELS)
    pieces = 0
    outputs = model.outputs(SENTENCES)
    for words, (output,) in zip(SENTENCES, outputs, strict=True):
        wanted = their_scores(theirs, tokenizer, words)
        torch.testing.assert_close(our_scores(model, words), wanted, atol=1e-5, rtol=1e-4)
        assert output.tags == tuple(LABELS[tag] for tag in wanted.argmax(-1))
        likely = wanted.softmax(-1).amax(-1).tolist()
        assert output.tag_probabilities == pytest.approx(likely, abs=1e-5)
        pieces += len(model.encode(words)[1].ids[0])
    # Some words have several tokens.
    assert pieces > sum(map(len, SENTENCES)) + 2 * len(SENTENCES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_an_import_is_the_same_model(kind, saved, tmp_path):
    _, _, folder = saved(kind)
    done = command("import", folder, "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    again = regard.load(tmp_path / "ours", device="cpu")
    model = regard.from_pretrained(folder)
    assert again.predict(SENTENCES) == model.predict(SENTENCES)
    (tmp_path / "a.txt").write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    printed = command("predict", tmp_path / "ours", tmp_path / "a.txt", "--conll").stdout
    rows = [line.split("\t") for line in printed.splitlines() if line]
    tags = [tag for (output,) in model.outputs(SENTENCES) for tag in output.tags]
    assert [tag for _, tag in rows] == tags
    gold = tmp_path / "gold.conll"
    gold.write_text("".join(f"{word}\tO\n" for word in SENTENCES[0]))
    report = regard.evaluate(again, data=gold)
    assert report["accuracy"].totals["tokens"] == len(SENTENCES[0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_of_an_import_is_the_original(kind, saved, tmp_path):
    theirs, tokenizer, folder = saved(kind)
    model = regard.from_pretrained(folder)
    out = regard.export(model, "huggingface", tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [CASES[kind][0]]
    assert config["id2label"] == {str(i): name for i, name in enumerate(LABELS)}
    again = transformers.AutoModelForTokenClassification.from_pretrained(out).eval()
    own = theirs.state_dict()
    assert again.state_dict().keys() == own.keys()
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in own.items())
    tokens = transformers.AutoTokenizer.from_pretrained(out)
    for words in SENTENCES:
        wanted = tokenizer(words, is_split_into_words=True)["input_ids"]
        assert tokens(words, is_split_into_words=True)["input_ids"] == wanted
    assert "token-classification" in (out / "README.md").read_text()


BERT = {"kind": "transformer", "dim": 24, "layers": 2, "heads": 3, "ffn_dim": 32, "positions": "learned",
        "max_positions": 40, "norm_first": False, "norm_input": True, "activation": "gelu"}  # fmt: skip


def trained(folder, tokenizer="bpe", **head):
    table = {
        "model": {"encoder": BERT, "head": {"kind": "tags", **head}, "scale_embeddings": False},
        "data": {
            "source": {"kind": "words", "tokenizer": tokenizer, "vocab_size": 280},
            "target": {"kind": "tags"},
        },
        "train": {"max_steps": 5, "warmup_steps": 1, "device": "cpu"},
    }
    data = {"train": noun_phrases(60, 0), "valid": noun_phrases(8, 1)}
    return regard.train(table, folder, data=data)


@pytest.mark.parametrize("tokenizer", ["bpe", "unigram", "words"])
def test_our_own_taggers_are_theirs(tokenizer, tmp_path):
    model = trained(tmp_path / "run", tokenizer)
    out = regard.export(model, "huggingface", tmp_path / "out")
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(out).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(out)
    for words, _ in noun_phrases(6, 4):
        wanted = their_scores(theirs, tokens, words)
        torch.testing.assert_close(our_scores(model, words), wanted, atol=1e-5, rtol=1e-4)
    again = regard.from_pretrained(out)
    for words, _ in noun_phrases(6, 4):
        torch.testing.assert_close(our_scores(again, words), our_scores(model, words))


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ({"crf": True}, r"model\.head\.crf = True"),
        ({"pieces": "mean"}, r"model\.head\.pieces = 'mean'"),
    ],
)
def test_heads_that_they_do_not_have_are_refused(head, named, tmp_path):
    model = trained(tmp_path / "run", **head)
    with pytest.raises(InvalidArgument, match=named):
        regard.export(model, "huggingface", tmp_path / "out")


@pytest.mark.parametrize("target", ["onnx", "page", "ctranslate2"])
def test_other_formats_are_refused(target, saved, tmp_path):
    _, _, folder = saved("bert-tags")
    model = regard.from_pretrained(folder)
    with pytest.raises(InvalidArgument, match="model: wanted a model that"):
        regard.export(model, target, tmp_path / "out.html")


def test_a_pooler_in_the_file_is_ignored(saved, tmp_path):
    """Files of early versions have that of the bare model."""
    from safetensors.torch import load_file, save_file

    _, _, folder = saved("bert-tags")
    for file in Path(folder).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["bert.pooler.dense.weight"] = torch.zeros(15, 15)
    weights["bert.pooler.dense.bias"] = torch.zeros(15)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert PretrainedFolder(tmp_path).tags_words
    wanted = regard.from_pretrained(folder).predict(SENTENCES)
    assert regard.from_pretrained(tmp_path).predict(SENTENCES) == wanted
