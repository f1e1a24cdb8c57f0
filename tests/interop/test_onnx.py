"""Exported ONNX graphs, executed by onnxruntime, compute what the models compute."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import onnxruntime
import pytest
import tokenizers
import torch
import torch._higher_order_ops.scan
from PIL.Image import Resampling

import regard
from regard.core.atomic_io import file_lock
from regard.core.errors import InvalidArgument, MissingExtra
from regard.core.sequence import MultiSource, Tokens
from regard.data.synthetic.shapes import shapes
from regard.data.vocabulary import Labels
from regard.inference.predictor import Predictor
from regard.interop.onnx.files import RESAMPLING, config, generation_config, write_tokenizers
from regard.interop.onnx.graph import Graph, GraphInput, write_graph
from regard.interop.onnx.target import OnnxTarget, predictor_graphs
from regard.model.capture import capture_attention
from regard.model.interfaces import CarriedState
from regard.tasks.pipeline import OutputOptions
from support import models, onnx_members, predictors
from support.onnx_members import PREDICTORS
from support.page_blocks import run_by

ROOT = Path(__file__).parents[2]
TEXTS = ["the cat sat", "a catalogue of category words, and the dog", "x"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
FAST = "rnn to transformer"  # the others take minutes
# Decoders whose graphs without a source differ from one another in more than a constant.
LANGUAGE_MODELS = [
    "rnn", "lstm bahdanau", "conv", "transformer", "transformer like T5", "transformer like Qwen",
    "transformer like Mistral", "transformer like BART", "transformer learned", "transformer alibi",
]  # fmt: skip


class Session:
    """A graph that takes and gives tensors by name."""

    def __init__(self, path: Path) -> None:
        errors = [
            path.with_suffix(".error"),
            Path(f"{path.parents[1]}.error"),
        ]  # of a graph, of a whole model
        assert path.exists(), [each.read_text() for each in errors if each.exists()]
        self.session = onnxruntime.InferenceSession(path)
        self.shapes = {each.name: each.shape for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]

    def __call__(self, given, only=None) -> dict[str, torch.Tensor]:
        feeds = {name: given[name].numpy() for name in self.shapes}
        results = self.session.run(only or self.outputs, feeds)
        return {
            name: torch.from_numpy(x) for name, x in zip(only or self.outputs, results, strict=True)
        }

    def first_state(self, batch: int) -> dict[str, torch.Tensor]:
        sizes = {"batch_size": batch, "past": 0, "encoder_past": 0}
        return {
            name: torch.zeros([sizes.get(axis, axis) for axis in shape])
            for name, shape in self.shapes.items()
            if name.startswith("past_key_values")
        }


def loop(body, carried, steps):
    """PyTorch's operator `scan`, which compiles its body."""
    outputs = []
    for step in steps:
        carried, out = body(carried, step)
        outputs.append(out)
    return carried, tuple(map(torch.stack, zip(*outputs, strict=True)))


class Unexported(Session):
    """A graph that PyTorch executes, in the way that it is exported, without minutes of exporting."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.shapes = graph.eval(), {each.name: each.axes for each in graph.inputs}

    def __call__(self, given, only=None) -> dict[str, torch.Tensor]:
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(torch.compiler, "is_exporting", lambda: True)
            patch.setattr(sys.modules["torch._higher_order_ops.scan"], "scan", loop)
            outputs = self.graph.run({name: given[name] for name in self.shapes})
        return {name: outputs[name] for name in only or outputs}


def following(outputs) -> dict[str, torch.Tensor]:
    return {
        name.replace("present", "past_key_values"): x
        for name, x in outputs.items()
        if name.startswith("present")
    }


def in_parts(
    decoder: Session, ids, given, state, parts
) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    """The logits of all tokens, which are passed in parts of these sizes; and the outputs of each call."""
    logits, calls, done = [], [], 0
    for count in parts:
        here = {
            "input_ids": ids[:, done : done + count],
            "attention_mask": torch.ones(len(ids), done + count).long(),
        }
        calls.append(decoder({**here, **given, **state}))
        logits.append(calls[-1]["logits"])
        state, done = following(calls[-1]), done + count
    return torch.cat(logits, 1), calls


def ways(length: int) -> list[list[int]]:
    """All at once, one by one, and a prompt before single steps."""
    return [[length], [1] * length, [length - 2, 1, 1]] if length > 2 else [[length], [1] * length]


def shared(factory: pytest.TempPathFactory, name: str, kind: str, members: list[str]) -> Path:
    """A folder of exported members, which parallel test workers share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"onnx-{name}"
    folder.mkdir(exist_ok=True)
    with file_lock(folder / ".lock", wait=True):
        if not (folder / ".done").exists():
            onnx_members.exported(folder, kind, members)
            (folder / ".done").touch()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return shared(tmp_path_factory, "fast", "predictor", [FAST])


@pytest.fixture(scope="module")
def all_folders(tmp_path_factory) -> Path:
    return shared(
        tmp_path_factory, "models", "predictor", [name for name in PREDICTORS if name != FAST]
    )


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> Path:
    return shared(tmp_path_factory, "encoders", "encoder", list(models.EXPORTED_ENCODERS))


@pytest.fixture(scope="module")
def decoders(tmp_path_factory) -> Path:
    return shared(tmp_path_factory, "decoders", "decoder", list(models.DECODERS))


@pytest.fixture(scope="module")
def language_models(tmp_path_factory) -> Path:
    return shared(tmp_path_factory, "language-models", "language model", LANGUAGE_MODELS)


def pair(folder: Path) -> tuple[Session, Session]:
    return tuple(
        Session(folder / "onnx" / f"{name}.onnx")
        for name in ("encoder_model", "decoder_model_merged")
    )


def encoded(model, encoder: Session, source) -> dict[str, torch.Tensor]:
    """The outputs of the encoder's graph, by the names of the decoder's inputs."""
    parts = source.parts if isinstance(source, MultiSource) else (source,)
    given = {}
    for number, (part, field) in enumerate(
        zip(parts, model.recipe.data.source_fields, strict=True), start=1
    ):
        suffix = "" if number == 1 else f"_{number}"
        if isinstance(part, Tokens):
            given |= {f"input_ids{suffix}": part.ids, f"attention_mask{suffix}": part.mask.long()}
        else:
            given[f"{ {'image': 'pixel_values', 'label': 'label_ids'}[field.kind] }{suffix}"] = part
    outputs = encoder(given)
    mask = {"encoder_attention_mask": given["attention_mask"]} if "attention_mask" in given else {}
    return {"encoder_hidden_states": outputs["last_hidden_state"], **mask, **outputs}


def examples(name: str) -> list:
    """What the model predicts from: texts, images, or a label and two texts."""
    if name.startswith("captioner"):
        return [scene.source for scene in shapes("test", 0, 3)]
    if name == "label and text":
        return [("good", text) for text in TEXTS]
    return [("good", text, TEXTS[0]) for text in TEXTS] if name == "several sources" else TEXTS


def collated(model, given: list):
    return model.inputs.collate(model.inputs.encode(model.inputs.check("texts", given)))


def check_sequence_model(name: str, model, encoder: Session, decoder: Session) -> None:
    """Logits in every way of passing the tokens, attention weights, and greedy search, token for token."""
    seq2seq, options = model.model, PREDICTORS[name][1]
    batches = [
        collated(model, examples(name)[:count]) for count in (3, 2, 1)
    ]  # with padding, and without
    batches += [Tokens.of([[7]])] if isinstance(batches[0], Tokens) else []
    for source in batches:
        given = encoded(model, encoder, source)
        batch = len(given["encoder_hidden_states"])
        state = decoder.first_state(batch) | following(given)
        ids = torch.randint(5, model.target.size, (batch, 6))
        with torch.no_grad(), capture_attention() as calls:
            wanted = seq2seq(source, ids)
        for parts in ways(6):
            logits, outputs = in_parts(decoder, ids, given, state, parts)
            torch.testing.assert_close(logits, wanted, **TOLERANCE)
            if options.get("attention"):
                check_attention(seq2seq, source, calls, given, outputs)
    check_greedy(name, model, encoder, decoder)


def check_attention(seq2seq, source, calls, given, outputs) -> None:
    """All attention weights, as captured in one forward pass: those of padding's rows aside."""
    found, seen = {}, seq2seq.encode(source).mask[:, None, :, None]
    for call in calls:
        found.setdefault(call.source, []).append(call.weights())
    for part in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        names = sorted(
            {name for each in (given, *outputs) for name in each if name.startswith(part)}
        )
        if part == "encoder_attentions":
            modules = [each for each in found if any(each is m for m in seq2seq.encoder.modules())]
        else:
            cross = list(seq2seq.decoder.cross_attentions)
            modules = [
                m
                for m in seq2seq.decoder.modules()
                if m in found and (m in cross) == part.startswith("cross")
            ]
        assert len(names) == len(modules)
        for name, module in zip(names, modules, strict=True):
            wanted = found[module][0] if len(found[module]) == 1 else torch.cat(found[module], -2)
            wanted = (
                wanted if wanted.dim() == 4 else wanted[:, None]
            )  # a recurrent decoder has no heads
            rows = [each[name] for each in ([given] if part.startswith("enc") else outputs)]
            done = 0
            for got in rows:
                expected = wanted[..., done : done + got.shape[2], : got.shape[3]]
                if part.startswith("enc"):
                    got, expected = got * seen, expected * seen
                torch.testing.assert_close(got, expected, **TOLERANCE)
                done += got.shape[2]
            assert done == wanted.shape[-2]


def check_greedy(name: str, model, encoder: Session, decoder: Session) -> None:
    """Greedy search over the graphs gives the tokens of ours."""
    given = examples(name)
    wanted = [output.token_ids for (output,) in model.outputs(given, beam_size=1)]
    assert len(set(wanted)) > 1 or name.startswith(
        "captioner"
    )  # untrained, all images look alike to it
    memory = encoded(model, encoder, collated(model, given))
    state = decoder.first_state(len(given)) | following(memory)
    rows, last = [[] for _ in given], torch.full((len(given), 1), 1)
    for _ in range(model.recipe.decode.max_length):
        outputs = decoder({"input_ids": last, **memory, **state})
        logits, state = outputs["logits"][:, -1], following(outputs)
        logits[:, [0, 1, 4]] = -torch.inf
        last = logits.argmax(-1, keepdim=True)
        for row, token in zip(rows, last[:, 0].tolist(), strict=True):
            row += [token] if 2 not in row else []
    assert [tuple(row) for row in rows] == wanted


def test_a_translator_over_lengths_and_batches_and_its_greedy_search(folder):
    check_sequence_model(FAST, PREDICTORS[FAST][0](), *pair(folder / FAST))


def test_the_example_of_the_guide_needs_neither_regard_nor_torch(folder, tmp_path):
    (program,) = (block.code for block in run_by("onnx"))
    ending = "assert not {'regard', 'torch', 'transformers'} & set(sys.modules)\n"
    (tmp_path / "translate.py").write_text(program + ending)
    command = [sys.executable, str(tmp_path / "translate.py"), str(folder / FAST), *TEXTS]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    wanted = PREDICTORS[FAST][0]().predict(TEXTS, beam_size=1)
    assert done.stdout.decode() == "".join(text + "\n" for text in wanted)


def test_files_are_laid_out_for_transformers_js(folder):
    """Its code asks for these names, keys and shapes."""
    out = folder / FAST
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx", "config.json", "generation_config.json",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    config = json.loads((out / "config.json").read_text())
    assert (config["model_type"], config["is_encoder_decoder"]) == ("t5", True)
    decoder = Session(out / "onnx/decoder_model_merged.onnx")
    empty = ["batch_size", config["num_heads"], "past", config["d_kv"]]
    for layer in range(config["num_decoder_layers"]):
        for side in ("key", "value"):
            assert decoder.shapes[f"past_key_values.{layer}.decoder.{side}"] == empty
            assert decoder.shapes[f"past_key_values.{layer}.encoder.{side}"][1::2] == empty[1::2]
            assert {f"present.{layer}.{part}.{side}" for part in ("decoder", "encoder")} <= set(
                decoder.outputs
            )
    assert [name for name in decoder.shapes if not name.startswith("past")] == [
        "input_ids", "encoder_attention_mask", "encoder_hidden_states",
    ]  # fmt: skip
    content = b"".join(path.read_bytes() for path in out.rglob("*.onnx"))
    assert str(ROOT).encode() not in content  # the exporter would note its source files


@pytest.mark.parametrize(
    "data", [{}, {"context_length": 16}], ids=["separate texts", "running text"]
)
def test_the_tokenizer_begins_a_prompt_as_our_search_does(tmp_path, data):
    """Also in transformers.js, which adds special tokens only where tokenizer_config.json asks for it."""
    model = predictors.language_model(**data)
    write_tokenizers(model, tmp_path)
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    start = model.pipeline.task(model.recipe.decode, OutputOptions()).first
    assert written.encode("a dog").ids == [start, *model.target.encode("a dog")]
    assert settings["add_bos_token"] is True
    assert (
        written.token_to_id(settings["bos_token"])
        == start
        == generation_config(model)["decoder_start_token_id"]
    )


def test_filters_have_the_numbers_of_pillow():
    assert {name: Resampling[name.upper()] for name in RESAMPLING} == RESAMPLING


def test_what_cannot_be_exported_is_said():
    ensemble = regard.load([ROOT / "tests/golden/0.1.0/rnn", ROOT / "tests/golden/0.1.0/rnn"])
    assert OnnxTarget().obstacles(ensemble) == [
        "decoder: EnsembleDecoder has no graph in terms of ONNX"
    ]
    assert [
        *OnnxTarget().obstacles(predictors.translator()),
        *OnnxTarget().obstacles(predictors.classifier()),
    ] == []
    with pytest.raises(InvalidArgument, match="dtype: wanted nothing here: ONNX does not take it"):
        regard.export(predictors.translator(), "onnx", "nowhere", dtype="float16")


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_graph_runs_before_it_is_exported(name):
    """On the example with which it is exported: its inputs fit together, for every kind of model."""
    model = PREDICTORS[name][0]()
    graphs = predictor_graphs(model, attention=True)
    both = model.model.generator is not None and model.model.encoder is not None
    assert [graph.name for graph in graphs] == (
        ["encoder_model", "decoder_model_merged"] if both else ["model"]
    )
    for graph in graphs:
        outputs = graph.run({each.name: each.example() for each in graph.inputs})
        past = {each.name for each in graph.inputs if each.name.startswith("past_key_values")}
        assert graph.name == "encoder_model" or following(outputs).keys() == past
        assert all(x.isfinite().all() for x in outputs.values())


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        MissingExtra, match=r"Export to ONNX needs the package 'onnxscript'.*regard\[onnx\]"
    ):
        regard.export(predictors.classifier(), "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class DataDependent(Graph):
    name, inputs = "model", [GraphInput("x", ("batch_size", 3))]

    def run(self, given):
        return {"y": given["x"] if given["x"].sum() > 0 else -given["x"]}


@pytest.mark.slow
def test_what_pytorch_cannot_export_is_one_error(tmp_path):
    with pytest.raises(
        InvalidArgument,
        match=r"model: wanted a graph that PyTorch can export; got .*Could not guard",
    ):
        write_graph(DataDependent(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", models.EXPORTED_ENCODERS)
def test_encoders_of_the_family(encoders, name):
    check_encoder(name, Session(encoders / f"{name}.onnx"))


@pytest.mark.parametrize("name", models.EXPORTED_ENCODERS)
def test_graphs_of_the_encoders_of_the_family(name):
    check_encoder(name, Unexported(onnx_members.graph("encoder", name)))


def check_encoder(name: str, session: Session) -> None:
    encoder, kind, size = (
        models.encoder(name),
        onnx_members.source_kind(name),
        onnx_members.image_size(name),
    )
    for lengths in ((6, 3, 5), (1,), (1, 9)):
        batch = (
            models.source(name, lengths)
            if kind != "image"
            else torch.rand(len(lengths), 3, size, size)
        )
        with torch.no_grad():
            wanted = encoder(batch)
        given = {"pixel_values": batch, "label_ids": batch}
        if kind == "text":
            given = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
        mask = wanted.mask[..., None]  # states of padding may be anything
        got = session(given)["last_hidden_state"]
        torch.testing.assert_close(got * mask, wanted.states * mask, **TOLERANCE)


FAMILY = [
    *(("decoder", name) for name in models.DECODERS),
    *(("language model", name) for name in LANGUAGE_MODELS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), FAMILY)
def test_decoders_of_the_family(request, kind, name):
    folder = request.getfixturevalue("decoders" if kind == "decoder" else "language_models")
    check_decoder(kind, name, Session(folder / f"{name}.onnx"), ((3, 6), (1, 1), (2, 140)))


@pytest.mark.parametrize(("kind", "name"), FAMILY)
def test_graphs_of_the_decoders_of_the_family(kind, name):
    check_decoder(kind, name, Unexported(onnx_members.graph(kind, name)), ((3, 6), (1, 1)))


def check_decoder(kind: str, name: str, session: Session, sizes: Sequence[tuple[int, int]]) -> None:
    decoder = models.decoder(name, models.WIDTH if kind == "decoder" else None)
    for batch, length in sizes:
        memory = models.memory(batch) if kind == "decoder" else None
        ids, given, state = (
            torch.randint(models.VOCABULARY, (batch, length)),
            {},
            session.first_state(batch),
        )
        with torch.no_grad():
            wanted = decoder(ids, memory)
            if memory is not None:
                given = {
                    "encoder_hidden_states": memory.states,
                    "encoder_attention_mask": memory.mask.long(),
                }
                first = decoder.start(memory, batch=batch, capacity=0)
                if isinstance(first, CarriedState):
                    state |= {
                        f"past_key_values.{key}": x.contiguous()
                        for key, x in first.tensors().items()
                    }
        for parts in ways(length):
            torch.testing.assert_close(
                in_parts(session, ids, given, state, parts)[0], wanted, **TOLERANCE
            )


WHOLE = [
    name
    for name in PREDICTORS
    if name not in ("int8", "language model", "masked language model", "classifier")
]


@pytest.mark.parametrize("name", WHOLE)
def test_graphs_of_whole_models(name):
    model = PREDICTORS[name][0]()
    graphs = predictor_graphs(model, attention=PREDICTORS[name][1].get("attention", False))
    check_sequence_model(name, model, *map(Unexported, graphs))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WHOLE if name != FAST])
def test_whole_models(all_folders, name):
    assert not (all_folders / f"{name}.error").exists(), (all_folders / f"{name}.error").read_text()
    check_sequence_model(name, PREDICTORS[name][0](), *pair(all_folders / name))


@pytest.mark.slow
def test_prompts_of_a_language_model_are_padded_on_the_left(all_folders):
    model = PREDICTORS["language model"][0]()
    decoder = Session(all_folders / "language model/onnx/model.onnx")
    rows = [[1, 7, 8, 9, 10], [1, 7], [1]]
    ids = torch.tensor([[0] * (5 - len(row)) + row for row in rows])
    mask = (ids != 0).long()
    outputs = decoder({"input_ids": ids, "attention_mask": mask, **decoder.first_state(3)})
    more = torch.randint(5, 20, (3, 2))
    longer = torch.cat((mask, torch.ones(3, 2).long()), 1)
    after = decoder({"input_ids": more, "attention_mask": longer, **following(outputs)})["logits"]
    for i, row in enumerate(rows):
        with torch.no_grad():
            wanted = model.model(None, torch.tensor([row + more[i].tolist()]))[0]
        torch.testing.assert_close(outputs["logits"][i, -len(row) :], wanted[:-2], **TOLERANCE)
        torch.testing.assert_close(after[i], wanted[-2:], **TOLERANCE)
    assert outputs["decoder_attentions.1"].shape == (3, 2, 5, 5)

    texts = [
        "the dog sat",
        *TEXTS[1:],
    ]  # after "the cat sat" two tokens are equally likely: rounding would decide
    prompts = [model.target.encode(text) for text in texts]
    wanted = [output.token_ids for (output,) in model.outputs(texts, beam_size=1)]
    longest = max(map(len, prompts))
    last = torch.tensor([[0] * (longest - len(row)) + [1, *row] for row in prompts])
    mask, state, rows = (last != 0).long(), decoder.first_state(len(texts)), [[] for _ in texts]
    for _ in range(model.recipe.decode.max_length):
        outputs = decoder({"input_ids": last, "attention_mask": mask, **state})
        logits, state = outputs["logits"][:, -1], following(outputs)
        logits[:, [0, 1, 4]] = -torch.inf
        best, second = logits.topk(2).values.T
        assert (best - second).min() > 1e-3
        last, mask = (
            logits.argmax(-1, keepdim=True),
            torch.cat((mask, torch.ones(len(texts), 1).long()), 1),
        )
        for row, token in zip(rows, last[:, 0].tolist(), strict=True):
            row += [token] if 2 not in row else []
    assert [tuple(row) for row in rows] == wanted


@pytest.mark.slow
def test_a_classifier_is_one_graph(all_folders):
    model = PREDICTORS["classifier"][0]()
    graph, config = (
        Session(all_folders / "classifier/onnx/model.onnx"),
        all_folders / "classifier/config.json",
    )
    source = collated(model, TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(
            graph({"input_ids": source.ids, "attention_mask": source.mask.long()})["logits"],
            model.model(source),
            **TOLERANCE,
        )
    assert json.loads(config.read_text())["id2label"] == {"0": "bad", "1": "fine", "2": "good"}


@pytest.mark.slow
def test_a_masked_language_model_is_one_graph(all_folders):
    model = PREDICTORS["masked language model"][0]()
    graph = Session(all_folders / "masked language model/onnx/model.onnx")
    source = Tokens.of([[7, 8, 4, 9, 2], [7, 2]])
    got = graph({"input_ids": source.ids, "attention_mask": source.mask.long()})["logits"]
    with torch.no_grad():
        torch.testing.assert_close(got[source.mask], model.model(source)[source.mask], **TOLERANCE)
    tokenizer = tokenizers.Tokenizer.from_file(
        str(all_folders / "masked language model/tokenizer.json")
    )
    assert tokenizer.encode(TEXTS[0]).ids == [*model.target.encode(TEXTS[0]), 2]


@pytest.mark.slow
def test_int8_is_near(all_folders):
    model = PREDICTORS["int8"][0]()
    encoder, decoder = (
        Session(all_folders / f"int8/onnx/{part}_quantized.onnx")
        for part in ("encoder_model", "decoder_model_merged")
    )
    assert len(list((all_folders / "int8/onnx").iterdir())) == 2
    source = collated(model, TEXTS)
    given, ids = encoded(model, encoder, source), torch.randint(5, model.target.size, (3, 6))
    with torch.no_grad():
        wanted = model.model(source, ids).log_softmax(-1)
    logits, _ = in_parts(decoder, ids, given, decoder.first_state(3), [6])
    assert (logits.log_softmax(-1) - wanted).abs().mean() < 0.1 * wanted.std()


WITHOUT_CACHE = ("regard", None)  # no model of transformers has such a state


@pytest.mark.parametrize(
    ("name", "wanted"),
    {
        "rnn to transformer": ("t5", "T5ForConditionalGeneration"),
        "transformer to rnn": WITHOUT_CACHE,
        "transformer to conv": WITHOUT_CACHE,
        "transformer, cls_token": ("t5", "T5ForConditionalGeneration"),
        "bag to rnn without attention": WITHOUT_CACHE,
        "several sources": WITHOUT_CACHE,
        "label and text": WITHOUT_CACHE,
        "captioner": ("vision-encoder-decoder", "VisionEncoderDecoderModel"),
        "captioner, rnn": WITHOUT_CACHE,
        "language model": ("gemma", "GemmaForCausalLM"),
        "masked language model": ("bert", "BertForMaskedLM"),
        "classifier": ("bert", "BertForSequenceClassification"),
    }.items(),
)
@torch.inference_mode()
def test_programs_take_each_model_for_one_that_they_know(name, wanted):
    """transformers.js and Optimum choose their code by these two, and the shape of a cache by its numbers."""
    model = PREDICTORS[name][0]()
    found = config(model, predictor_graphs(model, attention=False))
    assert (found["model_type"], *found.get("architectures", [None])) == wanted
    numbers = {
        "t5": {
            "num_layers": 1,
            "num_decoder_layers": 1,
            "num_heads": 2,
            "d_kv": 8,
            "is_encoder_decoder": True,
        },
        "gemma": {
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "is_encoder_decoder": False,
        },
        "regard": {
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "is_encoder_decoder": True,
        },
        "bert": {},
        "vision-encoder-decoder": {"encoder": {"model_type": "vit"}},
    }[found["model_type"]]
    assert {key: found[key] for key in numbers} == numbers


def test_labels_that_a_model_reads_are_written(tmp_path):
    """Each source has a file with its number, from the second on."""
    labels = [Labels(["no", "yes"]), Labels(["a", "b", "c"])]
    model = Mock(spec=Predictor, sources=labels, target=Labels(["x", "y"]))
    write_tokenizers(model, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "labels.json": f"{labels[0].to_json()}\n", "labels_2.json": f"{labels[1].to_json()}\n"
    }  # fmt: skip
