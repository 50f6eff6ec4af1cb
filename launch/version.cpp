// SPDX-License-Identifier: Apache-2.0
#include "launch/version.hpp"

#include <fmt/format.h>

#include <utility>

#include "version_facts.hpp"

namespace vsr::launch {

std::string version_text() {
  std::string text = std::string(kProject) + "\n";
  for (const auto& [name, value] : {std::pair("commit", kCommit),
                                    {"compiler", kCompiler},
                                    {"LibTorch", kLibTorch},
                                    {"MPI", kMpi},
                                    {"NCCL", kNccl},
                                    {"CUDA", kCuda},
                                    {"HDF5", kHdf5},
                                    {"FFmpeg", kFfmpeg}})
    text += fmt::format("{:<9} {}\n", name, value);
  return text;
}

std::string_view source_commit() {
  return kCommit;
}

}  // namespace vsr::launch
