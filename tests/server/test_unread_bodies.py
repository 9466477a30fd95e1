"""Bodies that an engine reads and a strict reader does not pass no limit; nor do those that nobody reads."""

import asyncio
import contextlib
import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.server.auth.client_keys import hash_key
from gateway.wire.inflate import zstd
from tests.examples import examples
from tests.server.bench import Backend, Bench, Exchange, answer, eventually, post
from tests.server.test_models import listing
from tests.server.test_stop_session import control, newest

POOLS = [{"name": "first", "backends": 1, "listing": listing("other")},
         {"name": "mine", "backends": 1, "listing": listing("m")}]  # fmt: skip
NAMES = ("quota", "places", "turns", "stopped", "salted")
LIMITED: dict[str, Any] = {
    "tenants": [
        {"name": "quota", "key_hashes": [hash_key("quota")], "quota": {"tokens_per_minute": 1}},
        {"name": "places", "key_hashes": [hash_key("places")], "quota": {"max_sessions": 1}},
        *({"name": name, "key_hashes": [hash_key(name)]} for name in NAMES[2:]),
    ],
    "bounds": [{"name": "short", "turns": 1, "tenants": ["turns"]}],
    "hints": {"cache_salt_secret": "0123456789abcdef"},
}
CODINGS = {"gzip": lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:]), "deflate": zlib.compress,
           "zstd": lambda body: zstd.compress(body[:9]) + zstd.compress(body[9:])}  # fmt: skip
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=6) | st.sampled_from(
    ("\ud83d", "\udc00\ud83d", "NaN", '"Infinity"', "\\ud83d", "{[", "\ud83d\ude00")
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, str]:
    """As vLLM reads it (Python's json, of bytes), and its content coding."""
    fields = {"model": "m", "messages": [{"role": "user", "content": draw(texts)}], "tools": draw(values)}
    fields |= {"metadata": draw(values), **draw(st.dictionaries(texts, values, max_size=2))}
    text = json.dumps(fields, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from((None, 1))))
    doubled = draw(st.sampled_from(("", '"messages":{},', '"model":NaN,"messages":7,', '"session_id":"x",')))
    deep = draw(st.sampled_from((0, 0, 300)))
    text = "{" + doubled + f'"deep":{"[" * deep}1{"]" * deep},' + text[1:]
    body = text.encode(draw(st.sampled_from(ENCODINGS)), "surrogatepass")
    json.loads(body)
    return body, draw(st.sampled_from(("", "", *CODINGS)))


def spoilt(before_end: bytes = b"") -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"hi"}]%b}' % before_end


EXAMPLES = (b',"zz":NaN', b',"tools":[{"default":-Infinity}]', b',"user":"\\ud83d"',
            b',"user":"\xed\xa0\x80"', b',"a":%b' % (b"[" * 5000 + b"]" * 5000),
            b',"zz":NaN,"a":%b' % (b"[" * 5000 + b"]" * 5000))  # fmt: skip


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies())
@example((spoilt(), "zstd"))
@example((b"\xef\xbb\xbf" + spoilt(), ""))
@example((spoilt(EXAMPLES[0]).decode().encode("utf-16"), ""))
@example((spoilt(EXAMPLES[0]), ""))
@example((spoilt(EXAMPLES[1]), ""))
@example((spoilt(EXAMPLES[2]), ""))
@example((spoilt(EXAMPLES[3]), ""))
@example((spoilt(EXAMPLES[4]), ""))
@example((spoilt(EXAMPLES[5]), ""))
@example((b"\xef\xbb\xbf" + spoilt(EXAMPLES[4]), "gzip"))
def test_what_an_engine_reads_passes_no_limit(given_body: tuple[bytes, str]) -> None:
    asyncio.run(_passes_no_limit(*given_body))


async def _passes_no_limit(body: bytes, coding: str) -> None:
    bench = Bench()
    await bench.start(**LIMITED)
    try:
        held, go = asyncio.Event(), asyncio.Event()

        async def script(exchange: Exchange) -> None:
            if b'"hold"' in exchange.request.body:
                held.set()
                await go.wait()
            await exchange.send(answer())

        bench.backend.script = script

        def of(tenant: str, text: bytes = spoilt(), session: bytes = b"s") -> bytes:
            headers = b"Authorization: Bearer %s\r\nX-Session-ID: %s\r\n" % (tenant.encode(), session)
            if text is body and coding:
                return post(
                    CODINGS[coding](text), headers=headers + b"Content-Encoding: %s\r\n" % coding.encode()
                )
            return post(text, headers=headers)

        for tenant in ("quota", "turns", "stopped"):
            assert (await bench.ask(of(tenant))).status == 200
            if tenant == "stopped":
                assert (await bench.control(control(newest(bench)))).status == 200
        assert [(await bench.ask(of(name, body))).status for name in ("quota", "turns", "stopped")] == [
            429,
            403,
            403,
        ]
        assert (await bench.ask(of("salted", body))).status == 200
        assert b'"cache_salt"' in bench.backend.seen[-1].body
        first = await bench.send(of("places", spoilt(b',"hold":1')))
        await held.wait()
        await bench.send(of("places", body, b"another"))
        await eventually(lambda: len(bench.brain.waiting_room) == 1, "it takes no place of a session")
        go.set()
        assert (await first.receive()).status == 200
    finally:
        await bench.finish(is_last=False)


SPOILT = [*(spoilt(each) for each in EXAMPLES), b"\xef\xbb\xbf" + spoilt(),
          spoilt().decode().encode("utf-16"), spoilt(b',"messages":{}'),
          spoilt(b',"tools":[7],"metadata":"\\ud83d"'),
          b'{"model":"m","messages":[{"role":"user","content":"\\ud83d cut"}]}']  # fmt: skip


@pytest.mark.parametrize("body", SPOILT, ids=lambda body: repr(body[:12] + body[-24:]))
async def test_its_model_is_known_and_it_goes_out_as_it_came(start, body):
    """With an alias and a salt, in UTF-8 and with both behind it."""
    bench = await start(pools=POOLS)
    assert (await bench.ask(post(body))).status == 200
    assert [len(each.seen) for each in bench.backends] == [0, 1] and bench.backends[1].seen[0].body == body
    wants = {"models": [{"name": "m", "targets": [{"model": "mm"}]}], "hints": LIMITED["hints"]}
    other = await start(pools=[{**POOLS[1], "listing": listing("mm")}], **wants)
    assert (await other.ask(post(body))).status == 200
    with contextlib.suppress(RecursionError):
        read = json.loads(other.backend.seen[0].body)
        assert read["model"] == "mm" and read["cache_salt"] and "messages" in read


@pytest.mark.parametrize("coding", CODINGS)
async def test_what_is_compressed_is_read_and_sent_on_plain(start, coding):
    bench = await start(pools=POOLS)
    body = json.dumps({"model": "m", "input": "hi" * 20_000}).encode()
    headers = b"session_id: abc\r\nContent-Encoding: %s\r\n" % coding.encode()
    response = await bench.ask(post(CODINGS[coding](body), b"/v1/responses", headers))
    [seen] = bench.backends[1].seen
    assert response.get(b"x-turnpike-source") == b"client-id" and seen.body == body
    assert seen.get(b"content-encoding") is None and seen.get(b"session_id") == b"abc"


BROKEN = [b"no json", b'{"model":"m","messages":[', b"\0\x01", spoilt()[:-1] + b"\xff"]


@pytest.mark.parametrize("body", BROKEN)
async def test_what_nobody_reads_is_charged_and_counts_as_a_turn_of_its_id_or_connection(start, body):
    bench = await start(**LIMITED | {"bounds": [{"name": "short", "turns": 1}], "hints": {}})
    key = b"Authorization: Bearer salted\r\n"
    client, stated = await bench.connect(), key + b"X-Session-ID: s\r\n"
    answers = [await client.ask(post(body, headers=headers)) for headers in (key, key, stated, stated)]
    assert [each.status for each in answers] == [200, 403, 200, 403]
    assert [each.get(b"x-turnpike-source") for each in answers[::2]] == [b"connection", b"client-id"]
    assert (await bench.ask(post(body, headers=key))).status == 200
    quota = b"Authorization: Bearer quota\r\n"
    assert [(await bench.ask(post(body, headers=quota))).status for _ in range(2)] == [200, 429]


PACKED = gzip.compress(spoilt(), mtime=0)
LARGE = b'{"model":"m","messages":[%s]}' % b",".join([b"{}"] * 2**21)
"""More than is read, and than is searched for its model."""


SWELLING = gzip.compress(b" " * 2**24)


@pytest.mark.parametrize(
    ("body", "coding", "status"),
    [(PACKED, b"br", 415), (PACKED, b"gzip, gzip", 415), (LARGE, b"", 413), (SWELLING, b"gzip", 413),
     (gzip.compress(b"") * 2049, b"gzip", 413), (zstd.compress(b"")[:5] + b"\xb8", b"zstd", 400),
     *((PACKED[:at] + b"!" + PACKED[at:-2], b"x-gzip", 400) for at in (0, 2, 30))],
    ids=["unknown", "twice", "too large", "swells", "parts", "window", "magic", "flags", "cut"],
)  # fmt: skip
async def test_what_an_engine_may_read_and_we_do_not_is_refused_where_tenants_are_apart(
    start, body, coding, status
):
    headers = b"Content-Encoding: %s\r\n" % coding if coding else b""
    bench = await start(**LIMITED)
    refused = await bench.ask(post(body, headers=headers + b"Authorization: Bearer salted\r\n"))
    assert refused.status == status and not bench.backend.seen
    assert (b"damaged" in refused.body) is (status == 400)
    alone = await start(bounds=[{"name": "short", "turns": 1}])
    client = await alone.connect()
    assert [(await client.ask(post(body, headers=headers))).status for _ in range(2)] == [200, 403]
    assert alone.backend.seen[0].body == body


async def test_a_session_that_was_stopped_is_found_in_what_is_too_much(start):
    body = b'{"session_id":"wild","model":"m","messages":[%s]}' % b",".join([b"{}"] * 2**19)
    bench = await start()
    assert (await bench.ask(post(body))).status == 200
    assert (await bench.control(control(newest(bench)))).status == 200
    assert (await bench.ask(post(body))).status == 403
    pooled = post(b'{"session_id":"wild","model":"m","input":"hi"}', b"/v1/embeddings")
    assert (await bench.ask(pooled)).status == 403, "what is no turn, too"


async def test_nor_do_marks_and_depth_together_hide_it(start):
    deep = spoilt(b',"session_id":"wild"%b' % EXAMPLES[4])
    bench = await start(**LIMITED)
    key = b"Authorization: Bearer stopped\r\n"
    assert (await bench.ask(post(spoilt(b',"session_id":"wild"'), headers=key))).status == 200
    assert (await bench.control(control(newest(bench)))).status == 200
    for odd in (b"\xef\xbb\xbf" + deep, deep.decode().encode("utf-16"), deep.replace(b"hi", b"\xed\xa0\x80"),
                deep.replace(b'"model"', b'"n":NaN,"model"'), deep.replace(b"hi", b"\\ud83d")):  # fmt: skip
        assert (await bench.ask(post(odd, headers=key))).status == 403, odd[:30]


async def test_a_form_is_no_way_around_what_a_turn_says(start):
    """Some engines read a body as JSON, whatever it is called."""
    bench = await start(bounds=[{"name": "short", "turns": 1}])
    body = spoilt(b',"session_id":"s"').replace(b"hi", b"ho")
    ask = post(body).replace(b"application/json", b"multipart/form-data; boundary=x")
    assert [(await bench.ask(ask)).status for _ in range(2)] == [200, 403]


CLAIMING = b'{"model":"m","messages":[],"cache_salt":"theirs"%b}'
CLAIM = CLAIMING % b""
CLAIMS = [
    *((claim, b"", 200) for claim in (CLAIM, b"\xef\xbb\xbf" + CLAIM, CLAIM.decode().encode("utf-16"),
      CLAIMING % b',"cache_salt":"again"', CLAIMING % b',"cache\\u005fsalt":"again" ', CLAIMING % EXAMPLES[0],
      CLAIMING % EXAMPLES[4], CLAIMING % b',"extra_body":{"cache_salt":"x"}', CLAIM + b" " * 2**20,
      CLAIMING % (b',"a":[%s]' % b",".join([b"{}"] * 2**21)), CLAIMING % b',"vllm_xargs":7')),
    *((CLAIM, coding, 415) for coding in (b"br", b"gzip, gzip", b"identity, br", b"\xff", b"a" * 200)),
    (CLAIM, b"identity", 200), (CLAIM, b"UTF-8", 200), (CLAIM, b"gzip", 400), (CLAIM, b"identity, zstd", 400),
    (PACKED[:-9], b"gzip", 400), (gzip.compress(CLAIM), b"identity, gzip", 200),
    (gzip.compress(CLAIM), b"\r\nContent-Encoding: gzip", 200), (CLAIM, b"\r\nContent-Encoding: br", 415),
    *((claim, b"", 400) for claim in (b"\xef\xbb\xbf" * 2 + CLAIM, b"\xef\xbb\xbf" * 3 + CLAIM, CLAIM + b"\0",
      *(("\ufeff" + CLAIM.decode()).encode(coding) for coding in ("utf-16", "utf-32")), b"[%b]" % CLAIM)),
    (gzip.compress(b"\xef\xbb\xbf" * 2 + CLAIM), b"gzip", 400),
    (zstd.compress(CLAIM.decode().encode("utf-32")), b"zstd", 200),
]  # fmt: skip
"""Bodies, their content coding, and what becomes of them."""


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/embeddings", b"/inference/v1/generate"])
@pytest.mark.parametrize("content_type", [b"application/json", b"multipart/form-data; boundary=x"])
async def test_a_clients_own_salt_counts_nowhere(start, path, content_type):
    """Also where no key is asked for; engines pass over content codings that they do not know."""
    bench = await start(hints=LIMITED["hints"])
    for number, (body, coding, status) in enumerate(CLAIMS):
        headers = b"Content-Encoding: %s\r\n" % coding if coding else b""
        ask = post(body, path, headers).replace(b"application/json", content_type)
        got = await bench.ask(ask)
        assert got.status == status or b"kv_field" in got.body, (number, got.body)  # of forms, less is known
        if got.status == 200:
            sent = bench.backend.seen.pop().body
            with contextlib.suppress(RecursionError):
                assert json.loads(sent)["cache_salt"] not in ("theirs", "again"), number
            assert sent.rfind(b"cache_salt") > sent.rfind(b"theirs")
        assert not bench.backend.seen


@pytest.mark.parametrize("version", [b'{"version":"0.1.dev1+g1"}', b'{"version":"dev"}', b"{}", b"nothing"])
async def test_nor_does_it_where_the_engines_version_is_not_known(start, version):
    def engine() -> Backend:
        backend = Backend()
        backend.version = version
        return backend

    bench = await start(hints=LIMITED["hints"], backend=engine)
    assert (await bench.ask(post(CLAIM))).status == 200
    assert json.loads(bench.backend.seen[0].body)["cache_salt"] != "theirs"


async def test_of_an_alias_a_second_mark_is_the_engines_to_judge(start):
    """No engine reads such a body, and one that would is not to be made of it."""
    bench = await start(models=[{"name": "m", "targets": [{"model": "mm"}]}])
    for body in (b"\xef\xbb\xbf" * 2 + spoilt(), ("\ufeff" + spoilt().decode()).encode("utf-16")):
        assert (await bench.ask(post(body))).status == 200
        assert bench.backend.seen[-1].body == body
