#include "copus/config/setting_names.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

using Names = std::vector<std::string>;

TEST(SettingNames, FindsTheSectionsOfAKey) {
  EXPECT_EQ(settings_called("lr"), Names{"optimizer.lr"});
  EXPECT_EQ(settings_called("--max-steps"), Names{"train.max_steps"});
  EXPECT_EQ(settings_called("interval").size(), 3U) << "of evaluations, checkpoints and the log";
  EXPECT_TRUE(settings_called("max_stepps").empty());
}

TEST(SettingNames, KnowsWhatOthersCallThem) {
  EXPECT_EQ(settings_called("--learning-rate"), Names{"optimizer.lr"});
  EXPECT_EQ(settings_called("batch_size"), Names{"train.global_batch"});
  EXPECT_EQ(settings_called("--seq-len"), Names{"train.sequence_length"});
}

TEST(SettingNames, FindsTheNearestWhereNoneIsCalledSo) {
  EXPECT_EQ(settings_like("max_stepps"), Names{"train.max_steps"});
  EXPECT_EQ(settings_like("--global-bacth"), Names{"train.global_batch"});
  EXPECT_TRUE(settings_like("--colour").empty());
  EXPECT_TRUE(settings_like("-r").empty());
}

}  // namespace
}  // namespace copus
