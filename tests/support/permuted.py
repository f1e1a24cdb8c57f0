"""The same model with another order of its vocabulary: special tokens whose ids lie elsewhere."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import tokenizers
import torch

from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.inference.predictor import Predictor

MOVED = {0: 7, 1: 3, 2: 9, 3: 11, 4: 0}  # padding, start, end, unknown, mask


def permutation(size: int) -> list[int]:
    """The new id of each token: special tokens as `MOVED` says, the others in reverse."""
    free = iter([i for i in reversed(range(size)) if i not in MOVED.values()])
    return [MOVED[i] if i in MOVED else next(free) for i in range(size)]


def special_tokens(order: list[int], given: SpecialTokens = DEFAULT_TOKENS) -> SpecialTokens:
    """The special tokens, wherever they are now."""
    return SpecialTokens(
        **{
            key: None
            if value is None
            else order[value]
            if isinstance(value, int)
            else tuple(order[i] for i in value)
            for key, value in vars(given).items()
        }
    )


def permuted_tokenizer(tokenizer: Tokenizer, order: list[int]) -> Tokenizer:
    content = json.loads(tokenizer.to_json())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {token: order[i] for token, i in vocabulary.items()}
    content["added_tokens"] = sorted(
        (each | {"id": order[each["id"]]} for each in content["added_tokens"]),
        key=lambda each: each["id"],
    )
    inner = tokenizers.Tokenizer.from_str(json.dumps(content))
    return Tokenizer(inner, special_tokens(order, tokenizer.special_tokens))


def permuted_model(model: Any, order: list[int]) -> Any:
    """The model whose embeddings and output layer have the rows of the new order."""
    other, size = deepcopy(model), len(order)
    with torch.no_grad():
        for before, after in zip(model.parameters(), other.parameters(), strict=True):
            if before.shape[0] == size:
                after[order] = before
    return other


def permuted(predictor: Predictor) -> Predictor:
    """The predictor with its one vocabulary permuted."""
    order = permutation(predictor.target.size)
    assert isinstance(predictor.target, Tokenizer)
    words = permuted_tokenizer(predictor.target, order)
    sources = tuple(words for _ in predictor.sources)
    return replace(
        predictor, model=permuted_model(predictor.model, order), sources=sources, target=words
    )
