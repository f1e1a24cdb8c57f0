"""Scores of the words of sentences that are longer than a model's positions: computed in windows that overlap."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch.nn.utils.rnn import pad_sequence

from regard.core.shapes import Float, Tensor
from regard.core.word_tokens import WordTokens
from regard.generation.request import position_limit
from regard.model.interfaces import Source
from regard.model.seq2seq import EncoderWithHead
from regard.tasks.pipeline import length_batches

WordRange = tuple[int, int]  # the first word, and the one after the last


def word_scores(
    model: EncoderWithHead, source: Source, *, batch_tokens: int | None = None
) -> Float[Tensor, "B W tags"]:
    """The scores of the tags of each word, those of long sentences from several windows.

    batch_tokens   the most tokens of windows that are computed at once; None: all are, as in training
    """
    limit = word_limit(model)
    if limit is None or not isinstance(source, WordTokens) or positions_of(model, source) <= limit:
        scores: Tensor = model(source)
        return scores
    spans = [
        windows(_sizes(source, row, model), limit - _around(source, row, model))
        for row in range(len(source.ids))
    ]
    placed = [(row, span) for row, own in enumerate(spans) for span in own]
    parts = [_part(source, row, span, limit) for row, span in placed]
    found = _of_parts(model, parts, batch_tokens)
    rows: list[Tensor] = []
    for own in spans:
        rows.append(joined(own, found[: len(own)]))
        found = found[len(own) :]
    return pad_sequence(rows, batch_first=True)


def word_limit(model: EncoderWithHead) -> int | None:
    """The most tokens that the encoder reads at once, those around a sentence included; words, if it encodes these.

    None where it has no limit. The learned tokens that the encoder itself adds have positions, too.
    """
    limit = position_limit(model.encoder)
    return None if limit is None else limit - model.encoder.cls_tokens


def positions_of(model: EncoderWithHead, source: WordTokens) -> int:
    """How many positions the longest sentence takes."""
    read = source.starts if model.encodes_words else source.ids
    return read.shape[1]


def windows(sizes: Sequence[int], limit: int) -> list[WordRange]:
    """Overlapping ranges of words of these sizes that fit into `limit`; one where all do.

    Each begins where half of the window before it has been read, so that every word has context on both sides. A word
    that does not fit is alone in its window.
    """
    found = []
    first = 0
    while True:
        last = min(first + 1, len(sizes))
        size = sum(sizes[first:last])
        while last < len(sizes) and size + sizes[last] <= limit:
            size += sizes[last]
            last += 1
        found.append((first, last))
        if last >= len(sizes):
            return found
        following = first + 1
        read = sum(sizes[first:following])
        while following < last and read < limit // 2:
            read += sizes[following]
            following += 1
        first = following


def joined(spans: Sequence[WordRange], scores: Sequence[Tensor]) -> Float[Tensor, "W tags"]:
    """The scores of all words, each from the window in which it has more context."""
    # The middle of the words that two windows share.
    cuts = [(following[0] + before[1]) // 2 for before, following in pairwise(spans)]
    begins = [0, *cuts]
    stops = [*cuts, spans[-1][1]]
    kept = [
        values[begin - first : stop - first]
        for (first, _), values, begin, stop in zip(spans, scores, begins, stops, strict=True)
    ]
    return torch.cat(kept)


def _sizes(source: WordTokens, row: int, model: EncoderWithHead) -> list[int]:
    """How many positions each word of a sentence takes."""
    count = int(source.word_lengths[row])
    if model.encodes_words:
        return [1] * count
    sizes: list[int] = (source.ends - source.starts)[row, :count].tolist()
    return sizes


def _around(source: WordTokens, row: int, model: EncoderWithHead) -> int:
    """How many positions the tokens around a sentence take."""
    if model.encodes_words:
        return 0
    pieces = sum(_sizes(source, row, model))
    return int(source.lengths[row]) - pieces


def _part(source: WordTokens, row: int, span: WordRange, limit: int) -> WordTokens:
    """A range of words with the tokens around the sentence; of a word that is longer than that, the first pieces."""
    first, last = span
    length = int(source.lengths[row])
    starts = source.starts[row, first:last]
    ends = source.ends[row, first:last]
    if first == last:
        # A sentence without words.
        inside = source.ids[row, :length]
        return _batch_of_one(source, row, span, inside, starts, ends)
    before = source.ids[row, : source.starts[row, 0]]
    after = source.ids[row, source.ends[row, int(source.word_lengths[row]) - 1] : length]
    begin = int(starts[0])
    room = max(1, limit - len(before) - len(after))
    stop = min(int(ends[-1]), begin + room) if last == first + 1 else int(ends[-1])
    inside = torch.cat((before, source.ids[row, begin:stop], after))
    shift = len(before) - begin
    return _batch_of_one(source, row, span, inside, starts + shift, ends.clamp(max=stop) + shift)


def _batch_of_one(
    source: WordTokens, row: int, span: WordRange, ids: Tensor, starts: Tensor, ends: Tensor
) -> WordTokens:
    characters = None
    if source.characters is not None:
        characters = source.characters[row, span[0] : span[1]][None]
    return WordTokens(
        ids[None],
        torch.tensor([len(ids)], device=ids.device),
        starts=starts[None],
        ends=ends[None],
        word_lengths=torch.tensor([span[1] - span[0]], device=ids.device),
        characters=characters,
    )


def _of_parts(
    model: EncoderWithHead, parts: Sequence[WordTokens], batch_tokens: int | None
) -> list[Tensor]:
    """The scores of the words of each window."""
    sizes = [part.ids.shape[1] for part in parts]
    batches = [list(range(len(parts)))]
    if batch_tokens is not None:
        batches = list(length_batches(sizes, batch_tokens))
    found: dict[int, Tensor] = {}
    for rows in batches:
        scores = model(_together([parts[row] for row in rows]))
        for place, row in enumerate(rows):
            found[row] = scores[place, : parts[row].starts.shape[1]]
    return [found[row] for row in range(len(parts))]


def _together(parts: Sequence[WordTokens]) -> WordTokens:
    """Batches of one as one batch."""

    def padded(tensors: Sequence[Tensor]) -> Tensor:
        return pad_sequence([tensor[0] for tensor in tensors], batch_first=True)

    characters = None
    if parts[0].characters is not None:
        characters = padded([part.characters for part in parts if part.characters is not None])
    return WordTokens(
        padded([part.ids for part in parts]),
        torch.cat([part.lengths for part in parts]),
        starts=padded([part.starts for part in parts]),
        ends=padded([part.ends for part in parts]),
        word_lengths=torch.cat([part.word_lengths for part in parts]),
        characters=characters,
    )
