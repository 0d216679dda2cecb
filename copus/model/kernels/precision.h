// Resolves the setting "precision" for a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "copus/config/run_config.h"

namespace copus {

// Resolves Precision::automatic to bf16 if the device multiplies bfloat16 matrices at least 1.5 times as fast as
// float32 matrices, otherwise to fp32. Measures both, because processors without bfloat16 arithmetic multiply such
// matrices a hundred times more slowly.
Precision resolve_precision(Precision precision, at::Device device);

at::ScalarType compute_dtype(Precision precision);

}  // namespace copus
