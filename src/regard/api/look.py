"""Looking at what a model attends to: as it gives its own output for an input, or one that is given."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import Tokens
from regard.core.shapes import Tensor
from regard.data.examples import DataConfig, Split, examples
from regard.data.images import Pixels, load_image
from regard.data.text import TABLES, form
from regard.data.tokenizer import END, START, Labels, Tokenizer
from regard.decoding.config import DecodeConfig
from regard.decoding.ensemble import Ensemble
from regard.decoding.request import Request, SearchTask
from regard.decoding.search import search
from regard.inference.predictor import Predictor
from regard.interpret.attributions import RepeatableForward
from regard.interpret.look import GeneratedText, Image, Label, Look, Text
from regard.interpret.maps import AttentionMap, MapRecorder
from regard.interpret.output_attention import coverage_reranker
from regard.interpret.sites import AttentionSite, places
from regard.interpret.summaries import Head, Mean
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.capture import Pick, capture_attention, picked
from regard.model.eval_mode import evaluating
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Seq2Seq
from regard.recipe.recipe import Recipe

CHUNK = 1024  # rows of logits at once
ONE = "Look at one input at a time."


def look(
    model: Any,
    text: Any,
    *,
    output: Any = None,
    layers: Sequence[int] | None = None,
    heads: Pick = None,
    rows: Pick = None,
    words: bool = False,
    top: int | None = None,
    truncate: bool = False,
    **options: Any,
) -> Look:
    """What a model attends to as it reads a text, or a picture, and gives its output.

    model    what `regard.load` gives; or a model alone, which reads `Tokens`, a label or pixels, a batch of one
    output   look at how it would give this one: a text or a label; the numbers of tokens for a model alone. A language
             model goes on from the text; with output="" it reads the text to its end, and adds nothing
    layers   only these, from 1
    heads    these of each map, unless it is asked for others; likewise rows
    words    rows and keys are words, not the tokens that they are cut into
    top      keep of each map a summary with so many largest weights of each row, made while the model reads, and
             nothing else: for inputs so long that queries and keys of all layers would be too much
    truncate   drop the end of a text that is too long
    options  of the search for an output: those of a recipe's [decode], and of `Predictor.outputs`

    Weights are exact, the output is the one that the model gives anyway, and only what is asked for is computed.
    """
    inner = model.model if isinstance(model, Predictor) else model
    if not isinstance(inner, Seq2Seq | Classifier | MaskedLanguageModel) or isinstance(inner, Ensemble):
        wanted, remedy = "one that regard.load or regard.build gives", "regard.capture_attention hears any module."
        raise InvalidArgument("model", wanted=wanted, got=type(inner).__name__, remedy=remedy)
    with evaluating(inner):
        if isinstance(model, Predictor):
            forced, scene = _with_vocabularies(model, text, output, truncate, options)
        else:
            forced, scene = _alone(inner, text, output, options)
        return _looked(forced, scene, layers, heads, rows, words, top)


@dataclass(frozen=True)
class LookInput:
    """What stands at the places of an input and of an output."""

    title: str
    source: TokenSequence | None = None  # None: nothing is read, or a picture
    picture: Pixels | None = None
    said: TokenSequence | None = None  # None: no sequence is
    read: TokenSequence | None = None
    label: Callable[[int], str] = str


def _with_vocabularies(
    model: Predictor, text: Any, output: Any, truncate: bool, options: dict[str, Any]
) -> tuple[RepeatableForward, LookInput]:
    if output is not None and not isinstance(output, str):
        raise InvalidArgument("output", wanted="a text or a label", got=repr(output)[:60], remedy="Give a string.")
    inner, device = model.model, next(model.model.parameters()).device
    known = {name: value for name, value in options.items() if name in DecodeConfig.__dataclass_fields__}
    numbers, batch = model.encode(text, truncate=truncate, **known)
    scene = _scene(model, text, numbers)
    if output is not None or not isinstance(inner, Seq2Seq):
        no_search(options)
    if isinstance(inner, Classifier):
        assert isinstance(model.target, Labels)
        answer = None if output is None else torch.tensor([model.target.encode(output)], device=device)
        return RepeatableForward(inner, batch, None, answer), replace(scene, label=model.target.decode)
    assert isinstance(model.target, Tokenizer)
    running = model.recipe.data.context_length is not None  # a text without ends
    if isinstance(inner, MaskedLanguageModel):
        if output is not None:
            wanted, remedy = "none for a model that finds hidden tokens", "Leave it out."
            raise InvalidArgument("output", wanted=wanted, got=repr(output), remedy=remedy)
        whole = numbers if running else [START, *numbers, END]
        return RepeatableForward(inner, Tokens.of([whole], device=device), None, None), replace(
            scene, source=TokenSequence.of(whole, model.target)
        )
    assert isinstance(inner, Seq2Seq)
    begun = [] if model.recipe.data.source is not None else numbers
    if output is not None:
        ids = [*begun, *model.target.encode(output), *([] if running else [END])]
    else:
        ids = [*begun, *model.outputs([text], truncate=truncate, **options)[0][0].token_ids]
    return _said(inner, batch, ids, END if running else START, device, scene, model.target)


def _scene(model: Predictor, text: Any, numbers: Any) -> LookInput:
    if model.image_size is not None:
        title = Path(text).name if isinstance(text, str | Path) else "picture"
        return LookInput(title, picture=load_image(text, model.image_size))
    if isinstance(model.source, Tokenizer):
        return LookInput(text, TokenSequence.of([*numbers, END], model.source))
    return LookInput(text, None if model.source is None else TokenSequence.alone((text,)))


def _alone(
    model: Seq2Seq | Classifier | MaskedLanguageModel, source: Any, output: Any, options: dict[str, Any]
) -> tuple[RepeatableForward, LookInput]:
    """A model without vocabularies: its tokens are called by their numbers."""
    device, begun, scene = next(model.parameters()).device, [], LookInput("")
    if isinstance(source, Tokens) and len(source.ids) == 1:
        ids = source.ids[0, : int(source.lengths[0])].tolist()
        source, scene = source.to(device), LookInput("", TokenSequence.of(ids, None))
        if model.encoder is None:
            source, scene, begun = None, LookInput(""), ids
    elif isinstance(source, Tensor) and source.dim() in (1, 4) and len(source) == 1:
        source = source.to(device)
        scene = (
            LookInput("", TokenSequence.alone((str(int(source)),)))
            if source.dim() == 1
            else LookInput("", picture=_drawn(source))
        )
    elif source is not None or model.encoder is not None:
        got = f"a batch of {len(source)}" if isinstance(source, Tensor) else repr(source)[:60]
        wanted = "Tokens, a label or pixels (1, 3, Y, X), a batch of one, for a model without vocabularies"
        raise InvalidArgument("text", wanted=wanted, got=got, remedy=ONE)
    if isinstance(model, Seq2Seq) and output is None:
        return _said(model, source, _found(model, source, begun, options), START, device, scene, None)
    no_search(options)
    if isinstance(model, Seq2Seq):
        return _said(model, source, [*begun, *map(int, output)], START, device, scene, None)
    return RepeatableForward(
        model, source, None, None if output is None else torch.tensor([int(output)], device=device)
    ), scene


def no_search(options: dict[str, Any]) -> None:
    """Refuse what would change nothing."""
    for name, value in options.items():
        if value is not None and name != "max_source_length":
            remedy = "Leave it out."
            raise InvalidArgument(name, wanted="nothing where no output is searched", got=repr(value), remedy=remedy)


def _found(model: Seq2Seq, source: Any, begun: list[int], options: dict[str, Any]) -> list[int]:
    config = read(DecodeConfig, options, "decode")
    if isinstance(config, list):
        raise InvalidRecipe(config)
    size = int(source.lengths[0]) if isinstance(source, Tokens) else 1
    rerank = coverage_reranker(model, config, START)
    task = SearchTask(model, lambda sources: sources[0], config, rerank=rerank)
    ((_, best),) = search(task, [Request(source, size, begun, given=len(begun))])
    return [*best[0].tokens, END] if best[0].ended else list(best[0].tokens)


def _said(
    model: Seq2Seq,
    source: Any,
    ids: list[int],
    first: int,
    device: torch.device,
    scene: LookInput,
    names: Tokenizer | None,
) -> tuple[RepeatableForward, LookInput]:
    if not ids:
        remedy = "Give another, or search with other rules."
        raise InvalidArgument("output", wanted="at least one token", got="none", remedy=remedy)
    heard = [first, *ids[:-1]]
    forced = RepeatableForward(model, source, torch.tensor([heard], device=device), torch.tensor(ids, device=device))
    return forced, replace(scene, said=TokenSequence.of(ids, names), read=TokenSequence.of(heard, names))


def _looked(
    forced: RepeatableForward,
    scene: LookInput,
    layers: Sequence[int] | None,
    heads: Pick,
    rows: Pick,
    words: bool,
    top: int | None,
) -> Look:
    encoder = getattr(forced.model, "encoder", None)
    units = int(getattr(encoder, "cls_token", None) is not None)
    source = None if scene.source is None else scene.source.after(units)
    wanted = _layers(forced.model, layers)

    def dress(found: AttentionMap) -> AttentionMap:
        said = scene.read if found.kind == "self" else scene.said
        asks, asked = ({"source": source, "output": said}.get(side) for side in (found.asks, found.asked))
        return _dressed(found, asks, asked, words, rows, heads, top)

    recorder = MapRecorder(forced.model, lambda place: wanted is None or place.layer in wanted, dress)
    memories: list[Any] = []
    hook = None if encoder is None else encoder.register_forward_hook(lambda _, __, memory: memories.append(memory))
    try:
        with torch.no_grad(), capture_attention(recorder):
            logits = forced()
            recorder.close()
    finally:
        if hook is not None:
            hook.remove()
    for name, pick in (("rows", rows), ("heads", heads)):
        if pick is not None and not any(len(each.chosen[name == "heads"]) for each in recorder.maps):  # type: ignore[arg-type]
            most = max((each.heads if name == "heads" else each.size[0] for each in recorder.maps), default=0)
            picked(name, pick, most, torch.device("cpu"))  # says which of them are not there
            if most:
                told = f"at least one of {most}"
                raise InvalidArgument(name, wanted=told, got="none", remedy="They count from 0.")
    read: Text | Image | None = None if source is None else Text(source.names(words))
    if scene.picture is not None and memories[-1].grid is not None:
        read = Image(scene.picture, memories[-1].grid, memories[-1].cls_tokens)
    output, answers = _output(forced, scene, logits, words)
    return Look(scene.title, read, output, tuple(recorder.maps), replace(forced, answers=answers))


def _dressed(
    found: AttentionMap,
    asks: TokenSequence | None,
    asked: TokenSequence | None,
    words: bool,
    rows: Pick,
    heads: Pick,
    top: int | None,
) -> AttentionMap:
    """A map of tokens as one of words, where these are wanted, with what is to be seen of it."""
    n, m = found.size
    device = torch.device("cpu") if found.heard is None else found.heard.lse.device
    if words and asks is not None and len(asks.words) == n:
        found = replace(found, row_words=asks.grouped(device), size=(len(asks.spelled), found.size[1]))
    if words and asked is not None and len(asked.words) == m:
        found = replace(found, key_words=asked.grouped(device), size=(found.size[0], len(asked.spelled)))
    if asked is not None and len(asked.words) == m:
        found = replace(found, signs=asked.signs(words))
    chosen = (
        None if rows is None else picked("rows", rows, found.size[0], device, strict=False),
        None if heads is None else picked("heads", heads, found.heads, device, strict=False),
    )
    found = replace(found, chosen=chosen)
    return found if top is None else replace(found, kept=found.summary(top), heard=None)


def _layers(model: torch.nn.Module, layers: Sequence[int] | None) -> set[int] | None:
    if layers is None:
        return None
    there = sorted({place.layer for place in places(model).values()})
    wanted = [layers] if isinstance(layers, int) else list(layers)
    if not wanted or not set(wanted) <= set(there):
        raise InvalidArgument(
            "layers",
            wanted=f"some of {', '.join(map(str, there))}" if there else "none: nothing attends in this model",
            got=repr(layers),
            remedy="Layers count from 1.",
        )
    return set(wanted)


def _output(
    forced: RepeatableForward, scene: LookInput, logits: Tensor, words: bool
) -> tuple[GeneratedText | Label | None, Tensor | None]:
    """What was said with its log-probabilities, and the numbers of that."""
    answers = forced.answers
    if isinstance(forced.model, MaskedLanguageModel):
        return None, None
    if scene.said is None:
        answers = logits.argmax(-1) if answers is None else answers
        return Label(scene.label(int(answers)), float(log_probabilities(logits, answers)[0])), answers
    assert scene.read is not None
    assert answers is not None
    each = log_probabilities(logits, answers).cpu()
    if words:
        each = each.new_zeros(len(scene.said.spelled)).index_add_(0, torch.tensor(scene.said.words), each)
    return GeneratedText(
        scene.said.text, scene.said.names(words), scene.read.names(words), tuple(each.tolist())
    ), answers


def log_probabilities(logits: Tensor, answers: Tensor) -> Tensor:
    """Of each row's answer, a few rows at a time: the logits of a long text are large enough once."""
    found = torch.empty_like(answers, dtype=torch.float32)
    for start in range(0, len(answers), CHUNK):
        rows = slice(start, start + CHUNK)
        found[rows] = logits[rows].float().log_softmax(-1).gather(-1, answers[rows, None])[:, 0]
    return found


def _drawn(batch: Tensor) -> Pixels:
    """What a network read as a picture again."""
    found: Pixels = ((batch[0, :3].float() + 1) * 127.5).round().clamp(0, 255).byte().permute(1, 2, 0).cpu().numpy()
    return found if found.shape[2] == 3 else found[..., :1].repeat(3, 2)


def look_over(
    model: Predictor, pairs: Iterable[tuple[Any, str | None]], **options: Any
) -> list[tuple[AttentionSite, Head]]:
    """The mean summary of every head over inputs with their outputs, or with the model's own where they are None."""
    mean = Mean()
    for text, output in pairs:
        for found, head in look(model, text, output=output, **options).heads():
            mean.add(found, head)
    return mean.lines()


def pairs_of(recipe: Recipe, data: Sequence[str]) -> Iterator[tuple[Any, str | None]]:
    """Texts and outputs of a split of the recipe's own data, or of files like those that it was trained on."""
    config, split = data_of(recipe, data)
    alone, masked = config.source is None, recipe.model.get("head") is not None
    for each in examples(config, split):
        if each.source or each.target:
            yield (each.target, None if masked else "") if alone else (each.source, each.target)


def data_of(recipe: Recipe, data: Sequence[str]) -> tuple[DataConfig, Split]:
    """The split that is named, or the same data from other files, as the split "train".

    A table's columns are the first and the second where the recipe names none.
    """
    config, files = recipe.data, tuple(data)
    for split in config.splits:
        if files == (split,):
            return config, split
    table = len(files) == 1 and form(files[0]) in TABLES
    first, second = (None, None) if not table else ("1", "2" if config.source is not None else "1")
    named = table and bool(config.columns)
    source, target = (
        None if field is None else replace(field, max_tokens=None, column=field.column if named else column)
        for field, column in ((config.source, first), (config.target, second))
    )
    assert target is not None
    try:
        return replace(
            config, synthetic=None, seed=0, train=files, valid=None, test=None, source=source, target=target
        ), "train"
    except InvalidRecipe as error:
        problem = error.problems[0]
        raise InvalidArgument("data", wanted=problem.wanted, got=problem.got, remedy=problem.remedy) from None
