#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The direction of the layers (launch -> runtime -> optim -> comm) and the places where headers of
# others may stand, checked by what the sources include. Argument: root of the sources, for the test
# of this test; by default VSR_SOURCE.
set -euo pipefail

root=${1:-${VSR_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}}
cd "$root"
failures=0

# report_includes WHAT HEADER_PATTERN FOLDERS... -- ALLOWED_PATH_PATTERN
# Prints each include of HEADER_PATTERN under FOLDERS in a file that ALLOWED does not match.
report_includes() {
  local what=$1 header=$2 allowed='^$' folders=()
  shift 2
  while [[ $# -gt 0 && $1 != -- ]]; do
    if [[ -d $1 ]]; then folders+=("$1"); fi
    shift
  done
  if [[ $# -eq 2 ]]; then allowed=$2; fi
  if [[ ${#folders[@]} -eq 0 ]]; then return; fi
  local line
  while IFS= read -r line; do
    if [[ ${line%%:*} =~ $allowed ]]; then continue; fi
    echo "$what: $line"
    failures=$((failures + 1))
  done < <(grep -rnE --include='*.hpp' --include='*.cpp' --include='*.h' --include='*.cu' \
             --include='*.cuh' "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($header)" \
             "${folders[@]}" || true)
}

code=(comm optim runtime launch examples)
report_includes 'mpi.h and nccl.h belong into comm/*.cpp and comm/*_handles.hpp' \
  '(mpi|nccl)\.h' "${code[@]}" tests -- '^comm/([a-z0-9_/]+\.cpp|[a-z0-9_/]+_handles\.hpp)$'
report_includes 'HDF5 belongs into runtime/checkpoint' \
  '(hdf5|H5[A-Za-z]*)\.h' "${code[@]}" -- '^runtime/checkpoint/'
report_includes 'FFmpeg belongs into runtime/video' \
  '(libav[a-z]*|libsw[a-z]*)/' "${code[@]}" -- '^runtime/video/'
report_includes 'LibTorch does not belong here' \
  '(torch|ATen|c10)/' comm runtime/checkpoint runtime/video runtime/metrics
report_includes 'comm is the lowest layer' '(optim|runtime|launch)/' comm
report_includes 'optim knows comm only' '(runtime|launch)/' optim
report_includes 'runtime knows nothing of launch' 'launch/' runtime
report_includes 'only tests include tests' '(tests|bench)/' "${code[@]}"

if [[ $failures -gt 0 ]]; then
  echo "$failures includes against the layers"
  exit 1
fi
echo "includes follow the layers"
