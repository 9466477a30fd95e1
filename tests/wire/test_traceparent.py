"""`traceparent`: what is valid, and what is as good as none."""

import pytest

from gateway.wire.traceparent import Context, read_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = f"00-{TRACE}-{SPAN}-01"


def test_what_a_client_says_is_read():
    context = Context(bytes.fromhex(TRACE), bytes.fromhex(SPAN), is_sampled=True)
    assert read_traceparent(CLIENT) == context
    assert read_traceparent(CLIENT[:-1] + "0") == context._replace(is_sampled=False)
    assert read_traceparent(f"cc-{TRACE}-{SPAN}-03-what-comes-later") == context


@pytest.mark.parametrize(
    "value",
    ["", "x", CLIENT.upper(), CLIENT[:-1], CLIENT + "-more", f"ff-{TRACE}-{SPAN}-01", CLIENT + "\n",
     f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}", " " + CLIENT],
)  # fmt: skip
def test_what_is_no_context_is_none(value):
    assert read_traceparent(value) is None
