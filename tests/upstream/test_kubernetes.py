"""Discovery in Kubernetes: against a server that lists and watches as the API documents, and fails."""

import asyncio
import contextlib
import random

import msgspec
import pytest

from gateway.config.kubernetes import KubernetesConfig
from gateway.server.replicas import kubernetes
from gateway.server.replicas.endpoint_slices import EndpointSlice, EndpointSnapshot, Slices, SlicesError
from gateway.server.replicas.kubernetes import KubernetesDiscovery
from tests.upstream.api_server import ApiServer, endpoint

A, B, C = "http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(kubernetes, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(kubernetes, "_SHORT_S", 0.0)


class Following:
    def __init__(self, said: list[EndpointSnapshot]) -> None:
        self.all_said = said

    @property
    def said(self) -> EndpointSnapshot:
        return self.all_said[-1] if self.all_said else EndpointSnapshot()

    async def until(self, *up: str, draining: tuple[str, ...] = ()) -> None:
        await until(
            lambda: bool(self.all_said) and self.said == EndpointSnapshot(up, draining), lambda: self.said
        )


async def until(is_true, tell=lambda: ""):
    try:
        async with asyncio.timeout(10):
            while not is_true():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"it does not come to that: {tell()}") from None


@contextlib.asynccontextmanager
async def following(server, tmp_path, **settings):
    token = tmp_path / "token"
    token.write_text(f"{server.token}\n")
    config = msgspec.convert(
        {
            "service": "vllm",
            "namespace": "models",
            "api": server.url,
            "token_file": str(token),
            **settings,
        },
        KubernetesConfig,
    )
    said: list[EndpointSnapshot] = []
    discovery = KubernetesDiscovery(config, said.append, rng=random.Random(7))
    task = asyncio.create_task(discovery.run())
    try:
        yield Following(said)
    finally:
        assert not task.done(), "it ended"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def following_one(server, tmp_path, **settings):
    server.put("vllm-a", endpoint("10.0.0.1"))
    async with following(server, tmp_path, **settings) as it:
        await it.until(A)
        await until(lambda: server.watches == 1)
        yield it


def lists(server) -> int:
    return sum("watch" not in asked and "continue" not in asked for asked in server.asked)


@pytest.fixture
async def server():
    async with ApiServer().running() as running:
        yield running


async def test_endpoints_come_go_and_drain_without_another_list(server, tmp_path):
    server.put("vllm-a", endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    async with following(server, tmp_path) as it:
        await it.until(A, B)
        server.put("vllm-b", endpoint("10.0.0.3"))
        await it.until(A, B, C)
        server.put(
            "vllm-a", endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False, serving=True, terminating=True)
        )
        await it.until(A, C, draining=(B,))
        server.put(
            "vllm-a", endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False, serving=False, terminating=True)
        )
        await it.until(A, C)
        server.put("vllm-a", endpoint("10.0.0.1", ready=False, serving=False))
        await it.until(C, draining=(A,))
        server.put("vllm-a", endpoint("10.0.0.1"))
        await it.until(A, C)
        server.delete("vllm-b")
        await it.until(A)
        server.delete("vllm-a")
        await it.until()
        assert lists(server) == 1 and server.watch_count() == 1


async def test_a_long_list_comes_in_pages(server, tmp_path):
    server.page = 2
    for number in range(1, 6):
        server.put(f"vllm-{number}", endpoint(f"10.0.0.{number}"))
    async with following(server, tmp_path) as it:
        await it.until(*(f"http://10.0.0.{number}:8000" for number in range(1, 6)))
    assert len([asked for asked in server.asked if "watch" not in asked]) == 3


async def test_a_cut_watch_goes_on_where_it_was(server, tmp_path):
    async with following_one(server, tmp_path) as it:
        server.bookmark()
        bookmarked = str(server.version)
        server.put("vllm-b", endpoint("10.0.0.2"))
        await it.until(A, B)
        version = str(server.version)
        server.cut()
        await until(lambda: server.watch_count() == 2)
        assert server.asked[-1]["resourceVersion"] == version
        server.bookmark()
        await asyncio.sleep(0.05)
        server.cut()
        await until(lambda: server.watch_count() == 3)
        assert server.asked[-1]["resourceVersion"] == str(server.version) > bookmarked
        server.put("vllm-a", endpoint("10.0.0.3"))
        await it.until(B, C)
        assert lists(server) == 1


async def test_what_came_while_it_was_cut_off_is_told_afterwards(server, tmp_path):
    async with following_one(server, tmp_path) as it:
        server.status = 503
        server.cut()
        await until(lambda: len(server.asked) > 5)
        assert it.said == EndpointSnapshot((A,)), "what is known stays"
        server.put("vllm-a", endpoint("10.0.0.2"))
        server.status = 0
        await it.until(B)


async def test_a_forgotten_version_means_a_new_list(server, tmp_path):
    server.put("vllm-a", endpoint("10.0.0.1"))
    server.put("vllm-b", endpoint("10.0.0.2"))
    async with following(server, tmp_path) as it:
        await it.until(A, B)
        await until(lambda: server.watches == 1)
        del server.slices["vllm-b"]  # nobody was told
        server.forget()
        server.cut()
        await it.until(A)
        assert lists(server) == 2
        server.put("vllm-a", endpoint("10.0.0.3"))
        await it.until(C)


async def test_a_list_that_is_forgotten_between_pages_begins_anew(server, tmp_path):
    server.page = 1
    for number in (1, 2):
        server.put(f"vllm-{number}", endpoint(f"10.0.0.{number}"))
    first = server._list

    def forgetting(request):
        if "continue" in request.query and not server.oldest:
            server.forget()
        return first(request)

    server._list = forgetting
    async with following(server, tmp_path) as it:
        await it.until(A, B)


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_a_refusal_is_told_once_and_what_is_known_stays(server, tmp_path, caplog, status):
    async with following_one(server, tmp_path) as it:
        server.status = status
        server.cut()
        await until(lambda: len(server.asked) > 5)
        assert it.all_said == [EndpointSnapshot((A,))]
        told = [each for each in caplog.messages if "discovery_failed" in each and str(status) in each]
        assert len(told) == 1 and "models/vllm" in told[0], caplog.text
        assert server.token not in caplog.text


async def test_it_waits_for_as_long_as_it_is_told_to(server, tmp_path):
    server.status, server.headers = 429, {"Retry-After": "1"}
    async with following(server, tmp_path):
        await asyncio.sleep(0.3)
        assert len(server.asked) == 1


async def test_failures_are_asked_about_less_and_less_often(server, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes, "_FIRST_PAUSE_S", 0.05)
    server.status = 500
    async with following(server, tmp_path):
        await asyncio.sleep(0.8)
        assert 3 <= len(server.asked) <= 6, "0.05, 0.1, 0.2, 0.4, less up to a half"


async def test_the_token_is_read_again(server, tmp_path):
    async with following_one(server, tmp_path) as it:
        server.token = "t-2"
        (tmp_path / "token").write_text("t-2")
        server.cut()
        server.put("vllm-a", endpoint("10.0.0.2"))
        await it.until(B)
        (tmp_path / "token").unlink()
        server.cut()
        await asyncio.sleep(0.05)
        (tmp_path / "token").write_text("t-2")
        server.put("vllm-a", endpoint("10.0.0.3"))
        await it.until(C)


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "MODIFIED", "object": {"metadata": {"name": 7}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x"},"endpoints":[{"addresses":["x"]}],"ports":[{"port":1}]}}\n',
        b'{"type": "ADDED", "object": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'{"type": "ERROR", "object": {"code": 500, "message": "etcdserver: no leader"}}\n',
        b"\xff\xfe\n",
    ],
)
async def test_what_cannot_be_read_means_a_new_list(server, tmp_path, line):
    async with following_one(server, tmp_path) as it:
        server.send(line)
        await until(lambda: lists(server) == 2)
        assert it.all_said == [EndpointSnapshot((A,))]
        server.put("vllm-a", endpoint("10.0.0.2"))
        await it.until(B)


async def test_a_list_that_cannot_be_read_says_nothing(server, tmp_path):
    async with following_one(server, tmp_path) as it:
        server.slices["vllm-a"]["endpoints"] = "none"
        server.forget()
        server.cut()
        await until(lambda: len(server.asked) > 5)
        assert it.all_said == [EndpointSnapshot((A,))]


async def test_what_is_too_large_is_not_read(server, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes, "_MAX_LINE", 100_000)
    monkeypatch.setattr(kubernetes, "_MAX_PAGE", 100_000)
    async with following_one(server, tmp_path) as it:
        server.send(b"x" * 150_000)  # without an end
        await until(lambda: lists(server) == 2)
        await until(lambda: server.watch_count() == 2)
        await asyncio.sleep(0.05)
        server.send(b" " * 150_000 + b"\n")
        await until(lambda: lists(server) == server.watch_count() == 3)
        server.slices["vllm-a"]["noise"] = "x" * 150_000
        server.forget()
        server.cut()
        await until(lambda: len(server.asked) > 9)
        assert server.watch_count() == 4, "after the forgotten one there is no list to watch from"
        assert it.all_said == [EndpointSnapshot((A,))]


async def test_a_watch_that_says_nothing_at_all_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes, "_GRACE_S", 0.1)
    server.put("vllm-a", endpoint("10.0.0.1"))
    async with following(server, tmp_path, watch_s=0.1) as it:
        await it.until(A)
        await until(lambda: server.watch_count() == 1)
        server.is_silent = True
        server.cut()
        await until(lambda: server.watch_count() > 3)
        server.is_silent = False
        server.put("vllm-a", endpoint("10.0.0.2"))
        await it.until(B)


@pytest.mark.slow
async def test_watches_that_end_in_their_time_cost_no_list(server, tmp_path):
    server.put("vllm-a", endpoint("10.0.0.1"))
    async with following(server, tmp_path, watch_s=0.5):  # a second, for the server
        await until(lambda: server.watch_count() == 3)
        assert lists(server) == 1


async def test_a_watch_that_ends_at_once_is_a_failure(server, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes, "_SHORT_S", 5.0)
    monkeypatch.setattr(kubernetes, "_FIRST_PAUSE_S", 0.2)
    server.put("vllm-a", endpoint("10.0.0.1"))

    async def ends(request):
        return server._list(request)

    server._watch = ends
    async with following(server, tmp_path) as it:
        await it.until(A)
        await asyncio.sleep(0.5)
        assert server.watch_count() <= 3


async def test_an_api_server_that_is_away_takes_nobody_away(server, tmp_path):
    async with following_one(server, tmp_path) as it:
        port = int(server.url.rpartition(":")[2])
        await server.close()
        await asyncio.sleep(0.1)
        assert it.all_said == [EndpointSnapshot((A,))]
        server.put("vllm-a", endpoint("10.0.0.2"))
        await server.open(port)
        await it.until(B)


# --- what slices say ----------------------------------------------------------------------------------


def slices(*told, port=None, scheme="http"):
    kept = Slices(port, scheme)
    kept.replace([msgspec.convert(each, EndpointSlice) for each in told])
    return kept


def told(name, *endpoints, family="IPv4", ports=({"name": "http", "port": 8000},)):
    return {"metadata": {"name": name}, "addressType": family, "endpoints": endpoints, "ports": ports}


def test_an_endpoint_in_two_slices_counts_once_as_its_better_state():
    going = endpoint("10.0.0.1", ready=False, serving=True, terminating=True)
    for first, second in ((going, endpoint("10.0.0.1")), (endpoint("10.0.0.1"), going)):
        assert slices(told("a", first), told("b", second)).snapshot() == EndpointSnapshot((A,))


def test_of_two_families_one_counts():
    four, six = told("a", endpoint("10.0.0.1")), told("b", endpoint("fd00::1"), family="IPv6")
    assert slices(four, six).snapshot() == EndpointSnapshot((A,))
    assert slices(told("a"), six).snapshot() == EndpointSnapshot(("http://[fd00::1]:8000",))
    assert slices({**six, "addressType": "FQDN"}).snapshot() == EndpointSnapshot()


def test_ready_that_is_not_stated_is_true_and_serving_follows_it():
    assert slices(told("a", {"addresses": ["10.0.0.1"]})).snapshot() == EndpointSnapshot((A,))
    assert (
        slices(told("a", endpoint("10.0.0.1", terminating=True, ready=False))).snapshot()
        == EndpointSnapshot()
    )
    assert slices(told("a", endpoint("10.0.0.1", terminating=True))).snapshot() == EndpointSnapshot((), (A,))
    assert slices(told("a", endpoint("10.0.0.1", ready=False))).snapshot() == EndpointSnapshot((), (A,))


def test_ports_by_number_by_name_or_the_only_one():
    two = (
        {"name": "http", "port": 8000},
        {"name": "metrics", "port": 9000},
        {"name": "u", "port": 1, "protocol": "UDP"},
    )
    assert slices(told("a", endpoint("10.0.0.1"), ports=two), port="http").snapshot() == EndpointSnapshot(
        (A,)
    )
    assert slices(told("a", endpoint("10.0.0.1"), ports=two), port=8000).snapshot() == EndpointSnapshot((A,))
    assert slices(told("a", endpoint("10.0.0.1"), ports=two[1:]), port=None).snapshot().up == (
        "http://10.0.0.1:9000",
    )
    for port in (None, "grpc"):
        with pytest.raises(SlicesError, match="slice a does not have"):
            slices(told("a", endpoint("10.0.0.1"), ports=two), port=port)
    assert slices(told("a", endpoint("10.0.0.1")), scheme="https").snapshot().up == ("https://10.0.0.1:8000",)


def test_what_is_kept_is_bounded(monkeypatch):
    from gateway.server.replicas import endpoint_slices

    monkeypatch.setattr(endpoint_slices, "MOST", 3)
    many = [endpoint(f"10.0.0.{number}") for number in range(1, 9)]
    kept = slices(*(told(str(number), *many) for number in range(9)))
    assert len(kept._slices) == 3 and len(kept.snapshot().up) == 3
    kept.put(msgspec.convert(told("another", *many), EndpointSlice))
    assert len(kept._slices) == 3


def test_what_is_wrong_leaves_what_was_known():
    kept = slices(told("a", endpoint("10.0.0.1")))
    wrong = told("b", endpoint("fd00::1"))
    for act in (kept.put, lambda each: kept.replace([each])):
        with pytest.raises(SlicesError):
            act(msgspec.convert(wrong, EndpointSlice))
    assert kept.snapshot() == EndpointSnapshot((A,))
