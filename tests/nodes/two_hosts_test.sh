#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The same masters whether the ranks sit on one host or on two with TCP between them, and with or without shared memory
# within each; the other reductions give the same bits for the same number of ranks wherever those are.
source "$(dirname "$0")/../e2e/lib.sh"
source "$(dirname "$0")/two_hosts.sh"
make_hosts
clip=$work/clip.mp4
small_clip "$clip"
with --total-iter 12 --save-freq 6
expected=

# expect WHAT: the run ended well with the masters of the first one.
expect() {
  local hash
  hash=$(masters)
  echo "$1: $hash"
  expected=${expected:-$hash}
  [[ $hash == "$expected" ]] || fail "masters $1: $hash, expected $expected"
}

# on_two_hosts A B NAME ARGUMENTS…
on_two_hosts() {
  local first=$1 second=$2 name=$3
  shift 3
  rc=0
  hosts_mpirun "$first" "$second" timeout 120 "$VSR_BIN/vsr_dist_train" --train "$clip" --out "$work/$name" "$@" \
    >"$work/output.txt" 2>&1 || rc=$?
  # mpirun gives remote ranks a terminal, so they draw a bar; a line begins behind it.
  sed -i $'s/.*\e\\[K//' "$work/output.txt"
  [[ $rc == 0 ]] || { cat "$work/output.txt"; fail "$name on two hosts: exit code $rc"; }
  grep -q "$((first + second)) ranks on 2 nodes" "$work/output.txt" ||
    { cat "$work/output.txt"; fail "$name: the ranks do not see two nodes"; }
}

train 1 --train "$clip" --out "$work/one" "${changed[@]}"
expect "on 1 rank"
for ranks in "1 1" "2 1" "2 2" "4 4"; do
  read -r first second <<<"$ranks"
  on_two_hosts "$first" "$second" "exact_${first}_$second" "${changed[@]}"
  expect "on $first + $second ranks"
done
VSR_COMM_SHARED=0 on_two_hosts 2 2 messages "${changed[@]}"
expect "on 2 + 2 ranks, messages within the hosts too"
on_two_hosts 2 2 overlap --overlap on --bucket-mib 1 "${changed[@]}"
expect "on 2 + 2 ranks, gradients leave early"

for reduction in allreduce fast; do
  expected=
  train 3 --train "$clip" --out "$work/$reduction" --reduction "$reduction" "${changed[@]}"
  expect "$reduction on 3 ranks"
  on_two_hosts 2 1 "${reduction}_again" --reduction "$reduction" "${changed[@]}"
  expect "$reduction on 2 + 1 ranks"
done
