#include "copus/report/progress_line.h"

#include <gmock/gmock.h>

#include <limits>

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
  state.loss = 1.7124;
  state.record.held_out_loss = 1.655;
  state.record.lr = 9.1e-4;
  state.record.grad_norm = 0.523;
  state.tokens_per_second = 45'310;
  state.eta_seconds = 80;
  return state;
}

TEST(LiveLine, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(live_line(some_state(), 130),
            "[=================>          ]  62%  step 1240/2000  loss 1.712  held-out 1.655  10.2 M tokens  "
            "45.3 k tokens/s  1 min 20 s left");
}

TEST(LiveLine, FitsEveryWidth) {
  ProgressState state = some_state();
  for (int width = 1; width <= 160; ++width) {
    EXPECT_LE(live_line(state, width).size(), static_cast<size_t>(width)) << width;
  }
  state.total_steps = std::numeric_limits<int64_t>::max();
  state.record.consumed_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_LE(live_line(state, 79).size(), 79U);
}

TEST(LiveLine, DropsTheLeastImportantFirst) {
  const std::string line = live_line(some_state(), 79);
  EXPECT_THAT(line, HasSubstr("62%  step 1240/2000  loss 1.712"));
  EXPECT_THAT(line, HasSubstr("1 min 20 s left"));
  EXPECT_THAT(line, HasSubstr("45.3 k tokens/s"));
  EXPECT_THAT(line, Not(HasSubstr("10.2 M")));
  EXPECT_EQ(live_line(some_state(), 20), " 62%  step 1240/2000");
  EXPECT_EQ(live_line(some_state(), 19), "step 1240/2000");
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

TEST(LiveLine, ShowsTheNoiseScaleAndWhatFollowsFromItWhereThereIsRoom) {
  EXPECT_EQ(live_line(with_noise_scale(), 176),
            "[=================>          ]  62%  step 1240/2000  loss 1.712  held-out 1.655  "
            "noise scale 118 (97-142)  B_c 237  SE 88%  10.2 M tokens  45.3 k tokens/s  1 min 20 s left");
  const std::string narrow =
      " 62%  step 1240/2000  loss 1.712  held-out 1.655  noise scale 118 (97-142)  "
      "45.3 k tokens/s  1 min 20 s left";
  EXPECT_EQ(live_line(with_noise_scale(), static_cast<int>(narrow.size())), narrow);
  EXPECT_THAT(live_line(with_noise_scale(), static_cast<int>(narrow.size()) - 1), Not(HasSubstr("noise")));
  for (int width = 1; width <= 200; ++width) {
    EXPECT_LE(live_line(with_noise_scale(), width).size(), static_cast<size_t>(width)) << width;
  }
}

TEST(LiveLine, ShowsTheLowerBoundOfTheNoiseScaleAlone) {
  ProgressState state = some_state();
  state.record.noise_scale_low = 97.1;
  EXPECT_THAT(live_line(state, 130), HasSubstr("held-out 1.655  noise scale >97  10.2 M tokens"));
  state.record.noise_scale_low = 0;
  EXPECT_THAT(live_line(state, 130), Not(HasSubstr("noise"))) << "a bound that excludes nothing";
}

TEST(LiveLine, NoiseScalesOfEverySizeAreShort) {
  ProgressState state = with_noise_scale();
  state.record.noise_scale = 0.0421;
  state.record.noise_scale_low = 0.0312;
  state.record.noise_scale_high = 9.96;
  EXPECT_THAT(live_line(state, 130), HasSubstr("noise scale 0.042 (0.031-10)"));
  state.record.noise_scale = 999.6;
  state.record.noise_scale_low = 99.6;
  state.record.noise_scale_high = 23'400'000;
  EXPECT_THAT(live_line(state, 130), HasSubstr("noise scale 1.0 k (100-23.4 M)"));
}

TEST(LiveLine, WorksWithLittleKnown) {
  ProgressState state;
  state.record.step = 1;
  state.fraction_done = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(live_line(state, 100), "[>                           ]   0%  step 1  loss -  0 tokens  0 tokens/s");
}

TEST(LiveLine, IsFullOnlyAtTheEnd) {
  ProgressState state = some_state();
  state.fraction_done = 0.9999;
  EXPECT_THAT(live_line(state, 130), HasSubstr("=>]  99%"));
  state.fraction_done = 1;
  EXPECT_THAT(live_line(state, 130), HasSubstr("==] 100%"));
}

TEST(LiveLine, CountsDownInWholeSeconds) {
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
