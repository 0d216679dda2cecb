// For tests: simulates a re-layout. Processes execute their plans on buffers in which each element of the model's state
// is a unique number. Returns a description of the first fault.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/placement/relayout_plan.h"
#include "copus/placement/sharding.h"

namespace copus::relayout_tests {

// Buffers by bucket and kind. Padding is 0.
using Buffers = std::map<std::pair<int64_t, StateKind>, std::vector<int64_t>>;

inline constexpr int64_t nothing_yet = -1;

inline std::vector<StateKind> kinds_of(const RelayoutRequest& request) {
  std::vector<StateKind> kinds = state_kinds(request.recipe.slots.size());
  kinds.erase(kinds.begin() + (request.recipe.keeps_master ? 0 : 1));  // either weights or master weights move
  return kinds;
}

// By process: its rank in the new layout; empty if it has none.
inline std::vector<std::optional<int64_t>> new_ranks(const RelayoutRequest& request) {
  std::vector<std::optional<int64_t>> ranks(static_cast<size_t>(request.from.world_size()));
  for (int64_t rank = 0; rank < request.to.world_size(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    const auto process = request.to_processes.empty() ? at : static_cast<size_t>(request.to_processes.at(at));
    ranks.resize(std::max(ranks.size(), process + 1));
    ranks[process] = rank;
  }
  return ranks;
}

// One rank of a layout, derived independently of the planner.
struct RankLayout {
  RankLayout(const RelayoutRequest& request, const ParallelStrategy& strategy, int64_t rank) {
    const Placement placement = place(request.model, strategy, request.sequence_length, rank);
    parameters = list_local_parameters(request.model, placement);
    buckets = arrange_buckets(parameters, placement);
  }

  Stretch stretch(int64_t bucket, StateKind kind) const {
    const BucketOffsets& of = buckets.at(static_cast<size_t>(bucket));
    return kind == StateKind::weights ? of.kept_weights : Stretch{of.shard_begin, of.shard_end};
  }

  std::vector<LocalParameter> parameters;
  std::vector<BucketOffsets> buckets;
};

class Numbers {
 public:
  explicit Numbers(const ModelDescription& model) {
    int64_t first = 1;
    for (const ParameterInfo& info : list_parameters(model)) {
      first_[info.name] = first;
      first += info.num_elements();
    }
    per_kind_ = first;
  }

  Buffers fill(const RelayoutRequest& request, const ParallelStrategy& strategy, int64_t rank) const {
    const RankLayout layout(request, strategy, rank);
    Buffers buffers;
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      const BucketOffsets& bucket = layout.buckets[b];
      if (bucket.gradient_only) continue;
      for (const StateKind kind : kinds_of(request)) {
        std::vector<int64_t> whole(static_cast<size_t>(bucket.size), 0);
        for (const auto& [index, offset] : bucket.entries) {
          const LocalParameter& parameter = layout.parameters[static_cast<size_t>(index)];
          const int64_t first = first_.at(parameter.info.name) + static_cast<int64_t>(kind) * per_kind_;
          for_stretches(parameter.box, parameter.info.shape, 0, parameter.box.num_elements(),
                        [&, start = offset](int64_t position, int64_t element, int64_t count) {
                          std::iota(whole.begin() + start + position, whole.begin() + start + position + count,
                                    first + element);
                        });
        }
        const Stretch held = layout.stretch(static_cast<int64_t>(b), kind);
        buffers[{static_cast<int64_t>(b), kind}].assign(whole.begin() + held.begin, whole.begin() + held.end);
      }
    }
    return buffers;
  }

 private:
  std::map<std::string, int64_t> first_;
  int64_t per_kind_ = 0;
};

inline int64_t bytes_of(const Buffers& buffers) {
  int64_t bytes = 0;
  for (const auto& [key, buffer] : buffers) bytes += 4 * static_cast<int64_t>(buffer.size());
  return bytes;
}

// The first fault, if any.
struct Problem {
  std::string text;
  template <class... Parts>
  void report(const Parts&... parts) {
    if (text.empty()) text = concat(parts...);
  }
};

// Executes the plans of all processes, on numbers.
class Simulation {
 public:
  Simulation(const RelayoutRequest& request, const std::vector<RelayoutPlan>& plans, std::vector<Buffers> state)
      : request_(request), plans_(plans), old_(std::move(state)), new_(plans.size()), peaks_(plans.size(), 0) {
    for (const std::optional<int64_t>& rank : new_ranks(request)) {
      std::optional<RankLayout>& layout = layouts_.emplace_back();
      if (rank) layout.emplace(request, request.to, *rank);
    }
  }

  std::string run() {
    note_peaks();
    for (size_t process = 0; process < plans_.size(); ++process) {
      if (plans_[process].hash != plans_[0].hash) problem_.report("another plan on process ", process);
      if (static_cast<int64_t>(plans_[process].mine.rounds.size()) != plans_[0].num_rounds) problem_.report("rounds");
    }
    for (int64_t round = 0; round < plans_[0].num_rounds && problem_.text.empty(); ++round) run_round(round);
    hand_over_kept();
    check_reports();
    return problem_.text;
  }

  std::vector<Buffers> take() { return std::move(new_); }

 private:
  const RelayoutRound& round_of(size_t process, int64_t round) const {
    return plans_[process].mine.rounds[static_cast<size_t>(round)];
  }

  void run_round(int64_t round) {
    for (size_t process = 0; process < plans_.size(); ++process) {
      for (const int64_t bucket : round_of(process, round).allocate) allocate(process, bucket);
    }
    note_peaks();
    for (size_t process = 0; process < plans_.size(); ++process) {
      std::tuple<int64_t, StateKind> last{-1, StateKind::weights};
      for (const Transfer& transfer : round_of(process, round).receives) {
        if (transfer.receiver != static_cast<int64_t>(process)) problem_.report("another's transfer");
        const std::tuple here{transfer.to_bucket, transfer.kind};
        if (here < last) problem_.report("receives are not in order");
        last = here;
        take(process, round, transfer);
      }
    }
    check_sends(round);
    for (size_t process = 0; process < plans_.size(); ++process) {
      for (const int64_t bucket : round_of(process, round).release) {
        for (const StateKind kind : kinds_of(request_)) {
          if (old_[process].erase({bucket, kind}) == 0) problem_.report("releases bucket ", bucket, " again");
        }
      }
    }
  }

  void allocate(size_t process, int64_t bucket) {
    if (!layouts_[process]) return problem_.report("process ", process, " allocates, and becomes no rank");
    const RankLayout& layout = *layouts_[process];
    for (const StateKind kind : kinds_of(request_)) {
      const Stretch held = layout.stretch(bucket, kind);
      std::vector<int64_t> buffer(static_cast<size_t>(held.size()), nothing_yet);
      for (const Stretch& gap : find_padding(layout.parameters, layout.buckets.at(static_cast<size_t>(bucket)))) {
        for (int64_t i = std::max(gap.begin, held.begin); i < std::min(gap.end, held.end); ++i) {
          buffer[static_cast<size_t>(i - held.begin)] = 0;
        }
      }
      if (!new_[process].try_emplace({bucket, kind}, std::move(buffer)).second) problem_.report("allocates twice");
    }
  }

  void take(size_t process, int64_t round, const Transfer& transfer) {
    const auto from = old_[static_cast<size_t>(transfer.sender)].find({transfer.from_bucket, transfer.kind});
    if (from == old_[static_cast<size_t>(transfer.sender)].end()) {
      return problem_.report("round ", round, ": process ", process, " reads bucket ", transfer.from_bucket,
                             " of process ", transfer.sender, ", which has no such bucket any more");
    }
    const auto to = new_[process].find({transfer.to_bucket, transfer.kind});
    if (to == new_[process].end()) return problem_.report("fills a bucket that is not there");
    for (const CopyRun& run : transfer.runs) {
      if (run.count <= 0 || run.rows <= 0) problem_.report("an empty run");
      for (int64_t row = 0; row < run.rows; ++row) {
        for (int64_t i = 0; i < run.count; ++i) {
          const auto source = static_cast<size_t>(run.from + row * run.from_stride + i);
          const auto target = static_cast<size_t>(run.to + row * run.to_stride + i);
          if (source >= from->second.size() || target >= to->second.size()) return problem_.report("outside a buffer");
          if (to->second[target] != nothing_yet) return problem_.report("delivers an element twice, or onto padding");
          to->second[target] = from->second[source];
        }
      }
    }
    copied_ += 4 * transfer.num_elements();
    if (transfer.sender != transfer.receiver) received_ += 4 * transfer.num_elements();
  }

  // Checks that the two processes of each transfer list it in the same order.
  void check_sends(int64_t round) {
    using Seen = std::tuple<int64_t, int64_t, StateKind, std::vector<int64_t>>;
    const auto seen = [](const Transfer& transfer) {
      std::vector<int64_t> numbers;
      for (const CopyRun& run : transfer.runs) {
        numbers.insert(numbers.end(), {run.from, run.to, run.count, run.rows, run.from_stride, run.to_stride});
      }
      return Seen{transfer.from_bucket, transfer.to_bucket, transfer.kind, numbers};
    };
    std::map<std::pair<int64_t, int64_t>, std::vector<Seen>> sent, received;
    for (size_t process = 0; process < plans_.size(); ++process) {
      for (const Transfer& transfer : round_of(process, round).sends) {
        if (transfer.sender != static_cast<int64_t>(process) || transfer.receiver == transfer.sender) {
          problem_.report("sends what is not its own");
        }
        sent[{transfer.sender, transfer.receiver}].push_back(seen(transfer));
      }
      for (const Transfer& transfer : round_of(process, round).receives) {
        if (transfer.sender != transfer.receiver) {
          received[{transfer.sender, transfer.receiver}].push_back(seen(transfer));
        }
      }
    }
    if (sent != received) problem_.report("sends are not what is received");
  }

  void hand_over_kept() {
    for (size_t process = 0; process < plans_.size(); ++process) {
      for (const auto& [from, to] : plans_[process].mine.kept) {
        for (const StateKind kind : kinds_of(request_)) {
          auto buffer = old_[process].extract({from, kind});
          if (buffer.empty()) return problem_.report("keeps what it does not have");
          buffer.key() = {to, kind};
          if (!new_[process].insert(std::move(buffer)).inserted) problem_.report("keeps and allocates bucket ", to);
        }
      }
      if (!old_[process].empty()) problem_.report("process ", process, " never releases a bucket");
    }
  }

  void note_peaks() {
    for (size_t process = 0; process < plans_.size(); ++process) {
      peaks_[process] = std::max(peaks_[process], bytes_of(old_[process]) + bytes_of(new_[process]));
      if (plans_[0].num_rounds > 0 && old_bytes_.size() < plans_.size()) old_bytes_.push_back(bytes_of(old_[process]));
    }
  }

  void check_reports() {
    int64_t new_bytes = 0;
    for (const Buffers& buffers : new_) new_bytes = std::max(new_bytes, bytes_of(buffers));
    for (const RelayoutPlan& plan : plans_) {
      if (plan.peak_bytes_by_rank != peaks_) problem_.report("other peaks than reported");
      if (plan.peak_bytes != *std::max_element(peaks_.begin(), peaks_.end())) problem_.report("another worst peak");
      if (plan.new_bytes != new_bytes) problem_.report("new bytes ", plan.new_bytes, " are ", new_bytes);
      if (!old_bytes_.empty() && plan.old_bytes != *std::max_element(old_bytes_.begin(), old_bytes_.end())) {
        problem_.report("old bytes");
      }
      if (plan.peak_bytes > plan.peak_bound_bytes) problem_.report("above the bound");
      if (plan.bytes_copied != copied_ || plan.bytes_received != received_) problem_.report("bytes");
    }
  }

  const RelayoutRequest& request_;
  const std::vector<RelayoutPlan>& plans_;
  std::vector<std::optional<RankLayout>> layouts_;  // by process: its new layout
  std::vector<Buffers> old_, new_;
  std::vector<int64_t> peaks_, old_bytes_;
  int64_t copied_ = 0, received_ = 0;
  Problem problem_;
};

inline std::vector<RelayoutPlan> plans_of_all_processes(const RelayoutRequest& request) {
  std::vector<RelayoutPlan> plans;
  for (size_t process = 0; process < new_ranks(request).size(); ++process) {
    plans.push_back(plan_relayout(request, static_cast<int64_t>(process)));
  }
  return plans;
}

// Return the correct state of every process in the old and in the new layout; empty for processes outside of the
// layout.
inline std::vector<Buffers> state_before(const RelayoutRequest& request) {
  const Numbers numbers(request.model);
  std::vector<Buffers> state(new_ranks(request).size());
  for (int64_t rank = 0; rank < request.from.world_size(); ++rank) {
    state[static_cast<size_t>(rank)] = numbers.fill(request, request.from, rank);
  }
  return state;
}
inline std::vector<Buffers> state_after(const RelayoutRequest& request) {
  const Numbers numbers(request.model);
  std::vector<Buffers> state;
  for (const std::optional<int64_t>& rank : new_ranks(request)) {
    state.push_back(rank ? numbers.fill(request, request.to, *rank) : Buffers());
  }
  return state;
}

// Executes the plans on the correct old state. Returns the first fault, in execution or in the new state.
inline std::string follow(const RelayoutRequest& request, const std::vector<RelayoutPlan>& plans) {
  Simulation simulation(request, plans, state_before(request));
  if (std::string problem = simulation.run(); !problem.empty()) return problem;
  return simulation.take() == state_after(request) ? "" : "another state";
}

}  // namespace copus::relayout_tests
