#include "copus/model/kernels/precision.h"

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

Precision resolve_precision(Precision precision, at::Device device) {
  if (precision != Precision::automatic) return precision;
  const int64_t size = device.is_cpu() ? 256 : 2048;
  const double fp32 = kernels::time_matmul(size, at::kFloat, device);
  const double bf16 = kernels::time_matmul(size, at::kBFloat16, device);
  return fp32 >= 1.5 * bf16 ? Precision::bf16 : Precision::fp32;
}

at::ScalarType compute_dtype(Precision precision) {
  COPUS_CHECK(precision != Precision::automatic, "resolve the precision first");
  return precision == Precision::bf16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace copus
