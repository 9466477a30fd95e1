"""What several workers say, as one."""

import os

import msgspec
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config.load import load_config
from gateway.config.server import worker_count
from gateway.core.snapshot import Gauges, ReplicaView
from gateway.domain.ids import PoolId, ReplicaId
from gateway.server.workers.merged_events import Positions
from gateway.server.workers.merged_metrics import Totals, merge
from gateway.server.workers.merged_views import merge_graphs, merge_snapshots
from gateway.server.workers.seat import of_worker, own_path, paths_of_all
from gateway.telemetry.metrics import Metrics


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


def text_of(**values):
    now = Gauges(**{"at_s": 1.0, "session_count": 0, "running": 0, "waiting": 0, "active_tools": 0, **values})
    metrics = Metrics(lambda: now)
    metrics.unread["malformed"] += 2
    metrics.loop_lag.add(0.01)
    return metrics.render()


def merged(texts, gone):
    text = merge(texts, gone, wanted=2, running=len(texts), restarts=1)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_what_each_has_a_part_of_is_added_up():
    views = (replica(running=2, kv_used=0.5),)
    told = merged([(1, text_of(session_count=3, replicas=views)), (2, text_of(replicas=views))], Totals())
    assert told[("turnpike_sessions",)] == 3
    assert told[("turnpike_replica_running", ("replica", "r"))] == 4
    assert told[("turnpike_requests_unread_total", ("reason", "malformed"))] == 4
    assert told[("turnpike_loop_lag_seconds_bucket", ("le", "0.01"))] == 2
    assert told[("turnpike_loop_lag_seconds_count",)] == 2
    assert told[("turnpike_worker_restarts_total",)] == 1


def test_where_a_sum_would_be_wrong_the_worker_is_named():
    views = (replica(kv_used=0.5),)
    told = merged([(1, text_of(replicas=views)), (4, text_of(replicas=views))], Totals())
    for number in ("1", "4"):
        assert told[("turnpike_replica_up", ("replica", "r"), ("worker", number))] == 1
        assert told[("turnpike_engine_kv_used_ratio", ("replica", "r"), ("worker", number))] == 0.5
        assert ("process_start_time_seconds", ("worker", number)) in told
    versions = [value for key, value in told.items() if key[0] == "turnpike_build_info"]
    assert versions == [1]


def test_totals_stay_when_a_worker_is_gone():
    gone = Totals()
    gone.add(text_of(session_count=9))
    gone.add(b"")  # one that never said anything
    told = merged([(2, text_of(session_count=1))], gone)
    assert told[("turnpike_requests_unread_total", ("reason", "malformed"))] == 4
    assert told[("turnpike_loop_lag_seconds_sum",)] == pytest.approx(0.02)
    assert told[("turnpike_sessions",)] == 1
    assert merged([], gone)[("turnpike_requests_unread_total", ("reason", "malformed"))] == 2


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


def test_of_a_graph_the_worker_that_saw_most_tells():
    few, many, other = ({"id": i, "steps": steps} for i, steps in (("a", 2), ("a", 9), ("b", 1)))
    assert merge_graphs([[few, other], [many]]) == [many, other]


def test_positions_are_read_as_they_are_written():
    assert str(Positions.parse("12-0.3-99")) == "3-99.12-0"
    for wrong in ("", "7", "1-2.", "a-1", "1-2,3-4", "²-1", "1-" + "9" * 19):
        with pytest.raises(ValueError, match="after"):
            Positions.parse(wrong)


def test_files_of_workers_are_found_the_newest_last(tmp_path):
    path = str(tmp_path / "state[1]")
    for age, name in enumerate(
        (path, own_path(path, 12), own_path(path, 3), path + ".worker-3.new", path + "x")
    ):
        with open(name, "w"):
            os.utime(name, (100 - age, 100 - age))
    assert [str(each) for each in paths_of_all(path)] == [own_path(path, 3), own_path(path, 12), path]


def test_a_worker_has_files_of_its_own():
    settings = {"stream.path": "/a", "recording.path": "/b", "history.path": "/c"}
    pools = [{"replicas": [{"url": "http://r"}]}]
    config = of_worker(load_config(None, {}, {"pools": pools, **settings}), 3)
    paths = (config.stream.path, config.recording.path, config.history.path)
    assert paths == ("/a.worker-3", "/b.worker-3", "/c.worker-3")


def test_auto_is_one_a_core():
    assert worker_count("auto", cores=3) == 3 and worker_count(5, cores=3) == 5
