"""Whatever vLLM is configured for: with every bias at work, each request says what stock vLLM's would say.

The real schedulers, with a worker that notices every wrong block, position and token.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from lab.engine.simulated_config import Parts
from tests.engine_ext.functional_worker import Worker, greedy
from tests.engine_ext.test_scheduler import balanced, prompt
from turnpike_vllm.compatibility import FEATURES
from turnpike_vllm.hints import Hint, ServiceClass

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SIZE = 16
DRAFTS = 3
NO_KV = 0
"""The window of layers that keep a state."""
ALL_BUT_ORDER = frozenset(FEATURES) - {"coordinator"}


class Case(NamedTuple):
    configure: Callable[[Parts], None]
    off: frozenset[str] = frozenset()
    """Features that must be off here, and all others on."""
    windows: tuple[int | None, ...] = (None,)
    drafts: int = 0
    adapters: int = 0
    has_images: bool = False
    is_throttled: bool = False
    is_producer: bool = False
    policy: str = "fcfs"


def synchronous(parts: Parts) -> None:
    parts.is_async = False


def pipeline(parts: Parts) -> None:
    from vllm.config import ParallelConfig

    parts.is_async = False
    parts.others["parallel_config"] = ParallelConfig(pipeline_parallel_size=2)


def data_parallel(parts: Parts) -> None:
    from vllm.config import ParallelConfig

    parts.others["parallel_config"] = ParallelConfig(data_parallel_size=2, data_parallel_rank=0)


def speculating(parts: Parts) -> None:
    from vllm.config import SpeculativeConfig

    parts.others["speculative_config"] = SpeculativeConfig(
        method="ngram", num_speculative_tokens=DRAFTS, prompt_lookup_max=3
    )


def speculating_in_step(parts: Parts) -> None:
    parts.is_async = False
    speculating(parts)


def with_adapters(parts: Parts) -> None:
    from vllm.config import LoRAConfig

    parts.others["lora_config"] = LoRAConfig(max_loras=1, max_lora_rank=8)


def with_images(parts: Parts) -> None:
    parts.scheduler["disable_chunked_mm_input"] = True


def without_prefix_cache(parts: Parts) -> None:
    parts.cache["enable_prefix_caching"] = False


def windowed(*windows: int | None) -> Callable[[Parts], None]:
    def configure(parts: Parts) -> None:
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec

        plain: dict[str, Any] = {
            "block_size": SIZE,
            "num_kv_heads": 1,
            "head_size": 8,
            "dtype": torch.float32,
        }
        parts.kv_groups = [
            KVCacheGroupSpec(
                [f"layer{place}"],
                FullAttentionSpec(**plain)
                if window is None
                else SlidingWindowSpec(**plain, sliding_window=window),
            )
            for place, window in enumerate(windows)
        ]

    return configure


def latent(parts: Parts) -> None:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, MLAAttentionSpec

    spec = MLAAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
    parts.kv_groups = [KVCacheGroupSpec(["layer"], spec)]


def with_mamba(parts: Parts) -> None:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, MambaSpec

    state = MambaSpec(block_size=SIZE, shapes=((8,),), dtypes=(torch.float32,), mamba_cache_mode="align")
    parts.cache["mamba_cache_mode"] = "align"
    parts.kv_groups = [*parts.kv_groups, KVCacheGroupSpec(["state"], state)]


def producer(parts: Parts) -> None:
    from vllm.config import KVTransferConfig

    parts.others["kv_transfer_config"] = KVTransferConfig(
        kv_connector="ExampleConnector",
        kv_role="kv_producer",
        kv_connector_extra_config={"shared_storage_path": "/nowhere"},
    )


CASES = {
    "async": Case(lambda parts: None),
    "sync": Case(synchronous),
    "pipeline": Case(pipeline),
    "data parallel": Case(data_parallel, is_throttled=True),
    "ngram": Case(speculating_in_step, drafts=DRAFTS),
    "async drafts": Case(speculating, drafts=DRAFTS),
    "adapters": Case(with_adapters, frozenset({"headroom"}), adapters=3),
    "images": Case(with_images, has_images=True),
    "no prefix cache": Case(without_prefix_cache, frozenset({"retention"})),
    "sliding window": Case(windowed(100), windows=(100,)),
    "hybrid": Case(
        windowed(None, 100),
        frozenset(),
        windows=(None, 100),
    ),
    "latent attention": Case(latent),
    "mamba": Case(with_mamba, ALL_BUT_ORDER, windows=(None, NO_KV)),
    "producer": Case(producer, is_producer=True),
    "priority": Case(lambda parts: None, policy="priority"),
}


class Checked(SimulatedEngine):
    """Its tokens are those of a worker that has what the scheduler gave it, and nothing else."""

    def __init__(self, options: SimulatedOptions, case: Case) -> None:
        super().__init__(options)
        self.case = case
        is_told = self.scheduler.use_pp and not self.scheduler.scheduler_config.async_scheduling
        self.worker = Worker(SIZE, list(case.windows), is_told, case.drafts)
        self._outputs: dict[int, dict[str, list[int]]] = {}
        self._sending: set[str] = set()

    def schedule(self) -> Any:
        if self.case.is_throttled:
            return self.scheduler.schedule(self.steps % 4 != 0)
        return self.scheduler.schedule()

    def _begin(self, output: Any) -> Any:
        step = super()._begin(output)
        said = self.worker.execute(output)
        if self.worker.is_told_tokens:
            said = {name: said[name] if name in step.answered else [] for name in said}
        self._outputs[id(output)] = said
        return step

    def _update(self, output: Any, answered: list[str]) -> None:
        super()._update(output, answered)
        if self.case.drafts and not self.scheduler.scheduler_config.async_scheduling:
            from vllm.v1.outputs import DraftTokenIds

            names = [each for each in output.num_scheduled_tokens if each in self.worker.known]
            drafts = [list(self.worker.known[each].drafts) for each in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def make_model_output(self, output: Any, answered: Any = None) -> Any:
        produced = super().make_model_output(output, answered)
        said = self._outputs.pop(id(output), {})
        produced.sampled_token_ids = [list(said.get(name, ())) for name in produced.req_ids]
        if self.case.is_producer:
            from vllm.v1.outputs import KVConnectorOutput

            sent, self._sending = self._sending, set()
            assert all(self.worker.still_has(name) for name in sent)
            self._sending = {
                name for name, each in self.scheduler.requests.items() if each.is_finished()
            } - sent
            produced.kv_connector_output = KVConnectorOutput(finished_sending=sent)
        return produced


class Asked(NamedTuple):
    after_s: float
    prompt: list[int]
    max_tokens: int
    hint: Hint
    adapter: int
    has_image: bool


def workload(case: Case) -> Iterator[Asked]:
    """Sessions of several turns that pause; a crowd; better work that comes late; more than fits."""
    place = 0
    histories = {number: prompt(number % 3, 150 + 20 * number) for number in range(5)}
    for turn in range(4):
        for number, history in histories.items():
            adapter = number % case.adapters + 1 if case.adapters else 0
            hint = Hint(session=f"s{number}", seq=turn, retain_s=3.0, reuse=0.8)
            yield Asked(0.004, list(history), 20, hint, adapter, case.has_images and number == 1)
            histories[number] = history + greedy(history, 20, adapter) + prompt(100 + place, 30)
            place += 1
        for number in range(5):
            kind = ServiceClass.PROACTIVE if number % 2 else ServiceClass.REACTIVE
            hint = Hint(session=f"x{turn}-{number}", seq=1, service=kind, age_s=9.0 * number)
            asked = prompt(40 + place, 90 + 60 * number)
            place += 1
            adapter = place % case.adapters + 1 if case.adapters else 0
            yield Asked(0.01, asked, 40, hint, adapter, case.has_images and number != 1)


def image(tokens: list[int], place: int) -> Any:
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    # One picture for one prompt, whoever sends it.
    return MultiModalFeatureSpec(
        data=None,
        modality="image",
        identifier=f"image-{tokens[0]}",
        mm_position=PlaceholderRange(offset=40, length=33),
    )


def drive(engine: Checked, case: Case) -> dict[str, Asked]:
    asked: dict[str, Asked] = {}
    for place, each in enumerate(workload(case)):
        engine.run(until=engine.now + each.after_s)
        more: dict[str, Any] = {}
        if each.adapter:
            from vllm.lora.request import LoRARequest

            more["lora_request"] = LoRARequest(f"a{each.adapter}", each.adapter, "/nowhere")
        if each.has_image:
            more["mm_features"] = [image(each.prompt, place)]
        name = engine.submit(
            each.prompt,
            max_tokens=each.max_tokens,
            hint=each.hint,
            priority=int((each.hint.age_s or 0) // 9),
            **more,
        )
        asked[name] = each
        if engine.plugin is not None:
            balanced(engine)
    engine.run(max_steps=20_000)
    return asked


def acted(engine: SimulatedEngine) -> set[str]:
    told = engine.plugin.counters()
    counts = {
        "coordinator": engine.plugin.planner.queue is not None,
        "headroom": told["order"].get("headroom"),
        "retention": told["holds"].get("held"),
        "classes": told["classes"].get("chunk_bounded"),
    }
    return {name for name, count in counts.items() if count}


@pytest.fixture
def multimodal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def patch() -> None:
        from types import SimpleNamespace

        from vllm.v1.core.sched import scheduler

        budget = SimpleNamespace(
            encoder_compute_budget=64, encoder_cache_size=80, mm_max_toks_per_item={"image": 33}
        )
        monkeypatch.setattr(scheduler, "MultiModalBudget", lambda *_: budget)

    return patch


@pytest.mark.parametrize("has_plugin", [False, True], ids=["stock", "biased"])
@pytest.mark.parametrize("name", CASES)
def test_each_says_what_it_would_say_alone(
    name: str, has_plugin: bool, multimodal: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    if case.has_images:
        from vllm.config import ModelConfig
        from vllm.multimodal import MULTIMODAL_REGISTRY

        multimodal()
        if hasattr(ModelConfig, "supports_multimodal_inputs"):
            monkeypatch.setattr(ModelConfig, "supports_multimodal_inputs", True)
        else:  # before vLLM 0.31
            monkeypatch.setattr(
                type(MULTIMODAL_REGISTRY), "supports_multimodal_inputs", lambda *_: True, raising=False
            )
    if case.is_producer:  # it hands its KV over once a request is done, and keeps it until then
        from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

        monkeypatch.setattr(ExampleConnector, "request_finished", lambda *_: (True, None))
    engine = Checked(
        SimulatedOptions(
            blocks=81,
            block_size=SIZE,
            max_num_seqs=5,
            max_batched_tokens=128,
            has_plugin=has_plugin,
            reserve_full_input=False,
            policy=case.policy,
            depth=1 if name in ("sync", "ngram") else 2,
            configure=case.configure,
        ),
        case,
    )
    lacks: set[str] = set()
    if has_plugin:
        features = engine.plugin.features
        lacks = {each for each, how in features.items() if how == "no seam for chunk sizes"}  # before 0.28
        assert lacks in (set(), {"classes", "headroom"})
        assert {each for each, how in features.items() if how != "on"} == case.off | lacks
    asked = drive(engine, case)
    for request, each in asked.items():
        assert engine.done[request].tokens == greedy(each.prompt, each.max_tokens, each.adapter), request
    assert engine.is_idle
    if has_plugin:
        assert engine.plugin.snapshot()["state"] == "awake"
        assert acted(engine) >= set(FEATURES) - case.off - lacks - {"headroom"}
        balanced(engine)
        engine.idle(400)
        assert engine.plugin.snapshot()["blocks"]["free"] == engine.total_blocks


@pytest.mark.parametrize("name", ["async", "sliding window", "hybrid"])
def test_a_warm_resume_is_worth_its_tokens_whatever_groups_hold_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    engine = SimulatedEngine(SimulatedOptions(blocks=101, block_size=SIZE, configure=case.configure))
    retainer, warm_s = engine.plugin.retainer, list[float]()
    is_worth_it = retainer.retention.is_worth_it

    def note(blocks: int, **given: Any) -> bool:
        warm_s.append(given["warm_s"])
        return bool(is_worth_it(blocks, **given))

    monkeypatch.setattr(retainer.retention, "is_worth_it", note)
    tokens = 20 * SIZE
    engine.submit(prompt(1, tokens), max_tokens=2, hint=Hint(session="s", seq=1, retain_s=60.0))
    engine.run()
    assert warm_s == pytest.approx([tokens * retainer.pace.per_token_s])
