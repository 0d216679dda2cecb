// For tests: the device that they compute on, which is the CPU unless COPUS_TEST_DEVICE names another.
#pragma once

#include <c10/core/Device.h>

#include <cstdlib>
#include <string>

namespace copus {

inline at::Device test_device() {
  const char* const name = std::getenv("COPUS_TEST_DEVICE");
  return at::Device(name != nullptr ? std::string(name) : "cpu");
}

}  // namespace copus
