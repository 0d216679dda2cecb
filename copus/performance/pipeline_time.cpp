// Replays schedules as flat lists of passes, built once, and extrapolates long replays from short ones.
#include "copus/performance/pipeline_time.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "copus/base/error.h"
#include "copus/schedule/schedule.h"

namespace copus {

namespace {

// A schedule's kind and degrees with the stages' seconds, for any number of micro-batches.
struct Pipeline {
  PipelineSchedule kind = PipelineSchedule::one_f_one_b;
  int64_t ranks = 1;
  int64_t chunks = 1;
  std::vector<StageSeconds> stages;
  bool operator==(const Pipeline&) const = default;
};

// Returns the seconds in which `jobs` equal micro-batches go through all stages and links in order (a flow shop). The
// first micro-batch takes `sum`, the sum of the times of all stages and links; each further one adds `largest`, the
// largest of these times.
double flow_shop_seconds(double sum, double largest, int64_t jobs) {
  return sum + static_cast<double>(jobs - 1) * largest;
}

// Computes gpipe's time directly: all F passes until the last stage has completed them, then all B passes, each with
// its W.
double gpipe_seconds(const std::vector<StageSeconds>& stages, int64_t num_microbatches) {
  double forward_sum = 0, forward_largest = 0, backward_sum = 0, backward_largest = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const StageSeconds& seconds = stages[stage];
    const double activation = stage + 1 < stages.size() ? seconds.send : 0;
    const double gradient = stage > 0 ? seconds.send : 0;
    const double backward = seconds.backward_input + seconds.backward_weight;
    forward_sum += seconds.forward + activation;
    forward_largest = std::max({forward_largest, seconds.forward, activation});
    backward_sum += backward + gradient;
    backward_largest = std::max({backward_largest, backward, gradient});
  }
  return flow_shop_seconds(forward_sum, forward_largest, num_microbatches) +
         flow_shop_seconds(backward_sum, backward_largest, num_microbatches);
}

// One F, or one B with its W's, of a replay: waits for a message, computes, and sends a message.
struct Pass {
  int32_t rank;
  int32_t cost;    // index among the costs of every stage
  int32_t link;    // index of the link on which the pass sends
  int32_t awaits;  // index of the message for which the pass waits
  int32_t sends;
};

// A schedule's passes, in an order in which each pass follows those for which it waits.
class Passes {
 public:
  explicit Passes(const Schedule& schedule, bool weights_trail)
      : ranks_(schedule.pipeline_parallel),
        num_stages_(schedule.num_stages()),
        micro_batches_(schedule.num_microbatches),
        left_at_the_end_(ranks_, 0) {
    std::vector<std::vector<Pass>> by_rank;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      by_rank.push_back(passes_of(schedule, rank, weights_trail && rank > 0));
    }
    order_by_level(by_rank);
  }

  const std::vector<Pass>& list() const { return list_; }
  size_t num_messages() const { return first_message + 2 * num_stages_ * micro_batches_; }
  size_t num_links() const { return 2 * ranks_ + 1; }
  // If W's trail their B's: returns how many W's a rank has left after its last B and the W behind that B.
  int64_t left_at_the_end(int64_t rank) const { return left_at_the_end_[rank]; }

  // The costs of a pass on a stage.
  enum { forward_cost, backward_cost, backward_before_weight_cost, num_costs };
  // Indices of messages. `nothing` stands for an input that is available from the start, `nobody` for an output for
  // which no pass waits. Real messages begin at first_message.
  static constexpr int64_t nothing = 0, nobody = 1, first_message = 2;

 private:
  int64_t activation_to(int64_t stage, int64_t micro_batch) const {
    return first_message + stage * micro_batches_ + micro_batch;
  }
  int64_t gradient_to(int64_t stage, int64_t micro_batch) const {
    return activation_to(num_stages_ + stage, micro_batch);
  }

  std::vector<Pass> passes_of(const Schedule& schedule, int64_t rank, bool weights_trail) {
    std::vector<Pass> passes;
    int64_t awaits = nothing, backwards = 0;
    const auto begin = [&](int64_t cost) {
      passes.push_back({.rank = static_cast<int32_t>(rank),
                        .cost = static_cast<int32_t>(cost),
                        .link = static_cast<int32_t>(2 * ranks_),
                        .awaits = static_cast<int32_t>(std::exchange(awaits, nothing)),
                        .sends = nobody});
    };
    const auto send = [&](int64_t message, int64_t link) {
      passes.back().sends = static_cast<int32_t>(message);
      passes.back().link = static_cast<int32_t>(link);
    };
    for (const Action& action : schedule.ranks[rank]) {
      const int64_t stage = schedule.stage(rank, action.chunk);
      switch (action.kind) {
        case ActionKind::receive_activation:
          awaits = activation_to(stage, action.micro_batch);
          break;
        case ActionKind::receive_gradient:
          awaits = gradient_to(stage, action.micro_batch);
          break;
        case ActionKind::forward:
          begin(num_costs * stage + forward_cost);
          break;
        case ActionKind::backward_input:
          begin(num_costs * stage + backward_cost);
          ++backwards;
          break;
        case ActionKind::backward_weight:
          if (!weights_trail) break;  // counted in the preceding B
          // A rank's W's trail its B's by as many as its rank; the remaining W's follow the last B.
          if (backwards > rank && passes.back().cost % num_costs == backward_cost) {
            ++passes.back().cost;  // turns it into backward_before_weight_cost
          } else {
            ++left_at_the_end_[rank];
          }
          break;
        case ActionKind::send_activation:
          send(activation_to(stage + 1, action.micro_batch), 2 * rank);
          break;
        case ActionKind::send_gradient:
          // With two ranks, one link per direction carries both activations and gradients.
          send(gradient_to(stage - 1, action.micro_batch), ranks_ == 2 ? 2 * rank : 2 * rank + 1);
          break;
      }
    }
    return passes;
  }

  // Orders passes by level. Passes of a level do not wait for each other, so the processor can compute them in
  // parallel.
  void order_by_level(const std::vector<std::vector<Pass>>& by_rank) {
    std::vector<int32_t> sent_at(num_messages(), 0);  // by message: level of the pass that sends it; 0: not sent yet
    sent_at[nothing] = 1;
    std::vector<int32_t> level(ranks_, 0);  // level of each rank's last pass
    std::vector<size_t> next(ranks_, 0);
    std::vector<std::vector<Pass>> by_level;
    // Advances a rank until its next pass waits for a message that no pass has sent.
    const auto advance = [&](int64_t rank) {
      for (size_t& at = next[rank]; at < by_rank[rank].size(); ++at) {
        const Pass& pass = by_rank[rank][at];
        if (sent_at[pass.awaits] == 0) return;
        level[rank] = std::max(level[rank], sent_at[pass.awaits]) + 1;
        sent_at[pass.sends] = level[rank];
        by_level.resize(std::max<size_t>(by_level.size(), level[rank] + 1));
        by_level[level[rank]].push_back(pass);
      }
    };
    const size_t all = ranks_ * by_rank.front().size();
    for (size_t done = 0, before = 0; done < all; before = done) {
      // Visits ranks upwards, the direction of activations, then downwards, the direction of gradients.
      for (int64_t rank = 0; rank < ranks_; ++rank) advance(rank);
      for (int64_t rank = ranks_ - 1; rank >= 0; --rank) advance(rank);
      done = std::accumulate(next.begin(), next.end(), size_t{0});
      COPUS_CHECK(done > before, "the pipeline schedule deadlocks");
    }
    list_.reserve(all);
    for (const std::vector<Pass>& passes : by_level) list_.insert(list_.end(), passes.begin(), passes.end());
  }

  int64_t ranks_, num_stages_, micro_batches_;
  std::vector<int64_t> left_at_the_end_;  // by rank
  std::vector<Pass> list_;
};

// Computes when all ranks have finished.
class Replay {
 public:
  double seconds(const Pipeline& pipeline, const Passes& passes) {
    const bool weights_trail = pipeline.kind == PipelineSchedule::zb_h1;
    costs_.clear();
    for (size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
      const StageSeconds& of = pipeline.stages[stage];
      const bool trails = weights_trail && stage > 0;
      costs_.push_back({of.forward, of.send, 0});
      costs_.push_back({of.backward_input + (trails ? 0 : of.backward_weight), of.send, 0});
      costs_.push_back({of.backward_input, of.send, of.backward_weight});
    }
    clocks_.assign(pipeline.ranks, 0);
    links_.assign(passes.num_links(), 0);
    arrivals_.resize(std::max(arrivals_.size(), passes.num_messages()));
    arrivals_[Passes::nothing] = 0;
    for (const Pass& pass : passes.list()) {
      const Cost& cost = costs_[pass.cost];
      const double done = std::max(clocks_[pass.rank], arrivals_[pass.awaits]) + cost.before_send;
      const double arrived = std::max(links_[pass.link], done) + cost.send;
      links_[pass.link] = arrived;
      arrivals_[pass.sends] = arrived;
      clocks_[pass.rank] = done + cost.after_send;
    }
    double latest = 0;
    for (int64_t rank = 0; rank < pipeline.ranks; ++rank) {
      const double left = weights_trail ? static_cast<double>(passes.left_at_the_end(rank)) : 0;
      latest = std::max(latest, clocks_[rank] + left * pipeline.stages[rank].backward_weight);
    }
    return latest;
  }

 private:
  struct Cost {
    double before_send;
    double send;
    double after_send;
  };

  std::vector<Cost> costs_;  // num_costs for each stage
  std::vector<double> clocks_;
  std::vector<double> links_;     // time at which each link is free
  std::vector<double> arrivals_;  // time of arrival, by message
};

// Returns the seconds of F, B and W of one micro-batch on the busiest rank.
double busiest_seconds(const Pipeline& pipeline) {
  double largest = 0;
  for (int64_t rank = 0; rank < pipeline.ranks; ++rank) {
    double busy = 0;
    for (size_t stage = rank; stage < pipeline.stages.size(); stage += pipeline.ranks) {
      const StageSeconds& seconds = pipeline.stages[stage];
      busy += seconds.forward + seconds.backward_input + seconds.backward_weight;
    }
    largest = std::max(largest, busy);
  }
  return largest;
}

uint64_t hash_of(PipelineSchedule kind, int64_t ranks, const std::vector<StageSeconds>& stages) {
  constexpr uint64_t multiplier = 0x9E3779B97F4A7C15;  // of Fibonacci hashing (Knuth, volume 3, section 6.4)
  std::array<uint64_t, 4> lanes = {static_cast<uint64_t>(kind), static_cast<uint64_t>(ranks), stages.size(), 0};
  for (const StageSeconds& seconds : stages) {
    lanes[0] = (lanes[0] ^ std::bit_cast<uint64_t>(seconds.forward)) * multiplier;
    lanes[1] = (lanes[1] ^ std::bit_cast<uint64_t>(seconds.backward_input)) * multiplier;
    lanes[2] = (lanes[2] ^ std::bit_cast<uint64_t>(seconds.backward_weight)) * multiplier;
    lanes[3] = (lanes[3] ^ std::bit_cast<uint64_t>(seconds.send)) * multiplier;
    for (uint64_t& lane : lanes) lane ^= lane >> 32;
  }
  uint64_t hash = 0;
  for (const uint64_t lane : lanes) hash = (hash ^ lane) * multiplier;
  return hash;
}

// Up to (exact_rounds + 1) p - 1 micro-batches are replayed exactly.
constexpr int64_t exact_rounds = 4;
// Bounds on the time that differ by less than this fraction end the search.
constexpr double tolerance = 0.01;

}  // namespace

struct PipelineTimes::Memo {
  // A pipeline and its times so far.
  struct Entry {
    Pipeline pipeline;
    double busiest = 0;
    std::vector<std::pair<int64_t, double>> replayed;  // seconds by number of micro-batches
  };
  static constexpr int slot_bits = 10;

  std::map<std::tuple<PipelineSchedule, int64_t, int64_t, int64_t>, Passes> all_passes;  // by schedule, p, v and m
  Replay replay;
  // Indexed by the hash of the pipeline. A new pipeline replaces an older one with the same index.
  std::vector<Entry> slots = std::vector<Entry>(size_t{1} << slot_bits);

  Entry& find(PipelineSchedule kind, int64_t ranks, int64_t chunks, const std::vector<StageSeconds>& stages) {
    Entry& entry = slots[hash_of(kind, ranks, stages) >> (64 - slot_bits)];
    Pipeline& pipeline = entry.pipeline;
    if (pipeline.kind != kind || pipeline.ranks != ranks || pipeline.chunks != chunks || pipeline.stages != stages) {
      pipeline.kind = kind;
      pipeline.ranks = ranks;
      pipeline.chunks = chunks;
      pipeline.stages.assign(stages.begin(), stages.end());
      entry.busiest = busiest_seconds(pipeline);
      entry.replayed.clear();
    }
    return entry;
  }

  double replayed(Entry& entry, int64_t num_microbatches) {
    for (const auto& [known, seconds] : entry.replayed) {
      if (known == num_microbatches) return seconds;
    }
    const Pipeline& pipeline = entry.pipeline;
    const auto shape = std::tuple(pipeline.kind, pipeline.ranks, pipeline.chunks, num_microbatches);
    auto passes = all_passes.find(shape);
    if (passes == all_passes.end()) {
      const Schedule schedule = make_schedule(pipeline.kind, pipeline.ranks, pipeline.chunks, num_microbatches);
      passes = all_passes.emplace(shape, Passes(schedule, pipeline.kind == PipelineSchedule::zb_h1)).first;
    }
    const double seconds = replay.seconds(pipeline, passes->second);
    entry.replayed.emplace_back(num_microbatches, seconds);
    return seconds;
  }

  // Extrapolates from short replays. With each further p micro-batches, the time of a replay grows by an amount that
  // stays the same, or rises once another path becomes the longest. This growth ends at p times the busiest rank's
  // seconds, or at more if slow messages limit the pipeline. Growth is counted per p micro-batches, because a pipeline
  // with slow messages repeats its pattern after p.
  double seconds(Entry& entry, int64_t num_microbatches) {
    const int64_t ranks = entry.pipeline.ranks;
    // A shorter replay would have rounds of another size.
    if (entry.pipeline.chunks > 1 && num_microbatches % ranks != 0) return replayed(entry, num_microbatches);
    const int64_t all_rounds = num_microbatches / ranks;
    const auto after = [&](int64_t rounds) { return replayed(entry, rounds * ranks + num_microbatches % ranks); };
    const double busiest = entry.busiest * static_cast<double>(ranks);
    for (int64_t rounds = exact_rounds; rounds < all_rounds; rounds *= 2) {
      const double last = after(rounds);
      double growth = last - after(rounds - 1);
      if (growth > busiest * (1 + tolerance / 4)) {
        const auto half = rounds / 2, quarter = rounds / 4;
        const double middle = after(half);
        const double growth_before = (middle - after(quarter)) / static_cast<double>(half - quarter);
        growth = (last - middle) / static_cast<double>(rounds - half);
        if (std::abs(growth - growth_before) > tolerance / 4 * growth) continue;
      }
      const auto further = static_cast<double>(all_rounds - rounds);
      const double lower = std::max(last + growth * further, entry.busiest * static_cast<double>(num_microbatches));
      const double upper = last + std::max(growth, busiest) * further;
      if (upper - lower <= tolerance * lower) return (lower + upper) / 2;
    }
    return replayed(entry, num_microbatches);
  }
};

PipelineTimes::PipelineTimes() : memo_(std::make_unique<Memo>()) {}
PipelineTimes::~PipelineTimes() = default;

double PipelineTimes::seconds(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages,
                              int64_t num_microbatches, const std::vector<StageSeconds>& stages) {
  COPUS_CHECK(std::ssize(stages) == pipeline_parallel * virtual_stages);
  if (kind == PipelineSchedule::gpipe) return gpipe_seconds(stages, num_microbatches);
  return memo_->seconds(memo_->find(kind, pipeline_parallel, virtual_stages, stages), num_microbatches);
}

}  // namespace copus
