#include "copus/layout/relayout_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/mix_bits.h"

namespace copus {
namespace {

constexpr int64_t bytes_per_element = 4;  // masters and moments are fp32

// ---- Geometry, in the coordinates of a logical tensor; one of a single dimension is one row ----

struct Rectangle {
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  int64_t rows() const { return row_end - row_begin; }
  int64_t columns() const { return column_end - column_begin; }
  bool operator==(const Rectangle&) const = default;
};

Rectangle rectangle_of(const Box& box) {
  const bool is_matrix = box.begin.size() == 2;
  return {.row_begin = is_matrix ? box.begin[0] : 0,
          .row_end = is_matrix ? box.begin[0] + box.shape[0] : 1,
          .column_begin = box.begin.back(),
          .column_end = box.begin.back() + box.shape.back()};
}

Rectangle intersect(const Rectangle& a, const Rectangle& b) {
  Rectangle both{std::max(a.row_begin, b.row_begin), std::min(a.row_end, b.row_end),
                 std::max(a.column_begin, b.column_begin), std::min(a.column_end, b.column_end)};
  both.row_end = std::max(both.row_end, both.row_begin);
  both.column_end = std::max(both.column_end, both.column_begin);
  return both;
}

int64_t num_elements(const Rectangle& one) { return one.rows() * one.columns(); }

// What a stretch of a row-major rectangle covers: the rest of a row, whole rows, the beginning of a row.
struct Region {
  std::array<Rectangle, 3> parts;
  size_t count = 0;

  void add(const Rectangle& part) {
    if (num_elements(part) > 0) parts[count++] = part;
  }
  const Rectangle* begin() const { return parts.data(); }
  const Rectangle* end() const { return parts.data() + count; }
};

// Where a parameter lies in a bucket: `box` row-major from `offset` on.
struct Entry {
  std::string name;
  Sharding sharding;
  Rectangle box;
  int64_t offset = 0;

  int64_t position(int64_t row, int64_t column) const {
    return offset + (row - box.row_begin) * box.columns() + column - box.column_begin;
  }

  // What lies in this stretch of the bucket.
  Region inside(const Stretch& stretch) const {
    const int64_t width = box.columns();
    const int64_t from = std::max<int64_t>(0, stretch.begin - offset);
    const int64_t to = std::min(num_elements(box), stretch.end - offset);
    Region region;
    if (from >= to) return region;
    const auto row = [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
      region.add({box.row_begin + first, box.row_begin + last, box.column_begin + begin, box.column_begin + end});
    };
    int64_t first = from / width;
    const int64_t last = to / width;
    if (first == last) {
      row(first, first + 1, from % width, to % width);
      return region;
    }
    if (from % width != 0) {
      row(first, first + 1, from % width, width);
      ++first;
    }
    row(first, last, 0, width);
    row(last, last + 1, 0, to % width);
    return region;
  }
};

template <class Visit>
void for_overlaps(const Region& a, const Region& b, Visit visit) {
  for (const Rectangle& one : a) {
    for (const Rectangle& other : b) {
      const Rectangle both = intersect(one, other);
      if (num_elements(both) > 0) visit(both);
    }
  }
}

// ---- A layout of the state ----

// What buckets are filled with: the embedding, each decoder layer, final norm and head. A tied copy of the head has the
// embedding's content. All layers are alike.
enum ContentKind { embedding_content, layer_content, head_content, num_content_kinds };

// How the content lies in the bucket of one tensor-parallel rank.
struct BucketShape {
  std::vector<Entry> entries;
  int64_t size = 0;
};

bool equal(const BucketShape& a, const BucketShape& b) {
  return a.size == b.size && std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                                        [](const Entry& one, const Entry& other) {
                                          return one.box == other.box && one.offset == other.offset;
                                        });
}

// Which pipeline rank holds a content, and the bucket's index there.
struct Place {
  int64_t pipeline = 0;
  int64_t bucket = 0;
};

class StateLayout {
 public:
  StateLayout(const RelayoutRequest& request, const ParallelStrategy& strategy)
      : mesh(strategy), strategy_(strategy), weights_are_master_(request.weights_are_master) {
    find_places(request);
    find_shapes(request.model);
  }

  const Mesh mesh;

  int64_t num_contents() const { return static_cast<int64_t>(places_.size()); }
  ContentKind kind_of(int64_t content) const {
    if (content == 0) return embedding_content;
    return content + 1 < num_contents() ? layer_content : head_content;
  }
  const std::vector<Place>& places(int64_t content) const { return places_[static_cast<size_t>(content)]; }
  // Null where that pipeline rank does not hold the content.
  const Place* find_place(int64_t content, int64_t pipeline) const {
    for (const Place& place : places(content)) {
      if (place.pipeline == pipeline) return &place;
    }
    return nullptr;
  }
  const BucketShape& shape(ContentKind content, int64_t tensor) const {
    return shapes_[content][static_cast<size_t>(tensor)];
  }
  int64_t data_parallel() const { return strategy_.data_parallel; }
  int64_t tensor_parallel() const { return strategy_.tensor_parallel; }

  // Is each data-parallel rank's buffer of that kind its share only?
  bool is_cut(StateKind kind) const { return kind != StateKind::weights && strategy_.zero_stage == 1; }
  // The elements of the bucket that the buffer holds.
  Stretch stretch(StateKind kind, ContentKind content, const MeshCoordinates& at) const {
    if (!is_cut(kind)) return {0, shape(content, at.tensor).size};
    return share(content, at.tensor, at.data);
  }
  Stretch share(ContentKind content, int64_t tensor, int64_t data) const {
    const std::vector<int64_t>& cuts = cuts_[content][static_cast<size_t>(tensor)];
    return {cuts[static_cast<size_t>(data)], cuts[static_cast<size_t>(data) + 1]};
  }
  // The data-parallel rank whose share an element is in.
  int64_t share_of(ContentKind content, int64_t tensor, int64_t element) const {
    const std::vector<int64_t>& cuts = cuts_[content][static_cast<size_t>(tensor)];
    return std::upper_bound(cuts.begin(), cuts.end(), element) - cuts.begin() - 1;
  }

  // Of all kinds of state of one bucket.
  int64_t state_bytes(ContentKind content, const MeshCoordinates& at) const {
    const int64_t weights = stretch(weights_are_master_ ? StateKind::weights : StateKind::master, content, at).size();
    return bytes_per_element * (weights + 2 * stretch(StateKind::exp_avg, content, at).size());
  }

 private:
  void find_places(const RelayoutRequest& request) {
    places_.resize(static_cast<size_t>(request.model.num_layers) + 2);
    Placement placement = place(request.model, strategy_, request.sequence_length, 0);
    for (int64_t pipeline = 0; pipeline < strategy_.pipeline_parallel; ++pipeline) {
      placement.here.pipeline = pipeline;
      const std::vector<LocalParameter> parameters = list_local_parameters(request.model, placement);
      const std::vector<BucketLayout> buckets = arrange_buckets(parameters, placement);
      for (size_t i = 0; i < buckets.size(); ++i) {
        if (buckets[i].gradient_only) continue;
        const ParameterInfo& info = parameters[static_cast<size_t>(buckets[i].entries.front().parameter)].info;
        const auto content = info.layer >= 0                         ? static_cast<size_t>(info.layer) + 1
                             : info.kind == ParameterKind::embedding ? 0
                                                                     : places_.size() - 1;
        places_[content].push_back({.pipeline = pipeline, .bucket = static_cast<int64_t>(i)});
      }
    }
  }

  // Shapes depend on tensor parallelism alone: those of a model with one layer, without a pipeline.
  void find_shapes(ModelDescription model) {
    model.num_layers = 1;
    Placement placement = whole_model(model);
    placement.strategy.tensor_parallel = strategy_.tensor_parallel;
    for (int64_t tensor = 0; tensor < strategy_.tensor_parallel; ++tensor) {
      placement.here.tensor = tensor;
      const std::vector<LocalParameter> parameters = list_local_parameters(model, placement);
      const std::vector<BucketLayout> buckets = arrange_buckets(parameters, placement);
      COPUS_CHECK(buckets.size() >= num_content_kinds);
      for (size_t content = 0; content < num_content_kinds; ++content) {
        BucketShape& shape = shapes_[content].emplace_back();
        shape.size = buckets[content].size;
        for (const auto& [index, offset] : buckets[content].entries) {
          const LocalParameter& parameter = parameters[static_cast<size_t>(index)];
          shape.entries.push_back({parameter.info.name, parameter.sharding, rectangle_of(parameter.box), offset});
        }
        std::vector<int64_t>& cuts = cuts_[content].emplace_back(1, 0);
        for (const int64_t size : shard_sizes(shape.size, strategy_.data_parallel)) cuts.push_back(cuts.back() + size);
      }
    }
  }

  ParallelStrategy strategy_;
  bool weights_are_master_;
  std::vector<std::vector<Place>> places_;  // by content
  // By tensor-parallel rank: shapes, and the bounds of the data-parallel ranks' shares.
  std::array<std::vector<BucketShape>, num_content_kinds> shapes_;
  std::array<std::vector<std::vector<int64_t>>, num_content_kinds> cuts_;
};

// ---- What a buffer needs, and who has it ----

// Elements of a buffer that have the same holders in the old layout: `replicas` neighbouring tensor-parallel ranks.
struct Need {
  struct Member {
    size_t entry;  // of the shape
    Rectangle old_box;
  };
  int64_t first_tensor = 0, replicas = 1;
  int64_t elements = 0;
  std::vector<Member> members;
  // Where old buffers are cut: for each of the replicas, the data-parallel ranks that have elements of it, and how
  // many.
  std::vector<std::map<int64_t, int64_t>> shares;
};

struct Holder {
  int64_t tensor = 0;
  int64_t data = 0;
};

// Which elements of a new buffer lie in old boxes; the same for all layers and kinds with equal cuts, and remembered.
class Needs {
 public:
  Needs(const StateLayout& from, const StateLayout& to) : from_(from), to_(to) {}

  // In the order of fewest holders, so that what many have can come from whom something is taken anyway.
  const std::vector<Need>& of(StateKind kind, ContentKind content, const MeshCoordinates& receiver) {
    const int64_t data = to_.is_cut(kind) ? receiver.data : 0;
    const auto [found, is_new] =
        remembered_.try_emplace({from_.is_cut(kind), to_.is_cut(kind), content, receiver.tensor, data});
    if (is_new) found->second = find(kind, content, receiver);
    return found->second;
  }

 private:
  std::vector<Need> find(StateKind kind, ContentKind content, const MeshCoordinates& receiver) const {
    const std::vector<Entry>& entries = to_.shape(content, receiver.tensor).entries;
    const Stretch stretch = to_.stretch(kind, content, receiver);
    std::map<std::pair<int64_t, int64_t>, Need> needs;  // by replicas and first tensor-parallel rank
    for (size_t i = 0; i < entries.size(); ++i) {
      const Region wanted = entries[i].inside(stretch);
      const Sharding& old = from_.shape(content, 0).entries.at(i).sharding;
      COPUS_CHECK(from_.shape(content, 0).entries[i].name == entries[i].name);
      for (int64_t part = 0; part < old.parts && wanted.count > 0; ++part) {
        const int64_t first_tensor = part * old.replicas;
        const Rectangle& old_box = from_.shape(content, first_tensor).entries[i].box;
        Region whole_part;
        whole_part.add(old_box);
        int64_t elements = 0;
        for_overlaps(wanted, whole_part, [&](const Rectangle& both) { elements += num_elements(both); });
        if (elements == 0) continue;
        Need& need = needs[{old.replicas, first_tensor}];
        need.first_tensor = first_tensor;
        need.replicas = old.replicas;
        need.elements += elements;
        need.members.push_back({i, old_box});
        if (from_.is_cut(kind)) count_shares(content, i, wanted, need);
      }
    }
    std::vector<Need> in_order;
    for (auto& [holders, need] : needs) in_order.push_back(std::move(need));
    return in_order;
  }

  void count_shares(ContentKind content, size_t entry, const Region& wanted, Need& need) const {
    need.shares.resize(static_cast<size_t>(need.replicas));
    for (int64_t replica = 0; replica < need.replicas; ++replica) {
      const int64_t tensor = need.first_tensor + replica;
      const Entry& old = from_.shape(content, tensor).entries[entry];
      for (const Rectangle& one : wanted) {
        const Rectangle both = intersect(one, old.box);
        if (num_elements(both) == 0) continue;
        const int64_t first = from_.share_of(content, tensor, old.position(both.row_begin, both.column_begin));
        const int64_t last = from_.share_of(content, tensor, old.position(both.row_end - 1, both.column_end - 1));
        Region part;
        part.add(both);
        for (int64_t data = first; data <= last; ++data) {
          int64_t elements = 0;
          for_overlaps(part, old.inside(from_.share(content, tensor, data)),
                       [&](const Rectangle& held) { elements += num_elements(held); });
          if (elements > 0) need.shares[static_cast<size_t>(replica)][data] += elements;
        }
      }
    }
  }

  const StateLayout& from_;
  const StateLayout& to_;
  // Old and new buffers cut?, content, tensor- and data-parallel rank of the receiver.
  std::map<std::tuple<bool, bool, ContentKind, int64_t, int64_t>, std::vector<Need>> remembered_;
};

// ---- The order in which contents move ----

struct Change {
  int64_t rank = 0;
  int64_t bytes = 0;
};

// What moving one content makes ranks allocate before, and lets them release after.
struct Move {
  int64_t content = 0;
  std::vector<Change> allocated, released;
};

int64_t highest_with(const std::vector<Change>& changes, const std::vector<int64_t>& live) {
  int64_t highest = 0;
  for (const Change& change : changes) {
    highest = std::max(highest, live[static_cast<size_t>(change.rank)] + change.bytes);
  }
  return highest;
}

int64_t total_bytes(const std::vector<Change>& changes) {
  return std::accumulate(changes.begin(), changes.end(), int64_t{0},
                         [](int64_t sum, const Change& change) { return sum + change.bytes; });
}

void apply(const std::vector<Change>& changes, int64_t sign, std::vector<int64_t>& live) {
  for (const Change& change : changes) live[static_cast<size_t>(change.rank)] += sign * change.bytes;
}

// Greedy: next comes what leaves the fullest of the ranks that allocate for it lowest; among equals what relieves the
// fullest rank, then what frees most. Returns indices of moves.
std::vector<size_t> fill_lowest_first(const std::vector<Move>& moves, std::vector<int64_t> live) {
  std::vector<size_t> remaining(moves.size()), order;
  std::iota(remaining.begin(), remaining.end(), size_t{0});
  while (!remaining.empty()) {
    using Preference = std::tuple<int64_t, int64_t, int64_t>;
    size_t best = 0;
    Preference best_preference{std::numeric_limits<int64_t>::max(), 0, 0};
    for (size_t i = 0; i < remaining.size(); ++i) {
      const Move& move = moves[remaining[i]];
      int64_t relieved = 0;
      for (const Change& change : move.released) {
        relieved = std::max(relieved, live[static_cast<size_t>(change.rank)]);
      }
      const Preference preference{highest_with(move.allocated, live), -relieved,
                                  total_bytes(move.allocated) - total_bytes(move.released)};
      if (preference < best_preference) {
        best_preference = preference;
        best = i;
      }
    }
    apply(moves[remaining[best]].allocated, 1, live);
    apply(moves[remaining[best]].released, -1, live);
    order.push_back(remaining[best]);
    remaining.erase(remaining.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return order;
}

using Rounds = std::vector<std::vector<size_t>>;  // indices of moves

std::vector<int64_t> find_peaks(const std::vector<Move>& moves, const Rounds& rounds, std::vector<int64_t> live) {
  std::vector<int64_t> peaks = live;
  for (const std::vector<size_t>& round : rounds) {
    for (const size_t move : round) apply(moves[move].allocated, 1, live);
    for (size_t rank = 0; rank < live.size(); ++rank) peaks[rank] = std::max(peaks[rank], live[rank]);
    for (const size_t move : round) apply(moves[move].released, -1, live);
  }
  return peaks;
}

int64_t highest(const std::vector<int64_t>& bytes) { return *std::max_element(bytes.begin(), bytes.end()); }

Rounds one_a_round(const std::vector<size_t>& order) {
  Rounds rounds;
  for (const size_t move : order) rounds.push_back({move});
  return rounds;
}

// Neighbours in the order share a round while no rank holds more than `limit` bytes.
Rounds share_rounds(const std::vector<Move>& moves, const std::vector<size_t>& order, std::vector<int64_t> live,
                    int64_t limit) {
  Rounds rounds;
  for (const size_t next : order) {
    if (rounds.empty() || highest_with(moves[next].allocated, live) > limit) {
      if (!rounds.empty()) {
        for (const size_t move : rounds.back()) apply(moves[move].released, -1, live);
      }
      rounds.emplace_back();
    }
    rounds.back().push_back(next);
    apply(moves[next].allocated, 1, live);
  }
  return rounds;
}

// ---- The plan ----

// Elements that a receiver takes from one sender for one buffer.
struct Delivery {
  size_t round;
  int64_t content;
  StateKind kind;
  int64_t sender, receiver;
  int64_t from_bucket, to_bucket;
  int64_t elements;
  const Need* need;
  int64_t sender_tensor;
  Stretch from_stretch, to_stretch;  // that the two buffers hold of their buckets
};

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
  const StateLayout& from() const { return from_; }
  const StateLayout& to() const { return to_; }
  const Rounds& rounds() const { return rounds_; }
  int64_t content_of(size_t move) const { return moves_[move].content; }
  void report_memory(RelayoutPlan& plan) const;

  // The same buffers in both layouts?
  bool keeps(int64_t rank, int64_t content) const {
    return kept_[static_cast<size_t>(rank)][from_.kind_of(content)] && old_place(rank, content) != nullptr &&
           new_place(rank, content) != nullptr;
  }
  const Place* old_place(int64_t rank, int64_t content) const {
    return from_.find_place(content, from_.mesh.coordinates(rank).pipeline);
  }
  const Place* new_place(int64_t rank, int64_t content) const {
    return to_.find_place(content, to_.mesh.coordinates(rank).pipeline);
  }

  // All deliveries in a fixed order, which choosing the least loaded sender depends on.
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
  StateLayout from_, to_;
  std::vector<std::array<bool, num_content_kinds>> kept_;  // by rank, if it holds the content in both layouts
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
          from_.stretch(StateKind::exp_avg, content, before) == to_.stretch(StateKind::exp_avg, content, after);
    }
  }
}

void Planner::find_moves() {
  old_bytes_.resize(static_cast<size_t>(num_ranks()));
  new_bytes_.resize(static_cast<size_t>(num_ranks()));
  for (int64_t content = 0; content < from_.num_contents(); ++content) {
    Move move{.content = content, .allocated = {}, .released = {}};
    const auto add = [&](const StateLayout& layout, std::vector<int64_t>& bytes, std::vector<Change>& changes) {
      for (int64_t rank = 0; rank < num_ranks(); ++rank) {
        const MeshCoordinates at = layout.mesh.coordinates(rank);
        if (layout.find_place(content, at.pipeline) == nullptr) continue;
        const int64_t bucket_bytes = layout.state_bytes(layout.kind_of(content), at);
        bytes[static_cast<size_t>(rank)] += bucket_bytes;
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
  // The way back, from the new layout to the old one, has the same peaks: its greedy order, read backwards, is another
  // candidate.
  std::vector<Move> back = moves_;
  for (Move& move : back) std::swap(move.allocated, move.released);
  std::vector<size_t> order = fill_lowest_first(moves_, old_bytes_), other = fill_lowest_first(back, new_bytes_);
  std::reverse(other.begin(), other.end());
  int64_t peak = highest(find_peaks(moves_, one_a_round(order), old_bytes_));
  if (const int64_t other_peak = highest(find_peaks(moves_, one_a_round(other), old_bytes_)); other_peak < peak) {
    peak = other_peak;
    order = std::move(other);
  }
  // As few buckets beside the state as that order needs; but every round costs a barrier, and small buckets may share
  // one as long as they are an eighth of the state together.
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

// What choosing senders depends on.
struct Planner::Choice {
  std::vector<int64_t> load;     // elements that each rank has to send
  std::vector<int64_t> senders;  // of the buffer that is being filled
};

// One sender has all of it: itself, or on the same node, or one that sends to this buffer anyway, or the least loaded.
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
  // Of the world's ranks begin .. end - 1.
  const auto look_among = [&](int64_t begin, int64_t end) {
    for (const Place& place : from_.places(content)) {
      for (int64_t tensor = need.first_tensor; tensor < need.first_tensor + need.replicas; ++tensor) {
        const int64_t first = from_.mesh.rank({.data = 0, .tensor = tensor, .pipeline = place.pipeline});
        const int64_t stride = from_.tensor_parallel();
        const int64_t skipped = std::max<int64_t>(0, (begin - first + stride - 1) / stride);
        const int64_t last = std::min(end, first + from_.data_parallel() * stride);
        for (int64_t rank = first + skipped * stride; rank < last; rank += stride) {
          const bool is_sender = std::find(choice.senders.begin(), choice.senders.end(), rank) != choice.senders.end();
          best = std::min(best, Preference{!is_sender, choice.load[static_cast<size_t>(rank)], rank});
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

// Each data-parallel rank has a share; the choice is between replicas.
template <class Give>
void Planner::choose_shares(const Need& need, int64_t content, int64_t receiver, const Choice& choice,
                            Give give) const {
  struct Preference {
    int64_t not_mine = std::numeric_limits<int64_t>::max(), off_node = 0, highest_load = 0;
    auto operator<=>(const Preference&) const = default;
  };
  Preference best;
  int64_t best_tensor = 0, best_pipeline = 0;
  const auto for_shares = [&](int64_t tensor, int64_t pipeline, auto visit) {
    for (const auto& [data, elements] : need.shares[static_cast<size_t>(tensor - need.first_tensor)]) {
      visit(from_.mesh.rank({.data = data, .tensor = tensor, .pipeline = pipeline}), elements);
    }
  };
  for (const Place& place : from_.places(content)) {
    for (int64_t tensor = need.first_tensor; tensor < need.first_tensor + need.replicas; ++tensor) {
      Preference preference{.not_mine = 0};
      for_shares(tensor, place.pipeline, [&](int64_t rank, int64_t elements) {
        preference.not_mine += rank == receiver ? 0 : elements;
        preference.off_node += node_of(rank) == node_of(receiver) ? 0 : elements;
        preference.highest_load = std::max(preference.highest_load, choice.load[static_cast<size_t>(rank)] + elements);
      });
      if (preference < best) {
        best = preference;
        best_tensor = tensor;
        best_pipeline = place.pipeline;
      }
    }
  }
  for_shares(best_tensor, best_pipeline, give);
}

template <class Visit>
void Planner::for_deliveries(Visit visit) const {
  Needs needs(from_, to_);
  Choice choice{std::vector<int64_t>(static_cast<size_t>(num_ranks()), 0), {}};
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
              if (sender != receiver) choice.load[static_cast<size_t>(sender)] += elements;
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

// The runs of one delivery, behind those of its buffer's other deliveries from the same sender.
void add_runs(const Planner& planner, const Delivery& delivery, std::vector<CopyRun>& runs) {
  const ContentKind content = planner.to().kind_of(delivery.content);
  const BucketShape& old_shape = planner.from().shape(content, delivery.sender_tensor);
  const int64_t receiver_tensor = planner.to().mesh.coordinates(delivery.receiver).tensor;
  const BucketShape& new_shape = planner.to().shape(content, receiver_tensor);
  for (const Need::Member& member : delivery.need->members) {
    const Entry& from = old_shape.entries[member.entry];
    const Entry& to = new_shape.entries[member.entry];
    for_overlaps(from.inside(delivery.from_stretch), to.inside(delivery.to_stretch), [&](const Rectangle& both) {
      CopyRun run{.from = from.position(both.row_begin, both.column_begin) - delivery.from_stretch.begin,
                  .to = to.position(both.row_begin, both.column_begin) - delivery.to_stretch.begin,
                  .count = both.columns()};
      if (both.columns() == from.box.columns() && both.columns() == to.box.columns()) {
        run.count *= both.rows();
      } else if (both.rows() > 1) {
        run.rows = both.rows();
        run.from_stride = from.box.columns();
        run.to_stride = to.box.columns();
      }
      runs.push_back(run);
    });
  }
}

// In the order of their positions in the new buffer, neighbours joined.
void put_in_order(std::vector<CopyRun>& runs) {
  std::sort(runs.begin(), runs.end(), [](const CopyRun& a, const CopyRun& b) { return a.to < b.to; });
  size_t last = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    CopyRun& before = runs[last];
    if (before.rows == 1 && runs[i].rows == 1 && before.from + before.count == runs[i].from &&
        before.to + before.count == runs[i].to) {
      before.count += runs[i].count;
    } else {
      runs[++last] = runs[i];
    }
  }
  runs.resize(std::min(runs.size(), last + 1));
}

// A rank's receives or sends of one round while deliveries arrive, by the peer, buckets and kind.
class Transfers {
 public:
  void add(const Planner& planner, const Delivery& delivery) {
    Transfer& transfer = transfers_[{delivery.receiver, delivery.to_bucket, delivery.kind, delivery.sender}];
    transfer.sender = delivery.sender;
    transfer.receiver = delivery.receiver;
    transfer.kind = delivery.kind;
    transfer.from_bucket = delivery.from_bucket;
    transfer.to_bucket = delivery.to_bucket;
    add_runs(planner, delivery, transfer.runs);
  }

  std::vector<Transfer> take() {
    std::vector<Transfer> in_order;
    for (auto& [key, transfer] : transfers_) {
      put_in_order(transfer.runs);
      in_order.push_back(std::move(transfer));
    }
    return in_order;
  }

 private:
  std::map<std::tuple<int64_t, int64_t, StateKind, int64_t>, Transfer> transfers_;
};

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
  for (const ParallelStrategy& strategy : {request.from, request.to}) {
    hash.add(strategy.data_parallel, strategy.tensor_parallel, strategy.pipeline_parallel, strategy.virtual_stages,
             strategy.schedule, strategy.sequence_parallel, strategy.zero_stage, strategy.recompute);
  }
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
  plan.num_rounds = static_cast<int64_t>(planner.rounds().size());
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
  std::vector<Transfers> receives(planner.rounds().size()), sends(planner.rounds().size());
  planner.for_deliveries([&](const Delivery& delivery) {
    plan.bytes_copied += delivery.elements * bytes_per_element;
    if (delivery.sender != delivery.receiver) plan.bytes_received += delivery.elements * bytes_per_element;
    hash.add(delivery.kind, delivery.sender, delivery.receiver, delivery.from_bucket, delivery.to_bucket,
             delivery.elements);
    if (delivery.receiver == rank) {
      receives[delivery.round].add(planner, delivery);
    } else if (delivery.sender == rank) {
      sends[delivery.round].add(planner, delivery);
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
  // By rank: bytes sent and received within its node, and sent and received between nodes.
  std::vector<std::array<int64_t, 4>> bytes(static_cast<size_t>(planner.num_ranks()));
  planner.for_deliveries([&](const Delivery& delivery) {
    if (delivery.sender == delivery.receiver) return;
    const bool same_node = delivery.sender / cluster.ranks_per_node == delivery.receiver / cluster.ranks_per_node;
    const size_t link = same_node ? 0 : 2;
    bytes[static_cast<size_t>(delivery.sender)][link] += delivery.elements * bytes_per_element;
    bytes[static_cast<size_t>(delivery.receiver)][link + 1] += delivery.elements * bytes_per_element;
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
