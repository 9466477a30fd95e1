"""Prompts that are computed while tools run: are they used, and does anybody else notice?

    python -m benchmarks.live_overlap [--quick] [--json]

Two real vLLM servers on the CPU with a tiny model, without the plugin and with it (`plugin_...`), and agents
that chat and call tools (`chat_agents.py`). Half of them *switch*: what they say to the model next stands
under the system prompt of the tool that was called, another one at each turn, so that of a prompt nothing is
cached but what was computed ahead. The others *append*. Tools take longer than a prompt. The same sessions
behind the gateway as it is by default, and with `prefill_ahead.enabled`, in turns.

`used`: of the prefills that came to their end, those of which the next turn found nine tenths; `computed`:
tokens of a switched turn that were not cached, with and without; `others`: of the agents that append, the
first token, and how long a turn took.
"""

import json
import statistics
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.chat_agents import ChatAgents, Talk, scripts, talk, vocabulary
from benchmarks.command import judged
from benchmarks.gateway import gateway
from benchmarks.live import MODEL, Completions, Engines, Kind, drawn, played
from benchmarks.verdict import Verdict, percentile
from lab.simulator.live.endpoint import Question, Reply
from lab.workload.trace.format import Session

SWITCHING: Final = Kind(
    name="switching",
    seed=41,
    turns=(5, 6),
    first_tokens=(1_500, 2_500),
    grows_by=(50, 200),
    output_tokens=(30, 60),
    tool_s=1.0,
    apart_s=4.0,
)
APPENDING: Final = msgspec.structs.replace(
    SWITCHING, name="appending", seed=42, turns=(5, 8), first_tokens=(600, 1_200)
)
TOOL_S: Final = 2.5
TOOLS: Final = ("search", "fetch", "read", "edit", "check")
SYSTEMS: Final = ("plan", *TOOLS)
SYSTEM_TOKENS: Final = 400
KV_BLOCKS: Final = 20_000
AHEAD: Final = "[prefill_ahead]\nenabled = true\n"
PLUGIN: Final = ("--scheduler-cls", "turnpike_vllm.scheduler.TurnpikeScheduler")
PLUGIN_ENV: Final = {"VLLM_PLUGINS": "turnpike"}
_USED: Final = 0.9
_SKIPPED: Final = 0.4
"""The part of the sessions, from the first on, by which the gateway learns."""


class Agents(ChatAgents):
    """Those that switch say what they say under the system prompt of the tool that was called."""

    def __init__(self, client: aiohttp.ClientSession, url: str, talks: dict[str, Talk], systems: Any) -> None:
        super().__init__(client, url, MODEL, talks)
        self._systems: dict[str, str] = systems

    async def ask(self, question: Question) -> Reply:
        name = question.session
        said = self._said.setdefault(name, list(self._talks[name].opening))
        if name.startswith(SWITCHING.name):
            made = sum(message["role"] == "assistant" for message in said)
            said[0] = {"role": "system", "content": self._systems[SYSTEMS[made]]}
        return await super().ask(question)


class Seen:
    """Of runs of one kind."""

    def __init__(self, skipped: frozenset[str]) -> None:
        self._skipped = skipped
        self.others_s: list[float] = []
        self.others_whole_s: list[float] = []
        self.switched_s: list[float] = []
        self.computed: list[int] = []
        self.found: list[float] = []
        """Of each prefill that came to its end, the part that the next turn found."""
        self.outcomes: Counter[str] = Counter()
        self.failed = 0

    def add(self, run: Completions, records: list[dict[str, Any]]) -> None:
        self.failed += run.failed
        for turn in run.turns:
            if turn.session in self._skipped:
                continue
            first_s = turn.first_token_s - turn.arrival_s
            if turn.session.startswith(APPENDING.name):
                self.others_s.append(first_s)
                self.others_whole_s.append(turn.end_s - turn.arrival_s)
            elif turn.turn:
                self.switched_s.append(first_s)
        turns: dict[str, list[dict[str, Any]]] = {}
        for each in records:
            if each["type"] == "gpu_end":
                turns.setdefault(each["session"], []).append(each)
        for each in records:
            if each["type"] != "prefill_ahead":
                continue
            self.outcomes[each["outcome"]] += 1
            names = [turn["turn"] for turn in turns[each["session"]]]
            later = turns[each["session"]][names.index(each["turn"]) + 1 :]
            if (computed := each["usage"]["prompt_tokens"]) and later:
                self.found.append((later[0]["usage"]["cached_tokens"] or 0) / computed)

    def add_turns(self, agents: ChatAgents) -> None:
        for turn in agents.turns:
            if turn.turn and turn.session.startswith(SWITCHING.name) and turn.session not in self._skipped:
                self.computed.append(turn.prompt_tokens - turn.cached_tokens)

    @property
    def used(self) -> float | None:
        return sum(each >= _USED for each in self.found) / len(self.found) if self.found else None


def measure(count: int, rounds: int, verdict: Verdict) -> None:
    sessions = arriving(with_tools(each) for kind in (SWITCHING, APPENDING) for each in drawn(kind, count))
    talks, systems = said(sessions)
    skipped = frozenset(each.id for each in sessions[: int(_SKIPPED * len(sessions))])
    for kind, flags, env in (("", (), {}), ("plugin_", PLUGIN, PLUGIN_ENV)):
        with ExitStack() as stack:
            at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="live-overlap-")))
            engines = Engines(
                stack, at, replicas=2, kv_blocks=KV_BLOCKS, scripts=scripts(talks), flags=flags, env=env
            )
            without, ahead = Seen(skipped), Seen(skipped)
            order = [ahead, without, without, ahead][: 2 * rounds]
            for number, seen in enumerate([without, *order]):
                settings = AHEAD if seen is ahead else ""
                records = at / f"stream-{number}.jsonl"
                settings += f'[stream]\npath = "{records}"\n'
                with gateway(engines.urls, at / f"gateway-{number}", settings) as url:
                    made: list[Agents] = []
                    run = played(sessions, engines.urls, partial(make, made, url, talks, systems))
                if number:  # the first one warms the engines up
                    seen.add(run, [msgspec.json.decode(line) for line in records.read_bytes().splitlines()])
                    seen.add_turns(made[0])
                print(f"{kind}{number}: {run.mean:.1f} s {dict(seen.outcomes)}", file=sys.stderr, flush=True)
            if env:
                verdict.at_least(f"{kind}hints_followed", sum(map(followed, engines.urls)), 1)
        judge(verdict, kind, without, ahead)


def arriving(sessions: Iterable[Session]) -> list[Session]:
    return sorted(sessions, key=lambda each: each.arrival_s)


def said(sessions: Iterable[Session]) -> tuple[dict[str, Talk], dict[str, str]]:
    """In each session, and the system prompts by name. Sessions that switch call each of `TOOLS` in turn."""
    words = vocabulary()
    talks = {each.id: talk(each, words) for each in sessions}
    for name, each in talks.items():
        for turn, tool in zip(each.turns, TOOLS, strict=False) if name.startswith(SWITCHING.name) else ():
            for call in turn.get("tool_calls", ()):
                call["name"] = tool
    systems = {part: " ".join(f"{part} {word}" for word in words[: SYSTEM_TOKENS // 2]) for part in SYSTEMS}
    return talks, systems


def make(
    made: list[Agents], url: str, talks: dict[str, Talk], systems: Any, client: aiohttp.ClientSession
) -> Agents:
    made.append(Agents(client, url, talks, systems))
    return made[-1]


def followed(engine: str) -> float:
    """Hints that it followed."""
    with urllib.request.urlopen(f"{engine}/turnpike/kv", timeout=60) as answer:
        return float(json.load(answer)["counters"]["hints"].get("followed", 0))


def judge(verdict: Verdict, kind: str, without: Seen, ahead: Seen) -> None:
    verdict.at_least(f"{kind}used", ahead.used, 0.9)
    verdict.tell(f"{kind}prefills_ended", len(ahead.found))
    for outcome in ("used", "partly_used", "lost", "wrong", "late", "gave_way", "failed", "cancelled"):
        verdict.tell(f"{kind}told_{outcome}", ahead.outcomes[outcome])
    computed = statistics.mean(ahead.computed) / statistics.mean(without.computed)
    verdict.at_most(f"{kind}computed", computed, 0.5)
    verdict.tell(f"{kind}computed_tokens_without", statistics.mean(without.computed))
    for name, q in (("p50", 50), ("p99", 99)):
        switched = percentile(ahead.switched_s, q) / percentile(without.switched_s, q)
        verdict.tell(f"{kind}switched_first_token_{name}", switched)
    verdict.at_most(
        f"{kind}others_p99", percentile(ahead.others_s, 99) / percentile(without.others_s, 99), 1.05
    )
    verdict.tell(f"{kind}others_p50", percentile(ahead.others_s, 50) / percentile(without.others_s, 50))
    whole = statistics.mean(ahead.others_whole_s) / statistics.mean(without.others_whole_s)
    verdict.tell(f"{kind}others_turn_mean", whole)
    verdict.at_most(f"{kind}failed_sessions", without.failed + ahead.failed, 0)


def with_tools(session: Session) -> Session:
    """All of one length: longer than a prompt takes."""
    thread = session.threads[0]
    turns = tuple(
        msgspec.structs.replace(
            turn,
            tools=tuple(msgspec.structs.replace(tool, duration_s=TOOL_S) for tool in turn.tools),
        )
        for turn in thread.turns
    )
    return msgspec.structs.replace(session, threads=(msgspec.structs.replace(thread, turns=turns),))


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, _: measure(12 if is_quick else 24, 1 if is_quick else 2, verdict),
        quick="12 sessions of each kind instead of 24, and half of the runs",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
