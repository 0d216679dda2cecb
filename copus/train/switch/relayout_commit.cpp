// Moves the state at the step boundary, while training is paused on all ranks.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "copus/base/error.h"
#include "copus/train/switch/relayout.h"

namespace copus {

namespace {

std::byte* bytes_of(const at::Tensor& tensor) {
  COPUS_CHECK(tensor.device().is_cpu(), "arenas are host memory");
  return static_cast<std::byte*>(tensor.data_ptr());
}

// Copies runs from one buffer to another in host memory; elements have `element_size` bytes.
void copy_runs(const std::vector<CopyRun>& runs, const std::byte* from, std::byte* to, int64_t element_size) {
  for (const CopyRun& run : runs) {
    for (int64_t row = 0; row < run.rows; ++row) {
      std::memcpy(to + (run.to + row * run.to_stride) * element_size,
                  from + (run.from + row * run.from_stride) * element_size, run.count * element_size);
    }
  }
}

// Bytes of a bucket's state as the plan counts them: master weights and slots. The compute weights count only if they
// are the master weights.
int64_t state_bytes(const BucketState& state) {
  if (!state.weight.defined()) return 0;
  const bool weights_are_master = state.master.scalar_type() == state.weight.scalar_type();
  size_t bytes = (weights_are_master ? state.weight : state.master).nbytes();
  for (const at::Tensor& slot : state.slots) bytes += slot.nbytes();
  return static_cast<int64_t>(bytes);
}

}  // namespace

StateAddresses::StateAddresses(const std::vector<BucketState>& state, const StateArena& arena, int64_t journal,
                               Communicator& everyone) {
  const std::vector<StateKind> kinds = state_kinds(state.empty() ? 0 : state.front().slots.size());
  std::vector<int64_t> mine = {journal, std::ssize(kinds) + 1};
  const auto add = [&](const at::Tensor& buffer) {
    mine.push_back(buffer.defined() && buffer.numel() > 0 ? bytes_of(buffer) - arena.mine() : -1);
  };
  for (const BucketState& bucket : state) {
    add(bucket.gradient);
    for (const StateKind kind : kinds) add(buffer_of(bucket, kind));
  }
  const int64_t ranks = everyone.size();
  std::vector<int64_t> counts(ranks);
  const int64_t count = std::ssize(mine);
  everyone.all_gather(&count, counts.data(), std::vector<int64_t>(ranks, 1), DataType::int64);
  std::vector<int64_t> all;
  for (const int64_t words : counts) all.resize(all.size() + words);
  everyone.all_gather(mine.data(), all.data(), counts, DataType::int64);
  auto next = all.begin();
  for (const int64_t words : counts) {
    offsets_.emplace_back(next, next + words);
    next += words;
  }
}

int64_t StateAddresses::found(int64_t rank, int64_t bucket, int64_t which) const {
  const std::vector<int64_t>& of_rank = offsets_.at(rank);
  COPUS_CHECK(which < of_rank.at(1), which);
  const int64_t offset = of_rank.at(2 + bucket * of_rank.at(1) + which);
  COPUS_CHECK(offset >= 0, "rank ", rank, " has no such state of bucket ", bucket);
  return offset;
}

int64_t StateAddresses::offset(int64_t rank, int64_t bucket, StateKind kind) const {
  return found(rank, bucket, 1 + static_cast<int64_t>(kind));
}

int64_t StateAddresses::gradient(int64_t rank, int64_t bucket) const { return found(rank, bucket, 0); }

int64_t StateAddresses::journal(int64_t rank) const { return offsets_.at(rank).front(); }

std::vector<int64_t> ranks_as_processes(const World& world) {
  std::vector<int64_t> processes(world.size());
  std::iota(processes.begin(), processes.end(), 0);
  return processes;
}

StateMover::StateMover(World& world, at::Device device, bool shares_memory, const std::vector<int64_t>& processes,
                       const std::vector<int64_t>& machines)
    : world_(world),
      arena_(shares_memory && device.is_cpu() ? StateArena::join(world, processes, machines) : nullptr),
      reads_arenas_(arena_ && arena_->are_on_one_machine(processes)) {
  memory_ = arena_ ? arena_memory(arena_) : allocator_memory(device);
}

StateMover::StateMover(World& world, std::shared_ptr<StateArena> arena, StateInArenas state,
                       const std::vector<int64_t>& processes, StandIns stand_ins)
    : world_(world),
      arena_(std::move(arena)),
      reads_arenas_(arena_->are_on_one_machine(processes)),
      memory_(arena_memory(arena_)),
      lies_in_(std::move(state)),
      stand_ins_(std::move(stand_ins)) {}

void StateMover::settle(const std::vector<BucketState>& state, std::vector<int64_t> processes, int64_t journal) {
  if (arena_) lies_in_ = {std::move(processes), StateAddresses(state, *arena_, journal, world_.everyone())};
}

int64_t StateMover::move(const PreparedRelayout& prepared, at::ScalarType compute_dtype,
                         std::vector<BucketState>& state,
                         const std::function<void(const std::string& round)>& in_round) {
  BucketState without_state;  // for buckets that have only a gradient
  without_state.slots.resize(prepared.num_slots);
  std::vector<BucketState> to(prepared.buckets.size(), without_state);
  int64_t bytes = 0;
  for (const BucketState& bucket : state) bytes += state_bytes(bucket);
  int64_t peak = bytes;
  for (const auto& [from_bucket, to_bucket] : prepared.plan.mine.kept) {
    to[to_bucket] = state[from_bucket];
  }
  if (!reads_arenas_) {
    messages_.emplace(prepared.plan, prepared.process, prepared.stood_in, stand_ins_, world_.everyone());
  }
  int64_t number = 0;
  for (const RelayoutRound& round : prepared.plan.mine.rounds) {
    in_round(concat("round ", ++number, " of ", prepared.plan.num_rounds));
    for (const int64_t index : round.allocate) {
      BucketState& bucket = to[index];
      bucket = allocate_state(prepared.buckets[index], compute_dtype, prepared.num_slots, *memory_);
      bytes += state_bytes(bucket);
    }
    peak = std::max(peak, bytes);
    if (reads_arenas_) {
      take_from_arenas(round, to);
      world_.everyone().barrier();
    } else {
      messages_->take(number - 1, state, to);
    }
    for (const int64_t index : round.release) {
      BucketState& bucket = state[index];
      bytes -= state_bytes(bucket);
      bucket = {};
    }
  }
  messages_.reset();
  for (size_t bucket = 0; bucket < to.size(); ++bucket) {
    clear_padding(to[bucket], prepared.buckets[bucket], prepared.parameters);
  }
  state = std::move(to);
  return peak;
}

void StateMover::take_from_arenas(const RelayoutRound& round, const std::vector<BucketState>& to) const {
  for (const Transfer& transfer : round.receives) {
    const at::Tensor& buffer = buffer_of(to[transfer.to_bucket], transfer.kind);
    const std::byte* const from = arena_->of(lies_in_.processes[transfer.sender]) +
                                  lies_in_.addresses.offset(transfer.sender, transfer.from_bucket, transfer.kind);
    copy_runs(transfer.runs, from, bytes_of(buffer), static_cast<int64_t>(buffer.itemsize()));
  }
}

}  // namespace copus
