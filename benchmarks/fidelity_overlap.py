"""Does a simulation tell what prompts gain that are computed while tools run? Live and simulated.

    python -m benchmarks.fidelity_overlap [--quick] [--json]

The engines, agents and sessions of `benchmarks.live_overlap`, behind the gateway as it is by default and with
`prefill_ahead.enabled`. Simulated: the same sessions, with as many tokens as the chat template makes of what
is said, and the same settings; the costs are fitted in the same run, as in `benchmarks.fidelity`, to agents
that chat. Tools take most of a session's time, so first tokens count, too. Sessions that switch
system prompts are judged apart from the others, and the arms are ranked by them.
"""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import transformers

from benchmarks import fidelity, live_overlap
from benchmarks.chat_agents import TOOLS, Talk, scripts
from benchmarks.command import judged
from benchmarks.fidelity import Arm, Settings, compare
from benchmarks.live import Engines, drawn
from benchmarks.live_overlap import APPENDING, SWITCHING, SYSTEMS, Agents, arriving, said, with_tools
from benchmarks.verdict import Verdict
from gateway.simulator.driver import ClientConfig
from gateway.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from turnpike_vllm import tiny_model

CALIBRATION: Final = msgspec.structs.replace(
    fidelity.CALIBRATION, first_tokens=(600, 6_000), grows_by=(50, 500)
)
ARMS: Final[dict[str, Settings]] = {"as it comes": {}, "ahead": {"prefill_ahead": {"enabled": True}}}
CLIENT: Final = ClientConfig(says_when_over=False)


class Counting:
    """Tokens, as the engines' chat template makes them."""

    def __init__(self) -> None:
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny_model.build())

    def __call__(self, messages: list[dict[str, Any]], *, asks: bool = False) -> int:
        """`asks`: the model is to go on."""
        text = self._tokenizer.apply_chat_template(
            messages, tools=TOOLS, tokenize=False, add_generation_prompt=asks
        )
        return len(self._tokenizer(text)["input_ids"])


def counted(session: Session, talk: Talk, systems: dict[str, str], count: Counting) -> Session:
    """The session with the tokens that its agent sends and gets."""
    switches = session.id.startswith(SWITCHING.name)
    messages, turns, shared = list(talk.opening), list[Turn](), 0
    for at, (turn, answer) in enumerate(zip(session.threads[0].turns, talk.turns, strict=True)):
        if switches:
            messages[0] = {"role": "system", "content": systems[SYSTEMS[at]]}
        head, known = count(messages[:1]), count(messages)
        shared = shared or head
        messages += [{"role": "tool", "content": result} for result in talk.results[at - 1 : at]]
        asked = count(messages, asks=True)
        opens: dict[str, Any] = {}
        if at and switches:
            opens = {"shared_key": SYSTEMS[at], "shared_tokens": head, "result_tokens": asked - known}
        elif at:
            before = turns[-1].input_tokens + turns[-1].output_tokens
            opens = {"prefix_of": TurnRef(0, at - 1), "prefix_tokens": before}
        messages.append(_message(answer))
        called = answer.get("tool_calls", ())
        turns.append(
            Turn(
                input_tokens=asked,
                output_tokens=count(messages) - asked - 1,  # the template ends the line
                tools=tuple(Tool(name=each["name"], duration_s=turn.tools[0].duration_s) for each in called),
                **opens,
            )
        )
    key = SYSTEMS[0] if switches else "agent"
    thread = Thread(turns=tuple(turns), shared_key=key, shared_tokens=shared)
    return msgspec.structs.replace(session, threads=(thread,))


def _message(answer: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"function": {"name": each["name"], "arguments": json.dumps(each["arguments"])}}
        for each in answer.get("tool_calls", ())
    ]
    return {"role": "assistant", "content": answer["text"], **({"tool_calls": calls} if calls else {})}


def measure(count: int, rounds: int, verdict: Verdict, tell: Any) -> None:
    calibration = drawn(CALIBRATION, count)
    test = arriving(with_tools(each) for kind in (SWITCHING, APPENDING) for each in drawn(kind, count))
    talks, systems = said([*calibration, *test])
    counting, made = Counting(), list[Agents]()
    calibration, test = (
        [counted(each, talks[each.id], systems, counting) for each in sessions]
        for sessions in (calibration, test)
    )

    def ask(client: aiohttp.ClientSession, url: str) -> Agents:
        made.append(Agents(client, url, talks, systems))
        return made[-1]

    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))
        engines = Engines(stack, at, replicas=2, kv_blocks=live_overlap.KV_BLOCKS, scripts=scripts(talks))
        arms = {name: Arm(engines=engines, policy=policy) for name, policy in ARMS.items()}
        compare(
            arms,
            calibration,
            test,
            at,
            verdict,
            tell,
            rounds=rounds,
            ask=ask,
            client=CLIENT,
            groups=(SWITCHING.name, APPENDING.name),
        )
    lengths = {
        (each.id, at): turn.input_tokens
        for each in (*calibration, *test)
        for at, turn in enumerate(each.threads[0].turns)
    }
    other = sum(
        turn.prompt_tokens != lengths[turn.session, turn.turn] for each in made for turn in each.turns
    )
    verdict.at_most("prompts_of_another_length", other, 0)


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(12 if is_quick else 18, 1 if is_quick else 2, verdict, tell),
        quick="12 sessions of each kind instead of 18, and half of the runs",
        about=f"seed {fidelity.SEED}",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
