#include "copus/comm/mpi_health.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <memory>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/shared_health.h"

namespace copus {

namespace {

using std::chrono::milliseconds;

constexpr auto look_interval = milliseconds(25);
constexpr auto heartbeat_interval = milliseconds(200);
constexpr auto longest_silence = milliseconds(3000);
// Several ranks may find the same failure at about the same time, and one shall tell the user. Whoever finds it claims
// it and reports it this much later, unless a rank before it has claimed it too: that one gets some more time.
constexpr auto claim_time = milliseconds(200);
constexpr auto time_for_other_claim = milliseconds(500);
// A watchdog that was itself held up for so long cannot tell from the clock who else was silent.
constexpr auto own_pause = milliseconds(1000);
constexpr auto longest_telling = milliseconds(200);
// From a failure to the end of a rank that has not noticed it, and of what the reporting rank leaves behind.
constexpr auto grace = milliseconds(700);
constexpr auto head_start = milliseconds(300);
// A job counts as stalled after this many steps' time without progress, and no sooner than the time below.
constexpr double stalled_steps = 10;
constexpr double least_stalled_seconds = 10;

constexpr size_t place_bytes = 96;
constexpr size_t cause_bytes = 256;

template <class Text>
void write_text(Text& to, std::string_view text) {
  to = {};
  std::copy_n(text.begin(), std::min(text.size(), to.size() - 1), to.begin());
}

template <class Text>
std::string read_text(const Text& from) {
  return {from.begin(), std::find(from.begin(), from.end(), '\0')};
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

MpiHealth::MpiHealth(MPI_Comm parent) : progress_(Clock::now()), incoming_(std::make_unique<Message>()) {
  MPI_Comm_dup(parent, &comm_);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  MPI_Barrier(comm_);
  ranks_.assign(static_cast<size_t>(size_), Rank{Clock::now(), 0, ""});
  ranks_[static_cast<size_t>(rank_)].pid = ::getpid();
  // A thread begins with the mask of its parent: Ctrl-C and SIGTERM are for the main thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  watchdog_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MpiHealth::~MpiHealth() { stop(); }

void MpiHealth::set_place(std::string_view place) {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<size_t>(rank_)].place = place.substr(0, place_bytes - 1);
  progress_ = Clock::now();
}

void MpiHealth::set_expected_step_seconds(double seconds) {
  const std::lock_guard lock(mutex_);
  expected_step_seconds_ = seconds;
  progress_ = Clock::now();
}

void MpiHealth::begin_wait() {
  const std::lock_guard lock(mutex_);
  ++waiting_;
}

void MpiHealth::end_wait() {
  const std::lock_guard lock(mutex_);
  --waiting_;
  progress_ = Clock::now();
}

void MpiHealth::report(const FailureReport& report) {
  std::unique_lock lock(mutex_);
  if (failure_ || to_report_) return;
  to_report_ = report;
  if (report.rank >= 0) to_report_->pid = ranks_[static_cast<size_t>(report.rank)].pid;
  changed_.notify_all();
  changed_.wait_for(lock, claim_time + time_for_other_claim + 2 * longest_telling,
                    [&] { return failure_.has_value(); });
}

std::optional<FailureReport> MpiHealth::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::string MpiHealth::place_of(int64_t rank) const {
  const std::lock_guard lock(mutex_);
  return ranks_[static_cast<size_t>(rank)].place;
}

void MpiHealth::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (watchdog_.joinable()) watchdog_.join();
}

void MpiHealth::end_job() {
  stop();
  {
    const std::lock_guard lock(mutex_);
    if (!reported_here_) return;
  }
  std::this_thread::sleep_for(head_start);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// Once a failure is published, threads give up their buffers: nothing may call MPI from then on, since MPI would go on
// with the messages that are under way.
void MpiHealth::watch() {
  Clock::time_point looked = Clock::now();
  Clock::time_point last_heartbeat{};
  while (true) {
    listen();
    const Clock::time_point now = Clock::now();
    std::unique_lock lock(mutex_);
    if (stopping_ || failure_) break;
    if (now - looked > own_pause) {
      for (Rank& other : ranks_) other.heard = now;
    }
    looked = now;
    if (!to_report_) to_report_ = find_failure(now);
    if (to_report_ && !report_at_) {
      report_at_ = now + claim_time;
      lock.unlock();
      send_to_all({.kind = Message::Kind::claim, .sender = rank_});
      lock.lock();
    }
    if (to_report_ && now >= *report_at_) {
      const FailureReport report = *to_report_;
      lock.unlock();
      tell_others(report);
      publish(report);
      break;
    }
    if (now - last_heartbeat >= heartbeat_interval) {
      last_heartbeat = now;
      Message heartbeat{.kind = Message::Kind::heartbeat, .sender = rank_, .pid = ::getpid()};
      write_text(heartbeat.place, ranks_[static_cast<size_t>(rank_)].place);
      lock.unlock();
      send_to_all(heartbeat);
      lock.lock();
    }
    changed_.wait_for(lock, look_interval, [&] { return stopping_ || (to_report_ && !report_at_); });
  }

  std::unique_lock lock(mutex_);
  if (!failure_) {
    lock.unlock();
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
    return;
  }
  if (changed_.wait_for(lock, grace, [&] { return stopping_; })) return;
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
  const std::lock_guard lock(mutex_);
  Rank& sender = ranks_[static_cast<size_t>(message.sender)];
  const auto now = Clock::now();
  switch (message.kind) {
    case Message::Kind::heartbeat:
      sender.heard = now;
      sender.pid = message.pid;
      sender.place = read_text(message.place);
      return;
    case Message::Kind::claim:
      if (!report_at_ || message.sender < rank_) report_at_ = now + time_for_other_claim;
      return;
    case Message::Kind::report:
      if (!failure_) {
        failure_ = {message.failed_rank, read_text(message.place), read_text(message.cause), message.pid, true};
      }
      changed_.notify_all();
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
  sent.requests.assign(static_cast<size_t>(size_), MPI_REQUEST_NULL);
  for (int to = 0; to < size_; ++to) {
    if (to == rank_) continue;
    MPI_Isend(&sent.message, sizeof(Message), MPI_BYTE, to, 0, comm_, &sent.requests[static_cast<size_t>(to)]);
  }
}

// With mutex_ held.
std::optional<FailureReport> MpiHealth::find_failure(Clock::time_point now) {
  const auto seconds = [](Clock::duration duration) { return std::chrono::duration<double>(duration).count(); };
  const double stalled_after = std::max(least_stalled_seconds, stalled_steps * expected_step_seconds_);
  if (expected_step_seconds_ > 0 && waiting_ == 0 && seconds(now - progress_) > stalled_after) {
    return FailureReport{rank_, ranks_[static_cast<size_t>(rank_)].place,
                         concat("stalled: made no progress for ", std::llround(stalled_after), " s"), ::getpid()};
  }
  for (int other = 0; other < size_; ++other) {
    const Rank& candidate = ranks_[static_cast<size_t>(other)];
    if (other != rank_ && now - candidate.heard > longest_silence) {
      return FailureReport{other, candidate.place, concat("no heartbeat for ", seconds(longest_silence), " s"),
                           candidate.pid};
    }
  }
  return std::nullopt;
}

void MpiHealth::tell_others(const FailureReport& report) {
  announce(report);
  Message message{.kind = Message::Kind::report, .sender = rank_, .failed_rank = report.rank, .pid = report.pid};
  write_text(message.place, report.place);
  write_text(message.cause, report.cause);
  send_to_all(message);
  // One of them may be the one that failed, and never take it.
  for (const auto started = Clock::now(); Clock::now() - started < longest_telling && !sent_.empty(); reap_sent()) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void MpiHealth::publish(const FailureReport& report) {
  const std::lock_guard lock(mutex_);
  reported_here_ = true;
  failure_ = report;
  failure_->announced = true;
  changed_.notify_all();
}

}  // namespace copus
