#include "copus/base/text/text_distance.h"

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

TEST(TextDistance, TheCaseOfLettersDoesNotCount) {
  EXPECT_EQ(nearest("H100-SXM", {"a100-sxm", "h100-sxm"}), "h100-sxm");
  EXPECT_EQ(nearest("train", {"Train"}), "Train");
}

TEST(TextDistance, FindsWhatIsAbbreviated) {
  const std::vector<std::string> options = {"--seed", "--sequence-length", "--output"};
  EXPECT_EQ(nearest("--seq-len", options), "--sequence-length");
  EXPECT_EQ(nearest("--SEQ_LENGTH", options), "--sequence-length");
  EXPECT_EQ(nearest("--out", options), "--output");
  EXPECT_EQ(nearest("--sequence-length-of-every-one", options), std::nullopt) << "more words than there are";
  EXPECT_EQ(nearest("--o", options), std::nullopt) << "one letter may begin anything";
  EXPECT_EQ(nearest("--out", {"--input-output"}), std::nullopt) << "another place";
}

TEST(TextDistance, SuggestsOneOrAll) {
  EXPECT_EQ(suggest("sede", {"lr", "seed"}, "its keys are"), "did you mean \"seed\"?");
  EXPECT_EQ(suggest("colour", {"lr", "seed"}, "its keys are"), "its keys are lr, seed");
}

}  // namespace
}  // namespace copus
