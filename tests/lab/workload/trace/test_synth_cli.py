"""`turnpike workload synth` and `show`, from the command line."""

from gateway.__main__ import main


def _synth(tmp_path, *arguments, out="out.jsonl.gz"):
    return main(["workload", "synth", *map(str, arguments), "-o", str(tmp_path / out)])


def test_a_workload_is_composed_and_shown(tmp_path, capsys):
    assert _synth(tmp_path, "--agents", "team", "--count", 5, "--per-hour", 60, "--kind", "turns=3") == 0
    assert capsys.readouterr().out == f"{tmp_path}/out.jsonl.gz: 5 session(s)\n"
    assert main(["workload", "show", str(tmp_path / "out.jsonl.gz")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("workload team, seed 0\n")
    assert "sessions  5: 5 team; 5 reactive" in shown


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for seed, out in ((1, "a.jsonl.gz"), (1, "b.jsonl.gz"), (2, "c.jsonl.gz")):
        assert _synth(tmp_path, "--preset", "saga-tenants", "--count", 9, "--seed", seed, out=out) == 0
    a, b, c = ((tmp_path / f"{name}.jsonl.gz").read_bytes() for name in "abc")
    assert a == b != c
