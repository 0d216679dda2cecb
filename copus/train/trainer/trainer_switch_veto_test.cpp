// Switches that are impossible: they are vetoed or rolled back, and the run continues as if they had not been
// requested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "copus/model/memory/caching_allocator.h"
#include "copus/performance/memory.h"
#include "copus/train/testing/switch_test_support.h"

namespace copus {
namespace {

using namespace layouts;
using namespace switch_tests;

using ::testing::AllOf;
using ::testing::HasSubstr;

MemoryModel memory_model(const RunConfig& config) {
  return {config.model, config.train.sequence_length, copus_in_fp32()};
}

TEST_F(TrainerSwitch, AConfigurationThatCannotBeIsVetoedAndTheRunGoesOn) {
  RunConfig begin = config({ranks(1, 1, 2)});
  const Configuration small = configuration_of(begin);
  const RunConfig to = with_changes(begin, {ranks(2, 1, 1)});
  MemoryModel memory = memory_model(begin);
  const double needs = memory.predict(small).parts.total(),
               would_need = memory.predict(configuration_of(to)).parts.total();
  ASSERT_LT(needs, would_need);
  begin.cluster.description.device.memory_bytes = (needs + would_need) / 2;
  const History expected = run(begin, {}, 5);
  const History vetoed = run(begin, {{2, {ranks(2, 1, 1)}}}, 5);
  ASSERT_EQ(vetoed.reports.size(), 1);
  EXPECT_EQ(vetoed.reports[0].outcome, Outcome::vetoed);
  EXPECT_THAT(vetoed.reports[0].reason, HasSubstr("needs"));
  EXPECT_EQ(vetoed.reports[0].is_lack_of_memory, true);
  expect_bitwise(vetoed, expected);

  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    SwitchIntent intent{.configuration = small, .commit_after_step = 1, .rate_factor = 1, .inputs_hash = 0};
    intent.configuration.global_batch = 7;
    if (world.rank() == 0) trainer.announce(intent);
    trainer.step();
    const std::optional<SwitchReport> report = trainer.switch_if_due();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->outcome, Outcome::vetoed);
    EXPECT_THAT(report->reason, HasSubstr("train.global_batch 7"));
    EXPECT_EQ(report->is_lack_of_memory, false);
    EXPECT_EQ(trainer.configuration(), small);
    trainer.step();
  });
}

TEST_F(TrainerSwitch, ALayoutThatAMachineAloneWouldHaveStateOfIsVetoedWhereThatIsAskedFor) {
  RunConfig begin = config({ranks(4, 1, 1)});
  begin.heal.machines = true;
  run_ranks_as_threads(
      4,
      [&](World& world) {
        const Dataset dataset = open_data(begin);
        Trainer trainer(begin, configuration_of(begin), dataset, at::kCPU, world, ranks_as_processes(world),
                        {0, 0, 1, 1});
        const auto outcome = [&](const std::vector<Change>& changes) {
          if (world.rank() == 0) trainer.announce(intent_of(begin, {trainer.state().step + 1, changes}));
          trainer.step();
          const std::optional<SwitchReport> report = trainer.switch_if_due();
          EXPECT_THAT(report->reason, HasSubstr(report->outcome == Outcome::vetoed ? "heal.machines" : ""));
          return report->outcome;
        };
        EXPECT_EQ(outcome({zero_1}), Outcome::vetoed);
        EXPECT_EQ(outcome({ranks(1, 1, 4)}), Outcome::vetoed);
        EXPECT_EQ(outcome({micro_batch(1)}), Outcome::moved);
        EXPECT_EQ(outcome({ranks(2, 2, 1)}), Outcome::moved);
      },
      60);
}

// The layout is possible but its activations do not fit: everything moves back.
TEST_F(TrainerSwitch, ALayoutThatRunsOutOfMemoryIsRolledBack) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "it limits the host's memory";
  install_caching_allocator();
  const RunConfig begin = config({ranks(2, 1, 2), global_batch(64), micro_batch(1), recompute(Recompute::full)});
  const std::vector<Change> larger = {ranks(1, 1, 4), micro_batch(64), recompute(Recompute::none)};
  const Configuration to = configuration_of(with_changes(begin, larger));
  const auto beside_state = [&](const Configuration& configuration) {
    const MemoryParts parts = memory_model(begin).predict(configuration).parts;
    return parts.activations + parts.logits + parts.workspace;
  };
  ASSERT_LT(8 * beside_state(configuration_of(begin)), beside_state(to));
  const History expected = run(begin, {}, 5);

  for (const bool survives_failures : {false, true}) {
    SCOPED_TRACE(survives_failures ? "the state before is kept" : "the state is moved back");
    History history;
    train_on_every_rank(
        begin,
        [&](Trainer& trainer, World& world, const Dataset&) {
          for (int64_t step = 0; step < 5; ++step) {
            if (world.rank() == 0 && step == 1) trainer.announce(intent_of(begin, {2, larger}));
            const StepRecord record = trainer.step();
            world.everyone().barrier();
            if (world.rank() == 0) {
              set_host_memory_limit(host_memory().used_bytes + static_cast<int64_t>(0.6 * beside_state(to)));
            }
            world.everyone().barrier();
            const std::optional<SwitchReport> report = trainer.switch_if_due();
            world.everyone().barrier();
            set_host_memory_limit(0);
            if (world.rank() != 0) continue;
            history.records.push_back(record);
            if (report) history.reports.push_back(*report);
          }
          EXPECT_EQ(trainer.configuration(), configuration_of(begin));
        },
        on_test_device, survives_failures);
    ASSERT_EQ(history.reports.size(), 1);
    EXPECT_EQ(history.reports[0].outcome, Outcome::rolled_back);
    EXPECT_THAT(history.reports[0].reason, AllOf(HasSubstr("rank "), HasSubstr("no memory")));
    EXPECT_EQ(history.reports[0].is_lack_of_memory, true);
    EXPECT_EQ(history.losses(), expected.losses());
  }
}

// A larger micro-batch moves nothing, so there is nothing to roll back.
TEST_F(TrainerSwitch, AMicroBatchThatDoesNotFitIsVetoed) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "it limits the host's memory";
  install_caching_allocator();
  const RunConfig begin = config({ranks(1, 1, 2), global_batch(64), micro_batch(1), recompute(Recompute::full)});
  const Configuration to = configuration_of(with_changes(begin, {micro_batch(64)}));
  const MemoryParts needed = memory_model(begin).predict(to).parts;
  const double beside_state = needed.activations + needed.logits + needed.workspace;
  const History expected = run(begin, {}, 4);
  std::vector<double> losses;
  train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
    for (int64_t step = 0; step < 4; ++step) {
      if (world.rank() == 0 && step == 1) trainer.announce(intent_of(begin, {2, {micro_batch(64)}}));
      const StepRecord record = trainer.step();
      world.everyone().barrier();
      set_host_memory_limit(host_memory().used_bytes + static_cast<int64_t>(0.4 * beside_state));
      world.everyone().barrier();
      const std::optional<SwitchReport> report = trainer.switch_if_due();
      world.everyone().barrier();
      set_host_memory_limit(0);
      EXPECT_EQ(report.has_value(), step == 1);
      if (report) {
        EXPECT_EQ(report->outcome, Outcome::vetoed);
        EXPECT_THAT(report->reason, AllOf(HasSubstr("rank "), HasSubstr("no memory")));
        EXPECT_EQ(report->is_lack_of_memory, true);
      }
      EXPECT_EQ(trainer.configuration(), configuration_of(begin));
      if (world.rank() == 0) losses.push_back(record.loss);
    }
  });
  EXPECT_EQ(losses, expected.losses());
}

}  // namespace
}  // namespace copus
