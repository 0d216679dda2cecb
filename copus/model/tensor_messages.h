// Sends and receives tensors as messages between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "copus/base/error.h"
#include "copus/comm/data_type.h"

namespace copus {

// Returns the element type for messages of a contiguous tensor, in host memory or on the device of the rank's world
// (comm/device_world.h).
inline DataType data_type_of(const at::Tensor& tensor) {
  COPUS_CHECK(tensor.is_contiguous());
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DataType::float32;
    case at::kBFloat16:
      return DataType::bfloat16;
    default:
      COPUS_CHECK(tensor.scalar_type() == at::kDouble);
      return DataType::float64;
  }
}

}  // namespace copus
