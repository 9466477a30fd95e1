"""Sources and outputs: plain and compressed files, archives, folders; damage is named."""

import gzip
import io
import lzma
import tarfile

import pytest

from lab.workload.files import members, write_whole


def _read(source):
    return [(member.name, b"".join(member.lines)) for member in members(str(source))]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.xz"])
def test_what_is_written_is_read(tmp_path, name):
    file = tmp_path / name
    assert write_whole(str(file), [b"1\n", b"2\n"]) == 2
    assert _read(file) == [("a", b"1\n2\n")]
    first = file.read_bytes()
    write_whole(str(file), [b"1\n", b"2\n"])
    assert file.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_output_that_fails_or_is_empty_leaves_things_as_they_were(tmp_path):
    file = tmp_path / "out.jsonl"
    file.write_text("before")

    def failing():
        yield b"half"
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        write_whole(str(file), failing())
    assert write_whole(str(file), []) == 0
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize(("ending", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tar.xz", "w:xz")])
def test_an_archives_records_are_its_members(tmp_path, ending, mode):
    file = tmp_path / f"corpus{ending}"
    with tarfile.open(file, mode) as archive:
        folder = tarfile.TarInfo("./one")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in (("./one/b.v2.jsonl", b"b"), ("one/a.traj", b"a"), ("LICENSE", b"l")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    assert _read(file) == [("one/b.v2", b"b"), ("one/a", b"a")]


def test_a_folders_records_are_its_members(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x/2.jsonl.gz").write_bytes(gzip.compress(b"two"))
    (tmp_path / "1.jsonl").write_bytes(b"one")
    (tmp_path / "README.md").write_text("no")
    assert _read(tmp_path) == [("1", b"one"), ("x/2", b"two")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.jsonl.gz", gzip.compress(b"one\n" * 999)[:-9]),
        ("no.jsonl.gz", b"plain"),
        ("cut.jsonl.xz", lzma.compress(b"one\n" * 999)[:-9]),
        ("no.jsonl.xz", b"plain"),
        ("no.tar", b"plain" * 200),
        ("bad.jsonl.gz", gzip.compress(b"one")[:10] + b"\xff" * 20),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_names_the_file(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        _read(tmp_path / name)
