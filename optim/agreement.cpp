// SPDX-License-Identifier: Apache-2.0
#include "optim/agreement.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <string>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

struct Header {
  std::int64_t inf_count;
  std::int64_t nan_count;
  std::int64_t first_logical;
  std::int64_t first_leaf;
  std::int64_t leaves_done;
  std::uint64_t requests;
  std::uint64_t replica;
  std::uint64_t options;
  std::uint64_t buffers;
  double max_norm;
  double power;
  float loss_scale;
  Norm norm;
  std::uint8_t unused[3];
};
static_assert(sizeof(Header) == 96);

class Writer {
 public:
  explicit Writer(std::size_t size_bytes) : bytes_(size_bytes) {}
  template <typename T>
  void put(std::span<const T> values) {
    if (values.empty()) return;
    VSR_CHECK(at_ + values.size_bytes() <= bytes_.size(), "the record is larger than agreed");
    std::memcpy(bytes_.data() + at_, values.data(), values.size_bytes());
    at_ += values.size_bytes();
  }
  std::vector<std::byte> take() {
    VSR_CHECK(at_ == bytes_.size(), "the record is smaller than agreed");
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  std::vector<T> take(std::size_t count) {
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), bytes_.data(), count * sizeof(T));
    bytes_ = bytes_.subspan(count * sizeof(T));
    return values;
  }

 private:
  std::span<const std::byte> bytes_;
};

std::string rank_name(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

void check_equal(const Header& first, const Header& other, std::size_t rank) {
  if (first.loss_scale != other.loss_scale)
    throw ArgumentError("agree: " + rank_name(rank) + " holds loss scale " +
                        std::to_string(other.loss_scale) + ", rank 0 holds " +
                        std::to_string(first.loss_scale) + "; set the same value on all ranks");
  const auto differs = [](double a, double b) {  // NaN equals NaN: it is refused later
    return std::bit_cast<std::uint64_t>(a) != std::bit_cast<std::uint64_t>(b);
  };
  if (differs(first.max_norm, other.max_norm) || first.norm != other.norm ||
      differs(first.power, other.power))
    throw ArgumentError("agree: " + rank_name(rank) +
                        " clips with another norm or maximum than rank 0 (" +
                        std::to_string(other.max_norm) + " and " + std::to_string(first.max_norm) +
                        "); call clip_fp32_grads alike on all ranks");
  if (first.buffers != other.buffers)
    throw ArgumentError("agree: the buffers of " + rank_name(rank) +
                        " (such as batch-norm statistics) differed from those of rank 0 at "
                        "zero_grad; forward passes come after zero_grad, and buffers are set alike "
                        "on all ranks");
  if (first.options != other.options) throw ArgumentError(Agreement::other_options(rank));
}

void check_replicas(std::span<const Header> headers) {
  ReplicasDiffer differ;
  for (const Header& header : headers) differ.hashes.push_back(header.replica);
  if (std::ranges::adjacent_find(differ.hashes, std::not_equal_to()) != differ.hashes.end())
    throw differ;
}

}  // namespace

Agreement::Agreement(comm::Communicator& world, const FlatLayout& layout, int leaves,
                     std::size_t buffer_values)
    : world_(world), layout_(layout), leaves_(leaves), buffer_values_(buffer_values) {
  for (int rank = 0; rank < world.world(); ++rank) {
    const auto my_leaves = static_cast<std::size_t>(leaves_of(rank));
    const auto blocks = static_cast<std::size_t>(layout.shard_blocks(rank, world.world()));
    sizes_bytes_.push_back(sizeof(Header) + layout.parameters().size() +
                           sizeof(double) * (my_leaves * (1 + buffer_values) + blocks));
  }
}

std::string Agreement::other_options(std::size_t rank) {
  return "agree: " + rank_name(rank) +
         " has other optimizer options (rate, betas, decay, …) than rank 0; set the same ones on "
         "all ranks";
}

int Agreement::leaves_of(int rank) const noexcept {
  return rank >= leaves_ ? 0 : (leaves_ - rank - 1) / world_.world() + 1;
}

std::vector<std::byte> Agreement::pack(const StepRecord& record) const {
  const auto leaves = static_cast<std::size_t>(leaves_of(world_.rank()));
  Header header = {record.non_finite.inf_count,
                   record.non_finite.nan_count,
                   record.non_finite.first_logical,
                   record.non_finite.first_leaf,
                   static_cast<std::int64_t>(record.losses.size()),
                   record.requests,
                   record.replica,
                   record.options,
                   record.buffers,
                   record.max_norm,
                   record.power,
                   record.loss_scale,
                   record.norm,
                   {}};
  // A rank that left out leaves still fills its record; all ranks then refuse the step together.
  std::vector<double> losses(record.losses.begin(), record.losses.end());
  std::vector<double> values(record.buffer_values.begin(), record.buffer_values.end());
  losses.resize(leaves);
  values.resize(leaves * buffer_values_);
  Writer writer(sizes_bytes_[static_cast<std::size_t>(world_.rank())]);
  writer.put(std::span<const Header>(&header, 1));
  writer.put(std::span<const double>(losses));
  writer.put(std::span<const double>(values));
  writer.put(record.block_norms);
  writer.put(record.used);
  return writer.take();
}

void Agreement::fold_flags(std::span<const std::uint8_t> first, std::span<const std::uint8_t> flags,
                           std::size_t rank, std::span<std::uint8_t> used) const {
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (((first[i] ^ flags[i]) & ParameterFlags::kTrainable) != 0)
      throw ArgumentError("agree: parameter " + layout_.parameters()[i].name + " is frozen on " +
                          rank_name((flags[i] & ParameterFlags::kTrainable) != 0 ? 0 : rank) +
                          " but not on " +
                          rank_name((flags[i] & ParameterFlags::kTrainable) != 0 ? rank : 0) +
                          "; freeze and thaw alike on all ranks");
    used[i] |= flags[i] & ParameterFlags::kUsed;
  }
}

Agreed Agreement::exchange(const StepRecord& record) const {
  const comm::Communicator::Purpose purpose(world_, "agree");
  const std::vector<std::byte> mine = pack(record);
  std::size_t total = 0;
  for (const std::size_t size : sizes_bytes_) total += size;
  std::vector<std::byte> all(total);
  world_.all_gather_bytes(mine, all, sizes_bytes_);

  Agreed agreed;
  agreed.losses.resize(static_cast<std::size_t>(leaves_));
  agreed.buffer_values.resize(static_cast<std::size_t>(leaves_));
  agreed.used.resize(layout_.parameters().size());
  std::vector<Header> headers;
  std::vector<std::vector<double>> norms;
  std::vector<std::vector<std::uint8_t>> flags;
  std::size_t offset = 0;
  for (int rank = 0; rank < world_.world(); ++rank) {
    const std::size_t size = sizes_bytes_[static_cast<std::size_t>(rank)];
    Reader reader(std::span<const std::byte>(all).subspan(offset, size));
    offset += size;
    headers.push_back(reader.take<Header>(1).front());
    const std::vector<double> losses =
        reader.take<double>(static_cast<std::size_t>(leaves_of(rank)));
    for (std::size_t i = 0; i < losses.size(); ++i)
      agreed.losses[static_cast<std::size_t>(rank) + i * static_cast<std::size_t>(world_.world())] =
          losses[i];
    for (std::size_t i = 0; i < losses.size(); ++i)
      agreed.buffer_values[static_cast<std::size_t>(rank) +
                           i * static_cast<std::size_t>(world_.world())] =
          reader.take<double>(buffer_values_);
    norms.push_back(
        reader.take<double>(static_cast<std::size_t>(layout_.shard_blocks(rank, world_.world()))));
    const std::vector<std::uint8_t> used = reader.take<std::uint8_t>(agreed.used.size());
    flags.push_back(used);
  }
  for (std::size_t rank = 0; rank < headers.size(); ++rank) {
    const Header& header = headers[rank];
    if (header.leaves_done != leaves_of(static_cast<int>(rank)))
      throw ArgumentError("agree: " + rank_name(rank) + " called backward " +
                          std::to_string(header.leaves_done) + " times, expected " +
                          std::to_string(leaves_of(static_cast<int>(rank))) +
                          ": once for each of its leaves");
    check_equal(headers.front(), header, rank);
    fold_flags(flags.front(), flags[rank], rank, agreed.used);
    agreed.requests |= header.requests;
    NonFinite& found = agreed.non_finite;
    found.inf_count += header.inf_count;
    found.nan_count += header.nan_count;
    if (header.first_logical < 0) continue;
    if (found.first_logical >= 0 && found.first_logical <= header.first_logical) continue;
    found.first_logical = header.first_logical;
    found.first_leaf = static_cast<int>(header.first_leaf);
  }
  check_replicas(headers);
  // Global order: segment by segment, and inside a segment in rank order.
  std::vector<double> blocks;
  std::vector<std::size_t> next(norms.size());
  for (const Segment& segment : layout_.segments()) {
    for (std::size_t rank = 0; rank < norms.size(); ++rank) {
      const auto count = static_cast<std::size_t>(
          comm::shard_of(segment.elements, static_cast<int>(rank), world_.world()).size() /
          comm::kBlockElements);
      const auto begin = norms[rank].begin() + static_cast<std::ptrdiff_t>(next[rank]);
      blocks.insert(blocks.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
      next[rank] += count;
    }
  }
  agreed.norm = fold_blocks(record.norm, record.power, blocks);
  return agreed;
}

}  // namespace vsr::optim
