// Tests that an adviser's settings make a separate kind of configuration: readers of runs accept it, `copus train` does
// not.
#include "copus/adviser/adviser_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/adviser/adviser.h"
#include "copus/base/error.h"
#include "copus/config/run_config.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

AdviserSettings usual() {
  AdviserSettings settings;
  settings.batch = 64;
  settings.micro_batch = 8;
  settings.replicas = 2;
  settings.sequence_length = 128;
  return settings;
}

template <class Change>
std::string refusal(Change change) {
  AdviserSettings settings = usual();
  change(settings);
  try {
    Adviser(settings, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(AdviserSettings, AreAJobThatAnotherProgramTrains) {
  AdviserSettings settings = usual();
  settings.more = {"noise_scale.calibration=3.0", "optimizer.batch_scaling=linear", "adapt.alpha=0.5"};
  const AdvisedConfig config = config_of(settings);
  EXPECT_TRUE(config.adapt.advise);
  EXPECT_EQ(config.noise_scale.calibration, 3);
  EXPECT_EQ(config.optimizer.batch_scaling, BatchScaling::linear);
  EXPECT_EQ(reference_batch_of(config), 64);
  EXPECT_EQ(parse_advised_config(to_toml(config), "again"), config);
  EXPECT_EQ(std::get<AdvisedConfig>(parse_any_config(to_toml(config), "again")), config);
  try {
    parse_run_config(to_toml(config), "config.toml");
    ADD_FAILURE() << "trained by Copus";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("config.toml"), HasSubstr("another program trains")));
  }
}

TEST(AdviserSettings, MistakesAreNamed) {
  EXPECT_THAT(refusal([](AdviserSettings& settings) { settings.batch = 0; }), HasSubstr("global_batch"));
  EXPECT_THAT(refusal([](AdviserSettings& settings) { settings.batch = 65; }),
              HasSubstr("train.global_batch 65 is no multiple of train.micro_batch 8 x parallel.data_parallel 2"));
  EXPECT_THAT(refusal([](AdviserSettings& settings) { settings.batches = {64, 100}; }),
              AllOf(HasSubstr("adapt.global_batches holds 100"), HasSubstr("the nearest are 96 and 112")));
  EXPECT_THAT(refusal([](AdviserSettings& settings) { settings.more = {"adapt.dwel_steps=3"}; }),
              AllOf(HasSubstr("did you mean \"dwell_steps\""), Not(HasSubstr("--set"))));
  EXPECT_THAT(refusal([](AdviserSettings& settings) { settings.more = {"data.train=x"}; }),
              HasSubstr("data.train is no setting of the adviser"));
  EXPECT_THAT(refusal([](AdviserSettings& settings) { settings.more = {"noise_scale.dual_interval=16"}; }),
              HasSubstr("copus.DualNoise"));
  EXPECT_THAT(refusal([](AdviserSettings& settings) { settings.more = {"adapt.policy=none"}; }),
              HasSubstr("adapt.policy is \"none\""));
}

}  // namespace
}  // namespace copus
