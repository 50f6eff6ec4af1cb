// SPDX-License-Identifier: Apache-2.0
// From options to the parts of a run: the conversions between the words of the command line and
// those of the libraries, each in one small function.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/communicator.hpp"
#include "launch/options.hpp"
#include "optim/fp16_optimizer.hpp"
#include "runtime/models/vsr_net.hpp"
#include "runtime/precision/fp16_module.hpp"
#include "runtime/train/train_loop.hpp"
#include "runtime/video/dataset.hpp"
#include "runtime/video/sampler.hpp"

namespace vsr::launch {

/// Set LibTorch's threads and put our FP16 kernels in place. Local.
void set_up_process(int threads);

/// Collective. Open all clips; a clip that cannot be used ends all ranks in order.
/// @throws AgreedError 65 naming the clip
runtime::WindowDataset open_data(const TrainOptions& options, comm::Communicator& world);

runtime::ModelOptions model_options(const TrainOptions& options);
runtime::Precision precision_of(Precision precision);
runtime::Sampler make_sampler(const TrainOptions& options, std::int64_t window_count);
runtime::LoopOptions loop_options(const TrainOptions& options);

/// Collective. The optimizer over the parameters and buffers of `net`.
std::unique_ptr<optim::Fp16Optimizer> make_optimizer(const TrainOptions& options,
                                                     runtime::Fp16Module<runtime::VsrNet>& net,
                                                     comm::Communicator& world);

/// What decides the bits of a run, by option name; saved in checkpoints and compared at resume.
nlohmann::json configuration_of(const TrainOptions& options, const runtime::WindowDataset& data);

/// The network that a saved configuration describes.
/// @throws CheckpointError when the configuration lacks something
runtime::ModelOptions model_options_of(const nlohmann::json& configuration);

/// The text of --dry-run for these parts.
std::string describe_plan(const TrainOptions& options, const runtime::WindowDataset& data,
                          std::int64_t parameters, int world);

}  // namespace vsr::launch
