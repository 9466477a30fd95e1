"""Kinds of agents by name. Where a paper gives a number, it stands with its source; the rest is assumed.

No recorded data is in here.
"""

from typing import Final

from lab.workload.trace.agents import AgentKind, ToolKind
from lab.workload.trace.spread import Spread

# SAGA (§2.1, §9.1, Table 1, Fig. 3): SWE-bench has 37 steps on average, 150 at most, outputs of 100–500
# tokens; file operations take 45 ms at the median, code 180 ms, tests 2.4 s. Contexts grow from 2–4K to
# 16–128K.
CODING: Final = AgentKind(
    name="coding",
    turns=Spread(median=31, sigma=0.6, least=3, most=150),
    opening_tokens=3000,
    task_tokens=Spread(median=800, sigma=0.6, least=50, most=8000),
    output_tokens=Spread(median=220, sigma=0.5, least=20, most=2000),
    final_tokens=Spread(median=400, sigma=0.5, least=50, most=2000),
    result_tokens=Spread(median=900, sigma=0.9, least=10, most=12000),
    tools=(
        ToolKind(name="read_file", weight=5, lasts_s=Spread(median=0.045, sigma=0.8, most=5), cpu_cores=0.5),
        ToolKind(name="run_code", weight=3, lasts_s=Spread(median=0.18, sigma=1.0, most=60), cpu_cores=1),
        ToolKind(name="run_test", weight=2, lasts_s=Spread(median=2.4, sigma=1.0, most=300), cpu_cores=2),
    ),
)

# SAGA (§9.1): WebArena has 18 steps on average, 50–200 output tokens, pages of some thousand tokens.
WEB: Final = AgentKind(
    name="web",
    turns=Spread(median=16, sigma=0.5, least=2, most=60),
    opening_tokens=2000,
    task_tokens=Spread(median=4000, sigma=0.4, least=500, most=16000),
    output_tokens=Spread(median=100, sigma=0.4, least=20, most=500),
    final_tokens=Spread(median=120, sigma=0.5, least=20, most=500),
    result_tokens=Spread(median=3000, sigma=0.5, least=200, most=12000),
    tools=(ToolKind(name="browse", lasts_s=Spread(median=1.2, sigma=0.8, most=60)),),
)

# Sutradhara (§3.2): 2 iterations at the median and up to 7; 2 calls an iteration and up to 21; prompts of 20K
# and up to three times that, mostly the system prompt; a final answer five times the length of the others.
SEARCH: Final = AgentKind(
    name="search",
    turns=Spread(median=2.3, sigma=0.5, least=2, most=7),
    opening_tokens=15000,
    task_tokens=Spread(median=2000, sigma=0.6, least=50, most=20000),
    output_tokens=Spread(median=120, sigma=0.5, least=20, most=1000),
    final_tokens=Spread(median=600, sigma=0.5, least=50, most=3000),
    result_tokens=Spread(median=1500, sigma=0.8, least=50, most=10000),
    calls=Spread(median=2, sigma=0.8, least=1, most=21),
    tools=(
        ToolKind(name="web_search", weight=3, lasts_s=Spread(median=1.0, sigma=0.7, most=30)),
        ToolKind(name="file_search", weight=2, lasts_s=Spread(median=0.6, sigma=0.7, most=30)),
        ToolKind(name="run_code", weight=1, lasts_s=Spread(median=1.5, sigma=0.9, most=60), cpu_cores=1),
    ),
)

# Sutradhara (§3.2, §3.3, §5): an orchestrator whose next system prompt tells how to read what the tools
# brought, the same for all sessions that called the same ones. Printed: prompts of 20K at the median, three
# times that in the tail; up to 7 iterations and 21 calls; a final answer five times the length of the others;
# 50–80 % of a next prompt known while tools run; of six tools 75 % take no longer than 1.23–1.52 times their
# median, and 90 % than 1.6–3.28 times; tools take 32 % of the time to the final answer at the median.
# Assumed: that the evaluated sessions, chosen for many calls, have 3 iterations and 6 calls at the median, so
# that vLLM takes about as long for them as is printed; which tools there are; what a prompt and a response
# consist of.
_TAKES: Final = {
    "chat": (0.7, 0.5),
    "wiki": (1.0, 0.9),
    "web_search": (1.7, 0.4),
    "mail": (2.5, 0.6),
    "file_search": (4.2, 0.5),
    "run_code": (8.5, 0.7),
}
"""Seconds at the median, and σ."""
ORCHESTRATOR: Final = AgentKind(
    name="orchestrator",
    turns=Spread(median=3, sigma=0.35, least=2, most=7),
    opening_tokens=12000,
    reading_tokens=12000,
    task_tokens=Spread(median=1500, sigma=0.6, least=50, most=20000),
    output_tokens=Spread(median=40, sigma=0.5, least=20, most=500),
    call_tokens=30,
    calls_behind=0.2,
    final_tokens=Spread(median=1000, sigma=0.4, least=200, most=4000),
    calls=Spread(median=6, sigma=0.7, least=2, most=21),
    same_tool=0.8,
    result_share=Spread(median=0.23, sigma=0.3, least=0.2, most=0.5),
    tools=tuple(
        ToolKind(name=name, lasts_s=Spread(median=median, sigma=sigma, most=60))
        for name, (median, sigma) in _TAKES.items()
    ),
)

RESEARCHER: Final = AgentKind(
    name="researcher",
    turns=Spread(median=6, sigma=0.5, least=2, most=20),
    opening_tokens=6000,
    task_tokens=Spread(median=400, sigma=0.5, least=50, most=2000),
    output_tokens=Spread(median=150, sigma=0.5, least=20, most=1000),
    final_tokens=Spread(median=900, sigma=0.4, least=100, most=3000),
    result_tokens=Spread(median=2500, sigma=0.8, least=50, most=12000),
    tools=(ToolKind(name="web_search", lasts_s=Spread(median=1.0, sigma=0.7, most=30)),),
)

# Assumed throughout: an agent that hands half of its work to several others at once.
TEAM: Final = AgentKind(
    name="team",
    turns=Spread(median=6, sigma=0.4, least=2, most=20),
    opening_tokens=8000,
    task_tokens=Spread(median=800, sigma=0.6, least=50, most=8000),
    output_tokens=Spread(median=300, sigma=0.5, least=20, most=2000),
    final_tokens=Spread(median=1200, sigma=0.4, least=100, most=4000),
    result_tokens=Spread(median=800, sigma=0.8, least=10, most=8000),
    calls=Spread(median=2, sigma=0.7, least=1, most=8),
    tools=CODING.tools,
    sub_agent=RESEARCHER,
    sub_agent_part=0.5,
)

# Agent.xpu (§6.1) samples public sets of conversations and of background tasks; the lengths are assumed.
CHAT: Final = AgentKind(
    name="chat",
    turns=Spread(median=2, sigma=0.7, least=1, most=12),
    opening_tokens=300,
    task_tokens=Spread(median=250, sigma=1.1, least=10, most=6000),
    output_tokens=Spread(median=220, sigma=0.8, least=10, most=2000),
    final_tokens=Spread(median=220, sigma=0.8, least=10, most=2000),
    result_tokens=Spread(median=60, sigma=0.9, least=5, most=2000),
)
BACKGROUND: Final = AgentKind(
    name="background",
    turns=Spread(median=1),
    opening_tokens=400,
    task_tokens=Spread(median=700, sigma=0.6, least=50, most=4000),
    output_tokens=Spread(median=80, sigma=0.5, least=10, most=400),
    final_tokens=Spread(median=80, sigma=0.5, least=10, most=400),
)

AGENT_KINDS: Final = {kind.name: kind for kind in (CODING, WEB, SEARCH, ORCHESTRATOR, TEAM, CHAT, BACKGROUND)}
