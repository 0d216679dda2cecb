// Prepares a move while training continues: without collective operations, and without any effect on steps.
#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/base/text/units.h"
#include "copus/train/switch/relayout.h"

namespace copus {

namespace {

// Offsets of the blocks of a rank's state in its arena; one entry for each bucket.
struct ArenaBlocks {
  std::vector<int64_t> state;
  std::vector<int64_t> gradient;
};

std::vector<ArenaBlocks> blocks_of(const std::vector<BucketState>& state, const StateArena& arena) {
  std::vector<ArenaBlocks> blocks;
  const auto add = [&](std::vector<int64_t>& offsets, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() == 0) return;
    offsets.push_back(static_cast<const std::byte*>(tensor.data_ptr()) - arena.mine());
  };
  for (const BucketState& bucket : state) {
    ArenaBlocks& of_bucket = blocks.emplace_back();
    const bool owns_master = bucket.master.defined() && !bucket.master.is_alias_of(bucket.weight);
    add(of_bucket.state, bucket.weight);
    if (owns_master) add(of_bucket.state, bucket.master);
    for (const at::Tensor& slot : bucket.slots) add(of_bucket.state, slot);
    add(of_bucket.gradient, bucket.gradient);
  }
  return blocks;
}

// Simulates the allocations of allocate_state and allocate_gradient in an arena.
class TrialAllocation {
 public:
  TrialAllocation(ArenaSpace space, at::ScalarType compute_dtype, size_t num_slots)
      : space_(std::move(space)),
        weight_size_(static_cast<int64_t>(c10::elementSize(compute_dtype))),
        master_size_(static_cast<int64_t>(c10::elementSize(master_dtype_of(compute_dtype)))),
        num_shards_(num_slots + (weight_size_ == master_size_ ? 0 : 1)) {}

  void release(const std::vector<int64_t>& offsets) {
    for (const int64_t offset : offsets) space_.release(offset);
  }
  void allocate_state(const BucketOffsets& bucket) {
    if (bucket.gradient_only) return;
    const int64_t shard = bucket.shard_end - bucket.shard_begin;
    allocate(bucket.kept_weights.size() * weight_size_);
    for (size_t i = 0; i < num_shards_; ++i) allocate(shard * master_size_);
  }
  void allocate_gradient(const BucketOffsets& bucket) { allocate(bucket.kept_gradients.size() * master_size_); }

  int64_t high_water() const { return space_.high_water(); }

 private:
  void allocate(int64_t bytes) {
    if (bytes > 0) space_.allocate(bytes);
  }

  ArenaSpace space_;
  int64_t weight_size_, master_size_;
  size_t num_shards_;  // the optimizer's slots, and master weights if they are separate
};

// Returns the bytes, from the beginning of the arena, that the move and the new layout need. With `keeps_old`, the new
// state comes after the state of the old layout.
int64_t bytes_needed(const PreparedRelayout& prepared, const std::vector<ArenaBlocks>& old, TrialAllocation trial,
                     bool keeps_old) {
  for (const ArenaBlocks& bucket : old) trial.release(bucket.gradient);
  for (const RelayoutRound& round : prepared.plan.mine.rounds) {
    for (const int64_t bucket : round.allocate) trial.allocate_state(prepared.buckets[bucket]);
    for (const int64_t bucket : round.release) {
      if (!keeps_old) trial.release(old[bucket].state);
    }
  }
  for (const BucketOffsets& bucket : prepared.buckets) trial.allocate_gradient(bucket);
  return trial.high_water();
}

// The rank of the new layout that a process of the request becomes; empty if none.
std::optional<int64_t> rank_after(const RelayoutRequest& request, int64_t process) {
  const std::vector<int64_t>& processes = request.to_processes;
  if (processes.empty()) return process;
  const auto found = std::find(processes.begin(), processes.end(), process);
  return found == processes.end() ? std::nullopt : std::optional<int64_t>(found - processes.begin());
}

void prefault_reads(const RelayoutPlan& plan, int64_t process, const StateInArenas& state, int64_t element_size,
                    StateArena& arena) {
  for (const RelayoutRound& round : plan.mine.rounds) {
    for (const Transfer& transfer : round.receives) {
      if (transfer.sender == process || transfer.runs.empty()) continue;
      int64_t begin = transfer.runs.front().from, end = begin;
      for (const CopyRun& run : transfer.runs) {
        begin = std::min(begin, run.from);
        end = std::max(end, run.from + (run.rows - 1) * run.from_stride + run.count);
      }
      const int64_t offset = state.addresses.offset(transfer.sender, transfer.from_bucket, transfer.kind);
      arena.prefault_read(state.processes[transfer.sender], offset + begin * element_size, offset + end * element_size);
    }
  }
}

}  // namespace

std::future<PreparedRelayout> StateMover::prepare(const RelayoutRequest& request, int64_t process,
                                                  const std::vector<BucketState>& state, at::ScalarType compute_dtype,
                                                  bool keeps_old) const {
  std::vector<ArenaBlocks> blocks;
  std::optional<TrialAllocation> trial;
  if (arena_) {
    blocks = blocks_of(state, *arena_);
    trial.emplace(arena_->space(), compute_dtype, request.recipe.slots.size());
  }
  std::vector<int64_t> acts_for;
  if (!reads_arenas_) {
    for (const auto& [other, of_other] : stand_ins_.state) acts_for.push_back(other);
  }
  const auto element_size = static_cast<int64_t>(c10::elementSize(master_dtype_of(compute_dtype)));
  const auto get_ready = [request, process, acts_for, element_size, keeps_old, blocks = std::move(blocks),
                          trial = std::move(trial), arena = arena_, reads_arenas = reads_arenas_,
                          lies_in = lies_in_](PreparedRelayout& prepared) {
    prepared.plan = plan_relayout(request, process);
    prepared.process = process;
    prepared.num_slots = request.recipe.slots.size();
    for (const int64_t other : acts_for) prepared.stood_in[other] = plan_relayout(request, other).mine;
    if (const std::optional<int64_t> rank = rank_after(request, process)) {
      const Placement placement = place(request.model, request.to, request.sequence_length, *rank);
      prepared.parameters = list_local_parameters(request.model, placement);
      prepared.buckets = arrange_buckets(prepared.parameters, placement);
    }
    if (arena) {
      const int64_t bytes = bytes_needed(prepared, blocks, *trial, keeps_old);
      if (!arena->prefault(bytes)) {
        prepared.veto = Obstacle{
            concat("there is no memory for training state of ", format_bytes(static_cast<double>(bytes))), true};
      } else if (reads_arenas) {
        prefault_reads(prepared.plan, process, lies_in, element_size, *arena);
      }
    }
  };
  // Turns every failure into a veto: the state has not moved yet, so all ranks can continue in the old layout.
  const auto work = [get_ready] {
    const double begin = monotonic_seconds();
    PreparedRelayout prepared;
    try {
      get_ready(prepared);
    } catch (const std::exception& error) {
      prepared.veto = Obstacle{concat("it cannot prepare: ", error.what())};
    }
    prepared.seconds = monotonic_seconds() - begin;
    return prepared;
  };
  return std::async(std::launch::async, work);
}

}  // namespace copus
