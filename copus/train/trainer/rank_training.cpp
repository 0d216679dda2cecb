#include "copus/train/trainer/rank_training.h"

#include "copus/train/trainer/modelled_job.h"

namespace copus {

Configuration RankTraining::executed() const { return executed_configuration(config, configuration()); }

ParameterStore& RankTraining::whole_parameters() const {
  model->weights.finish();
  return model->parameters;
}

void RankTraining::publish_moved_weights() {
  if (model->parameters.compute_dtype() != model->parameters.master_dtype()) model->publish_weights();
}

StateHash RankTraining::hash_of_state() const {
  StateHash hash(config.model, optimizer_slots(config.optimizer.kind));
  model->weights.finish();
  hash.add_rank(model->parameters.placement(), model->state(), /*has_compute_weights=*/true);
  hash.add_counters(state, model->optimizer->steps(), world.rank(), world.size());
  hash.add_up(world.everyone());
  return hash;
}

}  // namespace copus
