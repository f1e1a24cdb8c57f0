"""The settings of a page's model, except its programs: sources, target, vocabularies, search, attention modules."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast

import torch

from regard.data.corpus import VocabularyType
from regard.data.fields.base import Field
from regard.data.fields.image import require_image
from regard.data.fields.text import require_tokenizer, tokenizer_of
from regard.data.images import image_token_cost
from regard.data.statistics import Statistics
from regard.data.tokenizer import Tokenizer
from regard.generation import config as decode_options
from regard.generation.config import DecodeConfig
from regard.generation.request import position_limit
from regard.inference.predictor import Predictor
from regard.interop.page.tokenizer_tables import tokenizer_table
from regard.interpret.sites import attention_sites
from regard.model.inputs import input_stride
from regard.model.interfaces import Encoder
from regard.model.multi_source import source_encoders
from regard.tasks.vector_task import decimals_of


def options(use: str | None) -> tuple[str, ...]:
    """The options of [decode] that a page uses in this way, as their declarations say."""
    return tuple(each.name for each in fields(DecodeConfig) if each.metadata.get("page") == use)


WRITTEN = options(decode_options.WRITTEN)
CHOSEN = options(decode_options.CHOSEN)
# Refused where they differ from the default, also what is added later. Logits processors are
# refused by their names.
MISSING = tuple(name for name in options(None) if name != "logits_processors")
# Where an output follows from one pass: a limit of the sources, options of batches and of an engine
# that generates, and two with which a predictor says how many outputs it gives.
OF_ONE_PASS = ("max_source_length", "batch_tokens", "precision", "quantization",
               "beam_size", "num_hypotheses")  # fmt: skip
MISSING_IN_ONE_PASS = tuple(
    each.name
    for each in fields(DecodeConfig)
    if each.name not in (*OF_ONE_PASS, "logits_processors")
)


class ModelSettings:
    """Collects the settings; a tokenizer that source and target share is written once."""

    def __init__(self, model: Predictor) -> None:
        self.model = model
        self.tokenizers: list[dict[str, Any]] = []
        self._numbers: dict[tuple[str, bool], int] = {}

    def as_dict(
        self, title: str, causal_sites: Sequence[str], examples: Sequence[Sequence[str]] = ()
    ) -> dict[str, Any]:
        # Sources and target come first: they collect the tokenizers.
        settings = {
            "version": 1,
            "title": title,
            "sources": self._sources(),
            "target": self._target(),
            "sites": self._sites(causal_sites),
            "tokenizers": self.tokenizers,
            "examples": examples,
        }
        return settings | self._search()

    def _tokenizer(self, tokenizer: Tokenizer, *, running: bool = False) -> int:
        key = (tokenizer.hash, running)
        if key not in self._numbers:
            self._numbers[key] = len(self.tokenizers)
            self.tokenizers.append(tokenizer_table(tokenizer, running=running))
        return self._numbers[key]

    def _sources(self) -> list[dict[str, Any]]:
        model = self.model
        encoders = source_encoders(self.model.model.encoder)
        parts = zip(model.recipe.data.source_fields, model.sources, encoders, strict=True)
        return [self._source(*each) for each in parts]

    def _source(
        self, field: Field, vocabulary: VocabularyType | None, encoder: Encoder
    ) -> dict[str, Any]:
        if field.resizing is not None:
            field = require_image(field)
            with torch.no_grad():
                memory = encoder(torch.zeros(1, 3, field.image_size, field.image_size))
            assert memory.grid is not None
            return {
                "kind": "image",
                "size": field.image_size,
                "resize": field.image_resize,
                "crop_from": field.image_crop_from,
                "mean": field.image_mean,
                "std": field.image_std,
                "cost": image_token_cost(field.image_size),
                "grid": memory.grid,
                "units": memory.cls_tokens,
            }
        if reads_vectors(field, vocabulary):
            return self._vectors(field, cast(Statistics, vocabulary), encoder)
        tokenizer = tokenizer_of(vocabulary)
        if tokenizer is None:
            assert vocabulary is not None
            return {"kind": "label", "labels": vocabulary.tokens()}
        special = tokenizer.special_tokens
        limit = self.model.recipe.decode.max_source_length
        positions = position_limit(encoder)
        if positions is not None:
            # As in `SourceInput.truncate`.
            limit = min(limit, positions - len(special.source(())) - 1)
        return {
            "kind": "text",
            "tokenizer": self._tokenizer(tokenizer),
            "prefix": special.source_prefix,
            "suffix": special.source_suffix,
            "limit": limit,
            "units": encoder.cls_tokens,
        }

    def _vectors(self, field: Field, statistics: Statistics, encoder: Encoder) -> dict[str, Any]:
        """A source of vectors: its statistics, its limits, and how a page reads a table of them."""
        window = vector_window(self.model)
        stride = input_stride(encoder)
        limit = self.model.recipe.decode.max_source_length
        positions = position_limit(encoder)
        if positions is not None:
            # As in `SourceInput.truncate`: a state may be that of several vectors.
            limit = min(limit, (positions - encoder.cls_tokens) * stride)
        series = self.model.recipe.data.series
        table = None
        if series is not None:
            names = ("time", "group", "columns", "targets", "calendar", "gaps")
            table = {name: getattr(series, name) for name in names}
        layout = {
            "size": statistics.size,
            "missing": not field.refuses_missing,
            "window": window,
            "series": table,
        }
        return {
            "kind": "vectors",
            "mean": statistics.mean,
            "scale": statistics.scale,
            "names": statistics.names,
            "separate": self.model.task.separate_channels(self.model.model),
            "ranges": field.usual_ranges(statistics),
            "window": window,
            "limit": limit,
            "stride": stride,
            "units": encoder.cls_tokens,
            "layout": layout,
        }

    def _target(self) -> dict[str, Any]:
        field = self.model.recipe.data.target
        if reads_vectors(field, self.model.target):
            statistics = cast(Statistics, self.model.target)
            return {
                "kind": "vectors",
                "mean": statistics.mean,
                "scale": statistics.scale,
                "decimals": decimals_of(statistics),
                "follows": self.model.task.continues_source,
            }
        target = tokenizer_of(self.model.target)
        if target is None:
            return {"kind": "label", "labels": self.model.target.tokens()}
        number = self._tokenizer(target, running=self.model.running_text)
        return {"kind": "text", "tokenizer": number}

    def _search(self) -> dict[str, Any]:
        """How outputs are searched for; nothing for a classifier."""
        model = self.model
        seq2seq = self.model.model.generator
        if seq2seq is None:
            return {}
        special = require_tokenizer(model.target, "model").special_tokens
        config = model.recipe.decode
        running = model.running_text
        window = None
        if not seq2seq.decoder.extrapolates:
            window = model.recipe.data.context_length
        positions = None
        if window is None:
            positions = position_limit(seq2seq.decoder)
        limit = config.max_source_length
        if positions is not None and not running:
            limit = min(limit, positions - len(special.source(())) - 1)
        decode = {name: getattr(config, name) for name in WRITTEN}
        decode["first"] = special.end if running else special.start
        decode["ends"] = not running
        decode["bounded"] = model.recipe.data.bounds_outputs
        decode["window"] = window
        decode["positions"] = positions
        decode["prompt_limit"] = limit
        return {"decode": decode, "special": {"end": special.end, "suppressed": special.suppressed}}

    def _sites(self, causal: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {
                "name": site.name,
                "kind": site.kind,
                "part": site.part,
                "layer": site.layer,
                "source": site.source,
                "query_side": site.query_side,
                "key_side": site.key_side,
                "query_sources": site.query_sources,
                "heads": module.heads,
                "causal": site.name in causal,
            }
            for module, site in attention_sites(self.model.model).items()
        ]


def reads_vectors(field: Field, vocabulary: VocabularyType | None) -> bool:
    """Whether values of a field are sequences of vectors."""
    return vocabulary is not None and field.usual_ranges(vocabulary) is not None


def vector_window(model: Predictor) -> int | None:
    """How many vectors a model reads, where all of its sources must have as many."""
    length = model.task.source_sizes(model.sources).get("source_length")
    return None if length is None else int(length)
