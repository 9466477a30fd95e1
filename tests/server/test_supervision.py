"""Background work in a running gateway: whatever a replica answers, and whatever fails, it goes on."""

import pytest

from gateway.upstream import health
from tests.server.bench import eventually, get

NESTED = b'{"data":' + b"[" * 200_000
LARGE = b'{"data":[' + b'"%s",' % (b"x" * 1000) * 2000 + b"0]}"


@pytest.mark.parametrize("listing", [NESTED, LARGE], ids=["nested", "large"])
async def test_a_replica_whose_models_cannot_be_read_is_down_and_its_checks_go_on(start, listing):
    bench = await start(upstream={"health_period_s": 0.02, "failures_until_down": 1})
    [state] = bench.brain.fleet
    good, bench.backend.models = bench.backend.models, listing
    await eventually(lambda: not state.is_up, "an unreadable list of models is no failure")
    bench.backend.models = good
    await eventually(lambda: state.is_up, "the checks have ended")
    assert bench.gateway._tasks.failing() == []


async def test_what_is_no_model_is_not_listed(start):
    bench = await start(pools=[{"name": "a", "backends": 1, "models": ["m"]}, {"name": "b", "backends": 1}])
    assert bench.gateway.replica_watch.health.merged_models()["data"] == [{"id": "m", "object": "model"}]
    odd = [{"id": ["m"]}, {"id": "x" * 2000}, {}, 7]
    assert not any(map(health._is_model, odd))


async def test_a_loop_that_fails_is_named_by_readiness_and_counted(start, monkeypatch):
    bench = await start(upstream={"health_period_s": 0.02, "failures_until_down": 1})
    bench.may_log_errors = True

    async def fails(*_: object) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(bench.gateway.replica_watch.health, "_check", fails)
        await eventually(bench.gateway._tasks.failing)
    ready = await bench.control(get(b"/turnpike/readyz"))
    assert ready.status == 200
    assert ready.json() == {
        "ready": True,
        "failing": ["health checks of default-0"],
        "down": {},
        "ejected": {},
    }
    metrics = await bench.control(get(b"/metrics"))
    lines = metrics.body.decode().splitlines()
    counted = 'turnpike_background_restarts_total{loop="health checks"} '
    [line] = [each for each in lines if each.startswith(counted)]
    assert float(line.removeprefix(counted)) >= 1
    assert 'turnpike_background_restarts_total{loop="client timeouts"} 0.0' in lines
    await bench.backend.close()
    [state] = bench.brain.fleet
    await eventually(lambda: not state.is_up, "the checks were not started again")
