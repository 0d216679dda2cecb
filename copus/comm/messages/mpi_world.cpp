#include "copus/comm/messages/mpi_world.h"

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "copus/base/error.h"
#include "copus/base/mix_bits.h"
#include "copus/comm/messages/mpi_health.h"
#include "copus/comm/messages/mpi_transport.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/real_clock.h"

namespace copus {

namespace {

// With heartbeats over, it is the one wait in which a rank that is stopped is not noticed at once; and a crowded
// machine must not make a failure of a job that is done.
constexpr double finalize_seconds = 10;

// Ends the process if it lives longer than expected: for calls of MPI that wait for other ranks and cannot be told to
// give up.
class TimeLimit {
 public:
  TimeLimit(double seconds, std::string message)
      : thread_([this, seconds, text = std::move(message)] {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return done_; })) return;
          std::fprintf(stderr, "copus: error: %s\n", text.c_str());
          ::_exit(1);
        }) {}
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
  ~TimeLimit() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

// The first tag of each group, from its members alone: ranks may ask for their groups in different orders.
class Tags {
 public:
  Tags() {
    int* largest = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &found);
    COPUS_CHECK(found != 0);
    num_groups_ = static_cast<uint64_t>(*largest) / MpiTransport::num_tags;
  }

  // Groups with the same tags would take each other's messages, but only where both contain the two ranks; and then
  // each of the two sees both groups here.
  int first_tag(const std::vector<int64_t>& ranks) {
    uint64_t hash = 0;
    for (const int64_t rank : ranks) hash = extend_hash(hash, static_cast<uint64_t>(rank));
    const int tag = static_cast<int>(hash % num_groups_) * MpiTransport::num_tags;
    COPUS_CHECK(used_.insert(tag).second, "two groups of ranks have the same tag ", tag);
    return tag;
  }

 private:
  uint64_t num_groups_;
  std::set<int> used_;
};

void start_mpi(double wait_seconds) {
  const TimeLimit limit(wait_seconds, concat("not all ranks have come within ", wait_seconds, " s"));
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (provided == MPI_THREAD_MULTIPLE) return;
  MPI_Finalize();
  throw UserError(
      "this MPI library does not let several threads communicate (MPI_THREAD_MULTIPLE); use one that does, such as "
      "Debian's Open MPI");
}

int64_t world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int64_t world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

class MpiWorld final : public World {
 public:
  explicit MpiWorld(double wait_seconds)
      : wait_seconds_(wait_seconds),
        rank_(world_rank()),
        size_(world_size()),
        health_(MPI_COMM_WORLD),
        clock_(std::chrono::steady_clock::now()) {}
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  ~MpiWorld() override { end(); }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

  Communicator& group(const std::vector<int64_t>& ranks) override {
    std::unique_ptr<Communicator>& communicator = groups_[ranks];
    if (!communicator) {
      const int64_t member = place_in(ranks);
      communicator = std::make_unique<QueuedCommunicator>(
          ranks, member, std::make_unique<MpiTransport>(ranks, member, tags_.first_tag(ranks), health_, wait_seconds_));
    }
    return *communicator;
  }

  Health& health() override { return health_; }
  RankClock& clock() override { return clock_; }

 private:
  // A rank that ends without MPI_Finalize, as it should when it fails, makes mpirun end the others. After an error of
  // its own it does no more than that, since the message is still to be printed; without mpirun the others miss its
  // heartbeat.
  void end() {
    const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
    if (!unwinding && !health_.failure()) {
      try {
        everyone().barrier();
        health_.stop();
        const TimeLimit limit(finalize_seconds, "a rank did not take part in the end of the job");
        MPI_Finalize();
        return;
      } catch (const RankFailure&) {
        health_.end_job();  // whoever reported it has said so
        return;
      }
    }
    health_.end_job();
  }

  const double wait_seconds_;
  const int64_t rank_;
  const int64_t size_;
  const int exceptions_at_start_ = std::uncaught_exceptions();
  Tags tags_;
  MpiHealth health_;  // its start is a barrier, from which the clocks of all ranks count
  RealClock clock_;
  std::map<std::vector<int64_t>, std::unique_ptr<Communicator>> groups_;
};

}  // namespace

bool has_mpi() { return true; }

std::unique_ptr<World> join_mpi(double wait_seconds) {
  start_mpi(wait_seconds);
  return std::make_unique<MpiWorld>(wait_seconds);
}

}  // namespace copus
