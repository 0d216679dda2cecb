// Plans a re-layout: Planner decides which contents move in which round and who sends; the public functions turn its
// decisions into one rank's plan, and into seconds.
#include "copus/placement/relayout_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/mix_bits.h"
#include "copus/description/configuration_fields.h"
#include "copus/placement/relayout_needs.h"
#include "copus/placement/relayout_order.h"
#include "copus/placement/relayout_transfers.h"
#include "copus/placement/state_placement.h"

namespace copus {

using namespace relayout;

namespace {

class Planner {
 public:
  explicit Planner(const RelayoutRequest& request)
      : request_(request), from_(request, request.from), to_(request, request.to) {
    COPUS_CHECK(request.from.world_size() == request.to.world_size(), request.from.world_size(), " and ",
                request.to.world_size(), " ranks");
    find_kept();
    find_moves();
    find_rounds();
  }

  int64_t num_ranks() const { return from_.mesh.size(); }
  const StatePlacement& from() const { return from_; }
  const StatePlacement& to() const { return to_; }
  const Rounds& rounds() const { return rounds_; }
  int64_t content_of(size_t move) const { return moves_[move].content; }
  void report_memory(RelayoutPlan& plan) const;

  // Tells whether a rank's buffers of the content are the same in both layouts.
  bool keeps(int64_t rank, int64_t content) const {
    return kept_[rank][from_.kind_of(content)] && old_place(rank, content) != nullptr &&
           new_place(rank, content) != nullptr;
  }
  const Place* old_place(int64_t rank, int64_t content) const {
    return from_.find_place(content, from_.mesh.coordinates(rank).pipeline);
  }
  const Place* new_place(int64_t rank, int64_t content) const {
    return to_.find_place(content, to_.mesh.coordinates(rank).pipeline);
  }

  // Visits the deliveries in a fixed order, on which the choice of the least loaded sender depends.
  template <class Visit>
  void for_deliveries(Visit visit) const;

 private:
  struct Choice;

  void find_kept();
  void find_moves();
  void find_rounds();
  int64_t node_of(int64_t rank) const { return request_.ranks_per_node > 0 ? rank / request_.ranks_per_node : 0; }
  template <class Give>
  void choose_whole(const Need& need, int64_t content, int64_t receiver, const Choice& choice, Give give) const;
  template <class Give>
  void choose_shares(const Need& need, int64_t content, int64_t receiver, const Choice& choice, Give give) const;

  const RelayoutRequest& request_;
  StatePlacement from_, to_;
  std::vector<std::array<bool, num_content_kinds>> kept_;  // by rank: whether equal, if held in both layouts
  std::vector<Move> moves_;
  std::vector<int64_t> old_bytes_, new_bytes_;  // by rank
  int64_t largest_bucket_bytes_ = 0, peak_bound_bytes_ = 0;
  Rounds rounds_;
};

void Planner::find_kept() {
  for (int64_t rank = 0; rank < num_ranks(); ++rank) {
    const MeshCoordinates before = from_.mesh.coordinates(rank), after = to_.mesh.coordinates(rank);
    std::array<bool, num_content_kinds>& kept = kept_.emplace_back();
    for (const ContentKind content : {embedding_content, layer_content, head_content}) {
      kept[content] =
          equal(from_.shape(content, before.tensor), to_.shape(content, after.tensor)) &&
          from_.stretch(StateKind::weights, content, before) == to_.stretch(StateKind::weights, content, after) &&
          from_.stretch(StateKind::exp_avg, content, before) == to_.stretch(StateKind::exp_avg, content, after);
    }
  }
}

void Planner::find_moves() {
  old_bytes_.resize(num_ranks());
  new_bytes_.resize(num_ranks());
  for (int64_t content = 0; content < from_.num_contents(); ++content) {
    Move move{.content = content, .allocated = {}, .released = {}};
    const auto add = [&](const StatePlacement& placement, std::vector<int64_t>& bytes, std::vector<Change>& changes) {
      for (int64_t rank = 0; rank < num_ranks(); ++rank) {
        const MeshCoordinates at = placement.mesh.coordinates(rank);
        if (placement.find_place(content, at.pipeline) == nullptr) continue;
        const int64_t bucket_bytes = placement.state_bytes(placement.kind_of(content), at);
        bytes[rank] += bucket_bytes;
        largest_bucket_bytes_ = std::max(largest_bucket_bytes_, bucket_bytes);
        if (!keeps(rank, content)) changes.push_back({rank, bucket_bytes});
      }
    };
    add(from_, old_bytes_, move.released);
    add(to_, new_bytes_, move.allocated);
    if (!move.allocated.empty() || !move.released.empty()) moves_.push_back(std::move(move));
  }
}

void Planner::find_rounds() {
  // The way back, from the new layout to the old one, has the same peaks, so its greedy order, read backwards, is
  // another candidate.
  std::vector<Move> back = moves_;
  for (Move& move : back) std::swap(move.allocated, move.released);
  std::vector<size_t> order = fill_lowest_first(moves_, old_bytes_), other = fill_lowest_first(back, new_bytes_);
  std::reverse(other.begin(), other.end());
  int64_t peak = highest(find_peaks(moves_, one_a_round(order), old_bytes_));
  if (const int64_t other_peak = highest(find_peaks(moves_, one_a_round(other), old_bytes_)); other_peak < peak) {
    peak = other_peak;
    order = std::move(other);
  }
  // The limit leaves room for as few buckets beside the state as the order needs. Every round costs a barrier, however,
  // so small buckets may share a round as long as they are together an eighth of the state.
  const int64_t at_rest = std::max(highest(old_bytes_), highest(new_bytes_));
  const int64_t needed = std::max<int64_t>(1, (peak - at_rest + largest_bucket_bytes_ - 1) / largest_bucket_bytes_);
  const int64_t cheap = std::min(num_ranks(), at_rest / 8 / largest_bucket_bytes_);
  peak_bound_bytes_ = at_rest + std::max(needed, cheap) * largest_bucket_bytes_;
  rounds_ = share_rounds(moves_, order, old_bytes_, peak_bound_bytes_);
}

void Planner::report_memory(RelayoutPlan& plan) const {
  plan.old_bytes = highest(old_bytes_);
  plan.new_bytes = highest(new_bytes_);
  plan.peak_bytes_by_rank = find_peaks(moves_, rounds_, old_bytes_);
  plan.peak_bytes = highest(plan.peak_bytes_by_rank);
  plan.peak_bound_bytes = peak_bound_bytes_;
}

// The state on which the choice of senders depends.
struct Planner::Choice {
  std::vector<int64_t> load;     // elements that each rank has to send
  std::vector<int64_t> senders;  // senders to the buffer that is being filled
};

// Chooses one sender that has every needed element: the receiver itself, else one on the same node; there and elsewhere
// one that sends to this buffer anyway, then the least loaded.
template <class Give>
void Planner::choose_whole(const Need& need, int64_t content, int64_t receiver, const Choice& choice, Give give) const {
  const int64_t own_tensor = from_.mesh.coordinates(receiver).tensor;
  if (old_place(receiver, content) != nullptr && own_tensor >= need.first_tensor &&
      own_tensor < need.first_tensor + need.replicas) {
    return give(receiver, need.elements);
  }
  using Preference = std::tuple<bool, int64_t, int64_t>;
  constexpr int64_t nobody = std::numeric_limits<int64_t>::max();
  Preference best{true, nobody, nobody};
  // Searches the world's ranks begin .. end - 1.
  const auto look_among = [&](int64_t begin, int64_t end) {
    for (const Place& place : from_.places(content)) {
      for (int64_t tensor = need.first_tensor; tensor < need.first_tensor + need.replicas; ++tensor) {
        const int64_t first = from_.mesh.rank({.data = 0, .tensor = tensor, .pipeline = place.pipeline});
        const int64_t stride = from_.tensor_parallel();
        const int64_t skipped = std::max<int64_t>(0, (begin - first + stride - 1) / stride);
        const int64_t last = std::min(end, first + from_.data_parallel() * stride);
        for (int64_t rank = first + skipped * stride; rank < last; rank += stride) {
          const bool is_sender = std::find(choice.senders.begin(), choice.senders.end(), rank) != choice.senders.end();
          best = std::min(best, Preference{!is_sender, choice.load[rank], rank});
        }
      }
    }
  };
  if (request_.ranks_per_node > 0) {
    const int64_t node = node_of(receiver) * request_.ranks_per_node;
    look_among(node, node + request_.ranks_per_node);
  }
  if (std::get<2>(best) == nobody) look_among(0, num_ranks());
  COPUS_CHECK(std::get<2>(best) != nobody);
  give(std::get<2>(best), need.elements);
}

// Chooses between the replicas and copies, each of which is shared out over data-parallel ranks: the one with most on
// the receiver, then on its node, then the one whose busiest sender has the least load.
template <class Give>
void Planner::choose_shares(const Need& need, int64_t content, int64_t receiver, const Choice& choice,
                            Give give) const {
  struct Preference {
    int64_t not_mine = std::numeric_limits<int64_t>::max(), off_node = 0, highest_load = 0;
    auto operator<=>(const Preference&) const = default;
  };
  Preference best;
  MeshCoordinates best_place;  // its data: the first rank of the copy
  const auto for_shares = [&](const MeshCoordinates& place, auto visit) {
    for (const auto& [share, elements] : need.shares[place.tensor - need.first_tensor]) {
      MeshCoordinates holder = place;
      holder.data += share;
      visit(from_.mesh.rank(holder), elements);
    }
  };
  const auto consider = [&](const MeshCoordinates& place) {
    Preference preference{.not_mine = 0};
    for_shares(place, [&](int64_t rank, int64_t elements) {
      preference.not_mine += rank == receiver ? 0 : elements;
      preference.off_node += node_of(rank) == node_of(receiver) ? 0 : elements;
      preference.highest_load = std::max(preference.highest_load, choice.load[rank] + elements);
    });
    if (preference < best) {
      best = preference;
      best_place = place;
    }
  };
  for (const Place& place : from_.places(content)) {
    for (int64_t tensor = need.first_tensor; tensor < need.first_tensor + need.replicas; ++tensor) {
      for (int64_t copy = 0; copy < from_.zero_replicas(); ++copy) {
        consider({.data = copy * from_.zero_shards(), .tensor = tensor, .pipeline = place.pipeline});
      }
    }
  }
  for_shares(best_place, give);
}

template <class Visit>
void Planner::for_deliveries(Visit visit) const {
  Needs needs(from_, to_);
  Choice choice{std::vector<int64_t>(num_ranks(), 0), {}};
  const StateKind weights = request_.weights_are_master ? StateKind::weights : StateKind::master;
  for (size_t round = 0; round < rounds_.size(); ++round) {
    for (const size_t index : rounds_[round]) {
      const Move& move = moves_[index];
      const ContentKind content_kind = to_.kind_of(move.content);
      for (const Change& allocated : move.allocated) {
        const int64_t receiver = allocated.rank;
        const MeshCoordinates here = to_.mesh.coordinates(receiver);
        for (const StateKind kind : {weights, StateKind::exp_avg, StateKind::exp_avg_sq}) {
          choice.senders.clear();
          for (const Need& need : needs.of(kind, content_kind, here)) {
            const auto give = [&](int64_t sender, int64_t elements) {
              const MeshCoordinates there = from_.mesh.coordinates(sender);
              const Place* const source = old_place(sender, move.content);
              COPUS_CHECK(source != nullptr, "rank ", sender, " does not hold content ", move.content);
              if (sender != receiver) choice.load[sender] += elements;
              choice.senders.push_back(sender);
              visit(Delivery{.round = round,
                             .content = move.content,
                             .kind = kind,
                             .sender = sender,
                             .receiver = receiver,
                             .from_bucket = source->bucket,
                             .to_bucket = new_place(receiver, move.content)->bucket,
                             .elements = elements,
                             .need = &need,
                             .sender_tensor = there.tensor,
                             .from_stretch = from_.stretch(kind, content_kind, there),
                             .to_stretch = to_.stretch(kind, content_kind, here)});
            };
            if (from_.is_cut(kind)) {
              choose_shares(need, move.content, receiver, choice, give);
            } else {
              choose_whole(need, move.content, receiver, choice, give);
            }
          }
        }
      }
    }
  }
}

class Fingerprint {
 public:
  template <class... Values>
  void add(Values... values) {
    ((hash_ = extend_hash(hash_, static_cast<uint64_t>(values))), ...);
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

void add_request(const RelayoutRequest& request, Fingerprint& hash) {
  visit_strategy([&](const ConfigurationField&, const auto& from, const auto& to) { hash.add(from, to); }, request.from,
                 request.to);
  for (const ParameterInfo& parameter : list_parameters(request.model)) {
    hash.add(parameter.kind, parameter.layer);
    for (const char letter : parameter.name) hash.add(letter);
    for (const int64_t length : parameter.shape) hash.add(length);
  }
  hash.add(request.model.tie_word_embeddings, request.sequence_length, request.weights_are_master,
           request.ranks_per_node);
}

}  // namespace

int64_t Transfer::num_elements() const {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const CopyRun& run) { return sum + run.rows * run.count; });
}

RelayoutPlan plan_relayout(const RelayoutRequest& request, int64_t rank) {
  const Planner planner(request);
  COPUS_CHECK(rank >= 0 && rank < planner.num_ranks(), rank, " of ", planner.num_ranks());
  RelayoutPlan plan;
  plan.num_rounds = std::ssize(planner.rounds());
  planner.report_memory(plan);

  for (int64_t content = 0; content < planner.from().num_contents(); ++content) {
    if (!planner.keeps(rank, content)) continue;
    plan.mine.kept.push_back({planner.old_place(rank, content)->bucket, planner.new_place(rank, content)->bucket});
  }
  Fingerprint hash;
  add_request(request, hash);
  for (const std::vector<size_t>& moves : planner.rounds()) {
    RelayoutRound& round = plan.mine.rounds.emplace_back();
    hash.add(moves.size());
    for (const size_t move : moves) {
      const int64_t content = planner.content_of(move);
      hash.add(content);
      if (planner.keeps(rank, content)) continue;
      if (const Place* place = planner.new_place(rank, content)) round.allocate.push_back(place->bucket);
      if (const Place* place = planner.old_place(rank, content)) round.release.push_back(place->bucket);
    }
    std::sort(round.allocate.begin(), round.allocate.end());
    std::sort(round.release.begin(), round.release.end());
  }
  std::vector<Transfers> receives(planner.rounds().size(), Transfers(planner.from(), planner.to())), sends = receives;
  planner.for_deliveries([&](const Delivery& delivery) {
    plan.bytes_copied += delivery.elements * bytes_per_element;
    if (delivery.sender != delivery.receiver) plan.bytes_received += delivery.elements * bytes_per_element;
    hash.add(delivery.kind, delivery.sender, delivery.receiver, delivery.from_bucket, delivery.to_bucket,
             delivery.elements);
    if (delivery.receiver == rank) {
      receives[delivery.round].add(delivery);
    } else if (delivery.sender == rank) {
      sends[delivery.round].add(delivery);
    }
  });
  for (size_t i = 0; i < plan.mine.rounds.size(); ++i) {
    plan.mine.rounds[i].receives = receives[i].take();
    plan.mine.rounds[i].sends = sends[i].take();
  }
  plan.hash = hash.value();
  return plan;
}

double relayout_seconds(const RelayoutRequest& request, const ClusterDescription& cluster) {
  const Planner planner(request);
  // Bytes by rank: sent and received within its node, then sent and received between nodes.
  std::vector<std::array<int64_t, 4>> bytes(planner.num_ranks());
  planner.for_deliveries([&](const Delivery& delivery) {
    if (delivery.sender == delivery.receiver) return;
    const bool same_node = delivery.sender / cluster.ranks_per_node == delivery.receiver / cluster.ranks_per_node;
    const size_t link = same_node ? 0 : 2;
    bytes[delivery.sender][link] += delivery.elements * bytes_per_element;
    bytes[delivery.receiver][link + 1] += delivery.elements * bytes_per_element;
  });
  const auto seconds_of = [](const Link& link, int64_t count) {
    const auto size = static_cast<double>(count);
    return count == 0 ? 0 : size / (link.bytes_per_second * link.efficiency.at(size));
  };
  double busiest = 0;
  bool between_nodes = false, any = false;
  for (const std::array<int64_t, 4>& of : bytes) {
    busiest = std::max({busiest, seconds_of(cluster.within_node, of[0]), seconds_of(cluster.within_node, of[1]),
                        seconds_of(cluster.between_nodes, of[2]), seconds_of(cluster.between_nodes, of[3])});
    between_nodes |= of[2] > 0;
    any |= of[0] > 0 || of[2] > 0;
  }
  if (!any) return 0;
  const double latency = between_nodes ? cluster.between_nodes.latency_seconds : cluster.within_node.latency_seconds;
  return busiest + static_cast<double>(planner.rounds().size()) * latency;
}

}  // namespace copus
