#include "copus/placement/attention_workspace.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

TEST(AttentionWorkspace, HoldsAsManySequencesAsDivideTheBatchAndFit) {
  EXPECT_EQ(sequences_of_attention_backward(8, 12, 2048), 8);
  EXPECT_EQ(sequences_of_attention_backward(8, 16, 2048), 8) << "just as much as the limit";
  EXPECT_EQ(sequences_of_attention_backward(8, 17, 2048), 4);
  EXPECT_EQ(sequences_of_attention_backward(3, 16, 4096), 1) << "two would fit, and do not divide the batch";
  EXPECT_EQ(sequences_of_attention_backward(1, 16, 8192), 0);
  EXPECT_EQ(sequences_of_attention_backward(8, 8, int64_t{1} << 30), 0) << "the bytes of one would be 2^64 and more";
}

TEST(AttentionWorkspace, CountsWholeTiles) {
  EXPECT_EQ(attention_workspace_bytes(8, 12, 2048), int64_t{8} * 12 * 2048 * 2048 * 2);
  EXPECT_EQ(attention_workspace_bytes(8, 17, 2048), int64_t{4} * 17 * 2048 * 2048 * 2);
  EXPECT_EQ(attention_workspace_bytes(2, 3, 65), 2 * 3 * 128 * 128 * 2);
  EXPECT_EQ(attention_workspace_bytes(2, 3, 1), 2 * 3 * 64 * 128 * 2);
  EXPECT_EQ(attention_workspace_bytes(1, 16, 8192), 0);
  const int64_t heads = attention_workspace_limit / ScoreTiles::bytes / 64 / 128;
  EXPECT_EQ(attention_workspace_bytes(5, heads, 64), attention_workspace_limit);
  EXPECT_EQ(attention_workspace_bytes(5, heads + 1, 64), 0);
}

}  // namespace
}  // namespace copus
