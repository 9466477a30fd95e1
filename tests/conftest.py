"""What every test may use: the shared real engines; and what holds for every run of tests."""

from hypothesis import settings

from scripted_engine.guardian import guard

pytest_plugins = ["tests.hangs", "tests.no_skips", "tests.engines", "tests.command"]

# How long an example takes is the machine's affair; one that hangs meets the test's own limit.
settings.register_profile("turnpike", deadline=None)
settings.load_profile("turnpike")
# `make check` takes it by name; see also tests/examples.py.
settings.register_profile("fast", deadline=None, max_examples=settings().max_examples // 5)


def pytest_configure() -> None:
    guard()  # engines, gateways, browsers and agents end with the run, whatever ends that
