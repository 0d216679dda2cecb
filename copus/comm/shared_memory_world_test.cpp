// Every operation over shared memory, with ranks as threads, against references that are computed one element after
// another.
#include "copus/comm/shared_memory_world.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "copus/base/mix_bits.h"
#include "copus/comm/world.h"

namespace copus {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DataType all_types[] = {DataType::byte, DataType::int64, DataType::float32, DataType::float64,
                                  DataType::bfloat16};
constexpr Reduction all_reductions[] = {Reduction::sum, Reduction::maximum};

template <class Value>
Value load(const Bytes& bytes, int64_t i) {
  Value value;
  std::memcpy(&value, bytes.data() + i * sizeof(Value), sizeof(Value));
  return value;
}

template <class Value>
void store(Bytes& bytes, int64_t i, Value value) {
  std::memcpy(bytes.data() + i * sizeof(Value), &value, sizeof(Value));
}

float float_of_bfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// By definition: the nearer of the two neighbours, the even one of two that are equally near.
uint16_t nearest_bfloat16(float value) {
  const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const auto above = static_cast<uint16_t>(below + 1);
  const double to_below = std::abs(static_cast<double>(value) - float_of_bfloat16(below));
  const double to_above = std::abs(static_cast<double>(float_of_bfloat16(above)) - value);
  if (to_below != to_above) return to_below < to_above ? below : above;
  return below % 2 == 0 ? below : above;
}

// What member `member` gives: values whose sums round, so that the order of summation shows.
Bytes make_data(int64_t count, DataType type, uint64_t seed) {
  Bytes data(count * size_of(type));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = mix_bits(seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(i));
    const double value = std::ldexp(static_cast<double>(static_cast<int64_t>(bits)), -63 + static_cast<int>(bits % 9));
    switch (type) {
      case DataType::byte:
        store(data, i, static_cast<uint8_t>(bits));
        break;
      case DataType::int64:
        store(data, i, bits);
        break;
      case DataType::float32:
        store(data, i, static_cast<float>(value));
        break;
      case DataType::float64:
        store(data, i, value);
        break;
      case DataType::bfloat16:
        store(data, i, nearest_bfloat16(static_cast<float>(value)));
        break;
    }
  }
  return data;
}

template <class Value>
Value combine(Value a, Value b, Reduction reduction) {
  return reduction == Reduction::sum ? static_cast<Value>(a + b) : std::max(a, b);
}

template <class Value>
void reduce_into(Bytes& result, const std::vector<Bytes>& inputs, int64_t i, Reduction reduction) {
  Value value = load<Value>(inputs[0], i);
  for (size_t k = 1; k < inputs.size(); ++k) value = combine(value, load<Value>(inputs[k], i), reduction);
  store(result, i, value);
}

Bytes reduce_reference(const std::vector<Bytes>& inputs, DataType type, Reduction reduction) {
  Bytes result(inputs[0].size());
  const int64_t count = static_cast<int64_t>(result.size()) / size_of(type);
  for (int64_t i = 0; i < count; ++i) {
    switch (type) {
      case DataType::byte:
        reduce_into<uint8_t>(result, inputs, i, reduction);
        break;
      case DataType::int64:
        if (reduction == Reduction::sum) {
          reduce_into<uint64_t>(result, inputs, i, reduction);
        } else {
          reduce_into<int64_t>(result, inputs, i, reduction);
        }
        break;
      case DataType::float32:
        reduce_into<float>(result, inputs, i, reduction);
        break;
      case DataType::float64:
        reduce_into<double>(result, inputs, i, reduction);
        break;
      case DataType::bfloat16: {
        float value = float_of_bfloat16(load<uint16_t>(inputs[0], i));
        for (size_t k = 1; k < inputs.size(); ++k) {
          value = combine(value, float_of_bfloat16(load<uint16_t>(inputs[k], i)), reduction);
        }
        store(result, i, nearest_bfloat16(value));
        break;
      }
    }
  }
  return result;
}

std::vector<Bytes> make_inputs(int64_t members, int64_t count, DataType type, uint64_t seed) {
  std::vector<Bytes> inputs;
  for (int64_t member = 0; member < members; ++member) {
    inputs.push_back(make_data(count, type, seed * 100 + static_cast<uint64_t>(member)));
  }
  return inputs;
}

Bytes slice(const Bytes& bytes, int64_t begin, int64_t length) {
  return {bytes.begin() + begin, bytes.begin() + begin + length};
}

// Uneven shares, some of them empty.
std::vector<int64_t> uneven_counts(int64_t members, int64_t total, uint64_t seed) {
  std::vector<int64_t> counts(members);
  for (int64_t left = total, member = 0; member < members; ++member) {
    const auto bits = static_cast<int64_t>(mix_bits(seed + static_cast<uint64_t>(member)) >> 1);
    counts[member] = member + 1 == members ? left : (bits % 3 == 0 ? 0 : bits % (left + 1));
    left -= counts[member];
  }
  return counts;
}

int64_t sum(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

struct Case {
  DataType type;
  int64_t count;
};

// All sizes in fp32; in the other types those that take different ways through the code.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const DataType type : all_types) {
    for (const int64_t count : {0, 1, 7, 1000, (64 << 10) + 3}) cases.push_back({type, count});
  }
  for (const int64_t count : {2, 3, 16, 63, 4096, 4097, (1 << 20) + 17}) cases.push_back({DataType::float32, count});
  return cases;
}

class Collectives : public testing::TestWithParam<int64_t> {};

TEST_P(Collectives, all_reduce_equals_the_sum_in_the_order_of_the_members) {
  const int64_t size = GetParam();
  for (const auto [type, count] : all_cases()) {
    for (const Reduction reduction : all_reductions) {
      const auto inputs = make_inputs(size, count, type, 1);
      const Bytes expected = reduce_reference(inputs, type, reduction);
      run_ranks_as_threads(size, [&](World& world) {
        Bytes data = inputs[world.rank()];
        world.everyone().all_reduce(data.data(), count, type, reduction);
        EXPECT_TRUE(data == expected) << count << " elements of type " << static_cast<int>(type);
        data = inputs[world.rank()];
        world.everyone().start_all_reduce(data.data(), count, type, reduction).wait();
        EXPECT_TRUE(data == expected) << count << " elements of type " << static_cast<int>(type);
      });
    }
  }
}

TEST_P(Collectives, reduce_scatter_and_all_gather_agree_with_the_reference_and_with_all_reduce) {
  const int64_t size = GetParam();
  for (const auto [type, total] : all_cases()) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const auto counts = uneven_counts(size, total, seed);
      const auto inputs = make_inputs(size, total, type, seed);
      const Bytes expected = reduce_reference(inputs, type, Reduction::sum);
      run_ranks_as_threads(size, [&](World& world) {
        const int64_t rank = world.rank();
        const int64_t begin = sum({counts.begin(), counts.begin() + rank}) * size_of(type);
        const int64_t bytes = counts[rank] * size_of(type);
        Bytes input = inputs[rank];
        Bytes output(bytes);
        world.everyone().reduce_scatter(input.data(), output.data(), counts, type);
        EXPECT_TRUE(output == slice(expected, begin, bytes)) << total;
        // In place.
        world.everyone().reduce_scatter(input.data(), input.data() + begin, counts, type);
        EXPECT_TRUE(slice(input, begin, bytes) == output) << total;

        Bytes gathered(expected.size());
        world.everyone().all_gather(output.data(), gathered.data(), counts, type);
        EXPECT_TRUE(gathered == expected) << total;
        Bytes in_place(expected.size());
        std::copy(output.begin(), output.end(), in_place.begin() + begin);
        world.everyone().start_all_gather(in_place.data() + begin, in_place.data(), counts, type).wait();
        EXPECT_TRUE(in_place == expected) << total;

        Bytes all = inputs[rank];
        world.everyone().all_reduce(all.data(), total, type);
        EXPECT_TRUE(all == gathered) << total;
      });
    }
  }
}

TEST_P(Collectives, broadcast_gives_the_data_of_every_root) {
  const int64_t size = GetParam();
  for (const auto [type, count] : all_cases()) {
    const auto inputs = make_inputs(size, count, type, 2);
    run_ranks_as_threads(size, [&](World& world) {
      for (int64_t root = 0; root < size; ++root) {
        Bytes data = inputs[world.rank()];
        world.everyone().broadcast(data.data(), count, type, root);
        EXPECT_TRUE(data == inputs[root]) << count;
      }
      world.everyone().barrier();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, Collectives, testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace copus
