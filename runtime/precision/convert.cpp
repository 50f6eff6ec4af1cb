// SPDX-License-Identifier: Apache-2.0
// The untyped half of the conversion: values as TorchScript holds them, whose element types are
// known only at run time.
#include "runtime/precision/convert.hpp"

#include <map>
#include <string>
#include <vector>

namespace vsr::runtime {
namespace {

/// Convert `value` when it holds one of `Types`.
template <class... Types>
void convert_held(torch::nn::AnyValue& value, Conversion& conversion) {
  const auto convert_as = [&](auto* held) {
    if (held != nullptr) *held = conversion(*held);
    return held != nullptr;
  };
  (... || convert_as(value.try_get<Types>()));
}

}  // namespace

torch::Tensor Conversion::operator()(const torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.scalar_type() != from_ || from_ == to_) return tensor;
  const void* key = tensor.unsafeGetTensorImpl();
  const auto found = done_.find(key);
  if (found != done_.end()) return found->second.result.toTensor();
  torch::Tensor result = tensor.to(to_);
  done_.emplace(key, Converted{tensor, result});
  return result;
}

c10::IValue Conversion::operator()(const c10::IValue& value) {
  if (value.isTensor()) return (*this)(value.toTensor());
  if (value.isTuple()) return tuple(value);
  if (!value.isList() && !value.isGenericDict()) return value;
  const void* key = value.internalToPointer();
  const auto found = done_.find(key);
  if (found != done_.end()) return found->second.result;
  c10::IValue result = value.isList() ? list(value) : dictionary(value);
  done_.emplace(key, Converted{value, result});
  return result;
}

torch::nn::AnyValue Conversion::operator()(const torch::nn::AnyValue& value) {
  using torch::Tensor;
  torch::nn::AnyValue result = value;
  convert_held<Tensor, std::vector<Tensor>, std::tuple<Tensor, Tensor>, std::pair<Tensor, Tensor>,
               std::tuple<Tensor, Tensor, Tensor>, std::tuple<Tensor, std::tuple<Tensor, Tensor>>,
               std::map<std::string, Tensor>>(result, *this);
  return result;
}

c10::IValue Conversion::tuple(const c10::IValue& value) {
  const auto source = value.toTuple();
  std::vector<c10::IValue> elements;
  bool changed = false;
  for (const c10::IValue& element : source->elements()) {
    elements.push_back((*this)(element));
    changed = changed || !elements.back().is(element);
  }
  if (!changed) return value;
  const auto type = source->type();
  if (type->schema()) return c10::ivalue::Tuple::createNamed(std::move(elements), type);
  return c10::ivalue::Tuple::create(std::move(elements));
}

c10::IValue Conversion::list(const c10::IValue& value) {
  const c10::List<c10::IValue> source = value.toList();
  c10::impl::GenericList result(source.elementType());
  bool changed = false;
  for (const c10::IValue& element : source) {
    result.push_back((*this)(element));
    changed = changed || !result.get(result.size() - 1).is(element);
  }
  if (!changed) return value;
  return result;
}

c10::IValue Conversion::dictionary(const c10::IValue& value) {
  const auto source = value.toGenericDict();
  c10::impl::GenericDict result(source.keyType(), source.valueType());
  bool changed = false;
  for (const auto& item : source) {
    const c10::IValue converted = (*this)(item.value());
    changed = changed || !converted.is(item.value());
    result.insert(item.key(), converted);
  }
  if (!changed) return value;
  return result;
}

}  // namespace vsr::runtime
