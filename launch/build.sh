#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures and builds: bash launch/build.sh [release|debug|asan] [-- -DVSR_WITH_CUDA=OFF ...]
# What follows -- goes to cmake. Programs come to build/PRESET/bin. The last line on the standard output
# is that folder, everything else goes to the standard error.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release
if (($# > 0)) && [[ $1 != -- ]]; then
  preset=$1
  shift
fi
case $preset in
  release | debug | asan) ;;
  -h | --help) sed -n '3,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) say "unknown preset $preset, expected release, debug or asan"; exit 64 ;;
esac
if (($# > 0)); then
  [[ $1 == -- ]] || { say "unknown argument $1; options for cmake stand after --"; exit 64; }
  shift
fi
options=("$@")
build=$vsr_source/build/$preset

# A LibTorch named to cmake need not be downloaded.
for option in "${options[@]}"; do
  case $option in
    -DVSR_TORCH_ROOT=* | -DVSR_TORCH_ROOT:*=*) VSR_TORCH_ROOT=${option#*=} ;;
    -DCMAKE_PREFIX_PATH=* | -DCMAKE_PREFIX_PATH:*=*)
      IFS=';' read -ra prefixes <<<"${option#*=}"
      for prefix in "${prefixes[@]}"; do
        [[ ! -e $prefix/include/torch/script.h ]] || VSR_TORCH_ROOT=$prefix
      done ;;
  esac
done
if [[ -n ${VSR_TORCH_ROOT:-} ]]; then
  export VSR_TORCH_ROOT
  options=("-DVSR_TORCH_ROOT=$VSR_TORCH_ROOT" "${options[@]}")
fi

bash "$vsr_source/launch/install_deps.sh"

version=$(cmake --version | sed -n '1s/[^0-9]*//p')
[[ $(printf '3.24\n%s\n' "$version" | sort -V | head -n 1) == 3.24 ]] ||
  die "cmake is $version, expected at least 3.24; a newer one comes with: pip install cmake (in a virtual
environment whose bin/ is in PATH)"

# A cache of another place (the folder was moved or copied) or another generator would stop cmake.
is_stale() {
  local cache=$build/CMakeCache.txt home
  [[ -e $cache ]] || return 1
  home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache")
  [[ $(cd "$home" 2>/dev/null && pwd -P) != "$vsr_source" ]] ||
    ! grep -qx 'CMAKE_GENERATOR:INTERNAL=Ninja' "$cache"
}
if is_stale; then
  say "build/$preset was configured at another place: configuring anew"
  options+=(--fresh)
fi

# A file that includes LibTorch takes up to 1.5 GB to compile.
jobs=$(cores)
memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo)
((memory >= jobs)) || jobs=$((memory > 1 ? memory : 1))

cd "$vsr_source"
cmake --preset "$preset" --log-level=NOTICE "${options[@]}" >&2
cmake --build --preset "$preset" --parallel "$jobs" >&2
say "programs are in build/$preset/bin"
printf '%s\n' "$build/bin"
