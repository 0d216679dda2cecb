#include "copus/base/text/duration.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

TEST(Duration, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("0"), 0);
  EXPECT_EQ(parse_duration("2.5"), 2.5);
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("3m"), 180);
  EXPECT_EQ(parse_duration("1.5h"), 5400);
  EXPECT_EQ(parse_duration("1h30m"), 5400);
  EXPECT_EQ(parse_duration("1d2h3m4s"), 86400 + 7200 + 180 + 4);
}

TEST(Duration, RefusesTheRest) {
  for (const char* text :
       {"", "m", "3x", "3 m", " 3m", "3m ", "-3m", "-0", "3m2h", "3m3m", "3m5", "nan", "inf", "1e3", "3mm", "0x10"}) {
    EXPECT_EQ(parse_duration(text), std::nullopt) << "'" << text << "'";
  }
}

}  // namespace
}  // namespace copus
