// Tests of runs that are shorter than the usual intervals and dwells.
#include <gmock/gmock.h>

#include "copus/orchestrator/controller/controller.h"
#include "copus/orchestrator/testing/policy_test_support.h"
#include "copus/orchestrator/testing/synthetic_job.h"

namespace copus {
namespace {

using namespace policy_test;

class ShortRun : public testing::Test {
 protected:
  // Makes a run of `samples` samples, whose length the controller knows or not.
  Course course_of(int64_t samples, bool is_known = true) const {
    SyntheticJob job(config_);
    Controller controller(config_, configuration_of(config_), Knowledge());
    Course course;
    int64_t consumed = 0;
    while (consumed < samples) {
      run_steps(job, controller, 1, course, [&](Observation& observation) {
        consumed = observation.consumed_samples;
        if (is_known) observation.share_done = static_cast<double>(consumed) / static_cast<double>(samples);
      });
    }
    return course;
  }

  RunConfig config_ = adapting_run();
};

// The batch never changes, so every step has 16 samples.
TEST_F(ShortRun, DecidesAfterASixteenthOfItAtTheLatest) {
  config_.adapt.policy = PolicyKind::fixed;
  config_.adapt.interval_samples = 1 << 20;
  constexpr int64_t samples = int64_t{16} * 160;
  const auto steps_of = [](const Course& course) {
    std::vector<int64_t> steps;
    for (const Decision& decision : course.decisions) steps.push_back(decision.step);
    return steps;
  };
  constexpr int64_t first = StepTimeLearner::warm_up_steps + 1, third = first + 2;
  EXPECT_THAT(steps_of(course_of(samples, /*is_known=*/false)), testing::ElementsAre(first, third));
  EXPECT_THAT(steps_of(course_of(samples)),
              testing::ElementsAre(first, third, 15, 25, 35, 45, 55, 65, 75, 85, 95, 105, 115, 125, 135, 145, 155));
  config_.adapt.interval_samples = int64_t{5} * 16;
  EXPECT_EQ(steps_of(course_of(samples)), steps_of(course_of(samples, /*is_known=*/false))) << "it decides more often";
}

// The noise scale is 80 until the run has left its first batch of 16, and 2000 from then on. A batch dwells for 100
// steps.
std::vector<Move> moves_of_run(int64_t samples, bool length_is_known) {
  RunConfig config = copus_config(16);
  config.adapt.dwell_samples = 0;
  config.adapt.dwell_steps = 100;
  config.adapt.interval_samples = 16;
  PaperRun run(config, affine_candidates(data, powers_of_two(4, 512), {8, 1}), {data, 16, 1});
  run.run_to(samples, [&](Observation& now, const Configuration& current) {
    set_noise(now, current.global_batch == 16 ? 80 : 2000);
    if (length_is_known) now.share_done = static_cast<double>(now.consumed_samples) / static_cast<double>(samples);
  });
  return run.moves();
}

TEST(Dwell, OfABatchIsNoLongerThanAQuarterOfTheRun) {
  constexpr int64_t samples = 3000;
  EXPECT_THAT(moves_of_run(samples, /*length_is_known=*/false), testing::SizeIs(1))
      << "100 steps are longer than the rest of the run";
  const std::vector<Move> moves = moves_of_run(samples, /*length_is_known=*/true);
  ASSERT_GE(moves.size(), 2u);
  const int64_t stayed = moves[1].consumed_samples - moves[0].consumed_samples;
  EXPECT_GE(stayed, samples / 4);
  EXPECT_LT(stayed, samples / 2);
}

// A run that resumes with a later end has done a smaller share than at its latest decision.
TEST_F(ShortRun, ThatIsMadeLongerDecidesOn) {
  config_.adapt.policy = PolicyKind::fixed;
  config_.adapt.interval_samples = 1 << 20;
  SyntheticJob job(config_);
  Controller controller(config_, configuration_of(config_), Knowledge());
  Course course;
  double steps = 100;
  const auto tell = [&](Observation& observation) { observation.share_done = static_cast<double>(job.step()) / steps; };
  run_steps(job, controller, 100, course, tell);
  steps = 1600;
  course = {};
  run_steps(job, controller, 250, course, tell);
  EXPECT_EQ(course.decisions.size(), 2) << "after a sixteenth each";
}

// A job that another program trains may begin to report its length later.
TEST_F(ShortRun, ThatGoesOnFromALogWithoutSharesDecidesNoSoonerForThem) {
  config_.adapt.policy = PolicyKind::fixed;
  config_.adapt.interval_samples = 1 << 20;
  SyntheticJob job(config_);
  Controller controller(config_, configuration_of(config_), Knowledge());
  Course course;
  run_steps(job, controller, 80, course);
  course = {};
  run_steps(job, controller, 80, course,
            [&](Observation& observation) { observation.share_done = static_cast<double>(job.step()) / 160; });
  ASSERT_FALSE(course.decisions.empty());
  EXPECT_EQ(course.decisions.front().step, 81 + 10) << "a sixteenth behind the first step that tells";
}

TEST(RunMark, CountsFromWhereTheShareIsKnown) {
  RunMark beginning, unknown(std::nullopt), half(0.5);
  EXPECT_TRUE(beginning.has_passed(0.25, 0.25));
  EXPECT_FALSE(beginning.has_passed(0.25, 0.2));
  EXPECT_FALSE(beginning.has_passed(0.25, std::nullopt));
  EXPECT_FALSE(unknown.has_passed(0.25, 1));
  unknown.see(std::nullopt);
  EXPECT_FALSE(unknown.has_passed(0.25, 1));
  unknown.see(0.5);
  unknown.see(0.75);
  EXPECT_FALSE(unknown.has_passed(0.25, 0.7));
  EXPECT_TRUE(unknown.has_passed(0.25, 0.75));
  half.see(0.25);  // the run was made twice as long
  EXPECT_TRUE(half.has_passed(0.25, 0.5));
}

}  // namespace
}  // namespace copus
