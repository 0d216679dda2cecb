// Checks that the collectives of a group repeat bitwise. Sums of random numbers are rounded, so their bits show the
// order of addition. (In collectives.h sums are exact, and therefore the same in every order.)
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "copus/comm/communicator.h"

namespace copus {

// Repeats every collective on the same random fp32 and bf16 numbers in the memory of `device`, with different numbers
// of elements. Every member calls this with the same seed. Returns this rank's first difference between two
// repetitions, such as "all-reduce of 300007 fp32: element 3 is 1.00000012 in repetition 2 and was 1".
std::optional<std::string> find_unrepeated_result(Communicator& group, at::Device device, uint64_t seed);

}  // namespace copus
