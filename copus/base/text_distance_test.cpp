#include "copus/base/text_distance.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

TEST(TextDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("global_batch", "global_bacth"), 1u) << "a swap of neighbours is one edit";
  EXPECT_EQ(edit_distance("ca", "abc"), 3u) << "optimal string alignment edits no substring twice";
}

TEST(TextDistance, FindsWhatWasMeant) {
  const std::vector<std::string> keys = {"micro_batch", "global_batch", "lr"};
  EXPECT_EQ(nearest("micro_bach", keys), "micro_batch");
  EXPECT_EQ(nearest("globl_bacth", keys), "global_batch");
  EXPECT_EQ(nearest("rl", keys), "lr");
  EXPECT_EQ(nearest("colour", keys), std::nullopt);
  EXPECT_EQ(nearest("", keys), std::nullopt);
}

TEST(TextDistance, SuggestsOneOrAll) {
  EXPECT_EQ(suggest("sede", {"lr", "seed"}, "its keys are"), "did you mean \"seed\"?");
  EXPECT_EQ(suggest("colour", {"lr", "seed"}, "its keys are"), "its keys are lr, seed");
}

}  // namespace
}  // namespace copus
