#include "copus/config/step_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(StepSchedule, ReadsSamplesAndTokens) {
  EXPECT_THAT(parse_step_schedule(" 0:768  250B:1536 ", 4096), ElementsAre(Pair(0, 768), Pair(61035157, 1536)))
      << "250B tokens are 61035156.25 samples";
  EXPECT_THAT(parse_step_schedule("0K:1 1.5M:2 2T:3", 1000),
              ElementsAre(Pair(0, 1), Pair(1500, 2), Pair(2'000'000'000, 3)));
}

TEST(StepSchedule, APieceThatRepeatsTheBatchIsPartOfTheOneBeforeIt) {
  EXPECT_THAT(parse_step_schedule("0:8 16:8 24:12 36:12 37:12", 128), ElementsAre(Pair(0, 8), Pair(24, 12)));
  EXPECT_FALSE(why_too_short(parse_step_schedule("0:8 16:8 24:12", 128)));
  EXPECT_THAT(user_error([] { parse_step_schedule("0:8 16:8 12:4", 128); }), HasSubstr("begins at 16 samples"));
}

TEST(StepSchedule, NamesThePieceThatItCannotRead) {
  const auto refused = [](const std::string& schedule) {
    return user_error([&] { parse_step_schedule(schedule, 128); });
  };
  EXPECT_THAT(refused(""), HasSubstr("needs adapt.schedule"));
  EXPECT_THAT(refused("0:16 32"), HasSubstr("\"32\": there is no \":\""));
  EXPECT_THAT(refused("16:16"), HasSubstr("\"16:16\": the first piece must begin at 0"));
  EXPECT_THAT(refused("0:16 5G:32"), HasSubstr("\"5G:32\": the threshold"));
  EXPECT_THAT(refused("0:16 :32"), HasSubstr("\":32\": the threshold"));
  EXPECT_THAT(refused("0:16 K:32"), HasSubstr("\"K:32\": the threshold"));
  EXPECT_THAT(refused("0:16 -5:32"), HasSubstr("\"-5:32\": the threshold"));
  EXPECT_THAT(refused("0:16 5:0"), HasSubstr("\"5:0\": the batch"));
  EXPECT_THAT(refused("0:16 5:8x"), HasSubstr("\"5:8x\": the batch"));
  EXPECT_THAT(refused("0:16777217"),
              HasSubstr("\"0:16777217\": the batch must be a whole number of samples, at least 1 "
                        "and at most 16777216"));
  EXPECT_THAT(parse_step_schedule("0:16777216", 128), ElementsAre(Pair(0, 16777216)));
  EXPECT_THAT(refused("0:16 9:8 9:4"), HasSubstr("\"9:4\": it must begin after the piece before it"));
}

TEST(StepSchedule, AStepHasTheBatchOfWhereItBegins) {
  const StepSchedule schedule = parse_step_schedule("0:8 24:12", 128);
  EXPECT_EQ(scheduled_batch(schedule, 0), 8);
  EXPECT_EQ(scheduled_batch(schedule, 23), 8);
  EXPECT_EQ(scheduled_batch(schedule, 24), 12);
  EXPECT_EQ(scheduled_batch(schedule, 1'000'000), 12);
}

TEST(StepSchedule, SaysWhichPieceIsTooShort) {
  const auto why = [](const char* schedule) { return why_too_short(parse_step_schedule(schedule, 128)); };
  EXPECT_FALSE(why("0:8"));
  EXPECT_FALSE(why("0:8 9:16 41:8"));
  EXPECT_THAT(why("0:8 8:16").value(), HasSubstr("batch 8 from 0 to 8 consumed samples, which is 1 step; "));
  EXPECT_THAT(why("0:8 8:16").value(), HasSubstr("begin at 16 samples"));
  EXPECT_THAT(why("0:8 16:16 32:64").value(), HasSubstr("batch 16 from 16 to 32 consumed samples"));
  EXPECT_THAT(why("0:8 12:64 16:8 500:64").value(),
              HasSubstr("batch 64 from 12 to 16 consumed samples, which is 0 steps"))
      << "the second step ends there";
}

}  // namespace
}  // namespace copus
