// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/pickle_machine.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

/// More values than a state dict of 100000 tensors has.
constexpr std::size_t kMostNodes = std::size_t{1} << 21;
constexpr std::size_t kMostLineBytes = 256;
/// torch numbers the storages.
constexpr std::size_t kMostStorageNameBytes = 64;
constexpr std::uint8_t kProtocol = 2;

/// Instructions of protocol 2; a name for each as the reference of the format spells it.
enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
};

constexpr std::string_view kRebuild = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kOrderedDict = "collections.OrderedDict";

/// The names a pickle may use; beside a storage class the dtype of its elements.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kAllowed = {
    {{kRebuild, ""},
     {kOrderedDict, ""},
     {"torch.FloatStorage", "fp32"},
     {"torch.HalfStorage", "fp16"},
     {"torch.BFloat16Storage", "bf16"},
     {"torch.DoubleStorage", "fp64"},
     {"torch.IntStorage", "int32"},
     {"torch.LongStorage", "int64"},
     {"torch.ByteStorage", "uint8"},
     {"torch.BoolStorage", "uint8"}}};

}  // namespace

PickleIndex PickleMachine::run(std::span<const std::byte> pickle) {
  pickle_ = pickle;
  try {
    if (next<std::uint8_t>() != kProto || next<std::uint8_t>() != kProtocol)
      throw CheckpointError("it is no pickle of protocol 2, which torch.save writes");
    for (std::uint8_t opcode = next<std::uint8_t>(); opcode != kStop; opcode = next<std::uint8_t>())
      if (!step(opcode)) {
        std::array<char, 8> text = {};
        std::snprintf(text.data(), text.size(), "0x%02x", opcode);
        throw CheckpointError(std::string("instruction ") + text.data() +
                              " is not one that a state dict needs");
      }
    return pop();
  } catch (const CheckpointError& error) {
    throw CheckpointError("its pickle, byte " + std::to_string(at_) + ": " + error.what());
  }
}

bool PickleMachine::step(std::uint8_t opcode) {
  return step_number(opcode) || step_collection(opcode) || step_memo(opcode) || step_object(opcode);
}

bool PickleMachine::step_number(std::uint8_t opcode) {
  const auto push_integer = [&](std::int64_t value) {
    push({PickleKind::integer, value, {}, {}, {}});
  };
  switch (opcode) {
    case kBinInt:
      push_integer(next<std::int32_t>());
      return true;
    case kBinInt1:
      push_integer(next<std::uint8_t>());
      return true;
    case kBinInt2:
      push_integer(next<std::uint16_t>());
      return true;
    case kLong1:
      push_long();
      return true;
    case kNewTrue:
    case kNewFalse:
      push_integer(opcode == kNewTrue ? 1 : 0);
      return true;
    case kNone:
      push({});
      return true;
    case kBinFloat:
      take(sizeof(double));
      push({PickleKind::other, 0, {}, {}, {}});
      return true;
    case kBinUnicode: {
      const auto bytes = take(next<std::uint32_t>());
      push({PickleKind::text,
            0,
            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
            {},
            {}});
      return true;
    }
    default:
      return false;
  }
}

bool PickleMachine::step_collection(std::uint8_t opcode) {
  switch (opcode) {
    case kMark:
      marks_.push_back(stack_.size());
      return true;
    case kEmptyTuple:
      push_tuple(0);
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push_tuple(opcode - kTuple1 + 1U);
      return true;
    case kTuple: {
      std::vector<PickleIndex> items = pop_to_mark();
      push({PickleKind::tuple, 0, {}, {}, std::move(items)});
      return true;
    }
    case kEmptyList:
      push({PickleKind::list, 0, {}, {}, {}});
      return true;
    case kEmptyDict:
      push({PickleKind::dict, 0, {}, {}, {}});
      return true;
    case kAppend:
      append(PickleKind::list, {pop()});
      return true;
    case kAppends:
      append(PickleKind::list, pop_to_mark());
      return true;
    case kSetItem: {
      const PickleIndex value = pop();
      append(PickleKind::dict, {pop(), value});
      return true;
    }
    case kSetItems:
      append(PickleKind::dict, pop_to_mark());
      return true;
    default:
      return false;
  }
}

bool PickleMachine::step_memo(std::uint8_t opcode) {
  switch (opcode) {
    case kBinPut:
      remember(next<std::uint8_t>());
      return true;
    case kLongBinPut:
      remember(next<std::uint32_t>());
      return true;
    case kBinGet:
      recall(next<std::uint8_t>());
      return true;
    case kLongBinGet:
      recall(next<std::uint32_t>());
      return true;
    default:
      return false;
  }
}

bool PickleMachine::step_object(std::uint8_t opcode) {
  switch (opcode) {
    case kGlobal:
      push_global();
      return true;
    case kBinPersId:
      push_storage();
      return true;
    case kReduce:
      call();
      return true;
    case kBuild:
      // Attributes of an OrderedDict: torch notes versions of modules there, which say nothing of
      // the values.
      pop();
      container(PickleKind::dict);
      return true;
    default:
      return false;
  }
}

std::span<const std::byte> PickleMachine::take(std::size_t count) {
  if (count > pickle_.size() - at_) throw CheckpointError("it is cut off");
  const auto bytes = pickle_.subspan(at_, count);
  at_ += count;
  return bytes;
}

template <typename T>
T PickleMachine::next() {
  T value;
  std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
  return value;
}

std::string PickleMachine::line() {
  std::string text;
  for (char c = next<char>(); c != '\n'; c = next<char>()) {
    if (text.size() == kMostLineBytes) throw CheckpointError("a name is too long");
    text += c;
  }
  return text;
}

void PickleMachine::push(PickleNode node) {
  if (nodes_.size() == kMostNodes) throw CheckpointError("it has more values than a state dict");
  nodes_.push_back(std::move(node));
  stack_.push_back(static_cast<PickleIndex>(nodes_.size() - 1));
}

PickleIndex PickleMachine::pop() {
  // What lies below a mark is not there for what comes after it.
  if (stack_.empty() || (!marks_.empty() && stack_.size() == marks_.back()))
    throw CheckpointError("it takes a value that is not there");
  const PickleIndex index = stack_.back();
  stack_.pop_back();
  return index;
}

std::vector<PickleIndex> PickleMachine::pop_to_mark() {
  if (marks_.empty()) throw CheckpointError("a mark is missing");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<PickleIndex> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void PickleMachine::push_tuple(std::size_t count) {
  std::vector<PickleIndex> items;
  for (std::size_t i = 0; i < count; ++i) items.push_back(pop());
  std::reverse(items.begin(), items.end());
  push({PickleKind::tuple, 0, {}, {}, std::move(items)});
}

PickleNode& PickleMachine::container(PickleKind kind) {
  const PickleIndex index = pop();
  stack_.push_back(index);
  PickleNode& node = nodes_[static_cast<std::size_t>(index)];
  if (node.kind != kind) throw CheckpointError("it adds to what is no list or dict");
  return node;
}

void PickleMachine::append(PickleKind kind, const std::vector<PickleIndex>& items) {
  if (kind == PickleKind::dict && items.size() % 2 != 0)
    throw CheckpointError("a key has no value");
  PickleNode& node = container(kind);
  node.items.insert(node.items.end(), items.begin(), items.end());
}

void PickleMachine::remember(std::uint32_t key) {
  const PickleIndex index = pop();
  stack_.push_back(index);
  memo_[key] = index;
}

void PickleMachine::recall(std::uint32_t key) {
  const auto found = memo_.find(key);
  if (found == memo_.end())
    throw CheckpointError("it recalls value " + std::to_string(key) + ", which it never kept");
  stack_.push_back(found->second);
}

void PickleMachine::push_long() {
  const auto bytes = take(next<std::uint8_t>());
  if (bytes.size() > sizeof(std::int64_t)) throw CheckpointError("a number is too large");
  std::int64_t value = 0;
  if (!bytes.empty()) {
    const bool is_negative = (static_cast<std::uint8_t>(bytes.back()) & 0x80) != 0;
    value = is_negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
  }
  push({PickleKind::integer, value, {}, {}, {}});
}

void PickleMachine::push_global() {
  const std::string module = line();
  const std::string name = module + "." + line();
  for (const auto& [allowed, dtype] : kAllowed)
    if (name == allowed) {
      push({PickleKind::global, 0, name, std::string(dtype), {}});
      return;
    }
  throw CheckpointError("it asks for " + name + ", which is not allowed: only tensors are read");
}

void PickleMachine::push_storage() {
  const PickleNode& id = at(pop());
  const auto part = [&](std::size_t i) -> const PickleNode& { return at(id.items[i]); };
  if (id.kind != PickleKind::tuple || id.items.size() != 5 || part(0).text != "storage" ||
      part(1).more_text.empty() || part(1).kind != PickleKind::global ||
      part(2).kind != PickleKind::text || part(2).text.size() > kMostStorageNameBytes ||
      part(4).kind != PickleKind::integer || part(4).number < 0)
    throw CheckpointError("a storage has no readable description");
  push({PickleKind::storage, part(4).number, part(2).text, part(1).more_text, {}});
}

void PickleMachine::call() {
  const PickleIndex arguments = pop();
  const PickleIndex function = pop();
  const PickleNode& given = at(arguments);
  const std::string& name = at(function).text;
  if (at(function).kind == PickleKind::global && given.kind == PickleKind::tuple) {
    if (name == kOrderedDict && given.items.empty()) {
      push({PickleKind::dict, 0, {}, {}, {}});
      return;
    }
    if (name == kRebuild && (given.items.size() == 6 || given.items.size() == 7)) {
      push({PickleKind::tensor, 0, {}, {}, {given.items.begin(), given.items.begin() + 4}});
      return;
    }
  }
  throw CheckpointError("it calls what is not allowed: only tensors and dicts are made");
}

}  // namespace vsr::runtime
