// Tests of the oracle: the policy of Copus with the true noise scale, read from a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "copus/orchestrator/policies/policy.h"
#include "copus/orchestrator/testing/policy_test_support.h"

namespace copus {
namespace {

using namespace policy_test;
using testing::HasSubstr;

TEST(OraclePolicy, GoesByTheTruthOfItsFile) {
  RunConfig config = run_config(PolicyKind::oracle, 16);
  config.adapt.alpha = 0;
  config.adapt.dwell_samples = 0;
  config.adapt.file = "truth.txt";
  const auto policy = make_policy(config, "# consumed_samples noise_scale\n0 4\n\n1000\t4  # flat\n3000 100\n");
  const auto batch_after = [&](int64_t samples) {
    Question question{affine_candidates(data, all_from_to(1, 400), {16, 1}), {data, 3, 1}, {}};
    question.elapsed_seconds = 1e12;
    question.latest.consumed_samples = samples;
    set_noise(question.latest, 1e6);  // the measured value does not matter
    return question.ask(*policy).target.value().global_batch;
  };
  EXPECT_EQ(batch_after(500), std::lround(std::sqrt(2.0 * 4 * 16)));
  EXPECT_EQ(batch_after(2000), std::lround(std::sqrt(2.0 * 52 * 16)));
  EXPECT_EQ(batch_after(9000), std::lround(std::sqrt(2.0 * 100 * 16)));
}

TEST(OraclePolicy, RefusesAFileThatIsNoTrace) {
  RunConfig config = run_config(PolicyKind::oracle, 16);
  config.adapt.file = "truth.txt";
  EXPECT_THAT(failure(config, ""), HasSubstr("truth.txt: adapt.policy \"oracle\" needs lines"));
  EXPECT_THAT(failure(config, "0 1\n5 x\n"), HasSubstr("truth.txt:2: expected"));
  EXPECT_THAT(failure(config, "0 1 2\n"), HasSubstr("truth.txt:1: expected"));
  EXPECT_THAT(failure(config, "0 -1\n"), HasSubstr("not negative"));
  EXPECT_THAT(failure(config, "5 1\n5 2\n"), HasSubstr("truth.txt:2: consumed samples must ascend"));
}

}  // namespace
}  // namespace copus
