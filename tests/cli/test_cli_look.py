"""`regard look` as a user meets it; what heads are worth; attention in a terminal."""

import json
import logging
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import regard
from golden.write import HERE, LABELLED, PAIRS, TEXTS
from regard.api.ablate import ablate, prune
from regard.api.look import pairs_of
from regard.cli import app
from regard.interpret.editing import editing
from regard.interpret.edits import MaskSource, SwitchHeadOff
from regard.interpret.head_properties import COLUMNS
from regard.interpret.sites import attention_sites
from regard.recipe.recipe import Recipe
from regard.training.validation import mean_loss
from regard.views.terminal import grid_maps, heat_map
from support.command_line import command
from support.corpora import corpus_of

GOLDEN = HERE / "0.1.0"


@pytest.fixture
def pairs(tmp_path, monkeypatch) -> Path:
    """A file of sources and targets."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return table(tmp_path / "pairs.jsonl", PAIRS)


def table(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("\n".join(json.dumps({"source": a, "target": b}) for a, b in rows if a))
    return path


def test_a_text_is_looked_at():
    done = command("look", GOLDEN / "transformer", "a cat", "--output", "A CAT", "--numbers")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "a cat → A CAT"
    assert lines[2] == "decoder 1 cross, 2 heads"
    assert lines[-1] == "Other maps: encoder 1, decoder 1 self"
    weights = regard.look(regard.load(GOLDEN / "transformer"), "a cat", output="A CAT")[
        "decoder 1 cross"
    ].weights()
    first = lines[4].split("→")[0].split()
    assert first[0] == "A"
    assert list(map(int, first[1:])) == [
        round(100 * weight) for weight in weights.mean(0)[0].tolist()
    ]
    assert "\x1b" not in done.stdout
    one = command(
        "look",
        GOLDEN / "transformer",
        "a cat",
        "--layer",
        1,
        "--head",
        1,
        "--rows",
        "0:2",
        "--set",
        "max_length=3",
    )
    assert one.stdout.count("head 1") == 3
    assert len(one.stdout.splitlines()) == 1 + 3 * (2 + 1 + 2)
    assert (
        command("look", GOLDEN / "classifier", "a cat").stdout.splitlines()[0]
        == "a cat → long (62%)"
    )


def test_lines_are_looked_at_one_by_one(tmp_path):
    (tmp_path / "in.txt").write_text("a cat\n\na dog\n")
    short = "--set", "max_length=3"
    from_file = command("look", GOLDEN / "rnn", "--file", tmp_path / "in.txt", "--json", *short)
    told = [json.loads(line) for line in from_file.stdout.splitlines()]
    assert [each["title"] for each in told] == ["a cat", "a dog"]
    assert told[0] == json.loads(
        regard.look(regard.load(GOLDEN / "rnn"), "a cat", max_length=3).to_json()
    )
    piped = command("look", GOLDEN / "rnn", "--json", *short, text="a cat\n\na dog\n")
    assert piped.stdout == from_file.stdout
    together = command(
        "look", GOLDEN / "rnn", "--file", tmp_path / "in.txt", "--summary", "--json", *short
    )
    (line,) = json.loads(together.stdout)["heads"]
    each = [told[i]["maps"][0]["summary"][0]["entropy"] for i in range(2)]
    assert line["entropy"] == pytest.approx(sum(each) / 2)


def test_a_look_is_written_whole(tmp_path):
    out = tmp_path / "look.json"
    done = command("look", GOLDEN / "rnn", "a cat", "--output", "A", "--out", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads(out.read_text())["maps"][0]["name"] == "decoder 1 cross"
    for name, begins in (
        ("x.html", b"<!doctype html>"),
        ("x.png", b"\x89PNG"),
        ("x.svg", b"<svg "),
    ):
        done = command("look", GOLDEN / "rnn", "a cat", "--output", "A", "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).read_bytes().startswith(begins)
    done = command(
        "look",
        GOLDEN / "rnn",
        "a cat",
        "--output",
        "A",
        "--out",
        tmp_path / "x.svg",
        "--view",
        "lines",
    )
    assert "<line " in (tmp_path / "x.svg").read_text()


def test_several_inputs_are_one_page(tmp_path):
    (tmp_path / "in.txt").write_text("a cat\n\na dog\n")
    done = command(
        "look",
        GOLDEN / "rnn",
        "--file",
        tmp_path / "in.txt",
        "--out",
        tmp_path / "x.html",
        "--set",
        "max_length=3",
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    page = (tmp_path / "x.html").read_text()
    assert '"title": "a cat"' in page
    assert '"title": "a dog"' in page
    (tmp_path / "in.txt").write_text("a\n" * 101)
    done = command(
        "look", GOLDEN / "rnn", "--file", tmp_path / "in.txt", "--out", tmp_path / "y.html"
    )
    assert (
        done.returncode,
        "out: wanted one input, or up to 100 for a page; got several" in done.stderr,
    ) == (2, True)


def test_a_map_can_be_chosen(tmp_path):
    given = "look", GOLDEN / "transformer", "a cat", "--output", "A"
    assert "decoder 1 cross, " in command(*given).stdout
    done = command(*given, "--map", "encoder 1")
    assert "encoder 1, 2 heads" in done.stdout
    assert "decoder 1 cross, " not in done.stdout
    assert (
        "decoder 1 cross: none of these rows, it has 2" in command(*given, "--rows", "3:5").stdout
    )
    command(*given, "--map", "encoder 1", "--out", tmp_path / "x.svg")
    assert "encoder 1" in (tmp_path / "x.svg").read_text()


REFUSED = {
    "unknown ending": (("a", "--out", "x.gif"), r"out: wanted a name in \.json.*got x.gif"),
    "no place to write": (
        ("a", "--out", f"{'x' * 300}.html"),
        "xx.html: wanted a file to write to; got File name",
    ),
    "view of what": (
        ("a", "--view", "heat"),
        r"view: wanted --out with a name in \.svg, \.png; got none",
    ),
    "view of a page": (
        ("a", "--out", "x.html", "--view", "heat"),
        "view: wanted --out with .*; got x.html",
    ),
    "unknown view": (
        ("a", "--out", "x.svg", "--view", "heet"),
        "view: wanted one of heat, .*Did you mean 'heat'",
    ),
    "unknown map": (
        ("a", "--map", "decoder 1"),
        "map: wanted one of decoder 1 cross; got 'decoder 1'",
    ),
    "unknown map, before the input is read": (
        ("--file", "none.txt", "--map", "x"),
        "map: wanted one of decoder 1 cross",
    ),
    "map of another layer": (
        ("a", "--layer", "7", "--map", "decoder 1 cross"),
        "layers: wanted some of 1; got",
    ),
    "map of a page": (
        ("a", "--out", "x.html", "--map", "decoder 1 cross"),
        "map: wanted --out with .*; got x.html",
    ),
    "map of a table": (
        ("a", "--summary", "--map", "decoder 1 cross"),
        "map: wanted one look to show; got a table",
    ),
    "several inputs": (
        ("--file", "two.txt", "--out", "x.json"),
        "out: wanted one input; got several",
    ),
    "text and file": (("a", "--file", "two.txt"), "text: wanted one of TEXT, --file and --data"),
    "alignment of what": (("a", "--alignment", "s", "t", "l"), "alignment: wanted --summary"),
    "sort what": (("a", "--sort", "entropy"), "sort: wanted --summary"),
    "sort by what": (
        ("a", "--summary", "--sort", "entrpy"),
        "sort: wanted one of .*Did you mean 'entropy'",
    ),
    "table and file": (
        ("a", "--summary", "--out", "x.json"),
        "out: wanted one look to write; got a table",
    ),
    "set what": (("a", "--set", "layers=1"), r"set: wanted a key of \[decode\]; got layers"),
    "search beside an output": (
        ("a", "--output", "b", "--beam", "2"),
        "beam_size: wanted nothing where no output",
    ),
    "rows": (("a", "--rows", "one"), "rows: wanted a number"),
    "no row": (
        ("a", "--output", "b", "--rows", "9"),
        "rows: wanted whole numbers from -2 to 1; got",
    ),
    "rows backwards": (
        ("a", "--output", "b", "--rows", "1:0"),
        "rows: wanted at least one of 2; got none",
    ),
    "rows beyond": (
        ("a", "--output", "b", "--rows", "9:12"),
        "rows: wanted at least one of 2; got none",
    ),
    "layer": (("a", "--layer", "7"), "layers: wanted some of 1; got"),
    "ablate what": (("a", "--ablate"), "ablate: wanted data"),
    "data": (
        ("--data", "two.txt", "--summary"),
        "data: wanted a file for each of source, target; got two.txt",
    ),
    "data and output": (("--data", "train", "--output", "a"), "output: wanted none beside --data"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("two.txt").write_text("a\nb\n")
    arguments, message = REFUSED[name]
    done = command("look", GOLDEN / "rnn", *arguments)
    assert done.returncode == 2
    with pytest.raises(ValueError, match=message):
        raise ValueError(done.stderr)
    assert not list(tmp_path.glob("x.*"))


def test_data_are_summarised_sentence_by_sentence(pairs, tmp_path):
    model = regard.load(GOLDEN / "transformer")
    report = regard.heads(model, [str(pairs)])
    looks = [regard.look(model, a, output=b) for a, b in PAIRS if a]
    assert report.inputs == len(looks)
    assert [each.name for each in report.heads] == [
        (name, head)
        for name in ("encoder 1", "decoder 1 self", "decoder 1 cross")
        for head in (0, 1)
    ]
    for each in report.heads:
        own = [look[each.site.name].summary(0).heads()[each.means.head].own for look in looks]
        assert each.means.own == pytest.approx(sum(own) / len(own))
    done = command(
        "look", GOLDEN / "transformer", "--data", pairs, "--summary", "--sort", "distance"
    )
    header, *shown = [line.split() for line in done.stdout.splitlines()]
    assert tuple(header) == (
        "map",
        "head",
        *(name for name in COLUMNS if name not in ("alignment", "ablation")),
    )
    distances = [float(line[header.index("distance") - len(header)]) for line in shown]
    assert distances == sorted(
        (round(each.means.distance, 3) for each in report.heads), reverse=True
    )
    for name, text in zip(("a.src", "a.trg", "a.links"), (*PAIRS[0], "0-0"), strict=True):
        (tmp_path / name).write_text(text + "\n")
    files = [tmp_path / name for name in ("a.src", "a.trg", "a.links")]
    more = "--ablate", "--alignment", *files, "--sort", "ablation", "--json"
    told = json.loads(
        command("look", GOLDEN / "transformer", "--data", pairs, "--summary", *more).stdout
    )
    whole = regard.heads(model, [str(pairs)], ablate=True, alignment=files).sorted("ablation")
    assert told == json.loads(json.dumps(whole.as_dict()))
    changes = {(each.site.name, each.head): each.change for each in ablate(model, [str(pairs)])[1]}
    assert {
        (line["map"], line["head"]): line["ablation"] for line in told["heads"]
    } == pytest.approx(changes)


def test_data_of_every_kind_are_read(tmp_path):
    rows = [(text, label) for text, label in LABELLED if text]
    model = regard.load(GOLDEN / "classifier")
    assert list(pairs_of(model.recipe, [str(table(tmp_path / "l.jsonl", rows))])) == rows
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    language = Recipe.of({"data": {"train": "x.txt"}, "model": {"decoder": {"kind": "rnn"}}})
    assert list(pairs_of(language, [str(tmp_path / "t.txt")])) == [
        (text, "") for text in TEXTS if text
    ]
    (tmp_path / "p.tsv").write_text("german\tenglish\nHund\tdog\n")
    parts = {"encoder": {"kind": "bag"}, "decoder": {"kind": "rnn"}}
    dates = Recipe.of({"data": {"synthetic": "dates", "source": {}, "target": {}}, "model": parts})
    assert list(pairs_of(dates, [str(tmp_path / "p.tsv")])) == [("Hund", "dog")]
    assert len(next(pairs_of(dates, ["test"]))[1]) == len("1999-12-31")


def test_ablation_is_the_loss_without_each_head(pairs):
    for family in ("transformer", "rnn", "convolution"):
        model = regard.load(GOLDEN / family)
        whole, found = ablate(model, [str(pairs)])
        corpus = corpus_of([(a, b) for a, b in PAIRS if a], model.source, model.target)
        assert whole == pytest.approx(mean_loss(model.model, corpus, budget=512), rel=1e-5)
        modules = {place.name: module for module, place in attention_sites(model.model).items()}
        heads = [(each.site.name, each.head) for each in found]
        assert heads == [
            (name, head) for name, m in modules.items() for head in range(getattr(m, "heads", 1))
        ]
        for each in found:
            with editing(model.model, [SwitchHeadOff(map=each.site.name, head=each.head)]):
                without = mean_loss(model.model, corpus, budget=512)
            assert each.loss == pytest.approx(without, rel=1e-5)
            assert each.change == pytest.approx(without - whole, abs=1e-6)
        assert any(abs(each.change) > 1e-4 for each in found)
    done = command("look", GOLDEN / "transformer", "--data", pairs, "--ablate", "--json")
    told = json.loads(done.stdout)["heads"]
    assert [each["change"] for each in told] == sorted(
        (each["change"] for each in told), reverse=True
    )


def test_a_pruned_model_says_what_one_with_silent_heads_says(tmp_path):
    model = regard.load(GOLDEN / "transformer")
    small = prune(
        GOLDEN / "transformer", [("encoder 1", 1), ("decoder 1 cross", 0)], tmp_path / "pruned"
    )
    quiet = [SwitchHeadOff(map="encoder 1", head=1), SwitchHeadOff(map="decoder 1 cross", head=0)]
    with editing(model.model, quiet):
        wanted = [score.log_probabilities for score in model.score(*zip(*PAIRS, strict=True))]
    for predictor, same in (
        (small, True),
        (regard.load(tmp_path / "pruned"), True),
        (model, False),
    ):
        found = [score.log_probabilities for score in predictor.score(*zip(*PAIRS, strict=True))]
        assert (
            all(a == pytest.approx(b, abs=1e-5) for a, b in zip(found, wanted, strict=True)) == same
        )
    again = prune(small, [("decoder 1 self", 0)], tmp_path / "twice")
    assert json.loads((again.folder / "config.json").read_text())["pruned"][2] == [
        "decoder 1 self",
        0,
    ]
    for heads, message in (
        ([("decoder 1", 0)], "decoder 1 cross"),
        ([("encoder 1", 2)], "heads 0 to 1"),
    ):
        with pytest.raises(ValueError, match=f"heads: wanted .*{message}"):
            prune(model, heads, tmp_path / "x")
    with pytest.raises(ValueError, match="out: wanted a folder that is not there"):
        prune(model, [], tmp_path / "twice")
    with pytest.raises(ValueError, match="no heads"):
        prune(GOLDEN / "rnn", [("decoder 1 cross", 0)], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_colors_of_24_bits_where_the_terminal_has_them(monkeypatch):
    weights = torch.tensor([[1.0, 0.0]])
    monkeypatch.delenv("COLORTERM", raising=False)
    assert "\x1b[48;5;226m" in heat_map(weights, ["x"], ["a", "b"], color=True)
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert "\x1b[48;2;253;231;37m" in heat_map(weights, ["x"], ["a", "b"], color=True)
    assert "\x1b[48;2;0;0;4m" in heat_map(weights, ["x"], ["a", "b"], color=True)


def test_columns_take_the_width_of_their_names(monkeypatch):
    monkeypatch.delenv("COLORTERM", raising=False)
    weights = torch.tensor([[0.9, 0.1], [0.0, 1.0]])
    assert heat_map(weights, ["犬", "a"], ["猫", "long"]).splitlines() == [
        "   猫 long ",
        "犬 ██       → 猫 90%",
        " a    ████  → long 100%",
    ]
    assert (
        heat_map(weights, ["x", "y"], ["a", "b"], numbers=True).splitlines()[1]
        == "x  90  10  → a 90%"
    )
    coloured = heat_map(weights, ["x", "y"], ["a", "b"], color=True, numbers=True).splitlines()[1]
    assert coloured.startswith(
        "x \x1b[48;5;184m\x1b[38;5;16m90 \x1b[0m \x1b[48;5;53m\x1b[38;5;231m10 \x1b[0m"
    )
    assert "\x1b[31m" not in heat_map(weights, ["\x1b[31m", "y"], ["a", "\x07"])
    nothing = heat_map(
        torch.tensor([[float("nan"), 0.0]]), ["x"], ["a", "b"], numbers=True, color=True
    )
    assert nothing.splitlines()[1].startswith("x ??? ")


def test_pictures_are_shown_region_by_region(monkeypatch):
    monkeypatch.delenv("COLORTERM", raising=False)
    weights = torch.tensor([[0.5, 0.0, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0]])
    assert grid_maps(weights, ["dog", "cat"], (2, 2), width=30).splitlines() == [
        "dog 50%   cat 100%",
        "██",
        "▒▒▒▒        ██",
    ]
    assert grid_maps(weights, ["dog", "cat"], (2, 2), width=9).splitlines()[3:] == [
        "",
        "cat 100%",
        "",
        "  ██",
    ]
    assert grid_maps(weights, ["dog", "cat"], (2, 2), color=True).count("\x1b[48;5;226m") == 2
    with pytest.raises(ValueError, match="weights: wanted a weight for each of 2 × 2 × 3"):
        grid_maps(weights, ["dog", "cat"], (2, 3))


def test_the_command_line_shows_log_records_on_stderr(pairs):
    done = command("look", GOLDEN / "rnn", "--data", pairs, "--ablate")
    assert "regard: decoder 1 cross, head 0: " in done.stderr
    assert "regard:" not in done.stdout
    assert not logging.getLogger("regard").handlers


def test_the_command_line_reads_edits(tmp_path):
    (tmp_path / "edits.json").write_text('[{"edit": "mask_source", "token": 1}]')
    (tmp_path / "broken.json").write_text('[{"edit": ')
    call = ("look", GOLDEN / "transformer", "abc", "--json", "--edit")
    look = json.loads(command(*call, tmp_path / "edits.json").stdout)
    assert look["edits"] == [{"edit": "mask_source", "token": 1}]
    wanted = regard.look(GOLDEN / "transformer", "abc", edits=[MaskSource(token=1)])
    assert look == json.loads(wanted.to_json())
    for file, message in (
        ("broken.json", "broken.json: wanted a JSON list of edits"),
        ("none.json", "wanted a file"),
    ):
        done = command(*call, tmp_path / file)
        assert done.returncode == 2
        assert message in done.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_each_aligned_line_is_written_at_once(options, monkeypatch, tmp_path):
    """A program that reads them from a pipe does not wait for the last one."""
    right, sizes = regard.align, []

    def aligned(*given, **settings):
        for each in right(*given, **settings):
            yield each
            sizes.append(os.fstat(sys.stdout.fileno()).st_size)

    monkeypatch.setattr(regard, "align", aligned)
    (tmp_path / "texts").write_text("1 May 2003\n2 May 2003\n3 May 2003\n")
    done = command("align", GOLDEN / "rnn", "--sources", tmp_path / "texts", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines(keepends=True)
    assert sizes == [len("".join(lines[:count]).encode()) for count in (1, 2, 3)]


def test_colors_from_dark_to_light(monkeypatch):
    """With 256 colors, one for each tenth; a number is white on a dark ground and black on a light one."""
    weights = torch.arange(11.0)[None] / 10
    monkeypatch.delenv("COLORTERM", raising=False)
    drawn = heat_map(weights, ["x"], [str(i) for i in range(11)], color=True)
    cells = re.findall(r"\x1b\[48;5;(\d+)m\x1b\[38;5;(\d+)m", drawn)
    assert [int(ground) for ground, _ in cells] == [16, 53, 54, 60, 24, 30, 36, 71, 112, 184, 226]
    assert [int(letters) for _, letters in cells] == [*[231] * 6, *[16] * 5]
    monkeypatch.setenv("COLORTERM", "24bit")
    drawn = heat_map(weights[:, ::2], ["x"], [str(i) for i in range(6)], color=True)
    ramp = [
        (0, 0, 4),
        (68, 1, 84),
        (59, 82, 139),
        (33, 145, 140),
        (94, 201, 98),
        (253, 231, 37),
    ]  # of viridis, in black
    assert re.findall(r"48;2;(\d+);(\d+);(\d+)m", drawn) == [tuple(map(str, each)) for each in ramp]


def test_no_status_line_is_shown_between_printed_lines(monkeypatch, tmp_path, capsys):
    """Results that are printed one by one show the progress themselves, where stdout is a terminal too."""
    shown = []

    @contextmanager
    def status_line(status, *, shown: bool, asked=shown):
        asked.append(shown)
        yield

    monkeypatch.setattr("regard.views.progress.status_line", status_line)
    (tmp_path / "texts").write_text("1 May 2003\n")
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n1 May 2003\t2003-05-01\n")
    file, pairs = str(tmp_path / "texts"), str(tmp_path / "pairs.tsv")
    verbs = [("align", "--sources", file), ("score", pairs), ("look", "--file", file)]
    for terminal in (True, False):
        for verb, *given in verbs:
            monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
            app([verb, str(GOLDEN / "rnn"), *given], standalone_mode=False)
            assert (verb, shown.pop()) == (verb, not terminal)
