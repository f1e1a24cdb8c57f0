"""An output as text, piece by piece, while its tokens are generated."""

from collections.abc import Iterable, Iterator

from regard.data.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"  # decoded from a character of which some bytes are still missing


def text_pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text that each token adds; a character of several tokens is yielded when it is complete."""
    before: list[int] = []  # the tokens of the last piece: how a token is written depends on what it follows
    pending: list[int] = []

    def added() -> str:
        return tokenizer.decode([*before, *pending])[len(tokenizer.decode(before)) :]

    for token in ids:
        pending.append(token)
        piece = added()
        if piece and not piece.endswith(INCOMPLETE):
            yield piece
            before, pending = pending, []
    if rest := added():
        yield rest
