// Replays schedules as flat lists of passes that are written once, and continues short replays to long ones.
#include "copus/performance/pipeline_time.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "copus/base/error.h"
#include "copus/schedule/schedule.h"

namespace copus {

namespace {

// What a schedule and its seconds are, but for the number of micro-batches.
struct Pipeline {
  PipelineSchedule kind = PipelineSchedule::one_f_one_b;
  int64_t ranks = 1;
  int64_t chunks = 1;
  std::vector<StageSeconds> stages;
  bool operator==(const Pipeline&) const = default;
};

// Micro-batches of one kind of pass in the same order pass through every stage and every link between two of them: a
// flow shop of identical jobs, in which the first takes the sum and each further one the largest of the times.
double flow_shop_seconds(double sum, double largest, int64_t jobs) {
  return sum + static_cast<double>(jobs - 1) * largest;
}

// gpipe: once the last stage has done all F's, so have all others, and the B's (each with its W) flow back.
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

// One F or B (with the W's that go with it) of a replay: waits for a message, computes, sends one.
struct Pass {
  int32_t rank;
  int32_t cost;    // place among costs_of
  int32_t link;    // that the message which it sends takes
  int32_t awaits;  // place of a message
  int32_t sends;
};

// All passes of make_schedule(kind, p, v, m), in an order in which each comes behind those that it waits for. The lists
// are known well enough to be followed without writing them: what a rank does next is given by how many F's and B's it
// has done.
class Passes {
 public:
  Passes(PipelineSchedule kind, int64_t ranks, int64_t chunks, int64_t num_microbatches)
      : ranks_(ranks), chunks_(chunks), micro_batches_(num_microbatches), total_(num_microbatches * chunks) {
    const Schedule shape{ranks, chunks, num_microbatches, {}};
    std::vector<Rank> states(static_cast<size_t>(ranks));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      states[rank].most_ahead = activation_bound(kind, shape, rank);
      states[rank].weight_delay = kind == PipelineSchedule::zb_h1 ? rank : 0;
    }
    list_turns();
    sent_at_.assign(num_messages(), 0);
    sent_at_[nothing] = 1;
    const auto count = static_cast<size_t>(2 * total_ * ranks);
    while (in_turn_.size() < count) {
      const size_t before = in_turn_.size();
      // Up for the activations and down for the gradients, since that is how they travel.
      for (int64_t rank = 0; rank < ranks; ++rank) advance(rank, states[rank]);
      for (int64_t rank = ranks - 1; rank >= 0; --rank) advance(rank, states[rank]);
      COPUS_CHECK(in_turn_.size() > before, "the pipeline schedule deadlocks");
    }
    order_by_level();
  }

  const std::vector<Pass>& list() const { return list_; }
  size_t num_messages() const { return static_cast<size_t>(first_message + 2 * ranks_ * chunks_ * micro_batches_); }
  size_t num_links() const { return static_cast<size_t>(2 * ranks_ + 1); }
  // Of the W's that trail on a rank of zb-h1, those that are left after its last B.
  int64_t left_at_the_end(int64_t rank) const { return std::min(rank, total_); }

  // What a pass costs depends on its stage and is one of three.
  enum { forward_cost, backward_cost, backward_before_weight_cost, num_costs };
  // Messages that are there from the beginning, and that nobody awaits.
  static constexpr int64_t nothing = 0, nobody = 1, first_message = 2;

 private:
  struct Rank {
    int64_t forwards = 0;      // done
    int64_t backwards = 0;     // done
    int64_t most_ahead = 0;    // F's done before the next one waits for a B
    int64_t weight_delay = 0;  // B's between a B and its W
    int32_t level = 0;         // of its last pass
  };
  // What the k-th F works on; the k-th B on the same with the chunks from the last to the first.
  struct Turn {
    int64_t chunk;
    int64_t micro_batch;
  };
  struct Placed {
    Pass pass;
    int32_t level;
  };

  int64_t last_stage() const { return ranks_ * chunks_ - 1; }
  int64_t activation_to(int64_t stage, int64_t micro_batch) const {
    return first_message + stage * micro_batches_ + micro_batch;
  }
  int64_t gradient_to(int64_t stage, int64_t micro_batch) const {
    return activation_to(ranks_ * chunks_ + stage, micro_batch);
  }

  void list_turns() {
    for (int64_t first = 0; first < micro_batches_; first += ranks_) {
      const int64_t end = std::min(first + ranks_, micro_batches_);
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
        for (int64_t micro_batch = first; micro_batch < end; ++micro_batch) turns_.push_back({chunk, micro_batch});
      }
    }
  }

  // Follows a rank until it has to wait for a message that is not sent yet.
  void advance(int64_t index, Rank& rank) {
    while (rank.backwards < total_) {
      const bool is_forward = rank.forwards < total_ && rank.forwards < rank.backwards + rank.most_ahead;
      const Pass pass = is_forward ? forward(index, rank) : backward(index, rank);
      if (sent_at_[pass.awaits] == 0) return;
      rank.level = std::max(rank.level, sent_at_[pass.awaits]) + 1;
      sent_at_[pass.sends] = rank.level;
      in_turn_.push_back({pass, rank.level});
      ++(is_forward ? rank.forwards : rank.backwards);
    }
  }

  Pass forward(int64_t index, const Rank& rank) const {
    const auto [chunk, micro_batch] = turns_[rank.forwards];
    const int64_t stage = chunk * ranks_ + index;
    const bool sends = stage < last_stage();
    return make_pass(index, num_costs * stage + forward_cost, sends ? 2 * index : 2 * ranks_,
                     stage > 0 ? activation_to(stage, micro_batch) : nothing,
                     sends ? activation_to(stage + 1, micro_batch) : nobody);
  }

  Pass backward(int64_t index, const Rank& rank) const {
    const Turn turn = turns_[rank.backwards];
    const int64_t stage = (chunks_ - 1 - turn.chunk) * ranks_ + index;
    const bool sends = stage > 0;
    const bool weight_follows = rank.weight_delay > 0 && rank.backwards >= rank.weight_delay;
    // Two ranks have one link in each direction, for activations and gradients.
    const int64_t link = ranks_ == 2 ? 2 * index : 2 * index + 1;
    return make_pass(index, num_costs * stage + (weight_follows ? backward_before_weight_cost : backward_cost),
                     sends ? link : 2 * ranks_, stage < last_stage() ? gradient_to(stage, turn.micro_batch) : nothing,
                     sends ? gradient_to(stage - 1, turn.micro_batch) : nobody);
  }

  static Pass make_pass(int64_t rank, int64_t cost, int64_t link, int64_t awaits, int64_t sends) {
    return {static_cast<int32_t>(rank), static_cast<int32_t>(cost), static_cast<int32_t>(link),
            static_cast<int32_t>(awaits), static_cast<int32_t>(sends)};
  }

  // Passes of one level do not wait for each other: a processor can compute several at once.
  void order_by_level() {
    std::vector<size_t> begins;
    for (const Placed& placed : in_turn_) {
      begins.resize(std::max(begins.size(), static_cast<size_t>(placed.level) + 2));
      ++begins[placed.level + 1];
    }
    for (size_t level = 1; level < begins.size(); ++level) begins[level] += begins[level - 1];
    list_.resize(in_turn_.size());
    for (const Placed& placed : in_turn_) list_[begins[placed.level]++] = placed.pass;
    in_turn_ = {};
    turns_ = {};
    sent_at_ = {};
  }

  int64_t ranks_, chunks_, micro_batches_;
  int64_t total_;  // F's of a rank
  std::vector<Turn> turns_;
  std::vector<int32_t> sent_at_;  // by message: the level of the pass that sends it, 0: not yet
  std::vector<Placed> in_turn_;
  std::vector<Pass> list_;
};

// time_schedule's clocks, without writing down what happened when.
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
    clocks_.assign(static_cast<size_t>(pipeline.ranks), 0);
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

  std::vector<Cost> costs_;  // num_costs of each stage
  std::vector<double> clocks_;
  std::vector<double> links_;     // when they are free
  std::vector<double> arrivals_;  // by message
};

// Of F, B and W of one micro-batch on the busiest rank.
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

// Up to so many times p micro-batches (and less than one more) are replayed.
constexpr int64_t exact_rounds = 4;
// How far apart the bounds may lie between which the answer is taken.
constexpr double tolerance = 0.01;

}  // namespace

struct PipelineTimes::Memo {
  // One pipeline with what is known of it.
  struct Entry {
    Pipeline pipeline;
    double busiest = 0;
    std::vector<std::pair<int64_t, double>> replayed;  // seconds by number of micro-batches
  };
  static constexpr int slot_bits = 10;

  std::map<std::tuple<PipelineSchedule, int64_t, int64_t, int64_t>, Passes> all_passes;  // by p, v and m
  Replay replay;
  // By the hash of the pipeline; a new one takes the place of an older one.
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
    const auto passes =
        all_passes.try_emplace(shape, pipeline.kind, pipeline.ranks, pipeline.chunks, num_microbatches).first;
    const double seconds = replay.seconds(pipeline, passes->second);
    entry.replayed.emplace_back(num_microbatches, seconds);
    return seconds;
  }

  // The longest path through a replay grows with every further p micro-batches by as much as before, or by more where
  // another path overtakes it. In the end it is p times the busiest rank's seconds, or what slow messages allow if that
  // is more; the latter is known by not changing any more. By p micro-batches, since slow messages leave a pipeline
  // that holds up to p of them in a rhythm of p.
  double seconds(Entry& entry, int64_t num_microbatches) {
    const int64_t ranks = entry.pipeline.ranks;
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
  COPUS_CHECK(stages.size() == static_cast<size_t>(pipeline_parallel * virtual_stages));
  if (kind == PipelineSchedule::gpipe) return gpipe_seconds(stages, num_microbatches);
  return memo_->seconds(memo_->find(kind, pipeline_parallel, virtual_stages, stages), num_microbatches);
}

}  // namespace copus
