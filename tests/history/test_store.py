"""The store on a real disk: what comes back, what is bounded, and what happens when the disk fails."""

import asyncio
import sqlite3
import stat
import time
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.config.history import HistoryConfig
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.ids import RequestId, SessionId
from gateway.history import schema, store, writer
from gateway.history.segments import SEGMENTS, Segments
from gateway.history.store import History
from tests.history.lives import EXPECTED, A, B, arrival, begun, refused, sent, whole

UP = {A: 1, B: 2}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(writer, "_PERIOD_S", 0.02)
    monkeypatch.setattr(writer, "_SESSIONS_EVERY", 1)
    monkeypatch.setattr(writer, "_BUSY_S", 0.01)
    monkeypatch.setattr(writer, "_BACKOFF", (1,))


@asynccontextmanager
async def running(path, *, clock=time.time, **settings):
    history = History(
        HistoryConfig(path=str(path), **settings), running=lambda: UP, clock=clock, monotonic=time.monotonic
    )
    try:
        yield history
    finally:
        await history.close()


async def until(condition, within_s=10.0):
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_was_written_is_found_by_this_process_and_the_next(tmp_path):
    life = begun("s", 1.0) + whole("r1", "s", 1.0)
    late = rec.ToolTimed(at_s=9.0, turn=RequestId("r1"), session=SessionId("s"), name="bash", duration_ms=3.0)
    async with running(tmp_path / "h") as history:
        history.take([rec.ReplicaChanged(at_s=0.5, replica=A, state="up", why="")])
        history.take(life)
        history.take([arrival("r2", "s", 5.0, parent="r1")])
        await until(lambda: history.written == 1)
        history.take([late])
        assert (await history.turn("r2")).records == [arrival("r2", "s", 5.0, parent="r1")], "it runs still"
        assert [turn for turn, _ in (await history.session("s")).turns] == ["r1", "r2"]
    async with running(tmp_path / "h") as history:
        found = await history.turn("r1")
        assert found.records == [*life, late] and found.session == "s" and found.loads == UP
        assert (await history.turn("nobody")) is None
        page = await history.session("s")
        assert [turn for turn, _ in page.turns] == ["r1", "r2"] and page.session["turns"] == 2
    assert history.dropped == 0


async def test_a_session_is_added_up_over_its_writes(tmp_path):
    async with running(tmp_path / "h") as history:
        for number in range(3):
            history.take(whole(f"r{number}", "s", 10.0 * number + 1))
            await until(lambda count=number + 1: history.written == count)
    async with running(tmp_path / "h") as history:
        row = (await history.session("s")).session
        assert (row["turns"], row["prompt_tokens"], row["started_s"], row["last_s"]) == (3, 300, 1.0, 22.0)


async def test_only_its_owner_may_read_it(tmp_path):
    async with running(tmp_path / "h") as history:
        history.take(whole("r1", "s", 1.0))
        await until(lambda: history.written == 1)
        assert stat.S_IMODE((tmp_path / "h").stat().st_mode) == 0o700
        files = [each for each in (tmp_path / "h").iterdir() if each.name.startswith("segment")]
        assert files and {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


async def test_kin_and_stretches_of_time(tmp_path):
    async with running(tmp_path / "h") as history:
        history.take(begun("root", 1.0) + whole("r1", "root", 1.0))
        history.take(begun("s", 2.0, parent="root") + whole("r2", "s", 2.0) + refused("r3", "s", 4.0))
        history.take(begun("child", 3.0, parent="s") + whole("r4", "child", 103.0, tenant="other"))
        await until(lambda: history.written == 4)
    async with running(tmp_path / "h") as history:
        page = await history.session("s")
        assert [row["session"] for row in page.kin] == ["root", "child"]
        assert page.session["troubles"] == 1 and page.session["parent"] == "root"
        rows = await history.sessions("last_s >= ? AND started_s <= ?", (50.0, 200.0), limit=10)
        assert [(row["session"], row["tenant"]) for row in rows] == [("child", "other")]
        total, sample = await history.measures("1", (), from_s=0.0, to_s=50.0, sample=100)
        assert total == 3 and sorted(each[3] for each in sample) == ["finished", "finished", "refused"]
        total, sample = await history.measures(
            "turns.tenant = ?", ("other",), from_s=0.0, to_s=1e9, sample=100
        )
        assert total == 4 and sample == [[20.0, 500.0, 1000.0, "finished"]]
        assert await history.since_s() == 2.0


async def test_of_many_turns_a_sample_is_looked_at_that_is_spread_over_all(tmp_path):
    async with running(tmp_path / "h") as history:
        for number in range(1000):
            history.take(whole(f"r{number}", "s", float(number)))
        await until(lambda: history.written == 1000)
        total, sample = await history.measures("1", (), from_s=500.0, to_s=899.9, sample=100)
        assert total == 399 or total == 400
        assert 90 <= len(sample) <= 100


async def test_what_was_around_a_decision_is_found(tmp_path):
    moved: dict[str, Any] = {"pool": "p", "sessions": 4.0, "kv_budget": None, "admitted": 1, "waiting": 0}
    moved |= {"demand": 0.0, "gpu_pressure": 0.1, "cpu_pressure": 0.2}
    async with running(tmp_path / "h") as history:
        history.take([WindowUpdated(at_s=5.0, reason="healthy", **moved)])
        history.take([WindowUpdated(at_s=50.0, reason="later", **moved)])
        history.take(whole("before", "s", 1.0, replica=B) + whole("r", "s", 10.0) + whole("after", "s", 20.0))
        await until(lambda: history.written == 3)
        found = await history.turn("r")
        assert found.window.reason == "healthy"
        assert [submit.turn for submit in found.before] == ["before"] and found.before[0].replica == "b"
        history.take([arrival("open", "s", 30.0), *sent("open", "s", 30.0)])
        await until(lambda: history._writer.fold.open_turn("open") is not None)
        found = await history.turn("open")
        assert found.window.reason == "healthy" and {each.turn for each in found.before} == {
            "before",
            "r",
            "after",
        }


async def test_turns_before_are_read_until_each_replica_was_seen_to_compute(tmp_path):
    all_known = msgspec.structs.replace(EXPECTED, cached_tokens=EXPECTED.prompt_tokens)
    async with running(tmp_path / "h") as history:
        for number in range(30):
            name, replica = f"b{number:02d}", A if 10 < number < 28 else B
            life = whole(name, "s", 10.0 + 2 * number, replica=replica)
            if number >= 28:  # of these nothing can be learned
                life = [
                    msgspec.structs.replace(each, expected=all_known)
                    if isinstance(each, rec.GpuSubmit)
                    else each
                    for each in life
                ]
            history.take(life)
        history.take(whole("r", "s", 100.0))
        await until(lambda: history.written == 31)
        names = [submit.turn for submit in (await history.turn("r")).before]
        assert names == [f"b{number:02d}" for number in range(29, 9, -1)]


async def test_a_quick_answer_waits_for_no_turn_of_the_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_MOMENT_S", 30.0)
    async with running(tmp_path / "h") as history:
        history.take(whole("r", "s", 10.0))
        await until(lambda: history.written == 1)
        turned: list[int] = []
        asyncio.get_running_loop().call_soon(turned.append, 1)
        assert (await history.turn("r")).session == "s" and not turned


async def test_who_waits_for_a_slow_disk_holds_nobody_up(tmp_path, monkeypatch):
    def slow(_):
        time.sleep(1.0)
        raise OSError("the disk is gone")

    async with running(tmp_path / "h") as history:
        monkeypatch.setattr(history._reader, "turn", slow)
        began = time.monotonic()
        asked = [asyncio.create_task(history.turn(name)) for name in ("a", "b")]
        await asyncio.sleep(0)  # both were asked
        assert time.monotonic() - began < 0.5 and not any(each.done() for each in asked)
        assert await asyncio.gather(*asked) == [None, None]


async def test_the_loop_waits_for_no_answer_that_has_another_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_MOMENT_S", 0.1)

    def slow(_):
        time.sleep(1.0)

    async with running(tmp_path / "h") as history:
        monkeypatch.setattr(history._reader, "turn", slow)
        began = time.monotonic()
        asked = [asyncio.create_task(history.turn(str(number))) for number in range(8)]
        await asyncio.sleep(0)  # all were asked
        assert 0.1 <= time.monotonic() - began < 0.4
        for each in asked[1:]:
            each.cancel()
        await asyncio.wait(asked)
        monkeypatch.undo()
        monkeypatch.setattr(store, "_MOMENT_S", 30.0)
        turned: list[int] = []
        asyncio.get_running_loop().call_soon(turned.append, 1)
        assert await history.turn("r") is None and not turned, "those who left are counted no more"


@pytest.mark.slow
async def test_it_stays_within_its_size_and_the_oldest_goes_first(tmp_path):
    async with running(tmp_path / "h", max_mb=16) as history:
        number = 0
        for _ in range(50):
            for _ in range(500):
                number += 1
                history.take(whole(f"r{number}", f"s{number % 97}", float(number), model="m" * 250))
            await until(lambda least=number - 500: history.written >= least)
        size = sum(each.stat().st_size for each in (tmp_path / "h").iterdir())
        assert number * 1000 > 1.4 * (16 << 20), "much more was written than may be kept"
        assert size <= 16 << 20 and history.bytes <= 16 << 20
        assert await history.turn("r1") is None and (await history.turn(f"r{number - 600}")) is not None
        assert 3 <= len(list((tmp_path / "h").glob("segment-*.sqlite"))) <= SEGMENTS + 1
    assert history.dropped == 0


async def test_what_is_too_old_goes_though_nothing_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_PRUNE_EVERY", 2)
    now = 1e9
    async with running(tmp_path / "h", max_age_h=8, clock=lambda: now) as history:
        history.take(whole("old", "s", now))
        await until(lambda: history.written == 1)
        now += 2 * 3600
        history.take(whole("new", "s", now))
        await until(lambda: history.written == 2)
        assert await history.turn("old") is not None
        now += 8.5 * 3600
        async with asyncio.timeout(10):
            while await history.turn("old") is not None:
                await asyncio.sleep(0.02)
        assert await history.turn("new") is not None
        now += 8.5 * 3600
        async with asyncio.timeout(10):
            while await history.turn("new") is not None:
                await asyncio.sleep(0.02)


async def test_what_there_is_no_room_for_is_dropped_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_PERIOD_S", 3.0)
    async with running(tmp_path / "h", max_pending=256) as history:
        began = time.perf_counter()
        for number in range(200):
            history.take(whole(f"r{number}", "s", 1.0))
        assert time.perf_counter() - began < 0.5, "nobody waited"
        assert history.dropped == 200 * 6 - 252
    async with running(tmp_path / "h") as history:
        assert await history.turn("r0") is not None


async def fails_and_recovers(history, caplog, mend):
    """Said once, nothing raised, and written when it can be."""
    history.take(whole("r1", "s", 1.0))
    await until(lambda: history.failures >= 3)
    assert history.trouble is not None and history.written == 0
    await history.turn("r1")
    await history.session("s")
    mend()
    await until(lambda: history.written == 1)
    assert (await history.turn("r1")).records == whole("r1", "s", 1.0)
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 2 and "cannot be written" in said[0] and said[1] == "history is written again"
    assert history.trouble is None and history.dropped == 0


async def test_a_directory_that_cannot_be_made(tmp_path, caplog):
    in_the_way = tmp_path / "h"
    in_the_way.write_text("a file")
    async with running(in_the_way) as history:
        await fails_and_recovers(history, caplog, in_the_way.unlink)


async def test_where_nobody_may_write(caplog):
    async with running("/proc/history") as history:
        history.take(whole("r1", "s", 1.0))
        await until(lambda: history.failures >= 3)
        assert history.trouble is not None and await history.turn("r1") is None
    assert len(caplog.records) == 1


async def test_another_process_has_it(tmp_path, caplog):
    other = Segments(tmp_path / "h", max_bytes=1 << 30, max_age_s=3600)
    other.open()
    async with running(tmp_path / "h") as history:
        await fails_and_recovers(history, caplog, other.close)


async def test_a_locked_file(tmp_path, caplog):
    async with running(tmp_path / "h") as history:
        history.take(whole("r0", "s", 1.0))
        await until(lambda: history.written == 1)
    [path] = (tmp_path / "h").glob("segment-*.sqlite")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with running(tmp_path / "h") as history:
        await fails_and_recovers(history, caplog, lambda: other.execute("COMMIT"))
    other.close()


async def test_a_full_disk(tmp_path, caplog, monkeypatch):
    prepare, is_full = schema.prepare, True

    def on_a_small_disk(connection, *rest):
        prepare(connection, *rest)
        if is_full:
            connection.execute("PRAGMA max_page_count = 1")

    def mend():
        nonlocal is_full
        is_full = False

    monkeypatch.setattr(schema, "prepare", on_a_small_disk)
    async with running(tmp_path / "h") as history:
        history.take([each for number in range(60) for each in whole(f"more{number}", "s", 0.5)])
        await until(lambda: history.trouble is not None)
        assert "full" in history.trouble
        mend()
        await until(lambda: history.written == 60)
        assert history.trouble is None
    assert "full" in caplog.records[0].getMessage()


async def test_a_disk_that_stays_full_costs_the_oldest_and_counts_them(tmp_path, monkeypatch):
    (tmp_path / "h").write_text("a file")
    monkeypatch.setattr(writer, "_MAX_UNWRITTEN_BYTES", 10_000)
    async with running(tmp_path / "h") as history:
        for number in range(100):
            history.take(whole(f"r{number}", "s", 1.0))
            await asyncio.sleep(0.01)
        await until(lambda: history.dropped > 50)
        (tmp_path / "h").unlink()
        await until(lambda: history.written > 0)
        await until(lambda: history.written + history.dropped == 100)
        assert await history.turn("r0") is None and await history.turn("r99") is not None


async def test_a_damaged_file_is_set_aside(tmp_path, caplog):
    for _ in range(2):
        async with running(tmp_path / "h") as history:
            history.take(whole("r0", "s", 1.0))
            await until(lambda: history.written == 1)
        [path] = (tmp_path / "h").glob("segment-*.sqlite")
        path.write_bytes(b"no database at all" * 1000)
    async with running(tmp_path / "h") as history:
        history.take(whole("r1", "s", 1.0))
        await until(lambda: history.written == 1)
        assert await history.turn("r1") is not None and await history.turn("r0") is None
    assert len(list((tmp_path / "h").glob("damaged*"))) == 1
    assert sum("is damaged" in each.getMessage() for each in caplog.records) == 2


async def test_a_file_of_another_version_is_left_alone(tmp_path):
    async with running(tmp_path / "h") as history:
        history.take(whole("r0", "s", 1.0))
        await until(lambda: history.written == 1)
    [path] = (tmp_path / "h").glob("segment-*.sqlite")
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = path.read_bytes()
    async with running(tmp_path / "h") as history:
        history.take(whole("r1", "s", 1.0))
        await until(lambda: history.written == 1)
        assert await history.turn("r0") is None and await history.turn("r1") is not None
    assert path.read_bytes() == before


async def test_a_fault_of_ours_costs_what_was_folded_and_no_more(tmp_path, caplog):
    async with running(tmp_path / "h") as history:
        [*_, end, _] = whole("r0", "s", 1.0)
        history.take([*whole("r0", "s", 1.0)[:-2], msgspec.structs.replace(end, usage=None)])
        await until(lambda: any("lost" in each.getMessage() for each in caplog.records))
        history.take(whole("r1", "s", 1.0))
        await until(lambda: history.written == 1)


async def test_nothing_of_what_was_said_can_be_in_there(tmp_path):
    """Records have no field for it; names of tools and models are there."""
    async with running(tmp_path / "h") as history:
        history.take(whole("r1", "s", 1.0))
        await until(lambda: history.written == 1)
    columns = {row[1] for table in ("turns", "sessions") for path in (tmp_path / "h").glob("*.sqlite")
               for row in sqlite3.connect(path).execute(f"PRAGMA table_info({table})")}  # fmt: skip
    assert not columns & {"prompt", "arguments", "content", "text", "body", "key"}
