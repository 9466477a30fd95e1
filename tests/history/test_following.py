"""`turnpike history` and gateways as processes: what it knows of them, whichever of them ends meanwhile."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from scripted_engine.ports import free_port
from tests.history.processes import Place, a_place, comes, has_turns, look, url

pytestmark = pytest.mark.slow

SMALL_RING = "[stream]\nring_records = 64\n"


@pytest.fixture
async def place(tmp_path):
    async with a_place(tmp_path) as place:
        yield place


def counts(place: Place, name: str = "history") -> list[tuple[int, int, int]]:
    with sqlite3.connect(place.directory / f"{name}.sqlite") as db:
        found = db.execute("SELECT records, unreadable, gaps FROM gateways ORDER BY gateway").fetchall()
    db.close()
    return found


async def test_what_the_gateway_has_forgotten_is_explained_through_it(place):
    port = free_port()
    gateway = await place.gateway(history=port, settings=SMALL_RING)
    alone = await gateway.ask("/turnpike/history")
    assert alone.status == 503 and b"does not answer" in alone.body
    await place.history("--gateway", url(gateway), port=port)
    first = await place.turns(gateway, "mine", 3)
    await asyncio.sleep(0.5)
    for _ in range(10):
        await place.turns(gateway, "other", 5)
        await asyncio.sleep(0.25)
    history = place.processes[-1]
    await has_turns(history, 53)
    [(_, unreadable, gaps)] = counts(place)
    assert (unreadable, gaps) == (0, 0)
    for asked in (gateway, history):
        answer = await asked.ask(f"/turnpike/turns/{first[0]}")
        found = answer.json()
        assert found["decided"]["outcome"] == "dispatched" and found["became"]["outcome"] == "finished"
        session = found["known"]["session"]
        page = (await asked.ask(f"/turnpike/sessions/{session}")).json()
        assert [turn["turn"] for turn in page["turns"]] == first and page["session"]["turns"] == 3
        assert page["session"]["output_tokens"] > 0
        assert [row["turns"] for row in (await look(asked, f"?session={session}"))["sessions"]] == [3]
        assert (await asked.ask("/turnpike/history?limit=0")).status == 400
        assert (await asked.ask("/turnpike/turns/r-none")).status == 404
        assert (await asked.ask("/turnpike/sessions/s-none")).status == 404
        unknown = await asked.ask(f"/turnpike/history/{session}")
        assert unknown.status == 404 and "did you mean /turnpike/history?" in unknown.json()["error"]
    explain = [sys.executable, "-m", "gateway", "explain", first[0], "--control", url(history)]
    told = await asyncio.to_thread(subprocess.run, explain, capture_output=True, timeout=30)
    assert told.returncode == 0 and b"dispatched" in told.stdout
    await history.end()
    assert (await gateway.ask(f"/turnpike/turns/{first[0]}")).status == 404, "memory has lost it"
    newest = (await place.turns(gateway, "mine", 1))[0]
    assert (await gateway.ask(f"/turnpike/turns/{newest}")).status == 200, "memory has it"


async def test_a_history_that_is_killed_goes_on_where_it_was(place):
    gateway = await place.gateway()
    history = await place.history("--gateway", url(gateway))
    for number in range(2):
        await place.turns(gateway, f"s{number}", 40)
        await history.end(signal.SIGKILL if number % 2 else signal.SIGTERM)
        await place.turns(gateway, f"t{number}", 10)
        history.start()
        await history.ready()
    await has_turns(history, 100, history.log)
    snapshot = (await gateway.ask("/turnpike/snapshot")).json()
    assert counts(place) == [(snapshot["seq"], 0, 0)], "each record once"


async def test_a_gateway_that_is_started_again_is_followed_on(place):
    gateway = await place.gateway()
    history = await place.history("--gateway", url(gateway))
    await place.turns(gateway, "before", 30)
    await gateway.end()  # at once: what nobody has read yet is sent before it ends
    gateway.start()
    await gateway.ready()
    await place.turns(gateway, "after", 10)  # fewer records than it had before
    await has_turns(history, 40, history.log)
    await gateway.end(signal.SIGKILL)
    gateway.start()
    await gateway.ready()
    await place.turns(gateway, "again", 50)  # more records
    await has_turns(history, 90, history.log)
    assert [gaps for _, _, gaps in counts(place)] == [0]
    assert (await history.ask("/turnpike/readyz")).status == 200


async def test_several_gateways_and_a_key_for_them(place, monkeypatch):
    monkeypatch.setenv("READ", "tp-read")
    monkeypatch.setenv("ASKED", "tp-history")
    hashed = subprocess.run(
        [sys.executable, "-m", "gateway", "hash-key"], input=b"tp-read\n", capture_output=True
    ).stdout.decode()
    gateways = [await place.gateway() for _ in range(2)]
    file = place.directory / "gateway-0.toml"
    file.write_text(
        file.read_text().replace("[server]\n", f'[server]\ncontrol_read_key_hashes = ["{hashed.strip()}"]\n')
    )
    await gateways[0].end()
    gateways[0].start()
    await gateways[0].ready()
    keys = ("--gateway-key-env", "READ", "--key-env", "ASKED")
    await place.history("--gateway", url(gateways[0]), "--gateway", url(gateways[1]), *keys)
    history = place.processes[-1]
    await asyncio.gather(*(place.turns(each, f"s{at}", 10) for at, each in enumerate(gateways)))
    assert (await history.ask("/turnpike/history")).status == 401
    assert (await history.ask("/turnpike/history", b"Authorization: Bearer tp-read\r\n")).status == 401

    async def has_all() -> bool:
        answer = await history.ask("/turnpike/history", b"Authorization: Bearer tp-history\r\n")
        return answer.status == 200 and answer.json()["turns"] == 20

    await comes(has_all, history.log)
    assert len(counts(place)) == 2


async def test_files_are_followed_while_they_grow_and_move(place):
    stream = place.directory / "stream.jsonl"
    settings = f'[stream]\npath = "{stream}"\nring_records = 0\nmax_bytes = 20000\nkeep_files = 100\n'
    gateway = await place.gateway(settings=settings)
    await place.turns(gateway, "before", 40)
    history = await place.history("--stream", str(stream))
    for number in range(2):
        await place.turns(gateway, f"s{number}", 40)
        await history.end(signal.SIGKILL if number % 2 else signal.SIGTERM)
        await place.turns(gateway, f"t{number}", 40)
        history.start()
        await history.ready()
    await has_turns(history, 200, history.log)
    await gateway.end()
    files = list(place.directory.glob("stream.jsonl*"))
    written = sum(len(each.read_bytes().splitlines()) for each in files)

    async def has_all() -> bool:
        return counts(place) == [(written, 0, 0)]

    assert len(files) > 2, "it moved on (after a batch, so a busy machine has fewer)"
    await comes(has_all, history.log)
    for each in files:
        each.unlink()
    stream.write_bytes(b'{"type":"tool_num","at_s":1.0,"active":1}\nno record\n{"type":"tool_num","at_s')

    async def has_gap() -> bool:
        return counts(place) == [(written + 2, 1, 1)]

    await comes(has_gap, history.log)


async def test_a_history_that_does_not_read_holds_up_nobody_and_counts_the_gap(place):
    gateway = await place.gateway(settings=SMALL_RING)
    history = await place.history("--gateway", url(gateway))
    await place.turns(gateway, "before", 2)
    await has_turns(history, 2)
    history.send(signal.SIGSTOP)
    # Far more than a socket's buffers hold; one turn after another would each wait for a core several times.
    await asyncio.gather(*(place.turns(gateway, f"meanwhile-{number}", 50) for number in range(30)))
    history.send(signal.SIGCONT)
    await place.turns(gateway, "after", 2)

    async def has_gap() -> bool:
        return counts(place)[0][2] >= 1

    await comes(has_gap, history.log)
    assert "records_missing" in history.log.read_text()
    metrics = (await gateway.ask("/metrics")).body.decode()
    assert "turnpike_event_gaps_total 0.0" not in metrics


async def test_who_asks_in_a_loop_takes_no_answer_from_others(place):
    port = free_port()
    gateway = await place.gateway(history=port)
    history = await place.history("--gateway", url(gateway), port=port)
    await place.turns(gateway, "mine", 20)
    await has_turns(history, 20)
    is_over = False

    async def ask(process, statuses: set[int]) -> None:
        while not is_over:
            statuses.add((await process.ask("/turnpike/history")).status)

    statuses: tuple[set[int], set[int]] = (set(), set())
    asking = [asyncio.create_task(ask(process, of)) for process, of in
              zip((gateway, history), statuses, strict=True) for _ in range(12)]  # fmt: skip
    await place.turns(gateway, "mine", 50)
    is_over = True
    await asyncio.gather(*asking)
    assert 200 in statuses[0] <= {200, 503} and statuses[1] == {200}
    await has_turns(history, 70)


def ended(*arguments: str, within_s: float = 60.0) -> tuple[int, str]:
    command = [sys.executable, "-m", "gateway", "history", *arguments]
    found = subprocess.run(command, capture_output=True, timeout=within_s)
    return found.returncode, found.stderr.decode()


def test_what_it_is_started_with_must_make_sense(tmp_path, monkeypatch):
    here = ("--gateway", "http://127.0.0.1:1", "--path", str(tmp_path / "h.sqlite"))
    for arguments, why in (
        ((), "nothing to follow"),
        (("--gateway", "gateway-a:8081"), "a control plane is a URL"),
        ((*here, "--listen", "0.0.0.0:0"), "name a --key-env"),
        ((*here, "--key-env", "NOT_SET"), "NOT_SET is not set"),
        ((*here, "--max-mb", "1"), "at least 16"),
        (("--gateway", "http://h", "--path", str(tmp_path / "none" / "h")), "No such file"),
    ):
        status, log = ended(*arguments)
        assert status == 1 and why in log and "Traceback" not in log, log
    (tmp_path / "h.sqlite").write_text("my diary, not a database, and long enough to look at" * 100)
    status, log = ended(*here)
    assert status == 1 and "no history of this version" in log
    assert (tmp_path / "h.sqlite").read_text().startswith("my diary")


async def test_a_file_that_is_damaged_while_it_runs_does_not_end_it(place):
    gateway = await place.gateway()
    history = await place.history("--gateway", url(gateway))
    await place.turns(gateway, "mine", 20)
    await has_turns(history, 20)
    with sqlite3.connect(place.directory / "history.sqlite") as db:
        db.execute("DROP TABLE turns")
    db.close()
    await place.turns(gateway, "mine", 2)

    async def is_failing() -> bool:
        return (await history.ask("/turnpike/readyz")).status == 503

    await comes(is_failing, history.log)
    assert (await history.ask("/turnpike/history")).status == 503
    assert "no such table" in history.log.read_text()


async def test_a_page_of_a_name_that_is_not_its_own_learns_nothing(place):
    gateway = await place.gateway()
    history = await place.history("--gateway", url(gateway))

    def ask(headers: dict[str, str]) -> int:
        request = urllib.request.Request(f"{url(history)}/turnpike/history", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    assert await asyncio.to_thread(ask, {"Host": "evil.example", "Origin": "http://evil.example"}) == 421
    assert await asyncio.to_thread(ask, {}) == 200
