#include "copus/orchestrator/controller/controller.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "copus/base/testing/test_support.h"
#include "copus/config/step_schedule.h"
#include "copus/description/configuration_text.h"
#include "copus/orchestrator/testing/synthetic_job.h"

namespace copus {
namespace {

std::string in_quotes(const Configuration& configuration) { return concat('"', to_string(configuration), '"'); }

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t many_steps = 600;

class ControllerTest : public testing::Test {
 protected:
  Controller controller() const { return {config_, configuration_of(config_), Knowledge()}; }

  Course course_of(const std::function<void(Observation&)>& change = [](Observation&) {}) const {
    SyntheticJob job(config_);
    Controller steered = controller();
    Course course;
    run_steps(job, steered, many_steps, course, change);
    return course;
  }

  static std::vector<uint64_t> hashes(const Course& course) {
    std::vector<uint64_t> result;
    for (const Decision& decision : course.decisions) result.push_back(decision.inputs_hash);
    return result;
  }

  Configuration other_batch(int64_t batch) const {
    Configuration configuration = configuration_of(config_);
    configuration.global_batch = batch;
    return configuration;
  }

  RunConfig config_ = adapting_run();
};

TEST_F(ControllerTest, TheSameSequenceGivesTheSameDecisions) {
  const Course once = course_of(), again = course_of();
  ASSERT_GT(once.decisions.size(), 10);
  EXPECT_EQ(hashes(once), hashes(again));
  ASSERT_GT(once.switches.size(), 1);
  ASSERT_EQ(once.switches.size(), again.switches.size());
  for (size_t i = 0; i < once.decisions.size(); ++i) {
    EXPECT_EQ(once.decisions[i].choice.target, again.decisions[i].choice.target);
    EXPECT_EQ(once.decisions[i].choice.reason, again.decisions[i].choice.reason);
  }
}

TEST_F(ControllerTest, TheHashIsOfEverythingThatWasObserved) {
  const Course usual = course_of();
  const int64_t changed_step = usual.decisions[2].step - 1;
  using Change = std::function<void(Observation&)>;
  const auto least = [](double& value) { value = std::nextafter(value, std::numeric_limits<double>::infinity()); };
  const std::vector<Change> changes = {
      [&](Observation& o) { least(o.loss); },
      [&](Observation& o) { least(o.grad_norm); },
      [&](Observation& o) { least(o.step_seconds); },
      [&](Observation& o) { least(o.elapsed_seconds); },
      [&](Observation& o) { o.small_batch = 4; },
      [&](Observation& o) { o.small_batch_squared_norm = 4; },
      [&](Observation& o) { least(*o.noise_scale); },
      [&](Observation& o) { least(*o.noise_scale_low); },
      [&](Observation& o) { least(*o.noise_scale_high); },
      [&](Observation& o) { o.noise_scale_high.reset(); },
      [&](Observation& o) { least(o.learning_rate); },
      [&](Observation& o) { o.phase = SchedulePhase::decay; },
      [&](Observation& o) { o.clipped = !*o.clipped; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    const Course other = course_of([&](Observation& observation) {
      if (observation.step == changed_step) changes[i](observation);
    });
    EXPECT_EQ(hashes(other)[1], hashes(usual)[1]) << i;
    EXPECT_NE(hashes(other)[2], hashes(usual)[2]) << i;
  }
}

// Decisions also follow the first and the third step that count in a configuration, since a bad one should be left
// soon.
TEST_F(ControllerTest, DecidesAtFirstSightAndAtIntervalsOfSamplesAndNeverBeforeAStepCounts) {
  config_.adapt.interval_samples = 1;
  EXPECT_EQ(course_of().decisions.front().step, StepTimeLearner::warm_up_steps + 1);
  config_.adapt.interval_samples = 160;
  const Course course = course_of();
  int64_t entered = 0, decided = 0;  // in consumed samples
  auto next_switch = course.switches.begin();
  for (const Decision& decision : course.decisions) {
    for (; next_switch != course.switches.end() && next_switch->after_step < decision.step; ++next_switch) {
      entered = next_switch->consumed_samples;
    }
    const int64_t steps = (decision.consumed_samples - entered) / decision.current.global_batch;
    const bool at_first_sight =
        steps == StepTimeLearner::warm_up_steps + 1 || steps == StepTimeLearner::warm_up_steps + 3;
    EXPECT_TRUE(at_first_sight || decision.consumed_samples - decided >= 160) << decision.step;
    EXPECT_GT(steps, StepTimeLearner::warm_up_steps);
    decided = decision.consumed_samples;
  }
}

TEST_F(ControllerTest, ADecisionKnowsRateAndPhaseOfItsStepAndWhatWasClippedSinceTheOneBefore) {
  std::vector<Observation> seen;
  const Course course = course_of([&](Observation& observation) {
    if (observation.step % 10 == 0) observation.clipped.reset();  // as in a skipped step
    seen.push_back(observation);
  });
  int64_t before = 0, warm = 0;
  for (const Decision& decision : course.decisions) {
    const Observation& latest = seen[static_cast<size_t>(decision.step - 1)];
    EXPECT_EQ(decision.learning_rate, latest.learning_rate);
    EXPECT_EQ(decision.phase, latest.phase);
    warm += decision.phase == SchedulePhase::warm_up;
    double clipped = 0, updates = 0;
    for (int64_t step = before; step < decision.step; ++step) {
      const std::optional<bool>& was_clipped = seen[static_cast<size_t>(step)].clipped;
      updates += was_clipped.has_value();
      clipped += was_clipped.value_or(false);
    }
    const std::optional<double> share = updates > 0 ? std::optional(clipped / updates) : std::nullopt;
    EXPECT_EQ(decision.clipped_share, share) << decision.step;
    before = decision.step;
  }
  EXPECT_GT(warm, 1);
  EXPECT_LT(warm, std::ssize(course.decisions) - 1);
}

TEST_F(ControllerTest, WhereTheScheduleIsNotKnownDecisionsSayNothingOfIt) {
  const Course course = course_of([](Observation& observation) {
    observation.phase.reset();
    observation.clipped.reset();
  });
  for (const Decision& decision : course.decisions) {
    EXPECT_FALSE(decision.learning_rate || decision.phase || decision.clipped_share);
  }
}

TEST_F(ControllerTest, TheBatchStaysInThePhasesThatAreHeld) {
  constexpr int64_t main_from = 201, decay_from = 401;
  const auto phases = [](Observation& observation) {
    observation.phase = observation.step < main_from    ? SchedulePhase::warm_up
                        : observation.step < decay_from ? SchedulePhase::main
                                                        : SchedulePhase::decay;
    // Each phase has another best batch, so there is a reason to switch in each.
    const double noise = std::array{500.0, 2.0, 20.0}[static_cast<size_t>(*observation.phase)];
    observation.noise_scale = noise;
    observation.noise_scale_low = 0.8 * noise;
    observation.noise_scale_high = 1.3 * noise;
  };
  const auto phases_of_switches_and_holds = [&] {
    std::pair<std::set<SchedulePhase>, std::set<SchedulePhase>> result;
    for (const Decision& decision : course_of(phases).decisions) {
      EXPECT_EQ(decision.moves, decision.choice.target.has_value()) << decision.step;
      const bool changes_batch =
          decision.moves && decision.choice.target->global_batch != decision.current.global_batch;
      if (changes_batch) result.first.insert(*decision.phase);
      if (decision.choice.reason.find("adapt.hold_in") == std::string::npos) continue;
      EXPECT_FALSE(decision.moves);
      EXPECT_FALSE(decision.target_rate_factor);
      EXPECT_TRUE(decision.rate_cap);
      result.second.insert(*decision.phase);
    }
    return result;
  };
  using enum SchedulePhase;
  using Phases = std::set<SchedulePhase>;
  config_.adapt.dwell_samples = 0;
  config_.adapt.alpha = 0.5;
  EXPECT_EQ(config_.adapt.hold_in, (std::vector{warm_up, decay}));
  EXPECT_EQ(phases_of_switches_and_holds(), std::pair(Phases({main}), Phases({warm_up, decay})));
  config_.adapt.hold_in = {};
  EXPECT_EQ(phases_of_switches_and_holds(), std::pair(Phases({warm_up, main, decay}), Phases()));
  config_.adapt.hold_in = {main};
  EXPECT_EQ(phases_of_switches_and_holds(), std::pair(Phases({warm_up, decay}), Phases({main})));
}

TEST_F(ControllerTest, AScheduleOfBatchesIsNotHeld) {
  config_.adapt.policy = PolicyKind::steps;
  config_.adapt.schedule = "0:16 160:32";
  config_.adapt.hold_in = {SchedulePhase::warm_up};
  const Course course = course_of();
  ASSERT_EQ(course.switches.size(), 1u);
  EXPECT_LT(course.switches.front().after_step, SyntheticJob::warm_up_steps);
}

TEST_F(ControllerTest, AScheduleOfBatchesIsCarriedOutExactlyAlsoWhereNobodyKnowsTheSpeed) {
  config_.adapt.policy = PolicyKind::steps;
  config_.adapt.schedule = "0:16 100:24 160:8 176:40 300:16";
  const StepSchedule schedule = parse_step_schedule(config_.adapt.schedule, config_.train.sequence_length);
  for (const bool is_speed_known : {true, false}) {
    SyntheticJob job(config_);
    if (!is_speed_known) config_.cluster = {};
    Controller steered = controller();
    int64_t consumed = 0;
    while (consumed < 500) {
      EXPECT_EQ(job.current(), (Configuration{configuration_of(config_).strategy, scheduled_batch(schedule, consumed),
                                              config_.train.micro_batch}))
          << consumed << (is_speed_known ? "" : ", unknown speed");
      const Observation observation = job.next_step();
      consumed = observation.consumed_samples;
      if (const Reaction reaction = steered.observe(observation); reaction.intent) job.expect(*reaction.intent);
      if (const auto report = job.switch_if_due()) steered.report(*report);
    }
  }
}

TEST_F(ControllerTest, AScheduleWithABatchThatMemoryDoesNotAllowIsRefused) {
  config_.adapt.policy = PolicyKind::steps;
  config_.adapt.schedule = "0:16 100:24";
  config_.cluster.description.device.memory_bytes = 1;
  EXPECT_THAT(user_error([&] { controller(); }), testing::HasSubstr("adapt.schedule has batch 16"));
}

TEST_F(ControllerTest, AnnouncesASwitchOnceAndDecidesNothingUntilItIsReported) {
  config_.adapt.interval_samples = 1;
  SyntheticJob job(config_);
  Controller steered = controller();
  Reaction reaction;
  while (!reaction.intent) {
    reaction = steered.observe(job.next_step());
    ASSERT_EQ(reaction.intent.has_value(), reaction.decision && reaction.decision->moves);
  }
  const Decision* const decision = &*reaction.decision;
  const SwitchIntent intent = *reaction.intent;
  EXPECT_EQ(intent.configuration, decision->choice.target);
  const bool is_relayout = intent.configuration.strategy != job.current().strategy;
  EXPECT_EQ(intent.commit_after_step, job.step() + 1 + (is_relayout ? Controller::lead_steps : 0));
  EXPECT_EQ(intent.inputs_hash, decision->inputs_hash);
  EXPECT_EQ(decision->critical_batch, 2 * *decision->noise_scale);
  const auto batch = static_cast<double>(intent.configuration.global_batch);
  EXPECT_EQ(intent.rate_factor, rate_factor(rate_rule_of(config_), batch, *decision->critical_batch));
  EXPECT_EQ(decision->target_rate_factor, intent.rate_factor);
  for (int i = 0; i < 50; ++i) {
    const Reaction meanwhile = steered.observe(job.next_step());
    EXPECT_FALSE(meanwhile.decision || meanwhile.intent);
  }
  EXPECT_EQ(steered.current(), configuration_of(config_));
}

TEST_F(ControllerTest, ARelayoutIsAnnouncedEarlyEnoughToPrepare) {
  const Course course = course_of();
  std::set<bool> kinds;
  for (const Decision& decision : course.decisions) {
    if (!decision.moves) continue;
    const bool is_relayout = decision.choice.target->strategy != decision.current.strategy;
    EXPECT_EQ(decision.commit_after_step, decision.step + 1 + (is_relayout ? Controller::lead_steps : 0));
    kinds.insert(is_relayout);
  }
  EXPECT_EQ(kinds.size(), 2) << "both kinds of switches happen in this job";
}

TEST_F(ControllerTest, AScriptIsCarriedOutWhereItsRelayoutsFollowEachOtherClosely) {
  config_.adapt.policy = PolicyKind::script;
  config_.adapt.interval_samples = int64_t{1} << 30;  // the script alone asks for decisions
  const Configuration here = configuration_of(config_);
  Configuration there = here;
  there.strategy.data_parallel = 4;
  there.strategy.pipeline_parallel = 1;
  const std::string script = concat(R"({"after_step":20,"configuration":)", in_quotes(there), "}\n",
                                    R"({"after_step":24,"configuration":)", in_quotes(here), "}\n");
  SyntheticJob job(config_);
  Controller steered(config_, here, Knowledge(), script);
  Course course;
  run_steps(job, steered, 30, course);
  ASSERT_EQ(course.switches.size(), 2);
  EXPECT_EQ(course.switches[0].after_step, 20);
  EXPECT_EQ(course.switches[1].after_step, 24);
}

TEST_F(ControllerTest, WhileItIsPinnedNothingIsDecided) {
  SyntheticJob job(config_);
  Controller steered = controller();
  steered.command({.kind = Command::Kind::pin, .target = {}});
  EXPECT_TRUE(steered.pinned());
  Course course;
  run_steps(job, steered, 100, course);
  EXPECT_TRUE(course.decisions.empty());
  steered.command({.kind = Command::Kind::unpin, .target = {}});
  run_steps(job, steered, 100, course);
  EXPECT_FALSE(course.decisions.empty());
}

// A user forces one batch after another, and the log of that run is the script of a second run.
TEST_F(ControllerTest, WhatAPersonForcesAtTheBoundaryOfASwitchAScriptCanRepeat) {
  config_.adapt.policy = PolicyKind::fixed;
  SyntheticJob job(config_);
  Controller steered = controller();
  Course course;
  run_steps(job, steered, 20, course);
  job.expect(steered.command({.kind = Command::Kind::force, .target = other_batch(32)}).value());
  run_steps(job, steered, 1, course);
  ASSERT_EQ(course.switches.size(), 1);
  job.expect(steered.command({.kind = Command::Kind::force, .target = other_batch(64)}).value());
  run_steps(job, steered, 20, course);
  ASSERT_EQ(course.switches.size(), 2);

  std::string script;
  for (const SwitchReport& report : course.switches) {
    script += concat(R"({"after_step": )", report.after_step, R"(, "configuration": )", in_quotes(report.to), "}\n");
  }
  config_.adapt.policy = PolicyKind::script;
  SyntheticJob again(config_);
  Controller scripted(config_, configuration_of(config_), Knowledge(), script);
  Course repeated;
  run_steps(again, scripted, 41, repeated);
  ASSERT_EQ(repeated.switches.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(repeated.switches[i].after_step, course.switches[i].after_step);
    EXPECT_EQ(repeated.switches[i].to, course.switches[i].to);
  }
}

TEST_F(ControllerTest, ForcedItMovesAtTheNextBoundaryAndStaysThere) {
  config_.adapt.advise = true;  // a user's command overrides it
  SyntheticJob job(config_);
  Controller steered = controller();
  Course course;
  run_steps(job, steered, 50, course);
  EXPECT_TRUE(course.switches.empty());
  Configuration target = other_batch(32);
  target.strategy.data_parallel = 4;
  target.strategy.pipeline_parallel = 1;
  const SwitchIntent intent = steered.command({.kind = Command::Kind::force, .target = target}).value();
  EXPECT_EQ(intent.commit_after_step, 50 + 1 + Controller::lead_steps);
  EXPECT_EQ(steered.under_way()->configuration, target);
  job.expect(intent);
  EXPECT_THAT(user_error([&] { steered.command({.kind = Command::Kind::force, .target = other_batch(32)}); }),
              HasSubstr("a switch is under way, after step 53"));
  course = {};
  run_steps(job, steered, 200, course);
  ASSERT_EQ(course.switches.size(), 1);
  EXPECT_EQ(steered.current(), target);
  EXPECT_TRUE(course.decisions.empty());
  EXPECT_TRUE(steered.pinned());
  ASSERT_EQ(course.realised.size(), 1);
  EXPECT_EQ(course.realised[0].decision_step, 50);
  EXPECT_TRUE(std::isfinite(course.realised[0].predicted_gain));
  EXPECT_FALSE(steered.command({.kind = Command::Kind::force, .target = target})) << "already there";
}

TEST_F(ControllerTest, RefusesToBeForcedIntoWhatCannotBe) {
  config_.cluster.description.device.memory_bytes = 2e6;
  Controller steered = controller();
  const auto message = [&](const Configuration& target) {
    return user_error([&] { steered.command({.kind = Command::Kind::force, .target = target}); });
  };
  EXPECT_THAT(message(other_batch(17)), HasSubstr("17"));
  Configuration eight_ranks = other_batch(16);
  eight_ranks.strategy.data_parallel = 4;
  EXPECT_THAT(message(eight_ranks), HasSubstr("needs 8 ranks, and the job trains on 4"));
  Configuration large = other_batch(1024);
  large.micro_batch = 512;
  EXPECT_THAT(message(large), HasSubstr("needs "));
  EXPECT_FALSE(steered.pinned());
  EXPECT_FALSE(steered.under_way());
}

// A change to `ranks` ranks, in a data-parallel layout with the current batch.
RanksChanged data_parallel_on(int64_t ranks, const SyntheticJob& job) {
  Configuration to = job.current();
  to.strategy = {.data_parallel = ranks};
  to.micro_batch = 1;
  return {.after_step = job.step(),
          .ranks = ranks,
          .from = job.current(),
          .to = to,
          .pause_seconds = 3,
          .reason = "rank 3 was lost"};
}

TEST_F(ControllerTest, AfterALossAndAfterAGainOfRanksItDecidesAmongLayoutsOfTheRanksThatAreThere) {
  SyntheticJob job(config_);
  Controller steered = controller();
  Course course;
  run_steps(job, steered, 100, course);
  for (const int64_t ranks : {2, 8}) {
    const RanksChanged change = data_parallel_on(ranks, job);
    job.change_ranks(change);
    steered.ranks_changed(change);
    EXPECT_EQ(steered.current(), change.to);
    course = {};
    run_steps(job, steered, many_steps, course);
    ASSERT_GT(course.decisions.size(), 10);
    EXPECT_EQ(course.decisions.front().current, change.to);
    EXPECT_EQ(course.decisions.front().step, change.after_step + StepTimeLearner::warm_up_steps + 1);
    std::set<Configuration> seen;
    for (const Decision& decision : course.decisions) {
      for (const RankedCandidate& candidate : decision.choice.best) seen.insert(candidate.configuration);
      if (decision.choice.target) seen.insert(*decision.choice.target);
    }
    EXPECT_GT(seen.size(), 3);
    for (const Configuration& one : seen) EXPECT_EQ(one.strategy.world_size(), ranks) << to_string(one);
  }
}

TEST_F(ControllerTest, ALossOfRanksLeavesTheRateAndWhatIsKnownAndDropsTheSwitchUnderWay) {
  SyntheticJob job(config_);
  Controller steered = controller();
  Course course;
  while (!steered.under_way()) {
    run_steps(job, steered, 1, course);
    ASSERT_LT(job.step(), many_steps);
  }
  const double rate_factor = steered.rate_factor();
  const Knowledge knowledge = steered.knowledge();
  const RanksChanged change = data_parallel_on(2, job);
  job.change_ranks(change);
  steered.ranks_changed(change);
  EXPECT_FALSE(steered.under_way());
  EXPECT_EQ(steered.rate_factor(), rate_factor);
  EXPECT_EQ(steered.knowledge(), knowledge);
  EXPECT_FALSE(steered.pinned());
}

TEST_F(ControllerTest, WhatASwitchBroughtIsNotMeasuredOverAChangeOfRanks) {
  const auto realised_after = [&](int64_t steps_before) {
    SyntheticJob job(config_);
    Controller steered = controller();
    steered.command({.kind = Command::Kind::pin, .target = {}});
    Course course;
    run_steps(job, steered, 50, course);
    const SwitchIntent intent = steered.command({.kind = Command::Kind::force, .target = other_batch(32)}).value();
    job.expect(intent);
    course = {};
    run_steps(job, steered, intent.commit_after_step - 50 + steps_before, course);
    EXPECT_EQ(course.switches.size(), 1);
    EXPECT_TRUE(course.realised.empty());
    const RanksChanged change = data_parallel_on(2, job);
    job.change_ranks(change);
    steered.ranks_changed(change);
    run_steps(job, steered, 100, course);
    return course.realised.size();
  };
  EXPECT_EQ(realised_after(5), 0) << "too few steps to tell";
  EXPECT_EQ(realised_after(StepTimeLearner::warm_up_steps + StepTimeLearner::steps_per_measurement + 1), 1);
}

TEST_F(ControllerTest, AChangeOfRanksIsPartOfTheHash) {
  const auto hash_with = [&](const std::function<void(RanksChanged&)>& alter) {
    SyntheticJob job(config_);
    Controller steered = controller();
    Course course;
    run_steps(job, steered, 100, course);
    RanksChanged change = data_parallel_on(2, job);
    alter(change);
    steered.ranks_changed(change);
    job.change_ranks(data_parallel_on(2, job));
    course = {};
    run_steps(job, steered, 20, course);
    return course.decisions.at(0).inputs_hash;
  };
  const uint64_t usual = hash_with([](RanksChanged&) {});
  EXPECT_EQ(hash_with([](RanksChanged&) {}), usual);
  const std::vector<std::function<void(RanksChanged&)>> changes = {
      [](RanksChanged& change) { ++change.after_step; },
      [](RanksChanged& change) { ++change.ranks; },
      [](RanksChanged& change) { change.to.micro_batch = 2; },
      [](RanksChanged& change) { change.pause_seconds = std::nextafter(change.pause_seconds, 4); },
  };
  for (size_t i = 0; i < changes.size(); ++i) EXPECT_NE(hash_with(changes[i]), usual) << i;
}

TEST_F(ControllerTest, ARunGoesOnWhereTheRanksThatAreLeftHaveNothingToChooseAmong) {
  config_.adapt.global_batches = {16};
  config_.adapt.micro_batches = {1, 4};
  for (const PolicyKind policy : {PolicyKind::copus, PolicyKind::cbs_optimistic, PolicyKind::olmo, PolicyKind::cona,
                                  PolicyKind::norm_test, PolicyKind::copus_paper}) {
    config_.adapt.policy = policy;
    SyntheticJob job(config_);
    Controller steered = controller();
    Course course;
    run_steps(job, steered, 100, course);
    const RanksChanged change = data_parallel_on(16, job);
    job.change_ranks(change);
    steered.ranks_changed(change);
    course = {};
    run_steps(job, steered, 200, course);
    EXPECT_TRUE(course.switches.empty());
    ASSERT_FALSE(course.decisions.empty()) << to_string(policy);
    EXPECT_EQ(course.decisions.back().current, change.to);
  }
}

TEST_F(ControllerTest, IsForcedIntoLayoutsOfTheRanksThatItHasAfterAChange) {
  SyntheticJob job(config_);
  Controller steered = controller();
  Course course;
  run_steps(job, steered, 10, course);
  RanksChanged change = data_parallel_on(2, job);
  change.ranks = 3;
  job.change_ranks(change);
  steered.ranks_changed(change);
  EXPECT_THAT(user_error([&] { steered.command({.kind = Command::Kind::force, .target = configuration_of(config_)}); }),
              HasSubstr("needs 4 ranks, and the job trains on 2"));
  Configuration target = change.to;
  target.strategy = {.tensor_parallel = 2};
  EXPECT_TRUE(steered.command({.kind = Command::Kind::force, .target = target}));
  change.to.global_batch = 32;
  EXPECT_THROW(steered.ranks_changed(change), InternalError) << "another batch";
  change = data_parallel_on(2, job);
  change.ranks = 1;
  EXPECT_THROW(steered.ranks_changed(change), InternalError) << "more ranks than there are";
}

TEST_F(ControllerTest, WhereItOnlyAdvisesNothingMoves) {
  config_.adapt.advise = true;
  const Course course = course_of();
  EXPECT_TRUE(course.switches.empty());
  EXPECT_TRUE(std::any_of(course.decisions.begin(), course.decisions.end(),
                          [](const Decision& decision) { return decision.choice.target.has_value(); }));
  for (const Decision& decision : course.decisions) EXPECT_FALSE(decision.moves);
}

TEST_F(ControllerTest, WhatWasVetoedOrRolledBackIsNotChosenAgain) {
  for (const auto outcome : {SwitchReport::Outcome::vetoed, SwitchReport::Outcome::rolled_back}) {
    SyntheticJob job(config_);
    Controller steered = controller();
    std::set<Configuration> refused;
    for (int i = 0; i < many_steps; ++i) {
      const Reaction reaction = steered.observe(job.next_step());
      EXPECT_EQ(reaction.intent.has_value(), steered.under_way().has_value());
      if (!reaction.intent) continue;
      const Configuration target = reaction.intent->configuration;
      EXPECT_TRUE(refused.insert(target).second);
      EXPECT_EQ(reaction.decision->choice.target, target);
      steered.report({.after_step = job.step(),
                      .consumed_samples = 0,
                      .from = steered.current(),
                      .to = target,
                      .outcome = outcome,
                      .reason = "rank 3 has no memory left"});
      EXPECT_EQ(steered.current(), configuration_of(config_));
    }
    ASSERT_GT(refused.size(), 2);
    EXPECT_THAT(user_error([&] { steered.command({.kind = Command::Kind::force, .target = *refused.begin()}); }),
                HasSubstr("rank 3 has no memory left"));
  }
}

// Refuses every switch, and returns the targets in order, with their predicted bytes.
std::vector<std::pair<Configuration, double>> refused_switches(const RunConfig& config, Controller& steered,
                                                               std::optional<bool> is_lack_of_memory) {
  const PredictedJob predicted = predicted_job(config);
  MemoryModel memory(predicted.model, predicted.sequence_length, training_system_of(config));
  std::vector<std::pair<Configuration, double>> refused;
  SyntheticJob job(config);
  for (int i = 0; i < many_steps; ++i) {
    const Reaction reaction = steered.observe(job.next_step());
    if (!reaction.intent) continue;
    const Configuration target = reaction.intent->configuration;
    refused.emplace_back(target, memory.predict(target).parts.total());
    steered.report({.after_step = job.step(),
                    .consumed_samples = 0,
                    .from = steered.current(),
                    .to = target,
                    .outcome = SwitchReport::Outcome::vetoed,
                    .reason = "rank 3 has no memory left",
                    .is_lack_of_memory = is_lack_of_memory});
  }
  return refused;
}

// Whether each target needs less than all before it.
bool needs_ever_less(const std::vector<std::pair<Configuration, double>>& targets) {
  return std::is_sorted(targets.begin(), targets.end(),
                        [](const auto& one, const auto& other) { return one.second >= other.second; });
}

TEST_F(ControllerTest, WhatNeedsAsMuchMemoryAsWhatDidNotFitIsNotTried) {
  for (const std::optional<bool> not_memory : {std::optional<bool>(), std::optional(false)}) {
    Controller steered = controller();
    const auto tried = refused_switches(config_, steered, not_memory);
    EXPECT_GT(tried.size(), 2);
    EXPECT_FALSE(needs_ever_less(tried)) << "so that memory alone makes a difference";
  }
  Controller steered = controller();
  const auto tried = refused_switches(config_, steered, true);
  ASSERT_GT(tried.size(), 0);
  EXPECT_TRUE(needs_ever_less(tried));
  Configuration large = tried.back().first;
  large.global_batch *= 4;
  large.micro_batch *= 4;
  EXPECT_THAT(user_error([&] { steered.command({.kind = Command::Kind::force, .target = large}); }),
              AllOf(HasSubstr(to_string(large) + " is predicted to need "), HasSubstr(to_string(tried.back().first)),
                    HasSubstr("rank 3 has no memory left")));
  EXPECT_FALSE(steered.pinned());
}

TEST_F(ControllerTest, WhatHasBeenRunIsNotRuledOutByTheMemoryOfWhatDidNotFit) {
  Controller steered = controller();
  const Configuration begin = configuration_of(config_);
  Configuration large = other_batch(64), small = begin;
  large.micro_batch = 32;
  small.micro_batch = 1;
  SyntheticJob job(config_);
  Course course;
  const auto force = [&](const Configuration& target) {
    return steered.command({.kind = Command::Kind::force, .target = target});
  };
  for (const Configuration& target : {large, begin}) {
    job.expect(force(target).value());
    run_steps(job, steered, 10, course);
    ASSERT_EQ(steered.current(), target);
  }
  force(small);
  steered.report({.after_step = job.step(),
                  .consumed_samples = 0,
                  .from = begin,
                  .to = small,
                  .outcome = SwitchReport::Outcome::vetoed,
                  .reason = "rank 3 has no memory left",
                  .is_lack_of_memory = true});
  Configuration between = begin;
  between.micro_batch = 2;
  EXPECT_THAT(user_error([&] { force(between); }), HasSubstr("no less than the"));
  EXPECT_FALSE(force(begin)) << "the current one is never ruled out";
  EXPECT_TRUE(force(large));
}

TEST_F(ControllerTest, SaysWhatSwitchesBrought) {
  const Course course = course_of();
  ASSERT_GT(course.realised.size(), 1);
  const SyntheticJob job(config_);
  for (const Realised& realised : course.realised) {
    EXPECT_NEAR(realised.realised_step_seconds / job.true_seconds(realised.to), 1, 0.02);
    const auto decision = std::find_if(course.decisions.begin(), course.decisions.end(),
                                       [&](const Decision& d) { return d.step == realised.decision_step && d.moves; });
    ASSERT_NE(decision, course.decisions.end());
    EXPECT_EQ(decision->choice.target, realised.to);
    EXPECT_EQ(decision->choice.predicted_gain, realised.predicted_gain);
    const double before = job.true_seconds(realised.from), after = job.true_seconds(realised.to);
    const double throughput = static_cast<double>(realised.to.global_batch) / after * before /
                              static_cast<double>(realised.from.global_batch);
    // The larger batch has a lower efficiency and a higher learning rate, so this is an upper bound.
    EXPECT_LT(realised.realised_gain, 2 * throughput);
    EXPECT_GT(realised.realised_gain, -0.2);
  }
}

TEST_F(ControllerTest, StepsThatWereSkippedSayNothingOfStepTimes) {
  SyntheticJob job(config_);
  Controller steered = controller();
  for (int i = 0; i < 20; ++i) {
    Observation observation = job.next_step();
    observation.loss = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(steered.observe(observation).decision);
  }
  EXPECT_EQ(steered.knowledge(), Knowledge());
}

TEST_F(ControllerTest, TheFirstStepsOfAnotherProcessDoNotCount) {
  SyntheticJob job(config_);
  Controller steered = controller();
  Course course;
  run_steps(job, steered, 5, course);
  const Knowledge known = steered.knowledge();
  steered.mark_resumed();
  run_steps(job, steered, StepTimeLearner::warm_up_steps, course,
            [](Observation& observation) { observation.step_seconds *= 50; });
  EXPECT_EQ(steered.knowledge(), known);
}

TEST_F(ControllerTest, NeedsSomethingToChooseAmongAndToCompareBy) {
  RunConfig config = config_;
  config.cluster.clock = ClockKind::wall;
  EXPECT_THAT(user_error([&] { Controller(config, configuration_of(config), Knowledge()); }),
              HasSubstr("nothing says how fast the cluster computes"));
  config = config_;
  config.adapt.global_batches = {16};
  config.adapt.micro_batches = {4};
  config.cluster.description.device.memory_bytes = 1000;
  EXPECT_THAT(user_error([&] { Controller(config, configuration_of(config), Knowledge()); }),
              HasSubstr("nothing to choose among"));
}

}  // namespace
}  // namespace copus
