"""Packs what an offline machine with one H100 or H200, Python 3.12 and torch 2.11.0+cu130 needs to measure.

    python -m benchmarks.gpu.prepare [--folder build/gpu] [--rehearsal]

The folder then has pieces to upload, and `manifest.json`, `run.sh` and `bare.py`, which go with the first.
`run.sh plan` prints the minutes. vLLM and what it needs (`packages.txt`) come from PyPI; of its wheel what
Hopper does not use is left out. `--rehearsal`: without them, for this machine's own vLLM and a tiny model.
"""

import argparse
import hashlib
import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.fidelity.chats import Counting, counted, said
from benchmarks.gpu import bare, model
from benchmarks.gpu.scale import GPU, REHEARSAL, Load, Scale
from benchmarks.live import drawn
from benchmarks.processes import ROOT, BenchmarkError, revision

HERE: Final = Path(__file__).parent
PACKAGES: Final = HERE / "packages.txt"
PIECE_BYTES: Final = 47 << 20
TREES: Final = ("gateway", "lab", "benchmarks", "scripted_engine", "engine_ext/turnpike_vllm")
_PRESET: Final = 3
_PLATFORMS: Final = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 26, 27, 28, 31, 34)),
    *("manylinux1_x86_64", "manylinux2014_x86_64"),
)
"""pip takes each tag as it stands."""
DROPPED: Final = (
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",  # Hopper has FlashAttention 3
    "vllm/vllm-rs",
    "vllm/third_party/fmha_sm100",  # Blackwell's
    "vllm/third_party/deep_gemm/include",  # for FP8, compiled there
    "vllm/third_party/deep_gemm/_C.cpython-31[0134]*",
    "mistral_common/data",  # tokenizers
    "pycountry/locales",
    "bin",
    "**/__pycache__",
)
_NUMBA: Final = """\
def jit(*given, **_):
    return given[0] if given and callable(given[0]) else lambda function: function


njit, prange = jit, range


def get_num_threads():
    return 1


def set_num_threads(_):
    pass
"""


def packed(
    roots: Iterable[tuple[Path, str]], folder: Path, piece_bytes: int = PIECE_BYTES
) -> list[dict[str, Any]]:
    """One archive of these trees, under these names, in pieces."""
    out: Any = _Splitter(folder, piece_bytes)
    with (
        lzma.open(out, "w", preset=_PRESET) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for root, name in roots:
            archive.add(root, name, filter=_plain)
    out.close()
    return list(out.pieces)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Equal trees give equal pieces; `add` sorts folders."""
    is_store = member.name.startswith("tree/") and member.name.endswith(".jsonl")
    if member.name.endswith("__pycache__") or is_store:
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


class _Splitter(io.RawIOBase):
    def __init__(self, folder: Path, piece_bytes: int) -> None:
        self.pieces: list[dict[str, Any]] = []
        self._folder, self._piece_bytes = folder, piece_bytes
        self._room = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._room += content
        while len(self._room) > self._piece_bytes:
            self._put(self._piece_bytes)
        return len(content)

    def close(self) -> None:
        if self._room:
            self._put(len(self._room))
        super().close()

    def _put(self, count: int) -> None:
        name, content = f"piece-{len(self.pieces) + 1}", bytes(self._room[:count])
        del self._room[:count]
        (self._folder / name).write_bytes(content)
        self.pieces.append({"name": name, "bytes": count, "sha256": hashlib.sha256(content).hexdigest()})


def download(site: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wheels = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", "3.12"]
    for platform in _PLATFORMS:
        wheels += ["--platform", platform]
    where = ["--no-compile", "--target", str(site), "-r", str(PACKAGES)]
    if subprocess.run([*pip, *wheels, *where]).returncode:
        raise BenchmarkError("packages.txt cannot be downloaded")
    drop(site)


def drop(site: Path) -> None:
    for pattern in DROPPED:
        for path in [*site.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def name_plugin(site: Path) -> None:
    """vLLM finds plugins by what is installed."""
    project = tomllib.loads((ROOT / "engine_ext/pyproject.toml").read_text())["project"]
    at = site / f"turnpike_vllm-{project['version']}.dist-info"
    at.mkdir(parents=True)
    (at / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in points.items())
        for group, points in project["entry-points"].items()
    ]
    (at / "entry_points.txt").write_text("\n".join(groups))


def load(scale: Scale) -> Load:
    sessions, count = drawn(scale.kind, scale.sessions), Counting()
    talks, _ = said(sessions)
    return Load([counted(each, talks[each.id], {}, count) for each in sessions], talks)


def stage(at: Path, scale: Scale, *, has_vllm: bool) -> Iterator[tuple[Path, str]]:
    """What is packed: where it stands, and what it is called there."""
    (at / "numba").mkdir()
    (at / "numba/__init__.py").write_text(_NUMBA)
    (at / "load.json").write_bytes(msgspec.json.encode(load(scale)))
    yield at / "numba", "numba/numba"
    yield at / "load.json", "load.json"
    for name in scale.models:
        model.write(name, at / "model" / name)
    yield at / "model", "model"
    if has_vllm:
        download(at / "site")
    name_plugin(at / "site")
    yield at / "site", "site"
    for tree in TREES:
        yield ROOT / tree, f"tree/{tree}"


def prepare(folder: Path, *, is_rehearsal: bool) -> list[dict[str, Any]]:
    """The pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("run.sh", "bare.py"):
        shutil.copy(HERE / name, folder)
    for old in folder.glob("piece-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=folder) as staged:
        roots = stage(Path(staged), REHEARSAL if is_rehearsal else GPU, has_vllm=not is_rehearsal)
        pieces = packed(roots, folder)
    manifest = {"is_rehearsal": is_rehearsal, "revision": revision(), "pieces": pieces}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return pieces


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build/gpu")
    parser.add_argument("--rehearsal", action="store_true", help="of everything but the GPU, on this machine")
    options = parser.parse_args(argv)
    try:
        pieces = prepare(options.folder, is_rehearsal=options.rehearsal)
    except BenchmarkError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 2
    for piece in pieces:
        print(f"{piece['name']}: {piece['bytes'] / 2**20:.1f} MiB, sha256 {piece['sha256'][:12]}…")
    print(bare.plan(len(pieces)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
