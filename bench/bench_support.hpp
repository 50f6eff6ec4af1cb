// SPDX-License-Identifier: Apache-2.0
// What every program of bench/ does alike: options, one core per rank, the time of the slowest
// rank, and one line of JSON that compare.py reads. Alike, so that numbers can be compared.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace vsr::bench {

/// Options that all measurements share.
struct Options {
  std::int64_t layers = 24;   ///< linear layers of the network
  std::int64_t width = 1024;  ///< inputs of every layer and outputs of all but the last
  std::int64_t last = 448;    ///< outputs of the last layer; the defaults make 24.6 M parameters
  int threads = 1;            ///< threads of a rank
  int warmup = 5;             ///< iterations that are not timed
  int iterations = 20;        ///< timed iterations
  bool pin = false;           ///< rank r runs on the r-th core alone
  std::string reduction = "exact";
  std::string folder;  ///< where a measurement writes files
  std::string disk;    ///< checkpoint_bench: measure the disk alone, "synced" or "early"
  std::vector<std::int64_t> bytes;  ///< collectives_bench: sizes of the flat buffer
  bool mpi = false;                 ///< collectives_bench: measure MPI itself

  /// Elements of all weights and biases.
  std::int64_t parameters() const noexcept;
  /// Outputs of layer `layer`.
  std::int64_t outputs(std::int64_t layer) const noexcept {
    return layer + 1 == layers ? last : width;
  }
};

/// Start MPI, read the options and run `body`; its JSON is printed by rank 0.
/// @returns the exit code for `main`; a rank that fails alone ends the job with its own
int run(int argc, char** argv,
        const std::function<nlohmann::json(comm::Communicator&, const Options&)>& body);

/// Milliseconds since `start`.
double ms_since(std::chrono::steady_clock::time_point start);

/// The row of the rank whose first value is largest, the same on all ranks. Collective.
/// @param mine the same number of values on all ranks
std::vector<double> slowest_row(comm::Communicator& world, std::span<const double> mine);

}  // namespace vsr::bench
