import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Protocol, Work
from gateway.wire.endpoints import classify, is_ambiguous_path

REPLAYABLE, NOT_REPLAYABLE = True, False


@pytest.mark.parametrize(
    ("method", "path", "protocol", "work", "is_replayable"),
    [
        ("POST", "/v1/chat/completions", Protocol.CHAT, Work.GENERATE, REPLAYABLE),
        ("post", "/v1/chat/completions/", Protocol.CHAT, Work.GENERATE, REPLAYABLE),
        ("POST", "/v1/completions", Protocol.COMPLETIONS, Work.GENERATE, REPLAYABLE),
        ("POST", "/v1/responses", Protocol.RESPONSES, Work.GENERATE, REPLAYABLE),
        ("POST", "/v1/responses/compact", Protocol.RESPONSES, Work.GENERATE, REPLAYABLE),
        ("POST", "/v1/messages", Protocol.MESSAGES, Work.GENERATE, REPLAYABLE),
        ("POST", "/inference/v1/generate", Protocol.OTHER, Work.GENERATE, REPLAYABLE),
        ("POST", "/invocations", Protocol.OTHER, Work.GENERATE, NOT_REPLAYABLE),
        ("POST", "/v1/conversations", Protocol.RESPONSES, Work.STATE, NOT_REPLAYABLE),
        ("POST", "/v1/embeddings", Protocol.OTHER, Work.POOL, REPLAYABLE),
        ("POST", "/v2/rerank", Protocol.OTHER, Work.POOL, REPLAYABLE),
        ("POST", "/v1/audio/transcriptions", Protocol.OTHER, Work.POOL, REPLAYABLE),
        ("POST", "/v1/messages/count_tokens", Protocol.MESSAGES, Work.LIGHT, REPLAYABLE),
        ("POST", "/tokenize", Protocol.OTHER, Work.LIGHT, REPLAYABLE),
        ("POST", "/v1/responses/render", Protocol.OTHER, Work.LIGHT, REPLAYABLE),
        ("PUT", "/generate", Protocol.OTHER, Work.GENERATE, REPLAYABLE),
        ("GET", "/v1/models", Protocol.OTHER, Work.LIGHT, REPLAYABLE),
        ("GET", "/v1/models/meta%2Fllama", Protocol.OTHER, Work.LIGHT, REPLAYABLE),
        ("GET", "/health", Protocol.OTHER, Work.LIGHT, REPLAYABLE),
        ("OPTIONS", "/v1/chat/completions", Protocol.OTHER, Work.LIGHT, REPLAYABLE),
        ("GET", "/v1/chat/completions", Protocol.OTHER, Work.LIGHT, REPLAYABLE),
        ("POST", "/v1/batches", Protocol.OTHER, Work.POOL, NOT_REPLAYABLE),
        ("POST", "/v1/messages/batches", Protocol.MESSAGES, Work.POOL, NOT_REPLAYABLE),
        ("PUT", "/v1/messagesx", Protocol.OTHER, Work.POOL, NOT_REPLAYABLE),
    ],
)
def test_what_a_path_is(method, path, protocol, work, is_replayable):
    endpoint = classify(method, path)
    assert (endpoint.protocol, endpoint.work) == (protocol, work)
    assert endpoint.is_replayable is is_replayable
    assert endpoint.state_id is None and not endpoint.is_control


@pytest.mark.parametrize(
    ("method", "path", "state_id", "is_replayable"),
    [
        ("GET", "/v1/responses/resp_1", "resp_1", REPLAYABLE),
        ("DELETE", "/v1/responses/resp%5F1", "resp_1", NOT_REPLAYABLE),
        ("POST", "/v1/responses/resp_1/cancel", "resp_1", NOT_REPLAYABLE),
        ("GET", "/v1/responses/resp_1/input_items", "resp_1", REPLAYABLE),
        ("GET", "/v1/conversations/conv_1", "conv_1", REPLAYABLE),
        ("POST", "/v1/conversations/conv_1/items", "conv_1", NOT_REPLAYABLE),
        ("DELETE", "/v1/conversations/conv_1/items/msg_1", "conv_1", NOT_REPLAYABLE),
    ],
)
def test_paths_that_name_stored_things(method, path, state_id, is_replayable):
    endpoint = classify(method, path)
    assert (endpoint.protocol, endpoint.work) == (Protocol.RESPONSES, Work.STATE)
    assert endpoint.state_id == state_id and endpoint.is_replayable is is_replayable
    assert state_id not in endpoint.name


CONTROL = """\
/sleep /sl%65ep /sleep/ //sleep /metrics /metrics/anything /turnpike/hints /turnpike/kv/anything
/%74urnpike/key /v1/load_lora_adapter /adapters/mine /collective_rpc /flush_cache
/clear_hicache_storage_backend /update_weights_from_ipc /inference/v1/abort_requests
""".split()


@pytest.mark.parametrize("path", CONTROL)
@pytest.mark.parametrize("method", ["GET", "POST", "BREW"])
def test_control_paths_are_known_however_they_are_written(method, path):
    endpoint = classify(method, path)
    assert endpoint.is_control and endpoint.name == "control"


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/metricsx", "/sleeping", "/v1/models"])
def test_harmless_paths_are_not_control(path):
    assert not classify("GET", path).is_control


AMBIGUOUS = """\
* v1/models //v1/chat/completions /v1//chat/completions /v1/../metrics /v1/./models /v1/.. /metrics/..
/..;x=1/metrics /%2e%2e/metrics /v1/%2E/models /v1/%252e%252e/metrics /v1%2fchat/completions
/v1\\models /v1%5Cmodels /health\0 /health%00 /health%0d%0a /health%7F /sleep#/v1/models /sleep%23
/sleep?x /sleep%3f /sl%2565ep /100% /%zz /v1/models/a%2f..%2fb /v1/models/a%2F%2Fb
""".split()


@pytest.mark.parametrize("path", ["", "/he alth", *AMBIGUOUS])
def test_ambiguous_paths(path):
    assert is_ambiguous_path(path)


PLAIN = "/ /v1/chat/completions /v1/chat/completions/ /a..b/.c/... /v1/models/meta%2FLlama-3.1 /%C3%A9"


@pytest.mark.parametrize("path", PLAIN.split())
def test_paths_with_one_meaning(path):
    assert not is_ambiguous_path(path)


@given(st.text())
def test_any_text_gives_an_endpoint(path):
    assert classify("GET", path).name
    assert is_ambiguous_path(path) in (True, False)


@given(st.sampled_from(["/sleep", "/metrics", "/v1/load_lora_adapter"]), st.data())
def test_no_escaping_hides_a_control_path(path, data):
    disguised = "".join(f"%{ord(c):02x}" if c != "/" and data.draw(st.booleans()) else c for c in path)
    assert classify("POST", disguised).is_control or is_ambiguous_path(disguised)
