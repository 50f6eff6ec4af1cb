# LibTorch as one imported target, vsr::torch, holding its CPU libraries.
#
# find_package(Torch) insists on a complete CUDA set-up whenever the wheel was built for CUDA. The CPU
# libraries of the same wheel need only the CUDA runtime and CUPTI, so we name the libraries ourselves;
# that also starts programs faster. Where it is looked for: VSR_TORCH_ROOT, CMAKE_PREFIX_PATH, then the
# folder in which launch/install_deps.sh unpacks the wheel.
set(VSR_TORCH_VERSION "2.11.0" CACHE STRING "Version of LibTorch that install_deps.sh unpacks")
if(DEFINED ENV{VSR_CACHE})
  set(_vsr_cache "$ENV{VSR_CACHE}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(_vsr_cache "$ENV{XDG_CACHE_HOME}/vsr_dist")
else()
  set(_vsr_cache "$ENV{HOME}/.cache/vsr_dist")
endif()
set(_vsr_torch_cache "${_vsr_cache}/torch-${VSR_TORCH_VERSION}")

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

# The CUDA runtime and CUPTI that libtorch_cpu.so asks for: the toolkit's, or the wheels' beside it.
find_program(_vsr_nvcc_for_torch nvcc HINTS /usr/local/cuda/bin)
set(_vsr_cuda_rpath "")
foreach(_dir IN ITEMS "${VSR_TORCH_HOME}/../nvidia/cu13/lib" /usr/local/cuda/lib64
                      /usr/local/cuda-13.0/lib64 /usr/local/cuda/extras/CUPTI/lib64)
  if(EXISTS "${_dir}")
    get_filename_component(_real "${_dir}" REALPATH)
    list(APPEND _vsr_cuda_rpath "${_real}")
  endif()
endforeach()
foreach(_dir IN LISTS _vsr_cuda_rpath)
  target_link_options(vsr_torch INTERFACE "-Wl,-rpath-link,${_dir}" "-Wl,-rpath,${_dir}")
endforeach()
