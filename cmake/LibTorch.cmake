# LibTorch as one imported target, vsr::torch, holding its CPU libraries.
#
# find_package(Torch) insists on a complete CUDA set-up whenever the wheel was built for CUDA. The CPU
# libraries of the same wheel need only the CUDA runtime and CUPTI, so we name the libraries ourselves;
# that also starts programs faster. Where it is looked for: VSR_TORCH_ROOT, CMAKE_PREFIX_PATH, then the
# folder in which launch/install_deps.sh unpacks the wheel.
set(VSR_TORCH_VERSION "2.11.0" CACHE STRING "Version of LibTorch that install_deps.sh unpacks")
# The same rule as in launch/common.sh.
if(NOT "$ENV{VSR_CACHE}" STREQUAL "")
  set(_vsr_cache "$ENV{VSR_CACHE}")
elseif(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(_vsr_cache "$ENV{XDG_CACHE_HOME}/vsr_dist")
else()
  set(_vsr_cache "$ENV{HOME}/.cache/vsr_dist")
endif()
set(_vsr_torch_cache "${_vsr_cache}/torch-${VSR_TORCH_VERSION}")

# What an earlier configuration found may have been moved since.
foreach(_found IN ITEMS VSR_TORCH_INCLUDE VSR_LIB_torch_cpu VSR_LIB_c10)
  if(DEFINED ${_found} AND NOT EXISTS "${${_found}}")
    unset(${_found} CACHE)
  endif()
endforeach()
find_path(VSR_TORCH_INCLUDE torch/script.h
          HINTS "${VSR_TORCH_ROOT}/include" PATHS "${_vsr_torch_cache}/torch/include"
          PATH_SUFFIXES include)
if(NOT VSR_TORCH_INCLUDE)
  message(FATAL_ERROR "LibTorch not found. Run launch/install_deps.sh, or give -DVSR_TORCH_ROOT=... "
                      "or -DCMAKE_PREFIX_PATH=... with the folder that holds include/ and lib/.")
endif()
get_filename_component(VSR_TORCH_HOME "${VSR_TORCH_INCLUDE}" DIRECTORY)

add_library(vsr_torch INTERFACE)
add_library(vsr::torch ALIAS vsr_torch)
target_include_directories(vsr_torch SYSTEM INTERFACE
  "${VSR_TORCH_INCLUDE}" "${VSR_TORCH_INCLUDE}/torch/csrc/api/include")
set(_vsr_torch_libs "")
foreach(_name IN ITEMS torch_cpu c10)
  find_library(VSR_LIB_${_name} ${_name} HINTS "${VSR_TORCH_HOME}/lib" REQUIRED NO_DEFAULT_PATH)
  list(APPEND _vsr_torch_libs "${VSR_LIB_${_name}}")
endforeach()
target_link_libraries(vsr_torch INTERFACE ${_vsr_torch_libs} Threads::Threads)

# The CUDA runtime and CUPTI that libtorch_cpu.so of a CUDA wheel asks for: the wheels' beside it, or the
# toolkit's. A LibTorch without CUDA asks for neither, so that not finding them is no error here.
set(_vsr_cuda_roots /usr/local/cuda)
if(NOT "$ENV{CUDA_HOME}" STREQUAL "")
  list(PREPEND _vsr_cuda_roots "$ENV{CUDA_HOME}")
endif()
file(GLOB _vsr_cuda_versions LIST_DIRECTORIES true /usr/local/cuda-13*)
set(_vsr_cuda_dirs "${VSR_TORCH_HOME}/../nvidia/cu13/lib")
foreach(_root IN LISTS _vsr_cuda_roots _vsr_cuda_versions)
  list(APPEND _vsr_cuda_dirs "${_root}/lib64" "${_root}/extras/CUPTI/lib64")
endforeach()
foreach(_library IN ITEMS libcudart.so.13 libcupti.so.13)
  foreach(_dir IN LISTS _vsr_cuda_dirs)
    if(EXISTS "${_dir}/${_library}")
      get_filename_component(_real "${_dir}" REALPATH)
      # Old tags, because a RUNPATH would serve only what our program itself asks for, and it is
      # libtorch_cpu.so that asks for these.
      target_link_options(vsr_torch INTERFACE "-Wl,-rpath-link,${_real}" "-Wl,-rpath,${_real}"
                          "-Wl,--disable-new-dtags")
      break()
    endif()
  endforeach()
endforeach()
