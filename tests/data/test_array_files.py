"""Vectors from .npy and .npz files: named in a table, in a folder of classes, in a zip file, or given from Python."""

import json
import zipfile
from io import BytesIO

import numpy as np
import pytest
import torch

import regard
from regard.core.config import read
from regard.core.errors import InvalidData
from regard.data import array_files
from regard.data.array_files import read_array
from regard.data.config import DataConfig
from regard.data.corpus import prepare
from regard.data.fields.base import make_field
from regard.data.image_store import ARRAYS, open_store
from regard.data.sources import examples
from regard.data.statistics import Statistics

VALUES = np.arange(6.0).reshape(3, 2)
FIELD = {"kind": "vectors"}


def data_of(**table):
    config = read(DataConfig, table, "data")
    assert isinstance(config, DataConfig), config
    return config


def table_of(folder, *rows):
    path = folder / "table.csv"
    path.write_text("\n".join(["x,y", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("dtype", ["f2", "<f4", ">f8", "i1", "u8", "?"])
def test_arrays_of_every_type_of_numbers_are_read(tmp_path, dtype):
    array = VALUES.astype(dtype)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", np.asfortranarray(array))
    np.savez_compressed(tmp_path / "c.npz", whatever=array)
    for name in ("a.npy", "b.npy", "c.npz"):
        found = make_field("vectors").parse(tmp_path / name)
        assert found.dtype == np.float64
        assert found.tolist() == array.astype(float).tolist()


def test_numbers_without_a_second_axis_are_one_channel(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    assert make_field("vectors").parse(tmp_path / "a.npy").tolist() == [[0], [1], [2]]
    assert make_field("vectors").parse("[0, 1, 2]").tolist() == [[0], [1], [2]]


def claiming(shape, descr="'<f4'", content=b""):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "got"),
        (b"not an array", "magic string"),
        (claiming((10**15, 2)), "header claims 8,000,000,000,000,000"),
        (claiming((2, 2), content=bytes(15)), "15 bytes of numbers"),
        (claiming((2, 2), content=bytes(17)), "17 bytes of numbers"),
        (claiming((-1, 2)), "header claims"),
        (claiming((1,), "'|O'", b"cos\nsystem\n"), "dtype object"),
        (claiming((1,), "'<U4'", bytes(16)), "dtype <U4"),
        (claiming((1,), "[('a', '<f4')]", bytes(4)), "got dtype"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_name(tmp_path, content, got):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(InvalidData, match=got) as error:
        read_array(path)
    assert error.value.path == str(path)


def test_an_archive_of_several_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", one=VALUES, two=VALUES)
    with pytest.raises(InvalidData, match=r"wanted one array in a .npz file; got 2: one, two"):
        read_array(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InvalidData, match=r"b.npz: wanted a .npz file of one array"):
        read_array(tmp_path / "b.npz")


def test_a_packed_array_is_bounded_by_what_it_unpacks_to(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", np.zeros(5000))
    read_array(tmp_path / "a.npz")
    monkeypatch.setattr("regard.data.image_store.LARGEST", 40_000)
    with pytest.raises(InvalidData, match=r"at most 40,000 bytes"):
        read_array(tmp_path / "a.npz")
    monkeypatch.setattr(array_files, "LARGEST", 8_000)
    np.save(tmp_path / "b.npy", np.zeros(2000))
    with pytest.raises(InvalidData, match=r"header claims"):
        read_array(tmp_path / "b.npy")


def test_a_missing_number_is_refused_with_its_file_and_place(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1, 2], [3, np.nan]]))
    with pytest.raises(InvalidData, match=r"a.npy: .* got nan as number 2 of vector 2"):
        make_field("vectors").parse(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.array([1e300]))
    with pytest.raises(InvalidData, match=r"got 1e[+]300 as number 1 of vector 1"):
        make_field("vectors", missing="mask").parse(tmp_path / "b.npy")


def test_cells_name_files_beside_their_table_or_in_a_folder_or_a_zip_file(tmp_path):
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "1.npy", VALUES)
    np.save(tmp_path / "beside.npy", VALUES + 1)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        packed = BytesIO()
        np.save(packed, VALUES + 2)
        archive.writestr("deep/1.npy", packed.getvalue())
    fields = {"source": FIELD | {"column": "x"}, "target": {"kind": "label", "column": "y"}}
    for name, place, first in [
        ("beside.npy", {}, 1),
        ("1.npy", {"files_from": str(tmp_path / "arrays")}, 0),
        ("1.npy", {"files_from": str(tmp_path / "all.zip")}, 2),
    ]:
        config = data_of(train=table_of(tmp_path, f"{name},a"), **fields, **place)
        (example,) = examples(config, "train")
        assert config.source.parse(example.source)[0, 0] == first
        prepared = prepare(config, tmp_path / "cache")
        assert prepared.train.source.row(0).shape == (3, 2)
    missing = data_of(train=table_of(tmp_path, "none.npy,a"), **fields)
    with pytest.raises(InvalidData, match=r"none.npy: wanted a file to read"):
        prepare(missing, tmp_path / "cache")


def test_a_changed_array_is_prepared_again(tmp_path):
    fields = {"source": FIELD | {"column": "x"}, "target": FIELD | {"column": "y"}}
    table = table_of(tmp_path, "a.npy,b.npy")
    keys = set()
    for changed in ("a.npy", "b.npy", None):
        np.save(tmp_path / "a.npy", VALUES + (changed == "a.npy"))
        np.save(tmp_path / "b.npy", VALUES + (changed == "b.npy"))
        keys.add(prepare(data_of(train=table, **fields), tmp_path / "cache").key)
    assert len(keys) == 3


def test_a_folder_of_classes(tmp_path):
    for label in ("down", "up"):
        (tmp_path / "train" / label).mkdir(parents=True)
        np.save(tmp_path / "train" / label / "1.npy", VALUES)
    data = data_of(train=str(tmp_path / "train"), source=FIELD, target={"kind": "label"})
    prepared = prepare(data, tmp_path / "cache")
    assert prepared.target.names == ("down", "up")
    assert prepared.train.source.lengths(np.arange(2)).tolist() == [3, 3]


def test_files_from_is_refused_where_no_arrays_are_read(tmp_path):
    found = read(
        DataConfig,
        {"train": "a.txt", "files_from": "b", "target": {"kind": "text"}},
        "data",
    )
    assert [problem.key for problem in found] == ["data.files_from"]


def test_a_store_of_arrays_says_so(tmp_path):
    with pytest.raises(InvalidData, match=r"wanted a folder of arrays, or a .zip file"):
        open_store(tmp_path / "nowhere", ARRAYS)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.npy", b"")
    with pytest.raises(InvalidData, match=r"wanted an array or a recording 'b.npy'"):
        open_store(tmp_path / "a.zip", ARRAYS).find("b.npy")


def test_missing_numbers_count_in_no_statistics():
    rows = np.array([[1.0, np.nan], [3.0, 10.0], [np.nan, 20.0]])
    found = Statistics.of([rows[:1], rows[1:]])
    assert found.mean == pytest.approx((2.0, 15.0))
    assert found.scale == pytest.approx((1.0, 5.0))
    with pytest.raises(regard.InvalidArgument, match=r"none as number 2 of any vector"):
        Statistics.of([rows[:1]])


def test_null_is_a_missing_number_in_json(tmp_path):
    table = tmp_path / "a.jsonl"
    table.write_text(
        "".join(json.dumps({"x": x, "y": 1}) + "\n" for x in ([[1, None], [3, 4]], [[5, 6]]))
    )
    number = {"kind": "number", "column": "y"}
    data = data_of(train=str(table), source=FIELD | {"column": "x"}, target=number)
    with pytest.raises(InvalidData, match=r"a.jsonl, line 1: .* got nan as number 2 of vector 1"):
        prepare(data, tmp_path / "cache")
    masked = {**FIELD, "column": "x", "missing": "mask"}
    prepared = prepare(data_of(train=str(table), source=masked, target=number), tmp_path / "cache")
    batch = prepared.train.source.gather(np.array([0, 1]))
    assert batch.mask.tolist() == [[False, True], [True, False]]
    assert batch.places.tolist() == [[True, True], [True, False]]


def test_python_arrays_and_tensors_of_every_layout():
    field = make_field("vectors")
    wanted = VALUES.tolist()
    for given in (
        VALUES,
        VALUES.T.copy().T,
        torch.tensor(VALUES),
        torch.tensor(VALUES).T.contiguous().T,
        torch.tensor(VALUES, requires_grad=True),
        torch.tensor(VALUES).bfloat16(),
        VALUES.astype(int),
        [tuple(row) for row in wanted],
    ):
        assert field.parse(given).tolist() == wanted
