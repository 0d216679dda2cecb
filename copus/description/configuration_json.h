// A configuration as the object that stands for it in every JSON file of ours: {"data_parallel":2,"tensor_parallel":1,
// "pipeline_parallel":2,"virtual_stages":1,"sequence_parallel":false,"zero_stage":0,"schedule":"1f1b",
// "recompute":"none","global_batch":32,"micro_batch":4}.
#pragma once

#include <string>
#include <string_view>

#include "copus/description/parallel_strategy.h"

namespace copus {

std::string to_json(const Configuration& configuration);

// Throws UserError where a field is missing or is not what it should be; the message names it. Further fields are left
// alone.
Configuration configuration_from_json(std::string_view text);

}  // namespace copus
