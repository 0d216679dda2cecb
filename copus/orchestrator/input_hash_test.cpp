#include "copus/orchestrator/input_hash.h"

#include <gtest/gtest.h>

#include <set>

namespace copus {
namespace {

uint64_t hash_of(const Observation& observation) {
  InputHash hash;
  hash.add(observation);
  return hash.value();
}

Observation observed() {
  Observation observation;
  observation.step = 7;
  observation.consumed_samples = 56;
  observation.loss = 2.5;
  observation.grad_norm = 1.25;
  observation.step_seconds = 0.5;
  observation.elapsed_seconds = 3.5;
  observation.noise_scale_low = 12;
  return observation;
}

// The number is that of the versions before these were counted: their logs hold it.
TEST(InputHash, OfALogThatDoesNotKnowThePhaseIsThatOfEarlierVersions) {
  Observation observation = observed();
  EXPECT_EQ(hash_of(observation), 4910822115567063848u);
  observation.learning_rate = 1e-3;
  EXPECT_EQ(hash_of(observation), hash_of(observed()));
}

TEST(InputHash, IsOfLearningRatePhaseAndClipping) {
  std::set<uint64_t> hashes;
  int64_t observations = 0;
  for (const double rate : {1e-3, 2e-3}) {
    for (const SchedulePhase phase : all_values<SchedulePhase>()) {
      for (const std::optional<bool> clipped : {std::optional<bool>(), std::optional(false), std::optional(true)}) {
        Observation observation = observed();
        observation.learning_rate = rate;
        observation.phase = phase;
        observation.clipped = clipped;
        hashes.insert(hash_of(observation));
        ++observations;
      }
    }
  }
  EXPECT_EQ(std::ssize(hashes), observations);
}

}  // namespace
}  // namespace copus
