// Checks that the members of groups communicate correctly: every operation, on values whose results are known exactly.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "copus/comm/world.h"
#include "copus/workshop/self_test/groups.h"

namespace copus {

// Runs all operations on fp32, bf16 and int64 in the memory of `device`, with few elements and with many. Every member
// calls this. Returns this rank's first wrong result, such as "all-reduce of 7 bf16: element 3 is 9, expected 8 (1 of 7
// are wrong)".
std::optional<std::string> find_wrong_result(Communicator& group, at::Device device);

}  // namespace copus
