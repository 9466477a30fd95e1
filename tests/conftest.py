"""What every test may use: the shared real engines; and what holds for every run of tests."""

from turnpike_vllm.scripted.guardian import guard

pytest_plugins = ["tests.hangs", "tests.no_skips", "tests.engines"]


def pytest_configure() -> None:
    guard()  # engines, gateways, browsers and agents end with the run, whatever ends that
