"""vLLM's scheduler, or another, which also keeps a log of its steps (`step_log.py`). For `--scheduler-cls`.

A step begins when the one before it has ended, if that left requests; else when it is scheduled. So what the
engine does between steps is the later one's.
"""

import os
import time
from pathlib import Path
from typing import Any

import msgspec
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput

from lab.engine.step_log import VARIABLE, Row, Step


class StepLogging:
    """Put before a vLLM scheduler class."""

    requests: Any
    has_unfinished_requests: Any

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._log = Path(os.environ[VARIABLE]).open("wb", buffering=0)  # noqa: SIM115 - as long as the engine
        self._scheduled: list[tuple[SchedulerOutput, float, list[Row]]] = []
        self._ended_s = 0.0
        self._goes_on = False
        """There were requests when the last step ended."""
        self._arrived_s: dict[str, float] = {}
        """Of requests that have no token yet."""

    def add_request(self, request: Any) -> None:
        self._arrived_s[request.request_id] = time.time()
        super().add_request(request)  # type: ignore[misc]

    def schedule(self, *arguments: Any, **named: Any) -> SchedulerOutput:
        began_s = self._ended_s if self._goes_on else time.time()
        out = super().schedule(*arguments, **named)  # type: ignore[misc]
        if out.total_num_scheduled_tokens:
            rows = [self._row(name, tokens) for name, tokens in out.num_scheduled_tokens.items()]
            self._scheduled.append((out, began_s, rows))
        return out

    def _row(self, name: str, tokens: int) -> Row:
        request = self.requests[name]
        before = request.num_computed_tokens - tokens
        row = Row(tokens, before, request.num_prompt_tokens, self._arrived_s.get(name, 0.0))
        if before + tokens == request.num_prompt_tokens:
            self._arrived_s.pop(name, None)
        return row

    def update_from_output(self, out: SchedulerOutput, computed: Any) -> Any:
        found = super().update_from_output(out, computed)  # type: ignore[misc]
        if self._scheduled and self._scheduled[0][0] is out:
            _, scheduled_s, rows = self._scheduled.pop(0)
            began_s, self._ended_s = max(scheduled_s, self._ended_s), time.time()
            self._goes_on = self.has_unfinished_requests()
            self._log.write(msgspec.json.encode(Step(began_s, self._ended_s - began_s, rows)) + b"\n")
        return found


class LoggingScheduler(StepLogging, AsyncScheduler):  # type: ignore[misc]  # vLLM's types are not looked at
    pass
