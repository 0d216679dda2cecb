// The rounds of a re-layout as messages: slices for one rank are packed without gaps, exchanged with those from the
// other ranks, and unpacked, all by the device that holds the state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/model/state_memory.h"
#include "copus/placement/relayout_plan.h"

namespace copus {

// The buffer of a bucket that holds this kind of state.
const at::Tensor& buffer_of(const BucketState& state, StateKind kind);

// Who acts for the processes of a plan where some have ended: ranks that can still read their state give it for them.
struct StandIns {
  // By process: the rank that gives its state, itself or another one; -1 where nobody does. Empty: process p is rank p.
  std::vector<int64_t> ranks;
  // By process: the state of those that this rank acts for beside itself.
  std::map<int64_t, std::vector<BucketState>> state;
};

class RelayoutMessages {
 public:
  // Refers to all but the process for its whole life. Every rank makes one: `process` is that of the plan which it is,
  // `stood_in` are the plans of those in stand_ins.state. Messages under way at a time are cut so that they take no
  // more memory, packed, than the plan's bound has beside the state at rest: its k largest buckets.
  RelayoutMessages(const RelayoutPlan& plan, int64_t process, const std::map<int64_t, RankPlan>& stood_in,
                   const StandIns& stand_ins, Communicator& everyone);

  // Moves everything that this rank takes and gives in a round, together with all other ranks, from the buckets of the
  // old layout to those of the new one. Both are its own.
  void take(int64_t round, const std::vector<BucketState>& from, const std::vector<BucketState>& to);

 private:
  // The part of a round that travels between this rank and another at once: rows of buffers, [rows, count] each, in an
  // order that both know.
  using Piece = std::vector<at::Tensor>;
  // The pieces of a round, by the other rank.
  using Pieces = std::map<int64_t, std::vector<Piece>>;
  enum class Side { sender, receiver };

  // A transfer with the state that it gives from or takes into, and the rank at its other end.
  struct Part {
    const Transfer* transfer;
    const std::vector<BucketState>* state;
    int64_t other;
  };

  // A piece and the place of its packed copy.
  struct Packed {
    int64_t rank;
    const Piece& rows;
    int64_t begin, count;
  };

  int64_t rank_of(int64_t process) const { return stand_ins_.ranks.empty() ? process : stand_ins_.ranks[process]; }
  // What this rank gives and takes in a round, beside what it has itself. That of one rank to another comes in the same
  // order on both sides: by the process that it is from, and then as in the plan.
  std::vector<Part> outgoing(int64_t round, const std::vector<BucketState>& from) const;
  std::vector<Part> incoming(int64_t round, const std::vector<BucketState>& to) const;
  void take_own(const std::vector<Transfer>& receives, const std::vector<BucketState>& from,
                const std::vector<BucketState>& to) const;
  static std::map<int64_t, int64_t> sizes_of(const std::vector<Part>& parts);
  static Pieces cut(const std::vector<Part>& parts, Side side, int64_t num_pieces);
  // Places piece `number` for or from every rank in the packed buffer, from element `end` on, and moves `end` behind
  // them.
  static std::vector<Packed> place(const Pieces& pieces, int64_t number, int64_t& end);
  std::vector<Communicator::Message> messages(const std::vector<Packed>& places) const;
  // Calls visit(rows, the same rows packed) for all of them.
  template <class Visit>
  void for_rows(const std::vector<Packed>& places, const Visit& visit) const;

  const RelayoutPlan& plan_;
  const int64_t process_;
  const std::map<int64_t, RankPlan>& stood_in_;
  const StandIns& stand_ins_;
  Communicator& everyone_;
  int64_t elements_at_once_;
  std::vector<int64_t> num_exchanges_;  // by round
  at::Tensor packed_;                   // outgoing, then incoming; kept after a failure, while some rank may send
};

}  // namespace copus
