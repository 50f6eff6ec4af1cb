// SPDX-License-Identifier: Apache-2.0
// Checks lengths, chooses the instruction set, and hands plain pointers to the compiled loops.
#include "optim/update_kernels.hpp"

#include <vector>

#include "optim/kernel_call.hpp"

namespace vsr::optim {
namespace {

// Holds the pointers of a checked piece for the length of one call.
class Call {
 public:
  Call(const UpdatePiece& p, std::size_t moments)
      : slices_(p.slices, p.master.size() * element_bytes(p.dtype)),
        targets_(p.destinations, p.master.size() * element_bytes(p.dtype)) {
    const std::size_t elements = p.master.size();
    VSR_CHECK((moments < 1 || p.moment1.size() == elements) &&
                  (moments < 2 || p.moment2.size() == elements),
              "moments and masters have different lengths");
    VSR_CHECK(p.sums.empty() || p.sums.size() == elements,
              "sums and masters have different lengths");
    VSR_CHECK(0 <= p.piece.begin && p.piece.begin <= p.piece.end &&
                  p.piece.end <= static_cast<std::int64_t>(elements),
              "the piece lies outside the shard");
    arguments_ = {detail::type_of(p.dtype),
                  p.piece.begin,
                  p.piece.end,
                  {slices_.begin(), static_cast<int>(p.slices.size())},
                  p.sums.empty() ? nullptr : p.sums.data(),
                  p.factor,
                  p.master.data(),
                  p.moment1.data(),
                  p.moment2.data(),
                  {targets_.begin(), static_cast<int>(p.destinations.size())}};
  }
  const detail::UpdateArguments& arguments() const noexcept { return arguments_; }

 private:
  detail::Sources slices_;
  detail::Places targets_;
  detail::UpdateArguments arguments_ = {};
};

}  // namespace

void update_adam(const UpdatePiece& piece, WeightDecay decay, const AdamCoefficients& coefficients,
                 Isa isa) {
  detail::table(isa).update_adam(Call(piece, 2).arguments(), decay, coefficients);
}

void update_sgd(const UpdatePiece& piece, const SgdCoefficients& coefficients, Isa isa) {
  detail::table(isa).update_sgd(Call(piece, coefficients.has_momentum ? 1 : 0).arguments(),
                                coefficients);
}

std::size_t blocks_touched(comm::Interval piece) noexcept {
  if (piece.is_empty()) return 0;
  return static_cast<std::size_t>((piece.end - 1) / comm::kBlockElements -
                                  piece.begin / comm::kBlockElements + 1);
}

void step_lamb_moments(const UpdatePiece& piece, const LambCoefficients& coefficients,
                       std::span<LambBlock> blocks, Isa isa) {
  VSR_CHECK(blocks.size() == blocks_touched(piece.piece),
            "got " + std::to_string(blocks.size()) + " norm blocks, expected " +
                std::to_string(blocks_touched(piece.piece)));
  VSR_CHECK(piece.piece.begin % 8 == 0, "the piece begins inside a vector");
  std::vector<detail::SquareSums> sums(blocks.size());
  detail::table(isa).lamb_moments(Call(piece, 2).arguments(), coefficients, sums.data());
  for (std::size_t i = 0; i < sums.size(); ++i) blocks[i] = {sums[i].master, sums[i].direction};
}

void apply_lamb(const UpdatePiece& piece, const LambCoefficients& coefficients, Isa isa) {
  detail::table(isa).lamb_apply(Call(piece, 2).arguments(), coefficients);
}

void mean_gradient(const UpdatePiece& piece, std::span<float> gradient, Isa isa) {
  VSR_CHECK(gradient.size() == piece.master.size(), "gradient and masters have different lengths");
  detail::table(isa).mean_gradient(Call(piece, 0).arguments(), gradient.data());
}

void update_ema(std::span<const float> master, std::span<float> ema, double decay, Isa isa) {
  VSR_CHECK(master.size() == ema.size(), "averages and masters have different lengths");
  detail::table(isa).update_ema(master.data(), ema.data(), static_cast<std::int64_t>(ema.size()),
                                static_cast<float>(1.0 - decay));
}

}  // namespace vsr::optim
