"""What holds for every test: in continuous integration (`CI=true`) a skip is a failure.

On a developer's machine a test that lacks a tool says so and is skipped. In CI nobody would read
that, so there it fails, with the same words.
"""

import os
from collections.abc import Generator

import pytest

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"In CI nothing is skipped. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report
