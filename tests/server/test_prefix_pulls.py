"""The beginning of a prompt that one engine is told to pull from another one, on real sockets.

What is decided is set here; the brain's tests say when it decides so. What an engine would make of the bodies
that were sent is asked of vLLM's own parser.
"""

import gzip
import json
from typing import Any

import msgspec
import pytest

from gateway.core.commands import Dispatch
from gateway.domain.ids import ReplicaId
from gateway.domain.prefix_pull import PullPrefix
from gateway.server.driver import Ticket
from gateway.server.tenants import hash_key
from gateway.wire.kv_transfer import CONNECTORS, Tier
from tests.server.bench import CHAT, CHAT_ANSWER, Bench, Exchange, answer, eventually, post, sends

TIERS = ["10.0.0.1:5710", "10.0.0.2:5711"]
TOKENS = 800


class Play:
    """The second backend answers; the first one has what is pulled."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.source, self.replica = bench.backends

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.bench.gateway.observation.metrics.pulls)

    @property
    def told(self) -> list[Any]:
        return [json.loads(each.body).get("kv_transfer_params") for each in self.replica.seen]


@pytest.fixture
def play(start, monkeypatch):
    async def begin(
        transfer: str = "p2p", *, source: str = "pool-0", tiers: Any = None, **settings: Any
    ) -> Play:
        decide = Ticket.decide

        def pulls(ticket: Ticket, command: Any) -> None:
            if isinstance(command, Dispatch) and command.attempt == 1:
                command = msgspec.structs.replace(command, pull=PullPrefix(ReplicaId(source), TOKENS))
            decide(ticket, command)

        monkeypatch.setattr(Ticket, "decide", pulls)
        if tiers is None and transfer == "p2p":
            tiers = TIERS
        pool: dict[str, Any] = {"name": "pool", "backends": 2, "transfer": transfer}
        pool |= {"roles": ["prefill", "decode"], **({"tiers": tiers} if tiers else {})}
        no_legs = {"threshold_tokens": 1_000_000}
        return Play(await start(pools=[pool], disaggregation=no_legs, **settings))

    return begin


def answers(cached: int | None) -> Any:
    usage: dict[str, Any] = {"prompt_tokens": 1_000, "completion_tokens": 1}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return sends(answer(json.dumps(json.loads(CHAT_ANSWER) | {"usage": usage}).encode()))


@pytest.mark.parametrize(
    ("cached", "outcome"),
    [(900, "found"), (400, "found"), (399, "missing"), (0, "missing"), (None, "unknown")],
)
async def test_the_engine_is_told_where_the_beginning_is(play, cached, outcome):
    it = await play()
    it.replica.script = answers(cached)
    assert (await it.bench.ask(post())).status == 200
    [params] = it.told
    source = params.pop("remote_kv_source")
    name = source.pop("kv_request_id")
    assert not params and source == {"remote_host": "10.0.0.1", "remote_port": 5710} and name
    assert it.replica.seen[0].body.startswith(CHAT[:-1]), "what the client said stays as it was"
    assert it.outcomes == {outcome: 1} and not it.source.seen


async def test_no_two_requests_have_one_name(play):
    it = await play()
    for _ in range(3):
        assert (await it.bench.ask(post())).status == 200
    assert len({each["remote_kv_source"]["kv_request_id"] for each in it.told}) == 3


@pytest.mark.slow  # vLLM's imports: seconds, and loud
@pytest.mark.filterwarnings("ignore")
async def test_vllm_reads_what_is_meant(play):
    from vllm.v1.kv_offload.tiering.p2p.manager import _parse_dest, _parse_source

    it = await play()
    assert (await it.bench.ask(post())).status == 200
    [params] = it.told
    found = _parse_source(params)
    assert found is not None and (found.peer_id, found.do_probe) == ("10.0.0.1:5710", True)
    assert found.kv_request_id == params["remote_kv_source"]["kv_request_id"]
    assert _parse_dest(params) is None
    p2p, tier = CONNECTORS["p2p"], Tier.parse(TIERS[0])
    legs = p2p.prefill_fields("r-1.leg"), p2p.decode_fields(b"{}", "r-1.leg", tier)
    first, second = (json.loads(bytes(each["kv_transfer_params"])) for each in legs if each)
    left, fetched = _parse_dest(first), _parse_source(second)
    assert left is not None and fetched is not None and _parse_source(first) is _parse_dest(second) is None
    assert left.kv_request_id == fetched.kv_request_id == "r-1.leg"
    assert (fetched.peer_id, fetched.do_probe) == ("10.0.0.1:5710", False)


@pytest.mark.parametrize(
    "settings",
    [
        {"source": "pool-7"},
        {"source": "pool-1"},
        {"transfer": "nixl"},
    ],
    ids=["the source is gone", "from itself", "a connector that pulls nothing"],
)
async def test_what_cannot_be_pulled_is_computed(play, settings):
    it = await play(**settings)
    assert (await it.bench.ask(post())).status == 200
    assert it.replica.seen[0].body == CHAT and it.outcomes == {"impossible": 1}


async def test_engines_with_one_store_need_not_be_told(play):
    it = await play("shared_storage")
    it.replica.script = answers(900)
    assert (await it.bench.ask(post())).status == 200
    assert it.replica.seen[0].body == CHAT and it.outcomes == {"found": 1}


async def test_a_compressed_body_is_passed_on_as_it_is(play):
    it = await play()
    body = gzip.compress(CHAT)
    assert (await it.bench.ask(post(body, headers=b"content-encoding: gzip\r\n"))).status == 200
    assert it.replica.seen[0].body == body and it.outcomes == {"impossible": 1}


async def test_a_trusted_tenants_own_word_is_not_replaced(play):
    router = {"name": "router", "key_hashes": [hash_key("k")], "trust": ["kv-transfer"]}
    it = await play(tenants=[router])
    body = CHAT[:-1] + b',"kv_transfer_params":{"remote_kv_source":{"kv_request_id":"mine"}}}'
    assert (await it.bench.ask(post(body, headers=b"authorization: Bearer k\r\n"))).status == 200
    assert it.replica.seen[0].body == body and it.outcomes == {"impossible": 1}


async def test_a_failure_is_asked_again_without_it(play):
    it = await play()

    async def cannot(exchange: Exchange) -> None:
        is_told = b"kv_transfer_params" in exchange.request.body
        await exchange.send(answer(status=b"500 Internal Server Error") if is_told else answer())

    it.replica.script = cannot
    response = await it.bench.ask(post())
    assert response.body == CHAT_ANSWER and it.outcomes == {"failed": 1}
    assert [each is None for each in it.told] == [False, True]


async def test_what_must_not_run_twice_is_not_asked_again(play):
    it = await play()
    it.replica.script = sends(answer(b"{}", status=b"500 Internal Server Error"))
    body = b'{"model":"m","input":"hi"}'
    assert (await it.bench.ask(post(body, path=b"/v1/responses"))).status == 500
    assert len(it.told) == 1 and it.outcomes == {"failed": 1}


async def test_it_is_said_once_on_a_fresh_connection(play):
    it = await play()
    for _ in range(2):
        assert (await it.bench.ask(post())).status == 200
    assert it.replica.connections == 2


async def test_an_engine_that_dies_is_replaced_and_the_other_is_told_nothing(play):
    it = await play()
    it.replica.script = sends(b"", then="reset")
    response = await it.bench.ask(post())
    assert response.body == CHAT_ANSWER and it.outcomes == {"cut": 1}
    assert it.source.seen[0].body == CHAT


async def test_a_client_that_leaves_is_counted(play):
    it = await play()
    it.replica.script = lambda exchange: exchange.until_left()
    client = await it.bench.connect()
    client.send(post())
    await eventually(lambda: it.replica.seen)
    client.reset()
    await eventually(it.bench.is_quiet)
    assert it.outcomes == {"cut": 1}


async def test_nothing_is_there_where_nothing_is_handed_over(start):
    bench = await start(replicas=2)
    assert bench.gateway.serving.handlers._pulls is None
