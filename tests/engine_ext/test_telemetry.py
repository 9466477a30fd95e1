"""What is counted of requests on their way to the first step."""

from turnpike_vllm.telemetry import LaunchDelay


def test_launch_delay() -> None:
    delay = LaunchDelay()
    delay.add(0.5)
    delay.add(0.25)
    assert delay.as_dict() == {"count": 2, "sum_s": 0.75, "last_s": 0.25, "max_s": 0.5}
