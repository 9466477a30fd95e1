"""Those who wait for a change are answered once, together."""

from typing import Any

from turnpike_vllm.telemetry import LaunchDelay, Watchers


def test_a_change_answers_all_once() -> None:
    asked: list[int] = []

    def snapshot() -> dict[str, Any]:
        asked.append(1)
        return {"version": watchers.version}

    watchers = Watchers()
    watchers.answer(snapshot)
    assert not asked  # nobody waited
    first, second, gone = watchers.wait(), watchers.wait(), watchers.wait()
    gone.cancel()
    watchers.changed()
    watchers.answer(snapshot)
    assert first.result(0) == second.result(0) == {"version": 1}
    assert len(asked) == 1
    watchers.answer(snapshot)
    assert len(asked) == 1


def test_launch_delay() -> None:
    delay = LaunchDelay()
    delay.add(0.5)
    delay.add(0.25)
    assert delay.as_dict() == {"count": 2, "sum_s": 0.75, "last_s": 0.25, "max_s": 0.5}
