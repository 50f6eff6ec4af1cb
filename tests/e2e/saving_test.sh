#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# When checkpoints are written, which stay, and what may change at a resume.
source "$(dirname "$0")/lib.sh"
clip="$work/clip.mp4"
small_clip "$clip"

checkpoints() { (cd "$1/ckpt" && echo step_*); }
expect_output() { grep -qF -- "$1" "$work/output.txt" || { cat "$work/output.txt"; fail "no \"$1\""; }; }

# Every 20th stays beside the newest; waiting for the disk changes nothing but time.
with --save-freq 5
train 2 --train "$clip" --out "$work/kept" "${changed[@]}" --keep 1 --keep-every 20
[[ $(checkpoints "$work/kept") == "step_00000020 step_00000040" ]] || fail "kept $(checkpoints "$work/kept")"
hash=$(masters)
train 2 --train "$clip" --out "$work/sync" "${changed[@]}" --sync-save
[[ $(masters) == "$hash" ]] || fail "--sync-save gave other masters"
grep -q '"stall_ms"' "$work/sync/metrics.jsonl" || fail "metrics.jsonl has no stall_ms"

# A validation that improves is saved, and ckpt/best names it.
with --save-freq 0 --val-freq 10
train 2 --train "$clip" --out "$work/best" "${changed[@]}" --keep 1 --keep-best
read -r best _ <"$work/best/ckpt/best"
[[ -d $work/best/ckpt/$best ]] || fail "ckpt/best names $best, there are $(checkpoints "$work/best")"

# By the clock: 6 ms.
with --save-freq 0
train 2 --train "$clip" --out "$work/clock" "${changed[@]}" --save-minutes 0.0001 --keep 100
[[ $(checkpoints "$work/clock" | wc -w) -ge 3 ]] || fail "by the clock only $(checkpoints "$work/clock")"
[[ $(masters) == "$hash" ]] || fail "saves by the clock gave other masters"

# Another rate is refused, unless it is named.
with --total-iter 44 --lr 5e-4
run_ranks 2 --train "$clip" --out "$work/kept" --resume auto "${changed[@]}"
[[ $rc == 78 ]] || fail "another rate: exit code $rc"
expect_output "--allow-drift with the name of each"
run_ranks 2 --train "$clip" --out "$work/kept" --resume auto "${changed[@]}" --allow-drift rate
[[ $rc == 78 ]] || fail "an unknown key: exit code $rc"
train 2 --train "$clip" --out "$work/kept" --resume auto "${changed[@]}" --allow-drift lr total-iter
expect_output "this run goes on changed: --lr: the run has 0.001, now 0.0005"
grep -q '^lr = 5e-4\|^lr = 0.0005' "$work/kept/config.ini" || fail "config.ini has the rate of before"

# The disk fails once on each rank, in the background: warnings, and the next save succeeds.
with --save-freq 5
for fault in fsync:7:ENOSPC write:9:EIO rename:3:EIO; do
  export VSR_FAULT=$fault
  train 2 --train "$clip" --out "$work/faulty" "${changed[@]}"
  unset VSR_FAULT
  expect_output "failed, training goes on"
  [[ $(checkpoints "$work/faulty") == *step_00000040 ]] || fail "$fault: no final checkpoint: $(checkpoints "$work/faulty")"
  [[ $(masters) == "$hash" ]] || fail "$fault: a failing save changed the masters"
  rm -r "$work/faulty"
done

# A slow disk: the last save is heard of while it is waited for.
with --total-iter 4 --save-freq 0
export VSR_FAULT=write:1:slow
train 2 --train "$clip" --out "$work/slow" "${changed[@]}"
unset VSR_FAULT
grep -qE 'checkpoint of iteration 4: .* of .* written on rank 0 after [0-9]+ s' "$work/output.txt" ||
  { cat "$work/output.txt"; fail "nothing was said of a slow save"; }
