"""The key `word_vectors` of a recipe: its checks before the data are prepared,
and the embeddings of a new model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from regard.core.errors import InvalidRecipe, Problem
from regard.core.shapes import Tensor
from regard.data.columns import Column, MultiSourceColumn, RunningTextColumn, TextColumn
from regard.data.corpus import Prepared, VocabularyType
from regard.data.fields.text import require_tokenizer
from regard.data.tokenizer import Tokenizer
from regard.model.embedding import Embedding
from regard.model.multi_source import source_encoders
from regard.model.seq2seq import Model
from regard.model.word_vector_keys import word_vector_parts
from regard.recipe.load import with_value
from regard.recipe.recipe import Recipe
from regard.training.frozen_rows import FrozenRows
from regard.training.telemetry.log_file import EventHandler
from regard.word_vectors.embeddings import TokenVectors
from regard.word_vectors.files import layout_of

CHUNK = 1 << 24  # token ids that are counted at once
LOW = 0.5  # a share of the training tokens with vectors below which sub-words are warned of


@dataclass(frozen=True)
class TokenPart:
    """A part of the model that embeds tokens: its table, module, tokenizer,
    and the tokens that it reads.
    """

    role: str
    module: nn.Module
    field: str
    tokenizer: Tokenizer
    column: TextColumn | RunningTextColumn

    def embedding(self) -> Embedding:
        """The embeddings of its tokens."""
        for module in self.module.modules():
            if isinstance(module, Embedding):
                return module
        wanted = "nothing: this part has no token embeddings"
        key = f"model.{self.role}.word_vectors"
        raise InvalidRecipe([Problem(key, wanted, "a file", "Leave it out.")])


def check_word_vectors(recipe: Recipe) -> None:
    """Refuse files of word vectors that cannot be read,
    or that have another dimension than the embeddings.
    """
    problems = []
    for role, config in word_vector_parts(recipe.model):
        assert config.word_vectors is not None
        dim = layout_of(Path(config.word_vectors)).dim
        if dim != config.states_dim:
            wanted = f"{dim}, the dimension of the vectors in {config.word_vectors}"
            remedy = f"Set dim = {dim}, or name vectors of dimension {config.states_dim}."
            problems.append(Problem(f"model.{role}.dim", wanted, str(config.states_dim), remedy))
    if problems:
        raise InvalidRecipe(problems)


def with_stored_word_vectors(recipe: Recipe, before: Recipe | None) -> Recipe:
    """The recipe of a resumed run, with the paths of word vectors that its checkpoint names.

    A resumed run reads no word vectors, and a file that has gone has no path to resolve: the paths
    as they are written in the two recipes say whether the file is the same.
    """
    if before is None:
        return recipe
    tables = recipe.as_dict()
    stored = dict(before.settings())
    for role, config in word_vector_parts(recipe.model):
        key = f"model.{role}.word_vectors"
        given = recipe.paths.get(key, config.word_vectors)
        if key in stored and given == before.paths.get(key, stored[key]):
            tables = with_value(tables, key, stored[key])
    return Recipe.of(tables)


def frozen_word_vectors(recipe: Recipe, model: Model, data: Prepared) -> FrozenRows:
    """The embeddings of which some rows are not trained; which rows,
    the file or the checkpoint says.
    """
    frozen = {
        role for role, config in word_vector_parts(recipe.model) if config.freeze_word_vectors
    }
    parts = [part for part in _token_parts(recipe, model, data) if part.role in frozen]
    return FrozenRows(model, [_weight_name(model, part) for part in parts])


def load_word_vectors(
    recipe: Recipe, model: Model, data: Prepared, frozen: FrozenRows, on_event: EventHandler
) -> None:
    """Fill the embeddings of a new model with the vectors of the files that its recipe names.

    frozen   freezes the rows of those tokens in the embeddings that it knows
    """
    configs = dict(word_vector_parts(recipe.model))
    filled: dict[str, TokenVectors] = {}
    for part in _token_parts(recipe, model, data):
        path = configs[part.role].word_vectors
        assert path is not None
        name = _weight_name(model, part)
        embedding = part.embedding()
        # Encoder and decoder may share a matrix, for which they have one file.
        if name not in filled:
            filled[name] = TokenVectors.read(Path(path), part.tokenizer)
            filled[name].fill(embedding)
        rows = filled[name].rows(embedding.vocab_size)
        if name in frozen.matrices and name not in frozen.rows:
            frozen.freeze({name: rows})
        _report(recipe, part, path, rows, on_event)


def _report(
    recipe: Recipe, part: TokenPart, path: str, rows: Tensor, on_event: EventHandler
) -> None:
    """Report how many tokens have a vector; none is refused."""
    names = part.tokenizer.tokens()
    special_names = part.tokenizer.special_names
    is_special = np.array([name in special_names for name in names])
    has_vector = rows.numpy()
    tokens = int((~is_special).sum())
    found = int((has_vector & ~is_special).sum())
    counts = _counts(part.column, len(names))
    # An unknown word counts as one without a vector, but the tokens around every text do not count.
    is_counted = ~is_special
    unknown = part.tokenizer.special_tokens.unknown
    if unknown is not None:
        is_counted[unknown] = True
    total = int(counts[is_counted].sum())
    share = int(counts[is_counted & has_vector].sum()) / max(1, total)
    key = f"model.{part.role}.word_vectors"
    unit = recipe.data.fields[part.field].unit
    hint = "Check the language and the spelling of the file."
    if unit != "words":
        hint = f"Words fit data.{part.field}.tokenizer = 'words'."
    if not found:
        wanted = f"a file with words of the vocabulary, whose tokenizer is {unit!r}"
        got = f"none of its {tokens:,} tokens in {path}"
        raise InvalidRecipe([Problem(key, wanted, got, hint)])
    of_text = f"{100 * share:.1f} % of the training tokens"
    message = (
        f"{part.role}.word_vectors: {found:,} of {tokens:,} tokens found "
        f"({100 * found / tokens:.1f} %; {of_text})"
    )
    on_event(
        {
            "event": "word_vectors",
            "part": part.role,
            "file": path,
            "found": found,
            "tokens": tokens,
            "training_share": share,
            "message": message,
        }
    )
    if share < LOW and unit != "words":
        warning = f"{key}: only {of_text} have a vector, as the tokenizer is {unit!r}. {hint}"
        on_event({"event": "warning", "message": warning})


def _token_parts(recipe: Recipe, model: Model, data: Prepared) -> Iterator[TokenPart]:
    """The parts of the model that word vectors are named for."""
    roles = [role for role, _ in word_vector_parts(recipe.model)]
    train = data.train
    assert train is not None
    *source_fields, _ = recipe.data.fields
    reads_target = recipe.task.reads_target
    sources: Sequence[Column | None] = [train.source]
    if isinstance(train.source, MultiSourceColumn):
        sources = train.source.columns
    for number, role in enumerate(recipe.model.encoder_names):
        if role not in roles:
            continue
        # The encoder below a masked-token head reads the target.
        field = "target"
        vocabulary: VocabularyType | None = data.target
        column: Column | None = train.target
        if not reads_target:
            field = source_fields[number]
            vocabulary = data.sources[number]
            column = sources[number]
        tokenizer = require_tokenizer(vocabulary, f"model.{role}.word_vectors")
        assert isinstance(column, TextColumn | RunningTextColumn)
        yield TokenPart(role, source_encoders(model.encoder)[number], field, tokenizer, column)
    seq2seq = model.generator
    if "decoder" in roles and seq2seq is not None:
        target = require_tokenizer(data.target, "model.decoder.word_vectors")
        assert isinstance(train.target, TextColumn | RunningTextColumn)
        yield TokenPart("decoder", seq2seq.decoder, "target", target, train.target)


def _weight_name(model: Model, part: TokenPart) -> str:
    """The name of the matrix of a part's embeddings among the model's parameters."""
    weight = part.embedding().weight
    return next(name for name, parameter in model.named_parameters() if parameter is weight)


def _counts(column: TextColumn | RunningTextColumn, size: int) -> NDArray[np.int64]:
    """How often each token occurs."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(column.ids), CHUNK):
        counts += np.bincount(column.ids[start : start + CHUNK], minlength=size)
    return counts
