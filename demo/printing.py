"""The report as text, for a terminal of 110 columns."""

import os
from collections.abc import Sequence
from typing import Any

from demo.report import Report, Row

_HEAD = (
    "agent run", "identity", "recognised by", "sessions", "turns", "tool phases", "tool s",
    "prompt tok", "cached", "file fixed",
)  # fmt: skip


def as_text(report: Report) -> str:
    """A table of the runs, and what it comes to."""
    return "\n".join((*table([_HEAD, *(_cells(row) for row in report.rows)], words=3), "", *_summary(report)))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.run,
        row.identity,
        row.recognised_by,
        f"{row.sessions} of 1" if row.is_recognised else f"{row.sessions} WRONG",
        str(row.turns),
        str(row.tool_phases),
        f"{row.tool_s:.1f}",
        f"{row.prompt_tokens:,}",
        _percent(row.cached_tokens, row.prompt_tokens),
        "yes" if row.is_done else "NO",
    )


def table(rows: Sequence[Sequence[str]], *, words: int) -> list[str]:
    """Aligned; the first row is the head, the first columns hold so many `words`, the others numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        texts = [cell.ljust(width) for cell, width in zip(row[:words], widths[:words], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[words:], widths[words:], strict=True)]
        lines.append("  ".join((*texts, *numbers)))
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _summary(report: Report) -> list[str]:
    totals = report.totals()
    recognised, runs = totals["recognised"], totals["runs"]
    nameless = sum(row.identity != "sent" for row in report.rows)
    prompt, cached = totals["prompt_tokens"], totals["cached_tokens"]
    tools = f"{totals['tool_phases']} tool phases ({totals['tool_s']:.1f} s in tools)"
    settled = sum(row.replicas == 1 for row in report.rows)
    replicas = ", ".join(f"{name} {count}" for name, count in sorted(report.replicas.items()))
    return [
        f"{recognised} of {runs} agent runs recognised as one session each; {nameless} sent no identity",
        f"{totals['done']} of {runs} agents repaired their file, and its test passes",
        f"{totals['turns']} turns, {tools}, {totals['side_requests']} side requests",
        f"{prompt:,} prompt tokens, {cached:,} of them from the prefix cache ({_percent(cached, prompt)})",
        f"requests per replica: {replicas}; {settled} of {runs} runs stayed on one",
        *_engines(totals),
        *_times(totals),
    ]


def _engines(totals: dict[str, Any]) -> list[str]:
    hints, held, returned = (totals[name] for name in ("hints_followed", "turns_held", "turns_returned"))
    most, blocks = totals["most_blocks_retained"], totals["blocks"]
    return [
        f"{hints} hints followed by engines; KV held after {held} turns, {returned} times until the next one",
        f"KV blocks retained at a time, at most: {most:,} of {blocks:,}",
    ]


def _times(totals: dict[str, dict[str, float] | None]) -> list[str]:
    lines = []
    for key, what in (
        ("added_ms", "time added by the gateway"),
        ("queued_ms", "of it waiting for admission"),
    ):
        spread = totals[key]
        if spread is not None:
            lines.append(
                f"{what}: median {spread['median']:.1f} ms, p99 {spread['p99']:.1f} ms "
                f"({spread['requests']} requests)"
            )
    lines.append(f"everything shared {os.cpu_count()} cores: agents, engines, gateway and this program")
    return lines


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
