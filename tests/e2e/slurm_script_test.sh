#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The batch script, without Slurm: its decision to requeue, and whole turns with srun, mpirun and scontrol
# replaced by recorders.
source "$(dirname "${BASH_SOURCE[0]}")/script_checks.sh"
script=$VSR_SOURCE/launch/slurm/train.sbatch

decide() { bash -c 'source "$1"; shift; should_requeue "$@"' decide "$script" "$@"; }
#              code asked restarts max
expect_code 0 decide 85 1 0 20
expect_code 0 decide 85 0 0 20
expect_code 0 decide 75 0 19 20
expect_code 1 decide 75 0 20 20
expect_code 1 decide 85 1 3 3
expect_code 0 decide 143 1 0 20
expect_code 1 decide 143 0 0 20
expect_code 1 decide 137 0 0 20
expect_code 1 decide 0 1 0 20
for code in 1 64 65 70 74 78 86; do expect_code 1 decide "$code" 1 0 20; done

# A turn: the program ends with the code in $work/code; on USR1 it ends with 85, on TERM without a save.
mkdir -p "$work/bin dir"
cat >"$work/bin dir/vsr_dist_train" <<'END'
#!/usr/bin/env bash
printf '%s\n' "$@" >"$RECORD/arguments"
trap 'exit 85' USR1
trap 'exit 143' TERM
code=$(cat "$RECORD/code")
[[ $code == wait ]] || exit "$code"
touch "$RECORD/started"
for ((i = 0; i < 300; ++i)); do sleep 0.1; done
END
chmod +x "$work/bin dir/vsr_dist_train"
fake srun <<'END'
if [[ $1 == --mpi=list ]]; then cat "$RECORD/mpi_list" >&2; exit 0; fi
printf '%s\n' "$@" >"$RECORD/srun"
while [[ $1 == --* ]]; do shift; done
exec "$@"
END
fake mpirun <<'END'
printf '%s\n' "$@" >"$RECORD/mpirun"
exec "$@"
END
fake scontrol <<'END'
printf '%s ' "$@" >"$RECORD/scontrol"
END
export RECORD=$work PATH=$work/fakes:$PATH SLURM_JOB_ID=4711 SLURM_SUBMIT_DIR=$work
export BIN="$work/bin dir" TRAIN="a.mp4 b.mp4" OUT=runs/x OPTIONS="--total-iter 9"
prepare() {
  rm -f "$work"/{srun,mpirun,scontrol,started,arguments}
  printf '%s' "$1" >"$work/code"
}
turn() {
  prepare "$1"
  shift
  env "$@" bash "$script"
}

echo "MPI plugin types are... none pmi2 pmix" >"$work/mpi_list"
expect_code 0 turn 0 A=
expect_equal "$(cat "$work/arguments")" $'--out\nruns/x\n--resume\nauto\n--train\na.mp4\nb.mp4\n--total-iter\n9'
expect_equal "$(head -n 2 "$work/srun")" $'--mpi=pmix\n--kill-on-bad-exit=1'
[[ ! -e $work/scontrol ]] || fail "requeued after exit code 0"

expect_code 0 turn 75 SLURM_RESTART_COUNT=2
expect_equal "$(cat "$work/scontrol")" "requeue 4711 "
expect_code 75 turn 75 SLURM_RESTART_COUNT=3 VSR_MAX_RESTARTS=3
expect_text "the most allowed"
expect_code 78 turn 78 A=
[[ ! -e $work/scontrol ]] || fail "requeued after exit code 78"

echo "none pmi2" >"$work/mpi_list"
expect_code 65 turn 65 A=
[[ -e $work/mpirun && ! -e $work/srun ]] || fail "without pmix the ranks were not started by mpirun"

# Signals, as Slurm sends them to the batch shell.
signal_turn() {
  prepare wait
  bash "$script" &
  local batch=$!
  for ((i = 0; i < 200; ++i)); do
    [[ ! -e $work/started ]] || break
    sleep 0.05
  done
  kill "-$1" "$batch"
  wait "$batch"
}
expect_code 0 signal_turn USR1
expect_equal "$(cat "$work/scontrol" 2>/dev/null)" "requeue 4711 "
# Cancelled: asked to save, by the signal that leaves the ranks as long as Slurm does; not requeued.
expect_code 85 signal_turn TERM
[[ ! -e $work/scontrol ]] || fail "requeued a job that was cancelled"

expect_code 78 env BIN="$work/none" bash "$script"
expect_text "no program"
finish
