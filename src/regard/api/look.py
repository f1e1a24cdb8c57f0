"""`regard.look`: what a model attends to while it generates its output for an input, or is given one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import MultiSource, Tokens
from regard.core.shapes import Tensor
from regard.data.config import DataConfig
from regard.data.corpus import VocabularyType
from regard.data.example import Split
from regard.data.images import Pixels
from regard.data.sources import examples
from regard.data.special_tokens import DEFAULT_TOKENS
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Labels
from regard.decoding.config import DecodeConfig
from regard.decoding.request import Request, SearchTask
from regard.decoding.search import search
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.interpret.editing import (
    ForceTokens,
    editing,
    forced_tokens,
    refuse_output_edits,
    with_replaced_output,
    with_replaced_tokens,
)
from regard.interpret.edits import Edit, Edits, read_edits
from regard.interpret.look import Look
from regard.interpret.maps import ForwardPass
from regard.interpret.output_attention import coverage_reranker
from regard.interpret.record import LookInput, MapSelection, record, record_encoder, record_look
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.capture import Pick
from regard.model.eval_mode import evaluating
from regard.model.interfaces import Source
from regard.model.seq2seq import Model, Seq2Seq
from regard.recipe.load import locate_data
from regard.recipe.recipe import Recipe
from regard.recipe.trusted_paths import check_paths
from regard.views import html  # noqa: F401  enters the renderers of `Look.to_html`


def look(
    model: str | Path | Predictor | nn.Module,
    text: object,
    *,
    output: str | Sequence[int] | int | None = None,
    layers: Sequence[int] | None = None,
    heads: Pick = None,
    rows: Pick = None,
    words: bool = False,
    top: int | None = None,
    truncate: bool = False,
    edits: Edits | None = None,
    **options: Any,
) -> Look:
    """What a model attends to while it reads a text, or an image, and generates its output.

    model    a run, a checkpoint or a loaded model; or a bare model, which reads `Tokens`, a label or pixels (B = 1)
    output   the output to look at instead of the model's own: a text or a label; or token ids, as `Output.token_ids`.
             A language model continues the text; with output="" it reads the text to its end
    layers   only these layers, from 1
    heads    the heads that a map's methods return by default; `rows` likewise
    words    merge tokens into words
    top      keep only a summary of each map with the `top` largest weights of each row, computed during the forward
             pass: for inputs so long that the queries and keys of all layers do not fit into memory
    truncate a text that is too long, instead of refusing it
    edits    changes of the model's attention and tokens, in order (`regard.interpret.edits`): the output is that of the
             edited model, and so are its scores and weights
    options  of the search for an output: keys of a recipe's [decode], and arguments of `Predictor.outputs`

    Weights are exact, the output is the one the model generates anyway, and only what is asked for is computed.
    """
    model = load(model) if isinstance(model, str | Path) else model
    inner = model.model if isinstance(model, Predictor) else model
    if not isinstance(inner, Model) or not inner.inspectable:
        wanted = "one that regard.load or regard.build returns"
        remedy = "regard.capture_attention captures the attention of any module."
        raise InvalidArgument("model", wanted=wanted, got=type(inner).__name__, remedy=remedy)
    edited = read_edits(edits)
    with evaluating(inner):
        if isinstance(model, Predictor):
            forward, given = _of_predictor(model, text, output, truncate, edited, options)
        else:
            forward, given = _of_bare_model(inner, text, output, edited, options)
        return record_look(forward, given, MapSelection(layers, rows, heads, words, top), edited)


def look_at_output(
    model: Predictor,
    text: object,
    output: Sequence[int],
    edits: Sequence[Edit],
    encoded: Look | None = None,
) -> tuple[Look, Tensor]:
    """`look` at these token ids, and the logits; an encoder that ran for `encoded` does not run again (`record`)."""
    with evaluating(model.model):
        forward, given = _of_predictor(model, text, output, False, edits, {})
        return record(forward, given, MapSelection(), edits, encoded)


def look_at_sources(
    model: Predictor, text: object, output: Sequence[int], edits: Sequence[Edit]
) -> Look:
    """What the encoder attends to under edits, for `look_at_output`; `output` is any that the edits are of."""
    with evaluating(model.model):
        forward, given = _of_predictor(model, text, output, False, edits, {})
        return record_encoder(forward, given, MapSelection(), edits)


def _of_predictor(
    model: Predictor,
    text: Any,
    output: Any,
    truncate: bool,
    edits: Sequence[Edit],
    options: dict[str, Any],
) -> tuple[ForwardPass, LookInput]:
    _check_output(model, output)
    inner, device = model.model, next(model.model.parameters()).device
    seq2seq = inner.as_seq2seq()
    decode = {
        name: value for name, value in options.items() if name in DecodeConfig.__dataclass_fields__
    }
    ids, batch = model.encode(text, truncate=truncate, **decode)
    masked = seq2seq is None and not isinstance(model.target, Labels)  # a masked language model
    if not masked:
        batch = with_replaced_tokens(batch, edits, inner, model.sources)
    given = LookInput(_title(text, model.sources), _named_sources(batch, model.sources))
    if output is not None or seq2seq is None:
        check_no_search_options(options)
    if seq2seq is None:
        refuse_output_edits(edits)
    if isinstance(model.target, Labels):
        label = (
            None if output is None else torch.tensor([model.target.encode(output)], device=device)
        )
        return ForwardPass(inner, batch, None, label), replace(given, label=model.target.decode)
    running, special = model.running_text, model.target.special_tokens
    if seq2seq is None:
        if output is not None:
            wanted, remedy = "none for a masked language model", "Leave it out."
            raise InvalidArgument("output", wanted=wanted, got=repr(output), remedy=remedy)
        whole = ids if running else special.target(ids)
        batch = with_replaced_tokens(
            Tokens.of([whole], device=device), edits, inner, [model.target]
        )
        return ForwardPass(inner, batch, None, None), replace(
            given, sources=_named_sources(batch, [model.target])
        )
    prompt = [] if model.recipe.data.source_fields else ids
    if isinstance(output, str):
        tokens = model.target.encode(output)
        generated = [*prompt, *(tokens if running else special.output(tokens))]
    elif output is not None:
        generated = [*prompt, *output]
    else:
        generated = [
            *prompt,
            *model.outputs([text], truncate=truncate, edits=edits, **options)[0][0].token_ids,
        ]
    first = special.end if running else special.start
    return _teacher_forced(inner, batch, generated, first, given, model.target, edits)


def _check_output(model: Predictor, output: Any) -> None:
    """Refuse what is neither a text or a label nor, for a model that generates, ids of its vocabulary."""
    if output is None or isinstance(output, str):
        return
    size = model.target.size
    ids = isinstance(output, list | tuple) and all(
        type(each) is int and 0 <= each < size for each in output
    )
    if not ids or model.model.as_seq2seq() is None:
        wanted, got = "a text or a label, or token ids of a model that generates", repr(output)[:60]
        raise InvalidArgument("output", wanted=wanted, got=got, remedy="Give a string.")


def _title(text: Any, vocabularies: Sequence[VocabularyType | None]) -> str:
    if len(vocabularies) > 1:
        parts = text.split("\t") if isinstance(text, str) else text
        return " | ".join(
            _title(part, [each]) for part, each in zip(parts, vocabularies, strict=True)
        )
    if None in vocabularies:  # an image
        return Path(text).name if isinstance(text, str | Path) else "image"
    return str(text)


def _named_sources(
    batch: Any, vocabularies: Sequence[VocabularyType | None]
) -> tuple[TokenSequence | Pixels, ...]:
    """The tokens, label or image of each source of a batch of one; without a vocabulary, token ids are their names."""
    parts = batch.parts if isinstance(batch, MultiSource) else (batch,) if vocabularies else ()
    named: list[TokenSequence | Pixels] = []
    for part, vocabulary in zip(parts, vocabularies, strict=True):
        if isinstance(part, Tokens) and len(part.ids) == 1:
            named.append(
                TokenSequence.of(
                    part.row(0), vocabulary if isinstance(vocabulary, Tokenizer) else None
                )
            )
        elif isinstance(part, Tensor) and part.shape == (1,):
            number = int(part)
            name = vocabulary.decode(number) if isinstance(vocabulary, Labels) else str(number)
            named.append(TokenSequence.of_words((name,)))
        elif isinstance(part, Tensor) and part.dim() == 4 and len(part) == 1:
            named.append(_as_pixels(part))
        else:
            got = f"a batch of {len(part)}" if isinstance(part, Tensor) else repr(part)[:60]
            wanted = "Tokens, a label or pixels (1, 3, Y, X), a batch of one, for a model without vocabularies"
            raise InvalidArgument(
                "text", wanted=wanted, got=got, remedy="Look at one input at a time."
            )
    return tuple(named)


def _of_bare_model(
    model: Model, source: Any, output: Any, edits: Sequence[Edit], options: dict[str, Any]
) -> tuple[ForwardPass, LookInput]:
    """For a model without vocabularies."""
    device, prompt = next(model.parameters()).device, []
    count = len(source.parts) if isinstance(source, MultiSource) else 1
    given = LookInput(
        "", _named_sources(source, [None] * count) if source is not None or model.encoder else ()
    )
    if edits and model.encoder is not None:
        source = with_replaced_tokens(source, edits, model, [None] * count)
        given = LookInput("", _named_sources(source, [None] * count))
    source = None if source is None else source.to(device)
    if model.encoder is None and isinstance(source, Tokens):
        source, given, prompt = None, LookInput(""), source.row(0)
    seq2seq, start = model.as_seq2seq(), DEFAULT_TOKENS.start
    if seq2seq is not None and output is None:
        with editing(model, edits):
            found = _searched(seq2seq, source, prompt, edits, options)
        return _teacher_forced(model, source, found, start, given, None, edits)
    check_no_search_options(options)
    if seq2seq is not None:
        return _teacher_forced(
            model, source, [*prompt, *map(int, output)], start, given, None, edits
        )
    refuse_output_edits(edits)
    labels = None if output is None else torch.tensor([int(output)], device=device)
    given = given if model.as_classifier() is None else replace(given, label=str)
    return ForwardPass(model, source, None, labels), given


def check_no_search_options(options: dict[str, Any]) -> None:
    """Refuse options that would have no effect, since no output is searched for."""
    for name, value in options.items():
        if value is not None and name != "max_source_length":
            wanted = "nothing where no output is searched"
            raise InvalidArgument(name, wanted=wanted, got=repr(value), remedy="Leave it out.")


def _searched(
    model: Seq2Seq, source: Any, prompt: list[int], edits: Sequence[Edit], options: dict[str, Any]
) -> list[int]:
    config = read(DecodeConfig, options, "decode")
    if isinstance(config, list):
        raise InvalidRecipe(config)
    parts = source.parts if isinstance(source, MultiSource) else (source,)
    size = sum(int(part.lengths[0]) if isinstance(part, Tokens) else 1 for part in parts)
    special = DEFAULT_TOKENS
    rerank = coverage_reranker(model, config, special.start)
    forced = forced_tokens(edits, None)
    prompt = [forced.get(position, token) for position, token in enumerate(prompt)]
    processors = [ForceTokens(forced)] if forced else []
    task = SearchTask(
        model, lambda sources: sources[0], config, processors, special_tokens=special, rerank=rerank
    )
    ((_, best),) = search(task, [Request(source, size, prompt, given=len(prompt))])
    return [*best[0].tokens, *(() if best[0].end is None else (best[0].end,))]


def _teacher_forced(
    model: Model,
    source: Source | None,
    ids: list[int],
    first: int | None,
    given: LookInput,
    names: Tokenizer | None,
    edits: Sequence[Edit],
) -> tuple[ForwardPass, LookInput]:
    if first is None:  # the text begins with its own first token
        first, ids = next(iter(ids), 0), ids[1:]
    if not ids:
        remedy = "Give another, or search with other options."
        raise InvalidArgument("output", wanted="at least one token", got="none", remedy=remedy)
    ids = with_replaced_output(ids, edits, names)
    read, device = [first, *ids[:-1]], next(model.parameters()).device
    forward = ForwardPass(
        model, source, torch.tensor([read], device=device), torch.tensor(ids, device=device)
    )
    return forward, replace(
        given, output=TokenSequence.of(ids, names), read=TokenSequence.of(read, names)
    )


def _as_pixels(batch: Tensor) -> Pixels:
    """The image that was normalized to this batch of one."""
    image: Pixels = (
        ((batch[0, :3].float() + 1) * 127.5)
        .round()
        .clamp(0, 255)
        .byte()
        .permute(1, 2, 0)
        .cpu()
        .numpy()
    )
    return image if image.shape[2] == 3 else image[..., :1].repeat(3, 2)


def pairs_of(
    recipe: Recipe,
    data: Sequence[str],
    columns: Sequence[str] = (),
    *,
    trust_data_paths: bool = False,
) -> Iterator[tuple[Any, str | None]]:
    """Inputs and outputs of a split of the recipe's data, or of files like those it was trained on."""
    config, split = data_of(recipe, data, columns, trust_data_paths=trust_data_paths)
    alone, masked = not config.source_fields, recipe.model.predicts == "masked tokens"
    for each in examples(config, split):
        if each.source or each.target:
            yield (each.target, None if masked else "") if alone else (each.source, each.target)


def data_of(
    recipe: Recipe,
    data: Sequence[str],
    columns: Sequence[str] = (),
    *,
    trust_data_paths: bool = False,
) -> tuple[DataConfig, Split]:
    """The named split; or the recipe's data config with other files, as its split "train"."""
    own: Split | None = next(
        (split for split in recipe.data.splits if tuple(data) == (split,)), None
    )
    config = locate_data(recipe, [own]) if own else recipe.data.with_files(data, columns)
    check_paths(config, own or "train", trusted=trust_data_paths, named=() if own else data)
    return config, own or "train"
