#!/usr/bin/env bash
# Renews requirements.lock: the newest versions that go together of all that pyproject.toml names, for every
# supported Python and machine, with the hashes of all their files.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
# shellcheck source=tools/index.sh
. tools/index.sh

# torch has another build on each index, so it has a version and no hash. Its needs are looked up here.
echo torch >>"$excludes"
torch=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch").partition("+")[0])')
needs=$("$venv/bin/python" -c 'import importlib.metadata as m
print(*[each for each in m.requires("torch") or () if "extra ==" not in each and not each.startswith("nvidia")], sep="\n")')
"$venv/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
  --no-header --all-extras --group dev --group engine --group docs --excludes "$excludes" \
  --output-file requirements.lock pyproject.toml engine_ext/pyproject.toml - <<<"$needs"
{
  echo "# What tools/setup.sh, the images and \`make docs\` install. \`make lock\` renews it; \`make newest\` tries other versions."
  echo "torch==$torch"
  cat requirements.lock
} >requirements.lock.new
mv requirements.lock.new requirements.lock
echo "lock: $(grep -c == requirements.lock) versions"
