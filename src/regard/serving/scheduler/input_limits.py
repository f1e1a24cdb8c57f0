"""How long the texts of a request may be: as the operator's recipe says. A request may ask for less, never for more."""

from collections.abc import Mapping, Sequence
from typing import Any

from regard.core.errors import InvalidArgument
from regard.data.fields.text import tokenizer_of
from regard.inference.predictor import Predictor

SOURCE = "max_source_length"


def check_options(predictor: Predictor, options: Mapping[str, Any]) -> None:
    """Refuse options of [decode] by which a request would raise a limit."""
    most = predictor.recipe.decode.max_source_length
    asked = options.get(SOURCE)
    if isinstance(asked, int) and asked > most:
        remedy = "Leave it out, or ask the operator of this server to raise it in the recipe."
        raise InvalidArgument(
            SOURCE, wanted=f"at most {most}, the limit of this model", got=str(asked), remedy=remedy
        )


def check_inputs(predictor: Predictor, inputs: Sequence[Any]) -> None:
    """Refuse inputs that are too long to be searched from, for work that has no limit of its own."""
    predictor.encode_inputs("input", inputs, predictor.recipe.decode)


def check_output(
    predictor: Predictor, name: str, output: str | Sequence[int] | None, generated: int = 0
) -> None:
    """Refuse an output that a client gives and that is longer than both inputs and outputs usually are.

    generated   tokens of an output that the model has generated itself: as many are allowed
    """
    decode = predictor.recipe.decode
    most = max(decode.max_source_length, decode.max_length, generated)
    if isinstance(output, str):
        target = tokenizer_of(predictor.target)
        if target is None:
            return  # a label
        if len(output.encode()) <= most:
            return  # a token has at least one byte
        (output,) = target.encode_batch([output])
    if output is not None and len(output) > most:
        raise InvalidArgument(
            name,
            wanted=f"at most {most} tokens",
            got=str(len(output)),
            remedy="Split it, or ask the operator of this server to raise decode.max_source_length.",
        )
