"""`regard predict --engine ray`: the same bytes as the local engine, also where a replica is killed."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

import regard
from regard.api import predict as verb
from regard.core.errors import CheckpointRefused, InvalidArgument
from regard.inference import ray_data
from regard.inference.line_chunks import LineChunk, chunk_outputs
from support import predict_with_ray
from support.command_line import command
from support.forged import GOLDEN
from support.predictors import translator
from support.ray_processes import run

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `ray`")
pytest.importorskip("ray", reason="needs the extra `ray`")

MODEL = GOLDEN / "transformer"
CHUNK = predict_with_ray.CHUNK
LINES = [
    "".join(chr(97 + (i * j) % 26) for j in range(i % 9)) for i in range(5 * CHUNK + 7)
]  # some are empty


def answers(rows: list[dict], options: dict) -> list[dict]:
    """What a replica gives for chunks, without Ray."""
    replica = ray_data.Replica(str(MODEL), "cpu", options)
    return [each for row in rows for each in replica(pyarrow.Table.from_pylist([row])).to_pylist()]


def rows_of(*chunks: LineChunk) -> list[dict]:
    return [{"id": each.first, "chunk": ray_data._encoded(each)} for each in chunks]


def test_replicas_answer_in_any_order():
    lines = ["abc", "", "hello", "ab", "x", "é", "yz"]
    options = {
        "scores": True,
        "attention": True,
        "num_hypotheses": 2,
        "beam_size": 2,
        "max_length": 9,
    }
    chunks = [
        LineChunk(i + 1, lines[i : i + 3], {"prefixes": lines[i : i + 3]})
        for i in range(0, len(lines), 3)
    ]
    rows = answers(rows_of(*chunks), options)
    random.Random(1).shuffle(rows)
    assert [row["id"] for row in rows] != [1, 4, 7]
    found = list(ray_data._in_order(rows))
    model = regard.load(MODEL)
    wanted = [outputs for chunk in chunks for outputs in chunk_outputs(model, chunk, options)]
    assert [line for line, _ in found] == lines
    for (_, given), expected in zip(found, wanted, strict=True):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            weights, others = vars(one).pop("attention"), vars(other).pop("attention")
            assert vars(one) == vars(other)
            assert (weights is None) == (others is None)
            assert weights is None or (
                weights.shape == others.shape and bool((weights == others).all())
            )


def test_the_first_error_is_told_after_the_outputs_before_it():
    rows = answers(
        rows_of(*(LineChunk(i, ["abc"[: 4 - i] * i], {}) for i in (1, 2, 3))),
        {"max_source_length": 3},
    )
    found = ray_data._in_order(reversed(rows))
    assert next(found)[0] == "abc"
    with pytest.raises(InvalidArgument, match="line 2: wanted at most 3 tokens"):
        next(found)


def test_a_checkpoint_that_is_refused_by_a_replica_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    (row,) = rows_of(LineChunk(1, ["a"], {}))
    (answered,) = ray_data.Replica(str(tmp_path), "cpu", {})(
        pyarrow.Table.from_pylist([row])
    ).to_pylist()
    with pytest.raises(CheckpointRefused, match=r"manifest\.json") as refused:
        list(ray_data._in_order([answered]))
    assert refused.value.exit_code == 4


def test_what_the_engine_cannot_do_is_refused(tmp_path):
    for wrong, message in (
        ({"engine": "spark"}, "engine: wanted local or ray"),
        ({"replicas": 2}, "replicas: wanted the engine ray"),
        ({"engine": "ray"}, "model: wanted a run or a checkpoint"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            next(regard.predict(translator(), ["a"], **wrong))
    with pytest.raises(InvalidArgument, match="replicas: wanted 1 or more; got 0"):
        next(regard.predict(MODEL, ["a"], engine="ray", replicas=0))
    for options in (
        ["--engine", "ray", "--stream"],
        ["--replicas", "2"],
        ["--stream", "--out", "x"],
    ):
        refused = command("predict", MODEL, "/dev/null", *options)
        assert refused.returncode == 2, refused.stderr
        assert "wanted nothing" in refused.stderr


def test_an_output_file_is_complete_or_not_there(tmp_path):
    (tmp_path / "in.txt").write_text("abc\n\nabcdefgh\n")
    done = command("predict", MODEL, tmp_path / "in.txt", "--out", tmp_path / "out.txt")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "out.txt").read_text() == command(
        "predict", MODEL, tmp_path / "in.txt"
    ).stdout
    # The file of an input that cannot be read to its end would lack lines.
    (tmp_path / "wrong.txt").write_bytes(b"abc\n\xff\nabc\n")
    wrong = command("predict", MODEL, tmp_path / "wrong.txt", "--out", tmp_path / "none.txt")
    assert wrong.returncode == 2
    assert "wrong.txt, line 2" in wrong.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt", "wrong.txt"]


def test_an_output_file_has_a_line_for_each_input_also_where_one_is_too_long(tmp_path):
    (tmp_path / "in.txt").write_text("abc\nabcdefgh\nabc\n")
    files = [tmp_path / "in.txt", "--out", tmp_path / "out.txt"]
    done = command("predict", MODEL, *files, "--set", "max_source_length=5")
    assert done.returncode == 2
    first, refused, last = (tmp_path / "out.txt").read_text().splitlines()
    assert refused == ""
    assert first == last != ""


@pytest.mark.slow
def test_a_cluster_writes_the_bytes_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "CHUNK", CHUNK)
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in LINES))
    (tmp_path / "begin.txt").write_text("".join(line[:1] + "\n" for line in LINES))
    sampled = [
        "--sample",
        "--n-best",
        "2",
        "--max-length",
        "12",
        "--prefix",
        str(tmp_path / "begin.txt"),
        "--json",
    ]
    given = ["predict", str(MODEL), str(tmp_path / "in.txt")]
    cases = [  # how often a replica is killed, and the options
        (1, [*sampled, "--replicas", "2"]),
        (9, ["--max-length", "3", "--replicas", "1"]),
        (0, ["--device", "cuda"]),
    ]
    commands = [
        [times, [*given, *options, "--engine", "ray", "--out", str(tmp_path / f"out-{number}")]]
        for number, (times, options) in enumerate(cases)
    ]
    (tmp_path / "deaths").mkdir()
    done = run(
        Path(predict_with_ray.__file__),
        tmp_path / "deaths",
        text="\n".join(map(json.dumps, commands)),
    )
    assert done.returncode == 0, done.stderr
    results = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    ]  # Ray prints too
    assert [(each["code"], each["deaths"]) for each in results] == [(0, 1), (1, 2), (2, 0)], results
    assert command(*given, *sampled, "--out", tmp_path / "local").returncode == 0
    assert (tmp_path / "out-0").read_bytes() == (tmp_path / "local").read_bytes()
    assert (
        "lines 129 to 192: wanted outputs; got only replicas that were killed"
        in results[1]["messages"]
    )
    assert (
        "device: wanted auto, cpu, or cuda where the Ray cluster has a GPU"
        in results[2]["messages"]
    )
    assert not [number for number in (1, 2) if (tmp_path / f"out-{number}").exists()]


def test_a_chunk_is_tried_so_often():
    attempts = ray_data.Attempts(3)
    assert [attempts.begin(chunk) for chunk in (1, 1, 5, 1, 1, 5)] == [
        True,
        True,
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("device", "cluster", "wanted"),
    [
        ("auto", {"CPU": 5.0, "GPU": 2.0}, ("cuda", 2)),
        ("auto", {"CPU": 5.0}, ("cpu", 5)),
        ("cpu", {"CPU": 5.0, "GPU": 2.0}, ("cpu", 5)),
        ("cuda", {"CPU": 5.0, "GPU": 1.0}, ("cuda", 1)),
        ("cpu", {"CPU": 1.0}, ("cpu", 1)),
        ("cpu", {}, ("cpu", 1)),
        ("cuda", {"CPU": 5.0}, None),
        ("mps", {"CPU": 5.0}, None),
    ],
)
def test_replicas_that_a_cluster_has_room_for(device, cluster, wanted):
    ray = SimpleNamespace(cluster_resources=lambda: cluster)
    if wanted is None:
        with pytest.raises(
            InvalidArgument,
            match="device: wanted auto, cpu, or cuda where the Ray cluster has a GPU",
        ):
            ray_data._resources(ray, device)
    else:
        assert ray_data._resources(ray, device) == wanted
