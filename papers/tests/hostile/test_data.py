"""Files of real data from a stranger: read, or refused in one sentence."""

import gzip
import os
import struct

import pytest
from tests.hostile.files import check_sentence

from eigenheads.datasets import load_musk
from eigenheads_papers._data import data_file, read_idx, using_data

ROW = ",".join(["1.5"] * 166)
TABLES = {
    "a word": f"a,b,{ROW.replace('1.5', 'x', 1)},1.\n".encode(),
    "NaN": f"a,b,{ROW.replace('1.5', 'nan', 1)},1.\n".encode(),
    "infinity": f"a,b,{ROW.replace('1.5', '1e999', 1)},1.\n".encode(),
    "no label": f"a,b,{ROW},\x1b[2J\n".encode(),
    "bytes": b"\xff" * 40,
    "a long field": b"a" * 200_000,
    "nothing": b"\n\n",
}


def refusal(call, *arguments):
    with pytest.raises(ValueError) as caught:
        call(*arguments)
    check_sentence(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("content", TABLES.values(), ids=list(TABLES))
def test_a_hostile_table_is_refused(tmp_path, content):
    (tmp_path / "clean1.data").write_bytes(content)
    assert "`folder` must be data of MUSK" in refusal(load_musk, tmp_path)


IDX = {
    "not packed": b"hello",
    "cut": gzip.compress(b"\0\0\x08\x01\0\0\0\x03abc")[:-9],
    "damaged": gzip.compress(os.urandom(99))[:20] + bytes(60),
    "many axes": gzip.compress(b"\0\0\x08\xff" + struct.pack(">255i", *[1] * 255)),
    "negative lengths": gzip.compress(b"\0\0\x08\x02" + struct.pack(">ii", -1, -3)),
    "other type": gzip.compress(b"\0\0\x0d\x01\0\0\0\x01abcd"),
    "no header": gzip.compress(b""),
}


@pytest.mark.parametrize("content", IDX.values(), ids=list(IDX))
def test_hostile_images_are_refused(tmp_path, content):
    (tmp_path / "x.gz").write_bytes(content)
    assert "`data` must be " in refusal(read_idx, tmp_path / "x.gz")


def bomb(path, size):
    """Write a file that is a thousand times as large when it is unpacked."""
    # Files of several packed members are one stream.
    path.write_bytes(gzip.compress(bytes(2**24)) * (size // 2**24))
    assert path.stat().st_size < size / 500


def test_bombs_are_not_unpacked(tmp_path):
    tracemalloc = pytest.importorskip("tracemalloc")
    bomb(tmp_path / "musk1.csv.gz", 2**29)
    tracemalloc.start()
    said = refusal(load_musk, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "more than 268435456 bytes" in said
    assert peak < 2**24


def test_pipes_large_files_and_other_encodings_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "x.gz")
    assert "is not a regular file" in refusal(read_idx, tmp_path / "x.gz")
    (tmp_path / "latin.txt").write_bytes(b"\xe4" * 9)
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(2**40)
    with using_data(tmp_path):
        assert "a folder that contains x.gz" in refusal(data_file, "x.gz")
        assert "in UTF-8" in refusal(data_file, "latin.txt")
        assert "more than 1073741824" in refusal(data_file, "large.txt")
