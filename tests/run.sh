#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The test command: installs what is missing, checks the format of all sources and the syntax of all
# scripts, builds, and runs the tests.
#   bash tests/run.sh [--long] [--preset release|debug|asan|tsan] [arguments for ctest ...]
# Without --long, tests labelled long are left out. Examples of arguments: -R mpi, -L unit, --repeat
# until-fail:3. Options for cmake come from VSR_CMAKE_OPTIONS (split at spaces).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch/common.sh"
cd "$vsr_source"

long=0
preset=release
arguments=()
while (($# > 0)); do
  case $1 in
    --long) long=1 ;;
    --preset) preset=${2:?--preset needs a name}; shift ;;
    -h | --help) sed -n '3,8s/^# //p' tests/run.sh; exit 0 ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

# Files of the repository whose names match: those that git knows, or all where this is no clone.
sources() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z -- "$@"
  else
    local name args=()
    for name in "$@"; do args+=(-o -name "$name"); done
    find . -path ./build -prune -o -path ./runs -prune -o -type f \( "${args[@]:1}" \) -print0
  fi
}

check_format() {
  local format files
  mapfile -d '' files < <(sources '*.cpp' '*.hpp' '*.cu' '*.cuh')
  ((${#files[@]} > 0)) || die "no sources found to check the format of"
  format=$(command -v clang-format-14 || command -v clang-format) ||
    die "clang-format 14 is missing; launch/install_deps.sh installs it"
  "$format" --dry-run -Werror "${files[@]}" ||
    die "these files are not formatted; run: $(basename "$format") -i FILE ..."
  say "format of ${#files[@]} files is right"
}

check_scripts() {
  local script scripts
  mapfile -d '' scripts < <(sources '*.sh' '*.sbatch')
  for script in "${scripts[@]}" .ci/run; do
    bash -n "$script" || die "$script is not valid bash"
  done
}

bash launch/install_deps.sh
check_format
check_scripts
read -ra options <<<"${VSR_CMAKE_OPTIONS:-}"
bash launch/build.sh "$preset" -- -DVSR_BUILD_TESTS=ON "${options[@]}" >/dev/null

selection=()
((long)) || selection=(--label-exclude '^long$')
exec ctest --test-dir "build/$preset" --no-tests=error --output-on-failure --parallel "$(cores)" \
  "${selection[@]}" "${arguments[@]}"
