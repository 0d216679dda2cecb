#include "copus/train/optimizer/adamw_rule.h"

#include <gtest/gtest.h>

#include "copus/statistics/learning_rate_scaling.h"

namespace copus {
namespace {

TEST(AdamWRule, TheRatioOfVariancesFollowsTheBatchesOfUpdatesAndNotOfSwitches) {
  JobConfig job;
  job.train.global_batch = 32;
  const AdamWRule rule(job);
  const OptimizerScalars first = rule.after_update(rule.begin(32), 32);
  EXPECT_EQ(first.find(AdamWRule::variance_ratio), 1);
  EXPECT_EQ(rule.rate_factor(first), 1);
  // Only the batches of updates matter: the second update has an eighth of the first one's batch.
  const OptimizerScalars second = rule.after_update(first, 4);
  const double ratio = variance_ratio_after_update(variance_ratio_after_switch(1, 32, 4), job.optimizer.beta2);
  EXPECT_EQ(second.find(AdamWRule::variance_ratio), ratio);
  EXPECT_LT(rule.rate_factor(second), 1);
  EXPECT_EQ(rule.after_update(second, 4).find(AdamWRule::variance_ratio),
            variance_ratio_after_update(ratio, job.optimizer.beta2));
  EXPECT_FALSE(second.find(AdamWRule::beta2_product));
}

TEST(AdamWRule, TheProductOfBeta2IsThatOfTheUpdatesBatches) {
  JobConfig job;
  job.train.global_batch = 32;
  job.optimizer.scale_beta2 = true;
  const AdamWRule rule(job);
  const OptimizerScalars after = rule.after_update(rule.after_update(rule.begin(32), 32), 64);
  const double larger = scaled_beta2(job.optimizer.beta2, 64, 32);
  EXPECT_EQ(after.find(AdamWRule::beta2), larger);
  EXPECT_EQ(after.find(AdamWRule::beta2_product), job.optimizer.beta2 * larger);
}

}  // namespace
}  // namespace copus
