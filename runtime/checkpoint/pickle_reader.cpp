// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/pickle_reader.hpp"

#include <set>
#include <string_view>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/pickle_machine.hpp"
#include "runtime/checkpoint/snapshot.hpp"
#include "runtime/checkpoint/weights_file.hpp"

namespace vsr::runtime {
namespace {

constexpr std::string_view kPrefix = "module.";
constexpr std::size_t kMostDimensions = 64;
constexpr std::size_t kMostTensors = std::size_t{1} << 17;

std::string named(const std::string& name) {
  return "tensor '" + name + "' ";
}

std::vector<std::int64_t> numbers(const PickleMachine& machine, PickleIndex tuple,
                                  const std::string& what) {
  const PickleNode& node = machine.at(tuple);
  if (node.kind != PickleKind::tuple || node.items.size() > kMostDimensions)
    throw CheckpointError(what + "has no readable shape and strides");
  std::vector<std::int64_t> values;
  for (const PickleIndex item : node.items) {
    const PickleNode& number = machine.at(item);
    if (number.kind != PickleKind::integer || number.number < 0)
      throw CheckpointError(what + "has a shape or strides with what is no number from 0 on");
    values.push_back(number.number);
  }
  return values;
}

/// Refuse a view that leaves its storage, or shows elements of it more than once.
void check_view(const PickledTensor& tensor) {
  const std::string what = named(tensor.name);
  if (tensor.shape.size() != tensor.strides.size())
    throw CheckpointError(what + "has " + std::to_string(tensor.shape.size()) + " extents and " +
                          std::to_string(tensor.strides.size()) + " strides");
  const std::int64_t numel = elements_of_shape(tensor.shape);
  std::int64_t last = tensor.offset;
  bool fits = numel >= 0 && numel <= tensor.storage_elements;
  if (numel > 0)
    for (std::size_t i = 0; fits && i < tensor.shape.size(); ++i) {
      std::int64_t step = 0;
      fits = !__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step) &&
             !__builtin_add_overflow(last, step, &last);
    }
  if (!fits || (numel > 0 && last >= tensor.storage_elements))
    throw CheckpointError(what + "does not fit its storage of " +
                          std::to_string(tensor.storage_elements) + " elements");
}

PickledTensor tensor_at(const PickleMachine& machine, const std::string& name, PickleIndex index) {
  const PickleNode& node = machine.at(index);
  const std::string what = named(name);
  if (node.kind != PickleKind::tensor)
    throw CheckpointError("entry '" + name +
                          "' is no tensor; --key names the entry that holds "
                          "the weights");
  const PickleNode& storage = machine.at(node.items.at(0));
  const PickleNode& offset = machine.at(node.items.at(1));
  if (storage.kind != PickleKind::storage || offset.kind != PickleKind::integer ||
      offset.number < 0)
    throw CheckpointError(what + "has no readable storage");
  PickledTensor tensor;
  tensor.name = name;
  tensor.dtype = storage.more_text;
  tensor.storage = storage.text;
  tensor.storage_elements = storage.number;
  tensor.offset = offset.number;
  tensor.shape = numbers(machine, node.items.at(2), what);
  tensor.strides = numbers(machine, node.items.at(3), what);
  check_view(tensor);
  return tensor;
}

/// The value of `key` in a dict, or -1.
PickleIndex entry_of(const PickleMachine& machine, PickleIndex dict, const std::string& key) {
  const PickleNode& node = machine.at(dict);
  for (std::size_t i = 0; i < node.items.size(); i += 2)
    if (machine.at(node.items[i]).kind == PickleKind::text && machine.at(node.items[i]).text == key)
      return node.items[i + 1];
  return -1;
}

std::string keys_of(const PickleMachine& machine, PickleIndex dict) {
  constexpr std::size_t kShown = 10;
  constexpr std::size_t kShownBytes = 100;
  std::string keys;
  const PickleNode& node = machine.at(dict);
  for (std::size_t i = 0; i < node.items.size() && i < 2 * kShown; i += 2)
    keys += (keys.empty() ? "" : ", ") + machine.at(node.items[i]).text.substr(0, kShownBytes);
  return node.items.size() > 2 * kShown ? keys + ", …" : keys;
}

/// The dict of the weights.
PickleIndex weights_in(const PickleMachine& machine, PickleIndex top, const std::string& key) {
  if (machine.at(top).kind != PickleKind::dict)
    throw CheckpointError("it holds no dict of tensors");
  const std::vector<std::string> keys =
      key.empty() ? std::vector<std::string>{"params_ema", "params"} : std::vector{key};
  for (const std::string& candidate : keys) {
    const PickleIndex found = entry_of(machine, top, candidate);
    if (found < 0) continue;
    if (machine.at(found).kind != PickleKind::dict)
      throw CheckpointError("its entry '" + candidate + "' is no dict of tensors");
    return found;
  }
  if (!key.empty())
    throw CheckpointError("it has no entry '" + key + "', only: " + keys_of(machine, top));
  return top;
}

}  // namespace

std::vector<PickledTensor> tensors_in_pickle(std::span<const std::byte> pickle,
                                             const std::string& key) {
  PickleMachine machine;
  const PickleIndex dict = weights_in(machine, machine.run(pickle), key);
  if (machine.at(dict).items.size() / 2 > kMostTensors)
    throw CheckpointError("it has more tensors than any network");
  std::vector<PickledTensor> tensors;
  std::set<std::string> names;
  const std::vector<PickleIndex>& items = machine.at(dict).items;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const PickleNode& name_node = machine.at(items[i]);
    if (name_node.kind != PickleKind::text || name_node.text.size() > kMostNameBytes)
      throw CheckpointError("its dict of weights has a key that is no text, or too long");
    std::string name = name_node.text;
    if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
    if (!names.insert(name).second) throw CheckpointError("it holds '" + name + "' twice");
    tensors.push_back(tensor_at(machine, name, items[i + 1]));
  }
  return tensors;
}

}  // namespace vsr::runtime
