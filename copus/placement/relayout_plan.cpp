// Plans a re-layout. Planner decides for the content of each bucket the round in which it moves and the processes that
// send it. One process's plan, and the plan's seconds, follow from these decisions.
#include "copus/placement/relayout_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/description/configuration_fields.h"
#include "copus/placement/relayout_needs.h"
#include "copus/placement/relayout_order.h"
#include "copus/placement/relayout_transfers.h"
#include "copus/placement/state_placement.h"

namespace copus {

using namespace relayout;

std::vector<StateKind> state_kinds(size_t num_slots) {
  std::vector<StateKind> kinds = {StateKind::weights, StateKind::master};
  for (size_t slot = 0; slot < num_slots; ++slot) kinds.push_back(slot_kind(slot));
  return kinds;
}

namespace {

// Maps processes to ranks. A process's number is its rank in the old layout.
class Processes {
 public:
  explicit Processes(const RelayoutRequest& request) : num_old_(request.from.world_size()) {
    std::vector<int64_t> of_ranks = request.to_processes;
    if (of_ranks.empty()) {
      of_ranks.resize(request.to.world_size());
      std::iota(of_ranks.begin(), of_ranks.end(), int64_t{0});
    }
    COPUS_CHECK(std::ssize(of_ranks) == request.to.world_size(), of_ranks.size(), " processes for ",
                request.to.world_size(), " ranks");
    COPUS_CHECK(*std::min_element(of_ranks.begin(), of_ranks.end()) >= 0);
    new_ranks_.resize(std::max(num_old_, 1 + *std::max_element(of_ranks.begin(), of_ranks.end())), nobody);
    is_lost_.resize(new_ranks_.size(), false);
    is_gone_.resize(new_ranks_.size(), false);
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      int64_t& new_rank = new_ranks_[of_ranks[rank]];
      COPUS_CHECK(new_rank == nobody, "process ", of_ranks[rank], " becomes two ranks");
      new_rank = static_cast<int64_t>(rank);
      keep_their_rank_ = keep_their_rank_ && of_ranks[rank] == new_rank;
    }
    mark_ended(request.lost, is_lost_);
    mark_ended(request.gone, is_gone_);
  }

  int64_t count() const { return std::ssize(new_ranks_); }
  bool is_old(int64_t process) const { return process < num_old_; }
  bool is_new(int64_t process) const { return process < count() && new_ranks_[process] != nobody; }
  int64_t new_rank(int64_t process) const { return new_ranks_[process]; }
  bool is_lost(int64_t process) const { return is_lost_[process]; }
  bool is_gone(int64_t process) const { return is_gone_[process]; }
  bool keep_their_rank() const { return keep_their_rank_; }

 private:
  static constexpr int64_t nobody = -1;

  void mark_ended(const std::vector<int64_t>& processes, std::vector<bool>& marks) const {
    for (const int64_t process : processes) {
      COPUS_CHECK(process >= 0 && process < num_old_ && new_ranks_[process] == nobody, "process ", process,
                  " has ended");
      marks[process] = true;
    }
  }

  int64_t num_old_;
  std::vector<int64_t> new_ranks_;  // by process
  std::vector<bool> is_lost_, is_gone_;
  bool keep_their_rank_ = true;
};

class Planner {
 public:
  explicit Planner(const RelayoutRequest& request)
      : request_(request), processes_(request), from_(request, request.from), to_(request, request.to) {
    find_kept();
    find_moves();
    find_rounds();
  }

  const Processes& processes() const { return processes_; }
  const StatePlacement& from() const { return from_; }
  const StatePlacement& to() const { return to_; }
  const Rounds& rounds() const { return rounds_; }
  int64_t content_of(size_t move) const { return moves_[move].content; }
  void report_memory(RelayoutPlan& plan) const;

  // Returns whether a process's buffers of the content are the same in both layouts.
  bool keeps(int64_t process, int64_t content) const {
    return old_place(process, content) != nullptr && new_place(process, content) != nullptr &&
           kept_[process][from_.kind_of(content)];
  }
  // Find a content on a process; null if the process does not hold it.
  const Place* old_place(int64_t process, int64_t content) const {
    return processes_.is_old(process) ? from_.find_place(content, before(process).pipeline) : nullptr;
  }
  const Place* new_place(int64_t process, int64_t content) const {
    return processes_.is_new(process) ? to_.find_place(content, after(process).pipeline) : nullptr;
  }

  // Visits all deliveries in a fixed order, because the choice of the least loaded sender depends on earlier
  // deliveries. Calls `miss`, perhaps repeatedly, with content that is needed but that no remaining process has.
  template <class Visit, class Miss>
  void for_deliveries(Visit visit, Miss miss) const;

 private:
  struct Choice;

  void find_kept();
  void find_moves();
  void find_rounds();
  MeshCoordinates before(int64_t process) const { return from_.mesh.coordinates(process); }
  MeshCoordinates after(int64_t process) const { return to_.mesh.coordinates(processes_.new_rank(process)); }
  int64_t node_of(int64_t process) const { return request_.ranks_per_node > 0 ? process / request_.ranks_per_node : 0; }
  // Both return whether a remaining process has the needed elements.
  template <class Give>
  bool choose_whole(const Need& need, int64_t content, int64_t receiver, const Choice& choice, Give give) const;
  template <class Give>
  bool choose_shares(const Need& need, int64_t content, int64_t receiver, const Choice& choice, Give give) const;

  const RelayoutRequest& request_;
  Processes processes_;
  StatePlacement from_, to_;
  // By process and kind of content: whether the process' buffers are equal in both layouts. It matters only for
  // contents that the process holds in both.
  std::vector<std::vector<bool>> kept_;
  std::vector<Move> moves_;
  std::vector<int64_t> old_bytes_, new_bytes_;  // by process
  int64_t largest_bucket_bytes_ = 0, peak_bound_bytes_ = 0;
  Rounds rounds_;
};

void Planner::find_kept() {
  kept_.resize(processes_.count(), std::vector<bool>(from_.num_content_kinds()));
  for (int64_t process = 0; process < processes_.count(); ++process) {
    if (!processes_.is_old(process) || !processes_.is_new(process)) continue;
    const MeshCoordinates old_at = before(process), new_at = after(process);
    for (ContentKind content = 0; content < from_.num_content_kinds(); ++content) {
      kept_[process][content] =
          equal(from_.shape(content, old_at.tensor), to_.shape(content, new_at.tensor)) &&
          std::ranges::all_of(from_.buffers(), [&](const StateBuffer& buffer) {
            return from_.stretch(buffer.kind, content, old_at) == to_.stretch(buffer.kind, content, new_at);
          });
    }
  }
}

void Planner::find_moves() {
  old_bytes_.resize(processes_.count());
  new_bytes_.resize(processes_.count());
  for (int64_t content = 0; content < from_.num_contents(); ++content) {
    Move move{.content = content, .allocated = {}, .released = {}};
    const ContentKind kind = from_.kind_of(content);
    const auto add = [&](int64_t process, int64_t bytes, std::vector<int64_t>& sums, std::vector<Change>& changes) {
      sums[process] += bytes;
      largest_bucket_bytes_ = std::max(largest_bucket_bytes_, bytes);
      if (!keeps(process, content)) changes.push_back({process, bytes});
    };
    for (int64_t process = 0; process < processes_.count(); ++process) {
      if (old_place(process, content) != nullptr) {
        add(process, from_.state_bytes(kind, before(process)), old_bytes_, move.released);
      }
      if (new_place(process, content) != nullptr) {
        add(process, to_.state_bytes(kind, after(process)), new_bytes_, move.allocated);
      }
    }
    if (!move.allocated.empty() || !move.released.empty()) moves_.push_back(std::move(move));
  }
}

void Planner::find_rounds() {
  // The re-layout back has the same peaks. Its greedy order, reversed, is therefore a second candidate.
  std::vector<Move> back = moves_;
  for (Move& move : back) std::swap(move.allocated, move.released);
  std::vector<size_t> order = fill_lowest_first(moves_, old_bytes_), other = fill_lowest_first(back, new_bytes_);
  std::reverse(other.begin(), other.end());
  int64_t peak = highest(find_peaks(moves_, one_a_round(order), old_bytes_));
  if (const int64_t other_peak = highest(find_peaks(moves_, one_a_round(other), old_bytes_)); other_peak < peak) {
    peak = other_peak;
    order = std::move(other);
  }
  // Moves share a round, which saves barriers, as long as no process holds more than peak_bound_bytes_. The bound is
  // the state plus a number of largest buckets. This number is the larger of two: as many as the order of moves needs,
  // and as many as fit into an eighth of the state.
  const int64_t at_rest = std::max(highest(old_bytes_), highest(new_bytes_));
  const int64_t needed = std::max<int64_t>(1, (peak - at_rest + largest_bucket_bytes_ - 1) / largest_bucket_bytes_);
  const int64_t cheap = std::min(processes_.count(), at_rest / 8 / largest_bucket_bytes_);
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

// The loads on which the choice of senders depends.
struct Planner::Choice {
  std::vector<int64_t> load;     // by process: elements to send
  std::vector<int64_t> senders;  // to the current buffer
};

// Chooses one sender that has all needed elements: the receiver itself, otherwise a process on its node, otherwise a
// process on another node. Among several such processes, prefers a process that already sends to this buffer, and then
// the least loaded process. Lost processes are chosen last, in the same order.
template <class Give>
bool Planner::choose_whole(const Need& need, int64_t content, int64_t receiver, const Choice& choice, Give give) const {
  if (old_place(receiver, content) != nullptr && before(receiver).tensor >= need.first_tensor &&
      before(receiver).tensor < need.first_tensor + need.replicas) {
    give(receiver, need.elements);
    return true;
  }
  using Preference = std::tuple<bool, int64_t, int64_t>;
  constexpr int64_t nobody = std::numeric_limits<int64_t>::max();
  Preference best{true, nobody, nobody};
  // Searches the processes begin .. end - 1 (ranks of the old layout).
  const auto look_among = [&](bool are_lost, int64_t begin, int64_t end) {
    for (const Place& place : from_.places(content)) {
      for (int64_t tensor = need.first_tensor; tensor < need.first_tensor + need.replicas; ++tensor) {
        const int64_t first = from_.mesh.rank({.data = 0, .tensor = tensor, .pipeline = place.pipeline});
        const int64_t stride = from_.tensor_parallel();
        const int64_t skipped = std::max<int64_t>(0, (begin - first + stride - 1) / stride);
        const int64_t last = std::min(end, first + from_.data_parallel() * stride);
        for (int64_t rank = first + skipped * stride; rank < last; rank += stride) {
          if (processes_.is_gone(rank) || processes_.is_lost(rank) != are_lost) continue;
          const bool is_sender = std::find(choice.senders.begin(), choice.senders.end(), rank) != choice.senders.end();
          best = std::min(best, Preference{!is_sender, choice.load[rank], rank});
        }
      }
    }
  };
  for (const bool are_lost : {false, true}) {
    if (request_.ranks_per_node > 0 && std::get<2>(best) == nobody) {
      const int64_t node = node_of(receiver) * request_.ranks_per_node;
      look_among(are_lost, node, node + request_.ranks_per_node);
    }
    if (std::get<2>(best) == nobody) look_among(are_lost, 0, from_.mesh.size());
  }
  if (std::get<2>(best) == nobody) return false;
  give(std::get<2>(best), need.elements);
  return true;
}

// Chooses one of the replicas and copies, each of which is sharded over data-parallel ranks. It prefers, in this order:
// most elements on the receiver, fewest on lost processes, most on the receiver's node, and the smallest load of the
// busiest sender. Copies with a needed shard on a gone process are excluded.
template <class Give>
bool Planner::choose_shares(const Need& need, int64_t content, int64_t receiver, const Choice& choice,
                            Give give) const {
  struct Preference {
    int64_t not_mine = std::numeric_limits<int64_t>::max(), lost = 0, off_node = 0, highest_load = 0;
    auto operator<=>(const Preference&) const = default;
  };
  Preference best;
  MeshCoordinates best_place;  // its data coordinate is the first rank of the copy
  const auto for_shares = [&](const MeshCoordinates& place, auto visit) {
    for (const auto& [share, elements] : need.shares[place.tensor - need.first_tensor]) {
      MeshCoordinates holder = place;
      holder.data += share;
      visit(from_.mesh.rank(holder), elements);
    }
  };
  const auto consider = [&](const MeshCoordinates& place) {
    Preference preference{.not_mine = 0};
    bool is_there = true;
    for_shares(place, [&](int64_t rank, int64_t elements) {
      is_there = is_there && !processes_.is_gone(rank);
      preference.not_mine += rank == receiver ? 0 : elements;
      preference.lost += processes_.is_lost(rank) ? elements : 0;
      preference.off_node += node_of(rank) == node_of(receiver) ? 0 : elements;
      preference.highest_load = std::max(preference.highest_load, choice.load[rank] + elements);
    });
    if (is_there && preference < best) {
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
  if (best == Preference()) return false;
  for_shares(best_place, give);
  return true;
}

template <class Visit, class Miss>
void Planner::for_deliveries(Visit visit, Miss miss) const {
  Needs needs(from_, to_, !request_.lost.empty() || !request_.gone.empty());
  Choice choice{std::vector<int64_t>(processes_.count(), 0), {}};
  for (size_t round = 0; round < rounds_.size(); ++round) {
    for (const size_t index : rounds_[round]) {
      const Move& move = moves_[index];
      const ContentKind content_kind = to_.kind_of(move.content);
      for (const Change& allocated : move.allocated) {
        const int64_t receiver = allocated.process;
        const MeshCoordinates here = after(receiver);
        for (const StateBuffer& buffer : from_.buffers()) {
          if (!buffer.moves) continue;
          const StateKind kind = buffer.kind;
          choice.senders.clear();
          for (const Need& need : needs.of(kind, content_kind, here)) {
            const auto give = [&](int64_t sender, int64_t elements) {
              const MeshCoordinates there = before(sender);
              const Place* const source = old_place(sender, move.content);
              COPUS_CHECK(source != nullptr, "process ", sender, " does not hold content ", move.content);
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
                             .receiver_tensor = here.tensor,
                             .from_stretch = from_.stretch(kind, content_kind, there),
                             .to_stretch = to_.stretch(kind, content_kind, here)});
            };
            const bool found = from_.is_cut(kind) ? choose_shares(need, move.content, receiver, choice, give)
                                                  : choose_whole(need, move.content, receiver, choice, give);
            if (!found) miss(move.content);
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

void add_request(const RelayoutRequest& request, const Processes& processes, Fingerprint& hash) {
  visit_strategy([&](const ConfigurationField&, const auto& from, const auto& to) { hash.add(from, to); }, request.from,
                 request.to);
  for (const ParameterInfo& parameter : list_parameters(request.model)) {
    hash.add(parameter.kind, parameter.layer);
    for (const char letter : parameter.name) hash.add(letter);
    for (const int64_t length : parameter.shape) hash.add(length);
  }
  hash.add(request.model.tie_word_embeddings, request.sequence_length, request.recipe.keeps_master,
           request.ranks_per_node);
  for (const OptimizerSlot& slot : request.recipe.slots) {
    hash.add(slot.name.size(), slot.dtype, slot.unit);
    for (const char letter : slot.name) hash.add(letter);
  }
  // Hashes the mapping of processes only if it is not trivial, as in a re-layout of the same processes.
  if (!processes.keep_their_rank()) {
    for (int64_t process = 0; process < processes.count(); ++process) {
      hash.add(process, processes.is_new(process) ? processes.new_rank(process) : -1);
    }
  }
  for (int64_t process = 0; process < processes.count(); ++process) {
    if (processes.is_lost(process)) hash.add(-1, process);
    if (processes.is_gone(process)) hash.add(-2, process);
  }
}

std::string name_of(const StatePlacement& placement, int64_t content) {
  if (content == 0) return "embedding";
  return content + 1 < placement.num_contents() ? concat("layer ", content - 1) : "head";
}

}  // namespace

int64_t Transfer::num_elements() const {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const CopyRun& run) { return sum + run.rows * run.count; });
}

RelayoutPlan plan_relayout(const RelayoutRequest& request, int64_t process) {
  COPUS_CHECK(process >= 0, process);
  const Planner planner(request);
  RelayoutPlan plan;
  plan.num_rounds = std::ssize(planner.rounds());
  planner.report_memory(plan);

  for (int64_t content = 0; content < planner.from().num_contents(); ++content) {
    if (!planner.keeps(process, content)) continue;
    plan.mine.kept.push_back(
        {planner.old_place(process, content)->bucket, planner.new_place(process, content)->bucket});
  }
  Fingerprint hash;
  add_request(request, planner.processes(), hash);
  for (const std::vector<size_t>& moves : planner.rounds()) {
    RelayoutRound& round = plan.mine.rounds.emplace_back();
    hash.add(moves.size());
    for (const size_t move : moves) {
      const int64_t content = planner.content_of(move);
      hash.add(content);
      if (planner.keeps(process, content)) continue;
      if (const Place* place = planner.new_place(process, content)) round.allocate.push_back(place->bucket);
      if (const Place* place = planner.old_place(process, content)) round.release.push_back(place->bucket);
    }
    std::sort(round.allocate.begin(), round.allocate.end());
    std::sort(round.release.begin(), round.release.end());
  }
  std::vector<Transfers> receives(planner.rounds().size(), Transfers(planner.from(), planner.to())), sends = receives;
  std::set<int64_t> missing;
  const auto deliver = [&](const Delivery& delivery) {
    plan.bytes_copied += delivery.elements * bytes_per_element;
    if (delivery.sender != delivery.receiver) plan.bytes_received += delivery.elements * bytes_per_element;
    hash.add(delivery.kind, delivery.sender, delivery.receiver, delivery.from_bucket, delivery.to_bucket,
             delivery.elements);
    if (delivery.receiver == process) {
      receives[delivery.round].add(delivery);
    } else if (delivery.sender == process) {
      sends[delivery.round].add(delivery);
    }
  };
  planner.for_deliveries(deliver, [&](int64_t content) { missing.insert(content); });
  for (const int64_t content : missing) {
    hash.add(content);
    plan.missing.push_back(name_of(planner.to(), content));
  }
  for (size_t i = 0; i < plan.mine.rounds.size(); ++i) {
    plan.mine.rounds[i].receives = receives[i].take();
    plan.mine.rounds[i].sends = sends[i].take();
  }
  plan.hash = hash.value();
  return plan;
}

double relayout_seconds(const RelayoutRequest& request, const ClusterDescription& cluster) {
  const Planner planner(request);
  // Bytes by process: sent and received within its node, then sent and received between nodes.
  std::vector<std::array<int64_t, 4>> bytes(planner.processes().count());
  const auto add = [&](const Delivery& delivery) {
    if (delivery.sender == delivery.receiver) return;
    const bool same_node = delivery.sender / cluster.ranks_per_node == delivery.receiver / cluster.ranks_per_node;
    const size_t link = same_node ? 0 : 2;
    bytes[delivery.sender][link] += delivery.elements * bytes_per_element;
    bytes[delivery.receiver][link + 1] += delivery.elements * bytes_per_element;
  };
  planner.for_deliveries(add, [](int64_t) {});
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
