#include "copus/comm/gpu/nccl_links.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <numeric>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/base/text/units.h"
#include "copus/comm/gpu/gpu_environment.h"

namespace copus {

namespace {

using std::chrono::steady_clock;

// The maximum number of thread blocks of a communicator for messages. A rank's messages run at the same time as its
// collectives and wait for other ranks on the device. Therefore all communicators have to fit next to the compute
// kernels. With NCCL's default, up to 32 thread blocks each, not even four communicators would fit.
constexpr int message_ctas = 8;
// Sizes in the warm-up of collectives: the bytes of a member's smallest part, the factor between sizes, and the largest
// size. Vectors that are larger still use the algorithm of the largest size, and memory for vectors of the largest size
// is always available.
constexpr int64_t smallest_part_bytes = 4;
constexpr int64_t warm_up_growth = 8;
constexpr int64_t largest_warm_up_bytes = int64_t{256} << 20;
constexpr std::chrono::milliseconds watch_interval{20};
constexpr std::chrono::microseconds poll_interval{100};
// How long abort() waits for an NCCL call to return by itself.
constexpr std::chrono::seconds abort_patience{1};
// An operation that takes longer than this is waiting for another rank. This rank is then marked as waiting, because
// its host will soon be blocked too (when the device's queue is full, or when the host needs a result). Otherwise it
// would be reported as stalled.
constexpr std::chrono::seconds longest_run{1};
// When a rank dies, NCCL reports only a broken connection. Shortly afterwards, health names the dead rank. So NCCL's
// error is held back for this long.
constexpr std::chrono::duration<double> echo_patience{3};

uint64_t hash_of(const NcclUse& use) {
  uint64_t hash = extend_hash(static_cast<uint64_t>(use.kind), use.link);
  for (const int64_t rank : use.group) hash = extend_hash(hash, rank);
  for (const int64_t rank : use.members) hash = extend_hash(hash, rank);
  return hash;
}

uint64_t hash_of(const NcclPlan::Change& change) {
  uint64_t hash = change.close.size();
  for (const NcclUse& use : change.close) hash = extend_hash(hash, hash_of(use));
  for (const std::vector<NcclUse>& split : change.open) {
    hash = extend_hash(hash, split.size());
    for (const NcclUse& use : split) hash = extend_hash(hash, hash_of(use));
  }
  for (const NcclUse& use : change.warm) hash = extend_hash(hash, hash_of(use));
  return hash;
}

int64_t place_in(const std::vector<int64_t>& ranks, int64_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
}

bool is_member(const NcclUse& use, int64_t rank) {
  return place_in(use.members, rank) < static_cast<int64_t>(use.members.size());
}

bool is_our_mistake(NcclResult result) {
  return result == NcclResult::invalid_argument || result == NcclResult::invalid_usage;
}

}  // namespace

class NcclLinks::Issued : public Work::State {
 public:
  Issued(const NcclLinks& links, const char* what) : links_(links), what_(what), begin_(steady_clock::now()) {}

  // Call this when NCCL has accepted the operation. The operation is done when the event `end` is done.
  void set_end(std::unique_ptr<DeviceRuntime::Event> end) { end_ = std::move(end); }

  const char* what() const { return what_; }
  Time begin() const { return begin_; }

  void wait() override {
    links_.check();
    links_.runtime_->wait(links_.runtime_->current_stream(), *end_);
  }
  bool done() override { return end_ && end_->done(); }

 private:
  const NcclLinks& links_;
  const char* const what_;
  const Time begin_;
  std::unique_ptr<DeviceRuntime::Event> end_;
};

NcclLinks::NcclLinks(NcclInterface nccl, World& host, std::shared_ptr<DeviceRuntime> runtime, double wait_seconds,
                     int64_t kept_bytes)
    : nccl_(std::move(nccl)),
      host_(host),
      runtime_(std::move(runtime)),
      limit_(wait_seconds),
      exceptions_before_(std::uncaught_exceptions()),
      plan_(host.size(), kept_bytes) {
  const int64_t free_before = runtime_->memory().free_bytes;
  try {
    connect();
  } catch (...) {
    abort();
    throw;
  }
  bytes_ = std::max<int64_t>(0, free_before - runtime_->memory().free_bytes);
  watcher_ = std::thread([this] { watch(); });
}

NcclLinks::~NcclLinks() {
  bool is_sound = std::uncaught_exceptions() <= exceptions_before_;
  try {
    if (is_sound) {
      wait_until([this] { return is_idle(); });
      // Closing a communicator blocks inside NCCL, and would block forever if a peer is gone. A barrier before it
      // reports a missing peer instead.
      host_.everyone().barrier();
      while (!links_.empty()) close(links_.begin());
      finish(parent_, call(parent_, [this] { return nccl_.comm_finalize(parent_); }), "closing", {});
    }
  } catch (const std::exception&) {
    is_sound = false;
  }
  {
    const std::scoped_lock lock(operations_);
    stop_ = true;
  }
  stopping_.notify_all();
  watcher_.join();
  if (is_sound && !aborted_) {
    nccl_.comm_destroy(parent_);
  } else {
    abort();
  }
}

// Makes the parent communicator non-blocking, so that each split can have a deadline. Communicators that are split from
// it are blocking, because otherwise NCCL would need a thread for every operation.
void NcclLinks::connect() {
  std::vector<int64_t> all(host_.size());
  std::iota(all.begin(), all.end(), 0);
  const NcclUse use = NcclUse::collectives_of(all);
  NcclUniqueId id{};
  if (host_.rank() == 0) finish(nullptr, nccl_.get_unique_id(&id), "connecting", use);
  host_.everyone().broadcast(&id, sizeof id, DataType::byte, 0);
  NcclConfig config;
  config.blocking = 0;
  const NcclResult begun = call(nullptr, [&] {
    return nccl_.comm_init_rank_config(&parent_, static_cast<int>(host_.size()), id, static_cast<int>(host_.rank()),
                                       &config);
  });
  finish(parent_, begun, "connecting", use);  // the parent exists from now on
}

std::optional<std::string> NcclLinks::prepare(const std::vector<GroupUse>& groups) {
  check();
  NcclPlan::Change change = plan_.prepare(groups, bytes_of_kind_);
  agree_on(change);
  if (change.empty()) return std::nullopt;
  wait_until([this] { return is_idle(); });
  const int64_t free_before = runtime_->memory().free_bytes;
  close_all(change.close);
  std::optional<std::string> lack = find_lack(change);
  if (lack) {
    plan_.withdraw(change);
    // Frees the communicators of earlier layouts, because a new layout needs their memory.
    const std::vector<NcclUse> unused = plan_.drop_unused();
    if (!unused.empty()) {
      close_all(unused);
      change = plan_.prepare(groups, bytes_of_kind_);
      lack = find_lack(change);
      if (lack) plan_.withdraw(change);
    }
  }
  if (!lack) open_all(change);
  agree_on_measured();
  bytes_ = std::max<int64_t>(0, bytes_ + free_before - runtime_->memory().free_bytes);
  return lack;
}

void NcclLinks::close_all(const std::vector<NcclUse>& uses) {
  for (const NcclUse& use : uses) {
    const auto found = links_.find(use);
    if (found != links_.end()) close(found);
  }
}

void NcclLinks::open_all(const NcclPlan::Change& change) {
  const std::shared_ptr<void> memory = runtime_->allocate(warm_up_bytes(change));
  const Time begin = steady_clock::now();
  for (const std::vector<NcclUse>& split : change.open) {
    const auto mine =
        std::find_if(split.begin(), split.end(), [&](const NcclUse& use) { return is_member(use, host_.rank()); });
    measure(mine == split.end() ? split.front() : *mine, [&] { open(split); });
  }
  for (const std::vector<NcclUse>& split : change.open) {
    for (const NcclUse& use : split) {
      if (is_member(use, host_.rank())) measure(use, [&] { warm_up(use, memory.get()); });
    }
  }
  if (!change.open.empty()) {
    opening_ += steady_clock::now() - begin;
    splits_ += std::ssize(change.open);
  }
  for (const NcclUse& use : change.warm) {
    if (is_member(use, host_.rank())) measure(use, [&] { warm_up(use, memory.get()); });
  }
}

// All ranks check before a split that enough memory is free: a rank that ran out of memory during a split would leave
// the others waiting. The need is estimated from what communicators of each kind have taken so far.
std::optional<std::string> NcclLinks::find_lack(const NcclPlan::Change& change) {
  int64_t bytes = warm_up_bytes(change), communicators = 0;
  bool has_messages = false;
  int64_t largest_kind = 0;
  for (const auto& [kind, of_kind] : bytes_of_kind_) largest_kind = std::max(largest_kind, of_kind);
  for (const std::vector<NcclUse>& split : change.open) {
    for (const NcclUse& use : split) {
      has_messages = has_messages || use.kind == NcclUse::Kind::messages;
      if (!is_member(use, host_.rank())) continue;
      const auto known = bytes_of_kind_.find(use.kind);
      bytes += known == bytes_of_kind_.end() ? largest_kind : known->second;
      ++communicators;
    }
  }
  bool fits = true;
  try {
    runtime_->allocate(bytes);
  } catch (const InternalError&) {
    fits = false;
  }
  const std::optional<std::string> queues = has_messages ? lack_of_hardware_queues() : std::nullopt;
  int64_t lacks[] = {fits ? 0 : bytes, fits ? 0 : communicators, queues ? 1 : 0};
  host_.everyone().all_reduce(lacks, std::size(lacks), DataType::int64, Reduction::maximum);
  if (lacks[2] != 0) return queues ? *queues : "another rank has too few hardware queues (CUDA_DEVICE_MAX_CONNECTIONS)";
  if (lacks[0] == 0) return std::nullopt;
  return concat("there is no memory for the ", format_bytes(static_cast<double>(lacks[0])), " that ", lacks[1],
                " connections between GPUs take");
}

// Measures the memory that a communicator takes as the decrease of free device memory while it is opened. Nothing else
// allocates meanwhile.
void NcclLinks::measure(const NcclUse& use, const std::function<void()>& open) {
  const bool was_open = links_.contains(use);
  const int64_t free_before = runtime_->memory().free_bytes;
  open();
  if (!is_member(use, host_.rank())) return;
  auto& [bytes, count] = measured_[use.kind];
  bytes += std::max<int64_t>(0, free_before - runtime_->memory().free_bytes);
  if (!was_open) ++count;
}

void NcclLinks::agree_on_measured() {
  constexpr NcclUse::Kind kinds[] = {NcclUse::Kind::collectives, NcclUse::Kind::exchanges, NcclUse::Kind::messages};
  std::array<int64_t, std::size(kinds) + 1> means{};  // per kind, and the nanoseconds of a split
  for (size_t i = 0; i < std::size(kinds); ++i) {
    const auto found = measured_.find(kinds[i]);
    if (found != measured_.end()) means[i] = found->second.first / std::max<int64_t>(1, found->second.second);
  }
  if (splits_ > 0) means.back() = static_cast<int64_t>(1e9 * opening_.count() / static_cast<double>(splits_));
  host_.everyone().all_reduce(means.data(), means.size(), DataType::int64, Reduction::maximum);
  for (size_t i = 0; i < std::size(kinds); ++i) {
    if (means[i] > 0) bytes_of_kind_[kinds[i]] = means[i];
  }
  split_seconds_ = 1e-9 * static_cast<double>(means.back());
}

CommunicatorCosts NcclLinks::costs() const {
  const auto bytes = [&](NcclUse::Kind kind) {
    const auto found = bytes_of_kind_.find(kind);
    return found == bytes_of_kind_.end() ? 0.0 : static_cast<double>(found->second);
  };
  return {.collective_bytes = bytes(NcclUse::Kind::collectives),
          .exchange_bytes = bytes(NcclUse::Kind::exchanges),
          .message_bytes = bytes(NcclUse::Kind::messages),
          .split_seconds = split_seconds_};
}

// Checks that all ranks plan the same change. If one rank requested other groups, the others would wait for it forever
// in a split.
void NcclLinks::agree_on(const NcclPlan::Change& change) {
  const auto hash = static_cast<int64_t>(hash_of(change));
  int64_t highest_and_lowest[] = {hash, ~hash};
  host_.everyone().all_reduce(highest_and_lowest, 2, DataType::int64, Reduction::maximum);
  COPUS_CHECK(highest_and_lowest[0] == hash && highest_and_lowest[1] == ~hash, "ranks prepare different groups");
}

// The communicators must not share resources (splitShare). If they did, their operations would run one after another,
// and a send that waits for its receiver would block all others.
//
// NCCL up to 2.30 writes through a null pointer on ranks without a color if another rank dies during the split. They
// then end by SIGSEGV, which the launcher reports beside the first death.
void NcclLinks::open(const std::vector<NcclUse>& split) {
  const auto mine =
      std::find_if(split.begin(), split.end(), [&](const NcclUse& use) { return is_member(use, host_.rank()); });
  const bool takes_part = mine != split.end();
  const NcclUse& use = takes_part ? *mine : split.front();
  const int color = takes_part ? static_cast<int>(mine - split.begin()) : nccl_no_color;
  const int key = takes_part ? static_cast<int>(place_in(use.members, host_.rank())) : 0;
  NcclConfig config;
  config.blocking = 1;
  config.split_share = 0;
  if (use.kind != NcclUse::Kind::collectives) config.max_ctas = message_ctas;
  made_ = nullptr;
  NcclResult begun = call(parent_, [&] { return nccl_.comm_split(parent_, color, key, &made_, &config); });
  // ncclCommSplit returns success before the split of a non-blocking parent is done, so only the parent's asynchronous
  // state shows its end.
  if (begun == NcclResult::success) begun = NcclResult::in_progress;
  finish(parent_, begun, "connecting", use);
  if (!takes_part) return;
  COPUS_CHECK(made_ != nullptr, "a split without a communicator for ", to_string(use));
  DeviceRuntime::Stream stream = nullptr;
  if (free_streams_.empty()) {
    stream = runtime_->make_stream();
  } else {
    stream = free_streams_.back();
    free_streams_.pop_back();
  }
  const std::scoped_lock lock(calls_, operations_);
  links_.emplace(use, Link{made_, stream, {}});
}

void NcclLinks::close(Links::iterator at) {
  NcclComm* const comm = at->second.comm;
  finish(comm, call(comm, [&] { return nccl_.comm_finalize(comm); }), "closing", at->first);
  free_streams_.push_back(at->second.stream);
  {
    const std::scoped_lock lock(calls_, operations_);
    links_.erase(at);
  }
  call(nullptr, [&] { return nccl_.comm_destroy(comm); });
}

int64_t NcclLinks::warm_up_bytes(const NcclPlan::Change& change) const {
  int64_t bytes = host_.size() * smallest_part_bytes;
  const auto add = [&](const NcclUse& use) {
    if (is_member(use, host_.rank()))
      bytes = std::max(bytes, std::min(plan_.largest_bytes(use), largest_warm_up_bytes));
  };
  for (const std::vector<NcclUse>& split : change.open) std::for_each(split.begin(), split.end(), add);
  std::for_each(change.warm.begin(), change.warm.end(), add);
  return bytes;
}

// Warms up the communicators. NCCL connects at the first operation that uses an algorithm (NCCL_RUNTIME_CONNECT; since
// 2.22 for each algorithm separately), and the host then waits until all members have reached this operation. During a
// step, ranks may reach their groups in different orders, so they would deadlock. Therefore the first operations run
// here. They cover every kind and all sizes from the smallest to the layout's largest, because the size determines the
// algorithm. One message in the warm-up makes all connections that later messages may use.
//
// Exchanges are not warmed up. They connect at the first message of each pair, which both members reach together.
void NcclLinks::warm_up(const NcclUse& use, void* memory) {
  switch (use.kind) {
    case NcclUse::Kind::exchanges:
      return;
    case NcclUse::Kind::messages:
      return warm_up_messages(use, memory);
    case NcclUse::Kind::collectives:
      const int64_t smallest = std::ssize(use.members) * smallest_part_bytes;
      const int64_t largest = std::clamp(plan_.largest_bytes(use), smallest, largest_warm_up_bytes);
      int64_t bytes = smallest;
      while (bytes < largest) {
        warm_up_collectives(use, memory, bytes);
        bytes *= warm_up_growth;
      }
      warm_up_collectives(use, memory, largest);
  }
}

void NcclLinks::warm_up_messages(const NcclUse& use, void* memory) {
  const auto other = static_cast<int>(1 - place_in(use.members, host_.rank()));
  auto* const values = static_cast<float*>(memory);
  const Work work = start(use, "warm-up", [&](NcclComm* comm, void* stream) {
    NcclGroup group(nccl_);
    group.add([&] { return nccl_.send(values, 1, NcclType::float32, other, comm, stream); });
    group.add([&] { return nccl_.recv(values + 1, 1, NcclType::float32, other, comm, stream); });
    return group.end();
  });
  wait_until([&] { return work.done(); });
}

void NcclLinks::warm_up_collectives(const NcclUse& use, void* memory, int64_t bytes) {
  const auto run = [&](const std::function<NcclResult(NcclComm*, void*)>& issue) {
    const Work work = start(use, "warm-up", issue);
    wait_until([&] { return work.done(); });
  };
  constexpr NcclType type = NcclType::float32;
  const int64_t members = std::ssize(use.members), part = bytes / smallest_part_bytes / members, count = members * part;
  auto* const own = static_cast<float*>(memory) + place_in(use.members, host_.rank()) * part;
  run([&](NcclComm* comm, void* stream) {
    return nccl_.all_reduce(memory, memory, count, type, NcclReduction::sum, comm, stream);
  });
  run([&](NcclComm* comm, void* stream) {
    return nccl_.reduce_scatter(memory, own, part, type, NcclReduction::sum, comm, stream);
  });
  run([&](NcclComm* comm, void* stream) { return nccl_.all_gather(own, memory, part, type, comm, stream); });
  run([&](NcclComm* comm, void* stream) {
    return nccl_.reduce(memory, memory, count, type, NcclReduction::sum, 0, comm, stream);
  });
  run([&](NcclComm* comm, void* stream) { return nccl_.broadcast(memory, memory, count, type, 0, comm, stream); });
}

void NcclLinks::check_prepared(const NcclUse& use) const {
  COPUS_CHECK(links_.contains(use), "World::prepare was not asked for the ", to_string(use),
              use.kind == NcclUse::Kind::messages ? concat(" in group ", list_ranks(use.group)) : "");
}

Work NcclLinks::start(const NcclUse& use, const char* what,
                      const std::function<NcclResult(NcclComm*, void* stream)>& issue) {
  check();
  check_prepared(use);
  Link& link = links_.find(use)->second;
  const auto operation = std::make_shared<Issued>(*this, what);
  {
    const std::scoped_lock lock(operations_);
    link.operations.push_back(operation);
  }
  runtime_->wait(link.stream, *runtime_->record(runtime_->current_stream()));
  finish(link.comm, call(link.comm, [&] { return issue(link.comm, link.stream); }), what, use);
  auto end = runtime_->record(link.stream);
  const std::scoped_lock lock(operations_);
  operation->set_end(std::move(end));
  return Work(operation);
}

// abort() sets aborted_ and then reads inside_. This function sets inside_ and then reads aborted_. So either abort()
// sees that this call uses the communicator, or this function sees aborted_ and makes no call.
NcclResult NcclLinks::call(NcclComm* comm, const std::function<NcclResult()>& function) {
  const std::scoped_lock lock(calls_);
  check();
  inside_ = comm;
  NcclResult result = NcclResult::success;
  if (!aborted_) result = function();
  inside_ = nullptr;
  check();
  COPUS_CHECK(!aborted_, "NCCL was aborted");
  return result;
}

void NcclLinks::finish(NcclComm* comm, NcclResult result, const char* what, const NcclUse& use) {
  if (result == NcclResult::in_progress) {
    const Time begin = steady_clock::now();
    wait_until([&] {
      if (steady_clock::now() - begin > limit_) {
        end_job(late(what, use), false);
        return true;
      }
      NcclResult state = NcclResult::success;
      const NcclResult asked = call(comm, [&] { return nccl_.comm_get_async_error(comm, &state); });
      result = asked == NcclResult::success ? state : asked;
      return result != NcclResult::in_progress;
    });
  }
  if (result == NcclResult::success) return;
  check();
  std::string cause = concat("NCCL: ", what, ", ", to_string(use), ": ", nccl_.get_error_string(result));
  const char* const detail = nccl_.get_last_error(comm);
  if (detail != nullptr && *detail != '\0') cause += concat(" (", detail, ")");
  if (is_our_mistake(result)) throw InternalError(cause);
  const bool is_echo = result == NcclResult::remote_error;
  const FailureReport report{.rank = is_echo ? -1 : host_.rank(), .place = "", .cause = cause};
  end_job(report, is_echo);
  check();
  throw RankFailure(report);
}

template <class IsDone>
void NcclLinks::wait_until(const IsDone& is_done) {
  if (is_done()) return;
  const WaitingForOthers waiting(host_.health());
  do {
    check();
    std::this_thread::sleep_for(poll_interval);
  } while (!is_done());
}

bool NcclLinks::is_idle() {
  const std::scoped_lock lock(operations_);
  return std::all_of(links_.begin(), links_.end(), [](const auto& link) {
    const auto& operations = link.second.operations;
    return operations.empty() || operations.back()->done();
  });
}

void NcclLinks::check() const { host_.health().check(); }

void NcclLinks::end_job(const FailureReport& report, bool is_echo) {
  const Time until =
      steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(std::min(echo_patience, limit_));
  while (is_echo && !host_.health().failure() && steady_clock::now() < until) {
    std::this_thread::sleep_for(watch_interval);
  }
  host_.health().report(report);
  abort();
}

bool NcclLinks::take_calls(std::unique_lock<std::mutex>& lock) const {
  const Time until = steady_clock::now() + abort_patience;
  while (!lock.try_lock()) {
    if (steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(poll_interval);
  }
  return true;
}

// All aborts form one NCCL group, because an abort frees memory and therefore waits for all kernels of the device,
// including those of communicators that are still to be aborted. The parent has no kernels. It is not in the group,
// because until 2.22 a group could not mix blocking and non-blocking communicators.
//
// An abort also frees its communicator, so a communicator must not be aborted while the main thread is inside one of
// its calls. NCCL 2.28.7 and later can make that call return. With older versions, the thread stays in the call. The
// watchdog (health/watchdog.h) or the launcher then ends the process, as it ends every rank that does not leave.
void NcclLinks::abort() {
  const std::scoped_lock one_at_a_time(aborting_);
  std::unique_lock lock(calls_, std::defer_lock);
  const bool is_alone = take_calls(lock);
  aborted_ = true;
  NcclComm* inside = is_alone ? nullptr : inside_.load();
  const auto abort_all_but = [&](const NcclComm* left_out) {
    std::vector<NcclComm*> comms;
    {
      const std::scoped_lock links_lock(operations_);
      for (auto& [use, link] : links_) {
        if (link.comm != left_out && !std::exchange(link.aborted, true)) comms.push_back(link.comm);
      }
    }
    nccl_.group_start();
    for (NcclComm* const comm : comms) nccl_.comm_abort(comm);
    nccl_.group_end();
    if (parent_ != nullptr && parent_ != left_out && !std::exchange(parent_aborted_, true)) nccl_.comm_abort(parent_);
  };
  // A revocation frees nothing, so it waits for no kernels of other communicators. It comes first, because an abort of
  // the others would wait for the kernels of this one.
  if (inside != nullptr && nccl_.comm_revoke) {
    nccl_.comm_revoke(inside, 0);
    if (take_calls(lock)) inside = nullptr;
  }
  abort_all_but(inside);
  // The call may have waited for a kernel of another communicator.
  if (inside != nullptr && nccl_.comm_revoke && take_calls(lock)) abort_all_but(nullptr);
}

FailureReport NcclLinks::late(const char* what, const NcclUse& use) const {
  const int64_t rank = host_.rank();
  std::vector<int64_t> others;
  std::copy_if(use.members.begin(), use.members.end(), std::back_inserter(others),
               [&](int64_t member) { return member != rank; });
  const bool is_one = others.size() == 1;
  return {.rank = is_one ? others.front() : -1,
          .place = "",
          .cause = concat("over NCCL, rank ", rank, " has waited ", limit_.count(), " s for ",
                          is_one ? "it" : concat("ranks ", list_ranks(others)), " (", what, ", ", to_string(use), ")")};
}

void NcclLinks::watch() {
  try {
    std::unique_lock lock(operations_);
    while (!stopping_.wait_for(lock, watch_interval, [this] { return stop_; })) {
      lock.unlock();
      if (!look()) return;
      lock.lock();
    }
  } catch (const std::exception& error) {
    end_job({.rank = host_.rank(), .place = "", .cause = error.what()}, false);
  }
}

// Returns false when the job has ended.
bool NcclLinks::look() {
  if (host_.health().failure()) {
    abort();
    return false;
  }
  const std::optional<Pending> oldest = find_oldest();
  const auto age = oldest ? steady_clock::now() - oldest->operation->begin() : steady_clock::duration::zero();
  if (age > limit_) {
    end_job(late(oldest->operation->what(), oldest->use), false);
    return false;
  }
  if (age <= longest_run) {
    waiting_.reset();
  } else if (!waiting_) {
    waiting_.emplace(host_.health());
  }
  const NcclResult error = find_error();
  if (error == NcclResult::success) return true;
  const bool is_echo = error == NcclResult::remote_error;
  end_job({.rank = is_echo ? -1 : host_.rank(), .place = "", .cause = concat("NCCL: ", nccl_.get_error_string(error))},
          is_echo);
  return false;
}

// Returns the oldest operation under way, because later ones may be waiting for it.
std::optional<NcclLinks::Pending> NcclLinks::find_oldest() {
  const std::scoped_lock lock(operations_);
  std::optional<Pending> oldest;
  for (auto& [use, link] : links_) {
    auto& operations = link.operations;
    while (!operations.empty() && operations.front()->done()) operations.pop_front();
    if (operations.empty()) continue;
    if (!oldest || operations.front()->begin() < oldest->operation->begin()) oldest = {operations.front(), use};
  }
  return oldest;
}

// Does nothing while the main thread is inside an NCCL call: that call sees errors itself.
NcclResult NcclLinks::find_error() {
  const std::unique_lock lock(calls_, std::try_to_lock);
  if (!lock || aborted_) return NcclResult::success;
  for (const auto& [use, link] : links_) {
    NcclResult state = NcclResult::success;
    const NcclResult asked = nccl_.comm_get_async_error(link.comm, &state);
    if (asked != NcclResult::success) return asked;
    if (state != NcclResult::success && state != NcclResult::in_progress) return state;
  }
  return NcclResult::success;
}

}  // namespace copus
