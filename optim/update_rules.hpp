// SPDX-License-Identifier: Apache-2.0
// The update rules of the second sweep, written once for scalars, vectors of eight and CUDA. Host
// code turns the constants users give (FP64) into the coefficients of one step (FP32, each rounded
// once); the loops only apply them. C++17, because nvcc reads it too.
#pragma once

#include "optim/arithmetic.hpp"

namespace vsr::optim {

/// Functions that differ in form between a scalar and a vector of them.
struct ScalarMath {
  VSR_HOST_DEVICE float square_root(float value) { return std::sqrt(value); }
};

/// How weight decay enters Adam.
enum class WeightDecay : std::uint8_t { none, into_gradient /*Adam*/, decoupled /*AdamW*/ };

/// Adam's constants for one parameter and one step, as the FP32 loop uses them.
struct AdamCoefficients {
  float beta1 = 0.9F;
  float one_minus_beta1 = 0.1F;
  float beta2 = 0.999F;
  float one_minus_beta2 = 0.001F;
  float negative_step_size = 0.0F;     ///< -lr / (1 - beta1^t)
  float sqrt_bias_correction2 = 1.0F;  ///< sqrt(1 - beta2^t)
  float eps = 1e-8F;
  float weight_decay = 0.0F;  ///< into_gradient: the decay; decoupled: 1 - lr × decay
};

/// One Adam step on an element or a vector of them, operation by operation in the order of
/// torch::optim::Adam and AdamW.
template <WeightDecay kDecay, typename Math, typename F>
VSR_HOST_DEVICE void adam_step(F& master, F& exp_avg, F& exp_avg_sq, F gradient,
                               const AdamCoefficients& c) {
  if constexpr (kDecay == WeightDecay::into_gradient) gradient = gradient + master * c.weight_decay;
  if constexpr (kDecay == WeightDecay::decoupled) master = master * c.weight_decay;
  exp_avg = exp_avg * c.beta1 + gradient * c.one_minus_beta1;
  exp_avg_sq = exp_avg_sq * c.beta2 + (gradient * c.one_minus_beta2) * gradient;
  const F denominator = Math::square_root(exp_avg_sq) / c.sqrt_bias_correction2 + c.eps;
  master = master + (exp_avg * c.negative_step_size) / denominator;
}

/// Adam's constants in the precision users give them in.
struct AdamRule {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = false;
};

/// Bias corrections in FP64 from the running products beta^t, each constant then rounded to FP32.
VSR_HOST_DEVICE AdamCoefficients adam_coefficients(const AdamRule& o, double beta1_power,
                                                   double beta2_power) {
  AdamCoefficients c;
  c.beta1 = static_cast<float>(o.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - o.beta1);
  c.beta2 = static_cast<float>(o.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - o.beta2);
  c.negative_step_size = static_cast<float>(-(o.lr / (1.0 - beta1_power)));
  c.sqrt_bias_correction2 = static_cast<float>(std::sqrt(1.0 - beta2_power));
  c.eps = static_cast<float>(o.eps);
  c.weight_decay = static_cast<float>(o.decoupled ? 1.0 - o.lr * o.weight_decay : o.weight_decay);
  return c;
}

VSR_HOST_DEVICE WeightDecay weight_decay_of(const AdamRule& o) {
  if (o.weight_decay == 0.0) return WeightDecay::none;
  return o.decoupled ? WeightDecay::decoupled : WeightDecay::into_gradient;
}

/// SGD's constants; formulas of torch::optim::SGD.
struct SgdRule {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;  ///< added to the gradient
  bool nesterov = false;
};

/// SGD's constants for one parameter and one step, as the FP32 loop uses them.
struct SgdCoefficients {
  float negative_lr = 0.0F;
  float momentum = 0.0F;
  float one_minus_dampening = 1.0F;
  float weight_decay = 0.0F;
  bool has_momentum = false;
  bool is_first = false;  ///< the momentum starts as the gradient itself
  bool is_nesterov = false;
  bool decays = false;
};

VSR_HOST_DEVICE SgdCoefficients sgd_coefficients(const SgdRule& rule, bool is_first) {
  SgdCoefficients c;
  c.negative_lr = static_cast<float>(-rule.lr);
  c.momentum = static_cast<float>(rule.momentum);
  c.one_minus_dampening = static_cast<float>(1.0 - rule.dampening);
  c.weight_decay = static_cast<float>(rule.weight_decay);
  c.has_momentum = rule.momentum != 0.0;
  c.is_first = is_first;
  c.is_nesterov = rule.nesterov;
  c.decays = rule.weight_decay != 0.0;
  return c;
}

/// One SGD step on an element or a vector of them; without momentum its buffer is left alone.
template <typename F>
VSR_HOST_DEVICE void sgd_step(F& master, F& momentum_buffer, F gradient, const SgdCoefficients& c) {
  if (c.decays) gradient = gradient + master * c.weight_decay;
  if (c.has_momentum) {
    if (c.is_first)
      momentum_buffer = gradient;
    else
      momentum_buffer = momentum_buffer * c.momentum + gradient * c.one_minus_dampening;
    if (c.is_nesterov)
      gradient = gradient + momentum_buffer * c.momentum;
    else
      gradient = momentum_buffer;
  }
  master = master + gradient * c.negative_lr;
}

/// LAMB's constants; formulas of You et al., "Large Batch Optimization for Deep Learning"
/// (arXiv 1904.00962), algorithm 2, with bias correction and phi(x) = x.
struct LambRule {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.0;  ///< decoupled: added to the direction
  bool adapt_always = false;  ///< false: parameters without decay have trust ratio 1
};

/// LAMB's constants for one parameter and one step, as the FP32 loops use them.
struct LambCoefficients {
  float beta1 = 0.9F;
  float one_minus_beta1 = 0.1F;
  float beta2 = 0.999F;
  float one_minus_beta2 = 0.001F;
  float bias_correction1 = 1.0F;
  float sqrt_bias_correction2 = 1.0F;
  float eps = 1e-6F;
  float weight_decay = 0.0F;
  float negative_step_size = 0.0F;  ///< -lr × trust ratio
};

VSR_HOST_DEVICE LambCoefficients lamb_coefficients(const LambRule& rule, double beta1_power,
                                                   double beta2_power, double trust_ratio) {
  LambCoefficients c;
  c.beta1 = static_cast<float>(rule.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - rule.beta1);
  c.beta2 = static_cast<float>(rule.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - rule.beta2);
  c.bias_correction1 = static_cast<float>(1.0 - beta1_power);
  c.sqrt_bias_correction2 = static_cast<float>(std::sqrt(1.0 - beta2_power));
  c.eps = static_cast<float>(rule.eps);
  c.weight_decay = static_cast<float>(rule.weight_decay);
  c.negative_step_size = static_cast<float>(-(rule.lr * trust_ratio));
  return c;
}

/// ‖w‖ / ‖u‖ of one whole parameter; 1 where either norm is zero, and where the rule does not
/// adapt.
VSR_HOST_DEVICE double lamb_trust_ratio(const LambRule& rule, double master_norm,
                                        double direction_norm) {
  if (rule.weight_decay == 0.0 && !rule.adapt_always) return 1.0;
  return master_norm > 0.0 && direction_norm > 0.0 ? master_norm / direction_norm : 1.0;
}

/// LAMB's first pass: the moments.
template <typename F>
VSR_HOST_DEVICE void lamb_moments(F& exp_avg, F& exp_avg_sq, const F& gradient,
                                  const LambCoefficients& c) {
  exp_avg = exp_avg * c.beta1 + gradient * c.one_minus_beta1;
  exp_avg_sq = exp_avg_sq * c.beta2 + (gradient * c.one_minus_beta2) * gradient;
}

/// The direction u that both passes compute from the new moments.
template <typename Math, typename F>
VSR_HOST_DEVICE F lamb_direction(const F& master, const F& exp_avg, const F& exp_avg_sq,
                                 const LambCoefficients& c) {
  const F denominator = Math::square_root(exp_avg_sq) / c.sqrt_bias_correction2 + c.eps;
  return (exp_avg / c.bias_correction1) / denominator + master * c.weight_decay;
}

/// Exponential moving average of a master: ema + (master - ema) × (1 - decay). The average of a
/// constant is that constant, bit for bit.
template <typename F>
VSR_HOST_DEVICE F ema_step(const F& ema, const F& master, float one_minus_decay) {
  return ema + (master - ema) * one_minus_decay;
}

}  // namespace vsr::optim
