"""Mutation testing: which faults are planted, how samples of them are drawn, and how they are named."""

import ast
import json
import shutil
import subprocess
from itertools import chain, islice
from pathlib import Path

import pytest

import mutants as program
from small_faults import SOURCE, drawn, mutants, numbered, python_mutants, token_mutants
from token_faults import compiles, scope_of, token_faults, tokens

FOLDERS = (
    "studio/app/page",
    "studio/app/standalone",
    "studio/app/api_docs",
    "generation/engines/cpu",
)
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (SOURCE / folder).iterdir()
    if path.suffix in (".js", ".cpp", ".h")
)
SCRIPT = """// 1 < 2
const a = `x ${b < 3 ? `${c}` : "}"} y && z`; /* true */
const r = /[/"]+\\d{2}/.test(d) && !e;
const half = (a) / 2 + f[0] / 4; // a regular expression would end here: /
items.forEach((each) => { each.count += 1; });
export function last(items) {
  if (items.length >= 1) return items.at(-1);
  show("1 < 2");
  return null;
}
"""
SOURCE_CPP = """#if __AVX__ && 1
#define LANES 8
#endif
template <typename T>
int64_t sum(const std::vector<T>& x, int64_t end) {
    int64_t total = 0;  // 1 < 2
    const char* text = "a && b";
    for (int64_t i = 0; i < end; ++i) total += x[i] * 2;
    check(total);
    return total;
}
"""


def is_cpp(path: Path) -> bool:
    return path.suffix != ".js"


def code(text: str, *, cpp: bool) -> list[str]:
    """What a compiler reads of a program: no spaces and no comments."""
    return [token.text for token in tokens(text, cpp=cpp) if token.kind != "comment"]


def planted(text: str, *, cpp: bool) -> set[tuple[int, str, str]]:
    """The line of each fault, what it replaces and by what."""
    faults = token_faults(text, cpp=cpp)
    return {(each.line, text[each.start : each.end], each.new) for each in faults}


def test_the_tokens_of_a_script():
    found = {(each.kind, each.text) for each in tokens(SCRIPT, cpp=False)}
    assert ("comment", "// 1 < 2") in found
    assert ("comment", "/* true */") in found
    assert ("regex", '/[/"]+\\d{2}/') in found
    assert {("string", "`x ${"), ("string", "`${"), ("string", "}`"), ("string", '"}"')} <= found
    assert ("string", "} y && z`") in found
    assert ("operator", "/") in found
    assert ("operator", "&&") in found
    assert not any(kind == "regex" and " " in text for kind, text in found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_tokens_of_a_file_are_all_of_its_text(path):
    text = path.read_text("utf-8")
    end = 0
    for token in tokens(text, cpp=is_cpp(path)):
        assert not text[end : token.start].strip()
        assert text[token.start : token.end] == token.text
        end = token.end
    assert not text[end:].strip()


def test_faults_of_a_script_are_in_its_code_only():
    assert planted(SCRIPT, cpp=False) == {
        (2, "<", "<="),
        (2, "3", "4"),
        (3, "&&", "||"),
        (3, "!", ""),
        (4, "/", "*"),
        (4, "2", "3"),
        (4, "+", "-"),
        (4, "0", "1"),
        (4, "4", "5"),
        (5, "items.forEach((each) => { each.count += 1; })", ""),
        (5, "each.count += 1", ""),
        (5, "+=", "-="),
        (5, "1", "2"),
        (7, ">=", ">"),
        (7, "1", "2"),
        (7, "items.at(-1)", "null"),
        (8, 'show("1 < 2")', ""),
    }


def test_faults_of_cpp_are_in_its_code_only():
    assert planted(SOURCE_CPP, cpp=True) == {
        (6, "0", "1"),
        (8, "0", "1"),
        (8, "<", "<="),
        (8, "+=", "-="),
        (8, "*", "/"),
        (8, "2", "3"),
        (9, "check(total)", ""),
        (10, "total", "{}"),
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_fault_changes_the_code(path):
    text = path.read_text("utf-8")
    cpp = is_cpp(path)
    before = code(text, cpp=cpp)
    faults = list(token_faults(text, cpp=cpp))
    assert faults
    for fault in faults[:: 1 + len(faults) // 20]:
        assert code(text[: fault.start] + fault.new + text[fault.end :], cpp=cpp) != before


PARSER = """const { SourceTextModule } = require("vm");
const programs = JSON.parse(require("fs").readFileSync(0, "utf-8"));
const wrong = programs.filter(({ text }) => {
  try {
    new SourceTextModule(text);
  } catch {
    return true;
  }
});
console.log(JSON.stringify(wrong.map(({ name }) => name)));
"""


def test_scripts_with_a_fault_are_scripts():
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, which reads scripts")
    found = [each for folder in FOLDERS[:3] for each in mutants(folder)][::7]
    assert len(found) > 300
    given = [{"name": each.id, "text": each.text()[1]} for each in found]
    command = [node, "--experimental-vm-modules", "--no-warnings", "-e", PARSER]
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_modules_with_a_fault_are_modules():
    found = [each for each in mutants("generation") if each.path.endswith(".py")]
    assert len(found) > 1000
    for each in found[::50]:
        before, after = each.text()
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))


def test_a_fault_that_does_not_compile_here_is_found_out(tmp_path):
    """Nor is one in lines that the preprocessor leaves out on this machine."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    text = (
        '#include "b.h"\n#ifdef NOT_THIS_MACHINE\nint x = 1;\n#endif\nint f() { return two(); }\n'
    )
    (tmp_path / "a.cpp").write_text(text)
    (tmp_path / "b.h").write_text("inline int two() { return 1 + 1; }\n")

    def compiled(name: str, old: str, new: str) -> bool:
        changed = (tmp_path / name).read_text().replace(old, new)
        return compiles(tmp_path, ["a.cpp"], ["-std=c++17"], {name: changed})

    assert compiled("a.cpp", "two()", "{}")
    assert compiled("b.h", "1 + 1", "1 - 1")
    assert not compiled("a.cpp", "two()", "two() / main")
    assert not compiled("a.cpp", "x = 1", "x = 2")


MODULE = """class Queue:
    def __init__(self, size):
        self.size = size + 1

    def is_full(self, jobs):
        if self.size <= len(jobs[0]):
            return len(jobs[0]) > 0
        return False
"""


def test_the_name_of_a_fault_stays_when_other_lines_change():
    names = [each.id for each in python_mutants("queue.py", MODULE)]
    assert "queue.py Queue.is_full: self.size <= len(jobs[0]) -> self.size < len(jobs[0])" in names
    assert "queue.py Queue.is_full: jobs[0] -> jobs[1]" in names
    changed = "import math\n\n\n" + MODULE.replace(
        "self.size <= len(jobs[0])",
        "(\n            self.size\n            <= len(jobs[0])\n        )",
    )
    changed += "\n    def other(self):\n        return not self.size\n"
    again = [each.id for each in python_mutants("queue.py", changed)]
    assert again[: len(names)] == names
    assert len(again) > len(names)


def test_faults_of_one_name_are_numbered():
    found = list(numbered(python_mutants("queue.py", MODULE)))
    twice = [each for each in found if each.after == "jobs[1]"]
    assert [each.number for each in twice] == [1, 2]
    assert len({each.id for each in found}) == len(found)


def test_a_fault_of_a_script_is_named_by_its_function_and_line():
    found = {each.id for each in token_mutants("a.js", SCRIPT)}
    line = "if (items.length >= 1) return items.at(-1);"
    assert f"a.js last: {line} -> {line.replace('>=', '>')}" in found
    assert scope_of(SOURCE_CPP, SOURCE_CPP.index("total +=")) == "sum"


def test_samples_are_drawn_evenly_and_depend_on_the_seed_alone():
    found = [*mutants("studio"), *mutants("cli"), *mutants("recipe")]
    sample = dict(drawn(found, 1))
    assert list(sample) == ["cli", "recipe", "studio", "studio (JavaScript)"]
    assert sample == dict(drawn(found[::-1], 1))
    assert sample != dict(drawn(found, 2))
    # Those of a package do not depend on what other packages have.
    assert dict(drawn([each for each in found if each.stratum == "cli"], 1))["cli"] == sample["cli"]
    assert {each.id for each in chain(*sample.values())} == {each.id for each in found}
    options = program.arguments(
        ["--seed", "1", "--only", "studio,cli,recipe", "--per-package", "3"]
    )
    chosen = program.sample(options)
    assert chosen[:4] == [order[0] for order in sample.values()]
    assert sorted(each.id for each in chosen) == sorted(
        each.id for order in sample.values() for each in islice(order, 3)
    )
    fewer = program.sample(
        program.arguments(["--seed", "1", "--only", "studio,cli,recipe", "--count", "5"])
    )
    assert fewer == chosen[:5]


def test_known_equivalents_have_a_reason_and_a_name():
    known = program.equivalents()
    entries = (program.EQUIVALENT).read_text("utf-8").count("[[equivalent]]")
    assert len(known) == entries > 0
    assert all(reason.endswith(".") for reason in known.values())


def test_the_share_is_told_for_each_package():
    done = [
        {"id": str(number), "stratum": stratum, "result": result}
        for number, (stratum, result) in enumerate(
            [("cli", "caught"), ("cli", "survived"), ("cli", "survived"), ("data", "caught")]
        )
    ]
    rows = program.table(done, {"2": "It changes nothing."}).splitlines()[2:]
    assert rows == ["| cli | 3 | 1 | 1 | 1 | 50 % |", "| data | 1 | 0 | 1 | 0 | 100 % |"]
