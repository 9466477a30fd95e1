"""`turnpike play FILE --url URL`: a workload against a real fleet, measured as a simulation is."""

import argparse
import asyncio
from itertools import islice
from typing import Any, Final

import aiohttp
import msgspec

from gateway.config.load import read_api_key
from lab.simulator.driver import ClientConfig
from lab.simulator.live.endpoint import Endpoint, TurnedAwayError
from lab.simulator.live.player import play
from lab.simulator.live.prompts import TOKEN_IDS, Prompts
from lab.simulator.measures.figures import METRICS
from lab.simulator.measures.run_measures import RunMeasures
from lab.workload.trace.files import read_workload

_UNLIMITED: Final = aiohttp.ClientTimeout(total=None)
_READ_BYTES: Final = 1 << 20
"""The longest line of an answer: its first one repeats the prompt."""


def add_play(commands: Any) -> None:
    """The `play` command, below the `turnpike` command's."""
    parser = commands.add_parser(
        "play", help="play a workload against a real fleet (docs/contribute/workloads.md), and measure it"
    )
    parser.add_argument("workload", metavar="FILE", help="a workload")
    parser.add_argument("--url", required=True, help="the gateway, or a vLLM server, without /v1")
    parser.add_argument("--model", required=True, metavar="NAME", help="the model to request")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first so many sessions")
    parser.add_argument("--max-retries", type=int, default=10, metavar="N", help="of a refused turn")
    parser.add_argument("--key-file", metavar="FILE", help="holds the API key")
    parser.add_argument(
        "--token-ids", type=_ids, default=TOKEN_IDS, metavar="LOW-HIGH",
        help=f"prompts are made of these (default {TOKEN_IDS.start}-{TOKEN_IDS.stop - 1})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(command=_play)


def _ids(text: str) -> range:
    low, _, high = text.partition("-")
    found = range(int(low), int(high) + 1)
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"{text}: no range of ids")
    return found


def _play(arguments: argparse.Namespace) -> int:
    header, sessions = read_workload(arguments.workload)
    workload = list(islice(sessions, arguments.limit))
    measures = RunMeasures(sessions=len(workload))

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            timeout=_UNLIMITED, read_bufsize=_READ_BYTES, connector=connector
        ) as client:
            key = read_api_key(None, arguments.key_file, {})
            endpoint = Endpoint(client, arguments.url, arguments.model, key)
            patience = ClientConfig(max_retries=arguments.max_retries)
            await play(workload, endpoint, measures, client=patience, prompts=Prompts(arguments.token_ids))

    try:
        asyncio.run(run())
    except TurnedAwayError as error:
        raise ValueError(str(error)) from None
    found = figures(measures)
    if arguments.json:
        print(msgspec.json.encode({"workload": header, "metrics": found}).decode())
    else:
        for metric in METRICS:
            if (value := found.get(metric.name)) is not None:
                print(f"{metric.name:<22}{value:>12.4g}   {metric.meaning}")
    return 1 if measures.failed else 0


def figures(measures: RunMeasures) -> dict[str, float | None]:
    """What a client can tell, under the names that a simulation's figures have."""
    turns = measures.turns
    found: dict[str, float | None] = {}
    for name, histogram in (
        ("completion", measures.completion_s),
        ("ttft", turns.first_token_s),
        ("final_ttft", measures.final_first_token_s),
    ):
        found[f"{name}_mean_s"] = histogram.mean
        found |= {f"{name}_p{percent}_s": histogram.quantile(percent / 100) for percent in (50, 90, 99)}
    return {
        **found,
        "hit_rate": turns.hit_rate,
        "refusals": turns.refusals,
        "failed": measures.failed,
        "sessions_per_h": measures.steady_sessions_per_h,
        "output_tokens_per_s": turns.output_tokens / measures.window_s if measures.window_s else None,
        "waited_mean_s": turns.waited_s.mean,
        "window_s": measures.window_s,
    }
