from lab.simulator.report.text import number, table
from tests.lab.simulator.report.cells import cell


def test_a_table_has_a_block_for_each_load_and_only_the_best_of_sweeps():
    lines = table(
        [
            cell("affinity", 40.0, 100.0),
            cell("cap", 40.0, 3.0, variant="cap:n=1", variants=2),
            cell("cap", 40.0, 4.0, variant="cap:n=2", variants=2, is_best=False),
            cell("oracle", None, 50.0, is_clairvoyant=True),
        ]
    ).splitlines()
    assert lines[0] == "40 sessions/h"
    assert lines[1].startswith("policy ")
    assert lines[2].startswith("affinity ") and "150 (100–200)" in lines[2]
    assert lines[3].startswith("cap:n=1 (best of 2) ")
    assert lines[5] == "the file's own pace"
    assert lines[7].startswith("oracle * ")
    assert lines[-1].startswith("* ")
    assert not any("n=2" in line for line in lines)
    assert len({len(line) for line in lines[1:4]}) == 1


def test_numbers_are_as_long_as_they_need_to_be():
    assert number("completion_mean_s", 1234.5) == "1,234"
    assert number("completion_mean_s", 3.14159) == "3.14"
    assert number("hit_rate", 0.5) == "0.50"
    assert number("hit_rate", None) == "–"
    assert number("preemptions", 3) == "3"
