// For tests: NCCL among the ranks of one process, on the memory and streams of fake devices (fake_device_runtime.h). It
// models the rules of NCCL that can cause errors or hangs, and records violations:
// - All ranks of the parent take part in a split. A communicator ends when all its members end it.
// - The first operation of a kind and a class of sizes connects: the host waits until the other members reach it. (NCCL
//   connects at the first use of an algorithm, which it chooses by kind and size; ncclPrepareTasks, since 2.22.)
// - A communicator takes device memory. A rank that has none left leaves the other ranks of a split waiting.
// - A collective is done when all members have reached it with equal arguments, and a message when it has been
//   received. Later operations of the communicator wait for that.
// - An abort frees the communicator. No other thread of the rank may be inside the communicator then; a revocation
//   makes such a thread return.
// - Nothing uses a communicator after its end. Aborting one communicator while others of the rank are busy would wait
//   for them, unless all aborts are in one group. A group must not mix blocking and non-blocking communicators.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/gpu/nccl_interface.h"
#include "copus/comm/testing/fake_device_runtime.h"
#include "copus/comm/testing/test_data.h"

namespace copus {

class MockNccl {
 public:
  static constexpr int64_t communicator_bytes = 1 << 16;  // of device memory, for each
  static constexpr int64_t usual_thread_blocks = 32;      // of a kernel if its communicator has no limit

  // Refers to the device during each operation, so the device must outlive the rank's communicators.
  NcclInterface interface_of(int64_t rank, FakeDeviceRuntime& device);

  // Violations of NCCL's rules, and possible hangs.
  std::vector<std::string> mistakes() {
    const std::scoped_lock lock(mutex_);
    std::vector<std::string> found = mistakes_;
    const std::vector<std::string> hazards = crossed_orders();
    found.insert(found.end(), hazards.begin(), hazards.end());
    return found;
  }

  // The members of each communicator of every split so far, in the order of the splits.
  std::vector<std::vector<std::vector<int64_t>>> splits() {
    const std::scoped_lock lock(mutex_);
    return splits_;
  }
  // Counts: connections of a rank; operations that have begun on streams; ended communicators; calls of abort by rank;
  // open communicators.
  int64_t connections() { return count(connections_); }
  int64_t ends() { return count(finalized_); }
  int64_t begun() { return count(begun_); }
  int64_t aborts(int64_t rank) { return count(aborts_, rank); }
  int64_t communicators(int64_t rank) { return count(open_, rank); }

  // The error that NCCL reports by itself on a rank from now on.
  void set_async_error(int64_t rank, NcclResult error) {
    const std::scoped_lock lock(mutex_);
    async_errors_[rank] = error;
  }
  void set_version(int version) { version_ = version; }
  // From now on, no split completes.
  void hold_splits() { holds_splits_ = true; }
  // Simulates a library before 2.28.7, which cannot make a thread return from a communicator's call.
  void set_irrevocable() { is_revocable_ = false; }
  // Releases all threads inside communicators, as the end of the process does.
  void let_go() {
    const std::scoped_lock lock(mutex_);
    lets_go_ = true;
    changed_.notify_all();
  }

 private:
  friend struct NcclComm;
  using Lock = std::unique_lock<std::mutex>;
  enum class Kind { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, recv };

  struct Call {
    Kind kind;
    const void* input;
    void* output;
    size_t count;
    NcclType type;
    NcclReduction reduction;
    int other;  // root, or the other end of a message
    bool is_message() const { return kind == Kind::send || kind == Kind::recv; }
    bool agrees_with(const Call& call) const {
      return std::tie(kind, count, type, reduction, other) ==
             std::tie(call.kind, call.count, call.type, call.reduction, call.other);
    }
  };
  struct Collective {
    std::optional<Call> issued;  // by the first member
    std::map<int64_t, Call> begun;
    bool done = false;
  };
  struct Message {
    Call call;
    bool received = false;
  };
  struct SplitEntry {
    NcclComm* parent;
    int color, key;
    NcclComm** made;
    NcclConfig config;
  };
  // A communicator, shared by all its members.
  struct Clique {
    int64_t id;
    std::vector<NcclComm*> ends;
    size_t size;
    std::map<int64_t, Collective> collectives;
    std::map<std::pair<int64_t, int64_t>, std::deque<std::shared_ptr<Message>>> messages;
    std::map<std::tuple<Kind, int64_t, int64_t>, std::set<int64_t>> connected;
    std::map<int64_t, std::vector<SplitEntry>> splits;
    size_t finalized = 0;
  };
  struct Grouped {
    int64_t depth = 0;
    std::optional<bool> blocking;  // of the aborted communicators
    std::vector<std::tuple<NcclComm*, Call, void*>> calls;
  };

  NcclResult mistake(const std::string& what) {
    mistakes_.push_back(what);
    return NcclResult::invalid_usage;
  }
  int64_t count(const int64_t& counter) {
    const std::scoped_lock lock(mutex_);
    return counter;
  }
  int64_t count(std::map<int64_t, int64_t>& counters, int64_t rank) {
    const std::scoped_lock lock(mutex_);
    return counters[rank];
  }

  NcclComm* make_end(Clique& clique, int64_t world_rank, FakeDeviceRuntime& device, const NcclConfig& config);
  bool is_usable(const NcclComm* comm, const char* what);
  bool config_is_sound(const NcclConfig& config);
  NcclResult init(NcclComm** comm, int size, const NcclUniqueId& id, int rank, const NcclConfig& config, int64_t here,
                  FakeDeviceRuntime& device);
  NcclResult split(NcclComm* parent, int color, int key, NcclComm** made, const NcclConfig& config);
  void complete_split(std::vector<SplitEntry>& entries);
  NcclResult finalize(NcclComm* comm);
  NcclResult destroy(NcclComm* comm);
  NcclResult abort(NcclComm* comm);
  NcclResult revoke(NcclComm* comm);
  static void withdraw(const NcclComm& comm);
  NcclResult async_error(const NcclComm* comm, NcclResult* error);
  NcclResult issue(NcclComm* comm, const Call& call, void* stream);
  NcclResult end_group(int64_t rank);
  NcclResult launch(Lock& lock, NcclComm* comm, const std::vector<Call>& calls, void* stream);
  static int64_t size_class(const Call& call);
  bool connect(Lock& lock, NcclComm* comm, const std::vector<Call>& calls);
  void run(NcclComm* comm, const std::vector<std::pair<Call, int64_t>>& calls);
  void complete(const Collective& collective);
  std::vector<std::string> crossed_orders() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<NcclComm>> ends_;  // kept forever, so that late uses are detected
  std::vector<std::unique_ptr<Clique>> cliques_;
  std::map<uint64_t, Clique*> parents_;  // by unique id
  std::map<std::pair<int64_t, std::thread::id>, Grouped> groups_;
  std::vector<std::string> mistakes_;
  std::vector<std::vector<std::vector<int64_t>>> splits_;
  std::map<int64_t, std::vector<const Clique*>> order_;  // the order of each rank's collectives
  std::map<int64_t, NcclResult> async_errors_;
  std::map<int64_t, int64_t> aborts_, open_;
  int64_t connections_ = 0, begun_ = 0, finalized_ = 0;
  uint64_t ids_ = 0;
  int version_ = 22809;
  bool holds_splits_ = false, is_revocable_ = true, lets_go_ = false;
};

// One rank's end of a communicator.
struct NcclComm {
  enum class State { open, finalized, revoked, destroyed, aborted };
  MockNccl::Clique* clique;
  int64_t member;
  int64_t rank;  // in the world
  FakeDeviceRuntime* device;
  bool blocking;
  int64_t thread_blocks;  // for its kernels
  std::shared_ptr<void> memory;
  State state = State::open;
  NcclResult result = NcclResult::success;
  int64_t collectives = 0, splits = 0, under_way = 0;
  int64_t inside = 0;  // number of threads that wait in a call
  void* stream = nullptr;
};

inline NcclComm* MockNccl::make_end(Clique& clique, int64_t world_rank, FakeDeviceRuntime& device,
                                    const NcclConfig& config) {
  auto end = std::make_unique<NcclComm>();
  end->clique = &clique;
  end->member = static_cast<int64_t>(clique.ends.size());
  end->rank = world_rank;
  end->device = &device;
  end->blocking = config.blocking != 0;
  end->thread_blocks = config.max_ctas == NcclConfig::undefined ? usual_thread_blocks : config.max_ctas;
  end->memory = device.allocate(communicator_bytes);
  ++open_[world_rank];
  clique.ends.push_back(end.get());
  return ends_.emplace_back(std::move(end)).get();
}

inline bool MockNccl::is_usable(const NcclComm* comm, const char* what) {
  if (comm == nullptr) {
    mistake(concat(what, " without a communicator"));
  } else if (comm->state != NcclComm::State::open) {
    mistake(concat(what, " after the end of its communicator"));
  } else if (comm->result == NcclResult::in_progress) {
    mistake(concat(what, " before the call before it is done"));
  } else {
    return true;
  }
  return false;
}

inline bool MockNccl::config_is_sound(const NcclConfig& config) {
  return config.magic == 0xcafebeef && config.size <= sizeof config && config.version >= 21800 &&
         (config.blocking == 0 || config.blocking == 1) && config.split_share != 1;
}

inline NcclResult MockNccl::init(NcclComm** comm, int size, const NcclUniqueId& id, int rank, const NcclConfig& config,
                                 int64_t here, FakeDeviceRuntime& device) {
  const std::scoped_lock lock(mutex_);
  uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  if (number == 0 || number > ids_) return mistake("an id that nobody has given");
  if (!config_is_sound(config) || config.blocking != 0) return mistake("a configuration that this is not made for");
  Clique*& clique = parents_[number];
  if (clique == nullptr) {
    clique = cliques_.emplace_back(std::make_unique<Clique>()).get();
    clique->id = static_cast<int64_t>(cliques_.size());
    clique->size = size;
  }
  *comm = make_end(*clique, here, device, config);
  (*comm)->member = rank;
  (*comm)->result = NcclResult::in_progress;
  if (clique->ends.size() == clique->size) {
    std::sort(clique->ends.begin(), clique->ends.end(),
              [](const NcclComm* a, const NcclComm* b) { return a->member < b->member; });
    for (NcclComm* end : clique->ends) end->result = NcclResult::success;
  }
  return NcclResult::in_progress;
}

inline NcclResult MockNccl::split(NcclComm* parent, int color, int key, NcclComm** made, const NcclConfig& config) {
  const std::scoped_lock lock(mutex_);
  if (!is_usable(parent, "a split")) return NcclResult::invalid_usage;
  if (!config_is_sound(config) || color < nccl_no_color) return mistake("a split that this is not made for");
  *made = nullptr;
  parent->result = NcclResult::in_progress;
  std::vector<SplitEntry>& entries = parent->clique->splits[parent->splits++];
  entries.push_back({parent, color, key, made, config});
  if (entries.size() == parent->clique->size && !holds_splits_) complete_split(entries);
  return NcclResult::success;  // as NCCL, although the split goes on
}

inline void MockNccl::complete_split(std::vector<SplitEntry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const SplitEntry& a, const SplitEntry& b) {
    return std::tie(a.color, a.key, a.parent->member) < std::tie(b.color, b.key, b.parent->member);
  });
  std::map<int, Clique*> by_color;
  std::vector<std::vector<int64_t>> members;
  for (const SplitEntry& entry : entries) {
    entry.parent->result = NcclResult::success;
    if (entry.color == nccl_no_color) continue;
    Clique*& clique = by_color[entry.color];
    if (clique == nullptr) {
      clique = cliques_.emplace_back(std::make_unique<Clique>()).get();
      clique->id = static_cast<int64_t>(cliques_.size());
      members.emplace_back();
    }
    try {
      *entry.made = make_end(*clique, entry.parent->rank, *entry.parent->device, entry.config);
    } catch (const InternalError&) {  // the device is full, and the others do not learn of it
      for (const SplitEntry& other : entries) other.parent->result = NcclResult::in_progress;
      entry.parent->result = NcclResult::unhandled_device_error;
      return;
    }
    clique->size = clique->ends.size();
    members.back().push_back(entry.parent->rank);
  }
  splits_.push_back(members);
}

inline NcclResult MockNccl::finalize(NcclComm* comm) {
  Lock lock(mutex_);
  if (!is_usable(comm, "an end")) return NcclResult::invalid_usage;
  if (comm->under_way > 0) mistake("an end with operations under way");
  comm->state = NcclComm::State::finalized;
  ++comm->clique->finalized;
  ++finalized_;
  changed_.notify_all();
  if (!comm->blocking) return NcclResult::in_progress;
  ++comm->inside;
  changed_.wait(lock, [&] {
    return comm->clique->finalized == comm->clique->size || comm->state == NcclComm::State::aborted || lets_go_;
  });
  --comm->inside;
  return comm->state == NcclComm::State::aborted ? NcclResult::internal_error : NcclResult::success;
}

inline NcclResult MockNccl::destroy(NcclComm* comm) {
  const std::scoped_lock lock(mutex_);
  if (comm == nullptr || comm->state != NcclComm::State::finalized) return mistake("destroyed before its end");
  comm->state = NcclComm::State::destroyed;
  comm->memory.reset();
  --open_[comm->rank];
  return NcclResult::success;
}

// After an abort, the buffers of an end's operations may be freed, so the other members must not access them.
inline void MockNccl::withdraw(const NcclComm& comm) {
  for (auto& [number, collective] : comm.clique->collectives) {
    if (!collective.done) collective.begun.erase(comm.member);
  }
  for (auto& [ends, messages] : comm.clique->messages) {
    if (ends.first == comm.member) messages.clear();
  }
}

inline NcclResult MockNccl::abort(NcclComm* comm) {
  const std::scoped_lock lock(mutex_);
  if (comm == nullptr || comm->state == NcclComm::State::destroyed || comm->state == NcclComm::State::aborted) {
    return mistake("an abort after the end of its communicator");
  }
  if (comm->inside > 0) mistake("an abort frees a communicator that another thread is inside");
  const bool others_are_busy = std::any_of(ends_.begin(), ends_.end(), [&](const auto& end) {
    return end.get() != comm && end->rank == comm->rank && end->state == NcclComm::State::open && end->under_way > 0;
  });
  Grouped& group = groups_[{comm->rank, std::this_thread::get_id()}];
  if (group.depth == 0) {
    if (others_are_busy) mistake("an abort that waits for the kernels of another communicator");
  } else if (std::exchange(group.blocking, comm->blocking).value_or(comm->blocking) != comm->blocking) {
    mistake("a group of blocking and non-blocking communicators");
  }
  comm->state = NcclComm::State::aborted;
  withdraw(*comm);
  comm->memory.reset();
  --open_[comm->rank];
  ++aborts_[comm->rank];
  changed_.notify_all();
  return NcclResult::success;
}

inline NcclResult MockNccl::revoke(NcclComm* comm) {
  const std::scoped_lock lock(mutex_);
  if (comm == nullptr || comm->state != NcclComm::State::open) return NcclResult::invalid_argument;
  comm->state = NcclComm::State::revoked;
  withdraw(*comm);
  changed_.notify_all();
  return NcclResult::success;
}

inline NcclResult MockNccl::async_error(const NcclComm* comm, NcclResult* error) {
  const std::scoped_lock lock(mutex_);
  if (comm == nullptr || comm->state == NcclComm::State::destroyed || comm->state == NcclComm::State::aborted) {
    return mistake("a question after the end of its communicator");
  }
  *error = comm->result;
  if (comm->state == NcclComm::State::finalized && comm->clique->finalized < comm->clique->size) {
    *error = NcclResult::in_progress;
  }
  const auto injected = async_errors_.find(comm->rank);
  if (injected != async_errors_.end()) *error = injected->second;
  return NcclResult::success;
}

inline NcclResult MockNccl::issue(NcclComm* comm, const Call& call, void* stream) {
  Lock lock(mutex_);
  if (!is_usable(comm, "an operation")) return NcclResult::invalid_usage;
  if (!comm->blocking) return mistake("an operation on the parent");
  if (call.count == 0 || (call.other >= 0 && static_cast<size_t>(call.other) >= comm->clique->size)) {
    return mistake("an operation with wrong arguments");
  }
  Grouped& group = groups_[{comm->rank, std::this_thread::get_id()}];
  if (group.depth == 0) return launch(lock, comm, {call}, stream);
  group.calls.emplace_back(comm, call, stream);
  return NcclResult::success;
}

inline NcclResult MockNccl::end_group(int64_t rank) {
  Lock lock(mutex_);
  Grouped& group = groups_[{rank, std::this_thread::get_id()}];
  if (group.depth == 0) return mistake("the end of no group");
  if (--group.depth > 0) return NcclResult::success;
  group.blocking.reset();
  const auto calls = std::exchange(group.calls, {});
  std::map<std::pair<NcclComm*, void*>, std::vector<Call>> batches;
  for (const auto& [comm, call, stream] : calls) batches[{comm, stream}].push_back(call);
  for (const auto& [where, batch] : batches) {
    const NcclResult result = launch(lock, where.first, batch, where.second);
    if (result != NcclResult::success) return result;
  }
  return NcclResult::success;
}

inline NcclResult MockNccl::launch(Lock& lock, NcclComm* comm, const std::vector<Call>& calls, void* stream) {
  if (comm->stream != nullptr && comm->stream != stream) return mistake("a communicator on two streams");
  comm->stream = stream;
  std::vector<std::pair<Call, int64_t>> numbered;
  for (Call call : calls) {
    int64_t number = -1;
    if (!call.is_message()) {
      number = comm->collectives++;
      Collective& collective = comm->clique->collectives[number];
      if (!collective.issued) collective.issued = call;
      if (!call.agrees_with(*collective.issued)) return mistake("members give a collective different arguments");
      order_[comm->rank].push_back(comm->clique);
    }
    call.input = comm->device->on_host<void>(call.input);
    call.output = comm->device->on_host<void>(call.output);
    numbered.emplace_back(call, number);
  }
  if (!connect(lock, comm, calls)) return NcclResult::internal_error;
  ++comm->under_way;
  comm->device->launch([this, comm, numbered] { run(comm, numbered); }, stream, comm->thread_blocks);
  return NcclResult::success;
}

// Stands for NCCL's choice of algorithm and protocol: trees for small vectors, rings for large ones.
inline int64_t MockNccl::size_class(const Call& call) {
  const size_t bytes = call.count * (call.type == NcclType::uint8 ? 1 : call.type == NcclType::bfloat16 ? 2 : 4);
  return bytes < (1 << 12) ? 0 : bytes < (1 << 18) ? 1 : 2;
}

// Waits on the host until all members that an operation of this kind connects have reached one.
inline bool MockNccl::connect(Lock& lock, NcclComm* comm, const std::vector<Call>& calls) {
  Clique& clique = *comm->clique;
  std::vector<std::pair<std::set<int64_t>*, size_t>> waits;
  for (const Call& call : calls) {
    std::tuple<Kind, int64_t, int64_t> what{call.kind, size_class(call), -1};
    if (call.kind == Kind::send) what = {Kind::send, comm->member, call.other};
    if (call.kind == Kind::recv) what = {Kind::send, call.other, comm->member};
    std::set<int64_t>& arrived = clique.connected[what];
    if (!arrived.insert(comm->member).second) continue;
    ++connections_;
    waits.emplace_back(&arrived, call.is_message() ? 2 : clique.size);
  }
  changed_.notify_all();
  ++comm->inside;
  for (const auto& [arrived, number] : waits) {
    changed_.wait(lock, [&, &all = *arrived, &expected = number] {
      return all.size() == expected || comm->state != NcclComm::State::open || lets_go_;
    });
  }
  --comm->inside;
  return comm->state == NcclComm::State::open && !lets_go_;
}

// Runs on the stream.
inline void MockNccl::run(NcclComm* comm, const std::vector<std::pair<Call, int64_t>>& calls) {
  Lock lock(mutex_);
  ++begun_;
  Clique& clique = *comm->clique;
  const auto is_ended = [&] {
    return comm->state == NcclComm::State::aborted || comm->state == NcclComm::State::revoked;
  };
  if (is_ended()) {
    --comm->under_way;
    return;
  }
  const auto wait = [&](const auto& is_done) {
    changed_.wait(lock, [&] { return is_done() || is_ended(); });
    return !is_ended();
  };
  std::vector<std::shared_ptr<Message>> sent;
  std::vector<const Collective*> collectives;
  for (const auto& [call, number] : calls) {
    if (call.kind == Kind::send) {
      sent.push_back(std::make_shared<Message>(Message{call}));
      clique.messages[{comm->member, call.other}].push_back(sent.back());
    } else if (!call.is_message()) {
      Collective& collective = clique.collectives[number];
      collective.begun[comm->member] = call;
      collectives.push_back(&collective);
      if (collective.begun.size() == clique.size) {
        complete(collective);
        collective.done = true;
      }
    }
  }
  changed_.notify_all();
  for (const auto& [call, number] : calls) {
    if (call.kind != Kind::recv) continue;
    auto& arriving = clique.messages[{call.other, comm->member}];
    if (!wait([&] { return !arriving.empty(); })) break;
    const std::shared_ptr<Message> message = arriving.front();
    arriving.pop_front();
    if (message->call.count != call.count || message->call.type != call.type) mistake("a message of another size");
    const size_t count = std::min(message->call.count, call.count);
    for (const DataType type : all_types) {
      if (nccl_type(type) == call.type) std::memcpy(call.output, message->call.input, count * size_of(type));
    }
    message->received = true;
    changed_.notify_all();
  }
  for (const auto& message : sent) wait([&] { return message->received; });
  for (const Collective* collective : collectives) wait([&] { return collective->done; });
  --comm->under_way;
}

inline void MockNccl::complete(const Collective& collective) {
  const Call& first = collective.begun.begin()->second;
  const auto members = static_cast<int64_t>(collective.begun.size());
  DataType type = DataType::byte;
  for (const DataType known : all_types) {
    if (nccl_type(known) == first.type) type = known;
  }
  const int64_t bytes = static_cast<int64_t>(first.count) * size_of(type);
  std::vector<Bytes> inputs;
  for (const auto& [member, call] : collective.begun) {
    if (call.kind == Kind::broadcast && member != call.other) continue;
    const auto* const begin = static_cast<const std::byte*>(call.input);
    inputs.emplace_back(begin, begin + (call.kind == Kind::reduce_scatter ? members * bytes : bytes));
  }
  Bytes result;
  if (first.kind == Kind::all_gather || first.kind == Kind::broadcast) {
    for (const Bytes& input : inputs) result.insert(result.end(), input.begin(), input.end());
  } else {
    const Reduction reduction = first.reduction == NcclReduction::sum ? Reduction::sum : Reduction::maximum;
    result = reduce_reference(inputs, type, reduction);
  }
  for (const auto& [member, call] : collective.begun) {
    if (call.kind == Kind::reduce && member != call.other) continue;
    const bool takes_part = call.kind == Kind::reduce_scatter;
    std::memcpy(call.output, result.data() + (takes_part ? member * bytes : 0), takes_part ? bytes : result.size());
  }
}

// Finds two communicators whose collectives two ranks have begun in different orders. If a device ran one operation at
// a time, each of these ranks would wait forever in a different collective.
inline std::vector<std::string> MockNccl::crossed_orders() const {
  std::vector<std::string> found;
  const auto of_two = [&](int64_t rank, const Clique* a, const Clique* b) {
    std::vector<const Clique*> order;
    const auto all = order_.find(rank);
    if (all == order_.end()) return order;
    std::copy_if(all->second.begin(), all->second.end(), std::back_inserter(order),
                 [&](const Clique* clique) { return clique == a || clique == b; });
    return order;
  };
  for (size_t a = 0; a < cliques_.size(); ++a) {
    for (size_t b = a + 1; b < cliques_.size(); ++b) {
      std::optional<std::vector<const Clique*>> expected;
      for (const NcclComm* end : cliques_[a]->ends) {
        const auto& others = cliques_[b]->ends;
        const auto is_same_rank = [&](const NcclComm* other) { return other->rank == end->rank; };
        if (std::none_of(others.begin(), others.end(), is_same_rank)) continue;
        const auto order = of_two(end->rank, cliques_[a].get(), cliques_[b].get());
        if (!expected) expected = order;
        const size_t length = std::min(order.size(), expected->size());
        if (!std::equal(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(length), expected->begin())) {
          found.push_back(concat("communicators ", a, " and ", b, " in another order on rank ", end->rank));
        }
      }
    }
  }
  return found;
}

inline NcclInterface MockNccl::interface_of(int64_t rank, FakeDeviceRuntime& device) {
  NcclInterface nccl;
  nccl.get_version = [this](int* version) {
    *version = version_;
    return NcclResult::success;
  };
  nccl.get_unique_id = [this](NcclUniqueId* id) {
    const std::scoped_lock lock(mutex_);
    ++ids_;
    std::memcpy(id->bytes, &ids_, sizeof ids_);
    return NcclResult::success;
  };
  nccl.comm_init_rank_config = [this, rank, &device](NcclComm** comm, int size, NcclUniqueId id, int member,
                                                     NcclConfig* config) {
    return init(comm, size, id, member, *config, rank, device);
  };
  nccl.comm_split = [this](NcclComm* comm, int color, int key, NcclComm** made, NcclConfig* config) {
    return split(comm, color, key, made, *config);
  };
  nccl.comm_finalize = [this](NcclComm* comm) { return finalize(comm); };
  nccl.comm_destroy = [this](NcclComm* comm) { return destroy(comm); };
  nccl.comm_abort = [this](NcclComm* comm) { return abort(comm); };
  if (is_revocable_) nccl.comm_revoke = [this](NcclComm* comm, int) { return revoke(comm); };
  nccl.comm_get_async_error = [this](NcclComm* comm, NcclResult* error) { return async_error(comm, error); };
  nccl.get_error_string = [](NcclResult result) {
    return result == NcclResult::system_error ? "unhandled system error" : "some error";
  };
  nccl.get_last_error = [](NcclComm*) { return ""; };
  nccl.group_start = [this, rank] {
    const std::scoped_lock lock(mutex_);
    ++groups_[{rank, std::this_thread::get_id()}].depth;
    return NcclResult::success;
  };
  nccl.group_end = [this, rank] { return end_group(rank); };
  nccl.all_reduce = [this](const void* input, void* output, size_t size, NcclType type, NcclReduction reduction,
                           NcclComm* comm, void* stream) {
    return issue(comm, {Kind::all_reduce, input, output, size, type, reduction, -1}, stream);
  };
  nccl.reduce = [this](const void* input, void* output, size_t size, NcclType type, NcclReduction reduction, int root,
                       NcclComm* comm, void* stream) {
    return issue(comm, {Kind::reduce, input, output, size, type, reduction, root}, stream);
  };
  nccl.reduce_scatter = [this](const void* input, void* output, size_t size, NcclType type, NcclReduction reduction,
                               NcclComm* comm, void* stream) {
    return issue(comm, {Kind::reduce_scatter, input, output, size, type, reduction, -1}, stream);
  };
  nccl.all_gather = [this](const void* input, void* output, size_t size, NcclType type, NcclComm* comm, void* stream) {
    return issue(comm, {Kind::all_gather, input, output, size, type, {}, -1}, stream);
  };
  nccl.broadcast = [this](const void* input, void* output, size_t size, NcclType type, int root, NcclComm* comm,
                          void* stream) {
    return issue(comm, {Kind::broadcast, input, output, size, type, {}, root}, stream);
  };
  nccl.send = [this](const void* data, size_t size, NcclType type, int to, NcclComm* comm, void* stream) {
    return issue(comm, {Kind::send, data, nullptr, size, type, {}, to}, stream);
  };
  nccl.recv = [this](void* data, size_t size, NcclType type, int from, NcclComm* comm, void* stream) {
    return issue(comm, {Kind::recv, nullptr, data, size, type, {}, from}, stream);
  };
  return nccl;
}

}  // namespace copus
