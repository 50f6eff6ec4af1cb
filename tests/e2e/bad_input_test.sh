#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Bad input: one clear message, the documented exit code, nothing lost.
source "$(dirname "$0")/lib.sh"
clip=$work/clip.mp4
small_clip "$clip"

# expect CODE TEXT OUT ARGUMENTS…: on 2 ranks, exit code CODE, exactly one message of error, holding TEXT
# (an extended regular expression); the folder OUT, where given, must not appear.
expect() {
  local code=$1 text=$2 out=$3
  shift 3
  run_ranks 2 "$@"
  [[ $rc == "$code" ]] || { cat "$work/output.txt"; fail "exit code $rc, expected $code: $*"; }
  local lines
  lines=$(grep -c 'error: ' "$work/output.txt") || true
  [[ $lines == 1 ]] || { cat "$work/output.txt"; fail "$lines messages of error, expected 1: $*"; }
  sed -n '/error: /,$p' "$work/output.txt" >"$work/message.txt"
  grep -qE "$text" "$work/message.txt" || { cat "$work/output.txt"; fail "no «$text»: $*"; }
  [[ -z $out || ! -e $out ]] || fail "$out was created: $*"
  printf 'ok %s: %s\n' "$code" "$(grep -E 'error: ' "$work/output.txt" | head -n 1)"
}
run=("${small_run[@]}")
new=$work/new

expect 64 "did you mean --gt-size" "$new" --train "$clip" --out "$new" --gt-sise 32
expect 64 "train" "$new" --out "$new" "${run[@]}"
expect 65 "missing.mp4" "$new" --train "$work/missing.mp4" --out "$new" "${run[@]}"
echo "this is no video" >"$work/text.mp4"
expect 65 "text.mp4" "$new" --train "$work/text.mp4" --out "$new" "${run[@]}"
"$VSR_BIN/vsr" testclip "$work/short.mp4" --frames 2 --height 96 --width 128 >/dev/null
expect 65 "short.mp4.*2 frames" "$new" --train "$work/short.mp4" --out "$new" "${run[@]}"
with --gt-size 200
expect 65 "clip.mp4.*largest --gt-size" "$new" --train "$clip" --out "$new" "${changed[@]}"
mkdir "$work/empty"
expect 65 "empty" "$new" --train "$work/empty" --out "$new" "${run[@]}"

# An output folder that cannot be made: a file stands in the way (root may write everywhere else).
touch "$work/file"
expect 74 "file" "" --train "$clip" --out "$work/file/run" "${run[@]}"
# A full one.
if [[ $(id -u) == 0 ]] && mkdir "$work/full" && mount -t tmpfs -o size=64k tmpfs "$work/full" 2>/dev/null; then
  trap 'umount "$work/full"; rm -rf "$work"' EXIT
  head -c 60k /dev/zero >"$work/full/filler" 2>/dev/null || true
  expect 74 "space" "" --train "$clip" --out "$work/full/run" "${run[@]}"
else
  echo "skipped: a full output folder (no right to mount a small file system here)"
fi

# An option that the network does not have.
expect 78 "model espcn with --blocks 1: expected none" "$new" --train "$clip" --out "$new" "${run[@]}" --model espcn
expect 78 "model espcn with --num-frame 3: expected 1" "$new" --train "$clip" --out "$new" --model espcn --num-frame 3
expect 78 "model vespcn with --channels 1: expected from 2" "$new" --train "$clip" --out "$new" --channels 1

# An option of another curve than the chosen one.
expect 78 "gamma.*expected only with multistep" "$new" --train "$clip" --out "$new" "${run[@]}" --gamma 0.5

# An option of another optimizer.
expect 78 "betas 0.9 0.99 with --optimizer sgd: expected only with" "$new" --train "$clip" --out "$new" "${run[@]}" --optimizer sgd --betas 0.9 0.99
expect 78 "nesterov with --optimizer adam: expected only with sgd" "$new" --train "$clip" --out "$new" "${run[@]}" --nesterov
expect 64 "ema-decay: got .1., expected 0, or a number" "$new" --train "$clip" --out "$new" "${run[@]}" --ema-decay 1

# A folder that holds a run.
train 1 --train "$clip" --out "$work/run" "${run[@]}"
before=$(find "$work/run" -type f -exec md5sum {} + | sort)
expect 78 "run.*--resume" "" --train "$clip" --out "$work/run" "${run[@]}"
# A checkpoint of another network, and other options.
with --channels 12
expect 78 "another network" "" --train "$clip" --out "$work/run" --resume auto "${changed[@]}"
with --batch 2
expect 78 "other options" "" --train "$clip" --out "$work/run" --resume auto "${changed[@]}"
with --scheduler multistep --milestones 20
expect 78 'scheduler: the run has "cosine", now "multistep"' "" --train "$clip" --out "$work/run" --resume auto "${changed[@]}"
with --loss-scaler apex
expect 78 'loss-scaler: the run has "vsr", now "apex"' "" --train "$clip" --out "$work/run" --resume auto "${changed[@]}"
with --optimizer sgd
expect 78 'optimizer: the run has "adam", now "sgd"' "" --train "$clip" --out "$work/run" --resume auto "${changed[@]}"
with --ema-decay 0.9
expect 78 'ema-decay: the run has 0.0, now 0.9' "" --train "$clip" --out "$work/run" --resume auto "${changed[@]}"
[[ $(find "$work/run" -type f -exec md5sum {} + | sort) == "$before" ]] || fail "a refused start changed files"
# Other clips under the same name.
mkdir "$work/other"
"$VSR_BIN/vsr" testclip "$work/other/clip.mp4" --seed 2 --frames 40 --height 96 --width 128 >/dev/null
expect 78 "training clips: the run has" "" --train "$work/other/clip.mp4" --out "$work/run" --resume auto "${run[@]}"
expect 65 "given twice" "$new" --train "$clip" "$work/./clip.mp4" --out "$new" "${run[@]}"
# A resume that fails leaves no run behind: the corrected command works, from any name of the checkpoints.
expect 65 "nowhere" "$work/copy" --train "$clip" --out "$work/copy" --resume "$work/nowhere" "${run[@]}"
with --leaves 2
train 2 --train "$clip" --out "$work/copy" --resume "$work/run/ckpt" "${changed[@]}"
grep -q "has 4 leaves per step" "$work/output.txt" || { cat "$work/output.txt"; fail "saved leaves were not taken"; }
# Nothing to resume where there must be something.
expect 65 "checkpoint" "$new" --train "$clip" --out "$new" --resume must "${run[@]}"

# A run continued from another one keeps what it started from, so that --resume auto goes on from there.
[[ -e $work/copy/ckpt/step_00000040/MANIFEST.json ]] || fail "the start of a continued run was not kept"

# A folder of videos and pictures is neither.
mkdir "$work/mixed"
cp "$clip" "$work/mixed/"
cp "$(find "$work/run/val" -name '*.png' | head -n 1)" "$work/mixed/cover.png"
expect 65 "mixed.*pictures" "$new" --train "$work/mixed" --out "$new" "${run[@]}"

# A validation that fails costs a warning; what was trained is saved.
"$VSR_BIN/vsr" testclip "$work/held.mp4" --seed 3 --frames 30 --height 96 --width 128 >/dev/null
middle=$(($(stat -c %s "$work/held.mp4") / 2))
dd if=/dev/zero of="$work/held.mp4" bs=1 seek="$middle" count=300 conv=notrunc status=none
train 2 --train "$clip" --val "held=$work/held.mp4" --out "$work/validated" "${run[@]}"
if grep -q "validation of iteration 40 failed" "$work/output.txt"; then
  [[ -e $work/validated/ckpt/step_00000040/MANIFEST.json ]] || fail "a failed validation lost the run"
else
  cat "$work/output.txt"
  fail "the damaged clip was not noticed"
fi
# The same in the middle of a run that validates on averages: training goes on from the masters.
trained=$(masters)
with --ema-decay 0.9 --val-freq 10
train 2 --train "$clip" --val "held=$work/held.mp4" --out "$work/averages" "${changed[@]}"
grep -q "validation of iteration 10 failed" "$work/output.txt" && [[ $(masters) == "$trained" ]] ||
  { cat "$work/output.txt"; fail "a failed validation on averages changed the run"; }

# Runs that end before the loss scaler gives up on them, and are no success.
expect_diverged() {
  rm -rf "$work/diverged"
  expect 86 "$1" "" --train "$clip" --out "$work/diverged" "${@:2}"
}
with --lr 1e30
expect_diverged "the loss is -?(nan|inf), 39 steps up to iteration 40 .*--clip-grad" "${changed[@]}" --precision fp32
with --lr 1e30 --total-iter 5
expect_diverged "the loss is -?(nan|inf), 4 steps up to iteration 5 " "${changed[@]}"
with --lr 1e38 --total-iter 1
expect_diverged "iteration 1 the weights are no finite numbers" "${changed[@]}" --precision fp32 --optimizer sgd --weight-decay 1e10

# A truncated checkpoint: the newest is set aside and the one before taken; only bad ones: 65.
shard=$(ls "$work"/run/ckpt/step_00000040/shard_*.h5)
truncate -s -1000 "$shard"
train 1 --train "$clip" --out "$work/run" --resume auto "${run[@]}"
grep -q "step_00000040.*corrupt\|corrupt.*step_00000040\|set aside" "$work/output.txt" || { cat "$work/output.txt"; fail "no word of the bad checkpoint"; }
grep -q "iteration 30" "$work/output.txt" || { cat "$work/output.txt"; fail "did not fall back to iteration 30"; }
for shard in "$work"/run/ckpt/step_*/shard_*.h5; do truncate -s 100 "$shard"; done
expect 65 "step_000000" "" --train "$clip" --out "$work/run" --resume auto "${run[@]}"
