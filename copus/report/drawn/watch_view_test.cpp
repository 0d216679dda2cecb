#include "copus/report/drawn/watch_view.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/report/logs/run_log.h"

namespace copus {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

size_t columns_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

WatchedRun some_run() {
  WatchedRun run;
  run.name = "runs/a";
  run.is_running = true;
  run.limits.max_tokens = int64_t{2000} * 8 * 256;
  run.limits.sequence_length = 256;
  for (int64_t step = 1; step <= 1000; ++step) {
    StepRecord record;
    record.step = step;
    record.loss = 1 + 1 / std::sqrt(static_cast<double>(step));
    record.consumed_tokens = step * 8 * 256;
    record.elapsed_seconds = 0.1 * static_cast<double>(step);
    record.seconds_left = 0.1 * static_cast<double>(2000 - step);
    record.step_seconds = 0.1;
    record.tokens_per_second = 20'480;
    record.strategy = {.data_parallel = 2, .zero_stage = 1};
    record.global_batch = 8;
    record.micro_batch = 4;
    record.lr = 9.1e-4;
    record.grad_norm = 0.523;
    if (step == 800) record.held_out_loss = 1.1;
    run.records.push_back(record);
  }
  StepRecord& last = run.records.back();
  last.noise_scale = 118.4;
  last.noise_scale_low = 97.1;
  last.noise_scale_high = 142.3;
  last.critical_batch = 236.8;
  last.statistical_efficiency = 0.884;
  last.goodput = 70.7;
  Decision decision;
  decision.step = 990;
  decision.current = {{.data_parallel = 2, .zero_stage = 1}, 8, 4};
  decision.choice.reason =
      "holds: the best candidate d=2,t=1,p=1,B=12,b=6,zero=1 has Goodput +1.2 %, and a move pays from +3.0 % on, since "
      "it "
      "costs 0.8 s of the 100 s that are left";
  run.events.emplace_back(decision);
  return run;
}

SwitchReport switch_after(int64_t step) {
  SwitchReport report;
  report.after_step = step;
  report.from = {{.data_parallel = 2}, 4, 2};
  report.to = {{.data_parallel = 2, .zero_stage = 1}, 8, 4};
  return report;
}

TEST(WatchView, AFrameOf80Columns) {
  EXPECT_THAT(
      watch_lines(some_run(), 80),
      ElementsAre("runs/a  running", "[=========>        ]  50%  step 1000, 1 min 40 s of training, 1 min 40 s left",
                  "loss      1.032  █▄▃▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  1000 steps, 1.032 to 2.000 nats",
                  "held-out  1.100 nats/token after step 800",
                  "batch     B=8, b=4  learning rate 9.10e-04  gradient norm 0.523", "layout    d=2,t=1,p=1,zero=1",
                  "speed     20.5 k tokens/s  0.1 s a step  2.0 M tokens so far",
                  "phi       118 (97-142) samples  critical batch 237",
                  "Goodput   70.7 samples/s  statistical efficiency 88%",
                  "decision  after step 990: holds: the best candidate d=2,t=1,p=1,B=12,b=6,zero=1",
                  "          has Goodput +1.2 %, and a move pays from +3.0 % on, since it costs",
                  "          0.8 s of the 100 s that are left"));
}

TEST(WatchView, SaysThatItKnowsTheLastStepsAlone) {
  WatchedRun run = some_run();
  run.records.erase(run.records.begin(), run.records.begin() + 400);
  EXPECT_THAT(watch_lines(run, 80)[2], EndsWith("  last 600 steps, 1.032 to 1.050 nats"));
  WatchedRun skipped = some_run();
  skipped.records[499].loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(watch_lines(skipped, 80)[2], EndsWith("  999 steps, 1.032 to 2.000 nats"));
}

TEST(WatchView, FitsEveryWidth) {
  WatchedRun run = some_run();
  run.name = "läufe/größer";
  for (int64_t step = 991; step < 999; ++step) run.events.emplace_back(switch_after(step));
  for (int width = 1; width <= 200; ++width) {
    for (const std::string& line : watch_lines(run, width)) {
      EXPECT_LE(columns_of(line), static_cast<size_t>(width)) << line;
    }
  }
}

TEST(WatchView, AWideFrameHasTheWholeReason) {
  const std::vector<std::string> narrow = watch_lines(some_run(), 50), wide = watch_lines(some_run(), 140);
  EXPECT_THAT(narrow.back(), EndsWith("..."));
  EXPECT_THAT(wide.back(), EndsWith("100 s that are left"));
}

TEST(WatchView, ShowsTheLastSwitchesAndLostRanks) {
  WatchedRun run = some_run();
  for (int64_t step = 991; step < 995; ++step) run.events.emplace_back(switch_after(step));
  RanksChanged change;
  change.after_step = 996;
  change.ranks = 1;
  change.from = {{.data_parallel = 2}, 8, 4};
  change.to = {{}, 8, 4};
  change.reason = "rank 1 was killed";
  run.events.emplace_back(change);
  run.records.back().strategy = {};
  const std::vector<std::string> lines = watch_lines(run, 140);
  EXPECT_EQ(lines[lines.size() - 4], "events    after step 992: B=4,b=2,zero=0 -> B=8,b=4,zero=1, moved");
  EXPECT_EQ(lines.back(),
            "          after step 996: goes on with 1 rank: d=2,t=1,p=1 -> d=1,t=1,p=1; rank 1 was killed");
  EXPECT_THAT(lines, Contains("layout    d=1,t=1,p=1"));
}

TEST(WatchView, SaysHowTheRunStands) {
  WatchedRun run = some_run();
  run.seconds_since_step = 75;
  EXPECT_EQ(watch_lines(run, 80)[0], "runs/a  running, the last step was 1 min 15 s ago");
  run.is_running = false;
  EXPECT_EQ(watch_lines(run, 80)[0], "runs/a  not running, and has not ended");
  EXPECT_THAT(watch_lines(run, 80)[1], Not(HasSubstr("left")));
  run.summary.emplace();
  EXPECT_EQ(watch_lines(run, 80)[0], "runs/a  ended: done");
  WatchedRun begun;
  begun.is_running = true;
  begun.name = "new\x1b[2J";
  EXPECT_THAT(watch_lines(begun, 80), ElementsAre("new\\x1b[2J  running, no step yet"));
}

TEST(WatchView, KnowsLittleOfSomeSteps) {
  WatchedRun run = some_run();
  run.limits.max_tokens = 0;
  run.records = {run.records.front()};
  run.records.back().seconds_left.reset();
  run.records.back().loss = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::string> lines = watch_lines(run, 80);
  EXPECT_EQ(lines[1], "step 1, 0.10 s of training") << "no limit, so neither a share nor the time that is left";
  EXPECT_THAT(lines, Contains("loss      not known"));
  EXPECT_THAT(lines, Contains("phi       not known"));
}

TEST(Sparkline, HasMeansOfNeighboursFromLowToHigh) {
  EXPECT_EQ(sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 20), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({8, 6, 1, 1}, 2), "█▁");
  EXPECT_EQ(sparkline({2, 2}, 2), "▅▅");
}

class WatchedFiles : public testing::Test {
 protected:
  void SetUp() override {
    write_file_durably(folder_.path() / "config.toml",
                       "[model]\nvocab_size = 256\nhidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 2\n"
                       "num_attention_heads = 4\nnum_key_value_heads = 2\n"
                       "[data]\ntrain = \"a.txt\"\n[train]\nmax_steps = 5\n");
  }
  TemporaryFolder folder_;
};

TEST_F(WatchedFiles, ReadsTheEndOfALongLog) {
  {
    RunLog log(folder_.path());
    StepRecord record;
    for (record.step = 1; record.step <= 3000; ++record.step) log.append(record);
    const WatchedRun run = read_watched_run(folder_.path());
    EXPECT_TRUE(run.is_running);
    ASSERT_LT(run.records.size(), 3000U);
    EXPECT_EQ(run.records.back().step, 3000);
    EXPECT_EQ(run.records.front().step, 3001 - static_cast<int64_t>(run.records.size()));
  }
  EXPECT_FALSE(read_watched_run(folder_.path()).is_running);
}

TEST_F(WatchedFiles, SaysWhatIsDamaged) {
  write_file_durably(folder_.path() / "run.jsonl", std::string(end_of_log_bytes, ' ') + "\n{}\n");
  EXPECT_THAT(user_error([&] { read_watched_run(folder_.path()); }),
              testing::AllOf(HasSubstr("run.jsonl, line 2 of its last"), HasSubstr("damaged")));
  EXPECT_THAT(user_error([&] { read_watched_run(folder_.path() / "none"); }), HasSubstr("there is no run in"));
}

}  // namespace
}  // namespace copus
