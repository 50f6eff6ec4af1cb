// SPDX-License-Identifier: Apache-2.0
// How a module's tensors meet the flat buffers: parameters and gradients become views, and buffers
// such as batch-norm statistics are kept per leaf until a step applies.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/peer_buffer.hpp"
#include "optim/flat_layout.hpp"

namespace vsr::optim {

/// A parameter under the name that checkpoints and messages use.
struct NamedParameter {
  std::string name;
  torch::Tensor replica;  ///< the module's tensor (kHalf, kBFloat16 or kFloat, on the CPU)
  torch::Tensor master;  ///< FP32 values before rounding, same shape; undefined → from the replica
};

/// State of a module that is no parameter, such as batch-norm statistics.
struct NamedBuffer {
  std::string name;
  torch::Tensor value;  ///< the module's tensor; floating or integer, on the CPU
};

/// Each tensor once (tied weights are one TensorImpl), under the first of its names.
std::vector<NamedParameter> without_ties(std::vector<NamedParameter> parameters);
/// @throws ConfigurationError for a parameter whose type has no segment or that is not on the CPU
FlatLayout layout_of(std::span<const NamedParameter> parameters);

/// The flat replica and the flat gradients, and the module's parameters as views into them.
class FlatBuffers {
 public:
  /// Collective. Allocates; parameters keep their own memory until attach(). `layout` outlives this
  /// object.
  FlatBuffers(comm::Communicator& world, const FlatLayout& layout,
              std::span<const NamedParameter> parameters);

  comm::PeerBuffer& replica() noexcept { return *replica_; }
  comm::PeerBuffer& gradients() noexcept { return *gradients_; }
  /// Bytes of parameter `parameter` in my replica.
  std::span<std::byte> replica_of(std::size_t parameter) const;
  /// Turn parameters and gradients into views. Views share ownership of the memory.
  void attach();
  /// Gradients and used flags are zero, gradients are our views again, and parameters that were
  /// frozen or thawed since lose or get theirs.
  void zero_gradients();
  /// @throws ArgumentError for a parameter whose memory was replaced since attach()
  void require_attached() const;
  /// A gradient that autograd put elsewhere is brought into its view.
  /// @param is_first no gradient was added since zero_gradients
  /// @throws ArgumentError where that is impossible, as the view already holds other leaves, and
  ///         for a parameter that was thawed since zero_gradients
  void adopt_gradients(bool is_first);
  /// Zero the gradients only: what a leaf leaves behind once it is reduced.
  void clear_gradients();
  /// ParameterFlags of each parameter: whether it got a gradient since zero_gradients, and whether
  /// it was trainable then.
  std::span<const std::uint8_t> flags() const noexcept { return *flags_; }
  /// Call `complete` for each parameter whose gradient a backward pass has left in its view; empty:
  /// nobody.
  void tell_of_gradients(std::function<void(std::size_t)> complete) {
    *complete_ = std::move(complete);
  }
  /// Whether each parameter requires a gradient now.
  std::vector<std::uint8_t> trainable() const;

 private:
  void thaw(std::size_t parameter);
  void freeze(std::size_t parameter);

  const FlatLayout& layout_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> gradient_views_;  // undefined where frozen
  std::shared_ptr<comm::PeerBuffer> replica_;
  std::shared_ptr<comm::PeerBuffer> gradients_;
  std::shared_ptr<std::vector<std::uint8_t>> flags_;
  std::shared_ptr<std::function<void(std::size_t)>> complete_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  // hold the hooks
};

/// Module state beside parameters: every leaf starts from the step's values, and the leaves' mean
/// is kept only when the step applies.
class ModuleBuffers {
 public:
  /// Collective: rank 0's values go to all ranks.
  /// @throws ConfigurationError for a buffer that is not on the CPU
  ModuleBuffers(comm::Communicator& world, std::vector<NamedBuffer> buffers);

  /// Numbers of all buffers together: what each leaf contributes to agree.
  std::size_t values() const noexcept { return values_; }
  /// The current values are those of the step.
  void remember();
  /// XXH3-64 of the step's values.
  std::uint64_t hash() const;
  /// Go back to the step's values.
  void restore();
  /// Append the leaf's results to `results` and go back to the step's values.
  void take_leaf(std::vector<double>& results);
  /// Floating buffers become the mean of the leaves' results, added in leaf order in FP64 (equal
  /// ones stay what they are); integer buffers become those of leaf 0, exact up to 2^53. A buffer
  /// that no leaf changed is not touched.
  void commit(std::span<const std::vector<double>> leaf_results);

 private:
  std::vector<NamedBuffer> buffers_;
  std::vector<torch::Tensor> step_values_;
  std::size_t values_ = 0;
};

}  // namespace vsr::optim
