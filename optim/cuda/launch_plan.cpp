// SPDX-License-Identifier: Apache-2.0
#include "optim/cuda/launch_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "optim/kernel_call.hpp"

namespace vsr::optim {

Census census_of(const CensusRecord& record) noexcept {
  Census census = {.inf_count = static_cast<std::int64_t>(record.inf_count),
                   .nan_count = static_cast<std::int64_t>(record.nan_count)};
  if (record.first == 0) return census;
  const unsigned long long place = ~record.first;
  census.first_element = static_cast<std::int64_t>(place >> 16);
  census.first_slice = static_cast<int>(place & 0xffffU);
  return census;
}

namespace detail {
namespace {

static_assert(kTeamBlock == comm::kBlockElements);
static_assert(sizeof(LambBlock) == 2 * sizeof(double));

constexpr std::size_t kAlignmentBytes = 16;
constexpr std::size_t kMostSlices = 65536;  // of a census record

void check_aligned(const void* memory, const std::string& what) {
  VSR_CHECK(reinterpret_cast<std::uintptr_t>(memory) % kAlignmentBytes == 0,
            what + " does not begin at a multiple of 16 bytes");
}

void check_length(std::size_t got, std::size_t expected, const std::string& what) {
  VSR_CHECK(got == expected, what + ": got " + std::to_string(got) + " elements, expected " +
                                 std::to_string(expected));
}

int team_count(std::int64_t teams) {
  VSR_CHECK(teams <= std::numeric_limits<int>::max(), "too many elements for one launch");
  return static_cast<int>(teams);
}

template <typename List, typename Span>
List list_of(std::span<const Span> spans, std::size_t size_bytes, const std::string& what) {
  constexpr std::size_t kMost = sizeof(List::begin) / sizeof(List::begin[0]);
  VSR_CHECK(spans.size() <= kMost, "got " + std::to_string(spans.size()) + " " + what +
                                       "s, a kernel takes up to " + std::to_string(kMost));
  List list = {};
  for (const Span& one : spans) {
    const std::string name = what + " " + std::to_string(list.count);
    VSR_CHECK(one.size() == size_bytes, name + ": got " + std::to_string(one.size()) +
                                            " bytes, expected " + std::to_string(size_bytes));
    check_aligned(one.data(), name);
    list.begin[list.count++] =
        reinterpret_cast<std::remove_reference_t<decltype(list.begin[0])>>(one.data());
  }
  return list;
}

// The gradient of a shard: sums, or else slices.
void place_gradient(const DeviceShard& shard, std::size_t elements, ShardPlaces& places) {
  places.type = type_of(shard.dtype);
  places.factor = shard.factor.value;
  places.factor_on_device = shard.factor.on_device;
  if (shard.sums.empty()) {
    places.slices =
        list_of<SliceList>(shard.slices, elements * element_bytes(shard.dtype), "gradient slice");
    return;
  }
  check_length(shard.sums.size(), elements, "sums");
  check_aligned(shard.sums.data(), "sums");
  places.sums = shard.sums.data();
}

float* place_moment(std::span<float> moment, std::size_t elements, const std::string& what) {
  check_length(moment.size(), elements, what);
  check_aligned(moment.data(), what);
  return moment.data();
}

// Masters, `moments` moments and destinations of a shard.
void place_state(const DeviceShard& shard, int moments, ShardPlaces& places) {
  const std::size_t elements = shard.master.size();
  places.type = type_of(shard.dtype);
  check_aligned(shard.master.data(), "masters");
  places.master = shard.master.data();
  if (moments > 0) places.moment1 = place_moment(shard.moment1, elements, "first moments");
  if (moments > 1) places.moment2 = place_moment(shard.moment2, elements, "second moments");
  places.targets =
      list_of<TargetList>(shard.destinations, elements * element_bytes(shard.dtype), "destination");
}

comm::Interval interval_of(comm::Interval piece) {
  return piece;
}
template <typename Piece>
comm::Interval interval_of(const Piece& piece) {
  return piece.piece;
}

NoConstants constants_of(comm::Interval) {
  return {};
}
AdamConstants constants_of(const AdamPiece& piece) {
  return {piece.coefficients, piece.decay};
}
SgdConstants constants_of(const SgdPiece& piece) {
  return {piece.coefficients};
}
LambConstants constants_of(const LambPiece& piece) {
  return {piece.coefficients};
}

std::string text_of(comm::Interval piece) {
  return "[" + std::to_string(piece.begin) + ", " + std::to_string(piece.end) + ")";
}

// Two teams that step the same element would race.
template <typename Piece>
void check_pieces(std::span<const Piece> pieces, std::size_t elements) {
  std::vector<comm::Interval> sorted;
  for (const Piece& one : pieces) {
    const comm::Interval piece = interval_of(one);
    VSR_CHECK(0 <= piece.begin && piece.begin <= piece.end &&
                  piece.end <= static_cast<std::int64_t>(elements),
              "the piece " + text_of(piece) + " lies outside the shard of " +
                  std::to_string(elements) + " elements");
    if (!piece.is_empty()) sorted.push_back(piece);
  }
  const auto is_before = [](comm::Interval a, comm::Interval b) { return a.begin < b.begin; };
  if (!std::is_sorted(sorted.begin(), sorted.end(), is_before))
    std::sort(sorted.begin(), sorted.end(), is_before);
  for (std::size_t i = 1; i < sorted.size(); ++i)
    VSR_CHECK(sorted[i - 1].end <= sorted[i].begin,
              "the pieces " + text_of(sorted[i - 1]) + " and " + text_of(sorted[i]) + " overlap");
}

// `extra` advances by `extra_per_team` for each team of the launches before.
template <typename Rule, typename Extra, typename Piece>
std::vector<PieceLaunch<Rule, Extra>> cut(const ShardPlaces& shard, std::span<const Piece> pieces,
                                          Extra* extra, int extra_per_team) {
  std::vector<PieceLaunch<Rule, Extra>> launches;
  std::int64_t teams_before = 0;
  for (const Piece& one : pieces) {
    const comm::Interval piece = interval_of(one);
    if (piece.is_empty()) continue;
    if (launches.empty() || launches.back().pieces == kMaxPieces) {
      if (!launches.empty()) teams_before += launches.back().teams;
      launches.push_back({.shard = shard, .pieces = 0, .teams = 0, .extra = extra, .entries = {}});
      if constexpr (!std::is_void_v<Extra>)
        if (extra != nullptr) launches.back().extra += teams_before * extra_per_team;
    }
    PieceLaunch<Rule, Extra>& launch = launches.back();
    launch.entries[launch.pieces++] = {piece.begin, piece.end, launch.teams, constants_of(one)};
    launch.teams = team_count(launch.teams + static_cast<std::int64_t>(blocks_touched(piece)));
  }
  return launches;
}

template <typename Rule, typename Piece>
std::vector<PieceLaunch<Rule, void>> cut_step(const ShardPlaces& shard,
                                              std::span<const Piece> pieces) {
  return cut<Rule, void>(shard, pieces, nullptr, 0);
}

std::vector<ArrayLaunch> plan_array(Type type, const void* from, void* to, std::size_t elements) {
  check_aligned(from, "the input");
  check_aligned(to, "the output");
  if (elements == 0) return {};
  team_count(static_cast<std::int64_t>(elements) / kTeamBlock + 1);
  return {{type, from, to, static_cast<std::int64_t>(elements), 0.0F}};
}

void check_sum(const DeviceSum& sweep, std::size_t elements) {
  VSR_CHECK(sweep.accumulator.empty() || sweep.accumulator.size() == elements,
            "the accumulator has another length than the block norms say");
  check_aligned(sweep.accumulator.data(), "the accumulator");
  VSR_CHECK(sweep.norm != Norm::power || sweep.power > 0.0, "a p-norm needs p above 0");
  VSR_CHECK(!sweep.accumulate || !sweep.accumulator.empty() || elements == 0,
            "accumulate needs an accumulator");
  VSR_CHECK(sweep.slices.size() <= kMaxSlices || !sweep.accumulator.empty() || elements == 0,
            "got " + std::to_string(sweep.slices.size()) +
                " gradient slices; more than 64 need an accumulator");
  VSR_CHECK(sweep.slices.size() <= kMostSlices,
            "got " + std::to_string(sweep.slices.size()) +
                " gradient slices, expected 65536 at most; give them in rounds");
}

}  // namespace

std::vector<SumLaunch> plan_sum(const DeviceSum& sweep) {
  const std::size_t elements = sweep.block_norms.size() * comm::kBlockElements;
  check_sum(sweep, elements);
  team_count(static_cast<std::int64_t>(sweep.block_norms.size()));
  std::vector<SumLaunch> launches;
  if (elements == 0) return launches;
  std::size_t first = 0;
  do {
    const std::size_t count = std::min<std::size_t>(sweep.slices.size() - first, kMaxSlices);
    launches.push_back(
        {.type = type_of(sweep.dtype),
         .norm = static_cast<NormKind>(sweep.norm),
         .accumulate = sweep.accumulate || first > 0,
         .slices = list_of<SliceList>(sweep.slices.subspan(first, count),
                                      elements * element_bytes(sweep.dtype), "gradient slice"),
         .first_slice = static_cast<int>(first),
         .blocks = static_cast<std::int64_t>(sweep.block_norms.size()),
         .accumulator = sweep.accumulator.empty() ? nullptr : sweep.accumulator.data(),
         .power = sweep.power,
         .block_norms = sweep.block_norms.data(),
         .census = sweep.census.data()});
    first += count;
  } while (first < sweep.slices.size());
  return launches;
}

std::vector<AdamLaunch> plan_adam(const DeviceShard& shard, std::span<const AdamPiece> pieces) {
  ShardPlaces places = {};
  place_gradient(shard, shard.master.size(), places);
  place_state(shard, 2, places);
  check_pieces(pieces, shard.master.size());
  return cut_step<AdamConstants>(places, pieces);
}

std::vector<SgdLaunch> plan_sgd(const DeviceShard& shard, std::span<const SgdPiece> pieces) {
  const bool has_momentum = std::any_of(pieces.begin(), pieces.end(), [](const SgdPiece& piece) {
    return piece.coefficients.has_momentum;
  });
  ShardPlaces places = {};
  place_gradient(shard, shard.master.size(), places);
  place_state(shard, has_momentum ? 1 : 0, places);
  check_pieces(pieces, shard.master.size());
  return cut_step<SgdConstants>(places, pieces);
}

std::vector<LambMomentsLaunch> plan_lamb_moments(const DeviceShard& shard,
                                                 std::span<const LambPiece> pieces,
                                                 std::span<LambBlock> blocks) {
  ShardPlaces places = {};
  place_gradient(shard, shard.master.size(), places);
  place_state(shard, 2, places);
  check_pieces(pieces, shard.master.size());
  std::size_t touched = 0;
  for (const LambPiece& piece : pieces) {
    VSR_CHECK(piece.piece.begin % 8 == 0,
              "the piece " + text_of(piece.piece) + " begins inside the lanes of a norm block");
    touched += blocks_touched(piece.piece);
  }
  VSR_CHECK(blocks.size() == touched, "got " + std::to_string(blocks.size()) +
                                          " norm blocks, expected " + std::to_string(touched));
  return cut<LambConstants, double>(places, pieces, reinterpret_cast<double*>(blocks.data()), 2);
}

std::vector<LambApplyLaunch> plan_lamb_apply(const DeviceShard& shard,
                                             std::span<const LambPiece> pieces) {
  ShardPlaces places = {};
  place_state(shard, 2, places);
  check_pieces(pieces, shard.master.size());
  return cut_step<LambConstants>(places, pieces);
}

std::vector<MeanGradientLaunch> plan_mean_gradient(const DeviceShard& shard,
                                                   std::span<const comm::Interval> pieces,
                                                   std::span<float> gradient) {
  ShardPlaces places = {};
  place_gradient(shard, gradient.size(), places);
  check_aligned(gradient.data(), "the gradient");
  check_pieces(pieces, gradient.size());
  return cut<NoConstants, float>(places, pieces, gradient.data(), 0);
}

std::vector<ArrayLaunch> plan_ema(std::span<const float> master, std::span<float> ema,
                                  double decay) {
  check_length(ema.size(), master.size(), "averages");
  std::vector<ArrayLaunch> launches =
      plan_array(Type::fp32, master.data(), ema.data(), master.size());
  for (ArrayLaunch& launch : launches) launch.one_minus_decay = static_cast<float>(1.0 - decay);
  return launches;
}

std::vector<ArrayLaunch> plan_round_to(Dtype dtype, std::span<const float> values,
                                       std::span<std::byte> rounded) {
  check_length(rounded.size(), values.size() * element_bytes(dtype), "bytes of rounded values");
  return plan_array(type_of(dtype), values.data(), rounded.data(), values.size());
}

std::vector<ArrayLaunch> plan_widen(Dtype dtype, std::span<const std::byte> values,
                                    std::span<float> widened) {
  check_length(values.size(), widened.size() * element_bytes(dtype), "bytes of values");
  return plan_array(type_of(dtype), values.data(), widened.data(), widened.size());
}

}  // namespace detail
}  // namespace vsr::optim
