#include "copus/comm/messages/reduction_rounds.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "copus/comm/messages/reduction_simulation.h"
#include "copus/comm/reduce_elements.h"
#include "copus/comm/testing/test_data.h"
#include "copus/comm/testing/test_worlds.h"

namespace copus {
namespace {

using Received = ReductionRound::Received;

constexpr int64_t large_sizes[] = {8, 64, 512, 1000, 1024, 8191, 8192};

int64_t floor_of_log2(int64_t size) { return std::bit_width(static_cast<uint64_t>(size)) - 1; }
bool is_power_of_two(int64_t size) { return std::has_single_bit(static_cast<uint64_t>(size)); }

// Seconds by which a message is delayed: mostly short, sometimes a thousand times as long.
std::function<double()> random_delays(uint64_t seed) {
  return [random = std::mt19937_64(seed)]() mutable {
    const double delay = std::uniform_real_distribution<>(0, 1e-5)(random);
    return random() % 50 == 0 ? 1000 * delay : delay;
  };
}

TEST(ReductionRounds, EveryMemberHasTheSumWhateverTheDelays) {
  for (const int64_t size : large_sizes) {
    const auto seed = static_cast<uint64_t>(size) + 17;
    SCOPED_TRACE(testing::Message() << size << " members, seed " << seed);
    std::mt19937_64 random(seed);
    using Words = std::array<uint64_t, 3>;
    std::vector<Words> values(size);
    Words sum{};
    for (Words& words : values) {
      for (size_t i = 0; i < words.size(); ++i) sum[i] += words[i] = random();
    }
    ReductionSimulation<Words> simulation(
        {25e-6, 5e-6, 1e9},
        [](const Words& received, Received place, Words& words) {
          take_in(reinterpret_cast<const std::byte*>(&received), place, reinterpret_cast<std::byte*>(&words),
                  std::ssize(words), DataType::int64, Reduction::sum);
        },
        random_delays(seed));
    for (const Words& result : simulation.run(values, sizeof(Words))) ASSERT_EQ(result, sum);
  }
}

// Only neighbouring blocks are combined, in their order. So maxima are bitwise those of a reduction in the group's
// order.
TEST(ReductionRounds, OnlyNeighboursAreCombinedInTheirOrder) {
  using Block = std::pair<int64_t, int64_t>;  // members from .. until
  for (int64_t size = 1; size <= 130; ++size) {
    std::vector<Block> blocks;
    for (int64_t member = 0; member < size; ++member) blocks.emplace_back(member, member + 1);
    ReductionSimulation<Block> simulation({}, [&](const Block& received, Received place, Block& block) {
      if (place == Received::instead) {
        block = received;
      } else if (place == Received::before) {
        ASSERT_EQ(received.second, block.first) << size;
        block.first = received.first;
      } else {
        ASSERT_EQ(block.second, received.first) << size;
        block.second = received.second;
      }
    });
    for (const Block& block : simulation.run(blocks, 8)) ASSERT_EQ(block, Block(0, size));
  }
}

TEST(ReductionRounds, PeersMessagesAndSecondsGrowWithTheLogarithm) {
  constexpr MessageCosts costs{.latency_seconds = 25e-6, .seconds_per_message = 5e-6, .bytes_per_second = 1e9};
  constexpr int64_t bytes = 2000;
  for (const int64_t size : large_sizes) {
    SCOPED_TRACE(testing::Message() << size << " members");
    ReductionSimulation<int64_t> simulation(costs, [](int64_t received, Received place, int64_t& value) {
      value = place == Received::instead ? received : value + received;
    });
    EXPECT_EQ(simulation.run(std::vector<int64_t>(size, 1), bytes), std::vector<int64_t>(size, size));
    const int64_t k = floor_of_log2(size);
    const int64_t places = int64_t{1} << k;
    EXPECT_EQ(simulation.messages(), k * places + 2 * (size - places));
    EXPECT_EQ(simulation.bytes(), bytes * simulation.messages());
    EXPECT_EQ(simulation.most_peers(), is_power_of_two(size) ? k : k + 1);
    const int64_t rounds = is_power_of_two(size) ? k : k + 2;
    EXPECT_NEAR(simulation.seconds(), static_cast<double>(rounds) * (5e-6 + 2e-6 + 25e-6 + 5e-6), 1e-9);
  }
}

TEST(ReductionRounds, SumsOfFloatsKeepTheGroupsOrder) {
  const auto goes = [](int64_t count, DataType type, Reduction reduction) {
    return goes_by_rounds(Operation::all_reduce(nullptr, count, type, reduction));
  };
  for (const DataType type : all_types) {
    const bool is_integer = type == DataType::byte || type == DataType::int64;
    EXPECT_EQ(goes(1, type, Reduction::sum), is_integer);
    EXPECT_TRUE(goes(small_all_reduce_bytes / size_of(type), type, Reduction::maximum));
    EXPECT_FALSE(goes(small_all_reduce_bytes / size_of(type) + 1, type, Reduction::maximum));
  }
}

// Bits are compared, because a comparison of numbers shows neither the sign of a zero nor which NaN it is.
TEST(ReductionRounds, MaximaAreBitwiseThoseOfTheGroupsOrder) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double special[] = {0.0, -0.0, nan, -nan, std::bit_cast<double>(std::bit_cast<uint64_t>(nan) + 5), -1, 7};
  constexpr int64_t count = 500;
  for (const int64_t size : {5, 6, 7, 8, 9, 11}) {
    SCOPED_TRACE(testing::Message() << size << " members");
    std::mt19937_64 random(static_cast<uint64_t>(size));
    std::vector<std::vector<double>> inputs(size, std::vector<double>(count));
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t kinds = 1 + random() % std::size(special);  // so that not every maximum is NaN
      for (auto& input : inputs) input[i] = special[random() % kinds];
    }
    std::vector<const std::byte*> sources;
    for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
    Bytes expected(count * sizeof(double));
    std::byte* const output = expected.data();
    reduce_elements(sources, {&output, 1}, count, DataType::float64, Reduction::maximum);
    run_ranks(WorldKind::tcp, size, [&](World& world) {
      std::vector<double> data = inputs[world.rank()];
      world.everyone().all_reduce(data.data(), count, DataType::float64, Reduction::maximum);
      EXPECT_EQ(std::memcmp(data.data(), expected.data(), expected.size()), 0) << world.rank();
    });
  }
}

}  // namespace
}  // namespace copus
