# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2015
# What the scripts of launch/ and tests/ share: how they speak, where downloads are kept, and how a wheel
# is fetched from PyPI. To be sourced by bash.

vsr_source="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
# The same rule as in cmake/LibTorch.cmake.
vsr_cache="${VSR_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set: set it, or VSR_CACHE}/.cache}/vsr_dist}"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$@"
  exit 1
}

# make_room MEGABYTES: make the cache folder and check that so much can be written there.
make_room() {
  mkdir -p "$vsr_cache" 2>/dev/null && [[ -w $vsr_cache ]] ||
    die "cannot write to the cache folder $vsr_cache; set VSR_CACHE to a folder that you may write to"
  local free
  free=$(df -Pm "$vsr_cache" | awk 'NR == 2 { print $4 }')
  ((free >= $1)) ||
    die "$vsr_cache has $free MB free, expected at least $1 MB; free some, or set VSR_CACHE to another disk"
}

# new_partial: make a folder for something unfinished inside the cache and name it in $partial. It goes
# when the script ends; one left by a script that was killed goes here. Call it with the lock held.
new_partial() {
  rm -rf "$vsr_cache"/.partial.*
  partial=$(mktemp -d "$vsr_cache/.partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# lock_cache: let one script at a time change the cache; the lock goes with the script.
lock_cache() {
  exec 9>"$vsr_cache/.lock"
  flock -n 9 || {
    say "waiting for another script that is filling $vsr_cache"
    flock 9
  }
}

# fetch_wheels NAME==VERSION SHA256 ...: leave the wheels in $partial, checked. False without network.
# Debian's pip may stand only in a virtual environment; it is used to download, nothing is installed.
fetch_wheels() {
  local python=/usr/bin/python3
  [[ -x $python ]] || python=python3
  "$python" -m venv "$partial/pip" >/dev/null || {
    say "$python cannot make a virtual environment; install the package python3-venv"
    return 1
  }
  while (($# >= 2)); do
    printf '%s --hash=sha256:%s\n' "$1" "$2" >>"$partial/wanted.txt"
    shift 2
  done
  # TMPDIR: pip keeps the half-downloaded file there, and /tmp may be too small for it.
  TMPDIR="$partial" "$partial/pip/bin/python" -m pip download --quiet --disable-pip-version-check \
    --no-cache-dir --no-deps --only-binary=:all: --require-hashes \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
    --dest "$partial" --requirement "$partial/wanted.txt" >&2
}

# Cores this process may use. OMP_NUM_THREADS, which nproc heeds, says nothing about builds.
cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }
