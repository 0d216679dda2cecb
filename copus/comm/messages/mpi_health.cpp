#include "copus/comm/messages/mpi_health.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "copus/comm/background_thread.h"
#include "copus/comm/health/fixed_text.h"

namespace copus {

namespace {

using std::chrono::milliseconds;

constexpr auto look_interval_over_mpi = milliseconds(25);
constexpr auto heartbeat_interval_over_mpi = milliseconds(200);
// Several ranks may find the same failure at about the same time, and one shall tell the user. So whoever finds it
// first claims it, and reports it this much later. It gives a lower rank that has claimed it too some more time to do
// so.
constexpr auto claim_time = milliseconds(200);
constexpr auto time_for_other_claim = milliseconds(500);
constexpr auto longest_telling_over_mpi = milliseconds(200);
// A rank that has not noticed a failure is ended after this time.
constexpr auto grace_over_mpi = milliseconds(700);
// So much time ranks get to end by themselves before the one that reported the failure ends the job.
constexpr auto head_start = milliseconds(300);

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

struct MpiHealth::Message {
  // A heartbeat says how the sender is, a claim that it has found a failure, a report which, and ends the job.
  enum class Kind : int64_t { heartbeat, claim, report };

  Kind kind = Kind::heartbeat;
  int64_t sender = 0;
  int64_t failed_rank = -1;
  int64_t pid = 0;
  std::array<char, place_bytes> place{};
  std::array<char, cause_bytes> cause{};
};

struct MpiHealth::Sent {
  Message message;
  std::vector<MPI_Request> requests;  // one for each receiver
};

MpiHealth::MpiHealth(MPI_Comm parent)
    : HeartbeatHealth(rank_in(parent), size_of(parent)), incoming_(std::make_unique<Message>()) {
  MPI_Comm_dup(parent, &comm_);
  MPI_Barrier(comm_);
  for (int64_t other = 0; other < size(); ++other) {
    if (other != rank()) expect(other, 0);
  }
  watchdog_ = background_thread([this] { watch(); });
}

MpiHealth::~MpiHealth() { stop(); }

void MpiHealth::report(const FailureReport& report) {
  std::unique_lock lock(mutex());
  if (has_failed() || to_report_) return;
  to_report_ = report;
  if (report.rank >= 0) to_report_->pid = signs_of(report.rank).pid;
  changed().notify_all();
  changed().wait_for(lock, claim_time + time_for_other_claim + 2 * longest_telling_over_mpi,
                     [&] { return has_failed(); });
}

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
  {
    const std::lock_guard lock(mutex());
    if (!reported_here_) return;
  }
  std::this_thread::sleep_for(head_start);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// Once a failure is published, threads give up their buffers. Nothing may call MPI from then on, since MPI would go on
// with the messages that are under way.
void MpiHealth::watch() {
  Clock::time_point last_heartbeat{};
  while (true) {
    listen();
    const Clock::time_point now = Clock::now();
    std::unique_lock lock(mutex());
    if (stopping_ || has_failed()) break;
    const std::optional<FailureReport> found = find_failure(now);
    if (!to_report_) to_report_ = found;
    if (to_report_ && !report_at_) {
      report_at_ = now + claim_time;
      lock.unlock();
      send_to_all({.kind = Message::Kind::claim, .sender = rank()});
      lock.lock();
    }
    if (to_report_ && now >= *report_at_) {
      const FailureReport report = *to_report_;
      lock.unlock();
      tell_others(report);
      publish(report);
      break;
    }
    if (now - last_heartbeat >= heartbeat_interval_over_mpi) {
      last_heartbeat = now;
      Message heartbeat{.kind = Message::Kind::heartbeat, .sender = rank(), .pid = ::getpid()};
      write_text(heartbeat.place, own_place());
      lock.unlock();
      send_to_all(heartbeat);
      lock.lock();
    }
    changed().wait_for(lock, look_interval_over_mpi, [&] { return stopping_ || (to_report_ && !report_at_); });
  }

  std::unique_lock lock(mutex());
  if (!has_failed()) {
    lock.unlock();
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
    return;
  }
  if (changed().wait_for(lock, grace_over_mpi, [&] { return stopping_; })) return;
  if (reported_here_) MPI_Abort(MPI_COMM_WORLD, 1);
  ::_exit(1);
}

void MpiHealth::listen() {
  while (true) {
    if (receive_ == MPI_REQUEST_NULL) {
      MPI_Irecv(incoming_.get(), sizeof(Message), MPI_BYTE, MPI_ANY_SOURCE, 0, comm_, &receive_);
    }
    int arrived = 0;
    MPI_Test(&receive_, &arrived, MPI_STATUS_IGNORE);
    if (arrived == 0) return;
    take(*incoming_);
  }
}

void MpiHealth::take(const Message& message) {
  const std::lock_guard lock(mutex());
  const auto now = Clock::now();
  switch (message.kind) {
    case Message::Kind::heartbeat:
      hear(message.sender, now, message.pid, read_text(message.place));
      return;
    case Message::Kind::claim:
      if (!report_at_ || message.sender < rank()) report_at_ = now + time_for_other_claim;
      return;
    case Message::Kind::report:
      set_failure({message.failed_rank, read_text(message.place), read_text(message.cause), message.pid, true});
  }
}

void MpiHealth::reap_sent() {
  sent_.remove_if([](Sent& sent) {
    int done = 0;
    MPI_Testall(static_cast<int>(sent.requests.size()), sent.requests.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  });
}

void MpiHealth::send_to_all(const Message& message) {
  reap_sent();
  Sent& sent = sent_.emplace_back(Sent{message, {}});
  sent.requests.assign(size(), MPI_REQUEST_NULL);
  for (int to = 0; to < static_cast<int>(size()); ++to) {
    if (to == rank()) continue;
    MPI_Isend(&sent.message, sizeof(Message), MPI_BYTE, to, 0, comm_, &sent.requests[to]);
  }
}

void MpiHealth::tell_others(const FailureReport& report) {
  announce(report);
  Message message{.kind = Message::Kind::report, .sender = rank(), .failed_rank = report.rank, .pid = report.pid};
  write_text(message.place, report.place);
  write_text(message.cause, report.cause);
  send_to_all(message);
  // The rank that failed may never take the message.
  for (const auto started = Clock::now(); Clock::now() - started < longest_telling_over_mpi && !sent_.empty();
       reap_sent()) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void MpiHealth::publish(const FailureReport& report) {
  const std::lock_guard lock(mutex());
  reported_here_ = true;
  FailureReport told = report;
  told.announced = true;
  set_failure(told);
}

}  // namespace copus
