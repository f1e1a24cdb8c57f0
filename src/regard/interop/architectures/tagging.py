"""The head of ...ForTokenClassification: a linear layer from the state of the first token of a word to its tag."""

from typing import Any

from regard.model.model_config import ModelConfig
from regard.model.tag_head import TagsConfig


def tagging_head(dropout: float, vocab_size: int) -> dict[str, Any]:
    """The keys of a model's table. Every sequence of tags is permitted, as transformers permits it."""
    return {
        "head": {"kind": "tags", "constraints": False, "dropout": dropout},
        "source_vocab_size": vocab_size,
    }


def gives_tags(model: ModelConfig) -> bool:
    """Whether a model has a tag for each word."""
    return model.head is not None and isinstance(model.head.config, TagsConfig)
