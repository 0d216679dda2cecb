#include "copus/report/logs/decision_replay.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "copus/orchestrator/testing/synthetic_job.h"
#include "copus/report/logs/run_log.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

StepRecord record_of(const Observation& observation, const SyntheticJob& job, const RunConfig& config) {
  StepRecord record;
  record.step = observation.step;
  record.consumed_samples = observation.consumed_samples;
  record.consumed_tokens = 64 * observation.consumed_samples;
  record.loss = observation.loss;
  record.lr = observation.learning_rate;
  record.phase = observation.phase;
  record.grad_norm = observation.grad_norm;
  record.clipped = observation.clipped;
  record.step_seconds = observation.step_seconds;
  record.elapsed_seconds = observation.elapsed_seconds;
  record.seconds_left = seconds_left(config.train, record.consumed_tokens, record.elapsed_seconds, 0);
  record.share_done = share_done(config.train, record.consumed_tokens, record.elapsed_seconds);
  record.global_batch = job.current().global_batch;
  record.noise_scale = observation.noise_scale;
  record.noise_scale_low = observation.noise_scale_low;
  record.noise_scale_high = observation.noise_scale_high;
  return record;
}

class DecisionReplayTest : public TestDirectory {
 protected:
  // Writes the logs of a run as `copus train` does.
  void train(int64_t steps) {
    SyntheticJob job(config_);
    Controller controller(config_, configuration_of(config_), Knowledge(), file_);
    begin();
    go_on(job, controller, 1, steps);
  }

  void begin() {
    const RunLog empty(directory_);
    DecisionLog log(directory_);
    log.append(ControllerBegin{.step = 0,
                               .policy = "copus",
                               .advise = config_.adapt.advise,
                               .configuration = configuration_of(config_),
                               .knowledge = Knowledge(),
                               .file = file_});
  }

  // Continues a run whose logs end before `from`, until `until`, with a user's commands in between.
  void go_on(SyntheticJob& job, Controller& controller, int64_t from, int64_t until) {
    RunLog steps(directory_, from - 1);
    DecisionLog events(directory_, from - 1);
    for (int64_t step = from; step <= until; ++step) {
      if (steps_between_states_ > 0 && step > 1 && (step - 1) % steps_between_states_ == 0 && step > from) {
        events.append(ControllerState{step - 1, 0, controller.current(), controller.save_state()});
      }
      StepRecord record = record_of(job.next_step(), job, config_);
      steps.append(record);
      const Reaction reaction = controller.observe(observation_of(record));
      if (reaction.decision) events.append(*reaction.decision);
      for (const Realised& realised : reaction.realised) events.append(LoggedRealised{step, realised});
      if (reaction.intent && !is_short_of_memory_) job.expect(*reaction.intent);
      for (const auto& [after_step, command] : commands_) {
        if (after_step != step) continue;
        if (const auto intent = controller.command(command)) job.expect(*intent);
        events.append(LoggedCommand{step, command});
      }
      const std::optional<SwitchIntent> refused = controller.under_way();
      if (is_short_of_memory_ && refused && refused->commit_after_step == step) {
        SwitchReport veto;
        veto.after_step = step;
        veto.consumed_samples = record.consumed_samples;
        veto.from = controller.current();
        veto.to = refused->configuration;
        veto.outcome = SwitchReport::Outcome::vetoed;
        veto.is_lack_of_memory = true;
        controller.report(veto);
        events.append(veto);
      }
      for (const auto& [after_step, ranks] : ranks_) {
        if (after_step != step) continue;
        RanksChanged change;
        change.after_step = step;
        change.ranks = ranks;
        change.from = change.to = controller.current();
        change.to.strategy = {.data_parallel = ranks / 2, .tensor_parallel = 2};
        change.to.micro_batch = 1;
        change.pause_seconds = 3;
        change.reason = "rank 1 was lost";
        job.change_ranks(change);
        controller.ranks_changed(change);
        events.append(change);
      }
      for (const RunCalibration& calibration : calibrations_) {
        if (calibration.step != step) continue;
        controller.calibrated(calibration);
        events.append(calibration);
      }
      if (const auto report = job.switch_if_due()) {
        SwitchReport outcome = *report;
        controller.report(outcome);
        events.append(outcome);
      }
    }
  }

  std::vector<StepRecord> records() const { return read_run_log(directory_ / "run.jsonl"); }
  std::vector<DecisionEvent> events() const { return read_decision_log(directory_ / "decisions.jsonl"); }
  std::string log_text() const { return read_text_file(directory_ / "decisions.jsonl"); }

  RunConfig config_ = adapting_run();
  std::string file_;
  std::vector<std::pair<int64_t, Command>> commands_;
  std::vector<std::pair<int64_t, int64_t>> ranks_;  // number of ranks after these steps
  std::vector<RunCalibration> calibrations_;
  int64_t steps_between_states_ = 0;  // 0: no states are logged
  bool is_short_of_memory_ = false;   // if so, every switch is vetoed
};

// Decisions depend on the branches that the run has trained for calibration. The same holds in a replay, and in a
// resumed run that continues from a logged state.
TEST_F(DecisionReplayTest, CalibrationsAreReplayed) {
  calibrations_ = {{.step = 200,
                    .consumed_samples = 3200,
                    .share_done = 0.01,
                    .batch = 16,
                    .branch_batch = 128,
                    .branches = 7,
                    .noise_scale = 70,
                    .seconds = 3,
                    .critical_batch = 10,
                    .deviation = 0.3}};
  steps_between_states_ = 150;
  train(500);
  const Replay replayed = replay(config_, records(), events());
  EXPECT_FALSE(replayed.difference) << replayed.difference->what;
  EXPECT_GT(replayed.decisions, 5);
  const auto again = bring_up_to_date(config_, records(), events(), 500);
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->difference);
  EXPECT_EQ(again->controller.calibrations().critical_batches().size(), 1);

  std::vector<DecisionEvent> without = events();
  std::erase_if(without, [](const DecisionEvent& event) {
    return std::holds_alternative<RunCalibration>(event) || std::holds_alternative<ControllerState>(event);
  });
  EXPECT_TRUE(replay(config_, records(), without).difference) << "decisions depend on it";
}

TEST_F(DecisionReplayTest, ARunReplaysToTheSameDecisions) {
  Configuration target = configuration_of(config_);
  target.global_batch = 32;
  commands_ = {{150, {.kind = Command::Kind::pin, .target = {}}},
               {200, {.kind = Command::Kind::unpin, .target = {}}},
               {300, {.kind = Command::Kind::force, .target = target}},
               {350, {.kind = Command::Kind::unpin, .target = {}}}};
  train(500);
  const Replay result = replay(config_, records(), events());
  EXPECT_FALSE(result.difference) << result.difference->what;
  EXPECT_GT(result.decisions, 20);
  EXPECT_GT(result.switches, 1);
}

TEST_F(DecisionReplayTest, WhatARunCannotHaveBeenInNamesTheOtherJobThatItMayHaveBeen) {
  train(20);
  config_.model.num_layers = 1;
  const auto refusal = [&] { return user_error([&] { replay_open_loop(config_, "", records(), events()); }); };
  EXPECT_THAT(refusal(), AllOf(HasSubstr("after step 0"), HasSubstr("p=2"), HasSubstr("damaged, or of another run"),
                               Not(HasSubstr("cluster.stands_for"))));
  config_.cluster.clock = ClockKind::modelled;
  EXPECT_THAT(refusal(), HasSubstr("cluster.stands_for"));
}

// The run has no policy, and its cluster's speed is unknown.
TEST_F(DecisionReplayTest, WhatWasForcedInARunWithoutAPolicyReplaysAndGoesOn) {
  SyntheticJob job(config_);
  config_.adapt.policy = PolicyKind::none;
  config_.cluster = {};
  Configuration target = configuration_of(config_);
  target.global_batch = 32;
  Configuration layout = target;
  layout.strategy = {.data_parallel = 4};
  commands_ = {{50, {.kind = Command::Kind::force, .target = target}},
               {98, {.kind = Command::Kind::force, .target = layout}}};
  {
    Controller controller(config_, configuration_of(config_), Knowledge());
    begin();
    go_on(job, controller, 1, 100);
  }
  EXPECT_EQ(bring_up_to_date(config_, records(), events(), 60)->controller.current(), target);
  auto resumed = bring_up_to_date(config_, records(), events(), 100);
  ASSERT_FALSE(resumed->difference) << resumed->difference->what;
  EXPECT_EQ(resumed->controller.under_way().value().configuration, layout) << "it is announced again";
  go_on(job, resumed->controller, 101, 150);
  EXPECT_EQ(resumed->controller.current(), layout);
  const Replay result = replay(config_, records(), events());
  EXPECT_FALSE(result.difference) << result.difference->what;
  EXPECT_EQ(result.decisions, 0);
  EXPECT_EQ(result.switches, 2);

  std::vector<DecisionEvent> others = events();
  std::erase_if(others, [](const DecisionEvent& event) { return std::holds_alternative<LoggedCommand>(event); });
  EXPECT_TRUE(replay(config_, records(), others).difference) << "switches that nobody asked for";
}

TEST_F(DecisionReplayTest, ASchedulesRatesReplayBitwise) {
  config_.adapt.policy = PolicyKind::seesaw;
  config_.train.max_tokens = int64_t{64} * 6000;  // so that the cosine falls within the steps below
  train(400);
  const Replay result = replay(config_, records(), events());
  EXPECT_FALSE(result.difference) << result.difference->what;
  EXPECT_EQ(result.switches, 3);
}

TEST_F(DecisionReplayTest, WhatMemoryRuledOutIsRuledOutAgain) {
  is_short_of_memory_ = true;
  train(500);
  const Replay result = replay(config_, records(), events());
  EXPECT_FALSE(result.difference) << result.difference->what;
  EXPECT_GT(result.switches, 0);
  // If the log does not say that memory was lacking, the new controller tries other configurations.
  std::vector<DecisionEvent> forgetful = events();
  for (DecisionEvent& event : forgetful) {
    if (auto* report = std::get_if<SwitchReport>(&event)) report->is_lack_of_memory.reset();
  }
  EXPECT_TRUE(replay(config_, records(), forgetful).difference);
}

TEST_F(DecisionReplayTest, FindsWhereARecordWasAnother) {
  train(300);
  std::vector<StepRecord> changed = records();
  changed[120].step_seconds = std::nextafter(changed[120].step_seconds, 0);
  const Replay result = replay(config_, changed, events());
  ASSERT_TRUE(result.difference);
  const std::vector<DecisionEvent> all = events();
  const auto next = std::find_if(all.begin(), all.end(), [](const DecisionEvent& event) {
    return std::holds_alternative<Decision>(event) && step_of(event) >= 121;
  });
  EXPECT_EQ(result.difference->step, step_of(*next));
  EXPECT_THAT(result.difference->what, HasSubstr("inputs_hash"));
}

TEST_F(DecisionReplayTest, FindsDecisionsThatAreMissingTooManyOrOthers) {
  train(300);
  const std::vector<DecisionEvent> all = events();
  const auto is_decision = [](const DecisionEvent& event) { return std::holds_alternative<Decision>(event); };
  const auto first = std::find_if(all.begin(), all.end(), is_decision) - all.begin();

  std::vector<DecisionEvent> missing = all;
  missing.erase(missing.begin() + first);
  EXPECT_THAT(replay(config_, records(), missing).difference->what, HasSubstr("the log has no decision"));

  std::vector<DecisionEvent> too_many = all;
  too_many.insert(too_many.begin() + first, all[static_cast<size_t>(first)]);
  EXPECT_THAT(replay(config_, records(), too_many).difference->what, HasSubstr("the replay makes none"));

  std::vector<DecisionEvent> other = all;
  std::get<Decision>(other[static_cast<size_t>(first)]).choice.predicted_gain += 1e-9;
  EXPECT_THAT(replay(config_, records(), other).difference->what, HasSubstr("predicted_gain"));

  std::vector<DecisionEvent> unannounced = all;
  SwitchReport report;
  report.after_step = 1;
  unannounced.insert(unannounced.begin() + 1, report);
  EXPECT_THAT(replay(config_, records(), unannounced).difference->what, HasSubstr("has not announced"));
}

// Reasons are texts for people, and another version may phrase them differently.
TEST_F(DecisionReplayTest, TheWordsOfAReasonDecideNothing) {
  train(300);
  std::vector<DecisionEvent> all = events();
  for (DecisionEvent& event : all) {
    if (auto* decision = std::get_if<Decision>(&event)) decision->choice.reason += " in layout 2x2x1";
  }
  EXPECT_FALSE(replay(config_, records(), all).difference);
}

TEST_F(DecisionReplayTest, AnotherConfigurationDecidesOtherwise) {
  train(300);
  config_.adapt.interval_samples = 100;
  EXPECT_TRUE(replay(config_, records(), events()).difference);
}

TEST_F(DecisionReplayTest, FilesThatDoNotBelongTogether) {
  train(300);
  std::vector<StepRecord> fewer = records();
  fewer.resize(100);
  EXPECT_THAT(user_error([&] { replay(config_, fewer, events()); }), HasSubstr("run.jsonl has no such step"));
  std::vector<DecisionEvent> headless = events();
  headless.erase(headless.begin());
  EXPECT_THAT(user_error([&] { replay(config_, records(), headless); }), HasSubstr("does not begin with"));
  EXPECT_THAT(user_error([&] { replay(config_, records(), {}); }), HasSubstr("nothing to replay"));
}

// The run was killed after logging its last step but before logging the decision of that step.
TEST_F(DecisionReplayTest, TheLogOfAKilledRunMayEndEarly) {
  train(300);
  std::vector<StepRecord> steps = records();
  std::vector<DecisionEvent> all = events();
  while (!std::holds_alternative<Decision>(all.back())) all.pop_back();
  steps.resize(static_cast<size_t>(step_of(all.back())));
  all.pop_back();
  EXPECT_FALSE(replay(config_, steps, all).difference);
}

// Runs are interrupted after any step, including steps between the announcement of a switch and the switch itself.
TEST_F(DecisionReplayTest, AResumedRunGoesOnAsIfItHadNotBeenInterrupted) {
  train(200);
  const std::string uninterrupted = log_text();
  const std::vector<DecisionEvent> all = events();
  std::vector<int64_t> stops = {1, 50, 137, 199};
  for (const DecisionEvent& event : all) {
    if (const auto* report = std::get_if<SwitchReport>(&event)) {
      for (int64_t step = report->after_step - 3; step <= report->after_step + 1; ++step) stops.push_back(step);
    }
  }
  ASSERT_GT(stops.size(), 8);
  for (const int64_t stop : stops) {
    for (const char* name : {"run.jsonl", "decisions.jsonl"}) std::filesystem::remove(directory_ / name);
    SyntheticJob job(config_);
    {
      Controller first(config_, configuration_of(config_), Knowledge());
      begin();
      go_on(job, first, 1, stop);
    }
    auto resumed = bring_up_to_date(config_, records(), events(), stop);
    ASSERT_TRUE(resumed);
    ASSERT_FALSE(resumed->difference) << resumed->difference->what;
    EXPECT_EQ(resumed->controller.current(), job.current());
    go_on(job, resumed->controller, stop + 1, 200);
    ASSERT_EQ(log_text(), uninterrupted) << "stopped after step " << stop;
  }
}

// The controller of a resumed run needs only its latest logged state and the events after it, whatever it learned
// before.
TEST_F(DecisionReplayTest, AResumedRunGoesOnFromItsLatestState) {
  steps_between_states_ = 40;
  Configuration target = configuration_of(config_);
  target.global_batch = 32;
  for (const PolicyKind policy : all_values<PolicyKind>()) {
    for (const bool has_trouble : {false, true}) {
      SCOPED_TRACE(concat(to_string(policy), has_trouble ? ", with trouble" : ""));
      config_ = adapting_run();
      config_.adapt.policy = policy;
      config_.adapt.schedule = "0:16 4096:32 8192:64";
      config_.adapt.late_switch_share = 1e-3;
      config_.adapt.late_switch_batch = 64;
      file_ = policy == PolicyKind::oracle ? "0 8\n4000 90\n"
              : policy == PolicyKind::script
                  ? R"({"after_step": 30, "configuration": "d=2,t=1,p=2,B=32,b=4"})"
                    "\n"
                    R"({"after_step": 130, "configuration": "d=2,t=2,p=1,B=64,b=4", "rate_factor": 2})"
                    "\n"
                  : "";
      commands_.clear();
      ranks_.clear();
      if (has_trouble) {
        commands_ = {{20, {.kind = Command::Kind::force, .target = target}},
                     {60, {.kind = Command::Kind::unpin, .target = {}}}};
        ranks_ = {{100, 2}};
      }
      const auto remove_logs = [&] {
        for (const char* name : {"run.jsonl", "decisions.jsonl"}) std::filesystem::remove(directory_ / name);
      };
      remove_logs();
      train(150);
      const std::string uninterrupted = log_text();
      const Replay whole = replay(config_, records(), events());
      EXPECT_FALSE(whole.difference) << whole.difference->what;
      for (const int64_t stop : {79, 100, 133}) {
        remove_logs();
        SyntheticJob job(config_);
        {
          Controller first(config_, configuration_of(config_), Knowledge(), file_);
          begin();
          go_on(job, first, 1, stop);
        }
        std::vector<DecisionEvent> recent = events();
        const auto state = std::find_if(recent.rbegin(), recent.rend(), [](const DecisionEvent& event) {
          return std::holds_alternative<ControllerState>(event);
        });
        ASSERT_NE(state, recent.rend());
        const int64_t since = step_of(*state);
        EXPECT_GE(since, stop - steps_between_states_);
        recent.erase(recent.begin() + 1, state.base() - 1);
        auto resumed = bring_up_to_date(config_, read_run_log(directory_ / "run.jsonl", stop, since), recent, stop);
        ASSERT_TRUE(resumed);
        ASSERT_FALSE(resumed->difference) << resumed->difference->what;
        if (resumed->controller.under_way()) job.expect(*resumed->controller.under_way());
        go_on(job, resumed->controller, stop + 1, 150);
        ASSERT_EQ(log_text(), uninterrupted) << "stopped after step " << stop;
      }
    }
  }
}

TEST_F(DecisionReplayTest, AStateIsReadOnlyWhole) {
  steps_between_states_ = 40;
  train(100);
  std::vector<DecisionEvent> all = events();
  for (DecisionEvent& event : all) {
    auto* state = std::get_if<ControllerState>(&event);
    if (state == nullptr) continue;
    const std::string line = to_line(event);
    const size_t digit = line.rfind("\"1\"");
    ASSERT_NE(digit, std::string::npos);
    std::string edited = line;
    edited[digit + 1] = '0';
    EXPECT_THAT(user_error([&] { decision_event_from_line(edited); }), HasSubstr("does not fit its checksum"));
    state->values.pop_back();
  }
  EXPECT_THAT(user_error([&] { bring_up_to_date(config_, records(), all, 100); }),
              HasSubstr("decisions.jsonl, the state after step 80: it has only"));
  // A policy that keeps other state cannot use it.
  config_.adapt.policy = PolicyKind::cona;
  EXPECT_THAT(user_error([&] { bring_up_to_date(config_, records(), events(), 100); }),
              HasSubstr("settings that do not fit"));
}

TEST_F(DecisionReplayTest, AResumedRunReadsItsDecisionsSinceTheLatestStateAlone) {
  steps_between_states_ = steps_between_states;
  train(2100);
  const std::filesystem::path log = directory_ / "decisions.jsonl";
  const std::vector<DecisionEvent> all = events();
  for (const int64_t step : {999, 1000, 1500, 2001, 2100}) {
    const std::vector<DecisionEvent> some = read_decisions_to_resume(log, step);
    ASSERT_FALSE(some.empty());
    EXPECT_TRUE(std::holds_alternative<ControllerBegin>(some.front()));
    const int64_t state_step = step / steps_between_states * steps_between_states;
    if (state_step > 0) {
      ASSERT_GT(some.size(), 1);
      EXPECT_TRUE(std::holds_alternative<ControllerState>(some[1]));
      EXPECT_EQ(step_of(some[1]), state_step);
    }
    const auto in_all = [&](int64_t after) {
      return std::count_if(all.begin(), all.end(), [&](const DecisionEvent& event) {
        return step_of(event) > after && step_of(event) <= step && !std::holds_alternative<ControllerBegin>(event);
      });
    };
    EXPECT_EQ(std::ssize(some), state_step == 0 ? 1 + in_all(0) : 2 + in_all(state_step)) << step;
  }
}

TEST_F(DecisionReplayTest, ARunThatLosesAndGainsRanksReplays) {
  ranks_ = {{100, 2}, {300, 8}};
  train(500);
  const Replay result = replay(config_, records(), events());
  EXPECT_FALSE(result.difference) << result.difference->what;
  EXPECT_GT(result.switches, 1);
  int64_t fewer = 0, more = 0;
  const std::vector<DecisionEvent> all = events();
  for (const DecisionEvent& event : all) {
    const auto* decision = std::get_if<Decision>(&event);
    if (decision == nullptr) continue;
    for (const RankedCandidate& candidate : decision->choice.best) {
      const int64_t ranks = candidate.configuration.strategy.world_size();
      EXPECT_EQ(ranks, decision->step <= 100 ? 4 : decision->step <= 300 ? 2 : 8) << decision->step;
      fewer += ranks == 2 ? 1 : 0;
      more += ranks == 8 ? 1 : 0;
    }
  }
  EXPECT_GT(fewer, 0);
  EXPECT_GT(more, 0);
  // Another policy is replayed over the same sequence of configurations.
  RunConfig other = config_;
  other.adapt.policy = PolicyKind::fixed;
  EXPECT_EQ(replay_open_loop(other, "", records(), all).back().current.strategy.world_size(), 8);
  // A log whose ranks change from a configuration that the run was not in does not belong to this run.
  std::vector<DecisionEvent> elsewhere = all;
  for (DecisionEvent& event : elsewhere) {
    if (auto* change = std::get_if<RanksChanged>(&event)) change->from.micro_batch *= 2;
  }
  const Replay differs = replay(config_, records(), elsewhere);
  ASSERT_TRUE(differs.difference);
  EXPECT_EQ(differs.difference->step, 100);
  EXPECT_THAT(differs.difference->what, HasSubstr("the log has other ranks after"));
}

TEST_F(DecisionReplayTest, AResumedRunComesThroughAChangeOfRanks) {
  ranks_ = {{60, 2}, {120, 4}};
  train(200);
  const std::string uninterrupted = log_text();
  for (const int64_t stop : {59, 60, 61, 63, 100, 120, 121, 160}) {
    for (const char* name : {"run.jsonl", "decisions.jsonl"}) std::filesystem::remove(directory_ / name);
    SyntheticJob job(config_);
    {
      Controller first(config_, configuration_of(config_), Knowledge());
      begin();
      go_on(job, first, 1, stop);
    }
    auto resumed = bring_up_to_date(config_, records(), events(), stop);
    ASSERT_TRUE(resumed);
    ASSERT_FALSE(resumed->difference) << resumed->difference->what;
    EXPECT_EQ(resumed->controller.current(), job.current());
    go_on(job, resumed->controller, stop + 1, 200);
    ASSERT_EQ(log_text(), uninterrupted) << "stopped after step " << stop;
  }
}

// The process that writes the log was lost after logging a step but before logging the decision of that step.
TEST_F(DecisionReplayTest, WhatALostProcessDecidedLastMayLackInTheLog) {
  train(150);
  std::vector<DecisionEvent> all = events();
  const auto last = std::find_if(all.rbegin(), all.rend(),
                                 [](const DecisionEvent& event) { return std::holds_alternative<Decision>(event); });
  const int64_t step = step_of(*last);
  for (const char* name : {"run.jsonl", "decisions.jsonl"}) std::filesystem::remove(directory_ / name);
  ranks_ = {{step, 2}};
  train(300);
  all = events();
  const size_t before = all.size();
  std::erase_if(all, [&](const DecisionEvent& event) {
    return std::holds_alternative<Decision>(event) && step_of(event) == step;
  });
  ASSERT_EQ(all.size(), before - 1);
  const Replay result = replay(config_, records(), all);
  EXPECT_FALSE(result.difference) << result.difference->what;
}

TEST_F(DecisionReplayTest, ASwitchThatIsUnderWayIsAnnouncedAgain) {
  train(300);
  const std::vector<DecisionEvent> all = events();
  const auto move = std::find_if(all.begin(), all.end(), [](const DecisionEvent& event) {
    const auto* decision = std::get_if<Decision>(&event);
    return decision != nullptr && decision->moves;
  });
  ASSERT_NE(move, all.end());
  const auto& decision = std::get<Decision>(*move);
  auto resumed = bring_up_to_date(config_, records(), all, decision.step);
  ASSERT_TRUE(resumed && !resumed->difference);
  const SwitchIntent intent = resumed->controller.under_way().value();
  EXPECT_EQ(intent.configuration, decision.choice.target);
  EXPECT_EQ(intent.commit_after_step, decision.commit_after_step);
  EXPECT_EQ(intent.inputs_hash, decision.inputs_hash);
}

TEST_F(DecisionReplayTest, ARunThatGoesOnWithOtherSettingsBeginsAnew) {
  SyntheticJob job(config_);
  {
    Controller controller(config_, configuration_of(config_), Knowledge());
    begin();
    go_on(job, controller, 1, 100);
  }
  const Knowledge known = bring_up_to_date(config_, records(), events(), 100)->controller.knowledge();
  config_.adapt.dwell_samples = 64;
  config_.adapt.interval_samples = 64;
  EXPECT_TRUE(bring_up_to_date(config_, records(), events(), 100)->difference);
  {
    DecisionLog(directory_, 100).append(ControllerBegin{100, "copus", false, job.current(), known, ""});
  }
  auto begun = bring_up_to_date(config_, records(), events(), 100);
  ASSERT_FALSE(begun->difference);
  EXPECT_EQ(begun->controller.knowledge(), known);
  go_on(job, begun->controller, 101, 200);
  const Replay result = replay(config_, records(), events());
  EXPECT_FALSE(result.difference) << result.difference->what;
  EXPECT_GT(result.earlier_decisions, 0);
  EXPECT_GT(result.decisions, 0);
}

// The log has the remaining time at each decision, so making the run longer changes no earlier decision.
TEST_F(DecisionReplayTest, ARunThatIsMadeLongerKeepsWhatItHasLearned) {
  constexpr int64_t steps = 400;
  SyntheticJob job(config_);
  for (int64_t step = 0; step < steps / 4; ++step) job.next_step();
  config_.train.max_seconds = job.next_step().elapsed_seconds;  // so that nothing pays off in most of the steps
  train(steps);
  const RunConfig shorter = config_;
  config_.train.max_seconds *= 100;
  const auto resumed = bring_up_to_date(config_, records(), events(), steps);
  ASSERT_FALSE(resumed->difference) << resumed->difference->what;
  EXPECT_EQ(resumed->controller.knowledge(),
            bring_up_to_date(shorter, records(), events(), steps)->controller.knowledge());
  EXPECT_FALSE(replay(config_, records(), events()).difference);

  std::vector<StepRecord> without_what_is_left = records();
  for (StepRecord& record : without_what_is_left) record.seconds_left.reset();
  EXPECT_TRUE(replay(config_, without_what_is_left, events()).difference) << "else the test shows nothing";
}

TEST_F(DecisionReplayTest, AShortRunDecidesByTheSharesInItsLog) {
  config_.adapt.interval_samples = 1 << 20;
  config_.train.max_tokens = int64_t{64} * 16 * 160;
  train(100);
  Replay result = replay(config_, records(), events());
  EXPECT_FALSE(result.difference) << result.difference->what;
  EXPECT_GT(result.decisions, 8) << "more than first looks";
  config_.train.max_tokens *= 100;
  EXPECT_FALSE(replay(config_, records(), events()).difference) << "the shares are those of then";

  std::vector<StepRecord> without_shares = records();
  for (StepRecord& record : without_shares) record.share_done.reset();
  EXPECT_TRUE(replay(config_, without_shares, events()).difference) << "else the test shows nothing";
}

TEST_F(DecisionReplayTest, TheFirstStepsOfAnotherProcessAreLeftOutAgain) {
  begin();
  SyntheticJob job(config_);
  {
    Controller controller(config_, configuration_of(config_), Knowledge());
    go_on(job, controller, 1, 100);
  }
  auto resumed = bring_up_to_date(config_, records(), events(), 100);
  resumed->controller.mark_resumed();
  {
    DecisionLog(directory_, 100).append(ControllerResumed{.step = 100});
  }
  go_on(job, resumed->controller, 101, 200);
  const Replay result = replay(config_, records(), events());
  EXPECT_FALSE(result.difference) << result.difference->what;
}

TEST_F(DecisionReplayTest, OpenLoopAsksAnotherPolicyAlongTheSameWay) {
  train(300);
  RunConfig other = config_;
  other.adapt.policy = PolicyKind::fixed;
  const std::vector<Decision> held = replay_open_loop(other, "", records(), events());
  ASSERT_GT(held.size(), 5);
  for (const Decision& decision : held) {
    EXPECT_EQ(decision.policy, "static");
    EXPECT_FALSE(decision.choice.target);
    EXPECT_FALSE(decision.moves);
  }
  // The replay follows the configurations of the run, not those that its own policy would choose.
  std::vector<Configuration> visited;
  for (const DecisionEvent& event : events()) {
    if (const auto* report = std::get_if<SwitchReport>(&event)) visited.push_back(report->to);
  }
  ASSERT_FALSE(visited.empty());
  EXPECT_EQ(held.back().current, visited.back());
  // The same policy makes the same decisions at first.
  const std::vector<Decision> same = replay_open_loop(config_, "", records(), events());
  const std::vector<DecisionEvent> all = events();
  const auto first = std::find_if(all.begin(), all.end(),
                                  [](const DecisionEvent& event) { return std::holds_alternative<Decision>(event); });
  EXPECT_EQ(same.front().choice.target, std::get<Decision>(*first).choice.target);
  EXPECT_EQ(same.front().inputs_hash, std::get<Decision>(*first).inputs_hash);
}

TEST_F(DecisionReplayTest, OpenLoopFollowsARunThatWasResumedInAnotherBatch) {
  config_.adapt.policy = PolicyKind::fixed;
  train(200);
  std::vector<DecisionEvent> all = events();
  auto later = std::get<ControllerBegin>(all.front());
  later.step = 100;
  later.configuration.global_batch *= 4;
  all.insert(std::ranges::find_if(all, [](const DecisionEvent& event) { return step_of(event) > 100; }), later);
  const std::vector<Decision> decisions = replay_open_loop(config_, "", records(), all);
  EXPECT_EQ(decisions.front().current.global_batch, config_.train.global_batch);
  EXPECT_EQ(decisions.back().current.global_batch, later.configuration.global_batch);
}

TEST_F(DecisionReplayTest, WhereStepsAreMissingNobodyCanTell) {
  train(300);
  std::vector<StepRecord> holey = records();
  holey.erase(holey.begin() + 119, holey.begin() + 122);
  for (const auto& judge : std::vector<std::function<void()>>{
           [&] { replay(config_, holey, events()); }, [&] { replay_open_loop(config_, "", holey, events()); }}) {
    EXPECT_THAT(user_error(judge),
                AllOf(HasSubstr("run.jsonl has no line of steps 120 to 122"), HasSubstr("nobody can tell")));
  }
  // A resumed run does not fail because of the missing lines: it reports a difference and starts a new controller.
  const auto resumed = bring_up_to_date(config_, holey, events(), 300);
  ASSERT_TRUE(resumed && resumed->difference);
  EXPECT_EQ(resumed->difference->step, 120);
  EXPECT_THAT(resumed->difference->what, HasSubstr("steps 120 to 122"));
  EXPECT_FALSE(bring_up_to_date(config_, holey, events(), 119)->difference);
  std::vector<StepRecord> cut = records();
  cut.resize(100);
  ASSERT_TRUE(bring_up_to_date(config_, cut, events(), 200)->difference)
      << "and not that the files do not belong together";
  EXPECT_EQ(bring_up_to_date(config_, cut, events(), 200)->difference->step, 101);
}

TEST_F(DecisionReplayTest, StepsThatAreMissingBeforeTheLatestBeginningDoNotMatter) {
  SyntheticJob job(config_);
  {
    Controller controller(config_, configuration_of(config_), Knowledge());
    begin();
    go_on(job, controller, 1, 100);
  }
  {
    DecisionLog(directory_, 100).append(ControllerBegin{100, "copus", false, job.current(), Knowledge(), ""});
  }
  auto begun = bring_up_to_date(config_, records(), events(), 100);
  go_on(job, begun->controller, 101, 200);
  std::vector<StepRecord> holey = records();
  holey.erase(holey.begin() + 50, holey.begin() + 60);
  const Replay result = replay(config_, holey, events());
  EXPECT_FALSE(result.difference) << result.difference->what;
}

// A user or a disk has changed a value in one of the logs. Copus reports this as a difference or as the user's mistake,
// never as an internal error.
TEST_F(DecisionReplayTest, OddValuesInTheLogsAreNoBugOfOurs) {
  ranks_ = {{30, 2}};
  train(60);
  RunConfig norm_test = config_;
  norm_test.adapt.policy = PolicyKind::norm_test;
  const std::vector<nlohmann::json> odd = {0, -1, 3, 1e300, INT64_MAX, {}};
  const auto only_compared = [](const std::string& pointer) {
    const std::vector<const char*> parts = {"/best/", "/current/", "/target/"};
    return std::ranges::any_of(parts, [&](const char* part) { return pointer.starts_with(part); });
  };
  int64_t read = 0, refused = 0;
  for (const char* name : {"run.jsonl", "decisions.jsonl"}) {
    const std::filesystem::path path = directory_ / name;
    const std::string whole = read_text_file(path);
    std::vector<std::string> lines;
    std::istringstream stream(whole);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    std::set<std::string> seen;
    for (size_t i = 0; i < lines.size(); ++i) {
      // Changes one step, before the first decision, and the first event of each kind.
      const auto object = nlohmann::json::parse(lines[i]);
      const std::string kind = object.value("event", "step");
      if (kind == "step" ? i != 25 : !seen.insert(kind).second) continue;
      const nlohmann::json fields = object.flatten();
      for (const auto& [pointer, ignored] : fields.items()) {
        if (only_compared(pointer)) continue;
        for (const nlohmann::json& value : odd) {
          nlohmann::json changed = object;
          changed[nlohmann::json::json_pointer(pointer)] = value;
          std::string text;
          for (size_t j = 0; j < lines.size(); ++j) text += (j == i ? changed.dump() : lines[j]) + '\n';
          std::ofstream(path) << text;
          ++read;
          try {
            const std::vector<StepRecord> records = this->records();
            const std::vector<DecisionEvent> events = this->events();
            replay(config_, records, events);
            if (kind == "step") replay_open_loop(norm_test, "", records, events);
          } catch (const UserError&) {
            ++refused;
          } catch (const std::exception& error) {
            ADD_FAILURE() << name << " line " << i + 1 << ", " << pointer << " = " << value << ": " << error.what();
          }
        }
      }
    }
    std::ofstream(path) << whole;
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 200);
}

TEST_F(DecisionReplayTest, AControllerThatLearnsNothingNeedsTheStepsOfEventsAlone) {
  config_.adapt.policy = PolicyKind::none;
  config_.cluster = {};
  ASSERT_FALSE(Controller::learns_from_steps(config_));
  const Configuration from = configuration_of(config_);
  Configuration to = from;
  to.global_batch *= 2;
  SwitchReport report;
  report.after_step = 5;
  report.from = from;
  report.to = to;
  report.outcome = SwitchReport::Outcome::moved;
  const std::vector<DecisionEvent> events = {
      ControllerBegin{.step = 0, .policy = "none", .configuration = from, .knowledge = {}, .file = ""},
      LoggedCommand{4, {.kind = Command::Kind::force, .target = to}}, report};
  const auto step = [](int64_t number) {
    StepRecord record;
    record.step = number;
    record.consumed_samples = 32 * number;
    record.step_seconds = 1;
    return record;
  };
  const auto replayed = bring_up_to_date(config_, {step(4), step(5), step(900)}, events, 900);
  ASSERT_TRUE(replayed);
  EXPECT_FALSE(replayed->difference) << replayed->difference->what;
  EXPECT_EQ(replayed->controller.current(), to);
  const auto lacking = bring_up_to_date(config_, {step(4), step(900)}, events, 900);
  ASSERT_TRUE(lacking && lacking->difference);
  EXPECT_THAT(lacking->difference->what, HasSubstr("run.jsonl has no line of step 5"));
}

}  // namespace
}  // namespace copus
