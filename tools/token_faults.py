"""Small faults in JavaScript and C++: a scanner for their tokens, and the faults that can be planted in these.

The scanner knows comments, strings, templates, regular expressions and the lines of the preprocessor, so that
faults are planted in code only. It knows no grammar: `<` and `*` are operators where they stand between spaces,
as the formatters of both languages write them. A fault in C++ may therefore not compile: `compiles` tells.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


JAVASCRIPT = (".js",)
CPP = (".cpp", ".h")
SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "===": "!==", "!==": "===",
    "&&": "||", "||": "&&", "+": "-", "-": "+", "*": "/", "/": "*", "<<": ">>", ">>": "<<",
    "+=": "-=", "-=": "+=", "true": "false", "false": "true",
}  # fmt: skip
BINARY = frozenset(SWAPPED) - {"true", "false"}
OTHER_OPERATORS = ">>> => -> :: ++ -- ** ?? ?. ... <<= >>= *= /= |= &= ^= %= &&= ||= ??= **="  # longer than a character
# The longest first: the first that a text begins with is the one that is there.
OPERATORS = sorted({*BINARY, *OTHER_OPERATORS}, key=len, reverse=True)
OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = {close: open_ for open_, close in OPENING.items()}
# A statement that begins with one of these declares something or controls what runs: it is not dropped.
KEYWORDS = _words("""
    async await auto bool break case catch char class const constexpr continue default delete do double else enum
    export extern false float for function goto if import inline int int8_t int32_t int64_t let namespace new of
    return signed size_t static static_assert struct super switch template this throw true try typedef typename
    uint8_t uint32_t uint64_t union unsigned using var void volatile while yield
""")
# A slash after one of these words begins a regular expression.
BEFORE_REGEX = _words("await case delete do else in new of return throw typeof void")
WORD = re.compile(r"[A-Za-z_$][\w$]*")
NUMBER = re.compile(r"0[xXbBoO][\da-fA-F']+\w*|(?:\d[\d_']*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w*")
PLAIN_NUMBER = re.compile(r"\d+(\.\d+)?")
REGEX = re.compile(r"/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/\w*")
RAW_STRING = re.compile(r'R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"', re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
PREPROCESSOR = re.compile(r"#(?:\\\n|[^\n])*")
TEMPLATE_TEXT = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*", re.DOTALL)
# What a function is called, in a line that begins one.
DEFINITIONS = (
    re.compile(r"\bfunction\s*\*?\s*(?P<name>[\w$]+)"),
    re.compile(r"\b(?:class|struct|namespace)\s+(?P<name>[\w$]+)"),
    re.compile(
        r"\b(?:const|let|auto)\s+(?P<name>[\w$]+)\s*=\s*(?:async\s*)?(?:\[[&=\]]|\(|[\w$]+\s*=>)"
    ),
    re.compile(r"^\s*(?:async\s+|static\s+)?(?P<name>[\w$]+)\s*\([^;]*\)\s*\{$"),
    re.compile(r"^[^=;(]*[\s*&](?P<name>\w+)\s*\([^;]*$"),
)
NOT_NAMES = _words("catch do else for if return switch while")


class Token(NamedTuple):
    """A part of a program. `kind`: word, number, string, comment, regex, preprocessor or operator."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class TokenFault(NamedTuple):
    """A part of a file's text and what replaces it."""

    line: int
    start: int
    end: int
    new: str


def tokens(text: str, *, cpp: bool) -> list[Token]:
    """All tokens of a program, in order; spaces are between them."""
    found = list[Token]()
    # For each template that is open, how many braces are open inside its current expression.
    templates = list[int]()
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        if templates and text[at] == "}" and templates[-1] == 0:
            # The expression ends, and the text of its template goes on.
            end = _template_end(text, at + 1)
            if text.startswith("`", end - 1):
                templates.pop()
            found.append(Token("string", text[at:end], at))
            at = end
            continue
        token = _token(text, at, found, cpp=cpp)
        if token.kind == "string" and token.text.endswith("${") and not cpp:
            templates.append(0)
        elif templates and token.text in ("{", "}"):
            templates[-1] += 1 if token.text == "{" else -1
        found.append(token)
        at = token.end
    return found


def _token(text: str, at: int, before: Sequence[Token], *, cpp: bool) -> Token:
    """The token that begins at this place."""
    patterns = [("comment", COMMENT)]
    if cpp:
        patterns += [("preprocessor", PREPROCESSOR), ("string", RAW_STRING)]
    elif text[at] == "`":
        return Token("string", text[at : _template_end(text, at + 1)], at)
    elif _begins_regex(before):
        patterns.append(("regex", REGEX))
    patterns += [("string", STRING), ("number", NUMBER), ("word", WORD)]
    for kind, pattern in patterns:
        match = pattern.match(text, at)
        if match:
            return Token(kind, match.group(), at)
    operator = next((each for each in OPERATORS if text.startswith(each, at)), text[at])
    return Token("operator", operator, at)


def _template_end(text: str, at: int) -> int:
    """Where the text of a template ends that goes on here: after its last character, or after `${`."""
    match = TEMPLATE_TEXT.match(text, at)
    assert match is not None
    return match.end() + (2 if text.startswith("${", match.end()) else 1)


def _begins_regex(before: Sequence[Token]) -> bool:
    """Whether a slash after these tokens begins a regular expression: it divides only after a value."""
    last = next((token for token in reversed(before) if token.kind != "comment"), None)
    if last is None:
        return True
    if last.kind == "word":
        return last.text in BEFORE_REGEX
    return last.kind == "operator" and last.text not in (")", "]", "}", "++", "--")


def token_faults(text: str, *, cpp: bool) -> Iterator[TokenFault]:
    """All small faults that can be planted in a program, in its order."""
    code = [each for each in tokens(text, cpp=cpp) if each.kind not in ("comment", "preprocessor")]
    for place, token in enumerate(code):
        for start, end, new in _faults_at(text, code, place, nothing="{}" if cpp else "null"):
            if text[start:end] in (new, "undefined"):
                continue
            yield TokenFault(text.count("\n", 0, token.start) + 1, start, end, new)


def _faults_at(
    text: str, code: Sequence[Token], place: int, nothing: str
) -> Iterator[tuple[int, int, str]]:
    """The faults of one token: where the replaced part begins and ends, and what replaces it.

    nothing   what a function returns in place of its value
    """
    token = code[place]
    if _can_be_swapped(text, token):
        yield token.start, token.end, SWAPPED[token.text]
    elif token.text == "!" and not text[token.end].isspace():
        yield token.start, token.end, ""
    elif token.kind == "number" and PLAIN_NUMBER.fullmatch(token.text):
        whole, dot, rest = token.text.partition(".")
        yield token.start, token.end, f"{int(whole) + 1}{dot}{rest}"
    elif token.text == "return":
        end = _statement_end(code, place + 1)
        if end is not None and end > place + 1:
            yield code[place + 1].start, code[end].start, nothing
    if _begins_statement(code, place):
        end = _statement_end(code, place)
        if end is not None:
            yield token.start, code[end].start, ""


def _can_be_swapped(text: str, token: Token) -> bool:
    """Whether it is a truth value, or an operator between two values."""
    if token.kind == "word":
        return token.text in ("true", "false")
    if token.kind != "operator" or token.text not in BINARY:
        return False
    return text[token.start - 1].isspace() and text[token.end : token.end + 1].isspace()


def _begins_statement(code: Sequence[Token], place: int) -> bool:
    """Whether an expression that is a statement of its own begins here: a call, or an assignment."""
    token = code[place]
    if token.kind != "word" or token.text in KEYWORDS or place + 1 >= len(code):
        return False
    if place and code[place - 1].text not in (";", "{", "}"):
        return False
    after = code[place + 1].text
    return after in ("(", ".", "[", "->", "=", "+=", "-=", "*=", "/=", "|=", "++", "--")


def _statement_end(code: Sequence[Token], place: int) -> int | None:
    """The semicolon that ends the statement; None where a block, or the end of one, comes first."""
    open_ = list[str]()
    for at in range(place, len(code)):
        text = code[at].text
        if code[at].kind != "operator":
            continue
        if text == ";" and not open_:
            return at
        if text in OPENING:
            # A brace that follows `=` or stands within parentheses is a value, any other begins a block.
            if text == "{" and not open_ and at > place and code[at - 1].text not in ("=", "=>"):
                return None
            open_.append(text)
        elif text in CLOSING and (not open_ or open_.pop() != CLOSING[text]):
            return None
    return None


def scope_of(text: str, start: int) -> str:
    """The names of the functions and classes that a place is in, the outermost first, by how lines are indented."""
    end = text.find("\n", start)
    lines = text[: len(text) if end < 0 else end].splitlines()
    names = list[str]()
    limit: float = float("inf")
    for line in reversed(lines):
        if not line.strip() or _indent(line) >= limit:
            continue
        limit = _indent(line)
        name = _name(line)
        if name:
            names.append(name)
    return ".".join(reversed(names))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _name(line: str) -> str:
    """What is defined in a line that begins a function or class."""
    for pattern in DEFINITIONS:
        match = pattern.search(line)
        if match and match["name"] not in NOT_NAMES:
            return match["name"]
    return ""


def lines_around(text: str, start: int, end: int) -> tuple[int, int]:
    """Where the lines begin and end that a fault is in: they name it, as an operator alone says too little."""
    after = text.find("\n", end)
    return text.rfind("\n", 0, start) + 1, len(text) if after < 0 else after


def compiles(
    folder: Path, sources: Sequence[str], flags: Sequence[str], files: dict[str, str]
) -> bool:
    """Whether C++ sources compile with some files replaced, and the change is in what this machine compiles.

    folder   of all sources and headers
    files    the new texts of files, by name
    """
    with tempfile.TemporaryDirectory() as temporary:
        for path in folder.iterdir():
            if path.suffix in CPP:
                text = files.get(path.name) or path.read_text("utf-8")
                (Path(temporary) / path.name).write_text(text, "utf-8")
        changed = _preprocessed(Path(temporary), sources, flags)
        same = _preprocessed(folder, sources, flags) == changed
        command = ["g++", *flags, "-march=native", "-fsyntax-only", *sources]
        done = subprocess.run(command, cwd=temporary, capture_output=True, check=False)
    return done.returncode == 0 and not same


def _preprocessed(folder: Path, sources: Sequence[str], flags: Sequence[str]) -> bytes:
    command = ["g++", *flags, "-march=native", "-E", "-P", *sources]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).stdout
