#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that stops, sleeps or takes another way ends the job with code 75 soon after the deadline, and the message
# says which rank and where; a rank that works for long and says so ends nothing.
set -uo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/output.txt

# check MODE RANKS EXPECTED_CODE PATTERN
check() {
  local mode=$1 ranks=$2 expected=$3 pattern=$4 code=0
  SECONDS=0
  timeout 60 $VSR_MPIRUN -np "$ranks" "$VSR_BIN/hanging_rank" "$mode" "$work/$mode$ranks" 1000 >"$out" 2>&1 || code=$?
  if [[ $code -ne $expected || $SECONDS -gt 30 ]] || { [[ -n $pattern ]] && ! grep -qE "$pattern" "$out"; } ||
    (($(grep -c '^error: ' "$out") > (expected == 0 ? 0 : 1))); then
    echo "$mode on $ranks ranks: exit code $code (expected $expected), $SECONDS s, wanted: $pattern"
    cat "$out"
    exit 1
  fi
  echo "$mode on $ranks ranks: exit code $code after $SECONDS s"
}

check none 2 0 ''
check busy 2 0 ''
missing='rank 1 on .* did not enter operation 10 \(barrier of step, 0 bytes\): it left operation 9 \(barrier of step'
check sleep 2 75 "$missing"
check sleep 4 75 "$missing"
check stop 3 75 "$missing"
# Rank 1 alone makes an all_gather; Open MPI may let the wrong partners meet, but somebody waits in the end.
check other 2 75 'all ranks must make the same calls in the same order|did not enter operation'
