#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One run, one result: the masters after 40 iterations are the same bits on 1, 2, 3 and 4 ranks, and when
# the run was killed after iteration 20 and resumed on another number of ranks.
# usage: masters_test.sh PRECISION
source "$(dirname "$0")/lib.sh"
precision=$1
clip=$work/clip.mp4
small_clip "$clip"

expected=
for ranks in 1 2 3 4; do
  train "$ranks" --train "$clip" --out "$work/run$ranks" --precision "$precision" "${small_run[@]}"
  hash=$(masters)
  printf '%s on %s ranks: %s\n' "$precision" "$ranks" "$hash"
  [[ -n $expected ]] || expected=$hash
  [[ $hash == "$expected" ]] || fail "masters on $ranks ranks: $hash, on 1 rank: $expected"
done

# kill_after_20 RANKS FOLDER: start a run and kill one of its ranks once the checkpoint of iteration 20 is
# there. Returns 1 when the run was over before that.
kill_after_20() {
  local ranks=$1 out=$2 victim code=0
  rm -rf "$out"
  timeout 300 $VSR_MPIRUN -np "$ranks" "$VSR_BIN/vsr_dist_train" --train "$clip" --out "$out" \
    --precision "$precision" "${small_run[@]}" >"$work/killed.txt" 2>&1 &
  local job=$!
  until [[ -e $out/ckpt/step_00000020/MANIFEST.json ]]; do
    kill -0 "$job" 2>/dev/null || { cat "$work/killed.txt"; fail "the run ended before iteration 20"; }
    sleep 0.005
  done
  victim=$(grep -oE 'pid[": =]+[0-9]+' "$out/LOCK" | grep -oE '[0-9]+') || true
  [[ -z $victim ]] || kill -KILL "$victim" 2>/dev/null || true
  wait "$job" || code=$?
  [[ ! -e $out/ckpt/step_00000040 ]] || return 1
  [[ $code == 137 ]] || { cat "$work/killed.txt"; fail "mpirun returned $code, expected 137 for a killed rank"; }
}

for pair in "2 3" "4 1" "1 2"; do
  read -r before after <<<"$pair"
  out=$work/killed_$before
  for attempt in 1 2 3 4 5 over; do
    [[ $attempt != over ]] || fail "five runs were over before one of their ranks was killed"
    if kill_after_20 "$before" "$out"; then break; fi
  done
  train "$after" --train "$clip" --out "$out" --precision "$precision" --resume auto "${small_run[@]}"
  grep -q "resumed .*iteration [23]0" "$work/output.txt" || { cat "$work/output.txt"; fail "did not resume"; }
  hash=$(masters)
  printf '%s killed on %s ranks, resumed on %s: %s\n' "$precision" "$before" "$after" "$hash"
  [[ $hash == "$expected" ]] || fail "masters after kill and resume: $hash, uninterrupted: $expected"
done
