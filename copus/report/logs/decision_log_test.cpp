#include "copus/report/logs/decision_log.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Configuration configuration(int64_t batch) {
  Configuration result;
  result.strategy = {.data_parallel = 2, .tensor_parallel = 1, .pipeline_parallel = 2};
  result.strategy.zero_stage = 1;
  result.global_batch = batch;
  result.micro_batch = 4;
  return result;
}

ControllerBegin begin_event() {
  ControllerBegin begin;
  begin.step = 7;
  begin.policy = "copus";
  begin.advise = true;
  begin.configuration = configuration(8);
  begin.knowledge =
      observe(Knowledge(), configuration(8), {.compute = 0.1, .bubble = 1.0 / 3}, measurement_of({0.1, 0.2, 0.7}));
  begin.file = "0 12\n100 14\n";
  begin.rate_factor = 1 + 1.0 / 3;
  return begin;
}

Decision decision_event() {
  Decision decision;
  decision.step = 412;
  decision.consumed_samples = 13184;
  decision.policy = "copus";
  decision.current = configuration(16);
  decision.noise_scale = 1.0 / 3;
  decision.noise_scale_low = 0.1;
  decision.noise_scale_high = 0.7;
  decision.critical_batch = 2.0 / 3;
  decision.choice.target = configuration(32);
  decision.choice.reason = "+23 % holds from phi 12 to 31";
  decision.choice.predicted_gain = 0.23;
  decision.choice.best = {{configuration(32), 0.1, 2, 0.2, 0.3}, {configuration(64), 0.2, 3, -0.2, 0.4}};
  decision.learning_rate = 1e-3 / 3;
  decision.phase = SchedulePhase::warm_up;
  decision.clipped_share = 2.0 / 7;
  decision.rate_factor = 1.0 / 3;
  decision.target_rate_factor = 1.2;
  decision.rate_cap = 70.5;
  decision.choice.commit_after_step = 415;
  decision.moves = true;
  decision.commit_after_step = 416;
  decision.inputs_hash = 0x0123456789ABCDEFULL;
  return decision;
}

SwitchReport switch_event() {
  SwitchReport report;
  report.after_step = 416;
  report.consumed_samples = 13312;
  report.from = configuration(16);
  report.to = configuration(32);
  report.outcome = SwitchReport::Outcome::rolled_back;
  report.reason = "rank 1: \"out of memory\"";
  report.is_lack_of_memory = true;
  report.rate_factor = 1.0 / 7;
  report.pause_seconds = 0.041;
  report.prepare_seconds = 0.2;
  report.phase_seconds = {{"agreeing", 0.001}, {"moving the state", 0.03}};
  report.bytes_copied = int64_t{1} << 60;
  report.bytes_received = 1000;
  report.peak_bytes = 2000;
  report.peak_bound_bytes = 3000;
  return report;
}

RanksChanged ranks_event() {
  RanksChanged change{.after_step = 510,
                      .ranks = 3,
                      .from = configuration(32),
                      .to = configuration(32),
                      .pause_seconds = 1.0 / 3,
                      .reason = "rank 2 was killed: \"signal 9\""};
  change.to.strategy = {.data_parallel = 2};
  return change;
}

LoggedRealised realised_event() {
  LoggedRealised event;
  event.step = 500;
  event.realised = {.decision_step = 412,
                    .from = configuration(16),
                    .to = configuration(32),
                    .predicted_step_seconds = 0.1,
                    .realised_step_seconds = 0.11,
                    .predicted_gain = 0.23,
                    .realised_gain = 0.2,
                    .progress_ratio = 1.1};
  return event;
}

RunCalibration calibration_event() {
  return {.step = 512,
          .consumed_samples = 8192,
          .share_done = 0.01,
          .batch = 16,
          .branch_batch = 128,
          .branches = 7,
          .noise_scale = 30,
          .seconds = 12.5,
          .critical_batch = 55,
          .deviation = 0.4,
          .reason = "none"};
}

std::vector<DecisionEvent> every_event() {
  return {begin_event(),
          ControllerResumed{.step = 400},
          LoggedCommand{.step = 411, .command = {.kind = Command::Kind::force, .target = configuration(4)}},
          decision_event(),
          switch_event(),
          realised_event(),
          ranks_event(),
          Unmeasured{.step = 511, .reason = "the norm was None"},
          calibration_event()};
}

// Compares the members one by one. Otherwise a field that both writing and reading omit would go unnoticed.
void expect_equal(const Decision& a, const Decision& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.consumed_samples, b.consumed_samples);
  EXPECT_EQ(a.policy, b.policy);
  EXPECT_EQ(a.current, b.current);
  EXPECT_EQ(a.noise_scale, b.noise_scale);
  EXPECT_EQ(a.noise_scale_low, b.noise_scale_low);
  EXPECT_EQ(a.noise_scale_high, b.noise_scale_high);
  EXPECT_EQ(a.critical_batch, b.critical_batch);
  EXPECT_EQ(a.choice.target, b.choice.target);
  EXPECT_EQ(a.choice.reason, b.choice.reason);
  EXPECT_EQ(a.choice.predicted_gain, b.choice.predicted_gain);
  ASSERT_EQ(a.choice.best.size(), b.choice.best.size());
  for (size_t i = 0; i < a.choice.best.size(); ++i) {
    EXPECT_EQ(a.choice.best[i].configuration, b.choice.best[i].configuration);
    EXPECT_EQ(a.choice.best[i].step_seconds, b.choice.best[i].step_seconds);
    EXPECT_EQ(a.choice.best[i].goodput, b.choice.best[i].goodput);
    EXPECT_EQ(a.choice.best[i].gain_low, b.choice.best[i].gain_low);
    EXPECT_EQ(a.choice.best[i].gain_high, b.choice.best[i].gain_high);
  }
  EXPECT_EQ(a.learning_rate, b.learning_rate);
  EXPECT_EQ(a.phase, b.phase);
  EXPECT_EQ(a.clipped_share, b.clipped_share);
  EXPECT_EQ(a.rate_factor, b.rate_factor);
  EXPECT_EQ(a.target_rate_factor, b.target_rate_factor);
  EXPECT_EQ(a.rate_cap, b.rate_cap);
  EXPECT_EQ(a.choice.commit_after_step, b.choice.commit_after_step);
  EXPECT_EQ(a.moves, b.moves);
  EXPECT_EQ(a.commit_after_step, b.commit_after_step);
  EXPECT_EQ(a.inputs_hash, b.inputs_hash);
}

void expect_equal(const SwitchReport& a, const SwitchReport& b) {
  EXPECT_EQ(a.after_step, b.after_step);
  EXPECT_EQ(a.consumed_samples, b.consumed_samples);
  EXPECT_EQ(a.from, b.from);
  EXPECT_EQ(a.to, b.to);
  EXPECT_EQ(a.outcome, b.outcome);
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.is_lack_of_memory, b.is_lack_of_memory);
  EXPECT_EQ(a.rate_factor, b.rate_factor);
  EXPECT_EQ(a.pause_seconds, b.pause_seconds);
  EXPECT_EQ(a.prepare_seconds, b.prepare_seconds);
  EXPECT_EQ(a.phase_seconds, b.phase_seconds);
  EXPECT_EQ(a.bytes_copied, b.bytes_copied);
  EXPECT_EQ(a.bytes_received, b.bytes_received);
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
  EXPECT_EQ(a.peak_bound_bytes, b.peak_bound_bytes);
}

void expect_equal(const LoggedRealised& a, const LoggedRealised& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.realised.decision_step, b.realised.decision_step);
  EXPECT_EQ(a.realised.from, b.realised.from);
  EXPECT_EQ(a.realised.to, b.realised.to);
  EXPECT_EQ(a.realised.predicted_step_seconds, b.realised.predicted_step_seconds);
  EXPECT_EQ(a.realised.realised_step_seconds, b.realised.realised_step_seconds);
  EXPECT_EQ(a.realised.predicted_gain, b.realised.predicted_gain);
  EXPECT_EQ(a.realised.realised_gain, b.realised.realised_gain);
  EXPECT_EQ(a.realised.progress_ratio, b.realised.progress_ratio);
}

void expect_equal(const RanksChanged& a, const RanksChanged& b) {
  EXPECT_EQ(a.after_step, b.after_step);
  EXPECT_EQ(a.ranks, b.ranks);
  EXPECT_EQ(a.from, b.from);
  EXPECT_EQ(a.to, b.to);
  EXPECT_EQ(a.pause_seconds, b.pause_seconds);
  EXPECT_EQ(a.reason, b.reason);
}

class DecisionLogTest : public TestDirectory {
 protected:
  void write_every_event() {
    DecisionLog log(directory_);
    for (const DecisionEvent& event : every_event()) log.append(event);
  }

  std::filesystem::path path_ = directory_ / "decisions.jsonl";
};

TEST_F(DecisionLogTest, EveryFieldReadsBack) {
  write_every_event();
  const std::vector<DecisionEvent> read = read_decision_log(path_);
  ASSERT_EQ(read.size(), every_event().size());
  const auto begin = std::get<ControllerBegin>(read[0]);
  EXPECT_EQ(begin.step, begin_event().step);
  EXPECT_EQ(begin.policy, begin_event().policy);
  EXPECT_EQ(begin.advise, begin_event().advise);
  EXPECT_EQ(begin.configuration, begin_event().configuration);
  EXPECT_EQ(begin.knowledge, begin_event().knowledge);
  EXPECT_EQ(begin.file, begin_event().file);
  EXPECT_EQ(std::get<ControllerResumed>(read[1]).step, 400);
  const auto command = std::get<LoggedCommand>(read[2]);
  EXPECT_EQ(command.step, 411);
  EXPECT_EQ(command.command.kind, Command::Kind::force);
  EXPECT_EQ(command.command.target, configuration(4));
  expect_equal(std::get<Decision>(read[3]), decision_event());
  expect_equal(std::get<SwitchReport>(read[4]), switch_event());
  expect_equal(std::get<LoggedRealised>(read[5]), realised_event());
  expect_equal(std::get<RanksChanged>(read[6]), ranks_event());
  EXPECT_EQ(step_of(read[6]), 510);
  const auto unmeasured = std::get<Unmeasured>(read[7]);
  EXPECT_EQ(unmeasured.step, 511);
  EXPECT_EQ(unmeasured.reason, "the norm was None");
  const auto calibration = std::get<RunCalibration>(read[8]);
  EXPECT_EQ(calibration.step, 512);
  EXPECT_EQ(calibration.consumed_samples, 8192);
  EXPECT_EQ(calibration.share_done, 0.01);
  EXPECT_EQ(calibration.batch, 16);
  EXPECT_EQ(calibration.branch_batch, 128);
  EXPECT_EQ(calibration.branches, 7);
  EXPECT_EQ(calibration.noise_scale, 30);
  EXPECT_EQ(calibration.seconds, 12.5);
  EXPECT_EQ(calibration.critical_batch, 55);
  EXPECT_EQ(calibration.deviation, 0.4);
  EXPECT_EQ(calibration.reason, "none");
}

TEST_F(DecisionLogTest, ACriticalBatchWithoutItsDeviationIsDamage) {
  RunCalibration calibration = calibration_event();
  calibration.deviation.reset();
  EXPECT_THROW(decision_event_from_line(to_line(calibration)), UserError);
  calibration.critical_batch.reset();
  EXPECT_NO_THROW(decision_event_from_line(to_line(calibration)));
}

TEST_F(DecisionLogTest, WhatIsNotKnownReadsBackAsSuch) {
  Decision decision;
  decision.choice.predicted_gain = std::numeric_limits<double>::quiet_NaN();
  const auto read = std::get<Decision>(decision_event_from_line(to_line(decision)));
  EXPECT_TRUE(std::isnan(read.choice.predicted_gain));
  EXPECT_EQ(read.noise_scale, std::nullopt);
  EXPECT_EQ(read.choice.target, std::nullopt);
  EXPECT_EQ(read.choice.commit_after_step, std::nullopt);
  const auto pin = std::get<LoggedCommand>(decision_event_from_line(to_line(LoggedCommand{})));
  EXPECT_EQ(pin.command.kind, Command::Kind::pin);
  EXPECT_EQ(pin.command.target, std::nullopt);
}

TEST_F(DecisionLogTest, FieldNamesAreStable) {
  const auto fields = [](const DecisionEvent& event) {
    std::string names;
    const auto json = nlohmann::ordered_json::parse(to_line(event));
    for (const auto& [name, value] : json.items()) names += name + ' ';
    return names;
  };
  EXPECT_EQ(fields(begin_event()), "event version step policy advise configuration rate_factor file knowledge state ");
  EXPECT_EQ(fields(ControllerState{}), "event step begin_step configuration values ");
  EXPECT_EQ(fields(ControllerResumed{}), "event step ");
  EXPECT_EQ(fields(Unmeasured{}), "event step reason ");
  EXPECT_EQ(fields(calibration_event()),
            "event step consumed_samples share_done batch branch_batch branches noise_scale critical_batch deviation "
            "seconds reason ");
  EXPECT_EQ(fields(decision_event()),
            "event step consumed_samples policy current moves target commit_after_step predicted_gain reason "
            "noise_scale noise_scale_low noise_scale_high critical_batch learning_rate phase clipped_share best "
            "rate_factor target_rate_factor rate_cap wanted_boundary inputs_hash ");
  EXPECT_EQ(fields(switch_event()),
            "event after_step consumed_samples from to outcome reason lack_of_memory rate_factor pause_seconds "
            "prepare_seconds phase_seconds bytes_copied bytes_received peak_bytes peak_bound_bytes ");
  EXPECT_EQ(fields(realised_event()),
            "event step decision_step from to predicted_step_seconds realised_step_seconds predicted_gain "
            "realised_gain progress_ratio ");
  EXPECT_EQ(fields(LoggedCommand{}), "event step command target ");
  EXPECT_EQ(fields(ranks_event()), "event after_step ranks from to pause_seconds reason ");
  EXPECT_THAT(to_line(decision_event()), HasSubstr("\"inputs_hash\":\"0123456789abcdef\""));
  EXPECT_THAT(to_line(switch_event()), HasSubstr("\"outcome\":\"rolled back\""));
}

TEST_F(DecisionLogTest, ALogOfAnotherVersionIsRefused) {
  const auto refusal_of = [](const std::string& from, const std::string& to) {
    std::string line = to_line(begin_event());
    line.replace(line.find(from), from.size(), to);
    return user_error([&] { decision_event_from_line(line); });
  };
  EXPECT_EQ(refusal_of("\"version\":1", "\"version\":2"),
            "its format is of version 2, and this Copus reads version 1 alone");
  EXPECT_THAT(refusal_of("\"d=2", "\"d=2,d=2"), HasSubstr("\"configuration\": \"d\" is given twice"));
}

TEST_F(DecisionLogTest, DeepNestingIsRefused) {
  const std::string line = R"({"event":"command","step":5,"command":"force","target":)" + deep_json() + "}";
  EXPECT_THAT(user_error([&] { decision_event_from_line(line); }), HasSubstr("not a JSON object"));
}

TEST_F(DecisionLogTest, AResumedRunKeepsWhatHappenedUpToItsCheckpoint) {
  write_every_event();
  {
    DecisionLog log(directory_, 412);
    log.append(ControllerResumed{.step = 412});
  }
  const std::vector<DecisionEvent> read = read_decision_log(path_);
  ASSERT_EQ(read.size(), 5);
  EXPECT_EQ(step_of(read[3]), 412);
  EXPECT_TRUE(std::holds_alternative<ControllerResumed>(read[4]));
}

TEST_F(DecisionLogTest, AHalfWrittenLineIsLeftOut) {
  write_every_event();
  std::string text = read_text_file(path_);
  write_file_durably(path_, text.substr(0, text.size() - 20));
  EXPECT_EQ(read_decision_log(path_).size(), every_event().size() - 1);
  {
    DecisionLog log(directory_, 10000);
  }
  EXPECT_EQ(read_text_file(path_).back(), '\n') << "and cut when the run goes on";
}

TEST_F(DecisionLogTest, NamesADamagedLine) {
  write_every_event();
  const std::string text = read_text_file(path_);
  const auto message_with = [&](const std::string& from, const std::string& to) {
    std::string damaged = text;
    damaged.replace(damaged.find(from), from.size(), to);
    write_file_durably(path_, damaged);
    return user_error([&] { read_decision_log(path_); });
  };
  EXPECT_THAT(message_with("\"event\":\"decision\"", "\"event\":\"precision\""),
              AllOf(HasSubstr("line 4"), HasSubstr("precision")));
  EXPECT_THAT(message_with("0123456789abcdef", "0123456789abcdeg"), HasSubstr("inputs_hash"));
  EXPECT_THAT(message_with("rolled back", "rolled on"), HasSubstr("outcome"));
  EXPECT_THAT(message_with("\"moves\":true,", ""), HasSubstr("moves"));
  EXPECT_THAT(message_with("{\"event\":\"switch\"", "{\"event\""), HasSubstr("line 5"));
  EXPECT_THAT(user_error([&] { DecisionLog(directory_, 10000); }), HasSubstr("line 5"));
}

TEST_F(DecisionLogTest, ANewRunBeginsAnEmptyLog) {
  EXPECT_TRUE(read_decision_log(path_).empty());
  write_every_event();
  EXPECT_THAT(user_error([&] { DecisionLog log(directory_); }), HasSubstr("there is a log of a run already"));
}

TEST_F(DecisionLogTest, AFullDiskLeavesWholeLines) {
  DecisionLog log(directory_);
  log.append(decision_event());
  const auto one_line = std::filesystem::file_size(path_);
  {
    const FileSizeLimit full(one_line + 10);
    EXPECT_THAT(user_error([&] { log.append(decision_event()); }), HasSubstr("after step 412 cannot be written"));
  }
  EXPECT_EQ(std::filesystem::file_size(path_), one_line);
}

TEST_F(DecisionLogTest, EventsOutOfOrderAreNamed) {
  const std::filesystem::path path = directory_ / "decisions.jsonl";
  const auto line = [](int64_t step) { return to_line(ControllerResumed{step}) + '\n'; };
  write_file_durably(path, line(3) + line(3) + line(5));
  EXPECT_EQ(read_decision_log(path).size(), 3) << "several events happen at a boundary";
  EXPECT_EQ(read_decision_log(path, 4).size(), 2);
  const std::string text = line(3) + line(5) + line(4);
  write_file_durably(path, text);
  const auto names_line = AllOf(HasSubstr("decisions.jsonl, line 3"), HasSubstr("step 4"), HasSubstr("step 5"),
                                HasSubstr("Remove the line"));
  EXPECT_THAT(user_error([&] { read_decision_log(path); }), names_line);
  EXPECT_THAT(user_error([&] { DecisionLog log(directory_, 9); }), names_line);
  EXPECT_EQ(read_text_file(path), text);
  EXPECT_EQ(read_decision_log(path, 3).size(), 1) << "what is going to be cut may be anything";
  DecisionLog(directory_, 3).append(ControllerResumed{3});
  EXPECT_EQ(read_text_file(path), line(3) + line(3));
}

TEST_F(DecisionLogTest, OfALongLogPeopleAreShownAFewDecisionsThatHoldAndAllElse) {
  const std::filesystem::path path = directory_ / "decisions.jsonl";
  std::string text;
  int64_t held = 0;
  SwitchReport report;
  report.from = report.to = configuration(8);
  Decision hold = decision_event();
  hold.moves = false;
  hold.choice.reason = std::string(8000, 'x');
  for (int64_t step = 1; text.size() < (size_t{17} << 20); ++step) {
    hold.step = report.after_step = step;
    text += to_line(hold) + '\n';
    if (step % 100 == 0) text += to_line(report) + '\n';
    held = step;
  }
  write_file_durably(path, text);
  const std::vector<DecisionEvent> events = read_decisions_to_show(path, 100);
  std::vector<int64_t> steps;
  for (const DecisionEvent& event : events) {
    if (std::holds_alternative<Decision>(event)) steps.push_back(step_of(event));
  }
  EXPECT_EQ(std::ssize(events) - std::ssize(steps), held / 100);
  EXPECT_GE(std::ssize(steps), 100);
  EXPECT_LE(std::ssize(steps), 201);
  for (size_t i = 1; i < steps.size(); ++i) EXPECT_EQ(steps[i] - steps[i - 1], steps[1] - steps[0]);
  EXPECT_GE(steps.back(), held - (steps[1] - steps[0]));
  write_file_durably(path, text + to_line(report).replace(0, 1, "") + '\n');
  EXPECT_THAT(user_error([&] { read_decisions_to_show(path, 100); }), HasSubstr("damaged"));
}

TEST_F(DecisionLogTest, ARunStaysPausedUntilACommandOrAnotherProcessContinuesIt) {
  const std::filesystem::path path = directory_ / "decisions.jsonl";
  const auto is_paused_by = [&](const std::vector<DecisionEvent>& events) {
    std::string text;
    for (const DecisionEvent& event : events) text += to_line(event) + '\n';
    write_file_durably(path, text);
    return is_run_paused(path);
  };
  EXPECT_FALSE(is_run_paused(path)) << "there is no log";
  const LoggedCommand pause{8, {Command::Kind::pause, {}}}, pin{9, {Command::Kind::pin, {}}},
      resume{9, {Command::Kind::resume, {}}};
  EXPECT_FALSE(is_paused_by({begin_event()}));
  EXPECT_TRUE(is_paused_by({begin_event(), pause, pin}));
  EXPECT_FALSE(is_paused_by({begin_event(), pause, resume}));
  EXPECT_FALSE(is_paused_by({begin_event(), pause, ControllerResumed{9}}));
  EXPECT_TRUE(is_paused_by({begin_event(), pause, ControllerResumed{8}, pause, pin}));
}

TEST_F(DecisionLogTest, TextThatIsNotUtf8IsWrittenAllTheSame) {
  ControllerBegin begin = begin_event();
  begin.file = "0 12 # caf\xe9\n";
  DecisionLog(directory_).append(begin);
  const std::vector<DecisionEvent> events = read_decision_log(directory_ / "decisions.jsonl");
  EXPECT_EQ(std::get<ControllerBegin>(events.at(0)).file, "0 12 # caf\uFFFD\n");
}

TEST(DecisionEvents, WhatCannotHaveHappenedIsRefused) {
  const auto refusal = [](const std::string& line, const std::string& old, const std::string& other) {
    std::string changed = line;
    EXPECT_NE(changed.find(old), std::string::npos) << line;
    return user_error([&] { decision_event_from_line(changed.replace(changed.find(old), old.size(), other)); });
  };
  RanksChanged change;
  change.after_step = 3;
  change.ranks = 4;
  change.from = change.to = configuration(8);
  const std::string ranks = to_line(change);
  EXPECT_THAT(refusal(ranks, "\"ranks\":4", "\"ranks\":3"), HasSubstr("needs 4 ranks"));
  EXPECT_THAT(refusal(ranks, "\"after_step\":3", "\"after_step\":-3"), HasSubstr("after_step"));
  EXPECT_THAT(refusal(ranks, ",B=8,", ",B=16,"), HasSubstr("global batch"));
  EXPECT_THAT(refusal(ranks, "\"pause_seconds\":0.0", "\"pause_seconds\":-1.0"), HasSubstr("pause_seconds"));
  const std::string begin = to_line(begin_event());
  EXPECT_THAT(refusal(begin, "\"rate_factor\":1.3333333333333333", "\"rate_factor\":0"), HasSubstr("rate_factor"));
}

}  // namespace
}  // namespace copus
