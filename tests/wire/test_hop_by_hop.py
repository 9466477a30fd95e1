from gateway.wire.hop_by_hop import end_to_end


def test_per_hop_fields_stay_behind_and_the_rest_keeps_its_order_and_case():
    fields = [
        (b"Host", b"a"),
        (b"TE", b"trailers"),
        (b"X-A", b"1"),
        (b"Connection", b"keep-alive"),
        (b"x-a", b"2"),
        (b"Transfer-Encoding", b"chunked"),
    ]
    assert end_to_end(fields) == [(b"Host", b"a"), (b"X-A", b"1"), (b"x-a", b"2")]
    assert end_to_end(fields, frozenset({b"x-a"})) == [(b"Host", b"a")]


def test_connection_names_further_fields_but_none_that_we_judge_by():
    fields = [(b"Connection", b"X-Mine, authorization"), (b"x-mine", b"1"), (b"Authorization", b"k")]
    assert end_to_end(fields) == [(b"Authorization", b"k")]
