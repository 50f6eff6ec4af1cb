#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One run, one result: masters and averages after 40 iterations are the same bits on any number of ranks, and
# when the run was killed after iteration 20 and resumed on another number of ranks.
# usage: masters_test.sh PRECISION "RANKS…" "BEFORE:AFTER…" [OPTIONS…]
#   RANKS are those of uninterrupted runs, BEFORE and AFTER those of runs killed and resumed; OPTIONS go to
#   vsr_dist_train.
source "$(dirname "$0")/lib.sh"
precision=$1
read -ra all_ranks <<<"$2"
read -ra pairs <<<"$3"
options=("${small_run[@]}" --precision "$precision" "${@:4}")
clip=$work/clip.mp4
small_clip "$clip"
[[ " ${options[*]} " != *" --ema-decay "* ]] || command -v h5dump >/dev/null || { echo "skipped: no h5dump"; exit 77; }

# averages FOLDER: the values of the moving average at the end, every digit of them; nothing where there is none.
averages() {
  local file=$1/ckpt/step_00000040/global.h5
  [[ " ${options[*]} " == *" --ema-decay "* ]] || return 0
  # The first line names the file, which differs.
  h5dump -m '%.9g' -g /ema "$file" | tail -n +2
}

# same_as_before FOLDER WHAT: the masters and averages of the last run are those of the first.
expected=
same_as_before() {
  local hash
  hash=$(masters)
  printf '%s %s: %s\n' "$precision" "$2" "$hash"
  averages "$1" >"$work/averages.txt"
  if [[ -z $expected ]]; then
    expected=$hash
    mv "$work/averages.txt" "$work/expected.txt"
    return
  fi
  [[ $hash == "$expected" ]] || fail "masters $2: $hash, expected $expected"
  cmp "$work/averages.txt" "$work/expected.txt" || fail "other averages $2"
}

for ranks in "${all_ranks[@]}"; do
  train "$ranks" --train "$clip" --out "$work/run$ranks" "${options[@]}"
  same_as_before "$work/run$ranks" "on $ranks ranks"
done
if [[ " ${options[*]} " == *" --ema-decay "* ]]; then
  (($(wc -l <"$work/expected.txt") > 100)) && ! grep -qi nan "$work/expected.txt" || { cat "$work/expected.txt"; fail "the averages are not there"; }
fi

# kill_after_20 RANKS FOLDER: start a run and kill one of its ranks once the checkpoint of iteration 20 is
# there. Returns 1 when the run was over before that.
kill_after_20() {
  local ranks=$1 out=$2 victim code=0
  rm -rf "$out"
  timeout 300 $VSR_MPIRUN -np "$ranks" "$VSR_BIN/vsr_dist_train" --train "$clip" --out "$out" \
    "${options[@]}" >"$work/killed.txt" 2>&1 &
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

for pair in "${pairs[@]}"; do
  before=${pair%:*} after=${pair#*:}
  out=$work/killed_$before
  for attempt in 1 2 3 4 5 over; do
    [[ $attempt != over ]] || fail "five runs were over before one of their ranks was killed"
    if kill_after_20 "$before" "$out"; then break; fi
  done
  train "$after" --train "$clip" --out "$out" --resume auto "${options[@]}"
  grep -q "resumed .*iteration [23]0" "$work/output.txt" || { cat "$work/output.txt"; fail "did not resume"; }
  same_as_before "$out" "killed on $before ranks, resumed on $after"
done
