#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that stops in the middle of a run ends the job with 75 soon after --timeout, and the message says which; after
# a rank was killed, `vsr flight` tells where all of them stood. Both runs go on from their last checkpoint.
source "$(dirname "$0")/lib.sh"
clip="$work/clip.mp4"
small_clip "$clip"
with --total-iter 4000 --save-freq 20 --timeout 2
job=
trap '[[ -z $job ]] || kill -KILL "$job" 2>/dev/null; rm -rf "$work"' EXIT

# start OUT: three ranks in the background, until the first checkpoint is there; their processes in $ranks.
start() {
  : >"$work/output.txt"
  timeout 120 $VSR_MPIRUN -np 3 "$VSR_BIN/vsr_dist_train" --train "$clip" --out "$1" "${changed[@]}" >"$work/output.txt" 2>&1 &
  job=$!
  for ((i = 0; i < 1200; i++)); do
    [[ ! -e $1/ckpt/LATEST ]] || break
    sleep 0.05
  done
  [[ -e $1/ckpt/LATEST ]] || { cat "$work/output.txt"; fail "no checkpoint"; }
  mapfile -t ranks < <("$VSR_BIN/vsr" flight "$1" | sed -nE 's/^rank [0-9]+ on .* \(process ([0-9]+)\) .*/\1/p' | head -3)
  ((${#ranks[@]} == 3)) || fail "vsr flight told of ${#ranks[@]} ranks"
}

end() {
  rc=0
  wait "$job" || rc=$?
  job=
}

start "$work/stopped"
kill -STOP "${ranks[1]}"
end
[[ $rc == 75 ]] || { cat "$work/output.txt"; fail "a stopped rank: exit code $rc"; }
grep -qE "error: rank 0 on .* waits since [0-9.]+ s in operation [0-9]+ \(" "$work/output.txt" ||
  { cat "$work/output.txt"; fail "nobody said who waits"; }
# It may have been stopped inside a call that it had entered like the others.
grep -qE "^rank 1 on .* \(process ${ranks[1]}\) (did not enter|is stopped by a signal inside) operation" "$work/output.txt" ||
  { cat "$work/output.txt"; fail "the stopped rank is not named"; }
(($(grep -c 'error: ' "$work/output.txt") == 1)) || { cat "$work/output.txt"; fail "more than one message"; }

start "$work/killed"
kill -KILL "${ranks[2]}"
end
[[ $rc != 0 ]] || fail "mpirun did not notice the killed rank"
"$VSR_BIN/vsr" flight "$work/killed" --calls 3 >"$work/flight.txt"
grep -qE "^rank 2 on .* \(process ${ranks[2]}\) (is in|left) operation" "$work/flight.txt" ||
  { cat "$work/flight.txt"; fail "no word of the killed rank"; }
(($(grep -cE '^  operation [0-9]+ \([a-z_0-9]+ of (reduce|agree|publish|release|checkpoint), ' "$work/flight.txt") >= 6)) ||
  { cat "$work/flight.txt"; fail "the last calls are not listed with their purposes"; }

for run in stopped killed; do
  iteration=$((10#$(cut -d' ' -f1 "$work/$run/ckpt/LATEST" | tail -c +6)))
  with --total-iter $((iteration + 5)) --save-freq 0 --timeout 2
  train 2 --train "$clip" --out "$work/$run" --resume auto --allow-drift total-iter "${changed[@]}"
done

# One rank, and ranks without a time limit, leave no records.
with --total-iter 2 --timeout 0
train 2 --train "$clip" --out "$work/unwatched" "${changed[@]}"
[[ ! -e $work/unwatched/flight ]] || fail "--timeout 0 left records"
rc=0
"$VSR_BIN/vsr" flight "$work/unwatched" >"$work/output.txt" 2>&1 || rc=$?
[[ $rc == 65 ]] || { cat "$work/output.txt"; fail "vsr flight without records: $rc"; }
