"""Models of transformers as predictors and as checkpoints: what they predict is what transformers does."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.core.errors import InvalidArgument, InvalidData, MissingExtra
from regard.interop.huggingface import _write_tokenizer
from support.command_line import command
from support.predictors import TEXT, tokenizer
from support.pretrained import CASES, assert_same_logits, logits, ours_of, random_theirs

pytest.importorskip("transformers")
TEXTS = ["the cat sat on the mat", "a dog ran: and the red car", "category"]
KINDS = ("bart", "gpt2", "bert", "bert-mlm", "vit", "captioner")
WORDS = tokenizer()
SIZE = WORDS.size + 3  # rows of the embedding that no token uses


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind with a tokenizer, as transformers saves it, and their model."""
    import transformers

    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        saved = dict(CASES[kind][2])
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(
                CASES,
                kind,
                (*CASES[kind][:2], saved | ({"vocab_size": SIZE} if "vocab_size" in saved else {})),
            )
            patch.setattr("support.pretrained.GPT2", {**CASES["gpt2"][2], "vocab_size": SIZE})
            theirs = random_theirs(kind)
        if theirs.can_generate():
            options = {"max_new_tokens": 7, "num_beams": 2, "eos_token_id": 2, "pad_token_id": 0}
            options |= {
                "bos_token_id": 1,
                "decoder_start_token_id": 1,
                "suppress_tokens": list(range(WORDS.size, SIZE)),
            }
            theirs.generation_config = transformers.GenerationConfig(**options)
        theirs.save_pretrained(folder)
        if kind != "vit":
            _write_tokenizer(WORDS, folder, has_source=kind != "gpt2")
        made[kind] = folder, theirs.eval()
    return made


def generated(theirs, **inputs):
    with torch.no_grad():
        row = theirs.generate(**inputs)[0].tolist()
    row = row[inputs["input_ids"].shape[1] :] if not theirs.config.is_encoder_decoder else row[1:]
    return row[: row.index(2)] if 2 in row else row


def test_translation(folders):
    folder, theirs = folders["bart"]
    model = regard.from_pretrained(folder)
    for text, best in zip(TEXTS, model.outputs(TEXTS), strict=True):
        ids = torch.tensor([[*WORDS.encode(text), 2]])
        assert [i for i in best[0].token_ids if i != 2] == generated(theirs, input_ids=ids)
    assert model.recipe.decode.beam_size == 2


@pytest.mark.parametrize(
    ("options", "bias", "ends"),  # bias: of the end token; ends: whether any output does
    [
        ({"suppress_tokens": [2]}, 60.0, False),
        ({"bad_words_ids": [[2], [9]]}, 60.0, True),
        ({"bad_words_ids": [[2]], "suppress_tokens": [2, 8]}, 60.0, False),
        ({"repetition_penalty": 3.0, "decoder_start_token_id": 2}, 8.0, None),
        ({"no_repeat_ngram_size": 1, "decoder_start_token_id": 2}, 60.0, False),
    ],
    ids=str,
)
def test_options_that_concern_the_end_token(options, bias, ends, folders, tmp_path):
    """As in BART, whose outputs begin with their end token, or where the file excludes the end token."""
    import transformers

    folder, theirs = folders["bart"]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    weights["final_logits_bias"][:, 2] += bias
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    spare = list(range(WORDS.size, SIZE))
    options = {
        "max_new_tokens": 6, "num_beams": 2, "eos_token_id": 2, "pad_token_id": 0,
        "decoder_start_token_id": 1, **options,
        "suppress_tokens": [*spare, *options.get("suppress_tokens", ())],
    }  # fmt: skip
    transformers.GenerationConfig(**options).save_pretrained(tmp_path)
    theirs = type(theirs).from_pretrained(tmp_path).eval()
    model = regard.from_pretrained(tmp_path)
    reasons = set()
    for text, best in zip(TEXTS, model.outputs(TEXTS), strict=True):
        ids = torch.tensor([[*WORDS.encode(text), 2]])
        assert [i for i in best[0].token_ids if i != 2] == generated(theirs, input_ids=ids)
        reasons.add(best[0].finish_reason == "end")
    assert ends is None or (True in reasons) == ends
    out = regard.import_model(tmp_path, tmp_path / "ours")
    assert regard.load(out, device="cpu").predict(TEXTS) == model.predict(TEXTS)


def copied(original, folder, *, generation=None, **config):
    """The same model folder with other values in its configuration, and other options of generation."""
    folder.mkdir()
    for file in original.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((original / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))
    place = folder / "generation_config.json"
    if generation is None:
        place.unlink()
    else:
        place.write_text(json.dumps(generation))
    return folder


def test_outputs_begin_after_the_beginning_of_texts_where_no_start_is_named(folders, tmp_path):
    """Without decoder_start_token_id, the decoder reads bos_token_id first, as in transformers."""
    original, theirs = folders["bart"]
    options = {"max_new_tokens": 7, "eos_token_id": 2, "pad_token_id": 0}
    folder = copied(
        original,
        tmp_path / "no-start",
        generation=options,
        bos_token_id=9,
        decoder_start_token_id=None,
    )
    model = regard.from_pretrained(folder)
    for text, best in zip(TEXTS, model.outputs(TEXTS), strict=True):
        ids = torch.tensor([[*WORDS.encode(text), 2]])
        start = {"decoder_start_token_id": None, "bos_token_id": 9}
        wanted = generated(theirs, input_ids=ids, num_beams=1, suppress_tokens=None, **start)
        assert [i for i in best[0].token_ids if i != 2] == wanted


def test_captions_begin_after_the_start_of_the_decoder(folders, tmp_path):
    """decoder_start_token_id counts before bos_token_id, which a captioner may have too."""
    original, theirs = folders["captioner"]
    pixels = np.random.default_rng(1).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    batch = ((torch.from_numpy(pixels).permute(2, 0, 1) / 255 - 0.5) / 0.5)[None]
    starts = {}
    for start in (0, 9):
        folder = copied(
            original,
            tmp_path / f"start-{start}",
            decoder_start_token_id=start,
            bos_token_id=1,
            eos_token_id=2,
        )
        (best,) = regard.from_pretrained(folder).outputs([pixels], max_length=7)[0]
        starts[start] = [i for i in best.token_ids if i != 2]
        options = {"num_beams": 1, "decoder_start_token_id": start, "bos_token_id": 1}
        assert starts[start] == generated(
            theirs, pixel_values=batch, suppress_tokens=None, **options
        )
    assert starts[0] != starts[9]


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_base_of_rotary_positions_is_read_wherever_a_file_has_it(key, tmp_path):
    """Older files have it in rope_scaling, as transformers still reads them."""
    from transformers import LlamaForCausalLM

    random_theirs("llama").save_pretrained(tmp_path / "first")
    config = json.loads((tmp_path / "first/config.json").read_text())
    rope = config.pop("rope_parameters")
    (tmp_path / "first/config.json").write_text(json.dumps(config | {key: rope}))
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "first").eval()
    assert theirs.config.rope_parameters["rope_theta"] == rope["rope_theta"] == 500.0
    ours, _ = ours_of(tmp_path / "first")
    with torch.no_grad():
        assert_same_logits(*reversed(logits("llama", theirs, ours)))


def test_language_model(folders):
    folder, theirs = folders["gpt2"]
    model = regard.from_pretrained(folder)
    (best,) = model.outputs(TEXTS[:1])
    ids = torch.tensor([[1, *WORDS.encode(TEXTS[0])]])
    assert [i for i in best[0].token_ids if i != 2] == generated(theirs, input_ids=ids)


def test_classifier(folders):
    folder, theirs = folders["bert"]
    model = regard.from_pretrained(folder)
    assert model.target.names == ("LABEL_0", "LABEL_1", "LABEL_2")
    for text, best in zip(TEXTS, model.outputs(TEXTS), strict=True):
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([[*WORDS.encode(text), 2]])).logits[0]
        wanted = dict(zip(model.target.names, logits.softmax(-1).tolist(), strict=True))
        assert best[0].probabilities == pytest.approx(wanted, abs=1e-5)


def test_images(folders):
    side = 12
    pixels = np.random.default_rng(1).integers(0, 256, (side, side, 3), dtype=np.uint8)
    batch = ((torch.from_numpy(pixels).permute(2, 0, 1) / 255 - 0.5) / 0.5)[None]
    folder, theirs = folders["vit"]
    model = regard.from_pretrained(folder)
    with torch.no_grad():
        logits = theirs(pixel_values=batch).logits[0]
    wanted = dict(zip(model.target.names, logits.softmax(-1).tolist(), strict=True))
    assert model.outputs([pixels])[0][0].probabilities == pytest.approx(wanted, abs=1e-5)
    folder, theirs = folders["captioner"]
    best = regard.from_pretrained(folder).outputs([pixels])[0][0]
    assert [i for i in best.token_ids if i != 2] == generated(theirs, pixel_values=batch)


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_checkpoint_is_the_same_model(kind, folders, tmp_path):
    folder, _ = folders[kind]
    done = command("import", folder, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert regard.verify(tmp_path / "out")
    direct, loaded = regard.from_pretrained(folder), regard.load(tmp_path / "out", device="cpu")
    weights = loaded.model.state_dict()
    assert all(
        torch.equal(tensor, weights[name]) for name, tensor in direct.model.state_dict().items()
    )
    assert loaded.recipe == direct.recipe
    assert [each and each.hash for each in (*loaded.sources, loaded.target)] == [
        each and each.hash for each in (*direct.sources, direct.target)
    ]
    with pytest.raises(InvalidArgument, match=r"out: wanted a folder that does not exist yet"):
        regard.import_model(folder, tmp_path / "out")


def test_opus_mt(tmp_path):
    """A Marian folder as it is published: two SentencePiece models and one vocabulary; texts in, texts out."""
    import transformers

    spm = pytest.importorskip("sentencepiece")
    for name, seed in (("source", 0), ("target", 1)):
        with (tmp_path / f"{name}.spm").open("wb") as file:
            spm.SentencePieceTrainer.train(
                sentence_iterator=iter(TEXT[seed:]),
                model_writer=file,
                vocab_size=60,
                hard_vocab_limit=False,
                minloglevel=2,
            )
    pieces = [
        spm.SentencePieceProcessor(str(tmp_path / f"{name}.spm")) for name in ("source", "target")
    ]
    names = dict.fromkeys(
        each.id_to_piece(i) for each in pieces for i in range(3, each.get_piece_size())
    )
    names = [name for name in names if name not in ("▁cat", "▁the", "r")]
    ids = {name: i for i, name in enumerate(["</s>", "<unk>", *names, "<pad>"])}
    pad = ids["<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    roles = {
        "pad_token_id": pad,
        "eos_token_id": 0,
        "bos_token_id": None,
        "decoder_start_token_id": pad,
    }
    with pytest.MonkeyPatch.context() as patch:
        changed = {**CASES["marian"][2], **roles, "vocab_size": len(ids)}
        patch.setitem(CASES, "marian", (*CASES["marian"][:2], changed))
        theirs = random_theirs("marian")
    theirs.model.shared.weight.data[pad] = 0.0
    options = {
        "num_beams": 4,
        "max_length": 12,
        "bad_words_ids": [[pad]],
        "no_repeat_ngram_size": 2,
    }
    theirs.generation_config = transformers.GenerationConfig(**roles, **options)
    theirs.save_pretrained(tmp_path)
    out = regard.import_model(tmp_path, tmp_path / "ours")
    with pytest.warns(UserWarning, match="sacremoses"):
        words = transformers.MarianTokenizer.from_pretrained(str(tmp_path))
    with torch.no_grad():
        rows = [theirs.generate(**words(text, return_tensors="pt"))[0] for text in TEXTS]
    model = regard.load(out, device="cpu")
    assert model.predict(TEXTS) == [words.decode(row, skip_special_tokens=True) for row in rows]
    assert (model.recipe.decode.beam_size, model.recipe.decode.max_length) == (4, 11)
    assert (
        model.source.settings["spare"] >= 3
    )  # pieces that the vocabulary lacks: they get a row in an export
    exported = regard.export(model, "huggingface", tmp_path / "exported")
    again, words = (
        each.from_pretrained(exported)
        for each in (transformers.AutoModelForSeq2SeqLM, transformers.AutoTokenizer)
    )
    with torch.no_grad():
        rows = [
            again.generate(**words(text, return_tensors="pt", return_token_type_ids=False))[0]
            for text in TEXTS
        ]
    assert model.predict(TEXTS) == [words.decode(row, skip_special_tokens=True) for row in rows]
    assert regard.from_pretrained(exported, device="cpu").predict(TEXTS) == model.predict(TEXTS)


def test_an_imported_model_is_looked_at_scored_and_fine_tuned(folders, tmp_path):
    out = regard.import_model(folders["bart"][0], tmp_path / "model", dtype="bfloat16")
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {
        torch.bfloat16
    }
    model = regard.load(out, device="cpu")
    assert model.score(TEXTS, TEXTS)[0].log_probability < 0
    assert regard.look(model, TEXTS[0])["encoder 1"].weights().shape[0] == 3
    for name, lines in (("source", TEXTS), ("target", TEXTS[::-1])):
        (tmp_path / name).write_text("\n".join(lines * 4) + "\n")
    changes = [
        f'data.train=["{tmp_path}/source", "{tmp_path}/target"]',
        "train.max_steps=2",
        "train.device=cpu",
    ]
    changes += ["train.warmup_steps=1", "train.batch_tokens=256"]
    tuned = regard.train(
        out / "recipe.toml", tmp_path / "run", changes=changes, cache=tmp_path / "cache"
    )
    assert tuned.predict(TEXTS[:1])
    assert tuned.target.special_tokens == model.target.special_tokens


@pytest.mark.parametrize(("kind", "files"), [("bart", '"SOURCES", "TARGETS"'), ("gpt2", '"TEXTS"')])
def test_the_recipe_names_the_files_to_learn_from(kind, files, folders, tmp_path):
    out = regard.import_model(folders[kind][0], tmp_path / "model")
    assert f"'data.train=[{files}]'" in (out / "recipe.toml").read_text()


def test_an_imported_model_has_no_data_to_evaluate_on(folders, tmp_path):
    out = regard.import_model(folders["gpt2"][0], tmp_path / "model")
    with pytest.raises(
        InvalidArgument, match=r"split: wanted new data.*got 'test'\. Name files with --data"
    ):
        regard.evaluate([out], device="cpu")


def test_a_vocabulary_larger_than_the_embedding_is_refused(folders, tmp_path):
    folder, _ = folders["gpt2"]
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text()) | {"vocab_size": 40}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = load_file(tmp_path / "model.safetensors")
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"][:40].clone()
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(
        InvalidArgument,
        match=r"tokenizer\.json: wanted at most 40 tokens, the rows of the embedding",
    ):
        regard.from_pretrained(tmp_path)


def test_models_of_the_hub_are_fetched_without_code_and_pickles(folders, monkeypatch):
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(folders["gpt2"][0])

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert regard.from_pretrained("hf:somebody/model@main").predict(["the"])
    assert (asked["name"], asked["revision"]) == ("somebody/model", "main")
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in asked["allow_patterns"])

    def fail(*args, **options):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(
        InvalidArgument,
        match=r"hf:a/b: wanted a model that can be downloaded; got OSError: no network",
    ):
        regard.from_pretrained("hf:a/b")
    with pytest.raises(InvalidArgument, match=r"wanted hf:owner/name"):
        regard.from_pretrained("hf:../../etc")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"regard\[hub\]"):
        regard.from_pretrained("hf:a/b")


def test_wrong_arguments_are_refused(folders, tmp_path):
    with pytest.raises(InvalidArgument, match=r"dtype: wanted one of float32"):
        regard.from_pretrained(folders["gpt2"][0], dtype="int8")
    with pytest.raises(InvalidArgument, match=r"model of transformers; got no such folder"):
        regard.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(
        InvalidArgument, match=r"config\.json: wanted a JSON file; got No such file"
    ):
        regard.from_pretrained(tmp_path)


def test_several_end_tokens_and_early_stopping_are_imported_and_exported(folders, tmp_path):
    """As Llama 3 has them: each ends an output, in a prompt none does, and the export has the list again."""
    original, theirs = folders["gpt2"]
    folder = tmp_path / "several"
    folder.mkdir()
    for file in original.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "generation_config.json").read_text())
    free = regard.from_pretrained(folder).outputs(TEXTS)
    ends = [
        2,
        *dict.fromkeys(token for (best, *_) in free for token in best.token_ids[1:3] if token != 2),
    ]
    settings |= {"eos_token_id": ends, "early_stopping": True, "num_beams": 3}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    regard.import_model(folder, tmp_path / "imported")
    model = regard.load(tmp_path / "imported")
    assert model.target.special_tokens.ends == tuple(ends)
    found = []
    for text in (*TEXTS, f"{TEXTS[0]} {model.target.pieces(ends[1:2])[0]}"):
        (best,) = model.outputs([text])
        ids = torch.tensor([[1, *model.target.encode(text)]])
        options = {"eos_token_id": ends, "early_stopping": True, "num_beams": 3}
        with torch.no_grad():
            row = theirs.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)[
                0, ids.shape[1] :
            ]
        wanted = row.tolist()
        at = next((i for i, token in enumerate(wanted) if token in ends), len(wanted))
        assert list(best[0].token_ids) == wanted[: at + 1]
        assert (best[0].finish_reason == "end") == (at < len(wanted))
        assert "".join(model.stream(text)) == model.predict([text], beam_size=1)[0]
        found.append(best[0].token_ids[-1])
    assert {*found} & {*ends[1:]}
    exported = regard.export(model, "huggingface", tmp_path / "exported")
    wrong = settings | {"eos_token_id": [2, SIZE]}
    (folder / "generation_config.json").write_text(json.dumps(wrong))
    with pytest.raises(
        InvalidData, match=rf"generation_config\.json: eos_token_id: wanted ids.*got {SIZE}"
    ):
        regard.from_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((exported / name).read_text())["eos_token_id"] == ends
    assert json.loads((exported / "generation_config.json").read_text())["early_stopping"] is True
