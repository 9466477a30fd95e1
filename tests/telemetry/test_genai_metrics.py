"""OpenTelemetry's metrics for generative AI: the conventions' names, the right values, bounded series."""

from typing import Any

import msgspec
import pytest
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics as conventions

from gateway.domain import records as rec
from gateway.domain.decision import RefusalReason
from gateway.domain.ids import RequestId, TenantId
from gateway.domain.request import Protocol, Usage
from gateway.telemetry import genai_metrics as module
from gateway.telemetry.genai_metrics import (
    DURATION,
    FIRST_TOKEN,
    INSTRUMENTS,
    TOKEN,
    USAGE,
    GenAiMetrics,
    Instrument,
)
from tests.telemetry.turns import turn

CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "m",
}


def told(metrics: GenAiMetrics, instrument: Instrument) -> list[tuple[dict[str, Any], int, Any]]:
    """Attributes, count, sum."""
    return [
        (dict(attributes), sum(spread.counts), pytest.approx(spread.total))
        for attributes, spread in metrics.series(instrument)
    ]


def replaced(records: list[rec.Record], kind: type, **fields: Any) -> list[rec.Record]:
    return [msgspec.structs.replace(each, **fields) if isinstance(each, kind) else each for each in records]


def test_names_units_and_descriptions_are_the_conventions():
    class Meter:
        def create_histogram(self, name: str, unit: str = "", description: str = "") -> tuple[str, str, str]:
            return name, unit, description

    meter: Any = Meter()
    ours: list[Any] = [(each.name, each.unit, each.description) for each in INSTRUMENTS]
    assert ours == [
        create(meter)
        for create in (
            conventions.create_gen_ai_server_request_duration,
            conventions.create_gen_ai_server_time_to_first_token,
            conventions.create_gen_ai_server_time_per_output_token,
            conventions.create_gen_ai_client_token_usage,
        )
    ]
    assert USAGE.bounds == (
        *(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864),
    )
    assert DURATION.bounds == tuple(0.01 * 2**power for power in range(14))
    assert FIRST_TOKEN.bounds == (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    )
    assert TOKEN.bounds == (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),)


def test_a_turn_is_measured_from_its_arrival():
    metrics = GenAiMetrics()
    records = turn("r1", "s", 10.0, queue_s=0.5, prefill_s=1.0, decode_s=2.0, prompt=1000, output=101)
    metrics.take(replaced(records, rec.GpuEnd, response_model="m-2"))
    of = {**CHAT, "gen_ai.response.model": "m-2"}
    assert told(metrics, DURATION) == [(of, 1, 3.5)]
    assert told(metrics, FIRST_TOKEN) == [(of, 1, 1.5)]
    assert told(metrics, TOKEN) == [(of, 1, 0.02)]
    assert told(metrics, USAGE) == [
        ({**of, "gen_ai.token.type": "input"}, 1, 1000),
        ({**of, "gen_ai.token.type": "output"}, 1, 101),
    ]


@pytest.mark.parametrize(("streamed", "first", "token"), [(True, 1, 0), (False, 0, 0)])
def test_what_came_all_at_once_has_no_time_for_each_token(streamed, first, token):
    metrics = GenAiMetrics()
    metrics.take(turn("r1", "s", 0.0, decode_s=0.0, streamed=streamed))
    assert (len(told(metrics, FIRST_TOKEN)), len(told(metrics, TOKEN))) == (first, token)
    assert len(told(metrics, DURATION)) == 1 and len(told(metrics, USAGE)) == 2


def test_what_no_backend_counted_is_not_reported():
    metrics = GenAiMetrics()
    metrics.take(replaced(turn("r1", "s", 0.0), rec.GpuEnd, usage=Usage()))
    assert not told(metrics, USAGE) and not told(metrics, TOKEN)
    assert len(told(metrics, FIRST_TOKEN)) == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"status": 404}, "404"),
        ({"outcome": "cut"}, "cut"),
        ({"outcome": "client_left"}, "client_left"),
        ({"finish_reason": "error"}, "error"),
    ],
)
def test_what_went_wrong_is_said_and_counts_as_no_first_token(fields, problem):
    metrics = GenAiMetrics()
    metrics.take(turn("r0", "s", 0.0))
    metrics.take(replaced(turn("r1", "s", 10.0), rec.GpuEnd, **fields))
    assert told(metrics, DURATION)[1] == ({**CHAT, "error.type": problem}, 1, 2.0)
    assert [count for _, count, _ in told(metrics, FIRST_TOKEN)] == [1]
    assert [count for _, count, _ in told(metrics, USAGE)] == [2, 2]


def test_a_turn_that_runs_a_second_time_counts_once():
    metrics = GenAiMetrics()
    first, second = turn("r1", "s", 0.0, outcome="failed"), turn("r1", "s", 5.0, prefill_s=3.0)
    metrics.take(first + second[1:])
    assert told(metrics, DURATION) == [(CHAT, 1, 9.0)]
    assert told(metrics, FIRST_TOKEN) == [(CHAT, 1, 8.0)]


def test_a_refusal_says_why_and_a_client_that_left_too():
    metrics = GenAiMetrics()
    arrived = turn("r1", "s", 0.0)[:1]
    tenant, reason = TenantId("t"), next(iter(RefusalReason))
    refused = rec.Refused(
        at_s=2.0, turn=RequestId("r1"), session=None, tenant=tenant, reason=reason, waited_ms=0.0
    )
    metrics.take([*arrived, refused])
    left = rec.TurnLeft(at_s=1.0, turn=RequestId("r1"), session=None, waited_ms=0.0)
    metrics.take([*arrived, left])
    nameless = {key: value for key, value in CHAT.items() if key != "gen_ai.request.model"}
    assert told(metrics, DURATION) == [
        ({**nameless, "error.type": reason.value}, 1, 2.0),
        ({**nameless, "error.type": "client_left"}, 1, 1.0),
    ]


@pytest.mark.parametrize(
    ("protocol", "operation", "provider"),
    [
        (Protocol.MESSAGES, "chat", "anthropic"),
        (Protocol.RESPONSES, "chat", "openai"),
        (Protocol.COMPLETIONS, "text_completion", "openai"),
    ],
)
def test_protocols_have_their_names(protocol, operation, provider):
    metrics = GenAiMetrics()
    metrics.take(replaced(turn("r1", "s", 0.0), rec.TurnArrived, protocol=protocol))
    [(of, _, _)] = told(metrics, DURATION)
    assert (of["gen_ai.operation.name"], of["gen_ai.provider.name"]) == (operation, provider)


def test_names_that_clients_make_up_take_no_room():
    metrics = GenAiMetrics()
    for number in range(5000):
        records = turn(f"r{number}", "s", 0.0, status=404)
        metrics.take(replaced(records, rec.TurnArrived, model=f"made up {number}"))
    [(of, count, _)] = told(metrics, DURATION)
    assert count == 5000 and "gen_ai.request.model" not in of


def test_series_are_bounded_and_what_is_beyond_is_counted(monkeypatch):
    monkeypatch.setattr(module, "MAX_SERIES", 10)
    metrics = GenAiMetrics()
    for number in range(50):
        metrics.take(replaced(turn(f"r{number}", "s", 0.0), rec.GpuEnd, response_model=f"m{number}"))
    series = told(metrics, DURATION)
    assert len(series) == 11 and sum(count for _, count, _ in series) == 50
    assert series[-1][0] == {"otel.metric.overflow": True}


def test_turns_that_never_end_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MAX_OPEN", 10)
    metrics = GenAiMetrics()
    for number in range(50):
        metrics.take(turn(f"r{number}", "s", 0.0)[:1])
    assert len(metrics._turns) == 10
    metrics.take(turn("r0", "s", 0.0)[1:])
    assert not told(metrics, DURATION)
