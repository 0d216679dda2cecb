#include "copus/comm/testing/test_worlds.h"

#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "copus/comm/messages/tcp_world.h"
#include "copus/comm/testing/rank_threads.h"

namespace copus {

std::string name_of(WorldKind kind) { return kind == WorldKind::tcp ? "tcp" : "shared_memory"; }

void run_ranks(WorldKind kind, int64_t size, const std::function<void(World&)>& body, double wait_seconds) {
  if (kind == WorldKind::tcp) return run_ranks_over_tcp(size, body, wait_seconds);
  run_ranks_as_threads(size, body, wait_seconds);
}

void run_ranks_over_tcp(int64_t size, const std::function<void(World&)>& body, double wait_seconds,
                        const std::string& host) {
  std::vector<std::promise<std::string>> places(size);
  std::vector<std::shared_future<std::string>> found;
  for (auto& place : places) found.push_back(place.get_future().share());
  const TcpMeeting meeting{host, [&](int64_t rank, const std::string& text) { places[rank].set_value(text); },
                           [&](int64_t rank) { return found[rank].get(); }};
  std::mutex mutex;
  std::exception_ptr error;
  std::exception_ptr echo;
  const auto run_rank = [&](int64_t rank) {
    const TcpRank self{.rank = rank, .size = size, .wait_seconds = wait_seconds};
    try {
      const auto world = join_tcp(self, meeting);
      body(*world);
    } catch (const RankFailure&) {
      const std::scoped_lock lock(mutex);
      if (!echo) echo = std::current_exception();
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  if (echo) std::rethrow_exception(echo);
}

}  // namespace copus
