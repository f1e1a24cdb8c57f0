"""`regard.align`: word alignments of texts and their translations, from cross-attention."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from regard.api.look import check_no_search_options
from regard.api.predict import predict
from regard.core.errors import InputTooLong, InvalidArgument, InvalidData
from regard.data.fields.text import tokenizer_of
from regard.data.text import lines, parallel
from regard.data.tokenizer import Tokenizer
from regard.evaluation.alignment_error import Agreement, read_links
from regard.inference.load import load
from regard.inference.markup import MarkedText, extract_tags, insert_tags
from regard.inference.predictor import Predictor
from regard.interpret.alignment import ALL_HEADS, STEPS, Alignment, AlignmentHeads, TokenizedPair
from regard.interpret.output_attention import require_cross_attention

# A text, its translation, the tokens of the translation, and why the text was refused.
SentencePair = tuple[str, str, Sequence[int], str | None]


def align(
    model: str | Path | Predictor,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
    *,
    heads: AlignmentHeads = ALL_HEADS,
    truncate: bool = False,
    skip_too_long: bool = False,
    **options: Any,
) -> Iterator[Alignment]:
    """Word alignments from cross-attention, in order: of each source with its target,
    or with the model's own output.

    model      a run, a checkpoint, or a loaded model
    sources    texts, whose words are separated by white space
    targets    their translations; None: the model's outputs
    heads      the layer, the head and the step whose weights are used; default: the mean over all
               of them
    truncate   drop the end of a source that is too long, which is refused otherwise; a target that is
               too long always is
    skip_too_long   align no word of such a text and say why in its alignment, instead of refusing
                    all texts
    options    keys of [decode], for the search of outputs

    Each output word is linked with the source word that has its largest weight.
    """
    predictor = load(model)
    vocabularies = check(predictor, heads)
    if targets is not None:
        check_no_search_options(options)
    if options.get("num_hypotheses") not in (None, 1):
        remedy = "Leave it out: the best output is aligned."
        raise InvalidArgument(
            "num_hypotheses", wanted="1", got=repr(options["num_hypotheses"]), remedy=remedy
        )
    limits = {"truncate": truncate, "max_source_length": options.get("max_source_length")}
    longest = limits["max_source_length"] or predictor.recipe.decode.max_source_length
    pairs: Iterator[SentencePair]
    if targets is None:
        options |= {"truncate": truncate, "skip_too_long": skip_too_long}
        generated = predict(predictor, sources, **options)
        pairs = ((line, one.text, one.token_ids, one.refused) for line, (one, *_) in generated)
    else:
        pairs = _given_pairs(sources, targets, vocabularies[1])
    for line, (source, output, ids, refused) in enumerate(pairs, 1):
        pair = TokenizedPair.of(source, output, ids, vocabularies, given=targets is not None)
        weights = []
        if refused is None:
            try:
                if targets is not None:
                    _check_length(ids, longest, line)
                weights = _weights(predictor, pair, heads.layer, line=line, **limits)
            except InputTooLong as error:
                if not skip_too_long:
                    raise
                refused = str(error)
        yield replace(pair.aligned(weights, heads), refused=refused)


def with_references(
    alignments: Iterable[Alignment], references: str | Path, agreement: Agreement
) -> Iterator[Alignment]:
    """The same alignments, while `agreement` counts the links they share with those in a file,
    line by line.

    All reference links of a text that was too long are missed.
    """
    for number, (each, line) in enumerate(zip_longest(alignments, lines(references)), 1):
        if each is None or line is None:
            got = "more" if each is None else "fewer"
            remedy = "Each line must be the reference of the line of its number."
            raise InvalidData(
                references, number, wanted="a line for each source", got=got, remedy=remedy
            )
        # There may be no output whose words the links could be compared with.
        sizes = (sys.maxsize, sys.maxsize)
        if each.refused is None:
            sizes = each.sizes
        agreement.add(each.links, read_links(line, sizes, references, number))
        yield each


def with_markup(
    model: str | Path | Predictor,
    texts: Iterable[str],
    *,
    heads: AlignmentHeads = ALL_HEADS,
    truncate: bool = False,
    skip_too_long: bool = False,
    **options: Any,
) -> Iterator[str]:
    """Translations of texts with inline tags, as <b>these</b>, in order.

    Tags enclose the words aligned with theirs.

    model, heads, truncate, options   as of `regard.align`
    texts                             with tags
    skip_too_long                     give a text that is too long an empty output, instead of
                                      refusing all texts

    `regard.inference.markup` documents the subset of HTML, and where a tag goes that no word is
    aligned with.
    """
    found = with_markup_or_reason(
        model, texts, heads=heads, truncate=truncate, skip_too_long=skip_too_long, **options
    )
    for text, _ in found:
        yield text


def with_markup_or_reason(
    model: str | Path | Predictor,
    texts: Iterable[str],
    *,
    heads: AlignmentHeads = ALL_HEADS,
    **options: Any,
) -> Iterator[tuple[str, str | None]]:
    """As `with_markup`, each translation with the reason why its text was refused, if it was."""
    predictor = load(model)
    _, target = check(predictor, heads)
    pending: deque[MarkedText] = deque()  # as many as `align` reads ahead

    def plain_texts() -> Iterator[str]:
        for number, text in enumerate(texts, 1):
            marked = extract_tags(text, f"line {number}")
            pending.append(marked)
            yield marked.text

    for each in align(predictor, plain_texts(), heads=heads, **options):
        marked = pending.popleft()
        if each.refused is not None:
            yield "", each.refused
            continue
        spans = target.spans(each.output)
        yield insert_tags(marked, each.output, spans, each.origins), None


def choose(
    model: str | Path | Predictor, files: Sequence[str | Path]
) -> tuple[AlignmentHeads, Agreement]:
    """The heads and the step with the lowest alignment error rate: files of sources,
    targets and reference links.

    Candidates are those of `head_agreements`; of equal ones the first wins.
    """
    agreements = head_agreements(load(model), files)
    best = min(agreements, key=lambda heads: agreements[heads].error_rate)
    return best, agreements[best]


def head_agreements(
    predictor: Predictor, files: Sequence[str | Path]
) -> dict[AlignmentHeads, Agreement]:
    """The agreement with reference links of the mean of all heads,
    the mean of each layer and every head, at each step.

    files   sources, targets and reference links
    """
    last = deque(agreements_by_line(predictor, files), maxlen=1)
    agreements = last[0] if last else {}
    if not any(each.sure for each in agreements.values()):
        wanted = "links that are sure to be right"
        got = f"none in {files[2]}"
        raise InvalidArgument("choose", wanted=wanted, got=got, remedy="0-0 is one.")
    return agreements


def agreements_by_line(
    predictor: Predictor, files: Sequence[str | Path]
) -> Iterator[dict[AlignmentHeads, Agreement]]:
    """As `head_agreements`, after each line of the files: one dictionary,
    to which the next line adds.
    """
    vocabularies = check(predictor)
    layers = list(enumerate(_head_counts(predictor), 1))
    candidates: list[tuple[int | None, int | None]] = [
        (None, None),
        *((layer, None) for layer, _ in layers),
    ]
    candidates += [(layer, head) for layer, count in layers for head in range(count)]
    agreements = {
        AlignmentHeads(layer, head, step): Agreement()
        for layer, head in candidates
        for step in STEPS
    }
    for number, (source, target, links) in enumerate(parallel(files), 1):
        ids = vocabularies[1].special_tokens.output(vocabularies[1].encode(target))
        _check_length(ids, predictor.recipe.decode.max_source_length, number)
        pair = TokenizedPair.of(source, target, ids, vocabularies, given=True)
        reference = read_links(
            links, (len(pair.source_words), len(pair.output_words)), files[2], number
        )
        weights = _weights(predictor, pair, None, line=number)
        for heads, agreement in agreements.items():
            chosen = weights
            if heads.layer is not None:
                chosen = weights[heads.layer - 1 : heads.layer]
            agreement.add(pair.aligned(chosen, heads).links, reference)
        yield agreements


def check(predictor: Predictor, heads: AlignmentHeads = ALL_HEADS) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers.

    A model without cross-attention from text to text is refused, as are heads it does not have.
    """
    source = tokenizer_of(predictor.source)
    target = tokenizer_of(predictor.target)
    layers = _head_counts(predictor)
    if source is None or target is None or not layers:
        raise InvalidArgument(
            "model",
            wanted="a model from text to text whose decoder has cross-attention",
            got=str(predictor.folder or type(predictor.model).__name__),
            remedy=(
                "Language models, classifiers, captioners, ensembles and decoders without "
                "attention align no words."
            ),
        )
    counts = dict(enumerate(layers, 1))
    if heads.layer is not None and (heads.head or 0) >= counts.get(heads.layer, 0):
        known = ", ".join(f"{layer}.0 to {layer}.{count - 1}" for layer, count in counts.items())
        raise InvalidArgument(
            "head", wanted=f"one of {known}", got=str(heads), remedy="Or a layer, or leave it out."
        )
    return source, target


def _head_counts(predictor: Predictor) -> list[int]:
    """The number of heads of each cross-attention layer."""
    model = predictor.model.generator
    if model is None:
        return []
    return [module.heads for module in model.decoder.cross_attentions]


def _weights(
    predictor: Predictor, pair: TokenizedPair, layer: int | None, **limits: Any
) -> list[Any]:
    ids, batch = predictor.encode(pair.source, **limits)
    return pair.weights(require_cross_attention("model", predictor.model), batch, len(ids), layer)


def _check_length(ids: Sequence[int], limit: int, line: int) -> None:
    """Refuse a target that is longer than a source may be.

    There is a weight for each pair of tokens.
    """
    if len(ids) > limit:
        remedy = "Split it, or raise decode.max_source_length."
        raise InputTooLong(f"line {line}: target", len(ids), limit, remedy)


def _given_pairs(
    sources: Iterable[str], targets: Iterable[str], vocabulary: Tokenizer
) -> Iterator[SentencePair]:
    for number, (source, target) in enumerate(zip_longest(sources, targets), 1):
        if source is None or target is None:
            got = "no source" if source is None else "no target"
            remedy = "Each target must belong to the source of its number."
            raise InvalidArgument(
                f"line {number}", wanted="a source and a target", got=got, remedy=remedy
            )
        yield source, target, vocabulary.special_tokens.output(vocabulary.encode(target)), None
