# Sourced by what installs with uv, which does not read pip's configuration: where pip was given a mirror, a
# certificate or find-links, uv gets the same. Takes `venv`; sets `torch_source` and `excludes` besides.
# shellcheck shell=bash disable=SC2034

: "${venv:?}"
pip_setting() { "$venv/bin/python" -m pip config get "$1" 2>/dev/null || true; }
index=${PIP_INDEX_URL:-$(pip_setting global.index-url)}
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
certificates=${PIP_CERT:-$(pip_setting global.cert)}
[ -z "$certificates" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$certificates}"

# torch's CPU build: from pip's find-links where there are any, else from PyTorch's own CPU index.
torch_source=()
for link in ${PIP_FIND_LINKS:-$(pip_setting global.find-links)}; do torch_source+=(--find-links "$link"); done
[ ${#torch_source[@]} -gt 0 ] || torch_source=(--torch-backend cpu)

# Not needed on a CPU, and torchvision's registry build breaks `import vllm`.
excludes=$(mktemp)
trap 'rm -f "$excludes"' EXIT
printf '%s\n' torchvision torchaudio torchcodec triton >"$excludes"
