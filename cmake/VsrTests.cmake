# Registers tests with CTest under the names area.file[.npN], with labels, time-outs and processor
# counts. The area is the folder of tests/ that the call stands in.
find_package(GTest REQUIRED)
set(VSR_TEST_LONG_LABEL long)

# vsr_add_test(NAME [SOURCES ...] [LINK ...] [TORCH] [LABELS ...] [TIMEOUT s]): a test without MPI.
function(vsr_add_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  _vsr_test_program(${name} GTest::gtest_main)
  get_filename_component(area "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  add_test(NAME ${area}.${name} COMMAND ${name})
  _vsr_test_properties(${area}.${name} 1)
endfunction()

# vsr_add_mpi_test(NAME RANKS 1 2 3 4 [SOURCES ...] [LINK ...] [TORCH] [LABELS ...] [TIMEOUT s])
function(vsr_add_mpi_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT" "RANKS;SOURCES;LINK;LABELS" ${ARGN})
  list(APPEND arg_LINK vsr_mpi_main)
  _vsr_test_program(${name} GTest::gtest)
  get_filename_component(area "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  foreach(ranks IN LISTS arg_RANKS)
    add_test(NAME ${area}.${name}.np${ranks}
             COMMAND ${VSR_MPIRUN} -np ${ranks} $<TARGET_FILE:${name}>)
    _vsr_test_properties(${area}.${name}.np${ranks} ${ranks})
    set_property(TEST ${area}.${name}.np${ranks} PROPERTY ENVIRONMENT ${VSR_MPI_ENVIRONMENT})
  endforeach()
endfunction()

# vsr_add_script_test(NAME COMMAND ... [LABELS ...] [TIMEOUT s] [PROCESSORS n]): a script as a test.
# The script sees VSR_BIN (folder of the programs), VSR_SOURCE and VSR_MPIRUN in its environment.
function(vsr_add_script_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;PROCESSORS" "COMMAND;LABELS" ${ARGN})
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 2)
  endif()
  get_filename_component(area "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  add_test(NAME ${area}.${name} COMMAND ${arg_COMMAND})
  _vsr_test_properties(${area}.${name} ${arg_PROCESSORS})
  list(JOIN VSR_MPIRUN " " mpirun)
  set_property(TEST ${area}.${name} PROPERTY ENVIRONMENT ${VSR_MPI_ENVIRONMENT}
    "VSR_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}" "VSR_SOURCE=${PROJECT_SOURCE_DIR}"
    "VSR_MPIRUN=${mpirun}")
endfunction()

macro(_vsr_test_program name main)
  if(NOT arg_SOURCES)
    set(arg_SOURCES ${name}.cpp)
  endif()
  set(torch_flag "")
  if(arg_TORCH)
    set(torch_flag TORCH)
  endif()
  vsr_add_program(${name} SOURCES ${arg_SOURCES} LINK ${arg_LINK} ${main} ${torch_flag})
endmacro()

macro(_vsr_test_properties test processors)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  get_filename_component(area "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  set_tests_properties(${test} PROPERTIES TIMEOUT ${arg_TIMEOUT} PROCESSORS ${processors}
                       SKIP_RETURN_CODE 77)
  set_property(TEST ${test} PROPERTY LABELS ${area} ${arg_LABELS})
endmacro()

# mpirun as the tests call it; Open MPI wants leave to run as root and more ranks than cores, and
# waiting ranks have to give way where tests run side by side.
set(VSR_MPIRUN ${MPIEXEC_EXECUTABLE})
execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE _vsr_mpi_version ERROR_QUIET)
if(_vsr_mpi_version MATCHES "Open MPI|OpenRTE")
  list(APPEND VSR_MPIRUN --oversubscribe --bind-to none)
endif()
set(VSR_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_btl_base_warn_component_unused=0 OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1)
if(VSR_SANITIZE MATCHES "address")
  # Open MPI leaks at its end, and a report of that would hide what the tests say.
  list(APPEND VSR_MPI_ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
endif()
