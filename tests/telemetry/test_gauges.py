"""How things are: the gateway's gauges, a vLLM's `/metrics`, and how sessions fare."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.config.telemetry import ObjectiveConfig
from gateway.core.pool_views import PoolView, TenantView
from gateway.core.snapshot import Gauges, ReplicaView
from gateway.domain import records as rec
from gateway.domain.decision import Edge, RefusalReason
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.telemetry import objective
from gateway.telemetry.gauges import MAX_TENANTS, gauge_families
from gateway.telemetry.objective import EARNED, MAX_LABELS, OTHER, Objective
from gateway.telemetry.vllm_metrics import read_vllm_metrics
from tests.telemetry.turns import over, tools, turn

REPLICA = ReplicaView(
    id=ReplicaId("r0"), pool=PoolId("p"), is_up=True, running=2, kv_used=0.25, sessions=3,
    engine="vllm", version="0.30", models=("m",),
)  # fmt: skip
POOL = PoolView(
    id=PoolId("p"), window=None, kv_budget=900.0, admitted=4, waiting=1, demand=800.0, held=500.0,
    gpu_pressure=0.5, cpu_pressure=0.0,
)  # fmt: skip


def tenant(number: int) -> TenantView:
    name = TenantId(f"t{number}")
    return TenantView(id=name, pool=PoolId("p"), weight=1.0, admitted=2, lately=2.5, waiting=1)


def told(**more) -> dict[tuple[str, ...], float]:
    now = Gauges(at_s=1.0, session_count=3, running=2, waiting=1, active_tools=1, **more)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauge_families(now)
        for sample in family.samples
    }


def test_how_things_are():
    seen = told(replicas=(REPLICA,), pools=(POOL,), tenants=(tenant(1),), waiting_by={"reactive": 1})
    assert seen["turnpike_sessions",] == 3 and seen["turnpike_sessions_in_tools",] == 1
    assert seen["turnpike_waiting_by_class", "reactive"] == 1
    assert seen["turnpike_replica_up", "r0"] == 1.0 and seen["turnpike_replica_sessions", "r0"] == 3
    assert seen["turnpike_engine_kv_used_ratio", "r0"] == 0.25
    assert ("turnpike_engine_waiting", "r0") not in seen, "it does not say"
    assert seen["turnpike_kv_budget_tokens", "p"] == 900.0 and ("turnpike_window_sessions", "p") not in seen
    assert seen["turnpike_gpu_pressure_ratio", "p"] == 0.5 and seen["turnpike_kv_held_tokens", "p"] == 500.0
    assert seen["turnpike_tenant_admitted_sessions", "p", "t1"] == 2


def test_tenants_beyond_a_number_are_counted_together():
    seen = told(tenants=tuple(tenant(number) for number in range(MAX_TENANTS + 7)))
    admitted = {key: value for key, value in seen.items() if key[0] == "turnpike_tenant_admitted_sessions"}
    assert len(admitted) == MAX_TENANTS + 1
    assert admitted["turnpike_tenant_admitted_sessions", "p", "other tenants"] == 14


def of(alpha: float = 2.0, *, max_sessions: int = 1000) -> Objective:
    made = Objective(ObjectiveConfig(slowdown_target=alpha), max_sessions=max_sessions)
    for _ in range(EARNED):  # so that the names that tests use have labels
        made._tenants.label("t"), made._agents.label("a")
    return made


def samples(made: Objective, name: str) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    parsed = text_string_to_metric_families(made.text())
    for family in (*made.families(), *parsed):
        for sample in family.samples:
            if sample.name == f"turnpike_{name}":
                found[tuple(value for key, value in sample.labels.items())] = sample.value
    return found


HERE = ("p", "t", "reactive", "a")


def test_a_session_and_its_parts():
    made = of()
    made.take(turn("r1", "s", 0.0, queue_s=2.0, prefill_s=1.0, decode_s=3.0, alone_s=2.0))  # to 6
    second = turn("r2", "s", 10.0, prefill_s=0.5, decode_s=1.5, alone_s=1.0, edge=Edge.CONTINUES, parent="r1")
    made.take([second[0], tools("r2", "s", 10.0, took_s=4.0), *second[1:]])  # to 12
    third = turn("r3", "s", 100.0, alone_s=1.0, edge=Edge.CONTINUES, parent="r2")  # somebody thought; to 102
    made.take([*third, over("s", 102.0)])
    assert samples(made, "session_seconds_sum") == {HERE: pytest.approx(102 - 88)}
    parts = samples(made, "session_part_seconds_sum")
    assert {key[0]: value for key, value in parts.items()} == {
        "queue": pytest.approx(2.0), "prefill": pytest.approx(2.5), "decode": pytest.approx(5.5),
        "tools": pytest.approx(4.0),
    }  # fmt: skip
    assert samples(made, "session_turns_sum") == {HERE: 3}
    assert samples(made, "ttft_seconds_sum") == {("p", "reactive"): pytest.approx(3.0 + 0.5 + 1.0)}
    assert samples(made, "tpot_seconds_sum") == {("p", "reactive"): pytest.approx(0.055)}
    slowdown = samples(made, "slowdown_sum")
    assert slowdown["session", "p", "reactive"] == pytest.approx(14 / 8), "of turns alone 4 s, and tools 4 s"
    assert samples(made, "slo_sessions_total") == {(*HERE, "yes"): 1}


@pytest.mark.parametrize(("alpha", "met"), [(2.0, "no"), (3.1, "yes")])
def test_in_time_is_within_alpha_times_alone(alpha, met):
    made = of(alpha)
    made.take([*turn("r1", "s", 0.0, queue_s=1.0, alone_s=1.0), over("s", 9.0, reason="idle")])
    assert samples(made, "slo_sessions_total") == {(*HERE, met): 1}
    assert samples(made, "slo_turns_total") == {("p", "reactive", met): 1}


def test_one_absurd_expectation_does_not_decide_the_mean_slowdown():
    made = of()
    made.take([*turn("r1", "s", 0.0, alone_s=1e-6), *turn("r2", "s", 3.0), over("s", 9.0)])
    assert samples(made, "slowdown_sum")["turn", "p", "reactive"] < 1100.0


def test_what_is_not_known_is_not_judged():
    made = of()
    made.take([*turn("r1", "s", 0.0), *turn("r2", "s", 3.0, alone_s=None), over("s", 9.0)])
    assert samples(made, "slo_turns_total") == {("p", "reactive", "yes"): 1, ("p", "reactive", "unknown"): 1}
    assert samples(made, "slo_sessions_total") == {(*HERE, "unknown"): 1}
    assert samples(made, "session_seconds_count") == {HERE: 1}
    failures = of()
    failures.take([*turn("r1", "s", 0.0, status=500), *turn("r2", "s", 3.0, alone_s=None), over("s", 9.0)])
    assert samples(failures, "slo_turns_total") == {("p", "reactive", "unknown"): 2}, (
        "a share of failures alone"
    )


@pytest.mark.parametrize(
    ("outcome", "status", "met"),
    [("cut", 200, "no"), ("finished", 500, "no"), ("client_left", 200, "unknown")],
)
def test_a_session_whose_last_turn_went_wrong_did_not_finish(outcome, status, met):
    made = of()
    made.take([*turn("r1", "s", 0.0), *turn("r2", "s", 3.0, outcome=outcome, status=status), over("s", 9.0)])
    assert samples(made, "slo_sessions_total") == {(*HERE, met): 1}
    assert samples(made, "session_seconds_count") == {}


def refused(name: str, session: str, at_s: float) -> rec.Refused:
    return rec.Refused(
        at_s=at_s, turn=RequestId(name), session=SessionId(session), tenant=TenantId("t"),
        reason=RefusalReason.QUEUE_FULL, waited_ms=0.0,
    )  # fmt: skip


def test_waiting_to_ask_again_is_waiting():
    made = of()
    made.take(turn("r1", "s", 0.0))  # to 2
    made.take([turn("r2", "s", 2.0)[0], refused("r2", "s", 5.0)])
    made.take([*turn("r3", "s", 15.0, alone_s=1.0), over("s", 17.0)])
    parts = {key[0]: value for key, value in samples(made, "session_part_seconds_sum").items()}
    assert parts["queue"] == pytest.approx(13.0)
    assert samples(made, "session_seconds_sum") == {HERE: pytest.approx(17.0)}
    assert samples(made, "slo_sessions_total") == {(*HERE, "no"): 1}
    assert samples(made, "slo_turns_total")["", "none", "no"] == 1, "a refused turn is not in time"


def test_a_failed_attempt_is_no_end():
    made = of()
    first = turn("r1", "s", 0.0, outcome="failed")
    again = turn("r1", "s", 4.0, alone_s=8.0)[1:]
    made.take([*first, *again, over("s", 9.0)])
    parts = {key[0]: value for key, value in samples(made, "session_part_seconds_sum").items()}
    assert parts["queue"] == pytest.approx(4.0)
    assert samples(made, "session_turns_sum") == {HERE: 1}


def test_conversations_beside_one_another_have_no_idle_time_between_them():
    made = of()
    long, short = turn("r1", "s", 0.0, decode_s=9.0), turn("r2", "s", 1.0)
    made.take(sorted([*long, *short], key=lambda record: record.at_s))
    made.take([*turn("r3", "s", 10.0), over("s", 12.0)])
    assert samples(made, "session_seconds_sum") == {HERE: pytest.approx(12.0)}


def test_labels_do_not_break_out_of_their_quotes():
    made, hostile = of(), 'a"} 1\n# \\'
    for number in range(EARNED):
        made.take([*turn(f"r{number}", f"s{number}", 0.0, tenant=hostile), over(f"s{number}", 3.0)])
    assert samples(made, "session_seconds_count")["p", hostile, "reactive", "a"] == 1


def test_labels_are_earned_and_few():
    made = Objective(ObjectiveConfig(), max_sessions=1000)
    numbers = itertools.count()

    def session(tenant: str, agent: str) -> None:
        name = f"s{next(numbers)}"
        made.take([*turn(f"r-{name}", name, 0.0, tenant=tenant, agent=agent), over(name, 3.0)])

    for number in range(100):
        session(f"comes once {number}", f"{number:016x}")
    assert set(samples(made, "session_seconds_count")) == {("p", OTHER, "reactive", OTHER)}
    for _ in range(EARNED):
        session("regular", "a")
    assert ("p", "regular", "reactive", "a") in samples(made, "session_seconds_count")
    for number in range(100):
        for _ in range(EARNED):
            session(f"team {number}", "a")
    counts = samples(made, "session_seconds_count")
    assert len(counts) <= MAX_LABELS
    assert sum(counts.values()) == 100 + EARNED * 101, "whoever has no label is counted with the others"


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(objective, "MAX_OPEN", 10)
    made = of(max_sessions=5)
    for number in range(50):
        made.take(turn(f"r{number}", f"s{number}", float(number))[:1])
    assert len(made._turns) <= 10 and len(made._sessions) <= 5
    made.take([record for number in range(50) for record in turn(f"r{number}", f"s{number}", 60.0)[1:]])
    assert not made._turns


def test_labels_that_were_not_seen_for_long_give_way():
    made = Objective(ObjectiveConfig(), max_sessions=1000)
    numbers = itertools.count()

    def sessions(tenant: str, at_s: float) -> None:
        for _ in range(EARNED):
            name = f"s{next(numbers)}"
            made.take([*turn(f"r-{name}", name, at_s, tenant=tenant, agent="a"), over(name, at_s + 3.0)])

    for number in range(40):
        sessions(f"team {number}", 0.0)
    ended = made.view().sessions
    sessions("late", 4000.0)
    assert ("p", "late", "reactive", "a") in samples(made, "session_seconds_count")
    assert len(samples(made, "session_seconds_count")) <= MAX_LABELS
    assert made.view().sessions == ended + EARNED, "and no session is forgotten"


SAID = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 600.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny"} 50.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7e+09
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="159",prefix="a }\\"b"} 1.0
process_resident_memory_bytes 1.0e+09
"""


def test_a_vllm_says_how_it_is():
    assert read_vllm_metrics(SAID) == EngineSignals(
        kv_tokens=159 * 16,
        kv_used=0.25,
        running=3,
        waiting=2,
        preemptions=7,
        ranks=1,
        prefix_hit=650,
    )


def test_of_adapters_the_newest_word_counts():
    line = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="%s",waiting_lora_adapters="x"} %s\n'
    said = line % ("sql", 1.5e9) + line % ("sql,law", 1.7e9) + line % ("", 1.6e9)
    told = read_vllm_metrics(SAID + said)
    assert (told.most_adapters, told.adapters) == (2, ("sql", "law"))
    assert read_vllm_metrics(SAID + said + line % ("", 1.8e9)).adapters == ()
    assert read_vllm_metrics(said.replace('"2"', '"many"')).most_adapters is None


def test_what_is_retained_is_not_in_use():
    blocks = {"total": 160.0, "free": 100.0, "used": 20.0, "retained": 40.0}
    said = "".join(f'turnpike_engine_blocks{{state="{state}"}} {n}\n' for state, n in blocks.items())
    told = read_vllm_metrics(SAID.replace("} 0.25", "} 0.375") + said)
    assert (told.kv_used, told.kv_retained) == (0.125, 0.25)
    assert read_vllm_metrics(SAID + said.replace("160.0", "0")).kv_retained is None


def test_the_hosts_memory_is_told_in_tokens_once_something_was_stored():
    """An engine says how many bytes it has there; what a token takes follows from what it stored."""
    size = SAID.replace('prefix="a', 'kv_offloading_size="2.0",prefix="a')
    computed = 20_000 - 650 + 3_000
    said = size.replace("} 1000.0", "} 20000.0") + (
        'vllm:generation_tokens_total{engine="0"} 3000.0\n'
        f'vllm:kv_offload_store_bytes_total{{engine="0"}} {computed * 98_304}\n'
    )
    assert read_vllm_metrics(said).host_kv_tokens == 22_000, "2 GiB of 98,304 bytes each, to two digits"
    for less in (
        said.replace("kv_offloading_size", "size"),
        said.replace('"2.0"', '"None"'),
        said.replace('"2.0"', '"nan"'),
        said.replace('"2.0"', '"-2"'),
        said.replace("store_bytes", "load_bytes"),
        said.replace("} 20000.0", "} 7000.0"),
    ):
        assert read_vllm_metrics(less).host_kv_tokens is None

    nonsense = said.replace(f"}} {computed * 98_304}", "} 1e-320")
    assert read_vllm_metrics(nonsense).host_kv_tokens == 1 << 53, "more than a float holds"
    blocks = 'turnpike_engine_blocks{state="total"} 158.0\nturnpike_engine_blocks{state="host"} 316.0\n'
    for stated in (SAID + blocks, said + blocks):
        assert read_vllm_metrics(stated).host_kv_tokens == 2 * 159 * 16, "the plugin knows"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_vllm_calls_its_offload_so():
    from vllm.config import CacheConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        get_connector_metric_definitions,
    )

    assert CacheConfig(kv_offloading_size=2.0).metrics_info()["kv_offloading_size"] == "2.0"
    assert CacheConfig().metrics_info()["kv_offloading_size"] == "None"
    assert "vllm:kv_offload_store_bytes" in get_connector_metric_definitions()


def test_engines_of_one_server_are_added_up():
    other = SAID.replace('engine="0"', 'engine="1"').replace("} 0.25", "} 0.75")
    both = read_vllm_metrics(SAID + other)
    assert (both.kv_tokens, both.running, both.kv_used) == (2 * 159 * 16, 6, 0.75)
    assert (both.ranks, read_vllm_metrics(SAID).ranks) == (2, 1)
    elsewhere = other.replace('engine="1"', 'engine="3"')
    assert read_vllm_metrics(SAID + elsewhere).ranks == 1, "numbers with a gap are not a server's own ranks"
    many = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 0\n' for rank in range(5_000))
    assert read_vllm_metrics(many).ranks == 1, "nonsense costs no new session anything"


def test_what_is_not_there_is_not_known():
    assert read_vllm_metrics("") == read_vllm_metrics("<html>no</html>") == EngineSignals()
    assert (
        read_vllm_metrics('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1').kv_tokens is None
    )
    assert read_vllm_metrics('vllm:cache_config_info{num_gpu_blocks="9"} 1').kv_tokens is None
    for value in ("", "many", "NaN", "-1", "+Inf"):
        assert read_vllm_metrics(f"vllm:num_requests_running {value}").running is None
    assert read_vllm_metrics("vllm:num_requests_running 4").running == 4
    assert read_vllm_metrics("vllm:external_prefix_cache_hits_total 4").prefix_hit is None


@given(
    st.text()
    | st.text(alphabet='vllm:{}="\\ 0123456789_\n').map(lambda text: "vllm:num_requests_running" + text)
)
def test_no_text_is_an_error(text):
    read_vllm_metrics(text)
