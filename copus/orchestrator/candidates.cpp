#include "copus/orchestrator/candidates.h"

#include <algorithm>

namespace copus {

namespace {

template <class Value>
std::vector<Value> chosen(const std::vector<Value>& listed, Value own) {
  std::vector<Value> values = listed;
  if (std::find(values.begin(), values.end(), own) == values.end()) values.push_back(own);
  return values;
}

}  // namespace

SearchSpace search_space_of(const RunConfig& config) {
  const Configuration own = configuration_of(config);
  const AdaptConfig& adapt = config.adapt;
  SearchSpace space;
  space.world_size = own.strategy.world_size();
  space.global_batches = adapt.global_batches;
  if (space.global_batches.empty()) {
    for (int64_t batch = std::max<int64_t>(1, own.global_batch / 4); batch <= 64 * own.global_batch; batch *= 2) {
      space.global_batches.push_back(batch);
    }
  }
  space.global_batches = chosen(space.global_batches, own.global_batch);
  space.micro_batches = adapt.micro_batches;
  if (!space.micro_batches.empty()) space.micro_batches = chosen(space.micro_batches, own.micro_batch);
  space.schedules = chosen(adapt.schedules, own.strategy.schedule);
  space.virtual_stages = chosen(adapt.virtual_stages, own.strategy.virtual_stages);
  space.recomputes = chosen(adapt.recomputes, own.strategy.recompute);
  space.sequence_parallel = chosen(adapt.sequence_parallel, own.strategy.sequence_parallel);
  space.zero_stages = chosen(adapt.zero_stages, own.strategy.zero_stage);
  space.max_tensor_parallel = adapt.max_tensor_parallel;
  return space;
}

}  // namespace copus
