#include "copus/base/text/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace copus {
namespace {

TEST(Units, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(812), "812 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(3.4 * 1024 * 1024 * 1024), "3.4 GiB");
  EXPECT_EQ(format_bytes(139.0 * 1024 * 1024 * 1024), "139 GiB");
  EXPECT_EQ(format_bytes(1023.9 * 1024), "1.0 MiB");
}

TEST(Units, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(12.34), "12.3");
  EXPECT_EQ(format_count(1000), "1.0 k");
  EXPECT_EQ(format_count(999'499), "999 k");
  EXPECT_EQ(format_count(999'999), "1.0 M");
  EXPECT_EQ(format_count(1'926'400), "1.9 M");
  EXPECT_EQ(format_count(15e12), "15.0 T");
  EXPECT_EQ(format_count(2e18), "2000000 T");
  EXPECT_EQ(format_count(2e300), "2e+288 T");
  EXPECT_EQ(format_count(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Units, Rates) { EXPECT_EQ(format_rate(45'310, "tokens"), "45.3 k tokens/s"); }

TEST(Units, OneIsSingular) {
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(2, "step"), "2 steps");
  EXPECT_EQ(counted(1, "switch", "switches"), "1 switch");
  EXPECT_EQ(counted(2, "switch", "switches"), "2 switches");
}

TEST(Units, Durations) {
  EXPECT_EQ(format_duration(0.25), "0.25 s");
  EXPECT_EQ(format_duration(9.996), "10.0 s");
  EXPECT_EQ(format_duration(59.94), "59.9 s");
  EXPECT_EQ(format_duration(59.96), "1 min 00 s");
  EXPECT_EQ(format_duration(125), "2 min 05 s");
  EXPECT_EQ(format_duration(3599.6), "1 h 00 min");
  EXPECT_EQ(format_duration(3 * 3600 + 7 * 60), "3 h 07 min");
  EXPECT_EQ(format_duration(86399), "1 d 00 h");
  EXPECT_EQ(format_duration(52 * 3600), "2 d 04 h");
  EXPECT_EQ(format_duration(-125), "-2 min 05 s");
  EXPECT_EQ(format_duration(8.64e304), "1e+300 d");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

}  // namespace
}  // namespace copus
