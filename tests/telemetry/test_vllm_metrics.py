"""A vLLM's `/metrics`, and other texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.engine import EngineSignals
from gateway.telemetry.vllm_metrics import read_vllm_metrics

SAID = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 600.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny"} 50.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7e+09
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="159",prefix="a }\\"b"} 1.0
process_resident_memory_bytes 1.0e+09
"""


def test_a_vllm_says_how_it_is():
    assert read_vllm_metrics(SAID) == EngineSignals(
        kv_tokens=159 * 16,
        kv_used=0.25,
        running=3,
        waiting=2,
        preemptions=7,
        ranks=1,
        prefix_hit=650,
    )


def test_of_adapters_the_newest_word_counts():
    line = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="%s",waiting_lora_adapters="x"} %s\n'
    said = line % ("sql", 1.5e9) + line % ("sql,law", 1.7e9) + line % ("", 1.6e9)
    told = read_vllm_metrics(SAID + said)
    assert (told.most_adapters, told.adapters) == (2, ("sql", "law"))
    assert read_vllm_metrics(SAID + said + line % ("", 1.8e9)).adapters == ()
    assert read_vllm_metrics(said.replace('"2"', '"many"')).most_adapters is None


def test_what_is_retained_is_not_in_use():
    blocks = {"total": 160.0, "free": 100.0, "used": 20.0, "retained": 40.0}
    said = "".join(f'turnpike_engine_blocks{{state="{state}"}} {n}\n' for state, n in blocks.items())
    told = read_vllm_metrics(SAID.replace("} 0.25", "} 0.375") + said)
    assert (told.kv_used, told.kv_retained) == (0.125, 0.25)
    assert read_vllm_metrics(SAID + said.replace("160.0", "0")).kv_retained is None


def test_the_hosts_memory_is_told_in_tokens_once_something_was_stored():
    """An engine says how many bytes it has there; what a token takes follows from what it stored."""
    size = SAID.replace('prefix="a', 'kv_offloading_size="2.0",prefix="a')
    computed = 20_000 - 650 + 3_000
    said = size.replace("} 1000.0", "} 20000.0") + (
        'vllm:generation_tokens_total{engine="0"} 3000.0\n'
        f'vllm:kv_offload_store_bytes_total{{engine="0"}} {computed * 98_304}\n'
    )
    assert read_vllm_metrics(said).host_kv_tokens == 22_000, "2 GiB of 98,304 bytes each, to two digits"
    for less in (
        said.replace("kv_offloading_size", "size"),
        said.replace('"2.0"', '"None"'),
        said.replace('"2.0"', '"nan"'),
        said.replace('"2.0"', '"-2"'),
        said.replace("store_bytes", "load_bytes"),
        said.replace("} 20000.0", "} 7000.0"),
    ):
        assert read_vllm_metrics(less).host_kv_tokens is None

    nonsense = said.replace(f"}} {computed * 98_304}", "} 1e-320")
    assert read_vllm_metrics(nonsense).host_kv_tokens == 1 << 53, "more than a float holds"
    blocks = 'turnpike_engine_blocks{state="total"} 158.0\nturnpike_engine_blocks{state="host"} 316.0\n'
    for stated in (SAID + blocks, said + blocks):
        assert read_vllm_metrics(stated).host_kv_tokens == 2 * 159 * 16, "the plugin knows"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_vllm_calls_its_offload_so():
    from vllm.config import CacheConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        get_connector_metric_definitions,
    )

    assert CacheConfig(kv_offloading_size=2.0).metrics_info()["kv_offloading_size"] == "2.0"
    assert CacheConfig().metrics_info()["kv_offloading_size"] == "None"
    assert "vllm:kv_offload_store_bytes" in get_connector_metric_definitions()


def test_engines_of_one_server_are_added_up():
    other = SAID.replace('engine="0"', 'engine="1"').replace("} 0.25", "} 0.75")
    both = read_vllm_metrics(SAID + other)
    assert (both.kv_tokens, both.running, both.kv_used) == (2 * 159 * 16, 6, 0.75)
    assert (both.ranks, read_vllm_metrics(SAID).ranks) == (2, 1)
    elsewhere = other.replace('engine="1"', 'engine="3"')
    assert read_vllm_metrics(SAID + elsewhere).ranks == 1, "numbers with a gap are not a server's own ranks"
    many = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 0\n' for rank in range(5_000))
    assert read_vllm_metrics(many).ranks == 1, "nonsense costs no new session anything"


def test_what_is_not_there_is_not_known():
    assert read_vllm_metrics("") == read_vllm_metrics("<html>no</html>") == EngineSignals()
    assert (
        read_vllm_metrics('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1').kv_tokens is None
    )
    assert read_vllm_metrics('vllm:cache_config_info{num_gpu_blocks="9"} 1').kv_tokens is None
    for value in ("", "many", "NaN", "-1", "+Inf"):
        assert read_vllm_metrics(f"vllm:num_requests_running {value}").running is None
    assert read_vllm_metrics("vllm:num_requests_running 4").running == 4
    assert read_vllm_metrics("vllm:external_prefix_cache_hits_total 4").prefix_hit is None


@given(
    st.text()
    | st.text(alphabet='vllm:{}="\\ 0123456789_\n').map(lambda text: "vllm:num_requests_running" + text)
)
def test_no_text_is_an_error(text):
    read_vllm_metrics(text)
