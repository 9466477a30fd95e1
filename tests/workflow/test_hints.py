"""Hints as an engine reads them."""

import subprocess
import sys

import pytest

from gateway.domain.ids import SessionId, ThreadId
from gateway.workflow.hints import Hints
from gateway.workflow.retention import RetentionDecision
from tests.project.layout import ROOT
from turnpike_vllm.hints import Hint, parse

S, T = SessionId("s"), ThreadId("s.1")
HELD = RetentionDecision(reuse=0.9, retain_s=12.3456, returns_in_s=4.0)


def read(text: str | None) -> Hint:
    assert text is not None
    found = parse(text)
    assert isinstance(found, Hint), found
    return found


def test_engines_understand_every_hint():
    known = Hints()
    sent = read(known.write(S, T, HELD, age_s=-1.0, is_final=True))
    assert (sent.session, sent.thread, sent.is_final) == ("s", "s.1", True)
    assert (sent.retain_s, sent.reuse, sent.age_s, sent.prefetch_in_s) == (12.346, 0.9, 0.0, 4.0)
    paused = read(known.write(S, T, RetentionDecision(reuse=0.0, retain_s=1e9, returns_in_s=None)))
    assert paused.retain_s == 3600.0 and paused.prefetch_in_s is None and paused.seq > sent.seq
    assert read(known.at_end(S)).is_finished


@pytest.mark.slow
def test_a_gateway_without_the_plugin_has_nothing_to_say() -> None:
    code = (
        "import sys; sys.modules['turnpike_vllm'] = None\n"
        "import gateway.server.app\n"
        "from gateway.workflow.hints import HAS_CONTRACT, Hints\n"
        "assert not HAS_CONTRACT and Hints().at_end('s') is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
