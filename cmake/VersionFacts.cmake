# The commit and the versions that --version prints, collected when configuring into a header under
# VSR_GENERATED_DIR.
set(VSR_GENERATED_DIR "${CMAKE_BINARY_DIR}/generated")

# _vsr_macro(OUT FILE MACRO): the number or quoted text that a header gives a macro.
function(_vsr_macro out file macro)
  set(value "")
  if(EXISTS "${file}")
    file(STRINGS "${file}" line REGEX "^#[ \t]*define[ \t]+${macro}[ \t]+[\"0-9]" LIMIT_COUNT 1)
    if(line MATCHES "${macro}[ \t]+\"?([^\" \t]+)")
      set(value "${CMAKE_MATCH_1}")
    endif()
  endif()
  set(${out} "${value}" PARENT_SCOPE)
endfunction()

set(VSR_FACT_COMMIT unknown)
find_package(Git QUIET)
if(Git_FOUND)
  execute_process(COMMAND "${GIT_EXECUTABLE}" describe --always --dirty --abbrev=12 --exclude=*
                  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE _vsr_commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _vsr_failed ERROR_QUIET)
  if(NOT _vsr_failed)
    set(VSR_FACT_COMMIT "${_vsr_commit}")
  endif()
  # A new commit writes this log: configure again, so that a build never names an old one.
  execute_process(COMMAND "${GIT_EXECUTABLE}" rev-parse --git-path logs/HEAD
                  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE _vsr_head
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _vsr_failed ERROR_QUIET)
  get_filename_component(_vsr_head "${_vsr_head}" ABSOLUTE BASE_DIR "${PROJECT_SOURCE_DIR}")
  if(NOT _vsr_failed AND EXISTS "${_vsr_head}")
    set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
                 "${_vsr_head}")
  endif()
endif()

set(VSR_FACT_COMPILER
    "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}")

set(VSR_FACT_LIBTORCH unknown)
foreach(_file IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  _vsr_macro(_vsr_major "${VSR_TORCH_INCLUDE}/${_file}" TORCH_VERSION_MAJOR)
  _vsr_macro(_vsr_minor "${VSR_TORCH_INCLUDE}/${_file}" TORCH_VERSION_MINOR)
  _vsr_macro(_vsr_patch "${VSR_TORCH_INCLUDE}/${_file}" TORCH_VERSION_PATCH)
  if(NOT _vsr_major STREQUAL "")
    set(VSR_FACT_LIBTORCH "${_vsr_major}.${_vsr_minor}.${_vsr_patch}")
    break()
  endif()
endforeach()

set(VSR_FACT_MPI "MPI ${MPI_C_VERSION}")
if(MPIEXEC_EXECUTABLE)
  execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE _vsr_mpi ERROR_QUIET)
  if(_vsr_mpi MATCHES "\\((Open MPI|OpenRTE)\\) ([0-9.]+)")
    string(PREPEND VSR_FACT_MPI "Open MPI ${CMAKE_MATCH_2}, ")
  elseif(_vsr_mpi MATCHES "Version:[ \t]+([0-9.a-z]+)")
    string(PREPEND VSR_FACT_MPI "MPICH ${CMAKE_MATCH_1}, ")
  endif()
endif()

set(VSR_FACT_CUDA none)
set(VSR_FACT_NCCL none)
if(VSR_WITH_CUDA)
  set(VSR_FACT_CUDA "${CUDAToolkit_VERSION}")
  _vsr_macro(_vsr_major "${VSR_NCCL_INCLUDE}/nccl.h" NCCL_MAJOR)
  _vsr_macro(_vsr_minor "${VSR_NCCL_INCLUDE}/nccl.h" NCCL_MINOR)
  _vsr_macro(_vsr_patch "${VSR_NCCL_INCLUDE}/nccl.h" NCCL_PATCH)
  set(VSR_FACT_NCCL "${_vsr_major}.${_vsr_minor}.${_vsr_patch}")
endif()

set(VSR_FACT_HDF5 "${hdf5_VERSION}")
set(VSR_FACT_FFMPEG
    "libavformat ${ffmpeg_libavformat_VERSION}, libavcodec ${ffmpeg_libavcodec_VERSION}")

configure_file("${PROJECT_SOURCE_DIR}/launch/version_facts.hpp.in"
               "${VSR_GENERATED_DIR}/version_facts.hpp" @ONLY)
