from gateway.wire.headers import get_header, select_headers

FIELDS = [(b"X-One", b" first "), (b"x-one", b"second"), (b"Y", b"caf\xe9"), (b"Z", b"")]


def test_the_first_field_of_a_name_wins_whatever_its_case():
    assert get_header(FIELDS, b"x-one") == "first"
    assert get_header(FIELDS, b"y") == "café"
    assert get_header(FIELDS, b"z") == ""
    assert get_header(FIELDS, b"nowhere") is None


def test_selecting_keeps_wanted_names_only():
    assert select_headers(FIELDS, frozenset({b"x-one", b"z", b"nowhere"})) == {"x-one": "first", "z": ""}
