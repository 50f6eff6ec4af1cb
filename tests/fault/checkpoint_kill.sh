#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ends a rank by SIGKILL at random times while the ranks save one checkpoint after the other, then
# asks for the newest checkpoint that loads: it must be one the ranks reported, or the one after it.
# Usage: checkpoint_kill.sh [ROUNDS]   VSR_SEED=N repeats a run.
set -u -o pipefail
rounds=${1:-20}
seed=${VSR_SEED:-$(date +%s)}
RANDOM=$seed
echo "seed $seed (repeat with VSR_SEED=$seed)"
run=$(mktemp -d)
mpirun=
trap '[ -n "$mpirun" ] && kill -TERM $mpirun 2>/dev/null && wait $mpirun; rm -rf "$run"' EXIT
trap 'exit 1' TERM INT
reported=0
killed=0
for ((round = 1; round <= rounds; round++)); do
  ranks=$((2 + RANDOM % 3))
  out=$run/output_$round.txt
  $VSR_MPIRUN -np $ranks "$VSR_BIN/checkpoint_saver" "$run/run" 100000 >"$out" 2>&1 &
  mpirun=$!
  for ((i = 0; i < 600; i++)); do
    grep -qs '^from ' "$out" && break
    kill -0 $mpirun 2>/dev/null || break
    sleep 0.05
  done
  if ! grep -q '^from ' "$out"; then
    echo "round $round: did not start"
    cat "$out"
    exit 1
  fi
  sleep "0.$(printf %03d $((RANDOM % 700)))"
  pids=()
  for pid in $(cat /proc/$mpirun/task/*/children); do
    [ "$(readlink "/proc/$pid/exe")" = "$(readlink -f "$VSR_BIN/checkpoint_saver")" ] && pids+=("$pid")
  done
  if ((${#pids[@]} == 0)); then echo "round $round: no ranks"; cat "$out"; exit 1; fi
  kill -KILL "${pids[RANDOM % ${#pids[@]}]}" && killed=$((killed + 1))
  wait $mpirun && { echo "round $round: mpirun did not notice"; exit 1; }
  mpirun=
  # From a file: mpirun may lose the last lines of a rank that dies.
  last=$(tail -qn 1 "$run/run/saved.txt" 2>/dev/null)
  ((${last:-0} > reported)) && reported=$last
  ((reported == 0)) && [ ! -e "$run/run/ckpt/LATEST" ] && continue
  newest=$("$VSR_BIN/checkpoint_saver" --check "$run/run") || { echo "round $round: $newest"; exit 1; }
  if ((newest < reported || newest > reported + 1)); then
    echo "round $round: loads $newest, but $reported was reported saved"
    exit 1
  fi
  reported=$newest
done
echo "$killed of $rounds rounds ended by SIGKILL; $reported saves; the newest always loaded"
((killed == rounds && reported > 0))
