"""Outputs that end before the first of their stop strings."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from regard.tasks.pipeline import Output


def before_stop(output: Output, strings: Sequence[str], prompt: int = 0) -> Output:
    """An output that ends before the first of these strings; the whole output where it contains none of them.

    output   with the text that each of its tokens adds
    prompt   tokens at its beginning in which no string is sought

    It keeps the tokens that begin before the string. Its score is that of the search, which counts the others too.
    """
    texts = output.token_texts
    assert texts is not None
    ends = [0, *accumulate(map(len, texts))]
    first = ends[min(prompt, len(texts))]
    places = [output.text.find(each, first) for each in strings]
    places = [place for place in places if place >= 0]
    if not places:
        return output
    place = min(places)
    begins = ends[:-1]
    count = sum(begin < place for begin in begins)
    kept = [
        text[: place - begin] for text, begin in zip(texts[:count], begins[:count], strict=True)
    ]
    log_p = output.log_probabilities
    likely = output.top_logprobs
    weights = output.attention
    return replace(
        output,
        text=output.text[:place],
        tokens=output.tokens[:count],
        token_ids=output.token_ids[:count],
        log_probabilities=None if log_p is None else log_p[:count],
        top_logprobs=None if likely is None else likely[:count],
        token_texts=tuple(kept),
        finish_reason="end",
        attention=None if weights is None else weights[:, :, :count],
    )
