"""The workflow view: how right it is on recordings, and what it costs.

Run with `python -m benchmarks.workflow [FILE ...] [--quick] [--json]`. Each file holds recorded exchanges
(docs/reference/exchanges.md): the brain learns from all of it, in order of time, and its second half is
scored, as `turnpike eval workflow` does. Files with fewer than 400 scored pauses are told, not judged, one
by one; all of them together are judged. Without files the costs alone are
measured: of 10,000 live sessions, by agents of 50 types with a dozen tools each, the memory per session, and
the CPU time that a request costs, from its arrival to the hint at its pause.
"""

import argparse
import gc
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.identity import quantile, resident_bytes
from benchmarks.verdict import Verdict
from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.domain.request import Answer, Protocol, RequestFacts, ToolCall, Transcript, Usage, Work
from gateway.tool_probe.calls import ToolRun
from gateway.workflow.predictor import Predictor, WorkflowConfig
from lab.evaluation.workflow_cli import evaluate_workflow

SEED: Final = 7
TYPES: Final = 50
TOOLS: Final = 12
ENOUGH: Final = 400
PAUSE_S: Final = 0.004
"""Between two requests."""
REPLICA: Final = ReplicaId("a")


class Agents:
    """Sessions that go on in turns, each by its type's own habits."""

    def __init__(self, sessions: int) -> None:
        self.rng = random.Random(SEED)
        self.now = 0.0
        self.predictor = Predictor(WorkflowConfig())
        self.habits = [
            [
                self.rng.choices(
                    range(TOOLS + 1), weights=[self.rng.random() ** 4 for _ in range(TOOLS + 1)], k=4
                )
                for _ in range(TOOLS + 1)
            ]
            for _ in range(TYPES)
        ]
        self.facts = [
            RequestFacts(
                protocol=Protocol.CHAT,
                work=Work.GENERATE,
                tool_count=TOOLS,
                body_bytes=40_000,
                client=1,
                transcript=Transcript(agent_type=kind + 1),
            )
            for kind in range(TYPES)
        ]
        self.refs = [
            SessionRef(
                session=SessionId(f"s-{number}"),
                source=SessionSource.CALL_ID,
                confidence=1.0,
                thread=ThreadId(f"s-{number}.1"),
                edge=Edge.CONTINUES,
            )
            for number in range(sessions)
        ]
        self.last = [0] * sessions

    def turn(self, number: int) -> float:
        """One request of a session, and its answer; what telling that cost, in seconds."""
        kind, ref = number % TYPES, self.refs[number]
        facts = self.facts[kind]
        step = self.rng.choice(self.habits[kind][self.last[number]])
        calls = () if step == TOOLS else (ToolCall(f"c{self.now}", f"tool-{step}"),)
        answer = Answer(
            status=200,
            tool_calls=calls,
            usage=Usage(prompt_tokens=10_000, output_tokens=200),
            has_terminal=True,
        )
        names, took_s = (f"tool-{self.last[number]}",), self.rng.expovariate(0.5)
        self.last[number] = step
        self.now += PAUSE_S
        predictor = self.predictor
        start = time.thread_time()
        agent = predictor.arrived(ref, facts, now=self.now)
        predictor.tools_ran(ToolRun(ref.session, agent, names, took_s))
        predictor.hint_with_request(ref, facts, REPLICA, age_s=1.0, service_class="reactive")
        pause = predictor.answered(ref, facts, answer, now=self.now)
        if pause is not None:
            decision = predictor.retention(ref.thread, pause, REPLICA)
            if decision is not None:
                predictor.hint_at_pause(ref, decision)
        return time.thread_time() - start


def judge_costs(verdict: Verdict, sessions: int) -> None:
    agents = Agents(sessions)
    gc.collect()
    before = resident_bytes()
    for _ in range(3):
        for number in range(sessions):
            agents.turn(number)
    gc.collect()
    verdict.at_most("bytes_per_session", (resident_bytes() - before) / sessions, 40_000)
    took = [agents.turn(agents.rng.randrange(sessions)) * 1e6 for _ in range(5_000)]
    verdict.at_most("request_p50_us", statistics.median(took), 150.0)
    verdict.tell("request_p99_us", quantile(took, 0.99))


def judge_rightness(verdict: Verdict, files: list[Path]) -> None:
    report = evaluate_workflow(files, strip_ids=False)
    together = report["all"]
    verdict.at_least("released_right", together["released_right"], 0.87)
    for figure in ("released", "held", "next_accuracy", "end_accuracy", "end_accuracy_se"):
        verdict.tell(figure, together[figure])
    verdict.at_most("end_loss", together["end_loss"], together["end_loss_base"])
    verdict.at_least("boundary_precision", together["boundary_precision"], 0.99)
    verdict.at_least("boundary_recall", together["boundary_recall"], 0.99)
    verdict.at_most("duration_error_ms_p99", together["duration_error_ms_p99"], 20.0)
    for name, row in report["per_client"].items():
        judge_file(verdict, name.replace("'", "_"), row)


def judge_file(verdict: Verdict, name: str, row: dict[str, Any]) -> None:
    for figure in ("next_accuracy", "majority", "end_accuracy", "end_accuracy_se", "released_right", "held"):
        verdict.tell(f"{name}.{figure}", row[figure])
    if row["pauses"] < ENOUGH:
        for figure in ("end_loss", "end_loss_base", "end_ece", "boundary_precision", "boundary_recall"):
            verdict.tell(f"{name}.{figure}", row[figure])
        return
    verdict.at_most(f"{name}.end_loss", row["end_loss"], row["end_loss_base"])
    verdict.at_most(f"{name}.end_ece", row["end_ece"], 0.05)
    verdict.at_least(f"{name}.boundary_precision", row["boundary_precision"], 0.99)
    verdict.at_least(f"{name}.boundary_recall", row["boundary_recall"], 0.99)


def main() -> int:
    parser = argparse.ArgumentParser(description="How right the workflow view is, and what it costs.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="recorded exchanges")
    parser.add_argument("--quick", action="store_true", help="1,000 sessions instead of 10,000")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    arguments = parser.parse_args()
    verdict = Verdict()
    judge_costs(verdict, 1_000 if arguments.quick else 10_000)
    if arguments.files:
        judge_rightness(verdict, arguments.files)
    if not arguments.json:
        print(f"seed {SEED}, {len(arguments.files)} files")
        for name, figure in verdict.figures.items():
            value = "-" if figure.value is None else f"{figure.value:g}"
            print(f"{name:<44}{value:>12}   {figure.target or '':<12}{'' if figure.ok else 'MISSED'}")
    print(verdict.as_json())
    return verdict.exit_status


if __name__ == "__main__":
    sys.exit(main())
