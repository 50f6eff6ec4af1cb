# Two ways to make a target, so that flags, warnings and the precompiled LibTorch header are the same
# everywhere. Layers are link targets: launch -> runtime -> optim -> comm.

# vsr_add_library(NAME SOURCES ... [LINK ...] [LINK_PRIVATE ...] [TORCH])
function(vsr_add_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LINK;LINK_PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC vsr_flags ${arg_LINK} PRIVATE vsr_warnings ${arg_LINK_PRIVATE})
  if(arg_TORCH)
    vsr_use_torch(${name})
  endif()
endfunction()

# vsr_add_program(NAME SOURCES ... [LINK ...] [TORCH])
function(vsr_add_program name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE vsr_flags vsr_warnings ${arg_LINK})
  if(arg_TORCH)
    vsr_use_torch(${name})
  endif()
endfunction()

# One precompiled <torch/torch.h> for the whole build: a LibTorch file compiles in a third of the time.
file(WRITE "${CMAKE_BINARY_DIR}/torch_pch.cpp.in" "// Holds the precompiled LibTorch header.\n")
configure_file("${CMAKE_BINARY_DIR}/torch_pch.cpp.in" "${CMAKE_BINARY_DIR}/torch_pch.cpp" COPYONLY)
add_library(vsr_torch_pch OBJECT "${CMAKE_BINARY_DIR}/torch_pch.cpp")
target_link_libraries(vsr_torch_pch PUBLIC vsr_flags vsr::torch PRIVATE vsr_warnings)
target_precompile_headers(vsr_torch_pch PRIVATE <torch/torch.h>)

function(vsr_use_torch name)
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_link_libraries(${name} PRIVATE vsr::torch)
  else()
    target_link_libraries(${name} PUBLIC vsr::torch)
  endif()
  target_precompile_headers(${name} REUSE_FROM vsr_torch_pch)
endfunction()
