#include "copus/comm/messages/mpi_world.h"

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <exception>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/comm/messages/mpi_health.h"
#include "copus/comm/messages/mpi_transport.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/solo_communicator.h"

namespace copus {

namespace {

// Ranks send no heartbeats while they wait for one another in MPI_Finalize, so a stopped rank is noticed only after
// this time. The time is long so that a finished job does not fail on an overloaded machine.
constexpr double finalize_seconds = 10;

// Ends the process if the returned object lives longer than `seconds`. It is used around MPI calls, which wait for
// other ranks and cannot be interrupted.
std::jthread limit_time(double seconds, std::string message) {
  return std::jthread([seconds, text = std::move(message)](const std::stop_token& is_over) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any never;
    never.wait_for(lock, is_over, std::chrono::duration<double>(seconds), [] { return false; });
    if (is_over.stop_requested()) return;
    std::fprintf(stderr, "copus: error: %s\n", text.c_str());
    ::_exit(1);
  });
}

// Gives each group its first tag. The tag is derived only from the members, because ranks may make their groups in
// different orders.
class Tags {
 public:
  Tags() {
    int* largest = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &found);
    COPUS_CHECK(found != 0);
    num_groups_ = static_cast<uint64_t>(*largest) / MpiTransport::num_tags;
  }

  // Checks that no two groups of this rank have the same tag, because they would receive each other's messages. Each
  // rank can check this alone: messages can be confused only between ranks that are in both groups, and such a rank
  // checks both here.
  int first_tag(const std::vector<int64_t>& ranks) {
    uint64_t hash = 0;
    for (const int64_t rank : ranks) hash = extend_hash(hash, rank);
    const int tag = static_cast<int>(hash % num_groups_) * MpiTransport::num_tags;
    COPUS_CHECK(used_.insert(tag).second, "two groups of ranks have the same tag ", tag);
    return tag;
  }

 private:
  uint64_t num_groups_;
  std::set<int> used_;
};

void start_mpi(double wait_seconds) {
  // MPI libraries write to sockets of dead ranks. The resulting SIGPIPE must not kill this rank before it has reported
  // the dead rank.
  std::signal(SIGPIPE, SIG_IGN);
  const std::jthread limit = limit_time(wait_seconds, concat("not all ranks have come within ", wait_seconds, " s"));
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (provided == MPI_THREAD_MULTIPLE) return;
  MPI_Finalize();
  throw UserError(
      "this MPI library does not let several threads communicate (MPI_THREAD_MULTIPLE); use one that does, such as "
      "Debian's Open MPI");
}

// The connection of a rank to the others.
struct MpiMembership {
  explicit MpiMembership(double its_wait_seconds) : wait_seconds(its_wait_seconds) {}

  const double wait_seconds;
  Tags tags{};
  MpiHealth health{MPI_COMM_WORLD, wait_seconds};  // begins with a barrier, the zero of all ranks' clocks
  RealClock clock{std::chrono::steady_clock::now()};
};

class MpiWorld final : public World {
 public:
  MpiWorld(int64_t rank, int64_t size, const std::shared_ptr<MpiMembership>& membership)
      : World(rank, size, membership), membership_(*membership) {}

  // A failed rank ends without MPI_Finalize. mpirun then ends the other ranks; without mpirun they notice that this
  // rank's heartbeats stop. A rank with an error of its own returns from here, because its error has yet to be printed.
  ~MpiWorld() override {
    MpiHealth& health = membership_.health;
    try {
      if (std::uncaught_exceptions() == exceptions_at_start_ && !health.failure()) {
        everyone().barrier();
        health.stop();
        const std::jthread limit = limit_time(finalize_seconds, "a rank did not take part in the end of the job");
        MPI_Finalize();
        return;
      }
    } catch (const RankFailure&) {  // NOLINT(bugprone-empty-catch)
      // The rank that reported the failure has told the user.
    }
    health.end_job();
  }

  Health& health() override { return membership_.health; }
  RankClock& clock() override { return membership_.clock; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    if (ranks.size() == 1) return std::make_unique<SoloCommunicator>(rank());
    return std::make_unique<QueuedCommunicator>(
        ranks, member,
        std::make_unique<MpiTransport>(ranks, member, membership_.tags.first_tag(ranks), membership_.health,
                                       membership_.wait_seconds));
  }

  MpiMembership& membership_;
  const int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace

bool has_mpi() { return true; }

std::unique_ptr<World> join_mpi(double wait_seconds) {
  start_mpi(wait_seconds);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return std::make_unique<MpiWorld>(rank, size, std::make_shared<MpiMembership>(wait_seconds));
}

}  // namespace copus
