#include "copus/report/logs/run_log.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RunLogTest : public TestDirectory {
 protected:
  static StepRecord record_of(int64_t step) {
    StepRecord record;
    record.step = step;
    record.consumed_samples = 32 * step;
    record.loss = 1.0 / static_cast<double>(step);
    return record;
  }

  void write_steps(int64_t count) {
    RunLog log(directory_);
    for (int64_t step = 1; step <= count; ++step) log.append(record_of(step));
  }

  std::vector<int64_t> steps() const {
    std::vector<int64_t> result;
    for (const StepRecord& record : read_run_log(path_)) result.push_back(record.step);
    return result;
  }

  std::filesystem::path path_ = directory_ / "run.jsonl";
};

TEST_F(RunLogTest, FieldNames) {
  write_steps(1);
  const auto object = nlohmann::ordered_json::parse(read_text_file(path_));
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  EXPECT_THAT(
      names, testing::ElementsAre("version", "step", "consumed_samples", "consumed_tokens", "loss_tokens", "loss", "lr",
                                  "rate_factor", "phase", "grad_norm", "clipped", "step_seconds", "switch_seconds",
                                  "predicted_step_seconds", "tokens_per_second", "strategy", "global_batch",
                                  "micro_batch", "small_batch", "small_batch_squared_norm", "noise_scale",
                                  "noise_scale_low", "noise_scale_high", "noise_scale_tokens", "sign_noise_scale",
                                  "sign_noise_scale_low", "sign_noise_scale_high", "spectral_noise_scale",
                                  "spectral_noise_scale_low", "spectral_noise_scale_high", "preconditioned_noise_scale",
                                  "preconditioned_noise_scale_low", "preconditioned_noise_scale_high", "critical_batch",
                                  "statistical_efficiency", "goodput", "skipped_samples", "held_out_loss",
                                  "held_out_losses", "elapsed_seconds", "seconds_left", "share_done"));
}

TEST_F(RunLogTest, UnknownAndNotFiniteNumbersAreNull) {
  StepRecord record = record_of(1);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = std::numeric_limits<double>::infinity();
  RunLog(directory_).append(record);
  const auto object = nlohmann::json::parse(read_text_file(path_));
  EXPECT_TRUE(object.at("loss").is_null());
  EXPECT_TRUE(object.at("grad_norm").is_null());
  EXPECT_TRUE(object.at("noise_scale").is_null());
  EXPECT_TRUE(object.at("goodput").is_null());

  const StepRecord back = read_run_log(path_).at(0);
  EXPECT_TRUE(std::isnan(back.loss));
  EXPECT_FALSE(back.noise_scale);
}

TEST_F(RunLogTest, NumbersComeBackBitwise) {
  StepRecord record = record_of(1);
  record.consumed_tokens = (int64_t{1} << 53) + 1;
  record.loss = 0.1 + 0.2;
  record.lr = std::nextafter(1e-3, 1);
  record.step_seconds = 5e-324;
  record.noise_scale = 1.0 / 3;
  record.sign_noise_scale = 1.0 / 7;
  record.spectral_noise_scale_high = 1.0 / 11;
  record.preconditioned_noise_scale_low = 1.0 / 13;
  record.held_out_loss = 2.0 / 3;
  record.held_out_losses = {{"a.txt", 1.0 / 3}, {"b \"c\".txt", 1}};
  record.strategy = {.data_parallel = 2, .pipeline_parallel = 4};
  RunLog(directory_).append(record);
  const StepRecord back = read_run_log(path_).at(0);
  EXPECT_EQ(back.consumed_tokens, record.consumed_tokens);
  EXPECT_EQ(back.loss, record.loss);
  EXPECT_EQ(back.lr, record.lr);
  EXPECT_EQ(back.step_seconds, record.step_seconds);
  EXPECT_EQ(back.noise_scale, record.noise_scale);
  EXPECT_EQ(back.sign_noise_scale, record.sign_noise_scale);
  EXPECT_EQ(back.spectral_noise_scale_high, record.spectral_noise_scale_high);
  EXPECT_EQ(back.preconditioned_noise_scale_low, record.preconditioned_noise_scale_low);
  EXPECT_EQ(back.held_out_loss, record.held_out_loss);
  EXPECT_EQ(back.held_out_losses, record.held_out_losses);
  EXPECT_EQ(back.strategy, record.strategy);
}

TEST_F(RunLogTest, PhaseAndClippingComeBackAndMayBeMissing) {
  StepRecord record = record_of(1);
  record.phase = SchedulePhase::decay;
  record.clipped = true;
  RunLog(directory_).append(record);
  auto object = nlohmann::json::parse(read_text_file(path_));
  EXPECT_EQ(object.at("phase"), "decay");
  EXPECT_EQ(object.at("clipped"), true);
  EXPECT_EQ(read_run_log(path_).at(0).phase, SchedulePhase::decay);
  EXPECT_EQ(read_run_log(path_).at(0).clipped, true);

  object["phase"] = "cool-down";
  write_file_durably(path_, object.dump() + "\n");
  EXPECT_THAT(user_error([&] { read_run_log(path_); }),
              AllOf(HasSubstr("line 1"), HasSubstr(R"("phase" is not one of "warm-up", "main", "decay")")));
  for (const char* name : {"phase", "clipped"}) object.erase(name);
  write_file_durably(path_, object.dump() + "\n");
  EXPECT_FALSE(read_run_log(path_).at(0).phase);
  EXPECT_FALSE(read_run_log(path_).at(0).clipped);
}

TEST_F(RunLogTest, ALogOfAnotherVersionIsRefused) {
  write_steps(2);
  const std::string text = read_text_file(path_);
  const auto refusal_of = [&](const std::string& from, const std::string& to) {
    write_file_durably(path_, std::string(text).replace(text.rfind(from), from.size(), to));
    return user_error([&] { read_run_log(path_); });
  };
  EXPECT_THAT(
      refusal_of("\"version\":1", "\"version\":2"),
      AllOf(HasSubstr("line 2"), HasSubstr("its format is of version 2, and this Copus reads version 1 alone")));
  EXPECT_THAT(refusal_of("\"version\":1,", ""), HasSubstr("its format says no \"version\""));
  EXPECT_THAT(refusal_of("d=1,t=1,p=1", "1x1x1"), HasSubstr("\"strategy\": \"1x1x1\" is no part of a configuration"));
  EXPECT_THAT(refusal_of("d=1,t=1,p=1", "d=1,t=1,p=1,e=2"), HasSubstr("a configuration has no \"e\""));
  EXPECT_THAT(refusal_of("d=1,t=1,p=1", "d=1,d=1,t=1,p=1"), HasSubstr("\"d\" is given twice"));
}

TEST_F(RunLogTest, EveryStepIsInTheFileAtOnce) {
  RunLog log(directory_);
  log.append(record_of(1));
  EXPECT_THAT(steps(), testing::ElementsAre(1));
  log.append(record_of(2));
  EXPECT_THAT(steps(), testing::ElementsAre(1, 2));
}

TEST_F(RunLogTest, ResumingCutsLaterSteps) {
  write_steps(5);
  RunLog log(directory_, 3);
  EXPECT_THAT(steps(), testing::ElementsAre(1, 2, 3));
  log.append(record_of(4));
  EXPECT_THAT(steps(), testing::ElementsAre(1, 2, 3, 4));
}

TEST_F(RunLogTest, AHeldOutLossMayBeAddedToTheStepThatTheRunIsResumedAfter) {
  write_steps(5);
  RunLog log(directory_, 3);
  ASSERT_TRUE(log.resumed_step());
  EXPECT_EQ(log.resumed_step()->step, 3);
  log.add_to_resumed_step({2.5, {{"a.txt", 2}, {"b.txt", 3}}});
  log.append(record_of(4));
  const std::vector<StepRecord> records = read_run_log(path_);
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[2].held_out_loss, 2.5);
  EXPECT_EQ(records[2].held_out_losses.size(), 2u);
  EXPECT_EQ(records[2].loss, record_of(3).loss);
  EXPECT_FALSE(records[3].held_out_loss);
}

TEST_F(RunLogTest, AKillWhileAHeldOutLossIsAddedLeavesAWholeLineOfTheStep) {
  write_steps(5);
  const HeldOutLoss loss = {2.5, {{"a.txt", 2}, {"b.txt", 3}}};
  const std::string before = [&] {
    RunLog log(directory_, 3);
    return read_text_file(path_);
  }();
  {
    RunLog log(directory_, 3);
    log.add_to_resumed_step(loss);
  }
  const std::string after = read_text_file(path_);
  ASSERT_TRUE(after.starts_with(before)) << "nothing is taken away";
  std::vector<size_t> moments = {after.size() - 1, after.size()};
  for (size_t bytes = before.size(); bytes + 1 < after.size(); bytes += 40) moments.push_back(bytes);
  for (const size_t bytes : moments) {
    write_file_durably(path_, after.substr(0, bytes));
    const bool is_whole = bytes == after.size();
    const std::vector<StepRecord> records = read_run_log(path_);
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records.back().held_out_loss, is_whole ? std::optional(2.5) : std::nullopt);
    EXPECT_EQ(read_run_log(path_, 3).back().held_out_loss, records.back().held_out_loss);
    RunLog log(directory_, 3);
    EXPECT_EQ(log.resumed_step()->held_out_loss, records.back().held_out_loss);
    log.append(record_of(4));
    EXPECT_THAT(steps(), testing::ElementsAre(1, 2, 3, 4));
  }
  // A later resumption, after step 4, finds both lines of step 3 before it.
  RunLog later(directory_, 4);
  EXPECT_TRUE(later.missing().empty());
  EXPECT_THAT(steps(), testing::ElementsAre(1, 2, 3, 4));
}

TEST_F(RunLogTest, ALineThatOnlyRepeatsAStepIsRefused) {
  write_steps(3);
  const std::string text = read_text_file(path_);
  const size_t begin = text.find("{\"version\":1,\"step\":2,");
  const size_t end = text.find('\n', begin) + 1;
  write_file_durably(path_, std::string(text).insert(end, text.substr(begin, end - begin)));
  EXPECT_THAT(user_error([&] { read_run_log(path_); }), HasSubstr("repeated"));
  EXPECT_THAT(user_error([&] { RunLog log(directory_, 3); }), HasSubstr("repeated"));
}

TEST_F(RunLogTest, ResumingCutsAHalfWrittenLastLine) {
  write_steps(3);
  const std::string whole = read_text_file(path_);
  for (const size_t lost : {1, 2, 100}) {
    write_file_durably(path_, whole.substr(0, whole.size() - lost));
    EXPECT_THAT(steps(), testing::ElementsAre(1, 2)) << "a reader leaves it out";
    RunLog log(directory_, 3);
    log.append(record_of(3));
    EXPECT_EQ(read_text_file(path_), whole);
  }
}

// Writes a log of `count` steps, every seventh of them evaluated. To be fast, it makes all lines from one line.
void write_long_log(const std::filesystem::path& path, int64_t count) {
  StepRecord record;
  record.step = 1;
  record.consumed_tokens = 64;
  const std::string line = to_line(record);
  const std::string numbers = "\"step\":1,\"consumed_samples\":0,\"consumed_tokens\":64,";
  const size_t begin = line.find(numbers);
  const std::string rest = line.substr(begin + numbers.size());
  std::string evaluated = rest;
  const std::string null_loss = "\"held_out_loss\":null";
  evaluated.replace(evaluated.find(null_loss), null_loss.size(), "\"held_out_loss\":2.5");
  std::string text;
  for (int64_t step = 1; step <= count; ++step) {
    text += concat(line.substr(0, begin), "\"step\":", step, ",\"consumed_samples\":0,\"consumed_tokens\":", 64 * step,
                   ",", step % 7 == 0 ? evaluated : rest, "\n");
  }
  write_file_durably(path, text);
}

TEST_F(RunLogTest, ResumingReadsTheEndOfALongLogAlone) {
  constexpr int64_t steps = 6000, last = 5000;
  write_long_log(path_, steps);
  std::string text = read_text_file(path_);
  ASSERT_GT(text.size(), 3 * LineLog::bytes_to_check);
  const size_t kept = text.find("{\"version\":1,\"step\":5001,");
  text[text.find("\"step\":9,") + 1] = 'S';  // damage in a part that is not read
  write_file_durably(path_, text);
  {
    RunLog log(directory_, last);
    EXPECT_TRUE(log.missing().empty());
    ASSERT_TRUE(log.resumed_step());
    EXPECT_EQ(log.resumed_step()->step, last);
    EXPECT_EQ(std::filesystem::file_size(path_), kept);
    log.append(record_of(last + 1));
  }
  EXPECT_EQ(read_text_file(path_), text.substr(0, kept) + to_line(record_of(last + 1)) + "\n");

  // Errors near the cut are found.
  const size_t begin = text.find("{\"version\":1,\"step\":4990,"), end = text.find("{\"version\":1,\"step\":4992,");
  write_file_durably(path_, std::string(text).erase(begin, end - begin));
  EXPECT_EQ(RunLog(directory_, last).missing(), (std::vector<StepSpan>{{4990, 4991}}));
  write_file_durably(path_, std::string(text).replace(begin, 5, "oops!"));
  EXPECT_THAT(user_error([&] { RunLog log(directory_, last); }), AllOf(HasSubstr("from byte"), HasSubstr("damaged")));
}

TEST_F(RunLogTest, StepsAreReadAloneAndBehindAStep) {
  write_long_log(path_, 3000);
  std::vector<int64_t> found;
  for (const StepRecord& record : read_steps(path_, {1, 7, 2999, 3000, 4000})) found.push_back(record.step);
  EXPECT_THAT(found, testing::ElementsAre(1, 7, 2999, 3000));
  found.clear();
  for (const StepRecord& record : read_run_log(path_, 2002, 2000)) found.push_back(record.step);
  EXPECT_THAT(found, testing::ElementsAre(2001, 2002));
}

TEST_F(RunLogTest, AllOfAShortLogAndABoundedPartOfALongOneIsChosen) {
  write_steps(50);
  const ChosenRecords all = choose_records(path_, {}, {});
  EXPECT_TRUE(all.is_all);
  EXPECT_EQ(all.records.size(), 50u);

  constexpr int64_t steps = 40000;
  write_long_log(path_, steps);
  const std::vector<int64_t> asked_for = {11111, 11112, 39998};
  for (const EvaluateConfig& evaluate : {EvaluateConfig{.interval = 7}, EvaluateConfig{.interval_tokens = 7 * 64}}) {
    const ChosenRecords chosen = choose_records(path_, asked_for, evaluate);
    EXPECT_FALSE(chosen.is_all);
    EXPECT_EQ(chosen.records.front().step, 1);
    EXPECT_EQ(chosen.records.back().step, steps);
    EXPECT_LE(chosen.records.size(), 8000u + 2000u + 1 + asked_for.size() + steps / 200);
    int64_t before = 0, evaluated = 0, widest = 0;
    for (const StepRecord& record : chosen.records) {
      widest = std::max(widest, record.step - std::exchange(before, record.step));
      evaluated += record.held_out_loss.has_value();
    }
    EXPECT_LE(widest, 2 * steps / 8000) << "they lie evenly";
    EXPECT_GE(evaluated, 1900);
    for (const int64_t step : asked_for) {
      EXPECT_TRUE(std::ranges::binary_search(chosen.records, step, {}, &StepRecord::step)) << step;
    }
  }
}

TEST_F(RunLogTest, ResumingWithoutALogStartsOne) {
  RunLog(directory_, 0).append(record_of(1));
  EXPECT_THAT(steps(), testing::ElementsAre(1));
}

TEST_F(RunLogTest, ResumingAtZeroCutsEverything) {
  write_steps(2);
  RunLog log(directory_, 0);
  EXPECT_EQ(read_text_file(path_), "");
}

TEST_F(RunLogTest, NewRunLeavesAnExistingLogAlone) {
  write_steps(2);
  const std::string before = read_text_file(path_);
  EXPECT_THAT(user_error([&] { RunLog log(directory_); }), AllOf(HasSubstr(path_.string()), HasSubstr("--resume")));
  EXPECT_EQ(read_text_file(path_), before);
}

TEST_F(RunLogTest, SecondWriterIsTurnedAway) {
  write_steps(2);
  RunLog log(directory_, 2);
  EXPECT_THAT(user_error([&] { RunLog second(directory_, 1); }), HasSubstr("another process is writing this run"));
  EXPECT_THAT(steps(), testing::ElementsAre(1, 2));
}

TEST_F(RunLogTest, DamagedLineIsNamed) {
  write_steps(1);
  const std::string line = read_text_file(path_);
  for (const std::string& damaged :
       {std::string("{\"step\": 2"), std::string(), std::string("[]"), std::string("{\"step\": \"2\"}"),
        std::string("{\"consumed_samples\": 2}"), std::string("{\"step\": 18446744073709551615}"),
        "{\"step\": " + deep_json() + "}"}) {
    const std::string content = concat(line, damaged, "\n", line);
    write_file_durably(path_, content);
    EXPECT_THAT(user_error([&] { read_run_log(path_); }), AllOf(HasSubstr("run.jsonl, line 2"), HasSubstr("damaged")));
    EXPECT_THAT(user_error([&] { RunLog log(directory_, 9); }), HasSubstr("line 2"));
    EXPECT_EQ(read_text_file(path_), content) << "nothing is cut that may be of worth";
  }
}

TEST_F(RunLogTest, MissingFolderOrFile) {
  EXPECT_THAT(user_error([&] { RunLog log(directory_ / "none"); }),
              AllOf(HasSubstr("none"), HasSubstr("No such file")));
  EXPECT_THAT(user_error([&] { read_run_log(path_); }), AllOf(HasSubstr("run.jsonl"), HasSubstr("no such file")));
}

TEST_F(RunLogTest, ALogThatIsDeletedIsPutBackWithAllItsLines) {
  write_steps(3);
  RunLog log(directory_, 2);
  std::filesystem::remove(path_);
  EXPECT_FALSE(log.is_in_place());
  log.append(record_of(3));
  log.put_back();
  EXPECT_TRUE(log.is_in_place());
  log.append(record_of(4));
  EXPECT_THAT(steps(), testing::ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(user_error([&] { RunLog second(directory_, 1); }), HasSubstr("another process is writing this run"));

  write_file_durably(path_, "of another run\n");
  EXPECT_FALSE(log.is_in_place());
  EXPECT_THAT(user_error([&] { log.put_back(); }), HasSubstr("run.jsonl: cannot be made again: File exists"));
  EXPECT_EQ(read_text_file(path_), "of another run\n");
}

TEST_F(RunLogTest, WhatIsNoFileIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(user_error([&] { RunLog log(directory_, 1); }),
              HasSubstr("run.jsonl: cannot be opened for writing: it is"));
  EXPECT_THAT(user_error([&] { read_run_log(path_); }), HasSubstr("run.jsonl: it is a pipe"));
}

TEST_F(RunLogTest, ALineThatNeverEndsIsNotReadToItsEnd) {
  write_file_durably(path_, "");
  std::filesystem::resize_file(path_, uint64_t{100} << 30);  // takes no room on the disk
  EXPECT_THAT(user_error([&] { read_run_log(path_); }), HasSubstr("run.jsonl, line 1: has more than"));
}

TEST_F(RunLogTest, FullDiskNamesTheFileAndKeepsWholeLines) {
  write_steps(2);
  const std::string before = read_text_file(path_);
  const auto fill_disk = [&] {
    std::string message;
    {
      const FileSizeLimit limit(before.size() + 100);
      RunLog log(directory_, 2);
      message = user_error([&] { log.append(record_of(3)); });
    }
    std::fputs(message.c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(fill_disk(), testing::ExitedWithCode(0), "run.jsonl: step 3 cannot be written: .*raise that limit");
  EXPECT_EQ(read_text_file(path_), before);
}

TEST_F(RunLogTest, ARepeatedLineOrOneOutOfItsPlaceIsNamed) {
  write_steps(4);
  const std::string whole = read_text_file(path_);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < whole.size(); begin = whole.find('\n', begin) + 1) {
    lines.push_back(whole.substr(begin, whole.find('\n', begin) + 1 - begin));
  }
  const auto log_of = [&](const std::vector<size_t>& steps) {
    std::string text;
    for (const size_t step : steps) text += lines[step - 1];
    return text;
  };
  for (const auto& [steps, line] : std::vector<std::pair<std::vector<size_t>, int>>{
           {{1, 2, 2, 3, 4}, 3}, {{1, 3, 2, 4}, 3}, {{2, 1, 3, 4}, 2}, {{1, 2, 3, 1, 2, 3}, 4}}) {
    write_file_durably(path_, log_of(steps));
    const auto names_line = AllOf(HasSubstr(concat("run.jsonl, line ", line)), HasSubstr("in order, each once"),
                                  HasSubstr("Remove the line"));
    EXPECT_THAT(user_error([&] { read_run_log(path_); }), names_line);
    EXPECT_THAT(user_error([&] { RunLog log(directory_, 4); }), names_line);
    EXPECT_EQ(read_text_file(path_), log_of(steps)) << "nothing is cut that may be of worth";
  }
  // Lines that will be removed need not be in order, and need not be lines of a log at all.
  const std::string kept = log_of({1, 2}), doubtful = kept + log_of({2, 4, 3}) + "garbage\n";
  write_file_durably(path_, doubtful);
  EXPECT_EQ(std::ssize(read_run_log(path_, 2)), 2);
  RunLog(directory_, 2).append(record_of(3));
  EXPECT_EQ(read_text_file(path_), log_of({1, 2, 3}));
}

TEST_F(RunLogTest, StepsThatAreMissingAreKnown) {
  {
    RunLog log(directory_);
    EXPECT_TRUE(log.missing().empty());
    for (const int64_t step : {1, 2, 6, 7, 9}) log.append(record_of(step));
  }
  const auto missing_at = [&](int64_t step) { return RunLog(directory_, step).missing(); };
  EXPECT_EQ(missing_at(12), (std::vector<StepSpan>{{3, 5}, {8, 8}, {10, 12}}));
  EXPECT_EQ(missing_at(9), (std::vector<StepSpan>{{3, 5}, {8, 8}}));
  EXPECT_EQ(missing_at(8), (std::vector<StepSpan>{{3, 5}, {8, 8}})) << "the line of step 9 is cut";
  EXPECT_EQ(missing_at(4), (std::vector<StepSpan>{{3, 4}}));
  EXPECT_TRUE(missing_at(2).empty());
  EXPECT_EQ(RunLog(directory_, 3).missing(), (std::vector<StepSpan>{{3, 3}}));

  std::vector<StepRecord> records;
  for (const int64_t step : {3, 4, 7}) records.push_back(record_of(step));
  EXPECT_TRUE(missing_steps(records, 2, 4).empty());
  EXPECT_EQ(missing_steps(records, 0, 9), (std::vector<StepSpan>{{1, 2}, {5, 6}, {8, 9}}));
  EXPECT_EQ(missing_steps({}, 3, 5), (std::vector<StepSpan>{{4, 5}}));
}

TEST_F(RunLogTest, TheLatestStepIsReadFromTheEndWhateverIsDamagedThere) {
  EXPECT_EQ(latest_logged_step(path_), 0);
  write_steps(7);
  EXPECT_EQ(latest_logged_step(path_), 7);
  std::ofstream(path_, std::ios::app) << "no record\n" << to_line(record_of(8));
  EXPECT_EQ(latest_logged_step(path_), 7) << "the last line has no end";
  std::ofstream(path_, std::ios::app) << '\n';
  EXPECT_EQ(latest_logged_step(path_), 8);
}

TEST(StepSpans, AreNamedForPeople) {
  EXPECT_EQ(describe({{7, 7}}), "step 7");
  EXPECT_EQ(describe({{3, 5}}), "steps 3 to 5");
  EXPECT_EQ(describe({{3, 5}, {9, 9}}), "steps 3 to 5, 9");
  EXPECT_EQ(describe({{1, 1}, {3, 3}, {5, 5}, {7, 7}, {9, 9}}), "steps 1, 3, 5, 7 and 1 other");
  EXPECT_EQ(describe({{1, 1}, {3, 3}, {5, 5}, {7, 7}, {9, 9}, {11, 20}}), "steps 1, 3, 5, 7 and 11 others");
  EXPECT_EQ(count_steps({{3, 5}, {9, 9}}), 4);
}

TEST_F(RunLogTest, NumbersThatNoStepHasAreRefused) {
  write_steps(1);
  const auto whole = nlohmann::json::parse(read_text_file(path_));
  const std::vector<std::pair<const char*, nlohmann::json>> odd = {
      {"step", 0},          {"step", -3},
      {"step", UINT64_MAX}, {"consumed_samples", -1},
      {"lr", -1.0},         {"step_seconds", -1.0},
      {"step_seconds", {}}, {"step_seconds", 1e300},
      {"small_batch", 0},   {"small_batch_squared_norm", -1.0},
      {"noise_scale", -2},  {"noise_scale_low", -2},
      {"rate_factor", 0},   {"loss_tokens", -1}};
  for (const auto& [field, value] : odd) {
    auto line = whole;
    line[field] = value;
    write_file_durably(path_, line.dump() + "\n");
    EXPECT_THAT(user_error([&] { read_run_log(path_); }), AllOf(HasSubstr("line 1"), HasSubstr(field))) << line;
  }
}

TEST_F(RunLogTest, AStepWithoutLossIsNoneThatFailed) {
  StepRecord record = record_of(1);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.loss_tokens = 0;
  RunLog(directory_).append(record);
  const StepRecord back = read_run_log(path_).at(0);
  EXPECT_TRUE(back.lacks_loss());
  EXPECT_FALSE(back.skipped());
  record.loss_tokens = 5;
  EXPECT_TRUE(record.skipped());
  record.loss_tokens.reset();  // an advised job need not report it
  EXPECT_TRUE(record.skipped());
}

}  // namespace
}  // namespace copus
