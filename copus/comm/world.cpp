#include "copus/comm/world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "copus/base/error.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/real_clock.h"
#include "copus/comm/shared_health.h"
#include "copus/comm/shared_memory_world.h"
#include "copus/comm/solo_transport.h"

namespace copus {

namespace {

// The exception that a job of threads ends with: the first that is not the echo of another rank's failure.
class FirstError {
 public:
  void keep(std::exception_ptr error, bool echo) {
    const std::scoped_lock lock(mutex_);
    std::exception_ptr& kept = echo ? echo_ : error_;
    if (!kept) kept = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
    if (echo_) std::rethrow_exception(echo_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_, echo_;
};

// Tells the others why this rank ends before it waits for its own threads, which may be waiting for the others.
void run_rank(World& world, const std::function<void(World&)>& body, FirstError& first) {
  const auto report = [&](const std::string& cause) {
    first.keep(std::current_exception(), false);
    world.health().report({world.rank(), "", cause});
  };
  try {
    body(world);
  } catch (const RankFailure&) {
    first.keep(std::current_exception(), true);
  } catch (const std::exception& error) {
    report(error.what());
  } catch (...) {
    report("an unknown exception");
  }
}

// Without a segment: a lone rank shares nothing, and limits on files and address space are none of its business.
class SoloWorld : public World {
 public:
  SoloWorld()
      : region_((static_cast<size_t>(health_bytes(1)) + sizeof(Line) - 1) / sizeof(Line)),
        health_(region_.front().bytes.data(), 0, 1),
        clock_(std::chrono::steady_clock::now()),
        group_({0}, 0, std::make_unique<SoloTransport>()) {}

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  Health& health() override { return health_; }
  RankClock& clock() override { return clock_; }

  Communicator& group(const std::vector<int64_t>& ranks) override {
    COPUS_CHECK(ranks == std::vector<int64_t>{0}, "a group beyond the only rank");
    return group_;
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  std::vector<Line> region_;
  SharedHealth health_;
  RealClock clock_;
  QueuedCommunicator group_;
};

}  // namespace

Communicator& World::everyone() {
  std::vector<int64_t> ranks(size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return group(ranks);
}

int64_t World::place_in(const std::vector<int64_t>& ranks) const {
  std::vector<int64_t> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  COPUS_CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "a group with a rank twice");
  COPUS_CHECK(!sorted.empty() && sorted.front() >= 0 && sorted.back() < size(), "a group with a rank beyond ", size());
  const int64_t place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  COPUS_CHECK(place < std::ssize(ranks), "rank ", rank(), " asks for a group without itself");
  return place;
}

std::unique_ptr<World> single_rank_world() { return std::make_unique<SoloWorld>(); }

void run_ranks_as_threads(int64_t size, const std::function<void(World&)>& body, double wait_seconds) {
  const auto segment = std::make_shared<SharedSegment>(SharedSegment::create(size));
  FirstError first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto world = join_shared_memory(segment, rank, size, wait_seconds, false);
      run_rank(*world, body, first);
    });
  }
  for (std::thread& thread : threads) thread.join();
  first.rethrow();
}

}  // namespace copus
