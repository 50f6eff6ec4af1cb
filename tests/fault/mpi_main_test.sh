#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# main() of the mpirun tests: failures of any rank are told with their rank and fail the run; a rank
# that throws or hangs does not make the others wait for ever.
set -uo pipefail

out=$(mktemp)
trap 'rm -f "$out"' EXIT

# check CASE EXPECTED_CODE TEXT: run one case on 3 ranks.
check() {
  local name=$1 expected=$2 text=$3 code=0
  SECONDS=0
  VSR_TEST_GRACE_S=1 VSR_TEST_WATCHDOG_S=3 timeout 40 $VSR_MPIRUN -np 3 "$VSR_BIN/mpi_main_cases" \
    --gtest_filter="MpiMain.$name" > "$out" 2>&1 || code=$?
  if [[ $code -ne $expected || $SECONDS -gt 20 ]] || ! grep -q -- "$text" "$out"; then
    echo "$name: exit code $code (expected $expected), $SECONDS s, looked for: $text"
    cat "$out"
    exit 1
  fi
  echo "$name: exit code $code after $SECONDS s"
}

check Passes 0 'PASSED'
if [[ $(grep -c 'PASSED' "$out") -ne 1 ]]; then
  echo "more than rank 0 prints"
  cat "$out"
  exit 1
fi
check LastRankExpectsInVain 1 '\[rank 2\].*mpi_main_cases.cpp'
check LastRankThrows 1 'thrown by the last rank'
check LastRankHangs 75 'MpiMain.LastRankHangs still runs after 3 s'
