// The kernel tables of one instruction set. CMake compiles this file once per instruction set.
#include "copus/model/cpu/kernels.h"

#include <limits>

#include "copus/model/cpu/activations.h"
#include "copus/model/cpu/attention.h"
#include "copus/model/cpu/elementwise.h"

namespace copus::cpu::COPUS_ISA {

template <class S>
constexpr Kernels<S> make_table() {
  using C = Compute<S>;
  return {norm_forward<S>,
          norm_backward<S>,
          head_norm_forward<S>,
          head_norm_backward<S>,
          projection_sums<S>,
          projection_norm_forward<S>,
          projection_norm_backward<S>,
          rotary<S>,
          activation_forward<S>,
          activation_backward<S>,
          attention_forward_scratch<S>,
          attention_forward<S>,
          attention_backward_scratch<S>,
          attention_backward<S>,
          embedding_part<S>,
          softmax_statistics<S>,
          cross_entropy<S>,
          add_column_sums<S>,
          add_embedding_gradient<S>,
          adamw<C>,
          signum<C>,
          muon<C>,
          weighted_sum<C>,
          squared_norm<C>};
}

extern const Kernels<float> float_kernels = make_table<float>();
extern const Kernels<double> double_kernels = make_table<double>();
extern const Kernels<BFloat16> bfloat16_kernels = make_table<BFloat16>();

}  // namespace copus::cpu::COPUS_ISA
