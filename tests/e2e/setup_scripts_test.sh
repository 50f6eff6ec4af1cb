#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The set-up scripts where something is missing: rights, network, room. What is missing is made up with
# stand-ins for dpkg-query, id and sudo, an empty cache folder and an index of packages that is not there.
source "$(dirname "${BASH_SOURCE[0]}")/script_checks.sh"
install=$VSR_SOURCE/launch/install_deps.sh
export PIP_INDEX_URL=http://127.0.0.1:1/simple PIP_RETRIES=0 PIP_NO_INDEX='' PIP_FIND_LINKS=

in_cache() { find "$1" -mindepth 1 ! -name .lock | sort; }

# Everything there, a LibTorch of one's own: silent.
mkdir -p "$work/own torch/include/torch"
touch "$work/own torch/include/torch/script.h"
VSR_SKIP_PACKAGES=1 VSR_TORCH_ROOT="$work/own torch" VSR_CACHE="$work/unused" expect_code 0 bash "$install"
expect_equal "$output" ""
[[ ! -e $work/unused ]] || fail "made a cache folder that nobody needs"
VSR_SKIP_PACKAGES=1 VSR_TORCH_ROOT="$work" expect_code 1 bash "$install"
expect_text "no include/torch/script.h"

# No network: said so, and nothing half-finished stays.
if command -v python3 >/dev/null && python3 -c 'import ensurepip' 2>/dev/null; then
  VSR_SKIP_PACKAGES=1 VSR_CACHE="$work/cache" expect_code 1 bash "$install"
  expect_text "531 MB to download"
  expect_text "$work/cache/torch-"
  expect_text "from PyPI failed"
  expect_text "VSR_TORCH_ROOT"
  expect_equal "$(in_cache "$work/cache")" ""
  VSR_CACHE="$work/cache" expect_code 1 bash "$VSR_SOURCE/launch/fetch_demo_clip.sh"
  expect_text "could not be downloaded"
  expect_equal "$(in_cache "$work/cache")" ""
fi

# A LibTorch that is not whole is fetched again, not used.
mkdir -p "$work/torn/torch-2.11.0/torch/lib" "$work/torn/torch-2.11.0/torch/include/torch"
touch "$work/torn/torch-2.11.0/"{.complete,torch/include/torch/script.h,torch/lib/libtorch_cpu.so}
VSR_SKIP_PACKAGES=1 VSR_CACHE="$work/torn" expect_code 1 bash "$install"
expect_text "531 MB to download"

# A cache that cannot be written.
touch "$work/a file"
VSR_SKIP_PACKAGES=1 VSR_CACHE="$work/a file/cache" expect_code 1 bash "$install"
expect_text "cannot write to the cache folder $work/a file/cache"

# Packages missing and no rights: the line to run, and the way without root.
fake dpkg-query <<'END'
printf 'installed g++\nnot-installed cmake\n'
exit 1
END
fake id <<'END'
echo 1000
END
fake sudo <<'END'
exit 1
END
PATH="$work/fakes:$PATH" expect_code 1 bash "$install" </dev/null
expect_text "apt-get install --no-install-recommends cmake ninja-build"
expect_text "VSR_SKIP_PACKAGES=1"
[[ $output != *"g++"* ]] || fail "asked for a package that is installed: $output"

# Builds use all cores, whatever the number of OpenMP threads is set to.
expect_equal "$(OMP_NUM_THREADS=1 bash -c 'source "$1/launch/common.sh"; cores' _ "$VSR_SOURCE")" \
  "$(env -u OMP_NUM_THREADS nproc)"

# Every package stands in the list once.
list=$(sed -n '/^packages=(/,/^)/p' "$install" | sed '1d;$d;s/#.*//' | xargs -n 1 | sort)
expect_equal "$(uniq -d <<<"$list")" ""

# What a mistyped call says.
expect_code 64 bash "$VSR_SOURCE/launch/build.sh" relaese
expect_text "unknown preset relaese, expected release, debug or asan"
expect_code 64 bash "$VSR_SOURCE/launch/build.sh" release -DX=1
expect_text "options for cmake stand after --"
VSR_DEMO_ITERATIONS=many expect_code 64 bash "$VSR_SOURCE/launch/demo.sh"
expect_text "VSR_DEMO_ITERATIONS=many"

# How MPI programs are started, with Open MPI and with another MPI.
show='source "$1/launch/mpirun_env.sh"; echo "${vsr_mpirun[*]} | $OMP_NUM_THREADS | ${OMPI_ALLOW_RUN_AS_ROOT:-} | ${OMPI_MCA_rmaps_base_oversubscribe:-} ${OMPI_MCA_hwloc_base_binding_policy:-} ${OMPI_MCA_odls_base_sigkill_timeout:-}"'
fake mpirun <<'END'
echo "mpirun (Open MPI) 4.1.4"
END
clean=(env -u OMP_NUM_THREADS -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_MCA_rmaps_base_oversubscribe
  -u OMPI_MCA_hwloc_base_binding_policy -u OMPI_MCA_odls_base_sigkill_timeout "PATH=$work/fakes:$PATH" bash -c "$show" show "$VSR_SOURCE")
expect_code 0 "${clean[@]}"
expect_equal "$output" "mpirun | 1 |  | 1 none 3"
OMPI_MCA_odls_base_sigkill_timeout=30 expect_code 0 bash -c "$show" show "$VSR_SOURCE"
[[ $output == *" 30" ]] || fail "a time to save that is set already was replaced: $output"
rm "$work/fakes/id"
fake id <<'END'
echo 0
END
expect_code 0 "${clean[@]}"
expect_equal "$output" "mpirun | 1 | 1 | 1 none 3"
fake mpirun <<'END'
echo "HYDRA build details:"
END
expect_code 0 "${clean[@]}"
expect_equal "$output" "mpirun | 1 |  |   "
finish
