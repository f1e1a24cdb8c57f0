"""An output as text, piece by piece, while its tokens are generated."""

from collections.abc import Iterable, Iterator

from regard.data.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"  # decoded from a character of which some bytes are still missing


class TextStream:
    """The text of an output, of which each token adds a piece; a character of several tokens comes when complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.before: list[int] = []  # the tokens of the last piece: how a token is written depends on what it follows
        self.pending: list[int] = []

    def add(self, token: int) -> str:
        """The text that is complete with this token; empty where none is."""
        self.pending.append(token)
        piece = self.rest()
        if not piece or piece.endswith(INCOMPLETE):
            return ""
        self.before, self.pending = self.pending, []
        return piece

    def rest(self) -> str:
        """What is left after the last token."""
        decode = self.tokenizer.decode
        return decode([*self.before, *self.pending])[len(decode(self.before)) :]


def text_pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text that each token adds."""
    stream = TextStream(tokenizer)
    for token in ids:
        if piece := stream.add(token):
            yield piece
    if rest := stream.rest():
        yield rest
