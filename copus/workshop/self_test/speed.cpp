// Measures how fast groups communicate. As in training, all groups of a family communicate at once.
#include <algorithm>
#include <functional>
#include <iterator>
#include <span>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/model/kernels/kernels.h"
#include "copus/workshop/self_test/parts.h"

namespace copus {

namespace {

constexpr int64_t sizes_on_host[] = {8, 64 << 10, 4 << 20};
constexpr int64_t sizes_on_gpu[] = {8, 64 << 10, 4 << 20, 256 << 20};
constexpr int64_t rounds = 5;                     // the median of these is reported
constexpr double most_seconds_of_call = 0.05;     // a longer call is measured in one round only
constexpr double most_seconds_per_round = 0.005;  // each round makes as many calls as this time allows
constexpr int64_t most_calls = 100;
constexpr double slow_share = 0.5;  // groups with less than this fraction of the median bandwidth are slow

// The factor from bytes per second of a vector to bytes per second of a link (nccl-tests, PERFORMANCE.md).
double bus_factor(const std::string& operation, int64_t members) {
  const auto n = static_cast<double>(members);
  if (operation == "all-reduce") return 2 * (n - 1) / n;
  if (operation == "all-gather") return (n - 1) / n;
  return 1;
}

class SpeedBench {
 public:
  SpeedBench(at::Device device, World& world) : device_(device), world_(world) {
    largest_ = device.is_cpu() ? std::end(sizes_on_host)[-1] : std::end(sizes_on_gpu)[-1];
    data_ = kernels::zeros({largest_}, at::kByte, device);
    received_ = kernels::zeros({largest_}, at::kByte, device);
  }

  std::span<const int64_t> sizes() const {
    return device_.is_cpu() ? std::span<const int64_t>(sizes_on_host) : std::span<const int64_t>(sizes_on_gpu);
  }

  GroupSpeed measure(const GroupFamily& family, const std::string& operation, int64_t bytes) {
    GroupSpeed speed{.family = family, .operation = operation, .bytes = bytes};
    const std::function<void()> call = call_of(family, operation, bytes);
    const double once = slowest(time(call, 1));
    const auto calls =
        static_cast<int64_t>(std::clamp(most_seconds_per_round / once, 1.0, static_cast<double>(most_calls)));
    std::vector<double> mine;
    for (int64_t round = 0; round < (once < most_seconds_of_call ? rounds : 1); ++round)
      mine.push_back(time(call, calls));
    const double median = quantile(mine, 0.5);
    std::vector<double> of_ranks(static_cast<size_t>(world_.size()));
    const std::vector<int64_t> counts(of_ranks.size(), 1);
    world_.everyone().all_gather(&median, of_ranks.data(), counts, DataType::float64);
    for (const std::vector<int64_t>& group : family.groups) {
      double seconds = 0;
      for (const int64_t rank : group) seconds = std::max(seconds, of_ranks[static_cast<size_t>(rank)]);
      speed.seconds.push_back(seconds);
    }
    summarize(speed);
    return speed;
  }

 private:
  // Returns a function that runs the operation in this rank's group; it does nothing if the rank is in no group.
  std::function<void()> call_of(const GroupFamily& family, const std::string& operation, int64_t bytes) {
    const std::vector<int64_t>* const ranks = family.group_of(world_.rank());
    if (ranks == nullptr) return [] {};
    Communicator& group = world_.group(*ranks);
    void* const data = data_.data_ptr();
    void* const received = received_.data_ptr();
    const int64_t count = bytes / size_of(DataType::float32), members = group.size();
    if (operation == "all-reduce") {
      return [=, &group] { group.all_reduce(data, count, DataType::float32); };
    }
    if (operation == "all-gather") {
      std::vector<int64_t> counts(static_cast<size_t>(members), count / members);
      counts.front() += count % members;
      return [=, &group] { group.all_gather(data, received, counts, DataType::float32); };
    }
    return [=, &group] {
      const Work send =
          group.start_send(data, count, DataType::float32, (group.rank() + 1) % members, {.with_next_receive = true});
      group.receive(received, count, DataType::float32, (group.rank() + members - 1) % members);
      send.wait();
    };
  }

  // Returns the seconds of one call on this rank, while all ranks make the same call.
  double time(const std::function<void()>& call, int64_t calls) {
    call();
    kernels::synchronize(device_);
    world_.everyone().barrier();
    const double begin = monotonic_seconds();
    for (int64_t i = 0; i < calls; ++i) call();
    kernels::synchronize(device_);
    return (monotonic_seconds() - begin) / static_cast<double>(calls);
  }

  double slowest(double seconds) {
    world_.everyone().all_reduce(&seconds, 1, DataType::float64, Reduction::maximum);
    return std::max(seconds, 1e-9);
  }

  static void summarize(GroupSpeed& speed) {
    speed.median_seconds = quantile(speed.seconds, 0.5);
    speed.algorithm_bandwidth = static_cast<double>(speed.bytes) / speed.median_seconds;
    speed.bus_bandwidth = speed.algorithm_bandwidth * bus_factor(speed.operation, speed.family.members());
    for (size_t i = 0; i < speed.seconds.size(); ++i) {
      if (speed.median_seconds < slow_share * speed.seconds[i]) speed.slow.push_back(speed.family.groups[i]);
    }
  }

  at::Device device_;
  World& world_;
  int64_t largest_;
  at::Tensor data_, received_;
};

}  // namespace

std::vector<GroupSpeed> measure_groups(at::Device memory, TimeLimit& limit, World& world) {
  std::vector<GroupSpeed> speeds;
  SpeedBench bench(memory, world);
  for (const GroupFamily& family : group_families(world.size())) {
    world.health().set_place(concat("measuring groups of ", family.members()));
    world.require(family.uses());
    for (const char* const operation : {"all-reduce", "all-gather", "message"}) {
      for (const int64_t bytes : bench.sizes()) {
        if (limit.is_over()) return speeds;
        speeds.push_back(bench.measure(family, operation, bytes));
      }
    }
  }
  return speeds;
}

}  // namespace copus
