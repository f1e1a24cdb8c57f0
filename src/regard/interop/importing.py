"""Turns a model folder of Hugging Face's transformers into a predictor, or into a checkpoint of Regard."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint import store
from regard.checkpoint.format import CARD, WEIGHTS, checkpoint_texts
from regard.core.config import Config
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe, Problem
from regard.data.corpus import SourceVocabularies
from regard.data.fields.base import make_field
from regard.data.fields.text import require_tokenizer
from regard.data.statistics import Statistics
from regard.data.vocabulary import Labels
from regard.generation.config import DecodeConfig
from regard.inference.predictor import Predictor
from regard.interop.generation import Generation, read_generation
from regard.interop.images import FILE as IMAGES, image_field
from regard.interop.pretrained import CONFIG, PretrainedFolder
from regard.interop.vocabularies import Vocabularies, read_vocabularies
from regard.model.build import build
from regard.model.model_config import SIZES
from regard.model.weights import weights_of
from regard.recipe.recipe import Recipe
from regard.recipe.toml_text import toml_lines

SAFETENSORS = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
}
TEXT = {"tokenizer": "pretrained"}
RECIPE = "recipe.toml"
RECIPE_HEAD = """\
# Continues the training of the model in this folder:
# regard train this/folder/recipe.toml --set 'data.train=[{}]' --out runs/mine
"""
FINE_TUNING = {"init_from": ".", "learning_rate": 2e-5, "warmup_steps": 100, "max_steps": 1000}
# The fields of targets that need more keys than their kind. The numbers of a regression are in their own units.
TARGETS = {"text": TEXT, "number": {"kind": "number", "normalize": False}}


class ImportedModel:
    """A model folder with its vocabularies and the recipe that describes it as a model of ours."""

    def __init__(self, folder: Path, *, pairs: bool = False) -> None:
        self.pretrained = PretrainedFolder(folder)
        self.pairs = pairs
        reads_text = self.pretrained.model.reads == ("tokens",)
        if pairs and not (self.pretrained.classifies and reads_text):
            raise InvalidArgument(
                "pairs",
                wanted="false for a model that is no classifier of texts",
                got="true",
                remedy="Leave it out.",
            )
        segments = getattr(self.pretrained.keys, "type_vocab_size", 1)
        if pairs and self.pretrained.architecture.doubles_separator and segments > 1:
            # Its tokenizer gives both texts the first segment, where ours are two.
            raise InvalidData(
                f"{folder / CONFIG}: type_vocab_size",
                wanted="1 for pairs of texts, as RoBERTa has",
                got=str(segments),
                remedy="Import it for single texts.",
            )
        model = self.pretrained.model
        self.generation: Generation = read_generation(
            folder, self.pretrained.config, has_source=bool(model.encoders)
        )
        self.sources, self.target = self._vocabularies()
        self.recipe = self._recipe()

    def _vocabularies(self) -> Vocabularies:
        pretrained = self.pretrained
        if pretrained.model.reads == ("image",) and pretrained.classifies:
            return (None,), _outputs_of(pretrained)
        sources, target = read_vocabularies(pretrained, self.generation)
        if pretrained.classifies or pretrained.tags_words:
            return self._texts(sources), _outputs_of(pretrained)
        return sources, target

    def _texts(self, sources: SourceVocabularies) -> SourceVocabularies:
        """The tokenizer of the text, or the tokenizers of both texts of a pair. The second text continues the first."""
        if not self.pairs:
            return sources
        (only,) = sources
        first = require_tokenizer(only, "model")
        special = first.special_tokens
        # [CLS] one [SEP] other [SEP], or <s> one </s></s> other </s>
        between: tuple[int, ...] = ()
        if self.pretrained.architecture.doubles_separator:
            between = special.source_suffix
        second = first.with_special_tokens(replace(special, source_prefix=between))
        return first, second

    def _recipe(self) -> Recipe:
        pretrained = self.pretrained
        folder = self.pretrained.folder
        kind = pretrained.target_kind
        data: dict[str, Any] = {"target": TARGETS.get(kind, {"kind": kind})}
        if pretrained.tags_words:
            data["source"] = {"kind": "words", **TEXT}
        elif pretrained.model.reads == ("image",):
            data["source"] = image_field(folder, pretrained.config)
        elif self.pairs:
            data |= {"sources": [TEXT, TEXT], "join_sources": True, "shared_vocab": False}
        elif self.sources:
            data["source"] = TEXT
            if data["target"] == TEXT and self.sources[0] is not self.target:
                data["shared_vocab"] = False
        table = {key: value for key, value in pretrained.table.items() if key not in SIZES}
        decode = dict(self.generation.decode)
        longest = pretrained.architecture.max_source_length(pretrained.keys)
        if longest is not None and longest > DecodeConfig().max_source_length:
            decode["max_source_length"] = longest
        try:
            return Recipe.of({"data": data, "model": table, "decode": decode})
        except InvalidRecipe as error:
            raise InvalidRecipe([_in_file(problem, folder) for problem in error.problems]) from None

    def predictor(self, device: str, dtype: torch.dtype) -> Predictor:
        """The model in memory, which never holds the weights twice."""
        with _default_dtype(dtype):
            model = build(self.pretrained.table)
        own = weights_of(model)
        with torch.no_grad():
            for name, tensor in self.pretrained.weights():
                own[name].copy_(tensor)
        return Predictor(model.to(device).eval(), self.recipe, self.sources, self.target)

    def write(self, out: Path, dtype: torch.dtype | None, version: str) -> None:
        """Write a checkpoint of this version of Regard, one tensor after the other, by default in the file's dtype."""
        texts = checkpoint_texts(
            self.recipe.as_dict(),
            (self.sources, self.target),
            self.recipe.with_sizes(self.sources, self.target),
            version,
            self.recipe.extensions(),
        )
        texts[CARD] = _card(self.pretrained)
        texts[RECIPE] = self.fine_tuning()
        store.write(out, texts, {WEIGHTS: self._writer(dtype)})

    def fine_tuning(self) -> str:
        """A recipe that continues the training of the checkpoint in its folder, on files that the user names."""
        tables = self.recipe.as_dict()
        kept = ("source", "sources", "join_sources", "target", "shared_vocab")
        data = {}
        for key, value in tables["data"].items():
            if key in kept and value not in (None, False):
                data[key] = _changed_fields(value)
        decode = _changed(tables["decode"], DecodeConfig())
        recipe = {"data": data, "model": tables["model"], "train": FINE_TUNING, "decode": decode}
        files = '"TEXTS"'
        if data.get("source") is not None:
            files = '"SOURCES", "TARGETS"'
        if self.pairs:
            files = '"ONE_TEXTS", "OTHER_TEXTS", "TARGETS"'
        return RECIPE_HEAD.format(files) + "\n".join(toml_lines(recipe)) + "\n"

    def _writer(self, dtype: torch.dtype | None) -> Callable[[Path], None]:
        pretrained = self.pretrained

        def write(path: Path) -> None:
            # The layout of safetensors: the size of the header, the header, and the tensors.
            header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
            end = 0
            for name, shape, stored in pretrained.tensors_of_ours(dtype):
                begin = end
                end = end + shape.numel() * stored.itemsize
                header[name] = {
                    "dtype": SAFETENSORS[stored],
                    "shape": list(shape),
                    "data_offsets": [begin, end],
                }
            encoded = json.dumps(header).encode()
            encoded += b" " * (-len(encoded) % 8)
            with path.open("wb") as file:
                file.write(len(encoded).to_bytes(8, "little") + encoded)
                for _, tensor in pretrained.weights(dtype):
                    file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)

        return write


def _outputs_of(pretrained: PretrainedFolder) -> Labels | Statistics:
    """The labels of a classifier, or the scale of the numbers of a regression, which are in their own units."""
    if pretrained.target_kind != "number":
        return Labels(pretrained.labels, ordered=True)
    count = len(pretrained.labels)
    return Statistics([0.0] * count, [1.0] * count)


def _in_file(problem: Problem, folder: Path) -> Problem:
    """A problem of the recipe as one of the folder; keys of images come from their own file."""
    key = problem.key.removeprefix("data.source.")
    where = f"{folder}: {problem.key}"
    if key.startswith("image_"):
        where = f"{folder / IMAGES}: {key}"
    return replace(problem, key=where)


def _changed_fields(value: Any) -> Any:
    """Apply `_changed_field` to a field, or to each of several; other values stay as they are."""
    if isinstance(value, list | tuple):
        return [_changed_field(each) for each in value]
    if isinstance(value, dict):
        return _changed_field(value)
    return value


def _changed_field(table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a field with other values than the default of its kind, and the kind unless it is a text."""
    changed = _changed(table, make_field(table["kind"]))
    if table["kind"] == make_field().kind:
        return changed
    return {"kind": table["kind"], **changed}


def _changed(table: Mapping[str, Any], default: Config) -> dict[str, Any]:
    """The keys of a table with other values than the default."""
    return {key: value for key, value in table.items() if value != getattr(default, key)}


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _card(pretrained: PretrainedFolder) -> str:
    name = pretrained.config.get("_name_or_path") or pretrained.folder.name
    return (
        "---\nlibrary_name: regard\ntags: [regard, attention]\n---\n\n"
        f"# {str(name)[:200]}\n\nImported from a {pretrained.architecture.model_type} model of transformers; "
        f"its {CONFIG} says where it comes from.\n"
    )
