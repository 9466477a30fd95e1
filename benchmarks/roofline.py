"""Step times of the shipped profiles beside published ones.

    python -m benchmarks.roofline [--json]

No GPU was at hand: a step takes an assumed overhead and an assumed share of what the device attains. Others
measured the shipped models on the shipped devices; each figure here is the time of one output token that they
print, with where. `PUBLISHED` names the profile, how many requests were in flight, and the tokens behind each
at the middle of its answer. First tokens are left out: those reports repeat prompts, so prefixes are cached
(4,096 tokens in 75 ms would be more than an A100 computes). Figures: predicted ÷ published; and the overhead
with which a decoding step would take as long as published, what is read taken as it is.
"""

import sys
from typing import Any, Final, NamedTuple

from benchmarks.command import judged
from benchmarks.sensitivity import DEVICES
from benchmarks.verdict import Verdict
from gateway.config.profiles import load_profile
from lab.simulator.engine.roofline import Batch, step_s

_QWEN: Final = "github.com/tenstorrent/tt-inference-server/issues/340 (vLLM, one A100, 2025-07-18)"
_MOE: Final = "github.com/vllm-project/vllm/pull/23151 (one H100, without tuned kernels, 2025-08-19)"
_OSS: Final = "github.com/vllm-project/vllm/issues/22331 (one A100, 88 to 90 tokens a second, 2025-08-28)"


class Published(NamedTuple):
    profile: str
    rows: int
    context: int
    """Tokens of a row."""
    token_s: float
    source: str


PUBLISHED: Final = (
    Published("qwen3-coder-30b-a3b@a100-80", 1, 192, 9.6e-3, _QWEN),
    Published("qwen3-coder-30b-a3b@a100-80", 1, 1088, 9.8e-3, _QWEN),
    Published("qwen3-coder-30b-a3b@a100-80", 1, 4160, 10.3e-3, _QWEN),
    Published("qwen3-coder-30b-a3b@a100-80", 1, 8256, 10.6e-3, _QWEN),
    Published("qwen3-14b@a100-80", 1, 192, 24.3e-3, _QWEN),
    Published("qwen3-14b@a100-80", 1, 4160, 22.8e-3, _QWEN),
    Published("gpt-oss-120b@a100-80", 1, 500, 1 / 89, _OSS),
    Published("qwen3-coder-30b-a3b@h100", 10, 2560, 13.17e-3, _MOE),
)


def measure(_is_quick: bool, verdict: Verdict, tell: Any) -> None:
    overheads_s = []
    for number, (name, rows, context, token_s, source) in enumerate(PUBLISHED, start=1):
        profile = load_profile(name)
        batch = Batch(new_tokens=rows, rows=rows, decode_context_tokens=rows * context)
        predicted_s = step_s(profile, batch)
        overheads_s.append(token_s - (predicted_s - profile.step_overhead_s))
        what = f"{name}, {rows} in flight, {context:,} tokens each"
        tell(f"{what}: {predicted_s * 1e3:.1f} ms, published {token_s * 1e3:.1f} ms: {source}")
        key = f"{number}.{name}_{rows}_{context}"
        verdict.tell(f"{key}.predicted_to_published", round(predicted_s / token_s, 3))
        verdict.tell(f"{key}.fitting_overhead_ms", round(overheads_s[-1] * 1e3, 2))
    # What `benchmarks.sensitivity` tries covers them.
    _, tried_s = zip(*DEVICES, strict=True)
    verdict.at_least("least_fitting_overhead_ms", min(overheads_s) * 1e3, min(tried_s) * 1e3)
    verdict.at_most("greatest_fitting_overhead_ms", max(overheads_s) * 1e3, max(tried_s) * 1e3)


def main(argv: list[str] | None = None) -> int:
    return judged(__file__, __doc__, measure, quick="the same: it takes a second", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
