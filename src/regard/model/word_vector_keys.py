"""The keys of a part that embeds tokens, whose embeddings may begin as word vectors of a file.

The configuration of a user's own part has these keys if it derives from `WordVectorKeys` too:

    @dataclass(frozen=True)
    class MyConfig(WordVectorKeys, EncoderConfig):
        dim: Count = 256
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.core.config import doc
from regard.core.errors import Problem
from regard.model.part_config import PartConfig

if TYPE_CHECKING:
    from regard.model.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class WordVectorKeys(PartConfig):
    word_vectors: str | None = doc(
        None,
        "file of word vectors that the embeddings begin with: word2vec's text or binary format, or "
        "the text format of GloVe and fastText (docs/training.md)",
    )
    freeze_word_vectors: bool = doc(
        False, "keep the embeddings of tokens that the file has as they are; others are trained"
    )


def word_vector_parts(model: "ModelConfig") -> Iterator[tuple[str, WordVectorKeys]]:
    """The parts whose embeddings begin as word vectors, each with its table."""
    for role, part in model.parts():
        if isinstance(part.config, WordVectorKeys) and part.config.word_vectors is not None:
            yield role, part.config


def word_vector_conflicts(model: "ModelConfig") -> Iterator[Problem]:
    """Keys of word vectors without effect, or that contradict the sharing of embeddings."""
    for role, part in model.parts():
        if not isinstance(part.config, WordVectorKeys) or not part.config.freeze_word_vectors:
            continue
        key = f"model.{role}.freeze_word_vectors"
        if part.config.word_vectors is None:
            yield Problem(
                key, "false without word_vectors", "true", "Name a file, or leave it out."
            )
        elif _is_output_layer(model, role):
            tied = model.options.tie_embeddings
            wanted = f"false with tie_embeddings = {tied!r}, where the output layer is this matrix"
            yield Problem(key, wanted, "true", "Set model.tie_embeddings = 'none'.")
    if model.options.tie_embeddings == "all":
        files = {role: config.word_vectors for role, config in word_vector_parts(model)}
        first, *others = files or [""]
        for role in others:
            if files[role] != files[first]:
                wanted = f"the file of model.{first} with tie_embeddings = 'all'"
                remedy = "Name one file, or set model.tie_embeddings = 'target'."
                yield Problem(f"model.{role}.word_vectors", wanted, repr(files[role]), remedy)


def _is_output_layer(model: "ModelConfig", role: str) -> bool:
    """Whether the embeddings of a part are the matrix of the output layer too."""
    tied = model.options.tie_embeddings
    if not model.gives_tokens or tied == "none":
        return False
    return tied == "all" or role == "decoder" or model.head is not None
