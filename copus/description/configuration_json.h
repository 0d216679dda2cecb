// A configuration as the object that stands for it in every JSON file of ours: {"data_parallel":2,"tensor_parallel":1,
// "pipeline_parallel":2,"virtual_stages":1,"schedule":"1f1b","sequence_parallel":false,"zero_stage":0,
// "recompute":"none","global_batch":32,"micro_batch":4}.
#pragma once

#include <string>
#include <string_view>

#include "copus/description/parallel_strategy.h"

namespace copus {

std::string to_json(const Configuration& configuration);

// Throws UserError, which names the field, where one is missing or is not what it should be. Other fields do not
// matter.
Configuration configuration_from_json(std::string_view text);

}  // namespace copus
