"""Nobody foretells the name of another's session."""

from itertools import islice

from gateway.domain.session_ids import keyed_ids, numbered_ids


def test_who_knows_some_names_does_not_know_the_next():
    names = list(islice(keyed_ids(b"k" * 32), 1000))
    assert len(set(names)) == 1000 and all(len(name) == 18 and name.startswith("s-") for name in names)
    assert names == list(islice(keyed_ids(b"k" * 32), 1000)), "the key decides, not chance"
    assert not set(names) & set(islice(keyed_ids(b"l" * 32), 1000)), "another process has other names"
    letters = {place: len({name[place] for name in names}) for place in range(2, 18)}
    assert min(letters.values()) == 32, "no letter of a name is a counter's"


def test_names_may_be_numbered_where_no_client_sees_them():
    assert list(islice(numbered_ids("p"), 3)) == ["s-p1", "s-p2", "s-p3"]
