"""Keys of a file: added and revoked while gateways run, and over at their end."""

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import gateway
from gateway.config.load import ConfigError
from gateway.server.auth import key_file
from tests.server.bench import DELTA, DONE, STREAM_HEAD, answer, bearer, chunk, get, pauses, post, sends
from tests.server.test_reload import tenant

TENANTS = [tenant("team-a", "tp-configured"), {"name": "team-b"}]
PUBLIC = '[[pools]]\nreplicas = [{url = "http://r"}]\n[server]\nlisten = "0.0.0.0:8080"\n'
ADD = ("keys", "add", "--tenant", "team-b")


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(key_file, "_PERIOD_S", 0.02)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "keys"
    teams = "tenants = [{name = 'team-a'}, {name = 'team-b'}]"
    Path("turnpike.toml").write_text(f"{teams}\n{PUBLIC}keys_path = '{path}'\n")
    return path


async def status(bench, key: str) -> int:
    return (await bench.ask(post(headers=bearer(key)))).status


async def until(benches, key: str, expected: int) -> None:
    async with asyncio.timeout(10):
        while {await status(each, key) for each in benches} != {expected}:
            await asyncio.sleep(0.02)


async def test_keys_count_everywhere_from_when_they_are_added_until_revoked(start, file, turnpike, caplog):
    benches = [await start(tenants=TENANTS, server={"keys_path": str(file)}) for _ in "ab"]
    benches[0].may_log_errors = caplog.text.count("No such file") == 2
    words = [sys.executable, "-m", "gateway", *ADD, "--config", file.with_name("turnpike.toml")]
    options: Any = {"cwd": Path(gateway.__file__).parents[1], "stdout": subprocess.PIPE}
    adding = [await asyncio.create_subprocess_exec(*words, f"ci-{n}", **options) for n in range(3)]
    keys = [(await each.communicate())[0].decode().strip() for each in adding]
    for key in keys:
        await until(benches, key, 200)
    assert len(set(keys)) == 3 and keys[0].startswith("tp-") and file.stat().st_mode & 0o777 == 0o600
    goes_on, bench = asyncio.Event(), benches[0]
    kept = await bench.connect()
    assert (await kept.ask(post(headers=bearer(keys[0])))).status == 200
    bench.backend.script = pauses(STREAM_HEAD + chunk(DELTA), goes_on, chunk(DELTA + DONE) + chunk(b""))
    running = await bench.arrive(post(headers=bearer(keys[0])))
    bench.backend.script = sends(answer())
    coming, whole = await bench.connect(), post(headers=bearer(keys[0]))
    coming.send(whole[:-3])
    await asyncio.sleep(0.05)
    assert turnpike("keys", "revoke", "ci-0").returncode == 0
    await until(benches, keys[0], 401)
    assert (await kept.ask(post(headers=bearer(keys[0])))).status == 401, "known by its connection"
    assert (await coming.ask(whole[-3:])).status == 200, "it came before"
    assert (await coming.ask(whole)).status == 401, "and is remembered by no connection"
    goes_on.set()
    assert (await running.receive()).body.count(DELTA) == 2
    assert [await status(each, key) for each in benches for key in keys] == [401, 200, 200] * 2
    shown = caplog.text + (await bench.control(get(b"/metrics"))).body.decode() + file.read_text()
    assert not [key for key in keys if key in shown]


def test_keys_can_be_made_for_a_gateway_whose_backends_are_on_its_command_line(
    tmp_path, turnpike, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("turnpike.toml").write_text(f"[server]\nkeys_path = '{tmp_path}/keys'\n")
    assert turnpike("keys", "add", "ci").returncode == 0
    assert "ci" in turnpike("keys", "list").stdout and turnpike("keys", "revoke", "ci").returncode == 0
    assert "no backend is given" in turnpike("check-config", "turnpike.toml").stderr


def test_a_blank_line_is_no_key(file, turnpike):
    assert turnpike(*ADD, "ci").returncode == 0
    file.write_text("\n" + file.read_text() + "  \n\n")
    assert [each.name for each in key_file.read_keys(file)] == ["ci"]


async def test_a_key_ends_at_its_time_also_on_an_open_connection(start, file, turnpike):
    soon = datetime.now(UTC) + timedelta(seconds=1.2)
    brief = turnpike(*ADD, "brief", "--expires", soon.isoformat()).stdout.strip()
    long = turnpike(*ADD, "long", "--expires", "12h").stdout.strip()
    bench = await start(tenants=TENANTS, server={"keys_path": str(file)})
    client = await bench.connect()
    assert (await client.ask(post(headers=bearer(brief)))).status == 200
    assert not bench.gateway.listener.heads._known, "it is proven on each connection"
    async with asyncio.timeout(10):
        while (response := await client.ask(post(headers=bearer(brief)))).status == 200:
            await asyncio.sleep(0.05)
    assert response.status == 401 and "has expired" in response.json()["error"]["message"]
    anthropic = (await bench.ask(post(path=b"/v1/messages", headers=bearer(brief)))).json()
    assert anthropic["type"] == "error" and "has expired" in anthropic["error"]["message"]
    assert b"expired" not in (await bench.ask(post(headers=bearer("tp-unknown")))).body
    assert await status(bench, long) == 200
    _, first, second = (listed := turnpike("keys", "list").stdout).splitlines()
    assert first.startswith("brief  team-b") and first.endswith("expired") and second.endswith("active")
    assert "tp-" not in listed and "sha256" not in listed


HARMS = [None, "{0}{0}", '{0}{{"name":', '{1},"expires":"2130-01-01T00:00:00"}}', "{2:33554433}"]


@pytest.mark.parametrize("harm", HARMS)
async def test_of_a_file_that_is_none_no_key_counts(start, file, turnpike, caplog, harm):
    key = turnpike(*ADD, "ci").stdout.strip()
    bench = await start(tenants=TENANTS, server={"keys_path": str(file)})
    bench.may_log_errors = True
    assert await status(bench, key) == await status(bench, "tp-configured") == 200
    right, other = file.read_text(), file.with_name("other")
    other.write_text((harm or "").format(right, right[:-2], right[:-1]))
    file.unlink() if harm is None else other.rename(file)
    await until([bench], key, 401)
    assert await status(bench, "tp-configured") == 200 and caplog.text.count("keys_unread") == 1
    assert ("`turnpike keys add NAME` makes it" in caplog.text) is (harm is None)
    assert "keys_path" in (await bench.control(get(b"/turnpike/readyz"))).json()["failing"][0]
    for words in (("check-config", "turnpike.toml"), ("keys", "list"), ("keys", "revoke", "ci")):
        done = turnpike(*words)
        assert done.returncode == 1 and "server.keys_path: " in done.stderr and str(file) in done.stderr
    file.write_text(right)
    await until([bench], key, 200)


async def test_with_a_file_of_keys_alone_a_gateway_may_listen_publicly(start, file, turnpike):
    Path("turnpike.toml").write_text(f"{PUBLIC}keys_path = '{file}'\n")
    key = turnpike("keys", "add", "ci").stdout.strip()
    bench = await start(server={"keys_path": str(file)})
    assert await status(bench, key) == 200 and await status(bench, "") == 401
    if os.geteuid() == 0:
        os.chown(file, 12345, 12345)
    owner = file.stat().st_uid
    assert turnpike("keys", "add", "ci-2").returncode == 0 and file.stat().st_uid == owner
    assert "1 tenant(s), listening on 0.0.0.0" in turnpike("check-config", "turnpike.toml").stdout
    with pytest.raises(ConfigError, match=r"team-b has no key_hashes, .* server\.keys_path"):
        await start(tenants=TENANTS)
    Path("turnpike.toml").write_text(PUBLIC)
    assert "or set server.keys_path" in turnpike("check-config", "turnpike.toml").stderr
    assert "server.keys_path is not set" in turnpike("keys", "list", TURNPIKE_SERVER__LISTEN="[::1]:1").stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("add ci --tenant team-b", "NAME: there is a key ci already"),
        ("add x", "--tenant: whose key is it?; write one of team-a, team-b"),
        ("add x/y --tenant team-a", "NAME: write 1 to 64 letters"),
        (
            "add x --tenant team-a --expires soon",
            "--expires: 'soon' is no time; write 12h, 30d or 2030-01-31",
        ),
        ("add x --tenant team-a --expires 0001-01-01T00:00+14:00", "--expires: '0001"),
        ("add x --tenant team-a --expires 2020-01-31", "--expires: 2020-01-31 00:00Z is past"),
        ("revoke x", "NAME: no key 'x' in "),
    ],
)
def test_what_is_wrong_changes_nothing_and_is_named(file, turnpike, words, complaint):
    assert turnpike(*ADD, "ci").returncode == 0
    before, done = file.read_bytes(), turnpike("keys", *words.split())
    assert done.returncode == 1 and done.stderr.startswith(f"turnpike: {complaint}") and not done.stdout
    assert file.read_bytes() == before
