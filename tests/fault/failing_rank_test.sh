#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One failing rank ends the job in seconds, says why exactly once, and its exit code is the job's.
set -uo pipefail

out=$(mktemp)
trap 'rm -f "$out"' EXIT

# check MODE RANKS ASKED_CODE EXPECTED_CODE REASONS
check() {
  local mode=$1 ranks=$2 asked=$3 expected=$4 reasons=$5 code=0 found
  SECONDS=0
  timeout 30 $VSR_MPIRUN -np "$ranks" "$VSR_BIN/failing_rank" "$mode" "$asked" \
    > "$out" 2>&1 || code=$?
  found=$(grep -c 'the reason' "$out")
  if [[ $code -ne $expected || $found -ne $reasons || $SECONDS -gt 15 ]]; then
    echo "$mode on $ranks ranks: exit code $code (expected $expected), reason printed $found times" \
         "(expected $reasons), $SECONDS s"
    cat "$out"
    exit 1
  fi
  echo "$mode on $ranks ranks: exit code $code after $SECONDS s"
}

check none 2 78 0 0
check alone 2 78 78 1
check alone 4 74 74 1
check foreign 3 0 70 1
check agreed 2 65 65 1
check agreed 4 74 74 1

# What srun without a matching PMI leaves: a world of one, and variables that say otherwise.
code=0
SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 timeout 30 "$VSR_BIN/failing_rank" none 0 \
  > "$out" 2>&1 || code=$?
if [[ $code -ne 78 ]] || ! grep -q 'srun --mpi=pmix' "$out"; then
  echo "lone rank: exit code $code, expected 78 and a hint"
  cat "$out"
  exit 1
fi
echo "lone rank: refused"
