// SPDX-License-Identifier: Apache-2.0
// Training code works in FP32 while the network works in FP16 or BF16. This file moves a whole
// value across that border in one call, however deep the tensors lie in it, and keeps what the
// caller may rely on: its structure, everything that is not a tensor of the source dtype, and
// aliasing.
#pragma once

#include <torch/torch.h>

#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>

namespace vsr::runtime {

/// Text is a sequence too, but holds no tensors.
template <class T>
concept Text = requires(T value) {
  value.c_str();
};

/// A sequence container: vector, deque, list and their like.
template <class T>
concept Sequence = !Text<T> && requires(T values, typename T::value_type value) {
  values.push_back(value);
  values.begin();
};

/// A dictionary of keys and values that iterates in place: std::map, std::unordered_map.
template <class T>
concept Dictionary = requires(T values) {
  typename T::key_type;
  typename T::mapped_type;
  values.begin()->second;
};

/// A struct that names its members with tensors:
/// `auto fields() { return std::tie(frames, flow); }`.
template <class T>
concept HasFields = requires(T value) {
  value.fields();
};

/// Converts every tensor of dtype `from` inside a value to dtype `to`; one object converts one
/// value.
///
/// Handled, nested at will: tensors, c10::IValue (tuples, named tuples, lists, dictionaries),
/// c10::List and Dict, sequences (std::vector, deque, list), array, pair, tuple, map,
/// unordered_map, optional, variant, torch::OrderedDict, torch::nn::AnyValue, and structs with
/// fields(). Tensors of any other dtype, undefined tensors, numbers, text, keys and objects come
/// back unchanged. Plain structs without fields() and views that own nothing (at::TensorList) do
/// not compile: their tensors would be passed over in silence.
///
/// The same tensor met twice gives the same result twice, as does the same IValue list or
/// dictionary; an IValue container in which nothing changes is returned itself, not copied. Two
/// views of one storage become two tensors. Host or device: each tensor stays where it is, in the
/// memory format it has. Autograd: differentiable, and gradients have the dtype of the source.
class Conversion {
 public:
  Conversion(at::ScalarType from, at::ScalarType to) : from_(from), to_(to) {}

  torch::Tensor operator()(const torch::Tensor& tensor);
  c10::IValue operator()(const c10::IValue& value);
  /// A Tensor, or a vector, pair, triple or string-keyed map of tensors, or what LSTM returns;
  /// other types come back unchanged, as nothing can be known about them.
  torch::nn::AnyValue operator()(const torch::nn::AnyValue& value);
  const char* operator()(const char* text) { return text; }

  template <class T>
  c10::List<T> operator()(const c10::List<T>& values) {
    return (*this)(c10::IValue(values)).template to<c10::List<T>>();
  }

  template <class Key, class T>
  c10::Dict<Key, T> operator()(const c10::Dict<Key, T>& values) {
    return (*this)(c10::IValue(values)).template to<c10::Dict<Key, T>>();
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

  template <class... Ts>
  std::variant<Ts...> operator()(const std::variant<Ts...>& value) {
    return std::visit([this](const auto& held) { return std::variant<Ts...>((*this)(held)); },
                      value);
  }

  template <class Other>
  Other operator()(const Other& value) {
    if constexpr (HasFields<Other>) {
      Other result = value;
      std::apply([this](auto&... fields) { ((fields = (*this)(fields)), ...); }, result.fields());
      return result;
    } else if constexpr (Dictionary<Other>) {
      Other result = value;
      for (auto& [key, element] : result) element = (*this)(element);
      return result;
    } else if constexpr (Sequence<Other>) {
      Other result;
      for (const auto& element : value) result.push_back((*this)(element));
      return result;
    } else {
      static_assert(!std::is_same_v<Other, at::TensorList>,
                    "at::TensorList owns no tensors; pass a std::vector<torch::Tensor>");
      static_assert(
          !std::is_class_v<Other> || !std::is_aggregate_v<Other> || std::is_empty_v<Other>,
          "a plain struct names its members with tensors: "
          "auto fields() { return std::tie(first, second); }");
      return value;
    }
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
