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

class RelayoutMessages {
 public:
  // Refers to both for its whole life. Every rank of the plan makes one. Messages under way at a time are cut so that
  // they take no more memory, packed, than the plan's bound has beside the state at rest: its k largest buckets.
  RelayoutMessages(const RelayoutPlan& plan, Communicator& everyone);

  // Moves everything that this rank takes and gives in a round, together with all other ranks, from the buckets of the
  // old layout to those of the new one.
  void take(int64_t round, const std::vector<BucketState>& from, const std::vector<BucketState>& to);

 private:
  // The part of a round that travels between this rank and another at once: rows of buffers, [rows, count] each, in an
  // order that both know.
  using Piece = std::vector<at::Tensor>;
  // The pieces of a round, by the other rank.
  using Pieces = std::map<int64_t, std::vector<Piece>>;
  enum class Side { sender, receiver };

  // A piece and the place of its packed copy.
  struct Packed {
    int64_t rank;
    const Piece& rows;
    int64_t begin, count;
  };

  void take_own(const std::vector<Transfer>& receives, const std::vector<BucketState>& from,
                const std::vector<BucketState>& to) const;
  Pieces cut(const std::vector<Transfer>& transfers, const std::vector<BucketState>& state, Side side,
             int64_t num_pieces) const;
  // Places piece `number` for or from every rank in the packed buffer, from element `end` on, and moves `end` behind
  // them.
  static std::vector<Packed> place(const Pieces& pieces, int64_t number, int64_t& end);
  std::vector<Communicator::Message> messages(const std::vector<Packed>& places) const;
  // Calls visit(rows, the same rows packed) for all of them.
  template <class Visit>
  void for_rows(const std::vector<Packed>& places, const Visit& visit) const;

  const RelayoutPlan& plan_;
  Communicator& everyone_;
  int64_t elements_at_once_;
  std::vector<int64_t> num_exchanges_;  // by round
  at::Tensor packed_;                   // outgoing, then incoming; kept after a failure, while some rank may send
};

}  // namespace copus
