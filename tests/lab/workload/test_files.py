"""Sources and outputs of recordings, from the command line too; and sessions side by side in time."""

import gzip
import io
import json
import lzma
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.__main__ import main
from lab.workload.arrivals import START_SPREAD_S, interleave
from lab.workload.exchange import read_exchange
from lab.workload.files import members, write_whole
from lab.workload.sessions import Session, Turn, rng_of
from tests.lab.workload.corpora import of_sessions, said


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


@pytest.fixture
def corpus(tmp_path):
    talk = [said("user", "hello"), said("assistant", "yes?"), said("user", "x"), said("assistant", "y")]
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"task_id": n, "traj": talk}) + "\n" for n in range(9)))
    return file


def _import(tmp_path, *arguments, out="out.jsonl"):
    status = main(["workload", "import", *map(str, arguments), "-o", str(tmp_path / out)])
    if status:
        return status
    return [read_exchange(line) for line in (tmp_path / out).read_bytes().splitlines()]


def test_a_corpus_becomes_exchanges_that_parse(tmp_path, corpus, capsys):
    exchanges = _import(tmp_path, "tau-bench", corpus)
    assert len(exchanges) == 18
    assert len(of_sessions(exchanges)) == 9
    assert "18 exchange(s) of 9 session(s)\n" in capsys.readouterr().out
    assert _import(tmp_path, "exchanges", tmp_path / "out.jsonl", out="again.jsonl") == exchanges


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(tmp_path, corpus):
    def written(*options):
        _import(tmp_path, "tau-bench", corpus, *options)
        return (tmp_path / "out.jsonl").read_bytes()

    assert written("--seed", 1) == written("--seed", 1) != written("--seed", 2)


def test_sessions_can_be_chosen(tmp_path, corpus):
    exchanges = _import(
        tmp_path, "tau-bench", corpus, "--match", "task-[3-8]-*", "--limit", 2, "--sessions-at-once", 1
    )
    assert [x.truth.session for x in exchanges] == ["task-3-trial-0"] * 2 + ["task-4-trial-0"] * 2


def test_malformed_records_are_reported_and_left_out(tmp_path, corpus, capsys):
    corpus.write_text(corpus.read_text() + "nonsense\n")
    assert len(_import(tmp_path, "tau-bench", corpus)) == 18
    output = capsys.readouterr()
    assert "; 1 malformed record(s) left out" in output.out
    assert output.err.startswith("turnpike: talks, line 10: ")


STEPS = st.lists(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), max_size=5),
    max_size=12,
)


def _session(name, steps, opened=None):
    def turns():
        if opened is not None:
            opened.append(name)
        at_s = 0.0
        for number, (gap, lasts) in enumerate(steps):
            at_s += gap
            yield Turn(at_s=at_s, lasts_s=lasts, body={"n": number}, thread="t")

    return Session(client="c", name=name, source=f"f:{name}", turns=turns())


def _end(exchange) -> float:
    assert exchange.t_end is not None
    return exchange.t_end


@given(STEPS, st.integers(1, 4), st.integers(0, 3))
def test_every_turn_arrives_once_and_in_order(all_steps, at_once, seed):
    def run():
        sessions = [_session(str(n), steps) for n, steps in enumerate(all_steps)]
        return list(interleave(sessions, rng=rng_of(seed, "arrivals"), at_once=at_once))

    exchanges = run()
    assert exchanges == run()
    assert [x.t for x in exchanges] == sorted(x.t for x in exchanges)
    found = of_sessions(exchanges)
    for n, steps in enumerate(all_steps):
        mine = found.get(str(n), [])
        assert [x.body["n"] for x in mine] == list(range(len(steps)))
        for x, (_, lasts) in zip(mine, steps, strict=True):
            assert _end(x) - x.t == pytest.approx(lasts, abs=1e-5)
    spans = [(m[0].t, max(_end(x) for x in m)) for m in found.values()]
    for begin, _ in spans:
        assert sum(b <= begin < e for b, e in spans) <= at_once


def test_sessions_are_opened_when_their_turn_comes():
    opened: list[str] = []
    sessions = (_session(str(n), [(0, 1), (5, 1)], opened) for n in range(100))
    exchanges = interleave(sessions, rng=rng_of(0, "arrivals"), at_once=3)
    first = [next(exchanges) for _ in range(3)]
    assert {x.truth.session for x in first} == {"0", "1", "2"}
    assert all(x.t <= START_SPREAD_S for x in first)
    assert len(opened) == 3


def test_what_a_turn_says_is_in_the_exchange():
    turn = Turn(
        at_s=0.0,
        lasts_s=1.0,
        body={"a": 1},
        path="/v1/responses",
        headers={"Authorization": "Bearer x", "User-Agent": "u"},
        status=503,
        response=[],
        finish="stop",
        response_id="resp_1",
        thread="main",
    )
    session = Session(client="c", name="s", source="f:1", turns=[turn])
    (exchange,) = interleave([session], rng=rng_of(0, "arrivals"), at_once=8)
    assert exchange.headers == {"Authorization": "<redacted>", "User-Agent": "u"}
    assert (exchange.path, exchange.status, exchange.response) == ("/v1/responses", 503, [])
    assert (exchange.finish, exchange.response_id, exchange.t_first_byte) == ("stop", "resp_1", None)
    truth = exchange.truth
    assert (truth.client, truth.session, truth.thread, truth.source) == ("c", "s", "main", "f:1")
