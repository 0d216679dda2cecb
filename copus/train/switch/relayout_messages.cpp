#include "copus/train/switch/relayout_messages.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/round_up.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

constexpr int64_t bytes_per_element = 4;   // as the plan counts
constexpr int64_t message_alignment = 32;  // in elements; whole cache lines are copied fastest

int64_t sum(const std::map<int64_t, int64_t>& sizes) {
  int64_t total = 0;
  for (const auto& [rank, size] : sizes) total += size;
  return total;
}

// View of `rows` ranges of `count` elements of a flat buffer, `stride` apart, as [rows, count].
at::Tensor rows_of(const at::Tensor& buffer, int64_t begin, int64_t rows, int64_t count, int64_t stride) {
  return buffer.as_strided({rows, count}, {stride, 1}, buffer.storage_offset() + begin);
}

// Concatenates runs and splits the result into pieces of `size` elements.
class Cutter {
 public:
  explicit Cutter(int64_t size) : size_(size) {}

  void add(const at::Tensor& buffer, int64_t begin, int64_t rows, int64_t count, int64_t stride) {
    if (count == 0) return;
    for (int64_t row = 0; row < rows;) {
      const int64_t whole = std::min(rows - row, room() / count);
      if (whole > 0) {
        push(rows_of(buffer, begin + row * stride, whole, count, stride));
        row += whole;
        continue;
      }
      for (int64_t done = 0, part = 0; done < count; done += part) {
        part = std::min(room(), count - done);
        push(rows_of(buffer, begin + row * stride + done, 1, part, part));
      }
      ++row;
    }
  }

  std::vector<std::vector<at::Tensor>> take() { return std::move(pieces_); }

 private:
  // Elements that still fit into the last piece.
  int64_t room() {
    if (pieces_.empty() || filled_ == size_) {
      pieces_.emplace_back();
      filled_ = 0;
    }
    return size_ - filled_;
  }
  void push(at::Tensor rows) {
    filled_ += rows.numel();
    pieces_.back().push_back(std::move(rows));
  }

  const int64_t size_;
  int64_t filled_ = 0;
  std::vector<std::vector<at::Tensor>> pieces_;
};

int64_t num_elements(const std::vector<at::Tensor>& piece) {
  int64_t total = 0;
  for (const at::Tensor& rows : piece) total += rows.numel();
  return total;
}

}  // namespace

const at::Tensor& buffer_of(const BucketState& state, StateKind kind) {
  if (kind == StateKind::weights) return state.weight;
  if (kind == StateKind::master) return state.master;
  return state.slots.at(static_cast<size_t>(kind) - static_cast<size_t>(StateKind::first_slot));
}

// Computes the number of exchanges of every round. All ranks must make the same number, but a rank knows only its own
// messages, so it is the maximum over the ranks.
RelayoutMessages::RelayoutMessages(const RelayoutPlan& plan, int64_t process,
                                   const std::map<int64_t, RankPlan>& stood_in, const StandIns& stand_ins,
                                   Communicator& everyone)
    : plan_(plan),
      process_(process),
      stood_in_(stood_in),
      stand_ins_(stand_ins),
      everyone_(everyone),
      elements_at_once_(std::max<int64_t>(
          1, (plan.peak_bound_bytes - std::max(plan.old_bytes, plan.new_bytes)) / bytes_per_element)) {
  const std::vector<BucketState> nothing;  // sizes need no state
  for (int64_t round = 0; round < plan.num_rounds; ++round) {
    const int64_t elements = sum(sizes_of(outgoing(round, nothing))) + sum(sizes_of(incoming(round, nothing)));
    num_exchanges_.push_back((elements + elements_at_once_ - 1) / elements_at_once_);
  }
  everyone.all_reduce(num_exchanges_.data(), std::ssize(num_exchanges_), DataType::int64, Reduction::maximum);
}

std::vector<RelayoutMessages::Part> RelayoutMessages::outgoing(int64_t round,
                                                               const std::vector<BucketState>& from) const {
  std::vector<Part> parts;
  const auto add = [&](const RankPlan& plan, const std::vector<BucketState>& state) {
    for (const Transfer& transfer : plan.rounds[round].sends) {
      const int64_t receiver = rank_of(transfer.receiver);
      if (receiver != everyone_.rank()) parts.push_back({&transfer, &state, receiver});
    }
  };
  const auto behind = stood_in_.lower_bound(process_);
  for (auto plan = stood_in_.begin(); plan != behind; ++plan) add(plan->second, stand_ins_.state.at(plan->first));
  add(plan_.mine, from);
  for (auto plan = behind; plan != stood_in_.end(); ++plan) add(plan->second, stand_ins_.state.at(plan->first));
  return parts;
}

std::vector<RelayoutMessages::Part> RelayoutMessages::incoming(int64_t round,
                                                               const std::vector<BucketState>& to) const {
  std::vector<Part> parts;
  for (const Transfer& transfer : plan_.mine.rounds[round].receives) {
    const int64_t sender = rank_of(transfer.sender);
    if (sender != everyone_.rank()) parts.push_back({&transfer, &to, sender});
  }
  std::ranges::stable_sort(parts, {}, [](const Part& part) { return part.transfer->sender; });
  return parts;
}

// Number of elements in the messages of a round, by peer rank.
std::map<int64_t, int64_t> RelayoutMessages::sizes_of(const std::vector<Part>& parts) {
  std::map<int64_t, int64_t> sizes;
  for (const Part& part : parts) sizes[part.other] += part.transfer->num_elements();
  return sizes;
}

// Splits transfers into pieces. Sender and receiver list the transfers between them in the same order, so their pieces
// have the same order too.
RelayoutMessages::Pieces RelayoutMessages::cut(const std::vector<Part>& parts, Side side, int64_t num_pieces) {
  std::map<int64_t, Cutter> cutters;
  for (const auto& [rank, size] : sizes_of(parts)) {
    cutters.emplace(rank, std::max<int64_t>(1, (size + num_pieces - 1) / num_pieces));
  }
  for (const Part& part : parts) {
    const Transfer& transfer = *part.transfer;
    Cutter& cutter = cutters.at(part.other);
    const int64_t bucket = side == Side::sender ? transfer.from_bucket : transfer.to_bucket;
    const at::Tensor& buffer = buffer_of((*part.state)[bucket], transfer.kind);
    for (const CopyRun& run : transfer.runs) {
      if (side == Side::sender) {
        cutter.add(buffer, run.from, run.rows, run.count, run.from_stride);
      } else {
        cutter.add(buffer, run.to, run.rows, run.count, run.to_stride);
      }
    }
  }
  Pieces pieces;
  for (auto& [rank, cutter] : cutters) pieces[rank] = cutter.take();
  return pieces;
}

std::vector<RelayoutMessages::Packed> RelayoutMessages::place(const Pieces& pieces, int64_t number, int64_t& end) {
  std::vector<Packed> places;
  for (const auto& [rank, of_rank] : pieces) {
    if (number >= std::ssize(of_rank)) continue;
    const Piece& piece = of_rank[number];
    const int64_t count = num_elements(piece);
    places.push_back({rank, piece, end, count});
    end += round_up(count, message_alignment);
  }
  return places;
}

std::vector<Communicator::Message> RelayoutMessages::messages(const std::vector<Packed>& places) const {
  std::vector<Communicator::Message> messages;
  for (const Packed& place : places) {
    const at::Tensor message = packed_.narrow(0, place.begin, place.count);
    messages.push_back({place.rank, message.data_ptr(), static_cast<int64_t>(message.nbytes())});
  }
  return messages;
}

template <class Visit>
void RelayoutMessages::for_rows(const std::vector<Packed>& places, const Visit& visit) const {
  for (const Packed& place : places) {
    int64_t begin = place.begin;
    for (const at::Tensor& rows : place.rows) {
      visit(rows, packed_.narrow(0, begin, rows.numel()).view(rows.sizes()));
      begin += rows.numel();
    }
  }
}

void RelayoutMessages::take_own(const std::vector<Transfer>& receives, const std::vector<BucketState>& from,
                                const std::vector<BucketState>& to) const {
  for (const Transfer& transfer : receives) {
    if (rank_of(transfer.sender) != everyone_.rank()) continue;
    const std::vector<BucketState>& state = transfer.sender == process_ ? from : stand_ins_.state.at(transfer.sender);
    const at::Tensor& source = buffer_of(state[transfer.from_bucket], transfer.kind);
    const at::Tensor& target = buffer_of(to[transfer.to_bucket], transfer.kind);
    for (const CopyRun& run : transfer.runs) {
      const at::Tensor rows = rows_of(target, run.to, run.rows, run.count, run.to_stride);
      rows.copy_(rows_of(source, run.from, run.rows, run.count, run.from_stride));
    }
  }
}

void RelayoutMessages::take(int64_t round, const std::vector<BucketState>& from, const std::vector<BucketState>& to) {
  const RelayoutRound& mine = plan_.mine.rounds[round];
  take_own(mine.receives, from, to);
  const int64_t num_exchanges = num_exchanges_[round];
  if (num_exchanges == 0) return;
  const Pieces sends = cut(outgoing(round, from), Side::sender, num_exchanges);
  const Pieces receives = cut(incoming(round, to), Side::receiver, num_exchanges);
  for (int64_t number = 0; number < num_exchanges; ++number) {
    int64_t end = 0;
    const std::vector<Packed> out = place(sends, number, end), in = place(receives, number, end);
    const auto messages_at_once = static_cast<int64_t>(out.size() + in.size());
    COPUS_CHECK(end <= elements_at_once_ + messages_at_once * message_alignment, end, " of ", elements_at_once_);
    if (messages_at_once > 0 && (!packed_.defined() || packed_.numel() < end)) {
      const at::Tensor& like = (out.empty() ? in : out).front().rows.front();
      packed_.reset();
      packed_ = kernels::empty({end}, like.scalar_type(), like.device());
    }
    for_rows(out, [](const at::Tensor& rows, const at::Tensor& packed) { packed.copy_(rows); });
    everyone_.exchange(messages(out), messages(in));
    for_rows(in, [](const at::Tensor& rows, const at::Tensor& packed) { rows.copy_(packed); });
  }
}

}  // namespace copus
