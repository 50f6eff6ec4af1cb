// SPDX-License-Identifier: Apache-2.0
// The instructions of a pickle, as many of them as a state dict needs. Values live in one list and
// name each other by index, so that no depth, cycle or repetition in a hostile pickle costs stack,
// time or memory beyond its own length. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace vsr::runtime {

/// Place of a value in its machine.
using PickleIndex = std::int32_t;

enum class PickleKind : std::uint8_t {
  none,
  integer,  ///< `number`; booleans too
  other,    ///< a value that no tensor needs
  text,
  tuple,    ///< `items`
  list,     ///< `items`
  dict,     ///< `items`: key, value, key, value, …
  global,   ///< `text` "module.name"; `more_text` the dtype of a storage class
  storage,  ///< `text` its member, `more_text` its dtype, `number` its elements
  tensor,   ///< `items`: storage, offset, shape, strides
};

struct PickleNode {
  PickleKind kind = PickleKind::none;
  std::int64_t number = 0;
  std::string text;
  std::string more_text;
  std::vector<PickleIndex> items;
};

/// Runs one pickle.
class PickleMachine {
 public:
  /// @returns the value that is left. @throws CheckpointError naming the byte and the reason
  PickleIndex run(std::span<const std::byte> pickle);
  /// The value at an index this machine gave.
  const PickleNode& at(PickleIndex index) const { return nodes_[static_cast<std::size_t>(index)]; }

 private:
  bool step(std::uint8_t opcode);
  bool step_number(std::uint8_t opcode);
  bool step_collection(std::uint8_t opcode);
  bool step_memo(std::uint8_t opcode);
  bool step_object(std::uint8_t opcode);

  std::span<const std::byte> take(std::size_t count);
  template <typename T>
  T next();
  std::string line();
  void push(PickleNode node);
  PickleIndex pop();
  std::vector<PickleIndex> pop_to_mark();
  void push_tuple(std::size_t count);
  PickleNode& container(PickleKind kind);
  void remember(std::uint32_t key);
  void recall(std::uint32_t key);
  void append(PickleKind kind, const std::vector<PickleIndex>& items);
  void call();
  void push_global();
  void push_storage();
  void push_long();

  std::span<const std::byte> pickle_;
  std::size_t at_ = 0;
  std::vector<PickleNode> nodes_;
  std::vector<PickleIndex> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, PickleIndex> memo_;
};

}  // namespace vsr::runtime
