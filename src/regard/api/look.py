"""`regard.look`: what a model attends to while it generates its output for an input,
or is given one.
"""

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
from regard.data.example import Split
from regard.data.sources import examples
from regard.data.special_tokens import DEFAULT_TOKENS
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.interpret.editing import (
    ForceTokens,
    editing,
    forced_tokens,
    refuse_output_edits,
    with_replaced_tokens,
)
from regard.interpret.edits import Edit, Edits, read_edits
from regard.interpret.look import Look
from regard.interpret.maps import ForwardPass
from regard.interpret.output_attention import coverage_reranker
from regard.interpret.record import LookInput, MapSelection, record, record_encoder, record_look
from regard.interpret.series import Series
from regard.model.capture import Pick
from regard.model.eval_mode import evaluating
from regard.model.seq2seq import Model, Seq2Seq
from regard.recipe.load import locate_data
from regard.recipe.recipe import Recipe
from regard.recipe.trusted_paths import check_paths
from regard.tasks.base import LookRequest, task_of
from regard.tasks.look_inputs import (
    input_title,
    look_source,
    named_sources,
    skipped_vectors,
    teacher_forced,
    time_axes,
)
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
    channel: str | int | None = None,
    **options: Any,
) -> Look:
    """What a model attends to while it reads a text, or an image, and generates its output.

    model    a run, a checkpoint or a loaded model; or a bare model, which reads `Tokens`, a label
             or pixels (B = 1)
    output   the output to look at instead of the model's own: a text or a label; or token ids, as
             `Output.token_ids`. A language model continues the text; with output="" it reads the
             text to its end
    layers   only these layers, from 1
    heads    the heads that a map's methods return by default; `rows` likewise
    words    merge tokens into words
    top      keep only a summary of each map with the `top` largest weights of each row, computed
             during the forward pass: for inputs so long that the queries and keys of all layers do
             not fit into memory
    truncate a text that is too long, instead of refusing it
    edits    changes of the model's attention and tokens, in order (`regard.interpret.edits`): the output is that of the
             edited model, and so are its scores and weights
    channel  of a model that reads each channel apart, the one whose attention is shown: its name, or its number from 1;
             by default the first
    options  of the search for an output: keys of a recipe's [decode], and arguments of `Predictor.outputs`

    Weights are exact, the output is the one the model generates anyway, and only what is asked for
    is computed.
    """
    if isinstance(model, str | Path):
        model = load(model)
    inner = model.model if isinstance(model, Predictor) else model
    if not isinstance(inner, Model) or not inner.inspectable:
        wanted = "one that regard.load or regard.build returns"
        remedy = "regard.capture_attention captures the attention of any module."
        raise InvalidArgument("model", wanted=wanted, got=type(inner).__name__, remedy=remedy)
    edited = read_edits(edits)
    with evaluating(inner):
        if isinstance(model, Predictor):
            forward, given = _of_predictor(model, text, output, truncate, edited, options, channel)
        else:
            forward, given = _of_bare_model(inner, text, output, edited, options)
            sources = look_source(given.sources, task_of(inner).separate_channels(inner), channel)
            forward, given = _at_channel(forward, replace(given, sources=sources))
        return record_look(forward, given, MapSelection(layers, rows, heads, words, top), edited)


def look_at_output(
    model: Predictor,
    text: object,
    output: Sequence[int],
    edits: Sequence[Edit],
    encoded: Look | None = None,
) -> tuple[Look, Tensor]:
    """`look` at these token ids, and the logits;
    an encoder that ran for `encoded` does not run again (`record`).
    """
    with evaluating(model.model):
        forward, given = _of_predictor(model, text, output, False, edits, {})
        return record(forward, given, MapSelection(), edits, encoded)


def look_at_sources(
    model: Predictor, text: object, output: Sequence[int], edits: Sequence[Edit]
) -> Look:
    """What the encoder attends to under edits, for `look_at_output`;
    `output` is any that the edits are of.
    """
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
    channel: str | int | None = None,
) -> tuple[ForwardPass, LookInput]:
    _check_output(model, output)
    inner = model.model
    task = task_of(inner)
    decode = {
        name: value for name, value in options.items() if name in DecodeConfig.__dataclass_fields__
    }
    ids, batch = model.encode(text, truncate=truncate, **decode)
    if batch is not None:
        batch = with_replaced_tokens(batch, edits, inner, model.sources)
    fields = model.recipe.data.source_fields
    skipped = skipped_vectors(text, fields, task.window(model.sources))
    axes = time_axes(text, fields)
    if skipped:
        axes = [axes[0].since(skipped)]
    sources = look_source(
        named_sources(batch, model.sources, axes), task.separate_channels(inner), channel, skipped
    )
    shown = LookInput(input_title(text, fields), sources)
    if output is not None or not task.searches:
        generates = task.has_horizon and output is None
        check_no_search_options(
            {key: value for key, value in options.items() if key != "horizon" or not generates}
        )
    horizon = model.decode_config(decode).horizon

    def search() -> Sequence[int]:
        return model.outputs([text], truncate=truncate, edits=edits, **options)[0][0].token_ids

    request = LookRequest(ids, batch, shown, output, edits, search, text, horizon)
    return _at_channel(*task.look(model.trained, request))


def _at_channel(forward: ForwardPass, shown: LookInput) -> tuple[ForwardPass, LookInput]:
    """The forward pass of which the attention of the chosen channel is recorded, and the title that says so."""
    for source in shown.sources:
        if isinstance(source, Series) and source.title:
            title = f"{shown.title}: {source.title}" if shown.title else source.title
            shown = replace(shown, title=title)
            forward = replace(forward, sequence=source.channel)
    return forward, shown


def _check_output(model: Predictor, output: Any) -> None:
    """Refuse what is neither a text or a label nor, for a model that generates,
    ids of its vocabulary.
    """
    if output is None or isinstance(output, str):
        return
    size = model.target.size
    ids = isinstance(output, list | tuple) and all(
        type(each) is int and 0 <= each < size for each in output
    )
    if not ids or not task_of(model.model).searches:
        wanted = "a text or a label, or token ids of a model that generates"
        got = repr(output)[:60]
        raise InvalidArgument("output", wanted=wanted, got=got, remedy="Give a string.")


def _of_bare_model(
    model: Model, source: Any, output: Any, edits: Sequence[Edit], options: dict[str, Any]
) -> tuple[ForwardPass, LookInput]:
    """For a model without vocabularies."""
    device = next(model.parameters()).device
    prompt = []
    count = len(source.parts) if isinstance(source, MultiSource) else 1
    given = LookInput("", ())
    if source is not None or model.encoder:
        given = LookInput("", named_sources(source, [None] * count))
    if edits and model.encoder is not None:
        source = with_replaced_tokens(source, edits, model, [None] * count)
        given = LookInput("", named_sources(source, [None] * count))
    if source is not None:
        source = source.to(device)
    if model.encoder is None and isinstance(source, Tokens):
        # A language model continues the tokens instead of reading them as a source.
        prompt = source.row(0)
        source = None
        given = LookInput("")
    generator = model.generator
    start = DEFAULT_TOKENS.start
    if generator is not None:
        if output is None:
            with editing(model, edits):
                read = _searched(generator, source, prompt, edits, options)
        else:
            check_no_search_options(options)
            read = [*prompt, *map(int, output)]
        return teacher_forced(model, source, read, start, given, None, edits)
    check_no_search_options(options)
    refuse_output_edits(edits)
    labels = None
    if output is not None:
        labels = torch.tensor([int(output)], device=device)
    given = replace(given, direct_output=task_of(model).look_output(str))
    return task_of(model).forward_pass(model, source, labels), given


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
    ((_, best),) = search(task, [GenerationRequest(source, size, prompt, given=len(prompt))])
    tokens = [*best[0].tokens]
    if best[0].end is not None:
        tokens.append(best[0].end)
    return tokens


def pairs_of(
    recipe: Recipe,
    data: Sequence[str],
    columns: Sequence[str] = (),
    *,
    references: bool = False,
    trust_data_paths: bool = False,
) -> Iterator[tuple[Any, str | None]]:
    """Inputs and outputs of a split of the recipe's data, or of files like those it was trained on.

    references   also the targets that have no probability, as numbers: outputs are compared with
                 them, and `look` shows none of them
    """
    config, split = data_of(recipe, data, columns, trust_data_paths=trust_data_paths)
    alone = not config.source_fields
    # A language model reads its text to the end; what reads the target has no output. Numbers and
    # vectors have no probability by which a given one could be shown.
    is_given = references or recipe.task.has_scores
    own_output = None if recipe.task.reads_target else ""
    for each in examples(config, split):
        if each.source or each.target:
            given = each.target if is_given else None
            if alone:
                yield each.target, own_output
            else:
                yield each.source, given


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
    if own is not None:
        config = locate_data(recipe, [own])
        check_paths(config, own, trusted=trust_data_paths, named=())
        return config, own
    config = recipe.data.with_files(data, columns)
    check_paths(config, "train", trusted=trust_data_paths, named=data)
    return config, "train"
