"""The secret of a fleet, and a store of which those entries count that were written with it."""

import pytest

from gateway.config.load import ConfigError
from gateway.config.shared import SharedConfig
from gateway.shared_state.fleet_secret import WORKERS_SECRET, Seal, SealedStore, derived, fleet_secret
from gateway.shared_state.protocol import Entry
from lab.evaluation.memory_store import MemoryStore

SECRET = b"s" * 32


@pytest.mark.parametrize(
    ("settings", "environ", "why"),
    [
        ({"secret_file": "%s/none"}, {}, "No such file"),
        ({"secret_file": "%s/short"}, {}, "32 characters or more"),
        ({"secret_env": "MINE"}, {}, "environment variable MINE: .* 32 characters"),
        ({}, {}, "need shared.secret_file or shared.secret_env"),
        ({}, {WORKERS_SECRET: "short"}, "32 characters or more"),
    ],
)
def test_a_secret_that_is_missing_or_short_is_refused(tmp_path, settings, environ, why):
    (tmp_path / "short").write_text("hunter2\n")
    config = SharedConfig(**{name: value.replace("%s", str(tmp_path)) for name, value in settings.items()})
    with pytest.raises(ConfigError, match=why):
        fleet_secret(config, environ)


def test_it_is_read_from_where_the_settings_say(tmp_path):
    (tmp_path / "secret").write_text("f" * 32 + "\n")
    environ = {"MINE": "e" * 32, WORKERS_SECRET: "w" * 32}
    settings = [
        SharedConfig(secret_file=str(tmp_path / "secret")),
        SharedConfig(secret_env="MINE"),
        SharedConfig(),
    ]
    assert [fleet_secret(each, environ)[:1] for each in settings] == [b"f", b"e", b"w"]
    assert derived(SECRET, "one") != derived(SECRET, "other") != SECRET


async def test_only_the_fleet_is_read_and_under_the_name_that_it_wrote_to():
    there = MemoryStore(lambda: 0.0)
    ours, strangers = SealedStore(there, SECRET), SealedStore(there, b"t" * 32)
    ours.publish([Entry(b"a", b"1", 9.0), Entry(b"b", b"2", 9.0)])
    assert await ours.find([b"a", b"b", b"c"]) == [b"1", b"2", None]
    sealed = await there.find([ours.name(b"a"), ours.name(b"b")])
    assert b"a" not in there._entries and await strangers.find([b"a"]) == [None]
    for forged in (b"", b"1", sealed[1], Seal(b"t" * 32, "entries").put(b"a", b"1")):
        there.publish([Entry(ours.name(b"a"), forged, 9.0)])
        assert await ours.find([b"a"]) == [None]
        assert await ours.claim(b"a", b"3", 9.0) == b"3" and await ours.find([b"a"]) == [b"3"]
    assert await SealedStore(there, SECRET).claim(b"a", b"4", 9.0) == b"3"


async def test_who_writes_over_another_gateway_hears_of_it_and_not_of_a_forgery():
    there, heard = MemoryStore(lambda: 0.0), []
    ours = SealedStore(there, SECRET)
    ours.on_replaced.append(lambda entry, value: heard.append((entry.key, entry.value, value)))
    there.publish([Entry(ours.name(b"n"), b"forged", 9.0)])
    for value in (b"1", b"1", b"2"):
        ours.publish([Entry(b"n", value, 9.0, True)])
        await ours.flush()
    assert heard == [(b"n", b"2", b"1")]
    ours.publish([Entry(b"n", None, 9.0)])
    assert await ours.find([b"n"]) == [None]
