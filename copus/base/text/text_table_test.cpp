#include "copus/base/text/text_table.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

TEST(TextTable, ColumnsAreAsWideAsTheirWidestCell) {
  TextTable numbers({"#", "seconds"});
  numbers.add({"10", "2"});
  EXPECT_EQ(numbers.text(), " #  seconds\n10        2\n");
  TextTable names({"name", "GiB"}, TextTable::FirstColumn::left);
  names.add({"h100-sxm", "1,000"});
  EXPECT_EQ(names.text(), "name        GiB\nh100-sxm  1,000\n");
}

}  // namespace
}  // namespace copus
