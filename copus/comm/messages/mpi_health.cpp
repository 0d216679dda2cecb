#include "copus/comm/messages/mpi_health.h"

#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "copus/comm/background_thread.h"
#include "copus/comm/health/fixed_text.h"

namespace copus {

namespace {

using std::chrono::milliseconds;

constexpr auto look_interval_over_mpi = milliseconds(25);
constexpr auto longest_telling_over_mpi = milliseconds(200);
// A rank that has not noticed a failure after this time is ended.
constexpr auto grace_over_mpi = milliseconds(700);
// How long ranks have to end by themselves before the rank that reported the failure to the user ends the job.
constexpr auto head_start = milliseconds(300);
// How long the rank that reports to the user has to end the job before another rank does it.
constexpr auto time_for_teller = milliseconds(2000);

int rank_in(MPI_Comm group) {
  int rank = 0;
  MPI_Comm_rank(group, &rank);
  return rank;
}

int size_of(MPI_Comm group) {
  int size = 0;
  MPI_Comm_size(group, &size);
  return size;
}

}  // namespace

// A text that is too long is truncated. Only a long failure cause makes it too long.
struct MpiHealth::Message {
  int64_t kind = 0;
  std::array<char, place_bytes + cause_bytes + 96> content{};
};

struct MpiHealth::Sent {
  Message message;
  MPI_Request request;
};

MpiHealth::MpiHealth(MPI_Comm parent, double wait_seconds)
    : HeartbeatHealth(rank_in(parent), size_of(parent), wait_seconds, Clock::now()),
      incoming_(std::make_unique<Message>()) {
  MPI_Comm_dup(parent, &comm_);
  MPI_Barrier(comm_);
  const Clock::time_point now = Clock::now();
  const RankTree& tree = member().tree();
  if (!tree.is_root()) member().connect(tree.parent(), now);
  for (const int64_t child : tree.children()) member().connect(child, now);
  watchdog_ = background_thread([this] { watch(); });
}

MpiHealth::~MpiHealth() { stop(); }

void MpiHealth::stop() {
  {
    const std::lock_guard lock(mutex());
    stopping_ = true;
    changed().notify_all();
  }
  if (watchdog_.joinable()) watchdog_.join();
}

void MpiHealth::end_job() {
  stop();
  bool tells_late = false;
  {
    const std::lock_guard lock(mutex());
    if (!told_here_ && !decided_here_) return;
    tells_late = !told_here_;
  }
  std::this_thread::sleep_for(tells_late ? time_for_teller : head_start);
  if (tells_late) announce(*failure());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// Once this rank's threads see a failure, they free their buffers. After that nothing may call MPI, because MPI would
// write messages under way into the freed buffers.
void MpiHealth::watch() {
  while (true) {
    listen();
    std::unique_lock lock(mutex());
    if (stopping_ || has_failed()) break;
    look(Clock::now());
    const std::vector<TreeMember::Text> texts = member().take_texts();
    const std::optional<TreeMember::Decision> decision = member().decision();
    lock.unlock();
    send(texts);
    if (decision) {
      tell(*decision);
      break;
    }
    lock.lock();
    changed().wait_for(lock, look_interval_over_mpi);
  }

  std::unique_lock lock(mutex());
  if (!has_failed()) {
    lock.unlock();
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
    return;
  }
  if (changed().wait_for(lock, grace_over_mpi, [&] { return stopping_; })) return;
  if (told_here_ || decided_here_) MPI_Abort(MPI_COMM_WORLD, 1);
  ::_exit(1);
}

void MpiHealth::listen() {
  while (true) {
    if (receive_ == MPI_REQUEST_NULL) {
      MPI_Irecv(incoming_.get(), sizeof(Message), MPI_BYTE, MPI_ANY_SOURCE, 0, comm_, &receive_);
    }
    int arrived = 0;
    MPI_Status status;
    MPI_Test(&receive_, &arrived, &status);
    if (arrived == 0) return;
    const std::lock_guard lock(mutex());
    member().take(status.MPI_SOURCE, static_cast<char>(incoming_->kind), read_text(incoming_->content), Clock::now());
  }
}

void MpiHealth::reap_sent() {
  sent_.remove_if([](Sent& sent) {
    int done = 0;
    MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
}

void MpiHealth::send(const std::vector<TreeMember::Text>& texts) {
  reap_sent();
  for (const TreeMember::Text& text : texts) {
    Sent& sent = sent_.emplace_back(Sent{{.kind = text.kind}, MPI_REQUEST_NULL});
    write_text(sent.message.content, text.content);
    MPI_Isend(&sent.message, sizeof(Message), MPI_BYTE, static_cast<int>(text.to), 0, comm_, &sent.request);
  }
}

// Reports the failure to the user if this is rank 0 or, if rank 0 failed, rank 1. Then waits until the ranks below in
// the tree know of the failure, and makes it visible to this rank's threads.
void MpiHealth::tell(const TreeMember::Decision& decision) {
  FailureReport failure = decision.failure;
  const bool tells = rank() == (failure.rank == 0 ? 1 : 0);
  if (tells) announce(failure);
  failure.announced = true;
  // The failed rank may never receive its message.
  for (const auto started = Clock::now(); Clock::now() - started < longest_telling_over_mpi && !sent_.empty();
       reap_sent()) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  const std::lock_guard lock(mutex());
  told_here_ = tells;
  decided_here_ = member().decides_itself();
  set_failure(failure);
}

}  // namespace copus
