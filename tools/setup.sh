#!/usr/bin/env bash
# Prepares .venv: the gateway, its development tools, and a real vLLM for the CPU, in the versions of
# requirements.lock. Needs Python 3.11 to 3.13 with venv, and about 3 GB of disk; neither git nor uv.
# Safe to run again; does nothing when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "setup: $*" >&2; exit 1; }

venv=.venv
stamp=$venv/.turnpike-setup
sources=(pyproject.toml engine_ext/pyproject.toml lab/pyproject.toml requirements.lock tools/setup.sh tools/index.sh)
want=$(cat "${sources[@]}" | cksum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x $venv/bin/python ] && exit 0

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
$venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear $venv
rm -f "$stamp"
# shellcheck source=tools/index.sh
. tools/index.sh
$venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
  -r <(awk '/^uv==/,!/\\$/' requirements.lock)
export UV_PYTHON=$venv/bin/python UV_LINK_MODE=copy
$venv/bin/uv pip install --quiet "${torch_source[@]}" --excludes "$excludes" \
  --constraints requirements.lock --build-constraints requirements.lock \
  -e '.[jwt,kv-events,picker]' -e ./engine_ext -e ./lab --group dev --group engine
echo "$want" >"$stamp"
echo "setup: done"
