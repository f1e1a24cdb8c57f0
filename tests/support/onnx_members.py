"""The models whose ONNX graphs are tested, and their export in a process of its own.

    python -m support.onnx_members FOLDER KIND NAME...

The shape checks of the tests do not know the symbolic sizes of torch.export: this process runs without them.
"""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import regard
from regard.data.special_tokens import END
from regard.data.vocabulary import Labels
from regard.inference.predictor import Predictor
from regard.interop.onnx.decoder_graphs import DECODER_GRAPHS, MemoryInputs
from regard.interop.onnx.encoder_graphs import EncoderGraph, SourceInputs
from regard.interop.onnx.graph import Graph, write_graph
from regard.model.seq2seq import Seq2Seq
from regard.recipe.recipe import Recipe
from support import captioners, models, predictors
from support.predictors import COPY, PARTS

ONE_LAYER = PARTS["transformer"] | {"layers": 1}
BAHDANAU = PARTS["rnn"] | {"cell": "lstm", "attention": "bahdanau"}
PERCEIVER = {"kind": "perceiver", "queries": 3, "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 24}
VIT = {
    "kind": "vit",
    "patch_size": 16,
    "transformer": {key: ONE_LAYER[key] for key in ONE_LAYER if key != "kind"},
}


def translator(encoder: Any, decoder: Any) -> Predictor:
    words = predictors.tokenizer()
    torch.manual_seed(1)
    table = {"encoder": encoder, "decoder": decoder, "tie_embeddings": "none"}
    model = regard.build({**table, "vocab_size": words.size}).eval()
    recipe = Recipe.of({"data": COPY, "model": table, "decode": {"max_length": 12}})
    return Predictor(lively(model), recipe, (words,), words)


def lively(model: Any, end: float = 11.0) -> Any:
    """Random weights with which outputs end now and then, and differ from source to source."""
    models.without_zeros(model)
    with torch.no_grad():
        model.decoder.project.weight *= 6
        model.decoder.project.bias[END] += end
        for module in model.decoder.cross_attentions:
            module.output_weight.mul_(4.0)
    return model


def two_sources() -> Predictor:
    words = predictors.tokenizer()
    labels = Labels(["bad", "fine", "good"])
    torch.manual_seed(1)
    table = {
        "encoders": [{"kind": "label", "dim": 8}, PARTS["rnn"], ONE_LAYER],
        "decoder": ONE_LAYER,
        "tie_embeddings": "none",
    }
    sizes = {"vocab_size": words.size, "source_vocab_size": [labels.size, words.size, words.size]}
    fields = [{"kind": "label", "column": "1"}, {"column": "2"}, {"column": "3"}]
    data = {"train": "x.tsv", "sources": fields, "target": {"column": "4"}}
    recipe = Recipe.of({"data": data, "model": table, "decode": {"max_length": 12}})
    model = lively(regard.build({**table, **sizes}).eval())
    return Predictor(model, recipe, (labels, words, words), words)


def label_and_text() -> Predictor:
    """Two sources, of which only one has a mask in its inputs."""
    words = predictors.tokenizer()
    labels = Labels(["bad", "fine", "good"])
    torch.manual_seed(1)
    encoders = [{"kind": "label", "dim": 16}, ONE_LAYER]
    table = {"encoders": encoders, "decoder": ONE_LAYER, "tie_embeddings": "none"}
    sizes = {"vocab_size": words.size, "source_vocab_size": [labels.size, words.size]}
    fields = [{"kind": "label", "column": "1"}, {"column": "2"}]
    data = {"train": "x.tsv", "sources": fields, "target": {"column": "3"}}
    recipe = Recipe.of({"data": data, "model": table, "decode": {"max_length": 12}})
    model = lively(regard.build({**table, **sizes}).eval())
    return Predictor(model, recipe, (labels, words), words)


def masked_language_model() -> Predictor:
    words = predictors.tokenizer()
    table = {"encoder": ONE_LAYER | {"cls_token": True}, "head": "mlm"}
    torch.manual_seed(1)
    model = regard.build({**table, "vocab_size": words.size}).eval()
    return Predictor(model, Recipe.of({"data": {"train": "x.txt"}, "model": table}), (), words)


def captioner(decoder: str, encoder: Any) -> Predictor:
    made = captioners.captioner(decoder, encoder)
    lively(made.model, end=-5.0)
    return made


def seeded(make: Callable[[], Predictor]) -> Predictor:
    """With the same weights in every process."""
    torch.manual_seed(1)
    return make()


# Whole models, with the options of their export.
PREDICTORS: dict[str, tuple[Callable[[], Predictor], dict[str, Any]]] = {
    "rnn to transformer": (lambda: translator(PARTS["rnn"], ONE_LAYER), {"attention": True}),
    "transformer to rnn": (
        lambda: translator(ONE_LAYER | {"cls_token": True}, BAHDANAU),
        {"attention": True},
    ),
    "transformer to conv": (lambda: translator(ONE_LAYER, PARTS["conv"]), {"attention": True}),
    "transformer, cls_token": (lambda: translator(ONE_LAYER | {"cls_token": True}, ONE_LAYER), {}),
    "bag to rnn without attention": (
        lambda: translator({"kind": "bag", "dim": 16}, PARTS["rnn"] | {"attention": "none"}),
        {},
    ),
    "perceiver to transformer": (lambda: translator(PERCEIVER, ONE_LAYER), {"attention": True}),
    "int8": (lambda: translator(ONE_LAYER, ONE_LAYER), {"quantization": "int8"}),
    "several sources": (two_sources, {}),
    "label and text": (label_and_text, {}),
    "captioner": (lambda: captioner("transformer", VIT), {"attention": True}),
    "captioner, rnn": (lambda: captioner("rnn", captioners.CNN), {}),
    "language model": (lambda: seeded(predictors.language_model), {"attention": True}),
    "masked language model": (masked_language_model, {}),
    "classifier": (lambda: seeded(predictors.classifier), {}),
}


def source_kind(name: str) -> str:
    return "label" if name == "label" else "image" if name in models.OTHER_ENCODERS else "text"


def image_size(name: str) -> int:
    return 40 if "net" in name else 8


def graph(kind: str, name: str) -> Graph:
    """The graph of a member of the contract family: "encoder", "decoder" or "language model"."""
    if kind == "encoder":
        model = Seq2Seq(models.encoder(name), models.decoder("transformer")).eval()
        return EncoderGraph(
            model, SourceInputs([source_kind(name)], [image_size(name)]), attention=False
        )
    memory = MemoryInputs(models.WIDTH, masked=True) if kind == "decoder" else None
    decoder = models.decoder(name, None if memory is None else models.WIDTH)
    return DECODER_GRAPHS[type(decoder)](decoder, memory, attention=False)


def exported(
    folder: Path, kind: str, names: Sequence[str], module: str = "support.onnx_members"
) -> Path:
    """Export these in another process, by a module's main function. Where one fails, its error is in NAME.error."""
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", module, str(folder), kind, *names]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (done.stdout, done.stderr) == ("", ""), (
        done.stdout,
        done.stderr,
    )  # the export says nothing
    return folder


def main(folder: Path, kind: str, *names: str) -> None:
    for name in names:
        try:
            if kind == "predictor":
                make, options = PREDICTORS[name]
                regard.export(make(), "onnx", folder / name, **options)
            else:
                write_graph(graph(kind, name), folder / f"{name.replace('/', ' ')}.onnx")
        except Exception:
            (folder / f"{name}.error").write_text(traceback.format_exc())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
