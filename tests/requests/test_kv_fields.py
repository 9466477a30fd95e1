"""Who tells an engine where KV caches are is noticed, however it is spelt; and who speaks of them is not."""

import json
import random

import pytest

from gateway.requests.client_kv_fields import KV_FIELDS
from gateway.requests.facts import read_facts
from gateway.wire.endpoints import classify

JSON = [(b"content-type", b"application/json")]
FORM = [(b"content-type", b"multipart/form-data; boundary=x")]
WHERE = '{"do_remote_prefill":true,"remote_host":"10.0.0.1","remote_port":5600,"remote_block_ids":[1]}'
MESSAGES = '"model":"m","messages":[{"role":"user","content":"hi"}]'


def moves_kv(body: bytes | str, path: str = "/v1/chat/completions", headers=JSON) -> bool:
    sent = body if isinstance(body, bytes) else body.encode()
    return read_facts(classify("POST", path), headers, sent).moves_kv


PATHS = """\
/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/chat/completions/batch
/inference/v1/generate /cohere/v2/chat /v1/embeddings /anything
""".split()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", KV_FIELDS)
def test_a_field_is_noticed_on_every_path(path, name):
    assert moves_kv(f'{{{MESSAGES},"{name}":{WHERE}}}', path)
    assert moves_kv(f'{{"{name}":"a text, at which a connector fails",{MESSAGES}}}', path)
    assert not moves_kv(f'{{{MESSAGES},"{name}":null}}', path), "that says nothing"


@pytest.mark.parametrize(
    "member",
    [
        f'"kv\\u005ftransfer_params":{WHERE}',
        f'"\\u006bv_transfer_params":{WHERE}',
        f'"kv_transfer_param\\u0073":{WHERE}',
        f'"\\u006Bv\\u005Fhints":{WHERE}',
        f'"kv_transfer_params":{WHERE},"kv_transfer_params":null',
        f'"kv_transfer_params":null,"kv_transfer_params":{WHERE}',
        f'"kv_transfer_params":{WHERE},"kv\\u005ftransfer_params":null',
        f'"kv\\u005ftransfer_params":{WHERE},"kv_transfer_params":null',
        '"vllm_xargs":{"kv_transfer_params":["a"]}',
        '"vllm_xargs":{"kv_transfer_param\\u0073":"x"}',
        '"vllm_xargs":{},"vllm_xargs":{"ec_transfer_params":"x"}',
        '"vllm_xargs":{},"vllm\\u005fxargs":{"ec_transfer_params":"x"}',
        f'"sampling_params":{{"extra_args":{{"kv_transfer_params":{WHERE}}}}}',
        f'"extra_body":{{"kv_transfer_params":{WHERE}}}',
    ],
)
def test_no_spelling_passes(member):
    assert moves_kv(f"{{{MESSAGES},{member}}}") and moves_kv(f"{{{member},{MESSAGES}}}")


@pytest.mark.parametrize(
    "member",
    [
        '"metadata":{"a":"kv_transfer_params"}',
        '"messages":[{"role":"user","content":"what is \\"kv_transfer_params\\": {}?"}]',
        '"messages":[{"role":"user","content":"\\\\u006bv_transfer_params"}],"vllm_xargs":{"turnpike":"x"}',
        '"tools":[{"type":"function","function":{"parameters":{"properties":{"kv_transfer_params":{}}}}}]',
        '"vllm_xargs":{"session_id":"s","note":"\\\\u006b, \\u006, \\u00e9"}',
        '"extra_body":{"top_k":1}',
        '"vllm_xargs":{"ec_transfer_params":"x"},"vllm_xargs":{}',
        '"sampling_params":{"max_tokens":1}',
        '"kv_transfer_params":null,"messages":[{"role":"user","content":"\\"kv_transfer_params\\""}]',
    ],
)
def test_who_only_speaks_of_them_is_let_through(member):
    assert not moves_kv(f'{{"model":"m",{member}}}'.replace("\\u006,", "\\\\u006,"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_what_only_an_engine_can_read_is_searched(encoding):
    body = f'{{{MESSAGES},"kv_transfer_params":{WHERE}}}'
    assert json.loads(body.encode(encoding))["kv_transfer_params"]
    assert moves_kv(body.encode(encoding))
    assert moves_kv(body.replace("kv_t", "kv\\u005ft").encode(encoding))
    assert not moves_kv(f"{{{MESSAGES}}}".encode(encoding))


@pytest.mark.parametrize(
    "spoilt", ['"a":NaN', '"tools":5', '"a":' + "[" * 5_000 + "]" * 5_000, '"a":[' + "0," * 2**19 + "0]"]
)
def test_what_we_do_not_read_is_searched(spoilt):
    assert moves_kv(f'{{{spoilt},"kv_transfer_params":{WHERE}}}')
    assert moves_kv(f'{{{spoilt},"kv\\u005ftransfer_params":{WHERE}}}')
    assert not moves_kv(f"{{{spoilt}}}")


@pytest.mark.parametrize("before", [2**20 - 20, 2**20 - 11, 2**20 - 3, 2**19 - 11, 3 * 2**20 - 12])
def test_a_name_is_found_across_slices(before):
    body = '{"a":NaN,"b":"' + "x" * (before - 15) + f'","kv_transfer_params":{WHERE}}}'
    assert moves_kv(body) and moves_kv(body.replace("xx", "\0x\0", 1).encode("utf-16-le"))


def test_a_form_is_searched():
    def form(xargs: str) -> bytes:
        part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
        return (part.format("model", "m") + part.format("vllm_xargs", xargs) + "--x--\r\n").encode()

    path = "/v1/audio/transcriptions"
    assert moves_kv(form('{"kv_transfer_params":"x"}'), path, FORM)
    assert moves_kv(form('{"kv\\u005ftransfer_params":"x"}'), path, FORM)
    assert not moves_kv(form('{"a":1}'), path, FORM)


@pytest.mark.slow  # vLLM's imports: seconds, and loud
@pytest.mark.filterwarnings("ignore")
def test_vllm_reads_no_such_field_where_none_was_noticed():
    """Its own models of requests are asked what they would hand to a connector."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    said = {"messages": [{"role": "user", "content": "hi"}]}
    models = (
        ("/v1/chat/completions", ChatCompletionRequest, said),
        ("/v1/completions", CompletionRequest, {"prompt": "p"}),
        ("/v1/responses", ResponsesRequest, {"input": "i"}),
        ("/v1/messages", AnthropicMessagesRequest, {**said, "max_tokens": 1}),
    )
    rng = random.Random(1)
    handed = 0
    for _ in range(400):
        path, model, base = rng.choice(models)
        name = rng.choice(("kv_transfer_params", "ec_transfer_params"))
        value = rng.choice(({"remote_host": "h"}, None))
        members = [("model", "m"), *base.items()]
        members.append((name, value) if rng.randrange(2) else ("vllm_xargs", {name: "text"}))
        rng.shuffle(members)
        body = ",".join(f"{json.dumps(key)}:{json.dumps(each)}" for key, each in members)
        if rng.randrange(2):
            body = body.replace("_transfer", "\\u005ftransfer")
        sent = f"{{{body}}}"
        read = model.model_validate(json.loads(sent))
        xargs = read.vllm_xargs or {}
        given = [read.kv_transfer_params, read.ec_transfer_params, *(xargs.get(n) for n in KV_FIELDS)]
        if any(given):
            handed += 1
            assert moves_kv(sent, path), sent
    assert handed > 100
