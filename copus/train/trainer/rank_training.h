// The training of one rank between and during its steps: what steps, switches, evaluations and checkpoints share.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/data/dataset.h"
#include "copus/model/memory/parameters.h"
#include "copus/train/recording/step_clock.h"
#include "copus/train/recording/step_recorder.h"
#include "copus/train/state/state_hash.h"
#include "copus/train/step/rank_model.h"
#include "copus/train/step/seconds_by_rank.h"
#include "copus/train/step/stop_request.h"
#include "copus/train/step/training_state.h"

namespace copus {

// Its members refer to each other, so it is neither copied nor moved.
struct RankTraining {
  const RunConfig config;
  const Dataset& dataset;
  const at::Device device;
  World& world;
  StepRecorder recorder{world};
  StepClock clock{world};
  SecondsByRank seconds = {};
  TrainingState state = {};
  std::unique_ptr<RankModel> model = {};      // replaced when the layout changes
  StopReason stop_reason = StopReason::none;  // that all ranks agreed on in the latest step or evaluation

  // The configuration of steps: global batch, micro-batch and layout.
  const Configuration& configuration() const { return state.configuration; }
  // The configuration that the ranks execute: configuration() or, on the modelled clock, its substitute.
  Configuration executed() const;

  // Waits until the weights of the latest update have been gathered.
  ParameterStore& whole_parameters() const;

  // Publishes the compute weights after the master weights have moved, unless both are the same. Every rank calls it.
  void publish_moved_weights();

  // A hash of the whole training state, the same on all ranks. Every rank calls it.
  StateHash hash_of_state() const;
};

}  // namespace copus
