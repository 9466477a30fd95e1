"""Can what is retained keep anybody out?

One request that runs without end, 60 % of the KV cache retained for minutes, and a newcomer that needs half
of it: how long until it runs, against the promise (``retention.wait_s``, 1 s), and how long without
retention. Then random storms of hints, requests, aborts and cache resets: after every step free + used +
retained must be all there is, and in the end everybody must have run and nothing may be held.
"""

import random
from typing import Any

from benchmarks.plugin.engines import SEED, bias_count, hint, prompt, quiet_engine
from benchmarks.verdict import Verdict
from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from turnpike_vllm.hints import Hint, ServiceClass

BLOCK = 16


def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
    engine, wait_s = newcomer(has_plugin=True)
    verdict.at_most("newcomer_waits_s", wait_s, 1.1)
    verdict.tell("newcomer_waits_without_retention_s", newcomer(has_plugin=False)[1])
    verdict.at_least("released_because_somebody_waited", bias_count(engine, "releases", "waited"), 1)
    rng = random.Random(SEED)
    unbalanced = stuck = left = 0
    storms = 20 if is_quick else 300
    acts = 0
    for number in range(storms):
        options = SimulatedOptions(
            blocks=41,
            block_size=BLOCK,
            max_num_seqs=rng.choice([2, 16]),
            max_batched_tokens=128,
            policy=rng.choice(["fcfs", "priority"]),
            reserve_full_input=bool(number % 2),
        )
        engine = quiet_engine(options)
        unbalanced += storm(engine, rng)
        engine.run(max_steps=20_000)
        stuck += sum(each.finished is None for each in engine.done.values())
        engine.idle(4_000)
        left += engine.plugin.snapshot()["blocks"]["retained"]
        acts += bias_count(engine, "holds", "held")
    verdict.tell("storms", storms)
    verdict.at_least("holds_in_the_storms", acts, 1)
    verdict.at_most("steps_out_of_balance", unbalanced, 0)
    verdict.at_most("requests_that_never_ran", stuck, 0)
    verdict.at_most("blocks_held_in_the_end", left, 0)


def newcomer(*, has_plugin: bool) -> tuple[SimulatedEngine, float]:
    engine = quiet_engine(
        SimulatedOptions(blocks=201, block_size=BLOCK, max_batched_tokens=512, has_plugin=has_plugin)
    )
    for number in range(6):
        engine.submit(
            prompt(number, 20 * BLOCK - 20), max_tokens=20, hint=hint(f"paused-{number}", retain_s=300.0)
        )
        engine.run()
    engine.submit(prompt(50, 160), max_tokens=900, hint=hint("endless"))
    engine.run(until=engine.now + 0.1)
    name = engine.submit(prompt(60, 100 * BLOCK - 10), max_tokens=4, hint=hint("newcomer"))
    engine.run(until=engine.now + 3.0)
    first = engine.done[name].first_token
    return engine, float("inf") if first is None else first - engine.done[name].arrived


def storm(engine: SimulatedEngine, rng: random.Random) -> int:
    """Returns after how many steps the books did not balance."""
    names: list[str] = []
    wrong = 0
    for _ in range(rng.randrange(10, 60)):
        match rng.choices("submit hint steps abort reset rest".split(), (5, 4, 6, 2, 1, 1))[0]:
            case "submit":
                given = rng.choice([None, "{", anything(rng), anything(rng)])
                length = rng.randrange(1, 560)
                tokens = prompt(rng.randrange(4), 560)[:length]
                names.append(engine.submit(tokens, max_tokens=rng.randrange(1, 60), hint=given))
            case "hint":
                engine.hint(anything(rng))
            case "abort" if names:
                engine.abort(rng.choice(names))
            case "reset":
                engine.scheduler.reset_prefix_cache(reset_running_requests=rng.random() < 0.5)
            case "rest":
                engine.idle(rng.uniform(0, 30))
            case _:
                for _ in range(rng.randrange(1, 30)):
                    engine.step()
                    wrong += not balances(engine)
    return wrong


def balances(engine: SimulatedEngine) -> bool:
    told = engine.plugin.snapshot()["blocks"]
    free, used, retained = engine.account()
    return free + used + retained == engine.total_blocks and told["retained"] == retained


def anything(rng: random.Random) -> Hint:
    return Hint(
        session=f"s{rng.randrange(4)}",
        thread=rng.choice(["", "t"]),
        seq=rng.randrange(60),
        service=rng.choice([None, *ServiceClass]),
        retain_s=rng.choice([None, 0.0, rng.uniform(0, 3_600)]),
        reuse=rng.choice([None, rng.random()]),
        is_final=rng.random() < 0.2,
        is_finished=rng.random() < 0.1,
    )
