// Selects the kernels of the widest instruction set that the build includes and this processor supports.
#include "copus/model/cpu/kernels.h"

namespace copus::cpu {

#define COPUS_DECLARE_ISA(name)                    \
  namespace name {                                 \
  extern const Kernels<float> float_kernels;       \
  extern const Kernels<double> double_kernels;     \
  extern const Kernels<BFloat16> bfloat16_kernels; \
  }

COPUS_DECLARE_ISA(baseline)
#ifdef __x86_64__
COPUS_DECLARE_ISA(avx2)
COPUS_DECLARE_ISA(avx512)

#define COPUS_PICK(table)                                                                                          \
  __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && \
          __builtin_cpu_supports("avx512vl")                                                                       \
      ? avx512::table                                                                                              \
      : (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2::table : baseline::table)
#else
#define COPUS_PICK(table) baseline::table
#endif

template <>
const Kernels<float>& kernels<float>() {
  static const Kernels<float>& picked = COPUS_PICK(float_kernels);
  return picked;
}

template <>
const Kernels<double>& kernels<double>() {
  static const Kernels<double>& picked = COPUS_PICK(double_kernels);
  return picked;
}

template <>
const Kernels<BFloat16>& kernels<BFloat16>() {
  static const Kernels<BFloat16>& picked = COPUS_PICK(bfloat16_kernels);
  return picked;
}

}  // namespace copus::cpu
