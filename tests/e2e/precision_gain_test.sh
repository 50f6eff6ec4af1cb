#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# FP16 trains as well as FP32: the gains over bicubic after the same iterations, mean of three seeds, are
# within 0.1 dB.
source "$(dirname "$0")/lib.sh"
clip=$(bash "$VSR_SOURCE/launch/fetch_demo_clip.sh") || { echo "skipped: the demo clip cannot be downloaded"; exit 77; }
gains=()
for precision in fp32 fp16; do
  sum=0
  for seed in 0 1 2; do
    train 2 --train "$clip" --out "$work/$precision$seed" --precision "$precision" --seed "$seed" \
      --total-iter 300 --lr 1e-3 --leaves 2 --val-freq 0 --save-freq 0 --print-freq 100
    gain=$(grep -oE 'gain [+-][0-9.]+' "$work/output.txt" | tail -n 1 | cut -d' ' -f2)
    printf '%s seed %s: gain %s dB\n' "$precision" "$seed" "$gain"
    sum=$(awk -v a="$sum" -v b="$gain" 'BEGIN { print a + b }')
  done
  gains+=("$(awk -v s="$sum" 'BEGIN { printf "%.4f", s / 3 }')")
done
printf 'mean gain: fp32 %s dB, fp16 %s dB\n' "${gains[@]}"
awk -v a="${gains[0]}" -v b="${gains[1]}" 'BEGIN { d = a - b; exit !(d <= 0.1 && d >= -0.1 && a > 0.3) }' ||
  fail "gains differ by more than 0.1 dB, or nothing was learnt"
