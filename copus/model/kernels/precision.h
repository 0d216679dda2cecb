// Resolves the setting "precision" for a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "copus/config/run_config.h"

namespace copus {

// Resolves Precision::automatic to bf16 if the device multiplies matrices at least 1.5 times as fast in bfloat16 as in
// float32, else to fp32. It measures both: processors without bfloat16 arithmetic are a hundred times slower.
Precision resolve_precision(Precision precision, at::Device device);

at::ScalarType compute_dtype(Precision precision);

}  // namespace copus
