#include "copus/comm/testing/rank_threads.h"

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "copus/comm/rank_failure.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

namespace {

// The exception with which a job of threads ends: the first one that is not caused by another rank's failure.
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

// Tells the other ranks why this rank ends. This must come before waiting for this rank's own threads, which may be
// waiting for the other ranks.
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

}  // namespace

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
