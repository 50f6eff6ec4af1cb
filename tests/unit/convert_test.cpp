// SPDX-License-Identifier: Apache-2.0
// Conversion of nested values: which tensors change, what stays the same object, and what the
// memory of a tensor looks like afterwards. Scripted networks, whose arguments and results are such
// values, are here too.
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cmath>
#include <deque>
#include <initializer_list>
#include <list>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "comm/error.hpp"
#include "runtime/precision/convert.hpp"
#include "runtime/precision/script_module.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/half_kernels.hpp"

namespace vsr::runtime {
namespace {

using test::expect_in;
using torch::Tensor;

TEST(Convert, RoundsToNearestEvenAndBackExactly) {
  const Tensor x = torch::tensor({65519.99F, 65520.0F, 0x1p-24F, 0x1p-25F, 0x1.001p-25F, 2049.0F});
  const Tensor half = fp32_to_fp16(x);
  ASSERT_EQ(half.scalar_type(), at::kHalf);
  const Tensor expected = torch::tensor({65504.0F, INFINITY, 0x1p-24F, 0.0F, 0x1p-24F, 2048.0F});
  EXPECT_TRUE(torch::equal(fp16_to_fp32(half), expected));
}

TEST(Convert, LeavesEverythingElseAlone) {
  const Tensor integers = torch::arange(3);
  const Tensor doubles = torch::ones({2}, at::kDouble);
  EXPECT_TRUE(fp32_to_fp16(integers).is_same(integers));
  EXPECT_TRUE(fp32_to_fp16(doubles).is_same(doubles));
  EXPECT_FALSE(fp32_to_fp16(Tensor()).defined());
  EXPECT_EQ(fp32_to_fp16(std::string("text")), "text");
  EXPECT_EQ(fp32_to_fp16(7), 7);
  const Tensor half = torch::ones({2}, at::kHalf);
  EXPECT_TRUE(fp32_to_fp16(half).is_same(half));
}

TEST(Convert, KeepsTheStructureOfContainers) {
  const Tensor x = torch::full({2}, 1.5F);
  using Value = std::tuple<int, std::vector<Tensor>, std::map<std::string, std::optional<Tensor>>,
                           std::pair<std::string, std::array<Tensor, 2>>>;
  const Value value{
      4, {x, torch::arange(2)}, {{"a", x}, {"b", std::nullopt}}, {"p", {x, Tensor()}}};
  const Value got = fp32_to_fp16(value);
  EXPECT_EQ(std::get<0>(got), 4);
  EXPECT_EQ(std::get<1>(got)[0].scalar_type(), at::kHalf);
  EXPECT_EQ(std::get<1>(got)[1].scalar_type(), at::kLong);
  EXPECT_EQ(std::get<2>(got).at("a")->scalar_type(), at::kHalf);
  EXPECT_FALSE(std::get<2>(got).at("b").has_value());
  EXPECT_EQ(std::get<3>(got).first, "p");
  EXPECT_TRUE(std::get<3>(got).second[0].is_same(std::get<1>(got)[0])) << "one tensor, one result";
  EXPECT_FALSE(std::get<3>(got).second[1].defined());
  EXPECT_EQ(x.scalar_type(), at::kFloat);
}

TEST(Convert, KeepsDictionariesInOrder) {
  torch::OrderedDict<std::string, Tensor> ordered;
  ordered.insert("z", torch::ones({1}));
  ordered.insert("a", torch::arange(1));
  const auto got = fp32_to_fp16(ordered);
  EXPECT_EQ(got.keys(), (std::vector<std::string>{"z", "a"}));
  EXPECT_EQ(got["z"].scalar_type(), at::kHalf);
  const std::unordered_map<int, Tensor> unordered{{3, torch::ones({1})}};
  EXPECT_EQ(fp32_to_fp16(unordered).at(3).scalar_type(), at::kHalf);
}

TEST(Convert, WalksUntypedValues) {
  const Tensor x = torch::full({2}, 0.5F);
  c10::impl::GenericDict dictionary(c10::StringType::get(), c10::TensorType::get());
  dictionary.insert("x", x);
  c10::List<Tensor> list({x, x});
  const c10::IValue value(
      c10::ivalue::Tuple::create({x, list, dictionary, std::string("s"), 3, c10::IValue()}));
  const auto got = fp32_to_fp16(value).toTuple()->elements();
  EXPECT_EQ(got[0].toTensor().scalar_type(), at::kHalf);
  EXPECT_TRUE(got[1].toTensorList().get(0).is_same(got[0].toTensor()));
  EXPECT_TRUE(got[1].toTensorList().get(1).is_same(got[0].toTensor()));
  EXPECT_TRUE(got[2].toGenericDict().at("x").toTensor().is_same(got[0].toTensor()));
  EXPECT_EQ(got[3].toStringRef(), "s");
  EXPECT_EQ(got[4].toInt(), 3);
  EXPECT_TRUE(got[5].isNone());
}

TEST(Convert, KeepsAliasesOfListsAndUnchangedContainers) {
  c10::List<Tensor> list({torch::ones({1})});
  const c10::IValue twice(c10::ivalue::Tuple::create({list, list}));
  const auto got = fp32_to_fp16(twice).toTuple()->elements();
  EXPECT_TRUE(got[0].is(got[1]));
  EXPECT_FALSE(got[0].is(c10::IValue(list)));
  const c10::IValue integers(c10::List<std::int64_t>({1, 2}));
  EXPECT_TRUE(fp32_to_fp16(integers).is(integers));
}

TEST(Convert, KeepsNamesOfTuples) {
  const auto type = c10::TupleType::createNamed(
      "Pair", std::vector<std::string>{"left", "right"},
      std::vector<c10::TypePtr>{c10::TensorType::get(), c10::IntType::get()});
  const c10::IValue value(
      c10::ivalue::Tuple::createNamed(std::vector<c10::IValue>{torch::ones({1}), 2}, type));
  const auto got = fp32_to_fp16(value).toTuple();
  EXPECT_EQ(got->type()->schema()->arguments()[1].name(), "right");
  EXPECT_EQ(got->elements()[0].toTensor().scalar_type(), at::kHalf);
}

TEST(Convert, IsDifferentiable) {
  const Tensor x = torch::ones({3}).requires_grad_();
  fp32_to_fp16(x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::ones({3})));
}

TEST(Convert, RoundsToBf16AsWell) {
  // 8 bits of mantissa: 257 lies halfway between 256 and 258, 259 between 258 and 260.
  const Tensor x = torch::tensor({257.0F, 259.0F, 1.0F, 0x1p-130F});
  const Tensor got = convert(convert(x, at::kFloat, at::kBFloat16), at::kBFloat16, at::kFloat);
  EXPECT_TRUE(torch::equal(got, torch::tensor({256.0F, 260.0F, 1.0F, 0x1p-130F})));
}

TEST(Convert, WalksOptionalsOfVectorsOfTuples) {
  using Value = std::optional<std::vector<std::tuple<Tensor, int, std::optional<Tensor>>>>;
  const Tensor x = torch::ones({2});
  const Tensor mask = torch::ones({2}, at::kBool);
  const Value got = fp32_to_fp16(Value({{x, 1, std::nullopt}, {mask, 2, x}}));
  ASSERT_TRUE(got.has_value());
  ASSERT_EQ(got->size(), 2U);
  EXPECT_EQ(std::get<0>((*got)[0]).scalar_type(), at::kHalf);
  EXPECT_FALSE(std::get<2>((*got)[0]).has_value());
  EXPECT_TRUE(std::get<0>((*got)[1]).is_same(mask)) << "same tensor, same storage";
  EXPECT_EQ(std::get<1>((*got)[1]), 2);
  EXPECT_TRUE(std::get<2>((*got)[1])->is_same(std::get<0>((*got)[0])));
  EXPECT_FALSE(fp32_to_fp16(Value()).has_value());
}

TEST(Convert, WalksSequencesVariantsAndTypedLists) {
  const Tensor x = torch::ones({1});
  EXPECT_EQ(fp32_to_fp16(std::deque<Tensor>{x, x})[1].scalar_type(), at::kHalf);
  EXPECT_EQ(fp32_to_fp16(std::list<Tensor>{x}).front().scalar_type(), at::kHalf);
  EXPECT_EQ(fp32_to_fp16(std::vector<bool>{true, false}), (std::vector<bool>{true, false}));
  using Variant = std::variant<std::monostate, std::string, Tensor>;
  EXPECT_EQ(std::get<Tensor>(fp32_to_fp16(Variant(x))).scalar_type(), at::kHalf);
  EXPECT_EQ(std::get<std::string>(fp32_to_fp16(Variant("text"))), "text");
  EXPECT_EQ(fp32_to_fp16(Variant()).index(), 0U);
  const c10::List<Tensor> list({x, torch::arange(1)});
  EXPECT_EQ(fp32_to_fp16(list).get(0).scalar_type(), at::kHalf);
  EXPECT_EQ(fp32_to_fp16(list).get(1).scalar_type(), at::kLong);
  EXPECT_EQ(list.get(0).scalar_type(), at::kFloat) << "the source is left alone";
  c10::Dict<std::string, Tensor> dictionary;
  dictionary.insert("x", x);
  EXPECT_EQ(fp32_to_fp16(dictionary).at("x").scalar_type(), at::kHalf);
  EXPECT_EQ(dictionary.at("x").scalar_type(), at::kFloat);
}

struct Batch {
  Tensor frames;
  std::map<std::string, Tensor> extra;
  Tensor stays;
  int count = 0;
  auto fields() { return std::tie(frames, extra); }
};

TEST(Convert, WalksStructsThatNameTheirFields) {
  const Tensor x = torch::ones({2});
  const std::vector<Batch> got = fp32_to_fp16(std::vector<Batch>{{x, {{"mask", x}}, x, 3}});
  EXPECT_EQ(got[0].frames.scalar_type(), at::kHalf);
  EXPECT_TRUE(got[0].extra.at("mask").is_same(got[0].frames));
  EXPECT_TRUE(got[0].stays.is_same(x)) << "not among the fields";
  EXPECT_EQ(got[0].count, 3);
}

TEST(Convert, WalksUntypedOptionalsAndEmptyLists) {
  const auto type = c10::OptionalType::create(c10::TensorType::get());
  c10::impl::GenericList list(type);
  list.push_back(torch::ones({1}));
  list.push_back(c10::IValue());
  const auto got = fp32_to_fp16(c10::IValue(list)).toList();
  EXPECT_EQ(*got.elementType(), *type);
  EXPECT_EQ(c10::IValue(got.get(0)).toTensor().scalar_type(), at::kHalf);
  EXPECT_TRUE(c10::IValue(got.get(1)).isNone());
  const c10::IValue empty{c10::List<Tensor>()};
  EXPECT_TRUE(fp32_to_fp16(empty).is(empty));
}

TEST(Convert, KeepsUnchangedPartsOfUntypedValues) {
  const Tensor index = torch::arange(4);
  c10::impl::GenericDict inner(c10::StringType::get(), c10::TensorType::get());
  inner.insert("index", index);
  const c10::IValue value(c10::ivalue::Tuple::create({torch::ones({1}), inner}));
  const auto got = fp32_to_fp16(value).toTuple()->elements();
  EXPECT_TRUE(got[1].is(c10::IValue(inner)));
  EXPECT_TRUE(got[1].toGenericDict().at("index").toTensor().is_same(index));
}

TEST(Convert, WalksValuesBetweenModules) {
  const Tensor x = torch::ones({1});
  using State = std::tuple<Tensor, std::tuple<Tensor, Tensor>>;
  torch::nn::AnyValue got = fp32_to_fp16(torch::nn::AnyValue(State{x, {x, torch::arange(1)}}));
  const auto [y, state] = got.get<State>();
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  EXPECT_TRUE(std::get<0>(state).is_same(y));
  EXPECT_EQ(std::get<1>(state).scalar_type(), at::kLong);
  EXPECT_EQ(fp32_to_fp16(torch::nn::AnyValue(7)).get<int>(), 7);
}

TEST(Convert, KeepsMemoryFormats) {
  const Tensor image = torch::arange(24, at::kFloat).view({1, 2, 3, 4});
  const Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
  const Tensor half = fp32_to_fp16(last);
  EXPECT_TRUE(half.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(half.strides(), last.strides());
  EXPECT_TRUE(torch::equal(fp16_to_fp32(half), image));
  const Tensor transposed = torch::arange(6, at::kFloat).view({2, 3}).t();
  EXPECT_EQ(fp32_to_fp16(transposed).strides(), transposed.strides());
  // A view with gaps becomes a tensor of its own, with the view's values.
  const Tensor part = image.select(3, 1);
  const Tensor part_half = fp32_to_fp16(part);
  EXPECT_TRUE(torch::equal(fp16_to_fp32(part_half), part));
  EXPECT_FALSE(part_half.is_alias_of(fp32_to_fp16(image)));
}

TEST(Convert, GradientsComeBackInTheDtypeOfTheSource) {
  const Tensor x = torch::ones({2}).requires_grad_();
  const Tensor half = fp32_to_fp16(std::vector<Tensor>{x})[0];
  EXPECT_TRUE(half.requires_grad());
  half.retain_grad();
  (half * torch::tensor({2.0F, 0.5F}).to(at::kHalf)).sum().backward();
  EXPECT_EQ(half.grad().scalar_type(), at::kHalf);
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(x.grad(), torch::tensor({2.0F, 0.5F})));
  EXPECT_FALSE(fp32_to_fp16(torch::ones({1})).requires_grad());
}

/// ±300 in turns: mean 0, variance 9e4.
Tensor wide_values() {
  return (300 * (2 * (torch::arange(32, at::kFloat).remainder(2)) - 1)).view({2, 1, 4, 4});
}

torch::jit::Module script_norm() {
  torch::jit::Module norm("__torch__.layers.BatchNorm2d");
  norm.register_parameter("weight", torch::ones({1}).requires_grad_(), false);
  norm.register_parameter("bias", torch::zeros({1}).requires_grad_(), false);
  norm.register_buffer("running_mean", torch::zeros({1}));
  norm.register_buffer("running_var", torch::ones({1}));
  norm.register_attribute("training", c10::BoolType::get(), true);
  norm.define(R"(
def forward(self, x):
    return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var,
                            self.training, 1.0, 1e-5, False)
)");
  return norm;
}

torch::jit::Module script_head(const std::string& cast) {
  torch::jit::Module head("__torch__.layers.Head");
  head.register_parameter("weight", torch::full({1}, 1.0F + 0x1p-20F).requires_grad_(), false);
  head.register_attribute("training", c10::BoolType::get(), true);
  head.define("def forward(self, x):\n    return torch.matmul(x" + cast +
              ".unsqueeze(-1), self.weight)\n");
  return head;
}

/// Normalises, scales by arguments with names, and tells in which dtypes it worked.
torch::jit::Module script_net(const std::string& cast = "") {
  torch::jit::Module net("__torch__.Net");
  net.register_module("norm", script_norm());
  net.register_module("head", script_head(cast));
  net.register_buffer("offset", torch::full({1}, 0.5F));
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(R"(
def forward(self, x, factor: float = 1.0, more: Optional[Dict[str, Tensor]] = None) -> Tuple[Tensor, Dict[str, Tensor], List[int]]:
    y = self.head.forward(self.norm.forward(x)) * factor
    named = {"offset": self.offset}
    dtypes = [x.dtype, self.norm.forward(x).dtype]
    if more is not None:
        named["same"] = more["x"]
        y = y + more["bias"]
        dtypes.append(more["bias"].dtype)
        dtypes.append(more["index"].dtype)
    return y, named, dtypes
)");
  return net;
}

std::vector<std::int64_t> numbers(std::initializer_list<at::ScalarType> dtypes) {
  std::vector<std::int64_t> result;
  for (const at::ScalarType dtype : dtypes) result.push_back(static_cast<std::int64_t>(dtype));
  return result;
}

TEST(Fp16ScriptModule, TakesArgumentsByPlaceAndByName) {
  Fp16ScriptModule wrapped(script_net());
  const Tensor x = wide_values();
  c10::Dict<std::string, Tensor> more;
  more.insert("x", x);
  more.insert("bias", torch::full({1}, 2.0F));
  more.insert("index", torch::arange(1));
  const auto result = wrapped({x}, {{"factor", 2.0}, {"more", more}}).toTuple()->elements();
  const Tensor y = result[0].toTensor();
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(y, 2 * x.sign() + 2)) << "exact in FP16";
  EXPECT_EQ(result[1].toGenericDict().at("offset").toTensor().scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(result[1].toGenericDict().at("same").toTensor(), x));
  EXPECT_EQ(result[2].toIntVector(), numbers({at::kHalf, at::kHalf, at::kHalf, at::kLong}));
  EXPECT_EQ(more.at("bias").scalar_type(), at::kFloat);
  EXPECT_EQ(wrapped({x}).toTuple()->elements()[2].toIntVector(), numbers({at::kHalf, at::kHalf}));
}

TEST(Fp16ScriptModule, KeepsNormalisationAndGivesMasters) {
  Fp16ScriptModule wrapped(script_net());
  const auto parameters = wrapped.named_parameters_with_masters();
  ASSERT_EQ(parameters.size(), 3U);
  for (const auto& [name, replica, master] : parameters) {
    const bool is_head = name == "head.weight";
    EXPECT_EQ(replica.scalar_type(), is_head ? at::kHalf : at::kFloat) << name;
    EXPECT_EQ(master.item<float>(), is_head                 ? 1.0F + 0x1p-20F
                                    : name == "norm.weight" ? 1.0F
                                                            : 0.0F);
  }
  EXPECT_THROW(wrapped.named_parameters_with_masters(), ArgumentError);
  wrapped({wide_values()}).toTuple()->elements()[0].toTensor().sum().backward();
  for (const auto& parameter : wrapped.parameters())
    EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
  std::map<std::string, Tensor> buffers;
  for (const auto& [name, value] : wrapped.named_buffers()) buffers[name] = value;
  ASSERT_EQ(buffers.size(), 3U);
  EXPECT_EQ(buffers.at("offset").scalar_type(), at::kHalf);
  EXPECT_NEAR(buffers.at("norm.running_var").item<float>(), 9e4 * 32 / 31, 0.1);
  wrapped.eval();
  wrapped({torch::zeros({1, 1, 2, 2})});
  EXPECT_NEAR(buffers.at("norm.running_var").item<float>(), 9e4 * 32 / 31, 0.1);
}

TEST(Fp16ScriptModule, KeepsOtherModulesOfScriptsThatCast) {
  for (const KeepScriptInFp32& keep :
       {KeepScriptInFp32{.names = {"head"}}, KeepScriptInFp32{.types = {"Head"}}}) {
    Fp16ScriptModule wrapped(script_net(".to(self.weight.dtype)"), Precision::bf16, keep);
    const Tensor y = wrapped({wide_values()}).toTuple()->elements()[0].toTensor();
    EXPECT_EQ(y.max().item<float>(), 1.0F + 0x1p-20F) << "beyond BF16";
  }
}

TEST(Fp16ScriptModule, SaysWhatIsWrong) {
  Fp16ScriptModule wrapped(script_net(), Precision::fp16, {.names = {"head"}});
  expect_in("self.head.weight.dtype",
            test::message_of<ConfigurationError>([&] { wrapped({wide_values()}); }));
  expect_in("'tail'", test::message_of<ConfigurationError>([] {
              Fp16ScriptModule(script_net(), Precision::fp16, {.names = {"tail"}});
            }));
  const auto types = test::message_of<ConfigurationError>(
      [] { Fp16ScriptModule(script_net(), Precision::fp16, {.types = {"Linear"}}); });
  expect_in("BatchNorm2d, Head, Net", types);
  auto doubles = script_net();
  doubles.to(at::kDouble);
  expect_in("parameter norm.weight is Double",
            test::message_of<ConfigurationError>([&] { Fp16ScriptModule{doubles}; }));
  Fp16ScriptModule plain(script_net());
  EXPECT_THROW(plain({wide_values()}, {{"unknown", 1}}), std::exception);
}

TEST(Fp16ScriptModule, OtherPrecisions) {
  Fp16ScriptModule exact(script_net(), Precision::fp32);
  EXPECT_EQ(exact({wide_values()}).toTuple()->elements()[2].toIntVector(),
            numbers({at::kFloat, at::kFloat}));
  Fp16ScriptModule amp(script_net(), Precision::amp);
  for (const auto& parameter : amp.parameters()) EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  const Tensor y = amp({wide_values()}).toTuple()->elements()[0].toTensor();
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(y, y.to(at::kHalf).to(at::kFloat)))
      << "matmul is in the FP16 list of autocast";
}

}  // namespace
}  // namespace vsr::runtime
