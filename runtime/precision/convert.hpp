// SPDX-License-Identifier: Apache-2.0
// Training code works in FP32 while the network works in FP16 or BF16. This file moves a whole
// value across that border in one call, however deep the tensors lie in it, and keeps what the
// caller may rely on: its structure, everything that is not a tensor of the source dtype, and
// aliasing.
#pragma once

#include <torch/torch.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vsr::runtime {

/// Converts every tensor of dtype `from` inside a value to dtype `to`; one object converts one
/// value.
///
/// Handled: tensors, c10::IValue (tuples, named tuples, lists, dictionaries), std::vector, array,
/// pair, tuple, map, unordered_map, optional and torch::OrderedDict, nested at will. Tensors of any
/// other dtype, undefined tensors, numbers, strings, keys and objects come back unchanged.
/// The same tensor met twice gives the same result twice, as does the same IValue list or
/// dictionary; a container in which nothing changes is returned itself, not copied. Host or device:
/// each tensor stays where it is. Autograd: differentiable, like Tensor::to.
class Conversion {
 public:
  Conversion(at::ScalarType from, at::ScalarType to) : from_(from), to_(to) {}

  torch::Tensor operator()(const torch::Tensor& tensor);
  c10::IValue operator()(const c10::IValue& value);

  template <class T>
  std::vector<T> operator()(const std::vector<T>& values) {
    std::vector<T> result;
    result.reserve(values.size());
    for (const auto& value : values) result.push_back((*this)(value));
    return result;
  }

  template <class T, std::size_t N>
  std::array<T, N> operator()(const std::array<T, N>& values) {
    auto result = values;
    for (auto& value : result) value = (*this)(value);
    return result;
  }

  template <class First, class Second>
  std::pair<First, Second> operator()(const std::pair<First, Second>& value) {
    auto first = (*this)(value.first);
    return {std::move(first), (*this)(value.second)};
  }

  template <class... Ts>
  std::tuple<Ts...> operator()(const std::tuple<Ts...>& value) {
    // Braces, because they alone promise evaluation from left to right.
    return std::apply([this](const auto&... parts) { return std::tuple<Ts...>{(*this)(parts)...}; },
                      value);
  }

  template <class Key, class T, class... Rest>
  std::map<Key, T, Rest...> operator()(const std::map<Key, T, Rest...>& values) {
    auto result = values;
    for (auto& [key, value] : result) value = (*this)(value);
    return result;
  }

  template <class Key, class T, class... Rest>
  std::unordered_map<Key, T, Rest...> operator()(
      const std::unordered_map<Key, T, Rest...>& values) {
    auto result = values;
    for (auto& [key, value] : result) value = (*this)(value);
    return result;
  }

  template <class Key, class T>
  torch::OrderedDict<Key, T> operator()(const torch::OrderedDict<Key, T>& values) {
    torch::OrderedDict<Key, T> result;
    for (const auto& item : values) result.insert(item.key(), (*this)(item.value()));
    return result;
  }

  template <class T>
  std::optional<T> operator()(const std::optional<T>& value) {
    if (!value) return std::nullopt;
    return (*this)(*value);
  }

  template <class Other>
  Other operator()(const Other& value) {
    return value;
  }

 private:
  struct Converted {
    c10::IValue source;  // kept alive: its address is the key
    c10::IValue result;
  };

  c10::IValue tuple(const c10::IValue& value);
  c10::IValue list(const c10::IValue& value);
  c10::IValue dictionary(const c10::IValue& value);

  at::ScalarType from_;
  at::ScalarType to_;
  std::unordered_map<const void*, Converted> done_;
};

/// Convert every `from` tensor inside `value` to `to`; see Conversion for what counts as inside.
template <class T>
T convert(const T& value, at::ScalarType from, at::ScalarType to) {
  return Conversion(from, to)(value);
}

/// Convert every FP32 tensor inside `value` to FP16, rounding to nearest even; above 65504 to inf.
template <class T>
T fp32_to_fp16(const T& value) {
  return convert(value, at::kFloat, at::kHalf);
}

/// Convert every FP16 tensor inside `value` to FP32, exactly.
template <class T>
T fp16_to_fp32(const T& value) {
  return convert(value, at::kHalf, at::kFloat);
}

}  // namespace vsr::runtime
