#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A long run that is killed, stopped and told to save at random moments, each time going on with another
# number of ranks: it ends with the masters of a run that nobody disturbed, and its memory does not grow.
# usage: soak_test.sh [DISTURBANCES]   VSR_SEED=N repeats a run
source "$(dirname "$0")/lib.sh"
disturbances=${1:-40}
seed=${VSR_SEED:-$(date +%s)}
RANDOM=$seed
echo "seed $seed (repeat with VSR_SEED=$seed)"
clip=$work/clip.mp4
small_clip "$clip"
with --total-iter 60000 --save-freq 500 --print-freq 5000
run=(--train "$clip" --out "$work/run" "${changed[@]}")

# pid_of RUN: the process of rank 0, or nothing.
pid_of() {
  grep -oE 'pid[": =]+[0-9]+' "$1/LOCK" 2>/dev/null | grep -oE '[0-9]+' || true
}

# resident_kib PID: memory of a process, or nothing when it is gone.
resident_kib() {
  awk '/^VmRSS/ { print $2 }' "/proc/${1:-none}/status" 2>/dev/null || true
}

# The undisturbed run; its memory after the first tenth and at its end.
timeout 900 $VSR_MPIRUN -np 2 "$VSR_BIN/vsr_dist_train" --train "$clip" --out "$work/quiet" "${changed[@]}" >"$work/output.txt" 2>&1 &
job=$!
early=
late=
while kill -0 "$job" 2>/dev/null; do
  now=$(resident_kib "$(pid_of "$work/quiet")")
  [[ -z $now ]] || late=$now
  if [[ -z $early && -n $now ]] && grep -q "iter 5000/" "$work/output.txt"; then early=$now; fi
  sleep 0.1
done
wait "$job" || { cat "$work/output.txt"; fail "the undisturbed run did not end well"; }
expected=$(masters)
[[ -n $early ]] || fail "the memory of the run was never seen"
printf 'undisturbed: masters %s, resident %s KiB after a tenth, %s KiB at the end\n' "$expected" "$early" "$late"
((late < early + 20000)) || fail "memory grew from $early to $late KiB"

resume=never
for ((i = 1; i <= disturbances; ++i)); do
  ranks=$((RANDOM % 4 + 1))
  kinds=(KILL KILL USR1 USR2 TERM)
  kind=${kinds[RANDOM % 5]}
  timeout 600 $VSR_MPIRUN -np "$ranks" "$VSR_BIN/vsr_dist_train" --resume "$resume" "${run[@]}" >"$work/output.txt" 2>&1 &
  job=$!
  sleep "$((RANDOM % 3 + 1)).$((RANDOM % 10))"
  pid=$(pid_of "$work/run")
  [[ -z $pid ]] || kill -"$kind" "$pid" 2>/dev/null || true
  if [[ $kind == USR2 ]]; then
    sleep 1
    kill -KILL "$pid" 2>/dev/null || true
  fi
  code=0
  wait "$job" || code=$?
  case $code in
    0 | 85 | 137 | 143 | 138 | 1) ;;
    *) cat "$work/output.txt"; fail "disturbance $i ($kind on $ranks ranks): exit code $code" ;;
  esac
  ! ls "$work/run/ckpt" 2>/dev/null | grep -q corrupt || { cat "$work/output.txt"; fail "a checkpoint was found damaged after $kind"; }
  # Before the first checkpoint there is nothing to go on from, and the folder counts as a run from the first log on.
  resume=auto
  [[ -e $work/run/ckpt/LATEST || -e $work/run/train.log ]] || resume=never
  if [[ $code == 0 ]]; then break; fi
done
printf 'disturbed %s times\n' "$((i > disturbances ? disturbances : i))"

train 2 --resume auto "${run[@]}"
hash=$(masters)
printf 'masters %s\n' "$hash"
[[ $hash == "$expected" ]] || fail "masters differ from those of the undisturbed run"
