#include "copus/comm/operation.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace copus {
namespace {

constexpr VectorPart none{};

TEST(Operation, KnowsWhatEachMemberGivesAndGets) {
  std::array<float, 6> whole{}, part{};
  const std::vector<int64_t> counts = {1, 3, 2};
  const VectorPart all{0, 24}, second{4, 12};

  const auto reduced = Operation::all_reduce(whole.data(), 6, DataType::float32, Reduction::maximum);
  EXPECT_EQ(reduced.input_of(1), all);
  EXPECT_EQ(reduced.output_of(1), all);
  EXPECT_EQ(reduced.whole(), whole.data());

  const auto scattered =
      Operation::reduce_scatter(whole.data(), part.data(), counts, DataType::float32, Reduction::sum);
  EXPECT_EQ(scattered.input_of(1), all);
  EXPECT_EQ(scattered.output_of(1), second);
  EXPECT_EQ(scattered.whole(), whole.data());

  const auto gathered = Operation::all_gather(part.data(), whole.data(), counts, DataType::float32);
  EXPECT_EQ(gathered.bytes(), 24);
  EXPECT_EQ(gathered.input_of(1), second);
  EXPECT_EQ(gathered.output_of(1), all);
  EXPECT_EQ(gathered.whole(), whole.data());

  const auto spread = Operation::broadcast(whole.data(), 6, DataType::float32, 2);
  EXPECT_EQ(spread.input_of(2), all);
  EXPECT_EQ(spread.output_of(2), none);
  EXPECT_EQ(spread.input_of(1), none);
  EXPECT_EQ(spread.output_of(1), all);

  const auto sent = Operation::send(whole.data(), 6, DataType::float32, 2);
  EXPECT_EQ(sent.input_of(1), all);
  EXPECT_EQ(sent.output_of(1), none);
  EXPECT_EQ(sent.whole(), whole.data());

  const auto received = Operation::receive(whole.data(), 6, DataType::float32, 2);
  EXPECT_EQ(received.input_of(1), none);
  EXPECT_EQ(received.output_of(1), all);
  EXPECT_EQ(received.whole(), whole.data());
}

TEST(Operation, MessagesAreToldFromCollectives) {
  EXPECT_TRUE(Operation::send(nullptr, 0, DataType::byte, 1).is_message());
  EXPECT_TRUE(Operation::receive(nullptr, 0, DataType::byte, 1).is_message());
  EXPECT_TRUE(Operation{.kind = OperationKind::exchange}.is_message());
  EXPECT_FALSE(Operation::broadcast(nullptr, 0, DataType::byte, 1).is_message());
  EXPECT_FALSE(Operation{.kind = OperationKind::barrier}.is_message());
}

}  // namespace
}  // namespace copus
