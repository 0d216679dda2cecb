// Sends the rounds of a re-layout as messages. The device that holds the state packs the slices for each rank without
// gaps, and unpacks the slices that it receives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/model/memory/state_memory.h"
#include "copus/placement/relayout_plan.h"

namespace copus {

// The buffer of a bucket that holds this kind of state.
const at::Tensor& buffer_of(const BucketState& state, StateKind kind);

// The ranks that act for ended processes of a plan. A rank that can still read the state of an ended process sends it.
struct StandIns {
  // By process: the rank that sends its state, itself or another one; -1 if nobody does. Empty: process p is rank p.
  std::vector<int64_t> ranks;
  // By process: the state of the other processes that this rank acts for.
  std::map<int64_t, std::vector<BucketState>> state;
};

class RelayoutMessages {
 public:
  // Keeps references to all arguments except `process`. Every rank makes this object. `process` is this rank's process
  // in the plan; `stood_in` are the plans of the ended processes for which ranks act (stand_ins). Exchanges are split
  // so that the packed messages of one exchange fit into the plan's memory bound, which allows the k largest buckets in
  // addition to the state at rest.
  RelayoutMessages(const RelayoutPlan& plan, int64_t process, const std::map<int64_t, RankPlan>& stood_in,
                   const StandIns& stand_ins, Communicator& everyone);

  // Moves everything that this rank takes and gives in a round, from its buckets of the old layout to its buckets of
  // the new one. All ranks call it together.
  void take(int64_t round, const std::vector<BucketState>& from, const std::vector<BucketState>& to);

 private:
  // The part of a round that one exchange moves between this rank and another: rows of buffers, [rows, count] each, in
  // an order that both ranks know.
  using Piece = std::vector<at::Tensor>;
  // The pieces of a round, by peer rank.
  using Pieces = std::map<int64_t, std::vector<Piece>>;
  enum class Side { sender, receiver };

  // A transfer, the state that it reads or writes, and its peer rank.
  struct Part {
    const Transfer* transfer;
    const std::vector<BucketState>* state;
    int64_t other;
  };

  // A piece, and the place of its packed copy.
  struct Packed {
    int64_t rank;
    const Piece& rows;
    int64_t begin, count;
  };

  int64_t rank_of(int64_t process) const { return stand_ins_.ranks.empty() ? process : stand_ins_.ranks[process]; }
  // Return the transfers of this rank in a round, without copies within the rank. Sender and receiver list the
  // transfers between them in the same order: by source process, then in the plan's order.
  std::vector<Part> outgoing(int64_t round, const std::vector<BucketState>& from) const;
  std::vector<Part> incoming(int64_t round, const std::vector<BucketState>& to) const;
  void take_own(const std::vector<Transfer>& receives, const std::vector<BucketState>& from,
                const std::vector<BucketState>& to) const;
  static std::map<int64_t, int64_t> sizes_of(const std::vector<Part>& parts);
  static Pieces cut(const std::vector<Part>& parts, Side side, int64_t num_pieces);
  // Places piece number `number` of each peer rank in the packed buffer, from element `end` on. Advances `end` past
  // these pieces.
  static std::vector<Packed> place(const Pieces& pieces, int64_t number, int64_t& end);
  std::vector<Communicator::Message> messages(const std::vector<Packed>& places) const;
  // Calls visit(rows, packed copy of these rows) for all of them.
  template <class Visit>
  void for_rows(const std::vector<Packed>& places, const Visit& visit) const;

  const RelayoutPlan& plan_;
  const int64_t process_;
  const std::map<int64_t, RankPlan>& stood_in_;
  const StandIns& stand_ins_;
  Communicator& everyone_;
  int64_t elements_at_once_;
  std::vector<int64_t> num_exchanges_;  // by round
  at::Tensor packed_;  // outgoing, then incoming; kept after a failure, since some rank may still be sending
};

}  // namespace copus
