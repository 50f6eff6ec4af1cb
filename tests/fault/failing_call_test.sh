#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# MPI fails on one rank in every N-th of the calls of a small run, from making the optimizer to loading a checkpoint: each
# time all ranks end soon with 75 and one message, which names the rank and the call.
#   usage: failing_call_test.sh STEP   (1: every call)
source "$(dirname "$0")/../e2e/lib.sh"
ranks=3

run() {
  rc=0
  rm -rf "$work/run"
  timeout 30 $VSR_MPIRUN -np $ranks "$VSR_BIN/failing_call" "$1" "$work/run" >"$work/output.txt" 2>&1 || rc=$?
}

run 0
[[ $rc == 0 ]] || { cat "$work/output.txt"; fail "without a fault: exit code $rc"; }
calls=$(sed -n 's/ calls$//p' "$work/output.txt")
((calls > 60)) || fail "only $calls calls"
tried=0
for ((n = 1; n <= calls; n += $1)); do
  run "$n"
  [[ $rc == 75 ]] || { cat "$work/output.txt"; fail "call $n: exit code $rc"; }
  grep -qE "^failing_call: rank 2 \(.*\): error: rank 2/3 on .*: MPI_[A-Za-z]+ failed: injected" "$work/output.txt" ||
    { cat "$work/output.txt"; fail "call $n: the rank is not named"; }
  (($(grep -c 'error: ' "$work/output.txt") == 1)) || { cat "$work/output.txt"; fail "call $n: more than one message"; }
  tried=$((tried + 1))
done
echo "passed: $tried of $calls calls failed on rank 2"
