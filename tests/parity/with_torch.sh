#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a Python script with the PyTorch whose libraries the build links, so that both sides of a
# comparison are the same release. Makes what that needs once, in the user's cache folder; ends with 77,
# which CTest shows as skipped, and the reason where this machine cannot load it.
#   with_torch.sh TORCH SCRIPT     TORCH: the unpacked package, with lib/ and __init__.py
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../launch/common.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
torch=$(cd "$1" && pwd -P)
script=$2
venv=$vsr_cache/parity-venv
venv_megabytes=140

skip() {
  say "SKIPPED: $*"
  exit 77
}

# Small wheels of libraries that a CUDA toolkit lacks and libtorch_cuda.so asks for.
declare -A wheel_of=(
  [libcusparseLt.so.0]=nvidia-cusparselt-cu13==0.8.0
  [libnvshmem_host.so.3]=nvidia-nvshmem-cu13==3.4.5
  [libcufile.so.0]=nvidia-cufile==1.20.0.107
)

require_python() {
  python=/usr/bin/python3
  [[ -x $python ]] || python=$(command -v python3) || skip "there is no python3"
  local suffix
  suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
  [[ -e $torch/__init__.py ]] ||
    skip "$torch holds LibTorch without its Python; to get it, remove that folder and run
launch/install_deps.sh"
  [[ -e $torch/_C$suffix ]] || skip "the PyTorch in $torch is not for $("$python" --version)"
}

# Packages go into an environment of their own; the stamp says for which Python and list it is complete.
make_environment() {
  local wanted
  wanted="$("$python" -c 'import sys; print(sys.executable, *sys.version_info[:2])')
$(grep -v '^#' "$here/requirements.txt")"
  if [[ -x $venv/bin/python && $(cat "$venv/.complete" 2>/dev/null) == "$wanted" ]]; then return; fi
  (make_room $venv_megabytes) || skip "there is no room for $venv"
  say "a Python environment for PyTorch: 10 MB to download from PyPI, $venv_megabytes MB in $venv"
  rm -rf "$venv"
  "$python" -m venv "$venv" || skip "$python cannot make a virtual environment; install python3-venv"
  pip_install --requirement "$here/requirements.txt"
  printf '%s' "$wanted" >"$venv/.complete"
}

pip_install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@" ||
    skip "PyPI gave no packages (see above); the environment is made by the next run with network"
}

# Folders with CUDA libraries: the toolkit's, and wheels of this project's environments.
find_libraries() {
  local folder folders=()
  for folder in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda /usr/local/cuda-13*; do
    folders+=("$folder/lib64" "$folder/lib" "$folder/extras/CUPTI/lib64")
  done
  folders+=("$torch"/../nvidia/*/lib "$venv"/lib/python*/site-packages/nvidia/*/lib
    "$vsr_cache"/peers-venv/lib/python*/site-packages/nvidia/*/lib)
  libraries=${LD_LIBRARY_PATH:-}
  for folder in "${folders[@]}"; do
    [[ ! -d $folder ]] || libraries+=${libraries:+:}$folder
  done
}

missing_libraries() {
  LD_LIBRARY_PATH=$libraries ldd "$torch/lib/libtorch_python.so" "$torch/lib/libtorch_global_deps.so" |
    awk '/not found/ { print $1 }' | sort -u
}

require_libraries() {
  local missing name wheels=() elsewhere=()
  find_libraries
  mapfile -t missing < <(missing_libraries)
  ((${#missing[@]} > 0)) || return 0
  for name in "${missing[@]}"; do
    if [[ -n ${wheel_of[$name]:-} ]]; then wheels+=("${wheel_of[$name]}"); else elsewhere+=("$name"); fi
  done
  ((${#elsewhere[@]} == 0)) ||
    skip "this PyTorch was built for CUDA and its Python needs libraries that are not here:
${elsewhere[*]}
They come with CUDA 13, cuDNN 9 and NCCL 2"
  say "libraries for PyTorch: ${wheels[*]}, up to 230 MB to download from PyPI, 310 MB in $venv"
  (make_room 600) || skip "there is no room for these libraries"
  pip_install --no-deps "${wheels[@]}"
  find_libraries
  mapfile -t missing < <(missing_libraries)
  ((${#missing[@]} == 0)) || skip "PyTorch still lacks ${missing[*]}"
}

require_python
(make_room 0) || skip "there is no cache folder"
lock_cache
make_environment
require_libraries
exec 9>&-

export VSR_OUTER_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH=$libraries PYTHONPATH=$here:${torch%/*} PYTHONNOUSERSITE=1
export CUDA_VISIBLE_DEVICES='' PYTHONWARNINGS='ignore:Failed to initialize NumPy'
exec "$venv/bin/python" -B -c '
import runpy, sys
try:
    import torch
except Exception as error:
    print(f"with_torch.sh: SKIPPED: PyTorch does not load: {error}")
    sys.exit(77)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")' "$script"
