#include "copus/report/progress/progress_line.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <vector>

namespace copus {
namespace {

using testing::HasSubstr;
using testing::Not;

ProgressState some_state() {
  ProgressState state;
  state.record.step = 1240;
  state.total_steps = 2000;
  state.fraction_done = 0.62;
  state.record.consumed_tokens = 10'157'000;
  state.record.strategy = {.data_parallel = 2, .pipeline_parallel = 2};
  state.record.global_batch = 32;
  state.loss = 1.7124;
  state.record.held_out_loss = 1.655;
  state.record.lr = 9.1e-4;
  state.record.grad_norm = 0.523;
  state.tokens_per_second = 45'310;
  state.eta_seconds = 80;
  return state;
}

std::string live_line(const ProgressState& state, int width) { return LiveLine().text(state, width); }

TEST(LiveLineTest, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(live_line(some_state(), 150),
            "[=================>          ]  62%  step 1240/2000  d=2,t=1,p=2,B=32  loss 1.712  held-out 1.655  "
            "10.2 M tokens  45.3 k tokens/s  1 min 20 s left");
}

TEST(LiveLineTest, FitsEveryWidth) {
  ProgressState state = some_state();
  for (int width = 1; width <= 160; ++width) {
    EXPECT_LE(live_line(state, width).size(), static_cast<size_t>(width)) << width;
  }
  state.total_steps = std::numeric_limits<int64_t>::max();
  state.record.consumed_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_LE(live_line(state, 79).size(), 79U);
}

TEST(LiveLineTest, DropsTheLeastImportantFirst) {
  EXPECT_EQ(live_line(some_state(), 79),
            "step 1240/2000  d=2,t=1,p=2,B=32  loss 1.712  45.3 k tokens/s  1 min 20 s left");
  EXPECT_EQ(live_line(some_state(), 26), "step 1240/2000  loss 1.712");
  EXPECT_EQ(live_line(some_state(), 25), "step 1240/2000");
}

// The column in which each part begins.
std::vector<size_t> places_of(const std::string& line, const std::vector<std::string>& parts) {
  std::vector<size_t> columns;
  columns.reserve(parts.size());
  for (const std::string& part : parts) columns.push_back(line.find(part));
  return columns;
}

TEST(LiveLineTest, EachNumberStaysInItsPlace) {
  for (const int width : {79, 120, 160}) {
    LiveLine line;
    ProgressState state = some_state();
    const auto columns = places_of(line.text(state, width), {"step", "d=", "loss", "45.3 k", "1 min"});
    EXPECT_THAT(columns, testing::Not(testing::Contains(std::string::npos))) << width;
    state.record.step = 9;
    state.loss = 11.25;
    state.tokens_per_second = 820;
    state.eta_seconds = 9;
    EXPECT_EQ(places_of(line.text(state, width), {"step", "d=", "loss", "820 tok", "9 s left"}), columns) << width;
    state.record.global_batch = 8;
    state.tokens_per_second = 8'200'000;
    state.eta_seconds = 60;
    EXPECT_EQ(places_of(line.text(state, width), {"step", "d=", "loss", "8.2 M", "1 min"}), columns) << width;
  }
}

TEST(LiveLineTest, WhatIsNotKnownForAWhileKeepsItsPlace) {
  LiveLine line;
  ProgressState state = some_state();
  state.record.noise_scale_low = 97.1;
  const size_t column = line.text(state, 150).find("45.3 k");
  state.record.noise_scale_low.reset();
  EXPECT_EQ(line.text(state, 150).find("45.3 k"), column);
}

ProgressState with_noise_scale() {
  ProgressState state = some_state();
  state.record.noise_scale = 118.4;
  state.record.noise_scale_low = 97.1;
  state.record.noise_scale_high = 142.3;
  state.record.critical_batch = 236.8;
  state.record.statistical_efficiency = 0.884;
  return state;
}

TEST(LiveLineTest, ShowsTheNoiseScaleAndWhatFollowsFromItWhereThereIsRoom) {
  EXPECT_EQ(live_line(with_noise_scale(), 190),
            "[=================>          ]  62%  step 1240/2000  d=2,t=1,p=2,B=32  loss 1.712  held-out 1.655  "
            "noise scale 118 (97-142)  B_c 237  SE 88%  10.2 M tokens  45.3 k tokens/s  1 min 20 s left");
  const std::string narrow =
      " 62%  step 1240/2000  d=2,t=1,p=2,B=32  loss 1.712  held-out 1.655  noise scale 118 (97-142)  "
      "45.3 k tokens/s  1 min 20 s left";
  EXPECT_EQ(live_line(with_noise_scale(), static_cast<int>(narrow.size())), narrow);
  EXPECT_THAT(live_line(with_noise_scale(), static_cast<int>(narrow.size()) - 1), Not(HasSubstr("noise")));
  for (int width = 1; width <= 200; ++width) {
    EXPECT_LE(live_line(with_noise_scale(), width).size(), static_cast<size_t>(width)) << width;
  }
}

TEST(LiveLineTest, ShowsTheLowerBoundOfTheNoiseScaleAlone) {
  ProgressState state = some_state();
  state.record.noise_scale_low = 97.1;
  EXPECT_THAT(live_line(state, 150), HasSubstr("held-out 1.655  noise scale >97  10.2 M tokens"));
  state.record.noise_scale_low = 0;
  EXPECT_THAT(live_line(state, 150), Not(HasSubstr("noise"))) << "a bound that excludes nothing";
}

TEST(LiveLineTest, NoiseScalesOfEverySizeAreShort) {
  ProgressState state = with_noise_scale();
  state.record.noise_scale = 0.0421;
  state.record.noise_scale_low = 0.0312;
  state.record.noise_scale_high = 9.96;
  EXPECT_THAT(live_line(state, 150), HasSubstr("noise scale 0.042 (0.031-10)"));
  state.record.noise_scale = 999.6;
  state.record.noise_scale_low = 99.6;
  state.record.noise_scale_high = 23'400'000;
  EXPECT_THAT(live_line(state, 150), HasSubstr("noise scale 1.0 k (100-23.4 M)"));
}

TEST(LiveLineTest, WorksWithLittleKnown) {
  ProgressState state;
  state.record.step = 1;
  state.fraction_done = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(live_line(state, 100), "[>                           ]   0%  step 1     loss -  0 tokens  0 tokens/s");
}

TEST(LiveLineTest, IsFullOnlyAtTheEnd) {
  ProgressState state = some_state();
  state.fraction_done = 0.9999;
  EXPECT_THAT(live_line(state, 130), HasSubstr("=>]  99%"));
  state.fraction_done = 1;
  EXPECT_THAT(live_line(state, 130), HasSubstr("==] 100%"));
}

TEST(LiveLineTest, CountsDownInWholeSeconds) {
  ProgressState state = some_state();
  state.eta_seconds = 29.4;
  EXPECT_THAT(live_line(state, 130), testing::EndsWith("  29 s left"));
  state.eta_seconds = 59.7;
  EXPECT_THAT(live_line(state, 130), testing::EndsWith("  1 min 00 s left"));
}

TEST(PlainLine, HasEverything) {
  EXPECT_EQ(plain_line(some_state()),
            "step 1240/2000   62%  loss 1.712  held-out 1.655  lr 9.10e-04  grad norm 0.523  10.2 M tokens  "
            "45.3 k tokens/s  1 min 20 s left");
  EXPECT_EQ(plain_line(with_noise_scale()),
            "step 1240/2000   62%  loss 1.712  held-out 1.655  lr 9.10e-04  grad norm 0.523  noise scale 118 (97-142)  "
            "B_c 237  SE 88%  10.2 M tokens  45.3 k tokens/s  1 min 20 s left");
  ProgressState bounded = some_state();
  bounded.record.noise_scale_low = 97.1;
  EXPECT_THAT(plain_line(bounded), HasSubstr("grad norm 0.523  noise scale >97  10.2 M tokens"));
}

}  // namespace
}  // namespace copus
