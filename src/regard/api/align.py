"""Which word of its source each word of an output comes from, as the attention of a translator tells."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import torch

from regard.api.look import look, no_search
from regard.api.predict import predict_lines
from regard.core.errors import InvalidArgument, InvalidData
from regard.core.shapes import Float, Tensor
from regard.data.text import lines, parallel
from regard.data.tokenizer import END, UNKNOWN, Tokenizer
from regard.decoding.ensemble import Ensemble
from regard.evaluation.alignment_error import Agreement, Link, pharaoh, read_links
from regard.inference.load import load
from regard.inference.markup import MarkedText, extract_tags, insert_tags
from regard.inference.predictor import Predictor
from regard.interpret.sites import places
from regard.model.seq2seq import Seq2Seq

Step = Literal["says", "reads"]
STEPS: tuple[Step, ...] = ("says", "reads")


@dataclass(frozen=True)
class AlignmentHeads:
    """Whose weights count: a head's, the mean of a layer's heads, or of all; at the step that says a word, or reads it.

    Recurrences and convolutions look for the word that they are about to say. The lower layers of a Transformer may
    look for the one they have just read (https://arxiv.org/abs/2004.14837): `choose` finds out.
    """

    layer: int | None = None  # from 1
    head: int | None = None  # from 0
    step: Step = "says"

    @staticmethod
    def of(told: str | None, step: str = "says") -> "AlignmentHeads":
        """From "2" or "2.0"; None for all."""
        found = re.fullmatch(r"([1-9]\d*)(?:\.(\d+))?", told or "", re.ASCII)
        if told is not None and found is None:
            wanted, remedy = "a layer, or a layer and a head: 2, or 2.0", "Layers count from 1, heads from 0."
            raise InvalidArgument("head", wanted=wanted, got=repr(told), remedy=remedy)
        for known in STEPS:
            if known == step:
                layer, head = (None, None) if found is None else found.groups()
                return AlignmentHeads(None if layer is None else int(layer), None if head is None else int(head), known)
        remedy = "Leave it out for the step that says a word."
        raise InvalidArgument("step", wanted=" or ".join(STEPS), got=repr(step), remedy=remedy)

    def __str__(self) -> str:
        whose = "all heads" if self.layer is None else f"--head {self.layer}"
        return f"{whose}{'' if self.head is None else f'.{self.head}'} --step {self.step}"


ALL = AlignmentHeads()


@dataclass(frozen=True)
class Alignment:
    """A text, its translation, and for each word of that the word of the text it comes from."""

    source: str
    output: str
    source_words: tuple[str, ...]
    output_words: tuple[str, ...]
    origins: tuple[int | None, ...]

    @property
    def links(self) -> list[Link]:
        """Word of the source, word of the output, from 0."""
        return sorted((origin, word) for word, origin in enumerate(self.origins) if origin is not None)

    @property
    def sizes(self) -> tuple[int, int]:
        """Words of the source, and of the output."""
        return len(self.source_words), len(self.output_words)

    def __str__(self) -> str:
        """In Pharaoh's format."""
        return pharaoh(self.links)


def align(
    model: str | Path | Predictor,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
    *,
    heads: AlignmentHeads = ALL,
    truncate: bool = False,
    **options: Any,
) -> Iterator[Alignment]:
    """Alignments line by line, in order: of each source with its target, or with what the model makes of it.

    Words are what spaces part. Each word of an output is linked with the word of its source that it looks at most; the
    end of the source is none. Options are those of a search for outputs.
    """
    predictor = model if isinstance(model, Predictor) else load(model)
    check(predictor, heads)
    if targets is not None:
        no_search(options)
    if options.get("num_hypotheses") not in (None, 1):
        remedy = "Leave it out: the best output is aligned."
        raise InvalidArgument("num_hypotheses", wanted="1", got=repr(options["num_hypotheses"]), remedy=remedy)
    reading = {"truncate": truncate, "max_source_length": options.get("max_source_length")}
    for line, (source, output, ids) in enumerate(_pairs(predictor, sources, targets, truncate, options), 1):
        pair = _Pair.of(predictor, source, output, ids, given=targets is not None)
        yield pair.aligned(pair.weights(predictor, heads.layer, line=line, **reading), heads)


def beside(found: Iterable[Alignment], references: str | Path, r_drop: Agreement) -> Iterator[Alignment]:
    """The same, while the agreement counts how they meet the links in a file, line for line."""
    for number, (each, line) in enumerate(zip_longest(found, lines(references)), 1):
        if each is None or line is None:
            less = "more" if each is None else "fewer"
            remedy = "Each line must be the reference of the line of its number."
            raise InvalidData(references, number, wanted="a line for each source", got=less, remedy=remedy)
        r_drop.add(each.links, read_links(line, each.sizes, references, number))
        yield each


def with_markup(
    model: str | Path | Predictor,
    texts: Iterable[str],
    *,
    heads: AlignmentHeads = ALL,
    truncate: bool = False,
    **options: Any,
) -> Iterator[str]:
    """Translations of texts with inline tags, <b>so</b>, in order; tags are around the words that come from theirs.

    Texts are HTML in small: `regard.inference.markup` tells how, and where a tag goes that no word is left of.
    """
    predictor = model if isinstance(model, Predictor) else load(model)
    check(predictor, heads)
    vocabulary = predictor.target
    assert isinstance(vocabulary, Tokenizer)
    waiting: deque[MarkedText] = deque()  # as many as are read ahead

    def without() -> Iterator[str]:
        for number, text in enumerate(texts, 1):
            marked = extract_tags(text, f"line {number}")
            waiting.append(marked)
            yield marked.text

    for each in align(predictor, without(), heads=heads, truncate=truncate, **options):
        yield insert_tags(waiting.popleft(), each.output, vocabulary.spans(each.output), each.origins)


def choose(model: str | Path | Predictor, files: Sequence[str | Path]) -> tuple[AlignmentHeads, Agreement]:
    """The heads and the step whose alignments are nearest to references: files of sources, targets and links.

    Every head by itself, the mean of each layer, and that of all; of equal ones the first of these, from the last.
    """
    predictor = model if isinstance(model, Predictor) else load(model)
    check(predictor)
    layers = [(layer + 1, count) for layer, count in enumerate(_layers(predictor))]
    names: list[tuple[int | None, int | None]] = [(None, None), *((layer, None) for layer, _ in layers)]
    names += [(layer, head) for layer, count in layers for head in range(count)]
    found = {AlignmentHeads(layer, head, step): Agreement() for layer, head in names for step in STEPS}
    vocabulary = predictor.target
    assert isinstance(vocabulary, Tokenizer)
    for number, (source, target, told) in enumerate(parallel(files), 1):
        pair = _Pair.of(predictor, source, target, [*vocabulary.encode(target), END], given=True)
        reference = read_links(told, (len(pair.source_words), len(pair.output_words)), files[2], number)
        weights = pair.weights(predictor, None, line=number)
        for heads, r_drop in found.items():
            chosen = weights if heads.layer is None else weights[heads.layer - 1 : heads.layer]
            r_drop.add(pair.aligned(chosen, heads).links, reference)
    best = min(found, key=lambda heads: found[heads].error_rate)
    if not found[best].sure:
        raise InvalidArgument(
            "choose", wanted="links that are sure to be right", got=f"none in {files[2]}", remedy="0-0 is one."
        )
    return best, found[best]


def check(predictor: Predictor, heads: AlignmentHeads = ALL) -> None:
    """Refuse a model whose attention aligns no words, and heads that it has not."""
    model = predictor.model
    texts = isinstance(predictor.source, Tokenizer) and isinstance(predictor.target, Tokenizer)
    one = isinstance(model, Seq2Seq) and not isinstance(model, Ensemble)
    if not texts or not one or not _layers(predictor):
        raise InvalidArgument(
            "model",
            wanted="one that makes a text of a text, and looks at the one as it says the other",
            got=str(predictor.folder or type(model).__name__),
            remedy="Language models, classifiers, captioners, several models as one and decoders without attention "
            "align no words.",
        )
    if heads.layer is None:
        return
    layers = _layers(predictor)
    there = 0 < heads.layer <= len(layers) and (heads.head is None or heads.head < layers[heads.layer - 1])
    if not there:
        counts = ", ".join(f"{layer}.0 to {layer}.{count - 1}" for layer, count in enumerate(layers, 1))
        raise InvalidArgument("head", wanted=f"one of {counts}", got=str(heads), remedy="Or a layer, or leave it out.")


def _layers(predictor: Predictor) -> list[int]:
    """How many heads each look at the source has, first to last."""
    cross_attentions = [module for module, place in places(predictor.model).items() if place.kind == "cross"]
    return [int(getattr(module, "heads", 1)) for module in cross_attentions]


def _pairs(
    predictor: Predictor, sources: Iterable[str], targets: Iterable[str] | None, truncate: bool, options: dict[str, Any]
) -> Iterator[tuple[str, str, Sequence[int]]]:
    """Texts with their translations, and the tokens of these."""
    if targets is None:
        for line, outputs in predict_lines(predictor, sources, truncate=truncate, **options):
            yield line, outputs[0].text, outputs[0].token_ids
        return
    vocabulary = predictor.target
    assert isinstance(vocabulary, Tokenizer)
    for number, (source, target) in enumerate(zip_longest(sources, targets), 1):
        if source is None or target is None:
            less = "no source" if source is None else "no target"
            remedy = "Each target must belong to the source of its number."
            raise InvalidArgument(f"line {number}", wanted="a source and a target", got=less, remedy=remedy)
        yield source, target, [*vocabulary.encode(target), END]


@dataclass(frozen=True)
class _Pair:
    """A text and a translation as words and as tokens, and which word each token is of."""

    source: str
    output: str
    source_words: tuple[str, ...]
    output_words: tuple[str, ...]
    ids: Sequence[int]  # said
    read: Sequence[int | None]  # of each token of the source
    said: Sequence[int | None]

    @staticmethod
    def of(predictor: Predictor, source: str, output: str, ids: Sequence[int], *, given: bool) -> "_Pair":
        reads, says = predictor.source, predictor.target
        assert isinstance(reads, Tokenizer)
        assert isinstance(says, Tokenizer)
        source_words = tuple(source[a:b] for a, b in reads.spans(source))
        output_words = tuple(output[a:b] for a, b in says.spans(output))
        said = _of_a_text(says, ids) if given else says.places(ids)
        return _Pair(source, output, source_words, output_words, ids, _of_a_text(reads, reads.encode(source)), said)

    def weights(self, predictor: Predictor, layer: int | None, **reading: Any) -> list[Float[Tensor, "H T S"]]:
        """Of every look at the source, or of this layer's."""
        if not self.source_words or not self.output_words:
            return []
        numbers, batch = predictor.encode(self.source, **reading)
        found = look(predictor.model, batch, output=self.ids, layers=None if layer is None else [layer])
        each = [one.weights().cpu() for one in found.maps if one.kind == "cross"]
        units = each[0].shape[2] - len(numbers) - 1
        return [one[..., units : units + len(numbers)] for one in each]

    def aligned(self, weights: Sequence[Float[Tensor, "H T S"]], heads: AlignmentHeads) -> Alignment:
        """Each word of the output with the word of the source that it looks at most."""
        origins: tuple[int | None, ...] = (None,) * len(self.output_words)
        if weights:
            chosen = torch.cat(list(weights)) if heads.head is None else weights[0][heads.head : heads.head + 1]
            asking = self.said if heads.step == "says" else [None, *self.said[:-1]]
            by_words = _summed(chosen.mean(0), self.read, len(self.source_words))  # (T, words)
            by_words = _summed(by_words.mT, asking, len(self.output_words)).mT
            best, there = by_words.argmax(1).tolist(), (by_words.sum(1) > 0).tolist()
            origins = tuple(origin if any_ else None for origin, any_ in zip(best, there, strict=True))
        return Alignment(self.source, self.output, self.source_words, self.output_words, origins)


def _summed(weights: Float[Tensor, "N S"], words: Sequence[int | None], count: int) -> Float[Tensor, "N words"]:
    """Columns of tokens as columns of words."""
    into = [count if word is None or word >= count else word for word in words[: weights.shape[1]]]
    found = weights.new_zeros(weights.shape[0], count + 1)
    return found.index_add_(1, torch.tensor(into, dtype=torch.int64), weights)[:, :count]


def _of_a_text(vocabulary: Tokenizer, ids: Sequence[int]) -> list[int | None]:
    """The word of each token, where the text is given: one that the vocabulary does not know is a word of it, too."""
    if UNKNOWN not in ids:
        return vocabulary.places(ids)
    return [None if number == END else word for word, number in enumerate(ids)]
