// Ranking, crossovers, and the message if nothing fits.
#include "copus/plan/plan.h"

#include <gmock/gmock.h>

#include <bit>
#include <cstring>
#include <set>

#include "copus/base/testing/test_support.h"
#include "copus/plan/testing/plan_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Plan, HasEachLayoutOnceAtItsFastest) {
  const PlanQuestion question = small_question({16, 64});
  const Plan plan = make_plan(question);
  const PerformanceTable table = make_table(question.model, question.sequence_length, question.cluster, question.system,
                                            question.space, question.knowledge);
  EXPECT_EQ(plan.configurations, static_cast<int64_t>(table.cells.size()));
  EXPECT_EQ(plan.too_large, table.too_large);
  ASSERT_EQ(plan.batches.size(), 2);
  for (const BatchPlan& batch : plan.batches) {
    std::set<ParallelStrategy> layouts;
    for (const TableCell& cell : table.cells) {
      if (cell.configuration.global_batch == batch.global_batch) layouts.insert(layout_of(cell.configuration.strategy));
    }
    EXPECT_EQ(batch.layouts.size(), layouts.size());
    double before = 0;
    for (const PlannedConfiguration& row : batch.layouts) {
      EXPECT_EQ(layouts.erase(row.layout()), 1) << "twice";
      EXPECT_GE(row.seconds, before) << "the fastest first";
      before = row.seconds;
      for (const TableCell& cell : table.cells) {
        if (cell.configuration.global_batch != batch.global_batch) continue;
        if (layout_of(cell.configuration.strategy) != row.layout()) continue;
        EXPECT_LE(row.seconds, cell.step.seconds);
      }
    }
  }
}

TEST(Plan, PartsAddUpToTheStep) {
  const Plan plan = make_plan(small_question({64}));
  for (const PlannedConfiguration& row : plan.batches.front().layouts) {
    EXPECT_NEAR(row.parts.total(), row.seconds, 1e-9 * row.seconds);
    const double tokens = 64.0 * 1024;
    EXPECT_NEAR(row.tokens_per_second_per_gpu, tokens / row.seconds / 8, 1e-6 * row.tokens_per_second_per_gpu);
    EXPECT_GT(row.model_flops_utilization, 0);
    EXPECT_LT(row.model_flops_utilization, 0.75);
  }
}

// Measuring one configuration replaces the prediction in its own row, and scales the predictions in the other rows.
TEST(Plan, IsCorrectedByWhatWasMeasured) {
  PlanQuestion question = small_question({64});
  const PlannedConfiguration before = make_plan(question).batches.front().layouts.front();
  PerformanceTable table = make_table(question.model, question.sequence_length, question.cluster, question.system,
                                      question.space, question.knowledge);
  for (const TableCell& cell : table.cells) {
    if (cell.configuration != before.configuration) continue;
    question.knowledge = observe(question.knowledge, cell.configuration, cell.parts,
                                 {.steps = 100, .median_seconds = 3 * before.seconds, .relative_spread = 0.01});
  }
  const Plan plan = make_plan(question);
  for (const PlannedConfiguration& row : plan.batches.front().layouts) {
    EXPECT_NEAR(row.parts.total(), row.seconds, 1e-9 * row.seconds);
    if (row.configuration != before.configuration) continue;
    EXPECT_EQ(row.measured_steps, 100);
    EXPECT_NEAR(row.seconds, 3 * before.seconds, 0.1 * before.seconds);
  }
}

TEST(Plan, WithoutAPeakThereIsNoUtilization) {
  PlanQuestion question = small_question({64});
  question.cluster.device.peak_flops_per_second = 0;
  EXPECT_TRUE(std::isnan(make_plan(question).batches.front().layouts.front().model_flops_utilization));
}

TEST(Plan, FindsWhereTheFastestLayoutChanges) {
  const std::vector<Crossover> changes = crossovers(written_down_plan());
  ASSERT_EQ(changes.size(), 1);
  EXPECT_EQ(changes[0].last_batch, 16);
  EXPECT_EQ(changes[0].first_batch, 64) << "at 32 nothing fits";
  EXPECT_EQ(changes[0].from, (ParallelStrategy{2, 4, 1}));
  EXPECT_EQ(changes[0].to, (ParallelStrategy{8, 1, 1}));
}

TEST(Plan, WhereNothingFitsItSaysWhatWould) {
  PlanQuestion question = small_question({64});
  question.cluster.num_ranks = 0;
  question.cluster.device.memory_bytes = 2e9;
  const std::string message = user_error([&] { make_plan(question); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("no configuration of small fits on 8 x GPU with a global batch of 64"),
                    HasSubstr("GiB on pipeline rank"), HasSubstr("GPUs instead of 8"), HasSubstr("take GPUs with")));
  // Suggests at most as many GPUs as the cluster has, because a plan would refuse more.
  question.cluster.num_ranks = 8;
  EXPECT_THAT(user_error([&] { make_plan(question); }), Not(HasSubstr("GPUs instead of")));
}

// Including numbers of GPUs that are not the requested number times a power of two.
TEST(Plan, AllNumbersOfGpusAreTried) {
  PlanQuestion question = small_question({63});
  question.cluster.num_ranks = 0;
  question.space.world_size = 4;
  question.space.recomputes = {Recompute::none};
  question.space.zero_stages = {0};
  question.model.num_layers = 63;
  question.cluster.device.memory_bytes = 4e9;
  const std::string message = user_error([&] { make_plan(question); });
  const size_t at = message.find("take ");
  ASSERT_NE(at, std::string::npos) << message;
  question.space.world_size = std::stol(message.substr(at + strlen("take ")));
  EXPECT_FALSE(std::has_single_bit(static_cast<uint64_t>(question.space.world_size))) << message;
  EXPECT_EQ(user_error([&] { make_plan(question); }), "no UserError");
}

// Both suggested changes help, and the next smaller ones would not.
TEST(Plan, TheChangesThatItNamesAreTheSmallest) {
  PlanQuestion question = small_question({48});
  question.cluster.num_ranks = 0;
  question.model.num_layers = 24;
  question.cluster.device.memory_bytes = 2.4e9;
  const std::string message = user_error([&] { make_plan(question); });
  const auto number_after = [&](const char* words) {
    return std::stod(message.substr(message.find(words) + strlen(words)));
  };
  const auto fits = [](const PlanQuestion& changed) {
    return user_error([&] { make_plan(changed); }) == "no UserError";
  };

  PlanQuestion more = question;
  const auto enough = static_cast<int64_t>(number_after("help: take "));
  EXPECT_NE(std::bit_ceil(static_cast<uint64_t>(enough)), static_cast<uint64_t>(enough)) << message;
  for (more.space.world_size = 8; more.space.world_size < enough; more.space.world_size += 4) {
    EXPECT_FALSE(fits(more)) << more.space.world_size;
  }
  EXPECT_TRUE(fits(more)) << message;

  PlanQuestion larger = question;
  larger.cluster.device.memory_bytes = 1e9 * number_after("memory_gigabytes = ");
  EXPECT_TRUE(fits(larger)) << message;
  larger.cluster.device.memory_bytes -= 0.1e9;
  EXPECT_FALSE(fits(larger)) << message;
}

TEST(Plan, SecondsAreReadable) {
  EXPECT_EQ(seconds_in_words(0.0003), "0.30 ms");
  EXPECT_EQ(seconds_in_words(0.3617), "362 ms");
  EXPECT_EQ(seconds_in_words(0.9999), "1.00 s");
  EXPECT_EQ(seconds_in_words(16.749), "16.75 s");
  EXPECT_EQ(seconds_in_words(56076.51), "56077 s");
}

TEST(Plan, WhereOptionsLeaveNothingTheyAreNamed) {
  PlanQuestion question = small_question({64});
  question.cluster.device.memory_bytes = 6e9;
  question.space.micro_batches = {64};
  question.space.recomputes = {Recompute::none};
  EXPECT_THAT(user_error([&] { make_plan(question); }), HasSubstr("leave out --recompute and --micro-batch;"));
}

TEST(Plan, WhereTheNumbersDoNotDivideItNamesTheNearest) {
  PlanQuestion question = small_question({3});
  question.space.world_size = 23;  // divides neither layers nor heads
  const std::string message = user_error([&] { make_plan(question); });
  EXPECT_THAT(message, AllOf(HasSubstr("no layout of 23 GPUs can train small with a global batch of 3"),
                             HasSubstr("take 22 or 24 GPUs"), HasSubstr("take a global batch of 23")));
  // The nearest possible batch may be smaller than the requested one.
  question = small_question({64});
  question.space.micro_batches = {3};
  EXPECT_THAT(user_error([&] { make_plan(question); }),
              AllOf(HasSubstr("leave out --micro-batch;"), HasSubstr("take a global batch of 63 or 66")));
}

}  // namespace
}  // namespace copus
