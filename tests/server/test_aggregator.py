"""Views and streams of several gateways, as one."""

import itertools

import msgspec
import orjson
import pytest

from gateway.core.snapshot import ReplicaView
from gateway.domain.ids import PoolId, ReplicaId
from gateway.server.aggregator.control_plane import AggregatedControl
from gateway.server.aggregator.merged_events import Positions
from gateway.server.aggregator.merged_views import merge_graphs, merge_snapshots


def replica(**values):
    told = {
        "id": "r",
        "pool": "p",
        "is_up": True,
        "running": 0,
        "engine": "vllm",
        "version": None,
        "models": (),
    }
    return ReplicaView(**{**told, "id": ReplicaId("r"), "pool": PoolId("p"), **values})


def snapshot(**values):
    row = {"id": "p", "window": 4.0, "admitted": 2, "gpu_pressure": 0.5, "updates": [{"at_s": 1.0}]}
    tenant = {
        "id": "t",
        "pool": "p",
        "weight": 2.0,
        "entitlement": 1.0,
        "admitted": 1,
        "lately": 0.5,
        "waiting": 1,
    }
    views = msgspec.to_builtins([replica(running=1, sessions=2, kv_used=0.2)])
    return {
        "at_s": 5.0, "began_s": 1.0, "seq": 7, "version": "1", "session_count": 1,
        "waiting_by": {"reactive": 1},
        "replicas": views, "pools": [row], "tenants": [tenant], "sessions": [],
        "bounds": [{"bound": "b", "tenant": "t", "used": 0.2}], **values,
    }  # fmt: skip


def test_snapshots_become_one():
    one = snapshot(sessions=[{"id": "a", "last_seen_s": 1.0}, {"id": "both", "last_seen_s": 0.0}])
    other = snapshot(
        at_s=6.0,
        waiting_by={"none": 2},
        bounds=[{"bound": "b", "tenant": "t", "used": 0.3}],
        replicas=msgspec.to_builtins([replica(is_up=False, kv_used=0.3)]),
        sessions=[{"id": "both", "last_seen_s": 4.0}, {"id": "b", "last_seen_s": 3.0}],
        pools=[{**snapshot()["pools"][0], "gpu_pressure": 0.9, "updates": [{"at_s": 0.5}]}],
    )
    told = merge_snapshots([one, other], began_s=0.5, seq="1-7.2-7")
    assert (told["at_s"], told["began_s"], told["seq"]) == (6.0, 0.5, "1-7.2-7")
    assert told["session_count"] == 2 and told["waiting_by"] == {"reactive": 1, "none": 2}
    (there,) = told["replicas"]
    assert there["is_up"] is True and (there["running"], there["sessions"], there["kv_used"]) == (1, 2, 0.3)
    (pool,) = told["pools"]
    assert (pool["window"], pool["admitted"], pool["gpu_pressure"]) == (8.0, 4, 0.9)
    assert [each["at_s"] for each in pool["updates"]] == [0.5, 1.0]
    assert told["bounds"] == [{"bound": "b", "tenant": "t", "used": 0.3}], "each knows the sum"
    assert told["tenants"][0]["admitted"] == 2 and told["tenants"][0]["entitlement"] == 1.0
    assert [(each["id"], each["last_seen_s"]) for each in told["sessions"]] == [
        ("both", 4.0), ("b", 3.0), ("a", 1.0)
    ]  # fmt: skip
    assert orjson.loads(orjson.dumps(told)) == msgspec.json.decode(msgspec.json.encode(told))


def test_what_came_of_it_is_added_up():
    views = [snapshot(outcome={"sessions": count, "cached_tokens": 5}) for count in (2, 3)]
    told = merge_snapshots(views, began_s=0.0, seq="")
    assert told["outcome"] == {"sessions": 5, "cached_tokens": 10}


def test_no_limit_for_one_is_no_limit():
    rows = [{**snapshot()["pools"][0], "window": window} for window in (4.0, None)]
    told = merge_snapshots([snapshot(pools=[row]) for row in rows], began_s=0.0, seq="")
    assert told["pools"][0]["window"] is None


def test_of_a_graph_the_gateway_that_saw_most_is_shown():
    few, many, other = ({"id": i, "steps": steps} for i, steps in (("a", 2), ("a", 9), ("b", 1)))
    assert merge_graphs([[few, other], [many]]) == [many, other]


def test_positions_are_read_as_they_are_written():
    assert str(Positions.parse("12-0.3-99")) == "3-99.12-0"
    for wrong in ("", "7", "1-2.", "a-1", "1-2,3-4", "²-1", "1-" + "9" * 19):
        with pytest.raises(ValueError, match="after"):
            Positions.parse(wrong)


def test_each_record_has_the_reader_s_position_at_all():
    positions = Positions({1: 120, 2: 88})
    blocks = b"id: 121\nevent: a\ndata: id: 7\n\nid: 122\n\n"
    assert positions.renumbered(1, blocks) == (b"id: 1-121.2-88\nevent: a\ndata: id: 7\n\nid: 1-122.2-88\n\n")
    assert positions.renumbered(2, b"id: 0\nevent: gap\ndata: {}\n\n").startswith(b"id: 1-122.2-0\n")
    assert positions.renumbered(2, b": turnpike\n\n") == b": turnpike\n\n"


async def test_every_path_of_a_gateway_is_answered_for_all(start):
    bench = await start()
    own = set()
    for route in bench.gateway._control.app.router.routes():
        path = route.resource.canonical
        if path == "/turnpike/static":
            path = "/turnpike/static/{file}"
        if route.method != "HEAD":
            own.add((route.method, path))
    routes = AggregatedControl.ROUTES
    assert own == {(method, path.replace(":.*", "")) for method, path, _ in routes}
    assert not [a for a, b in itertools.combinations(routes, 2) if a[:2] == b[:2]]
