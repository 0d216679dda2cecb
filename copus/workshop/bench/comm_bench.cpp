#include "copus/workshop/bench/comm_bench.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/comm/shared_memory/shared_memory_world.h"
#include "copus/workshop/bench/mpi_collectives.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

constexpr double seconds_per_turn = 0.02;
constexpr int64_t most_calls_per_turn = 2000;

constexpr OperationKind kinds[] = {OperationKind::all_reduce, OperationKind::reduce_scatter, OperationKind::all_gather};

// Returns the sizes to measure, in bytes: powers of four, and the largest size. A vector that the operation splits into
// parts has at least one element per rank, so that all ranks have to wait for one another.
std::vector<int64_t> vector_sizes(OperationKind kind, int64_t ranks, int64_t largest) {
  const int64_t elements = kind == OperationKind::all_reduce ? 1 : ranks;
  const int64_t least = elements * static_cast<int64_t>(sizeof(float));
  std::vector<int64_t> sizes;
  for (int64_t bytes = 4; bytes < largest; bytes *= 4) {
    if (bytes >= least) sizes.push_back(bytes);
  }
  if (largest >= least) sizes.push_back(largest);
  return sizes;
}

// One rank's part in both worlds.
class CommBench {
 public:
  CommBench(World& world, MpiCollectives* mpi, int64_t largest)
      : world_(world), mpi_(mpi), input_(largest / sizeof(float)), output_(largest / sizeof(float)) {}

  nlohmann::json measure(OperationKind kind, int64_t bytes, int64_t rounds) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    std::vector<int64_t> counts(world_.size(), count / world_.size());
    for (int64_t i = 0; i < count % world_.size(); ++i) ++counts[i];

    const Operation operation = operation_of(kind, count, counts);
    const auto ours = [&] { world_.everyone().run(operation); };
    const auto mpis = [&] { mpi_->run(operation); };
    check_result(kind, count, counts, ours);
    if (mpi_) check_result(kind, count, counts, mpis);
    // Zeros, so that sums of sums do not overflow.
    std::fill(input_.begin(), input_.end(), 0.0F);
    const int64_t our_calls = calls_per_turn(ours);
    const int64_t mpi_calls = mpi_ ? calls_per_turn(mpis) : 0;
    std::vector<double> our_seconds;
    std::vector<double> mpi_seconds;
    for (int64_t round = 0; round < rounds; ++round) {
      our_seconds.push_back(time_turn(ours, our_calls));
      if (mpi_) mpi_seconds.push_back(time_turn(mpis, mpi_calls));
    }

    nlohmann::json row{{"operation", to_string(kind)}, {"bytes", bytes}, {"ranks", world_.size()}};
    set_quartiles(row, "seconds", quartiles(our_seconds));
    for (const char* const field : {"mpi_seconds", "mpi_seconds_quartiles", "ratio"}) row[field] = nullptr;
    if (mpi_) {
      const Quartiles timing = quartiles(mpi_seconds);
      set_quartiles(row, "mpi_seconds", timing);
      row["ratio"] = timing.median / row["seconds"].get<double>();
    }
    return row;
  }

 private:
  Operation operation_of(OperationKind kind, int64_t count, const std::vector<int64_t>& counts) {
    constexpr DataType type = DataType::float32;
    if (kind == OperationKind::all_reduce) return Operation::all_reduce(input_.data(), count, type, Reduction::sum);
    if (kind == OperationKind::all_gather) return Operation::all_gather(input_.data(), output_.data(), counts, type);
    return Operation::reduce_scatter(input_.data(), output_.data(), counts, type, Reduction::sum);
  }

  // Small whole numbers, whose sums are exact in any order.
  static float value(int64_t rank, int64_t index) { return static_cast<float>((rank + 1) * (index % 7 + 1)); }

  void check_result(OperationKind kind, int64_t count, const std::vector<int64_t>& counts,
                    const std::function<void()>& call) {
    const int64_t rank = world_.rank();
    for (int64_t i = 0; i < count; ++i) input_[i] = value(rank, i);
    std::fill_n(output_.begin(), count, 0.0F);
    call();
    const int64_t rank_sum = world_.size() * (world_.size() + 1) / 2;
    int64_t before = 0;
    for (int64_t member = 0; member < world_.size(); ++member) {
      const int64_t length = counts[member];
      for (int64_t i = 0; i < length; ++i) {
        const int64_t index = before + i;
        const float sum = static_cast<float>(rank_sum * (index % 7 + 1));
        const bool right = kind == OperationKind::all_reduce   ? input_[index] == sum
                           : kind == OperationKind::all_gather ? output_[index] == value(member, i)
                           : member == rank                    ? output_[i] == sum
                                                               : true;
        COPUS_CHECK(right, to_string(kind), " of ", count, " elements, element ", index);
      }
      before += length;
    }
  }

  int64_t calls_per_turn(const std::function<void()>& call) {
    const double seconds = std::min(time_turn(call, 1), time_turn(call, 3));
    return std::clamp(static_cast<int64_t>(seconds_per_turn / seconds), int64_t{1}, most_calls_per_turn);
  }

  // Seconds of one call on the slowest rank: the same number on every rank.
  double time_turn(const std::function<void()>& call, int64_t calls) {
    world_.everyone().barrier();
    if (mpi_) mpi_->barrier();
    call();  // lets the caches and the other ranks reach their steady state
    const double begin = monotonic_seconds();
    for (int64_t i = 0; i < calls; ++i) call();
    double seconds = (monotonic_seconds() - begin) / static_cast<double>(calls);
    world_.everyone().all_reduce(&seconds, 1, DataType::float64, Reduction::maximum);
    return seconds;
  }

  World& world_;
  MpiCollectives* mpi_;
  std::vector<float> input_;
  std::vector<float> output_;
};

// Rank 0 makes the shared segment, and the others open it through /proc.
std::unique_ptr<World> join_beside_mpi(MpiCollectives& mpi) {
  std::shared_ptr<SharedSegment> segment;
  int64_t process = ::getpid();
  int64_t descriptor = -1;
  if (mpi.rank() == 0) {
    segment = std::make_shared<SharedSegment>(SharedSegment::create(mpi.size()));
    descriptor = segment->descriptor();
  }
  mpi.broadcast(process, 0);
  mpi.broadcast(descriptor, 0);
  if (mpi.rank() != 0) {
    segment = std::make_shared<SharedSegment>(SharedSegment::open(process, static_cast<int>(descriptor), mpi.size()));
  }
  mpi.barrier();
  return join_shared_memory(segment, mpi.rank(), mpi.size(), default_wait_seconds, true);
}

}  // namespace

nlohmann::json measure_collectives(const nlohmann::json& request, const RankEnvironment& environment) {
  const auto largest = request.at("largest").get<int64_t>(), rounds = request.at("rounds").get<int64_t>();
  const std::unique_ptr<MpiCollectives> mpi = MpiCollectives::join();
  const std::unique_ptr<World> world =
      mpi ? join_beside_mpi(*mpi) : join_launched_ranks(environment, default_wait_seconds);
  CommBench bench(*world, mpi.get(), largest);
  nlohmann::json rows = nlohmann::json::array();
  for (const OperationKind kind : kinds) {
    for (const int64_t bytes : vector_sizes(kind, world->size(), largest)) {
      rows.push_back(bench.measure(kind, bytes, rounds));
    }
  }
  return rows;
}

}  // namespace copus
