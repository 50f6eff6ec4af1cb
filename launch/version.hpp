// SPDX-License-Identifier: Apache-2.0
// What this build was made from, for `--version`, logs and bug reports. All of it is known when
// configuring, so that no header of another library is needed here.
#pragma once

#include <string>
#include <string_view>

namespace vsr::launch {

/// "vsr_dist 0.1.0", and a line each for commit, compiler, LibTorch, MPI, NCCL, CUDA, HDF5 and
/// FFmpeg; "none" for what this build lacks. Ends in a newline.
std::string version_text();

/// The commit of the sources, "-dirty" appended when files differed from it; "unknown" outside git.
std::string_view source_commit();

}  // namespace vsr::launch
