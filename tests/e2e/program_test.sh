#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a user meets around a run: help, version, plan, files of a run, requests by signal, upscaling.
source "$(dirname "$0")/lib.sh"
clip=$work/clip.mp4
small_clip "$clip"
train=$VSR_BIN/vsr_dist_train

[[ $("$train" --help) == *--gt-size* ]] || fail "--help lacks an option"
[[ $("$train" --version) == *LibTorch* ]] || fail "--version lacks LibTorch"
[[ $("$VSR_BIN/vsr" --help) == *upscale* ]] || fail "vsr --help lacks upscale"
rc=0
"$VSR_BIN/vsr" upscal 2>"$work/err" || rc=$?
[[ $rc == 64 ]] && grep -q "did you mean upscale" "$work/err" || fail "misspelt command: $rc $(cat "$work/err")"

# The plan creates nothing.
run_ranks 2 --train "$clip" --out "$work/plan" --dry-run "${small_run[@]}"
[[ $rc == 0 && ! -e $work/plan ]] || fail "--dry-run: exit $rc, or it left a folder"
grep -qiE "memory" "$work/output.txt" && grep -qiE "learning rate" "$work/output.txt" || { cat "$work/output.txt"; fail "the plan lacks lines"; }

# A run leaves what the documents say.
train 2 --train "$clip" --out "$work/run" "${small_run[@]}"
for file in config.ini env.txt train.log metrics.jsonl ckpt/LATEST ckpt/step_00000040/MANIFEST.json \
  ckpt/step_00000040/global.h5 val/00000040/clip.csv val/00000040/clip_strip.png; do
  [[ -s $work/run/$file ]] || fail "the run left no $file"
done
[[ ! -e $work/run/LOCK ]] || fail "the run left its LOCK"
for type in start iter val ckpt end; do
  grep -q "\"type\":\"$type\"" "$work/run/metrics.jsonl" || fail "no record «$type» in metrics.jsonl"
done
tail -n 1 "$work/output.txt" | grep -qE '^held-out PSNR-Y [0-9.]+ dB, bicubic [0-9.]+ dB, gain [+-][0-9.]+ dB$' ||
  { cat "$work/output.txt"; fail "the last line is not the result"; }
first=$(masters)

# Its own configuration gives the same run again.
train 1 --config "$work/run/config.ini" --out "$work/again"
[[ $(masters) == "$first" ]] || fail "config.ini does not give the same run"

# Ranks that cannot share memory exchange messages, say so once, and compute the same.
VSR_COMM_SHARED=0 train 3 --train "$clip" --out "$work/messages" "${small_run[@]}"
[[ $(masters) == "$first" ]] || fail "masters differ when ranks exchange messages"
[[ $(grep -c 'VSR_COMM_SHARED' "$work/output.txt") == 1 ]] || { cat "$work/output.txt"; fail "not one notice of messages"; }

# Other rules of the loss scale and another curve; stopped amid the first overflows, whose count goes on.
rules=(--loss-scaler megatron --loss-scale-window 8 --scheduler cosine_restart --periods 20 20)
train 1 --train "$clip" --out "$work/whole" "${small_run[@]}" "${rules[@]}"
whole=$(masters)
with --total-iter 5
train 2 --train "$clip" --out "$work/parts" "${changed[@]}" "${rules[@]}"
grep -q '"iter":5,.*"loss_scale":536870912.0,"skipped":5' "$work/parts/metrics.jsonl" || { cat "$work/parts/metrics.jsonl"; fail "not Megatron's first scales"; }
train 3 --train "$clip" --out "$work/parts" --resume auto "${small_run[@]}" "${rules[@]}"
[[ $(masters) == "$whole" ]] || fail "masters differ after a stop amid the first overflows"

# USR1: a checkpoint, exit code 85, and a run that goes on to the same end. A run that was over before the
# signal arrived is tried again.
stop_by_signal() {
  local rank_pid
  rm -rf "$work/stopped"
  timeout 300 $VSR_MPIRUN -np 2 "$train" --train "$clip" --out "$work/stopped" "${small_run[@]}" >"$work/stopped.txt" 2>&1 &
  local job=$!
  until grep -q '"iter":5,' "$work/stopped/metrics.jsonl" 2>/dev/null; do
    kill -0 "$job" 2>/dev/null || { cat "$work/stopped.txt"; fail "the run ended early"; }
    sleep 0.005
  done
  rank_pid=$(grep -oE 'pid[": =]+[0-9]+' "$work/stopped/LOCK" | grep -oE '[0-9]+') || true
  [[ -z $rank_pid ]] || kill -USR1 "$rank_pid" 2>/dev/null || true
  rc=0
  wait "$job" || rc=$?
}
for attempt in 1 2 3 4 5; do
  stop_by_signal
  [[ $rc == 0 ]] || break
done
[[ $rc == 85 ]] || { cat "$work/stopped.txt"; fail "exit code $rc after USR1, expected 85"; }
grep -q "stopped on request" "$work/stopped.txt" || { cat "$work/stopped.txt"; fail "no word of the stop"; }
train 3 --train "$clip" --out "$work/stopped" --resume auto "${small_run[@]}"
[[ $(masters) == "$first" ]] || fail "masters differ after a stop by USR1"

# TERM to mpirun, with the environment of our scripts: the ranks have the time to save.
with --total-iter 1000000
(
  source "$VSR_SOURCE/launch/mpirun_env.sh"
  exec $VSR_MPIRUN -np 2 "$train" --train "$clip" --out "$work/ended" "${changed[@]}"
) >"$work/ended.txt" 2>&1 &
job=$!
for ((i = 0; i < 2400; ++i)); do
  ! grep -q '"iter":5,' "$work/ended/metrics.jsonl" 2>/dev/null || break
  sleep 0.05
done
kill -TERM "$job"
rc=0
wait "$job" || rc=$?
[[ $rc == 1 ]] && grep -q "stopped on request after iteration" "$work/ended.txt" &&
  grep -q '"type":"end"' "$work/ended/metrics.jsonl" || { cat "$work/ended.txt"; fail "exit code $rc after TERM, expected 1 and a save"; }

# The trained network on a clip of one's own: as many frames, four times the size.
"$VSR_BIN/vsr" testclip "$work/low.mp4" --frames 7 --height 36 --width 44 >/dev/null
[[ $("$VSR_BIN/vsr" upscale "$work/run" "$work/low.mp4" "$work/frames") == "7 frames"* ]] || fail "upscale"
[[ $(ls "$work/frames" | wc -l) == 7 ]] || fail "upscale wrote $(ls "$work/frames")"
file=$(ls "$work"/frames/*.png | head -n 1)
size=$(od -An -t u1 -j 16 -N 8 "$file" | tr -s ' ')
[[ $size == " 0 0 0 176 0 0 0 144" ]] || fail "upscaled size is$size"
"$VSR_BIN/vsr" upscale "$work/run/ckpt/step_00000040" "$work/low.mp4" "$work/high.mp4" >/dev/null
[[ -s $work/high.mp4 ]] || fail "no mp4"

# Averages: validated on, and upscaled with unless the masters are asked for.
averages=(--total-iter 10 --lr 1e-2 --optimizer sgd --momentum 0.5 --ema-decay 0.99)
with "${averages[@]}"
train 2 --train "$clip" --out "$work/averages" "${changed[@]}"
trained=$(masters)
grep -qE '^optimizer +sgd, momentum 0.5; validated on averages of the masters with decay 0.99$' "$work/output.txt" &&
  grep -q '^val clip (averages)  psnr-y' "$work/output.txt" || { cat "$work/output.txt"; fail "no word of the averages"; }
grep -q '"type":"val".*"weights":"ema"' "$work/averages/metrics.jsonl" || fail "metrics.jsonl: no word of the averages"
grep -q '"type":"val".*"weights":"masters"' "$work/run/metrics.jsonl" || fail "metrics.jsonl: no word of the masters"
# What a validation on averages leaves behind are the masters.
with "${averages[@]}" --val-freq 3
train 3 --train "$clip" --out "$work/validated" "${changed[@]}"
[[ $(masters) == "$trained" ]] || fail "a validation on averages changed the run"
upscale() {
  "$VSR_BIN/vsr" upscale "$1" "$work/low.mp4" "$work/$2" "${@:3}" | tail -n 1
}
[[ $(upscale "$work/averages" by_default) == *"(weights: ema)" ]] || fail "upscale did not take the averages"
[[ $(upscale "$work/averages" by_name --weights ema) == *"(weights: ema)" ]] || fail "upscale --weights ema"
[[ $(upscale "$work/averages" by_masters --weights masters) == *"(weights: masters)" ]] || fail "upscale --weights masters"
[[ $(upscale "$work/run" plain) == *"(weights: masters)" ]] || fail "upscale without averages"
diff -r "$work/by_default" "$work/by_name" >/dev/null || fail "the same weights give other pictures"
! diff -r "$work/by_default" "$work/by_masters" >/dev/null || fail "averages and masters give the same pictures"
refuse_upscale() {
  rc=0
  "$VSR_BIN/vsr" upscale "$work/run" "$work/low.mp4" "$work/never" --weights "$1" 2>"$work/err" || rc=$?
  [[ $rc == "$2" && ! -e $work/never ]] && grep -q "$3" "$work/err" || fail "--weights $1: $rc $(cat "$work/err")"
}
refuse_upscale ema 78 "holds no averages"
refuse_upscale average 64 'got "average", expected masters or ema'

# What is there already stays: the input itself, an older result.
rc=0
"$VSR_BIN/vsr" upscale "$work/run" "$work/low.mp4" "$work/low.mp4" 2>"$work/err" || rc=$?
[[ $rc == 78 ]] && grep -q "exists already" "$work/err" || fail "output over input: $rc $(cat "$work/err")"
