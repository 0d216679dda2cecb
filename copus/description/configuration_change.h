// What people say about changes of a configuration: asked for, as "d=2,t=1,p=2,B=32", and told, as "batch 16 -> 32,
// layout 1x2x2 -> 4x1x1".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/description/parallel_strategy.h"

namespace copus {

// What a person wants changed; the rest stays.
struct ConfigurationChange {
  std::optional<int64_t> data_parallel, tensor_parallel, pipeline_parallel;  // d, t, p
  std::optional<int64_t> virtual_stages;                                     // v
  std::optional<PipelineSchedule> schedule;                                  // schedule
  std::optional<bool> sequence_parallel;                                     // sp: 0 or 1
  std::optional<int64_t> zero_stage;                                         // zero
  std::optional<Recompute> recompute;                                        // recompute
  std::optional<int64_t> global_batch, micro_batch;                          // B, Bm
  bool operator==(const ConfigurationChange&) const = default;
};

// The names in front of "=" as above, separated by commas. Throws UserError naming the part that is none.
ConfigurationChange parse_configuration_change(std::string_view text);

// What it leaves to the layout and makes no difference or is impossible there follows it: without a pipeline 1f1b with
// one stage a rank, without tensor parallelism no sequence parallelism, with one data-parallel rank no ZeRO.
Configuration apply(const ConfigurationChange& change, const Configuration& configuration);

// All that differs: "batch 16 -> 32, micro-batch 4 -> 8, layout 1x2x2 -> 4x1x1, schedule 1f1b -> zb-h1". Empty where
// nothing does.
std::string describe_change(const Configuration& from, const Configuration& to);

// "batch 32 of micro-batches of 4 in layout 1x2x2 (zb-h1, sequence parallel, zero 1, recompute full)"; what is in
// brackets only where it is not as in a plain layout.
std::string describe_configuration(const Configuration& configuration);

}  // namespace copus
