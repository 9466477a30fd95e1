"""What holds for every test: a skip is a failure, with the skip's own words.

Nobody reads which tests were skipped. Where something cannot be had, `TURNPIKE_ALLOW_SKIPS=1` allows it.
"""

import os
from collections.abc import Generator

import pytest

ARE_ALLOWED = os.environ.get("TURNPIKE_ALLOW_SKIPS") == "1"


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not ARE_ALLOWED and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"Skipped, which TURNPIKE_ALLOW_SKIPS=1 allows: {reason}"


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
