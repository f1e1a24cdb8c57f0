"""Tags are transferred from a text to the aligned words of its translation."""

import re
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given, strategies as st

from regard.inference.markup import extract_tags, insert_tags


def carried(text: str, output: str, origins: list[int | None]) -> str:
    return insert_tags(
        extract_tags(text), output, [word.span() for word in re.finditer(r"\S+", output)], origins
    )


CARRIED = {  # text with tags, output, the origin of each of its words, output with tags
    "nested": (
        'The <b>red <i class="x">car</i></b> stops',
        "das rote Auto hält",
        [0, 1, 2, 3],
        'das <b>rote <i class="x">Auto</i></b> hält',
    ),
    "moved": ("<b>A</b> x <i>B</i>", "b a x", [2, 0, 1], "<i>b</i> <b>a</b> x"),
    "moved apart": ("<b>take out</b> it", "nimm es raus", [0, 2, 1], "<b>nimm</b> es <b>raus</b>"),
    "several words": (
        "<b>one two</b> three",
        "eins  und zwei drei",
        [0, None, 1, 2],
        "<b>eins  und zwei</b> drei",
    ),
    "no word is left": (
        "here <b><i>gone</i></b> there",
        "hier dort",
        [0, 2],
        "hier <b><i></i></b>dort",
    ),
    "none left, in another": (
        "<b>x <i>gone</i></b> there",
        "dort x",
        [2, 0],
        "dort <b>x<i></i></b>",
    ),
    "alone": ("stop.<br/>Go on", "halt. geh weiter", [0, 1, 2], "halt.<br/> geh weiter"),
    "alone, leaning": ("see <img src='a>b'>this", "dies sieh", [1, 0], "<img src='a>b'>dies sieh"),
    "part of a word": ("un<b>believ</b>able", "unglaublich", [0], "<b>unglaublich</b>"),
    "nothing to say": ("<b>x</b><hr>", "", [], "<b></b><hr>"),
    "signs": (
        "<b>a &lt; b</b> &amp; <3",
        "a < b & <3",
        [0, 1, 2, 3, 4],
        "<b>a &lt; b</b> &amp; &lt;3",
    ),
    "no tags": ("a  b", "A B", [0, 1], "A B"),
}


@pytest.mark.parametrize("name", CARRIED)
def test_tags_follow_their_words(name):
    text, output, origins, wanted = CARRIED[name]
    assert carried(text, output, origins) == wanted


def test_the_model_reads_no_tags():
    assert (
        extract_tags('a <b> b&amp;c </b>\t<x id="1"/> d<br>e, file<x/>.').text == "a b&c d e, file."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a</b>", "line 3: wanted a tag that opens, before one that closes; got </b>"),
        ("<b>a", "line 3: wanted <b> to be closed first; got its end"),
        ("<b><i>a</b></i>", "line 3: wanted <i> to be closed first; got </b>"),
    ],
)
def test_tags_that_do_not_match_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        extract_tags(text, "line 3")


class Reader(HTMLParser):
    """Python's own HTML parser: every word with the tags around it; improper nesting fails."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words: list[tuple[str, list[str]]] = []
        self.seen: set[str] = set()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(attrs[0][1])
        self.seen.add(attrs[0][1])

    def handle_startendtag(self, tag, attrs):
        self.seen.add(attrs[0][1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.words += [(word, list(self.open)) for word in data.split()]


WORDS = st.text("ab<>&/;\"'b=", min_size=1, max_size=4)


@st.composite
def marked(draw):
    """A text with uniquely numbered tags, each surrounded by spaces; and the tags around each word."""
    parts: list[str] = []
    around: list[list[str]] = []
    names: list[str] = []
    numbers = iter(range(100))

    def content(path: list[str], depth: int) -> None:
        for kind in draw(st.lists(st.sampled_from("wwtea"), max_size=4)):
            if kind == "w":
                parts.append(draw(WORDS).replace("&", "&amp;").replace("<", "&lt;"))
                around.append(path)
            elif kind == "a":
                names.append(f"x{next(numbers)}")
                parts.append(f'<x id="{names[-1]}"/>')
            elif depth < 3:
                name = f"{draw(st.sampled_from('bi'))}{next(numbers)}"
                names.append(name)
                parts.append(f'<{name[0]} id="{name}">')
                content([*path, name], depth + 1)
                parts.append(f"</{name[0]}>")

    content([], 0)
    return " ".join(parts), around, names


@given(marked(), st.lists(WORDS, max_size=6), st.data())
def test_tags_are_balanced_and_around_the_aligned_words(text_around, words, data):
    text, around, names = text_around
    origin = st.sampled_from([None, *range(len(around))])
    origins = data.draw(st.lists(origin, min_size=len(words), max_size=len(words)))
    found = carried(text, " ".join(words), origins)
    read = Reader(found)
    assert [word for word, _ in read.words] == words
    assert read.seen == set(names)
    for (_, path), one in zip(read.words, origins, strict=True):
        if one is not None:
            assert path == around[one]
    assert unescape(re.sub("<[^>]*>", "", found)) == " ".join(words)
    assert (
        carried(found, " ".join(words), list(range(len(words)))) == found
    )  # and can be transferred again


ATTACHED = {  # whether the element is written directly before the next word
    "a <x/>b": True,
    "<x/>b": True,
    "a<x/>b": False,
    "a <x/> b": False,
    "a<x/> b": False,
    "a <x/>": False,
    "<x/>": False,
}


@pytest.mark.parametrize("text", ATTACHED)
def test_an_element_attaches_to_the_word_that_it_precedes(text):
    (element,) = extract_tags(text).elements
    assert element.attaches_right is ATTACHED[text]
