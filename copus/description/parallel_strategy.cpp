#include "copus/description/parallel_strategy.h"

#include "copus/base/error.h"

namespace copus {

std::string_view to_string(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return "gpipe";
    case PipelineSchedule::one_f_one_b:
      return "1f1b";
    case PipelineSchedule::interleaved_1f1b:
      return "interleaved";
    case PipelineSchedule::zb_h1:
      return "zb-h1";
  }
  return {};
}

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::attention:
      return "attention";
    case Recompute::full:
      return "full";
  }
  fail_check("known recompute mode", __FILE__, __LINE__, "");
}

std::string to_string(const ParallelStrategy& strategy) {
  return concat(strategy.data_parallel, "x", strategy.tensor_parallel, "x", strategy.pipeline_parallel);
}

}  // namespace copus
