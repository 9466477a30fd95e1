"""What runs on the machine with the GPU while there is no more than Python and torch: nothing of ours.

`plan` prints the minutes, `unpack` makes of the pieces what `prepare` packed, `ceilings` measures the largest
copies and matrix products. `run.sh` starts it.
"""

import compileall
import hashlib
import importlib.util
import io
import json
import lzma
import os
import shutil
import statistics
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KIT = Path(os.environ.get("TURNPIKE_GPU_KIT", "."))
HOME = KIT / "home"
RESULTS = KIT / "results"
"""What is here was measured, and is not measured again: bring earlier ones along."""
OUT = Path(os.environ.get("OUT", KIT / "out"))
MODEL = os.environ.get("TURNPIKE_GPU_MODEL", "")
"""Instead of the first that the kit has."""
PLAN = (
    ("ceilings", 3.5, "the machine starts, the first piece arrives"),
    ("", 1.0, "another piece arrives"),
    ("unpack", 1.0, ""),
    ("start", 3.0, "weights, graphs, warm-up"),
    ("steps", 1.5, "prefills of 2, 4 and 8k tokens behind 0, 16 and 32k; decodes of 1 to 64 rows"),
    ("arm shadow", 2.2, "affinity alone"),
    ("arm turnpike", 2.2, ""),
    ("arm cap", 2.2, "four sessions at a time"),
    ("start plugin", 2.0, ""),
    ("steps plugin", 0.5, "decodes, with the plugin asleep and awake"),
    ("arm plugin", 2.2, ""),
    ("start", 2.0, "without the plugin again"),
    ("arm drift", 2.2, "shadow once more"),
    ("stop", 0.1, ""),
)
ASSUMED = (
    *(
        "torch",
        "triton",
        "transformers",
        "tokenizers",
        "safetensors",
        "huggingface_hub",
        "numpy",
        "cv2",
        "PIL",
    ),
    *(
        "einops",
        "grpc",
        "psutil",
        "cpuinfo",
        "regex",
        "requests",
        "sentencepiece",
        "tiktoken",
        "yaml",
        "tqdm",
    ),
    *("cloudpickle", "filelock", "setuptools", "jinja2"),
)
"""Modules that the pieces do not bring (`packages.txt`)."""
_COPY_BYTES, _SIDE = 4 << 30, 8192
_SMALL_BYTES, _SMALL_SIDE = 64 << 20, 512


def manifest() -> dict[str, Any]:
    if not (KIT / "manifest.json").exists():
        raise SystemExit(f"{KIT} was not packed: run this in the folder that benchmarks.gpu.prepare made")
    return dict(json.loads((KIT / "manifest.json").read_text()))


def plan(pieces: int) -> str:
    """Minutes from the beginning, as estimated."""
    lines, minute = [f"{'minute':>6}  {'takes':>5}  run.sh"], 0.0
    for step, takes, what in PLAN:
        for _ in range(1 if step else pieces - 1):
            lines.append(f"{minute:>6.1f}  {takes:>5.1f}  {step:<14}{what}")
            minute += takes
    return "\n".join([*lines, f"{minute:>6.1f}  in all; with 15 minutes, up to `arm turnpike`"])


class Pieces(io.RawIOBase):
    """One file after the other."""

    def __init__(self, paths: list[Path]) -> None:
        self._files = [path.open("rb") for path in paths]

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        return next((count for file in self._files if (count := file.readinto(room))), 0)

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()


def wrong(pieces: list[dict[str, Any]]) -> list[str]:
    """What is wrong with them, in words."""
    found = []
    for piece in pieces:
        path = KIT / piece["name"]
        if not path.exists():
            found.append(f"{piece['name']} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != piece["sha256"]:
            found.append(f"{piece['name']} is damaged")
    return found


def unpack() -> int:
    pieces = manifest()["pieces"]
    stamp, wanted = HOME / "unpacked", json.dumps(pieces)
    if stamp.exists() and stamp.read_text() == wanted:
        return 0
    if errors := wrong(pieces):
        print("unpack:", "; ".join(errors), file=sys.stderr)
        return 3
    shutil.rmtree(HOME, ignore_errors=True)
    with (
        io.BufferedReader(Pieces([KIT / piece["name"] for piece in pieces])) as files,
        lzma.open(files) as packed,
        tarfile.open(fileobj=packed, mode="r|") as archive,
    ):
        archive.extractall(HOME, filter="tar")
    compileall.compile_dir(HOME / "site", quiet=2, workers=0)
    stamp.write_text(wanted)
    if lacking := [name for name in ASSUMED if importlib.util.find_spec(name) is None]:
        print(f"unpack: this Python lacks {', '.join(lacking)}")
    return 0


def once(name: str, about: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
    """Measured, unless it was; either way it is in `$OUT` then."""
    file = RESULTS / f"{name}.json"
    if file.exists() and about.items() <= json.loads(file.read_text()).items():
        print(f"{name}: measured before", flush=True)
    else:
        text = json.dumps({**about, **measure()})
        RESULTS.mkdir(exist_ok=True)
        partial = file.with_suffix(".new")
        partial.write_text(text)
        partial.replace(file)
        print(f"{name}: measured", flush=True)
    OUT.mkdir(exist_ok=True, parents=True)
    shutil.copy(file, OUT)


def ceilings(is_small: bool) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - nothing else here needs it

    has_gpu = torch.cuda.is_available()
    if not has_gpu and not is_small:
        raise SystemExit("ceilings: torch finds no GPU")
    device = "cuda" if has_gpu else "cpu"
    size, side = (_SMALL_BYTES, _SMALL_SIDE) if is_small else (_COPY_BYTES, _SIDE)
    kind = torch.bfloat16 if has_gpu else torch.float32
    one, other = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    left, right = (torch.randn(side, side, device=device).to(kind) for _ in range(2))

    def seconds(act: Callable[[], object]) -> float:
        """The median of ten; the first three do not count."""
        took = []
        for _ in range(13):
            if has_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
            act()
            if has_gpu:
                torch.cuda.synchronize()
            took.append(time.perf_counter() - began)
        return statistics.median(took[3:])

    return {
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "torch": torch.__version__,
        "copied_bytes_per_s": 2 * size / seconds(lambda: one.copy_(other)),  # read, and written
        "flops_per_s": 2 * side**3 / seconds(lambda: left @ right),
    }


def main(step: str) -> int:
    known = manifest()
    if step == "plan":
        print(plan(len(known["pieces"])))
    elif step == "unpack":
        return unpack()
    else:
        once("ceilings", {}, lambda: ceilings(known["is_rehearsal"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
