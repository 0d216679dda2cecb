#include "copus/orchestrator/controller/input_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

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

TEST(InputHash, IsOfWhatIsLeftOfTheRun) {
  Observation observation = observed();
  observation.seconds_left = 20;
  EXPECT_NE(hash_of(observation), hash_of(observed()));
  observation = observed();
  observation.share_done = 0.5;
  EXPECT_NE(hash_of(observation), hash_of(observed()));
}

// A new field of configurations does not change the hashes of configurations that leave it at its default.
TEST(InputHash, IsOfTheFieldsOfAConfigurationThatAreNotAsByDefault) {
  const auto hash_of_all = [](const std::vector<Configuration>& configurations) {
    InputHash hash;
    for (const Configuration& configuration : configurations) hash.add(configuration);
    return hash.value();
  };
  EXPECT_EQ(hash_of_all({{{.data_parallel = 4, .zero_stage = 1}, 32, 2}}), 15254810797818098284u) << "logs hold it";
  std::set<uint64_t> hashes;
  const std::vector<Configuration> some = {{{}, 1, 1},
                                           {{.data_parallel = 2}, 1, 1},
                                           {{.tensor_parallel = 2}, 1, 1},
                                           {{.virtual_stages = 2}, 1, 1},
                                           {{.zero_replicas = 2}, 1, 1},
                                           {{.reshard_after_forward = false}, 1, 1},
                                           {{.recompute = Recompute::full}, 1, 1},
                                           {{}, 2, 1},
                                           {{}, 1, 2}};
  for (const Configuration& configuration : some) hashes.insert(hash_of_all({configuration}));
  EXPECT_EQ(hashes.size(), some.size());
  EXPECT_NE(hash_of_all({some[1], some[0]}), hash_of_all({some[0], some[1]}));
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
