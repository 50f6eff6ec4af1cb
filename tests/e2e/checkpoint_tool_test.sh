#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `vsr checkpoint` on the checkpoints of real runs.
source "$(dirname "$0")/lib.sh"
clip=$work/clip.mp4
small_clip "$clip"
with --total-iter 20 --ema-decay 0.9
for ranks in 2 3; do train "$ranks" --train "$clip" --out "$work/run$ranks" "${changed[@]}"; done
newest=ckpt/step_00000020

# tool CODE TEXT ARGUMENTS…: exit code CODE, and TEXT (an extended regular expression) in what it prints.
tool() {
  local code=$1 text=$2 got=0
  shift 2
  timeout 60 "$VSR_BIN/vsr" checkpoint "$@" >"$work/output.txt" 2>&1 || got=$?
  [[ $got == "$code" ]] || { cat "$work/output.txt"; fail "exit code $got, expected $code: $*"; }
  grep -qE "$text" "$work/output.txt" || { cat "$work/output.txt"; fail "no «$text»: $*"; }
  printf 'ok %s: %s\n' "$code" "$1"
}

tool 0 "vsr checkpoint reshard PATH OUT" --help
tool 0 "^iteration: 20" show "$work/run2"
tool 0 "applied_steps: 20" show "$work/run2/$newest"
tool 0 '"ranks": 2' show "$work/run2" --json
tool 0 "step_00000010: every byte is as it was written" verify "$work/run2" --all

# The same run on other ranks is equal; another iteration is not.
tool 0 "^equal" diff "$work/run2" "$work/run3"
tool 1 "master fusion.bias: .* values differ, at most by" diff "$work/run2/ckpt/step_00000010" "$work/run2"

# Cut for three ranks it is, to the last byte, what the run on three ranks wrote.
tool 0 "cut for 3 ranks" reshard "$work/run2" "$work/cut" --ranks 3
diff -r "$work/cut" "$work/run3/$newest" || fail "resharded from 2 to 3 ranks is not what 3 ranks write"
tool 78 "exists already" reshard "$work/run2" "$work/cut" --ranks 3
tool 64 "ranks: got .0." reshard "$work/run2" "$work/other" --ranks 0

# Weights out and in again; a run starts from them.
tool 0 "weights: masters" export "$work/run2" "$work/w.safetensors"
tool 0 "weights: ema" export "$work/run2" "$work/w.h5" --weights ema --dtype fp16
tool 64 "expected .safetensors or .h5" export "$work/run2" "$work/w.onnx"
tool 0 "8 parameters of .* written to .*step_00000000" import "$work/w.safetensors" "$work/new" --like "$work/run3"
tool 1 "state.applied_steps: 0, in the other 20" diff "$work/new" "$work/run2"
grep -q "  master: 8 of 8 parameters have the same bits" "$work/output.txt" || { cat "$work/output.txt"; fail "other masters"; }
train 2 --train "$clip" --out "$work/new" --resume auto "${changed[@]}"
grep -q "resumed .*iteration 0" "$work/output.txt" || { cat "$work/output.txt"; fail "did not start from the import"; }
tool 78 "holds checkpoints already" import "$work/w.safetensors" "$work/new" --like "$work/run3"
head -c 1000 "$work/w.safetensors" >"$work/cut.safetensors"
tool 65 "cut.safetensors" import "$work/cut.safetensors" "$work/none" --like "$work/run3"
[[ ! -e $work/none ]] || fail "a refused import left a folder"

# Deleting: never more than was said; LATEST names what is left.
before=$(ls "$work/new/ckpt")
tool 0 "would delete .*step_00000010" prune "$work/new" --keep 1 --dry-run
[[ $(ls "$work/new/ckpt") == "$before" ]] || fail "a dry run deleted something"
tool 0 "kept .*step_00000020 \(newest\)" prune "$work/new" --keep 1
[[ $(ls "$work/new/ckpt") == $'LATEST\nstep_00000020' ]] || fail "prune left $(ls "$work/new/ckpt")"

cp -r "$work/run3" "$work/damaged"
truncate -s 100 "$work/damaged/$newest/global.h5"
tool 0 "deleted .*step_00000020 \(damaged" prune "$work/damaged" --keep 1
[[ $(cut -d' ' -f1 "$work/damaged/ckpt/LATEST") == step_00000010 ]] || fail "LATEST: $(cat "$work/damaged/ckpt/LATEST")"

# A flipped bit is found and located.
shard=$work/run2/$newest/shard_00001-of-00002.h5
size=$(stat -c %s "$shard")
printf '\x55' | dd of="$shard" bs=1 seek=$((size / 2)) conv=notrunc status=none
tool 65 "shard_00001-of-00002.h5' was changed: array '.*', elements \[.*\) of the global index, which belong to '" \
  verify "$work/run2"
tool 65 "step_00000010: every byte is as it was written" verify "$work/run2" --all
