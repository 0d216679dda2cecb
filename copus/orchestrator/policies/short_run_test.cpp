// Tests of runs that are shorter than the usual intervals and dwells.
#include <gmock/gmock.h>

#include <algorithm>

#include "copus/orchestrator/controller/controller.h"
#include "copus/orchestrator/testing/synthetic_job.h"

namespace copus {
namespace {

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

  // Samples consumed at the first change of the batch; the length of the run if there is none.
  static int64_t first_batch_change(const Course& course, int64_t samples) {
    const auto changes = [](const SwitchReport& report) { return report.from.global_batch != report.to.global_batch; };
    const auto found = std::find_if(course.switches.begin(), course.switches.end(), changes);
    return found == course.switches.end() ? samples : found->consumed_samples;
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

TEST_F(ShortRun, WaitsNoLongerThanAQuarterOfItBeforeItChangesTheBatch) {
  config_.adapt.dwell_samples = 0;
  config_.adapt.dwell_steps = 100;
  config_.adapt.interval_samples = 16;
  constexpr int64_t samples = int64_t{16} * 100;
  EXPECT_EQ(first_batch_change(course_of(samples, /*is_known=*/false), samples), samples);
  const int64_t changed = first_batch_change(course_of(samples), samples);
  EXPECT_GE(changed, samples / 4);
  EXPECT_LT(changed, samples / 2);
  constexpr int64_t long_run = 10 * samples;
  EXPECT_GE(first_batch_change(course_of(long_run), long_run), 100 * 16) << "a quarter of it is longer than the dwell";
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
