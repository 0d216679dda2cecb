// Ranks for mpi_test.py, started by mpirun: mpi_test_program check | exchange | throw | stall | late.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/comm/messages/mpi_world.h"

namespace copus {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DataType types[] = {DataType::byte, DataType::int64, DataType::float32, DataType::float64,
                              DataType::bfloat16};

// The bits of element `index` in the input of `rank`: any bits for bytes and integers. Floats are between -8 and 8 and
// have so few trailing zeros that the order of a sum matters.
uint64_t element_bits(DataType type, int64_t rank, int64_t index, uint64_t salt) {
  const uint64_t random = extend_hash(extend_hash(extend_hash(salt, rank), index), 1);
  const double number = (static_cast<double>(random >> 11) / static_cast<double>(uint64_t{1} << 53) - 0.5) * 16;
  switch (type) {
    case DataType::byte:
      return random & 0x1f;
    case DataType::int64:
      return random;
    case DataType::float32:
      return std::bit_cast<uint32_t>(static_cast<float>(number));
    case DataType::float64:
      return std::bit_cast<uint64_t>(number);
    case DataType::bfloat16:
      return std::bit_cast<uint32_t>(static_cast<float>(number)) >> 16;
  }
  return 0;
}

template <class Value>
uint64_t reduced(const std::vector<Value>& values, Reduction reduction) {
  Value result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    result = reduction == Reduction::sum ? static_cast<Value>(result + values[i]) : std::max(result, values[i]);
  }
  if constexpr (sizeof(Value) == 4) return std::bit_cast<uint32_t>(result);
  if constexpr (sizeof(Value) == 1) return static_cast<uint8_t>(result);
  if constexpr (sizeof(Value) == 8) return std::bit_cast<uint64_t>(result);
}

template <class Value, class Bits>
std::vector<Value> as_values(const std::vector<uint64_t>& all) {
  std::vector<Value> values;
  for (const uint64_t bits : all) values.push_back(std::bit_cast<Value>(static_cast<Bits>(bits)));
  return values;
}

// The reduction over the members in order, one scalar at a time.
uint64_t reduce_bits(DataType type, Reduction reduction, const std::vector<uint64_t>& all) {
  switch (type) {
    case DataType::byte:
      return reduced(as_values<uint8_t, uint8_t>(all), reduction);
    case DataType::int64:
      return reduction == Reduction::sum ? std::accumulate(all.begin(), all.end(), uint64_t{0})
                                         : reduced(as_values<int64_t, uint64_t>(all), reduction);
    case DataType::float32:
      return reduced(as_values<float, uint32_t>(all), reduction);
    case DataType::float64:
      return reduced(as_values<double, uint64_t>(all), reduction);
    case DataType::bfloat16: {
      std::vector<float> wide;
      for (const uint64_t bits : all) wide.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits << 16)));
      const uint64_t sum = reduced(wide, reduction);
      const uint64_t half = 0x8000;
      const uint64_t rest = sum & 0xffff;
      const uint64_t kept = sum >> 16;
      return rest > half || (rest == half && kept % 2 == 1) ? kept + 1 : kept;
    }
  }
  return 0;
}

Bytes to_bytes(DataType type, int64_t count, const std::function<uint64_t(int64_t)>& bits_of) {
  const auto width = size_of(type);
  Bytes bytes(count * width);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = bits_of(i);
    std::memcpy(bytes.data() + i * width, &bits, width);
  }
  return bytes;
}

// Checks the operations of one group. Every member calls it with the same arguments.
class GroupCheck {
 public:
  explicit GroupCheck(Communicator& group) : group_(group) {}

  void all_operations(DataType type, int64_t count, uint64_t salt) {
    std::vector<int64_t> counts;  // uneven, one of them zero
    int64_t left = count;
    for (int64_t i = 0; i + 1 < group_.size(); ++i) {
      counts.push_back(i == 1 ? 0 : left / 3);
      left -= counts.back();
    }
    counts.push_back(left);
    for (const Reduction reduction : {Reduction::sum, Reduction::maximum}) {
      all_reduce(type, reduction, count, salt);
      reduce_scatter(type, reduction, counts, salt);
    }
    all_gather(type, counts, salt);
    for (int64_t root = 0; root < group_.size(); ++root) broadcast(type, count, root, salt);
  }

  // Several operations under way at the same time, in separate buffers, waited for in the opposite order.
  void overlapping(uint64_t salt) {
    const DataType type = DataType::float32;
    std::vector<Bytes> buffers;
    std::vector<Work> started;
    for (const int64_t count : {300000, 3, 40000, 1}) buffers.push_back(contribution(type, count, salt));
    for (Bytes& buffer : buffers) {
      started.push_back(group_.start_all_reduce(buffer.data(), count_of(buffer, type), type, Reduction::sum));
    }
    for (size_t i = buffers.size(); i-- > 0;) {
      started[i].wait();
      expect(buffers[i], result(type, Reduction::sum, 0, count_of(buffers[i], type), salt), "overlapping all_reduce");
    }
  }

  // Every member sends several messages of different sizes to every other one, and receives only afterwards.
  void messages(uint64_t salt) {
    const DataType type = DataType::bfloat16;
    const std::vector<int64_t> sizes{1, 2000, 700000, 0, 5, 100000};
    std::vector<Bytes> sent;
    std::vector<Work> started;
    sent.reserve(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      sent.push_back(contribution(type, sizes[i], salt + i));
      for (int64_t to = 0; to < group_.size(); ++to) {
        if (to != group_.rank()) started.push_back(group_.start_send(sent[i].data(), sizes[i], type, to));
      }
    }
    for (int64_t from = 0; from < group_.size(); ++from) {
      if (from == group_.rank()) continue;
      for (size_t i = 0; i < sizes.size(); ++i) {
        Bytes received(sizes[i] * size_of(type));
        group_.receive(received.data(), sizes[i], type, from);
        expect(received, contribution_of(from, type, sizes[i], salt + i), "message");
      }
    }
    for (const Work& work : started) work.wait();
  }

  int64_t num_checks() const { return num_checks_; }

 private:
  static int64_t count_of(const Bytes& bytes, DataType type) {
    return static_cast<int64_t>(bytes.size()) / size_of(type);
  }

  Bytes contribution_of(int64_t member, DataType type, int64_t count, uint64_t salt) const {
    const int64_t world_rank = group_.ranks()[member];
    return to_bytes(type, count, [&](int64_t i) { return element_bits(type, world_rank, i, salt); });
  }
  Bytes contribution(DataType type, int64_t count, uint64_t salt) const {
    return contribution_of(group_.rank(), type, count, salt);
  }

  Bytes result(DataType type, Reduction reduction, int64_t begin, int64_t count, uint64_t salt) const {
    std::vector<uint64_t> all;
    return to_bytes(type, count, [&](int64_t i) {
      all.clear();
      for (const int64_t rank : group_.ranks()) all.push_back(element_bits(type, rank, begin + i, salt));
      return reduce_bits(type, reduction, all);
    });
  }

  void all_reduce(DataType type, Reduction reduction, int64_t count, uint64_t salt) {
    Bytes data = contribution(type, count, salt);
    group_.all_reduce(data.data(), count, type, reduction);
    expect(data, result(type, reduction, 0, count, salt), "all_reduce");
  }

  void reduce_scatter(DataType type, Reduction reduction, const std::vector<int64_t>& counts, uint64_t salt) {
    const auto mine = counts.begin() + group_.rank();
    const int64_t begin = std::accumulate(counts.begin(), mine, int64_t{0});
    const Bytes expected = result(type, reduction, begin, *mine, salt);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    Bytes input = contribution(type, total, salt);
    Bytes output(expected.size());
    group_.start_reduce_scatter(input.data(), output.data(), counts, type, reduction).wait();
    expect(output, expected, "reduce_scatter");
    input = contribution(type, total, salt);
    std::byte* own_part = input.data() + begin * size_of(type);
    group_.start_reduce_scatter(input.data(), own_part, counts, type, reduction).wait();
    expect(Bytes(own_part, own_part + expected.size()), expected, "reduce_scatter in place");
  }

  void all_gather(DataType type, const std::vector<int64_t>& counts, uint64_t salt) {
    Bytes expected;
    for (int64_t member = 0; member < group_.size(); ++member) {
      const Bytes part = contribution_of(member, type, counts[member], salt);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    const auto mine = counts.begin() + group_.rank();
    const Bytes input = contribution(type, *mine, salt);
    Bytes output(expected.size());
    group_.all_gather(input.data(), output.data(), counts, type);
    expect(output, expected, "all_gather");
    std::fill(output.begin(), output.end(), std::byte{0});
    std::byte* own_part = output.data() + std::accumulate(counts.begin(), mine, int64_t{0}) * size_of(type);
    std::copy(input.begin(), input.end(), own_part);
    group_.all_gather(own_part, output.data(), counts, type);
    expect(output, expected, "all_gather in place");
  }

  void broadcast(DataType type, int64_t count, int64_t root, uint64_t salt) {
    Bytes data = contribution(type, count, salt);
    group_.broadcast(data.data(), count, type, root);
    expect(data, contribution_of(root, type, count, salt), "broadcast");
  }

  void expect(const Bytes& found, const Bytes& expected, const char* what) {
    ++num_checks_;
    COPUS_CHECK(found == expected, what, " in a group of ", group_.size());
  }

  Communicator& group_;
  int64_t num_checks_ = 0;
};

// Messages in two groups do not mix: each rank sends to its neighbour in the first group and then in the second one,
// and receives in the opposite order.
void check_groups_apart(Communicator& first, Communicator& second) {
  const auto neighbour = [](const Communicator& group, int64_t rank) {
    return std::find(group.ranks().begin(), group.ranks().end(), rank) - group.ranks().begin();
  };
  const int64_t rank = first.ranks()[first.rank()];
  const int64_t next = (rank + 1) % first.size();
  const int64_t previous = (rank + first.size() - 1) % first.size();
  const int64_t sent[] = {1, 2};
  const Work work[] = {first.start_send(&sent[0], 1, DataType::int64, neighbour(first, next)),
                       second.start_send(&sent[1], 1, DataType::int64, neighbour(second, next))};
  int64_t received[] = {0, 0};
  second.receive(&received[1], 1, DataType::int64, neighbour(second, previous));
  first.receive(&received[0], 1, DataType::int64, neighbour(first, previous));
  for (const Work& each : work) each.wait();
  COPUS_CHECK(received[0] == 1 && received[1] == 2, "groups mix their messages");
}

void check(World& world) {
  std::vector<int64_t> everyone(world.size());
  std::iota(everyone.begin(), everyone.end(), int64_t{0});
  const std::vector<int64_t> backwards(everyone.rbegin(), everyone.rend());
  std::vector<int64_t> alike;  // even ranks, odd ranks
  for (const int64_t rank : everyone) {
    if (rank % 2 == world.rank() % 2) alike.push_back(rank);
  }
  // Ranks ask for their groups in different orders.
  std::vector<std::vector<int64_t>> groups{everyone, backwards, alike, {world.rank()}};
  std::vector<std::vector<int64_t>> asked = groups;
  std::rotate(asked.begin(), asked.begin() + world.rank() % 4, asked.end());
  for (const std::vector<int64_t>& ranks : asked) world.group(ranks);
  int64_t num_checks = 0;
  uint64_t salt = 0;
  for (const std::vector<int64_t>& ranks : groups) {
    GroupCheck group(world.group(ranks));
    for (const DataType type : types) {
      for (const int64_t count : {1, 7, 3000}) group.all_operations(type, count, ++salt);
    }
    // More than one window of MpiTransport, in more than one group.
    if (ranks.size() > 2) group.all_operations(DataType::int64, 300001, ++salt);
    group.overlapping(++salt);
    group.messages(++salt);
    world.group(ranks).barrier();
    num_checks += group.num_checks();
  }
  check_groups_apart(world.group(everyone), world.group(backwards));
  std::ostringstream line;
  line << "rank " << world.rank() << " of " << world.size() << ": " << num_checks << " checks passed\n";
  std::cout << line.str() << std::flush;
}

// Steps that only a failure ends.
void exchange(World& world, const std::function<void(int64_t step)>& misbehave) {
  std::ostringstream line;
  line << "rank " << world.rank() << " pid " << ::getpid() << '\n';
  std::cout << line.str() << std::flush;
  std::vector<float> data(100000, 0.0F);
  for (int64_t step = 1;; ++step) {
    world.health().set_place(concat("step ", step));
    world.everyone().all_reduce(data.data(), static_cast<int64_t>(data.size()), DataType::float32);
    misbehave(step);
  }
}

void sleep_seconds(int seconds) { std::this_thread::sleep_for(std::chrono::seconds(seconds)); }

void run(const std::string& what) {
  const double wait_seconds = what == "late" ? 2 : default_wait_seconds;
  const auto world = join_mpi(wait_seconds);
  const auto nothing = [](int64_t /*step*/) {};
  const auto rank_1_at_step_3 = [&](const std::function<void()>& action) {
    return [&world, action](int64_t step) {
      if (world->rank() == 1 && step == 3) action();
    };
  };
  if (what == "check") return check(*world);
  if (what == "exchange") return exchange(*world, nothing);
  if (what == "throw") {
    return exchange(*world, rank_1_at_step_3([] { throw UserError("rank 1 has had enough"); }));
  }
  if (what == "late") return exchange(*world, rank_1_at_step_3([] { sleep_seconds(60); }));
  if (what == "stall") {
    world->health().set_expected_step_seconds(0.1);
    return exchange(*world, rank_1_at_step_3([] { sleep_seconds(60); }));
  }
  throw UserError("unknown test: " + what);
}

}  // namespace
}  // namespace copus

int main(int argc, char** argv) {
  try {
    copus::run(argc > 1 ? argv[1] : "");
    return 0;
  } catch (const copus::RankFailure& failure) {
    if (!failure.report().announced) std::cerr << "copus: error: " << failure.what() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "copus: error: " << error.what() << '\n';
    return 1;
  }
}
