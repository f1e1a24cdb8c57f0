"""Running a model under edits: the interceptor of its attention, and the tokens it reads."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import MultiSource, Tokens
from regard.core.shapes import Int, Tensor
from regard.data.corpus import VocabularyType
from regard.data.fields.text import tokenizer_of
from regard.data.tokenizer import Tokenizer
from regard.generation.choose.interfaces import GeneratedTokens, LogitsProcessor, Scores
from regard.interpret.edited_call import EditedCall
from regard.interpret.edits import AttentionEdit, Edit, PaintRow, ReplaceToken
from regard.interpret.sites import ModelPart, attention_sites
from regard.model.capture import (
    AttentionResult,
    intercepting,
    observing_memory,
    query_position,
)
from regard.model.interfaces import AttentionModule, Source
from regard.model.memory import Memory
from regard.model.multi_source import source_encoders
from regard.model.seq2seq import Model

Numbered = list[tuple[int, AttentionEdit]]  # edits, each with its number from 1


class Editor:
    """An interceptor that applies edits to the attention calls of a model.

    memory   the memory of an encoder that has run under these edits and does not run again
    """

    def __init__(self, model: Model, edits: Sequence[Edit], memory: Memory | None = None) -> None:
        self.sites = attention_sites(model)
        numbered: Numbered = []
        for number, edit in enumerate(edits, start=1):
            if isinstance(edit, AttentionEdit):
                numbered.append((number, edit))
        heads = {site: module.heads for module, site in self.sites.items()}
        for number, attention_edit in numbered:
            attention_edit.check(heads, f"edit {number}")
        self.edits: dict[AttentionModule, Numbered] = {}
        for module, site in self.sites.items():
            chosen = [(number, each) for number, each in numbered if each.selects(site)]
            if chosen:
                self.edits[module] = chosen
        # How many states each source has in the last memory, if there are several sources.
        self.spans: Sequence[Int[Tensor, " B"]] = ()
        self.applied: set[int] = set()  # numbers of the edits that changed a call
        if memory is not None:
            self.spans = [span.lengths for span in memory.spans]
            for module, chosen in self.edits.items():
                if self.sites[module].part == "encoder":
                    self.applied.update(number for number, _ in chosen)

    def __call__(self, module: nn.Module | None, result: AttentionResult) -> AttentionResult:
        if not isinstance(module, AttentionModule) or module not in self.edits:
            return result
        call = EditedCall(result, self.sites[module], query_position(), self.spans)
        for number, edit in self.edits[module]:
            if edit.apply(call, f"edit {number}"):
                self.applied.add(number)
        return call.result()

    def check_applied(self, part: ModelPart | None = None) -> None:
        """Refuse edits of rows that no call had.

        part   check only edits of this part of the model, because no other has run
        """
        edits: dict[int, AttentionEdit] = {}
        for module, of_module in self.edits.items():
            if part in (None, self.sites[module].part):
                edits.update(of_module)
        for number, edit in edits.items():
            if number not in self.applied and isinstance(edit, PaintRow):
                wanted = f"a row of {edit.map}"
                remedy = "They count from 0; the output may be shorter than before."
                raise InvalidArgument(
                    f"edit {number}.row", wanted=wanted, got=str(edit.row), remedy=remedy
                )

    def note_memory(self, memory: Memory) -> None:
        """Note where the states of each of several sources are."""
        self.spans = [span.lengths for span in memory.spans]


@contextmanager
def editing(
    model: Model, edits: Sequence[Edit], memory: Memory | None = None
) -> Iterator[Editor | None]:
    """Apply edits to the attention of a model inside the block, in this thread only.

    memory   the memory of an encoder that has run under these edits, if the block does not run it

    Tokens are replaced by `with_replaced_tokens` and `ForceTokens`. Edits are for models in evaluation mode.
    """
    if not any(isinstance(each, AttentionEdit) for each in edits):
        yield None
        return
    if not model.inspectable:
        wanted = "one model, whose attention can be edited"
        remedy = "Use one member of the ensemble."
        raise InvalidArgument("edits", wanted=wanted, got=type(model).__name__, remedy=remedy)
    editor = Editor(model, edits, memory)
    observing: AbstractContextManager[None] = nullcontext()
    if len(source_encoders(model.encoder)) > 1:
        observing = observing_memory(editor.note_memory)
    with observing, intercepting(editor):
        yield editor


def edits_encoder(model: Model, edits: Sequence[Edit]) -> bool:
    """Whether an edit changes what the encoder reads, or how it attends, so that its memory may differ."""
    sites = [site for site in attention_sites(model).values() if site.part == "encoder"]
    for edit in edits:
        if isinstance(edit, ReplaceToken) and edit.side == "source":
            return True
        if isinstance(edit, AttentionEdit) and any(map(edit.selects, sites)):
            return True
    return False


def with_replaced_tokens(
    source: Source | None,
    edits: Sequence[Edit],
    model: Model,
    vocabularies: Sequence[VocabularyType | None],
) -> Source | None:
    """Replace tokens in a batch of sources: each in every sequence that is long enough for its position."""
    encoders = source_encoders(model.encoder)
    for number, edit in enumerate(edits, start=1):
        if not isinstance(edit, ReplaceToken) or edit.side != "source":
            continue
        parts: list[Any] = [source]
        if isinstance(source, MultiSource):
            parts = list(source.parts)
        if edit.source >= len(encoders):
            wanted = f"one of {len(encoders)} sources, from 0"
            remedy = 'A language model\'s text is its "output".'
            raise InvalidArgument(
                f"edit {number}.source", wanted=wanted, got=str(edit.source), remedy=remedy
            )
        part = parts[edit.source]
        if not isinstance(part, Tokens):
            wanted = "a source of tokens"
            remedy = "Only tokens can be replaced."
            raise InvalidArgument(
                f"edit {number}.source", wanted=wanted, got=str(edit.source), remedy=remedy
            )
        position = edit.position - encoders[edit.source].cls_tokens
        here = part.lengths > position
        if position < 0 or not bool(here.any()):
            raise _no_token(number, edit)
        ids = part.ids.clone()
        ids[here, position] = token_id(edit, number, vocabularies[edit.source])
        parts[edit.source] = replace(part, ids=ids)
        if isinstance(source, MultiSource):
            source = MultiSource(tuple(parts))
        else:
            source = parts[0]
    return source


def with_replaced_output(
    ids: Sequence[int], edits: Sequence[Edit], vocabulary: Tokenizer | None
) -> list[int]:
    """The tokens of an output with some replaced."""
    ids = list(ids)
    for position, token, number, edit in _forced(edits, vocabulary):
        if position >= len(ids):
            raise _no_token(number, edit)
        ids[position] = token
    return ids


def forced_tokens(edits: Sequence[Edit], vocabulary: Tokenizer | None) -> dict[int, int]:
    """The tokens of an output that edits force, by position."""
    return {position: token for position, token, _, _ in _forced(edits, vocabulary)}


def refuse_output_edits(edits: Sequence[Edit]) -> None:
    """For a model that generates no sequence: refuse to replace tokens of one."""
    for number, edit in enumerate(edits, start=1):
        if isinstance(edit, ReplaceToken) and edit.side == "output":
            wanted = "'source': this model generates no sequence"
            remedy = "Leave it out."
            raise InvalidArgument(
                f"edit {number}.side", wanted=wanted, got="'output'", remedy=remedy
            )


class ForceTokens(LogitsProcessor):
    """Excludes all but one token at some positions of the output, the prompt of a language model included."""

    masks_only = True

    def __init__(self, tokens: Mapping[int, int]) -> None:
        self.tokens = tokens

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        for position, token in self.tokens.items():
            here = generated.length == position
            kept = scores[here, :, token].clone()
            scores[here] = -float("inf")
            scores[here, :, token] = kept


def token_id(edit: ReplaceToken, number: int, vocabulary: VocabularyType | None) -> int:
    """The id of the token that an edit names."""
    token = edit.token
    where = f"edit {number}.token"
    tokenizer = tokenizer_of(vocabulary)
    if isinstance(token, int):
        if tokenizer is None or token < tokenizer.size:
            return token
        wanted = f"an id below {tokenizer.size}"
        raise InvalidArgument(where, wanted=wanted, got=str(token), remedy="Or give its text.")
    if tokenizer is None:
        remedy = "This model was given without a vocabulary."
        raise InvalidArgument(where, wanted="a token id", got=repr(token), remedy=remedy)
    ids = tokenizer.encode(token)
    if len(ids) != 1 or tokenizer.pieces(ids) != [token]:
        # It may be the name of a token, as lists of tokens show it.
        names = tokenizer.pieces(range(tokenizer.size))
        if token in names:
            ids = [names.index(token)]
    # Some tokenizers have a token only for the word after a space.
    for found in (ids, tokenizer.encode(f" {token}")):
        if len(found) == 1:
            return found[0]
    got = f"{token!r}, which is {len(ids)}: {' '.join(tokenizer.pieces(ids))}"
    raise InvalidArgument(
        where, wanted="one token", got=got[:200], remedy="Give one of its tokens."
    )


def _forced(
    edits: Sequence[Edit], vocabulary: Tokenizer | None
) -> Iterator[tuple[int, int, int, ReplaceToken]]:
    for number, edit in enumerate(edits, start=1):
        if isinstance(edit, ReplaceToken) and edit.side == "output":
            yield edit.position, token_id(edit, number, vocabulary), number, edit


def _no_token(number: int, edit: ReplaceToken) -> InvalidArgument:
    wanted = f"the position of a token of the {edit.side}"
    remedy = "They count from 0."
    return InvalidArgument(
        f"edit {number}.position", wanted=wanted, got=str(edit.position), remedy=remedy
    )
