#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A disk that fails in the middle of a run: full, over quota, or its folder turned read-only. The run goes on with
# warnings; where the fault clears it ends as if nothing had been, where it stays it ends with 74, names the newest
# checkpoint that holds, and goes on from there later.
source "$(dirname "$0")/lib.sh"
clip="$work/clip.mp4"
small_clip "$clip"
with --total-iter 800 --save-freq 40
disk="$work/disk"
mkdir "$disk"
job=

clean_up() {
  [[ -z $job ]] || kill "$job" 2>/dev/null || true
  umount "$disk" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

children() { cat /proc/"$1"/task/*/children 2>/dev/null; }

rank_pids() {
  local pid
  for pid in $(children "$job"); do
    [[ $(cat "/proc/$pid/comm") != vsr_dist_train ]] || echo "$pid"
  done
}

wait_for() { # wait_for WHAT COMMAND…
  local what=$1 i
  shift
  for ((i = 0; i < 1200; i++)); do
    ! "$@" 2>/dev/null || return 0
    kill -0 "$job" 2>/dev/null || { cat "$work/output.txt"; fail "the run ended before $what"; }
    sleep 0.05
  done
  cat "$work/output.txt"
  fail "waited in vain for $what"
}

warned() { grep -q 'failed, training goes on' "$work/output.txt"; }

# start OUT: the run in the background, until its first checkpoint is there. Root obeys file modes here.
start() {
  local -a as=()
  [[ $(id -u) != 0 ]] || as=(setpriv --bounding-set -dac_override)
  : >"$work/output.txt"
  timeout 120 "${as[@]}" $VSR_MPIRUN -np 2 "$VSR_BIN/vsr_dist_train" --train "$clip" --out "$1" "${changed[@]}" \
    >"$work/output.txt" 2>&1 &
  local outer=$!
  job=$outer
  wait_for "the first checkpoint" test -e "$1/ckpt/LATEST"
  job=$(children "$outer" | tr -d ' ')
}

end() {
  rc=0
  wait %% || rc=$?
  job=
}

full() { head -c 64M /dev/zero >"$disk/filler" 2>/dev/null || true; }
no_longer_full() { rm "$disk/filler"; }
over_quota() { for pid in $(rank_pids); do prlimit --fsize=4096: --pid "$pid"; done; }
no_longer_over_quota() { for pid in $(rank_pids); do prlimit --fsize=unlimited: --pid "$pid"; done; }
read_only() { chmod 555 "$disk/run/ckpt"; }
no_longer_read_only() { chmod 755 "$disk/run/ckpt"; }

run_ranks 2 --train "$clip" --out "$work/reference" "${changed[@]}"
[[ $rc == 0 ]] || { cat "$work/output.txt"; fail "the run without faults: exit code $rc"; }
hash=$(masters)

faults=(over_quota read_only)
if [[ $(id -u) == 0 ]] && mount -t tmpfs -o size=16m tmpfs "$disk" 2>/dev/null; then
  faults+=(full)
else
  echo "skipped: a full disk (no right to mount a small file system here)"
fi

for fault in "${faults[@]}"; do
  rm -rf "${disk:?}/run"
  start "$disk/run"
  "$fault"
  wait_for "a warning ($fault)" warned
  "no_longer_$fault"
  end
  [[ $rc == 0 ]] || { cat "$work/output.txt"; fail "$fault that clears: exit code $rc"; }
  [[ $(masters) == "$hash" ]] || fail "$fault that clears changed the masters"
  [[ $(cut -d' ' -f1 "$disk/run/ckpt/LATEST") == step_00000800 ]] || fail "$fault that clears: no final checkpoint"
  [[ -z $(find "$disk/run/ckpt" -name '.*') ]] || fail "$fault left $(find "$disk/run/ckpt" -name '.*')"

  rm -rf "${disk:?}/run"
  start "$disk/run"
  "$fault"
  end
  newest=$(cut -d' ' -f1 "$disk/run/ckpt/LATEST")
  [[ $rc == 74 ]] || { cat "$work/output.txt"; fail "$fault that stays: exit code $rc"; }
  grep -qF "newest valid checkpoint: $disk/run/ckpt/$newest" "$work/output.txt" ||
    { cat "$work/output.txt"; fail "$fault: the newest checkpoint is not named"; }
  [[ $fault == over_quota ]] || "no_longer_$fault"
  "$VSR_BIN/vsr" checkpoint verify "$disk/run" --all >/dev/null || fail "$fault: a checkpoint does not hold ($newest)"
  train 2 --train "$clip" --out "$disk/run" --resume auto "${changed[@]}"
  [[ $(masters) == "$hash" ]] || fail "$fault: other masters after the resume"
done
echo "passed: ${faults[*]}"
