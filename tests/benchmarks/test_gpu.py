"""The kit for a machine with a GPU: what is packed arrives whole, what is reported follows from figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.gpu import bare, model, prepare, report
from benchmarks.gpu.report import Ceilings, Point
from benchmarks.gpu.scale import GPU
from gateway.config.profiles import load_profile
from lab.engine.step_log import Row
from lab.simulator.engine.roofline import Batch, step_s

LAW = msgspec.structs.replace(
    load_profile("qwen3-coder-30b-a3b@h200"),
    compute_efficiency=0.42,
    memory_efficiency=0.7,
    step_overhead_s=6e-3,
    row_overhead_s=5e-5,
)
CEILINGS = Ceilings("NVIDIA H200", "2.11.0", LAW.hardware.memory_bytes_per_s, LAW.hardware.peak_flops)

UNSEEN = Point(2_048, 1, 512, [])


def points() -> list[Point]:
    grid = [Point(new, 1, before, []) for new in GPU.chunks for before in GPU.contexts]
    grid += [Point(0, rows, before, []) for rows, before in GPU.rows]
    return [msgspec.structs.replace(each, seconds=[step_s(LAW, each.batch)]) for each in grid]


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """Of 300 bytes a piece, packed."""
    tree, kit = tmp_path / "tree", tmp_path / "kit"
    (tree / "sub/__pycache__").mkdir(parents=True)
    kit.mkdir()
    (tree / "noise").write_bytes(bytes(range(256)) * 8)
    (tree / "sub/text").write_text("of it")
    (tree / "sub/__pycache__/text.pyc").write_text("not this")
    (kit / "manifest.json").write_text(json.dumps({"pieces": prepare.packed([(tree, "there")], kit, 300)}))
    monkeypatch.setattr(bare, "KIT", kit)
    monkeypatch.setattr(bare, "HOME", kit / "home")
    return kit


def test_pieces_are_of_the_size_and_make_the_whole(kit):
    pieces = json.loads((kit / "manifest.json").read_text())["pieces"]
    assert len(pieces) > 1 and all((kit / each["name"]).stat().st_size == each["bytes"] for each in pieces)
    assert {each["bytes"] for each in pieces[:-1]} == {300} and pieces[-1]["bytes"] <= 300
    assert bare.unpack() == 0
    there = kit / "home/there"
    assert (there / "noise").read_bytes() == bytes(range(256)) * 8
    assert (there / "sub/text").read_text() == "of it" and not (there / "sub/__pycache__").exists()


def test_what_was_unpacked_is_not_unpacked_again(kit):
    assert bare.unpack() == 0
    (kit / "home/there/noise").unlink()
    assert bare.unpack() == 0 and not (kit / "home/there/noise").exists()


def test_missing_and_damaged_pieces_are_named(kit, capsys):
    first, second = kit / "piece-1", kit / "piece-2"
    second.write_bytes(first.read_bytes())
    first.unlink()
    assert bare.unpack() == 3 and not (kit / "home").exists()
    assert capsys.readouterr().err == "unpack: piece-1 is missing; piece-2 is damaged\n"


def test_equal_trees_give_equal_pieces(tmp_path):
    found: list[object] = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b").write_text("b")
        (tmp_path / name / "a").write_text("a")
        os.utime(tmp_path / name / "a", (len(found), len(found)))
        found.append(prepare.packed([(tmp_path / name, "there")], tmp_path / name))
    assert found[0] == found[1]


def test_of_the_wheel_what_hopper_does_not_use_is_left_out(tmp_path):
    kept = ("vllm/_C.abi3.so", "vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so")
    dropped = (
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/vllm-rs", "bin/vllm",
        "vllm/third_party/fmha_sm100/api.py",
        "vllm/third_party/deep_gemm/_C.cpython-313-x86_64-linux-gnu.so",
    )  # fmt: skip
    for name in (*kept, *dropped):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    prepare.drop(tmp_path)
    assert [(tmp_path / name).exists() for name in (*kept, *dropped)] == [True] * 2 + [False] * 5


def test_the_plan_fits_into_half_an_hour():
    lines = bare.plan(4).splitlines()
    assert sum("another piece" in line for line in lines) == 3
    assert float(lines[-1].split()[0]) < 30
    until_b = next(line for line in lines if "arm turnpike " in line)
    assert sum(map(float, until_b.split()[:2])) < 20


def test_a_law_of_the_profiles_form_is_found_again():
    shipped = load_profile("qwen3-coder-30b-a3b@h200")
    found = report.fitted(points(), shipped, CEILINGS)
    for name in ("compute_efficiency", "memory_efficiency", "step_overhead_s", "row_overhead_s"):
        assert getattr(found, name) == pytest.approx(getattr(LAW, name), rel=1e-3), name


def test_a_logged_step_is_what_it_computes():
    rows = [Row(2_048, 1_000, 30_000), Row(1, 500, 400), Row(1, 700, 600)]
    assert report.batch_of(rows) == Batch(
        new_tokens=2_050,
        rows=3,
        prefill_context_products=2_048 * (1_000 + 1_024),
        decode_context_tokens=1_200,
    )


def test_what_was_expected_stands_beside_what_was_measured():
    assert report.beside(1.0, 0.75, 1.2) == ("1.00", "0.75 (-25%)", "1.20 (+20%)")
    line = report.of_steps([Point(8_192, 1, 0, [0.3, 0.5, 0.4])], LAW, LAW)[2]
    expected_ms = step_s(LAW, Point(8_192, 1, 0, []).batch) * 1e3
    error = expected_ms / 400 - 1
    assert line.startswith(f"| 8192 | 1 | 0 | 300.00–500.00 | 400.00 | {expected_ms:.2f} ({error:+.0%}) |")


@pytest.mark.parametrize("gpu", ["NVIDIA H100 80GB HBM3", "NVIDIA H200", None])
def test_the_first_line_names_the_gpu(tmp_path, gpu):
    ceilings = msgspec.structs.replace(CEILINGS, gpu=gpu)
    steps = {"model": "moe", "vllm": "0.26.0", "is_rehearsal": gpu is None, "points": [*points(), UNSEEN]}
    (tmp_path / "ceilings.json").write_bytes(msgspec.json.encode(ceilings))
    (tmp_path / "steps.json").write_bytes(msgspec.json.encode(steps))
    measured = report.read(tmp_path)
    assert report.shipped(measured).hardware.name == (gpu.split()[1].lower() if gpu else "cpu")
    assert report.page(measured).splitlines()[0] == (
        f"# One {gpu}" if gpu else "# No GPU: a rehearsal on a CPU, whose figures say nothing of one"
    )


def test_shapes_are_those_of_the_shipped_profiles(tmp_path):
    for name in GPU.models:
        model.write(name, tmp_path / name)
        shape, part = json.loads((tmp_path / name / "config.json").read_text()), model.part(name)
        kv = 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
        assert kv == part.kv_bytes_per_token
        assert shape.get("num_experts", 0) == part.experts


def run(kit: Path, *step: str) -> str:
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(kit / "out")}
    done = subprocess.run(
        ["bash", str(kit / "run.sh"), *step], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.engine
@pytest.mark.nightly  # two minutes
@pytest.mark.timeout(600)
def test_rehearsal(tmp_path):
    """Everything but the GPU, from an empty folder to the page."""
    kit = tmp_path / "kit"
    assert prepare.main(["--folder", str(kit), "--rehearsal"]) == 0
    assert "arm turnpike" in run(kit)
    run(kit, "ceilings")
    run(kit, "unpack")
    try:
        assert run(kit, "steps") == "steps: measured\n"
        assert run(kit, "arm", "shadow") == "arm-shadow: measured\n"
        assert run(kit, "arm", "shadow") == "arm-shadow: measured before\n"
        run(kit, "steps", "plugin")
        run(kit, "arm", "plugin")
    finally:
        run(kit, "stop")
    assert json.loads((kit / "out/arm-plugin.json").read_text())["hints_followed"] > 0
    # By itself: what it imports of vLLM warns.
    command = [sys.executable, "-m", "benchmarks.gpu.report", str(kit / "out")]
    page = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert page.startswith("# No GPU") and "| plugin | first_token_p90 |" in page
    for arm in ("shadow", "plugin"):  # none failed, and all prompts are those that are simulated
        rows = [line for line in page.splitlines() if line.startswith(f"| {arm} |")]
        assert sum(line.endswith("| 0 | 0 |") for line in rows) == 1, rows
