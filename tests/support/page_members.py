"""The models whose pages are tested, and their export, which `support.page_exports` runs in a process of its own."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import regard
from regard.core.atomic_io import atomic_file
from regard.data.synthetic.dates import dates
from regard.data.train_tokenizer import train_tokenizer
from regard.data.vocabulary import Labels
from regard.inference.predictor import Predictor
from regard.interop.onnx.graph import write_graph
from regard.interop.page.program import WeightBytes, program
from regard.interop.page.target import marked
from regard.interpret.sites import attention_sites
from regard.recipe.recipe import Recipe
from support import models, page_series, predictors
from support.onnx_members import ONE_LAYER, PREDICTORS, VIT, graph, lively, seeded

DATES = list(dates("test", 0, 200))
SHIPPED = Path(regard.__file__).parent / "studio/example_model/dates"


def date_model(decode: dict[str, Any] | None = None) -> Predictor:
    """Random weights, with the vocabularies of dates.toml."""
    source, target = (
        train_tokenizer("characters", [getattr(each, side) for each in DATES], size)
        for side, size in (("source", 400), ("target", 300))
    )
    torch.manual_seed(3)
    part = ONE_LAYER | {"ffn_dim": 24}
    table = {"encoder": part, "decoder": part, "tie_embeddings": "none"}
    model = regard.build(
        {**table, "source_vocab_size": source.size, "vocab_size": target.size}
    ).eval()
    characters = {"tokenizer": "characters"}
    data = {"synthetic": "dates", "source": characters, "target": characters, "shared_vocab": False}
    recipe = Recipe.of({"data": data, "model": table, "decode": decode or {"max_length": 14}})
    with torch.no_grad():  # outputs that differ from source to source
        for block in lively(model, end=9.0).decoder.stack.layers:
            block.self_attn.q_proj.weight.mul_(3.0)
            block.cross_attn.q_proj.weight.mul_(3.0)
            block.cross_attn.output_weight.mul_(0.5)
    return Predictor(model, recipe, (source,), target)


def image_classifier() -> Predictor:
    table = {"encoder": VIT, "pool": {"kind": "attention", "heads": 2}}
    labels = Labels(["round", "square", "</script>"])
    torch.manual_seed(1)
    model = regard.build({**table, "num_labels": labels.size}).eval()
    source, target = (
        {"kind": "image", "column": "1", "image_resize": "bilinear"},
        {"kind": "label", "column": "2"},
    )
    data = {"train": "x.tsv", "source": source, "target": target}
    recipe = Recipe.of({"data": data, "model": table})
    return Predictor(model, recipe, (None,), labels)


CONSTRAINED = {"max_length": 30, "max_length_ratio": 0.8, "min_length": 5, "no_repeat_ngram_size": 2,
               "repetition_penalty": 1.2}  # fmt: skip
# Options of [decode] that a page has as well, each with a value that is not its default.
HONOURED = {
    "max_length": 9,
    "max_length_ratio": 0.6,
    "min_length": 5,
    "min_length_ratio": 0.5,
    "length_penalty": 0.3,
    "early_stopping": True,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.4,
    "max_source_length": 40,
}
PAGES: dict[str, tuple[Callable[[], Predictor], dict[str, Any]]] = {
    "dates": (date_model, {}),
    "dates, trained": (lambda: regard.load(SHIPPED), {}),
    "dates int8": (date_model, {"quantization": "int8"}),
    "dates honoured": (lambda: date_model().with_decode(**HONOURED), {}),
    "dates constrained": (lambda: date_model(CONSTRAINED), {}),
    **{
        name: (make, {})
        for name, (make, _) in PREDICTORS.items()
        if name not in ("int8", "masked language model", "label and text")
    },
    "running text": (lambda: seeded(lambda: predictors.language_model(context_length=12)), {}),
    "image classifier": (image_classifier, {}),
    **{name: (make, {}) for name, make in page_series.SERIES.items()},
}


def write_program(folder: Path, kind: str, name: str) -> None:
    """A member of the contract family as a program, with inputs and the outputs that PyTorch computes from them.

    Transformers have one layer, except for the plain one: the time of an export grows with the operators of a graph.
    """
    before = models.SMALL
    try:
        models.SMALL = before if name == "transformer" else replace(before, layers=1)
        plain = graph(kind, name)
    finally:
        models.SMALL = before
    made = marked(plain, attention_sites(plain))
    path, weights = folder / f"{kind} {name}.onnx", WeightBytes(None)
    write_graph(made, path)
    torch.manual_seed(2)
    given = {each.name: _random(each.name, each.example()) for each in made.inputs}
    with torch.no_grad():
        wanted = made.run(given)
    tables = {"program": program(path, weights), "feeds": _tables(given), "wanted": _tables(wanted)}
    (folder / f"{kind} {name}.weights").write_bytes(b"".join(weights.parts))
    with atomic_file(folder / f"{kind} {name}.json") as file:
        file.write(json.dumps(tables).encode())


def _random(name: str, example: torch.Tensor) -> torch.Tensor:
    if example.is_floating_point():
        return torch.randn_like(example)
    return example if "mask" in name else torch.randint(0, 4, example.shape)


def _tables(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        name: {
            "type": "f" if x.is_floating_point() else "i",
            "shape": list(x.shape),
            "values": x.flatten().tolist(),
        }
        for name, x in tensors.items()
    }


def export(folder: Path, kind: str, name: str) -> None:
    """A page, or a member of the family ("encoder" or "decoder") as a program."""
    if kind == "page":
        make, options = PAGES[name]
        regard.export(make(), "page", folder / f"page {name}.html", **options)
    else:
        write_program(folder, kind, name)
