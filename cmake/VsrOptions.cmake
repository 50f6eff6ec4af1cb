# What can be chosen when configuring, and the flags that all targets of this project share.

# By default CUDA is used where the machine has what that needs: nvcc of CUDA 13, and NCCL.
find_program(VSR_NVCC nvcc HINTS /usr/local/cuda/bin)
find_path(_vsr_nccl_for_default nccl.h HINTS /usr/local/cuda/include)
mark_as_advanced(VSR_NVCC _vsr_nccl_for_default)
set(_vsr_machine_has_cuda OFF)
if(VSR_NVCC AND _vsr_nccl_for_default)
  execute_process(COMMAND "${VSR_NVCC}" --version OUTPUT_VARIABLE _vsr_nvcc_version ERROR_QUIET)
  if(_vsr_nvcc_version MATCHES "release ([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 13)
    set(_vsr_machine_has_cuda ON)
  endif()
endif()
option(VSR_WITH_CUDA "Build with the CUDA toolkit and NCCL" ${_vsr_machine_has_cuda})
if(VSR_WITH_CUDA)
  # Code for Hopper, and PTX that the driver of any GPU since Turing compiles when it is first used.
  set(CMAKE_CUDA_ARCHITECTURES 75-virtual 90-real CACHE STRING "GPUs to compile for")
  if(VSR_NVCC)
    set(CMAKE_CUDA_COMPILER "${VSR_NVCC}" CACHE FILEPATH "nvcc")
  endif()
endif()
option(VSR_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(VSR_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(VSR_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
set(VSR_SANITIZE "" CACHE STRING "Sanitizers, e.g. address;undefined")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(VSR_CCACHE ccache)
mark_as_advanced(VSR_CCACHE)
if(VSR_CCACHE)
  # Precompiled headers and __TIME__ in system headers would otherwise defeat the cache; with a base
  # folder, clones in other places share it.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "${VSR_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

add_library(vsr_flags INTERFACE)
# Carried by every target: our headers need it in a project whose standard is an older one.
target_compile_features(vsr_flags INTERFACE cxx_std_20)
target_include_directories(vsr_flags INTERFACE "${PROJECT_SOURCE_DIR}")
# No contraction into fused multiply-adds: the same bits on every instruction set.
target_compile_options(vsr_flags INTERFACE -ffp-contract=off)
if(VSR_CCACHE)
  target_compile_options(vsr_flags INTERFACE -fpch-preprocess)
endif()
if(VSR_SANITIZE)
  list(JOIN VSR_SANITIZE "," _vsr_sanitizers)
  target_compile_options(vsr_flags INTERFACE -fsanitize=${_vsr_sanitizers} -fno-omit-frame-pointer)
  target_link_options(vsr_flags INTERFACE -fsanitize=${_vsr_sanitizers})
  # Our fences order memory between processes, which the thread sanitizer does not watch.
  if(VSR_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(vsr_flags INTERFACE -Wno-tsan)
  endif()
endif()

# Designated initializers leave members to their defaults on purpose; -Wrestrict of GCC 12 is wrong about
# std::string operator+ (GCC bug 105651).
add_library(vsr_warnings INTERFACE)
target_compile_options(vsr_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
                       -Woverloaded-virtual -Wno-missing-field-initializers
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<BOOL:${VSR_WERROR}>:-Werror>)
