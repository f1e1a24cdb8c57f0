"""An output as text, piece by piece, while its tokens are generated."""

from collections.abc import Iterable, Iterator, Sequence

from regard.data.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"  # decoded from a character of which some bytes are still missing


class TextStream:
    """The text of an output, of which each token adds a piece; a character of several tokens comes when complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.before: list[
            int
        ] = []  # the tokens of the last piece: how a token is written depends on what it follows
        self.pending: list[int] = []

    def add(self, token: int) -> str:
        """The text that is complete with this token; empty where none is."""
        self.pending.append(token)
        piece = self.rest()
        if not piece or piece.endswith(INCOMPLETE):
            return ""
        self.before = self.pending
        self.pending = []
        return piece

    def rest(self) -> str:
        """What is left after the last token."""
        decode = self.tokenizer.decode
        return decode([*self.before, *self.pending])[len(decode(self.before)) :]


class StopStrings:
    """Ends a text before the first of some strings; what may be the beginning of one is withheld until it is not."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = [each for each in strings if each]
        self.found = False
        self._held = ""

    def add(self, piece: str, *, last: bool = False) -> str:
        """The text that is certain with this piece; nothing after one of the strings was found."""
        if self.found:
            return ""
        text = self._held + piece
        places = [place for each in self.strings if (place := text.find(each)) >= 0]
        if places:
            self.found = True
            self._held = ""
            return text[: min(places)]
        beginnings = (each[:size] for each in self.strings for size in range(1, len(each)))
        held = (
            0 if last else max((len(each) for each in beginnings if text.endswith(each)), default=0)
        )
        certain = len(text) - held
        self._held = text[certain:]
        return text[:certain]


def pieces_before(pieces: Iterable[str], strings: Sequence[str]) -> Iterator[str]:
    """The pieces of a text up to the first of some strings, of which nothing is given."""
    stops = StopStrings(strings)
    for piece in pieces:
        if certain := stops.add(piece):
            yield certain
        if stops.found:
            return
    if rest := stops.add("", last=True):
        yield rest


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text that each token adds: joined, that of all of them. A character of several tokens comes with the last."""
    stream = TextStream(tokenizer)
    texts = [stream.add(token) for token in ids]
    if texts:
        texts[-1] += stream.rest()
    return texts


def text_pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text that each token adds."""
    stream = TextStream(tokenizer)
    for token in ids:
        if piece := stream.add(token):
            yield piece
    if rest := stream.rest():
        yield rest
