#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A random rank of a run on 2 to 4 ranks gets SIGKILL or SIGSTOP at a random moment, from the first call of the start to
# the last save: all ranks end soon, a stopped rank is named and the code is 75, a killed one is told of by `vsr flight`;
# afterwards the run goes on to the masters of one that nothing happened to.
#   usage: random_signals_test.sh TIMES [SEED]
source "$(dirname "$0")/lib.sh"
times=$1
seed=${2:-$(($(date +%s) % 32768))}
echo "seed $seed"
RANDOM=$seed
export TMPDIR=$work/tmp  # the records of a start lie there
mkdir "$TMPDIR"
clip="$work/clip.mp4"
small_clip "$clip"
with --total-iter 300 --save-freq 30 --timeout 2
job=
# What a stopped rank leaves: the launcher ends it, but only with its own help.
trap '[[ -z $job ]] || kill -KILL "$job" 2>/dev/null; rm -rf "$work"' EXIT

train 2 --train "$clip" --out "$work/reference" "${changed[@]}"
expected=$(masters)

children() { cat /proc/"$1"/task/*/children 2>/dev/null; }
# The ranks of the job below process $1.
ranks_of() {
  local pid
  for pid in $(children "$1"); do
    if [[ $(cat "/proc/$pid/comm" 2>/dev/null) == vsr_dist_train ]]; then echo "$pid"; else ranks_of "$pid"; fi
  done
}

named=0
for ((i = 0; i < times; i++)); do
  ranks=$((2 + RANDOM % 3))
  signal=$( ((RANDOM % 2)) && echo KILL || echo STOP)
  delay_ms=$((RANDOM % 900))
  run="$work/run$i"
  timeout 100 $VSR_MPIRUN -np "$ranks" "$VSR_BIN/vsr_dist_train" --train "$clip" --out "$run" "${changed[@]}" \
    >"$work/output.txt" 2>&1 &
  job=$!
  # From here on somebody watches: the records of the start, or those of the run, are there.
  for ((k = 0; k < 2000; k++)); do
    ! compgen -G "$TMPDIR/vsr_dist-start-*/rank_0000$((ranks - 1)).bin" >/dev/null || break
    [[ ! -e $run/flight ]] || break
    sleep 0.005
  done
  sleep "$(printf '0.%03d' "$delay_ms")"
  mapfile -t pids < <(ranks_of "$job")
  victim=
  if ((${#pids[@]} == ranks)); then
    victim=${pids[RANDOM % ranks]}
    kill -"$signal" "$victim" 2>/dev/null || victim=
  fi
  # One that was stopped when its work was done holds up only the launcher, which waits for it: it may go on.
  waker=
  if [[ -n $victim && $signal == STOP ]]; then
    (
      until grep -q '^masters' "$work/output.txt"; do sleep 0.1; done
      sleep 4
      kill -CONT "$victim"
    ) 2>/dev/null &
    waker=$!
  fi
  rc=0
  wait "$job" || rc=$?
  job=
  [[ -z $waker ]] || kill "$waker" 2>/dev/null || true
  what="$ranks ranks, SIG$signal to ${victim:-nobody} after $delay_ms ms: code $rc"
  echo "$what"
  [[ $rc != 124 ]] || { cat "$work/output.txt"; fail "$what: it did not end"; }
  if [[ -n $victim && $rc != 0 ]]; then
    named=$((named + 1))
    if [[ $signal == STOP ]]; then
      [[ $rc == 75 ]] || { cat "$work/output.txt"; fail "$what: expected 75"; }
      # Of one that was stopped after its last call it can only be said that somebody was.
      grep -qE "for the others to end \(MPI_Finalize\)|^rank [0-9]+ on .* \(process $victim\) (did not enter|is stopped by a signal inside|is in) " "$work/output.txt" ||
        { cat "$work/output.txt"; fail "$what: the stopped rank is not named"; }
    elif [[ -e $run/flight ]]; then
      "$VSR_BIN/vsr" flight "$run" >"$work/flight.txt"
      grep -qE "\(process $victim\)" "$work/flight.txt" || { cat "$work/flight.txt"; fail "$what: no word of it"; }
    fi
  fi
  rm -rf "$TMPDIR"/vsr_dist-start-*
  train 2 --train "$clip" --out "$run" --resume auto "${changed[@]}"
  [[ $(masters) == "$expected" ]] || fail "$what: other masters after going on"
  rm -rf "$run"
done
((named * 3 >= times)) || fail "only $named of $times signals reached a run"
echo "passed: $named of $times signals ended a run"
