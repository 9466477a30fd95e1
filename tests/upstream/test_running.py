"""What `turnpike doctor` says of what a running gateway saw: sentences, and a real gateway's own."""

import asyncio
import json
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.cli.running import client_findings
from tests.server.bench import Bench, answer, eventually, get, post, sends

CLIENT = {
    "client": "claude-cli", "agent": "9f86d081", "turns": 40, "unlinked": 0, "changed": 0, "part": "",
    "at": 0, "measured": 0, "again_tokens": 0, "left_after_s": [],
}  # fmt: skip


def said(*, sessions: tuple[Any, ...] = (), **fields: Any) -> str:
    found = client_findings({"conduct": [CLIENT | fields], "sessions": sessions}, max_wait_s=50.0)
    return "\n".join(f"{each.what} | {each.gain} | {each.do}" for each in found if each.level != "ok")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"changed": 38, "part": "system", "at": 1024, "measured": 38, "again_tokens": 380_000},
            (
                "claude-cli: the system prompt changes at about character 1024 in 38 of 40",
                "10000 tokens a turn",
            ),
        ),
        (
            {"changed": 8, "part": "tool_order"},
            ("the tools come in another order in 8 of 40", "it is computed"),
        ),
        ({"unlinked": 30}, ("nothing proves whose 30 of 40 later turns are", "X-Session-ID")),
        (
            {"left_after_s": [3.0, 60.1, 60.0, 59.8, 120.0]},
            ("left 3 times after 60 s", "core.max_wait_s, 50 s"),
        ),
    ],
)
def test_what_a_client_does_again_and_again_is_said_with_what_mends_it(fields, words):
    assert all(each in said(**fields) for each in words), said(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"changed": 3, "turns": 6, "part": "tools"},  # too few to be a habit
        {"changed": 7, "part": "tools"},  # less than a fifth: somebody chose another mode
        {"unlinked": 7},
        {"left_after_s": [60.0, 60.1]},
        {"left_after_s": [10.0, 30.0, 60.0, 90.0]},  # people, who leave when they like
        {"left_after_s": [0.2, 0.2, 0.3, 0.3]},
    ],
)
def test_what_happens_now_and_then_is_not(fields):
    assert said(**fields) == ""


@pytest.mark.parametrize(("cached", "is_said"), [(None, True), (0, False), (900, False)])
def test_engines_that_do_not_say_what_they_had_cached(cached, is_said):
    turn = {"prompt_tokens": 1000, "cached_tokens": cached}
    assert ("--enable-prompt-tokens-details" in said(sessions=({"last_turns": [turn] * 5},))) is is_said


def test_a_snapshot_of_an_older_gateway_says_nothing():
    (found,) = client_findings({"sessions": []}, max_wait_s=50.0)
    assert found.level == "ok"


def test_what_the_gateway_itself_lacks_comes_first():
    replicas = [
        {"id": "a", "is_up": False, "cause": "Connection refused", "ejected": None},
        {"id": "b", "is_up": True, "cause": "", "ejected": "fails"},
        {"id": "d", "is_up": True, "cause": "", "ejected": None, "failing": "fails: 500"},
        {"id": "c", "is_up": True, "cause": "", "ejected": None},
    ]
    snapshot = {"failing": ["the shared store"], "replicas": replicas, "conduct": [CLIENT]}
    found = client_findings(snapshot, max_wait_s=50.0)
    assert [(each.level, each.what) for each in found] == [
        ("bad", "failing: the shared store"),
        ("bad", "a is down: Connection refused"),
        ("bad", "b is up and gets no turns: fails"),
        ("bad", "d is up and fails: 500; it stays, as too few others were left"),
    ]


def usage(cached: int, text: str) -> bytes:
    counts = {
        "prompt_tokens": 900,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    message = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "c", "choices": [{"index": 0, **message}], "usage": counts}).encode()


@pytest.fixture
async def bench():
    bench = Bench()
    await bench.start()
    yield bench
    await bench.finish()


async def test_the_doctor_asks_the_gateway_that_runs(bench, capsys, monkeypatch, tmp_path):
    clock = {"role": "system", "content": f"{'You repair shops. ' * 60}It is {{n}} o'clock."}
    messages: list[dict[str, str]] = []
    for n in range(7):
        messages.append({"role": "user", "content": f"question {n}, which nobody else would ask"})
        system = {**clock, "content": clock["content"].format(n=n)}
        text = f"an answer that is told apart from others, {n * 7919}"
        bench.backend.script = sends(answer(usage(40, text)))
        body = json.dumps({"model": "m", "messages": [system, *messages]}).encode()
        got = await bench.ask(post(body, headers=b"User-Agent: shop-agent/2.0\r\n"))
        assert got.status == 200
        messages.append({"role": "assistant", "content": text})
    metrics = (await bench.control(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")).body.decode()
    assert 'turnpike_changed_prompts_total{agent="' in metrics and 'client="shop-agent"} 5160.0' in metrics
    path = tmp_path / "turnpike.toml"
    path.write_text(
        f'[server]\ncontrol = "127.0.0.1:{bench.gateway.control_port}"\n'
        f'[[pools]]\nreplicas = [{{ url = "{bench.backend.url}" }}]\n'
    )
    monkeypatch.chdir(tmp_path)
    assert await asyncio.to_thread(main, ["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"clients  as the gateway at http://127.0.0.1:{bench.gateway.control_port} sees them" in out
    assert "shop-agent: the system prompt changes at about character 1024 in 6 of 6 turns" in out
    assert "about 860 tokens a turn are computed again" in out
    control = ["--control", f"http://127.0.0.1:{bench.gateway.control_port}"]
    turn = (await bench.control(get(b"/turnpike/snapshot"))).json()["sessions"][0]["last_turns"][-1]["turn"]
    assert await asyncio.to_thread(main, ["explain", turn, *control]) == 0
    assert "Its prompt differs from the previous turn's: the system prompt changes" in capsys.readouterr().out
    path.write_text(path.read_text().replace(str(bench.gateway.control_port), "9"))
    assert await asyncio.to_thread(main, ["doctor"]) == 0  # without a gateway, of the engine alone
    assert "clients" not in capsys.readouterr().out
    path.unlink()  # the gateway that runs is looked at all the same
    assert await asyncio.to_thread(main, ["doctor", *control]) == 0
    assert "shop-agent: the system prompt changes" in capsys.readouterr().out
    await bench.backend.close()
    bench.gateway.replica_watch.health.check_now("default-0")
    await eventually(lambda: not next(iter(bench.brain.fleet)).is_up)
    async with asyncio.timeout(10):  # a snapshot serves for half a second
        while await asyncio.to_thread(main, ["doctor", *control]) == 0:
            capsys.readouterr()
            await asyncio.sleep(0.1)
    assert "bad  default-0 is down: Connection refused" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["doctor", "--control", "http://127.0.0.1:9"]) == 1
    assert "no backend is given" in capsys.readouterr().err
