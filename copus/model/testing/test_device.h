// The device on which tests compute: the CPU, unless COPUS_TEST_DEVICE names another.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include <cstdlib>
#include <string>

namespace copus {

// Returns the device. On a GPU, kernels are deterministic from the first call on, as in training (train/run/device.h).
inline at::Device test_device() {
  const char* const name = std::getenv("COPUS_TEST_DEVICE");
  const at::Device device(name != nullptr ? std::string(name) : "cpu");
  if (!device.is_cpu()) {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  // Adds the index that tensors report for the device: 0 if none is named.
  return device.is_cpu() || device.has_index() ? device : at::Device(device.type(), 0);
}

}  // namespace copus
