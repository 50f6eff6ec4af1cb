// SPDX-License-Identifier: Apache-2.0
// The second sweep: one loop that walks a piece in vectors of eight and finishes it in scalars, and
// the rules it applies. Included by kernel_loops.inl, inside its unnamed namespace.

// The mean gradient of one element and of eight.
template <typename T, int kCount>
struct Gradients {
  const UpdateArguments& a;

  VSR_MEMBER_FUNCTION float one(std::int64_t i) const {
    return optim::unscaled(a.sums != nullptr ? a.sums[i] : sum_slices<T>(a.slices, i), a.factor);
  }
  VSR_MEMBER_FUNCTION Floats eight(std::int64_t i) const {
    Doubles sum = {};
    if (a.sums != nullptr)
      load(sum, a.sums + i);
    else
      add_slices8<T, kCount>(sum, a.slices, i);
    return unscaled(sum, a.factor);
  }
};

// `Rule` is called as rule(math, master, moment1, moment2, gradient) on floats and on Floats; it
// says with kFirst and kSecond which moments exist, and with kStepsMaster whether masters move.
template <typename T, int kCount, typename Rule>
VSR_LANES_FUNCTION void update_piece(const UpdateArguments& a, const Rule& rule) {
  const Gradients<T, kCount> gradients{a};
  std::int64_t i = a.first;
  for (; i + kLanes <= a.last; i += kLanes) {
    Floats master, first = {}, second = {};
    load(master, a.master + i);
    if constexpr (Rule::kFirst) load(first, a.moment1 + i);
    if constexpr (Rule::kSecond) load(second, a.moment2 + i);
    rule(VectorMath(), master, first, second, gradients.eight(i));
    if constexpr (Rule::kFirst) store(a.moment1 + i, first);
    if constexpr (Rule::kSecond) store(a.moment2 + i, second);
    store(a.master + i, master);
    for (int target = 0; target < a.targets.count; ++target)
      T::narrow8(a.targets.begin[target] + i * T::kBytes, master);
  }
  for (; i < a.last; ++i) {
    float none = 0.0F;
    rule(ScalarMath(), a.master[i], Rule::kFirst ? a.moment1[i] : none,
         Rule::kSecond ? a.moment2[i] : none, gradients.one(i));
    for (int target = 0; target < a.targets.count; ++target)
      T::narrow(a.targets.begin[target] + i * T::kBytes, a.master[i]);
  }
}

template <WeightDecay kDecay>
struct AdamStep {
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = true;
  AdamCoefficients c;
  template <typename Math, typename F>
  VSR_MEMBER_FUNCTION void operator()(Math, F& master, F& first, F& second, const F& g) const {
    adam_step<kDecay, Math>(master, first, second, g, c);
  }
};

template <bool kMomentum>
struct SgdStep {
  static constexpr bool kFirst = kMomentum;
  static constexpr bool kSecond = false;
  SgdCoefficients c;
  template <typename Math, typename F>
  VSR_MEMBER_FUNCTION void operator()(Math, F& master, F& first, F&, const F& g) const {
    sgd_step(master, first, g, c);
  }
};

template <typename T, typename Rule>
void update_count(const UpdateArguments& a, const Rule& rule) {
  switch (a.slices.count) {
    case 1:
      return update_piece<T, 1>(a, rule);
    case 2:
      return update_piece<T, 2>(a, rule);
    case 4:
      return update_piece<T, 4>(a, rule);
    default:
      return update_piece<T, 0>(a, rule);
  }
}

template <typename Rule>
void update_type(const UpdateArguments& a, const Rule& rule) {
  by_type(a.type, [&]<typename T>(T) { update_count<T>(a, rule); });
}

void update_adam_entry(const UpdateArguments& a, WeightDecay decay, const AdamCoefficients& c) {
  switch (decay) {
    case WeightDecay::none:
      return update_type(a, AdamStep<WeightDecay::none>{c});
    case WeightDecay::into_gradient:
      return update_type(a, AdamStep<WeightDecay::into_gradient>{c});
    default:
      return update_type(a, AdamStep<WeightDecay::decoupled>{c});
  }
}

void update_sgd_entry(const UpdateArguments& a, const SgdCoefficients& c) {
  return c.has_momentum ? update_type(a, SgdStep<true>{c}) : update_type(a, SgdStep<false>{c});
}

VSR_LANES_FUNCTION void add_squares(Doubles& lanes, const Floats& values) {
  Doubles wide = {};
  add_widened(wide, values);
  for (int part = 0; part < kParts; ++part)
    lanes.part[part] = add_square(lanes.part[part], wide.part[part]);
}

VSR_LANES_FUNCTION void add_square_at(Doubles& lanes, std::int64_t i, float value) {
  const auto lane = static_cast<int>(i % kLanes);
  double& sum = reinterpret_cast<double*>(&lanes)[lane];
  sum = add_square(sum, static_cast<double>(value));
}

// Lanes count from the start of the shard, so a sum does not depend on where pieces begin.
template <typename T>
void lamb_moments_of(const UpdateArguments& a, const LambCoefficients& c, SquareSums* blocks) {
  const Gradients<T, 0> gradients{a};
  for (std::int64_t i = a.first; i < a.last; ++blocks) {
    const std::int64_t end =
        (i / kBlock + 1) * kBlock < a.last ? (i / kBlock + 1) * kBlock : a.last;
    Doubles masters = {};
    Doubles directions = {};
    for (; i + kLanes <= end; i += kLanes) {
      Floats master, first, second;
      load(master, a.master + i);
      load(first, a.moment1 + i);
      load(second, a.moment2 + i);
      optim::lamb_moments(first, second, gradients.eight(i), c);
      store(a.moment1 + i, first);
      store(a.moment2 + i, second);
      add_squares(masters, master);
      add_squares(directions, lamb_direction<VectorMath>(master, first, second, c));
    }
    for (; i < end; ++i) {
      optim::lamb_moments(a.moment1[i], a.moment2[i], gradients.one(i), c);
      add_square_at(masters, i, a.master[i]);
      add_square_at(directions, i,
                    lamb_direction<ScalarMath>(a.master[i], a.moment1[i], a.moment2[i], c));
    }
    blocks->master = fold_lanes(NormKind::two, masters);
    blocks->direction = fold_lanes(NormKind::two, directions);
  }
}

void lamb_moments_entry(const UpdateArguments& a, const LambCoefficients& c, SquareSums* blocks) {
  by_type(a.type, [&]<typename T>(T) { lamb_moments_of<T>(a, c, blocks); });
}

template <typename T>
void lamb_apply_of(const UpdateArguments& a, const LambCoefficients& c) {
  std::int64_t i = a.first;
  for (; i + kLanes <= a.last; i += kLanes) {
    Floats master, first, second;
    load(master, a.master + i);
    load(first, a.moment1 + i);
    load(second, a.moment2 + i);
    master = master + lamb_direction<VectorMath>(master, first, second, c) * c.negative_step_size;
    store(a.master + i, master);
    for (int target = 0; target < a.targets.count; ++target)
      T::narrow8(a.targets.begin[target] + i * T::kBytes, master);
  }
  for (; i < a.last; ++i) {
    float& master = a.master[i];
    master = master + lamb_direction<ScalarMath>(master, a.moment1[i], a.moment2[i], c) *
                          c.negative_step_size;
    for (int target = 0; target < a.targets.count; ++target)
      T::narrow(a.targets.begin[target] + i * T::kBytes, master);
  }
}

void lamb_apply_entry(const UpdateArguments& a, const LambCoefficients& c) {
  by_type(a.type, [&]<typename T>(T) { lamb_apply_of<T>(a, c); });
}

template <typename T>
void mean_gradient_of(const UpdateArguments& a, float* gradient) {
  const Gradients<T, 0> gradients{a};
  std::int64_t i = a.first;
  for (; i + kLanes <= a.last; i += kLanes) store(gradient + i, gradients.eight(i));
  for (; i < a.last; ++i) gradient[i] = gradients.one(i);
}

void mean_gradient_entry(const UpdateArguments& a, float* gradient) {
  by_type(a.type, [&]<typename T>(T) { mean_gradient_of<T>(a, gradient); });
}

void update_ema_entry(const float* master, float* ema, std::int64_t elements,
                      float one_minus_decay) {
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    Floats value, average;
    load(value, master + i);
    load(average, ema + i);
    store(ema + i, ema_step(average, value, one_minus_decay));
  }
  for (; i < elements; ++i) ema[i] = ema_step(ema[i], master[i], one_minus_decay);
}
