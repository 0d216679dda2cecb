// Runs the operations of one group over shared memory.
//
// A collective runs in rounds. In each round, a member fills its slot, publishes the number of the round, waits until
// all members have published it, and reads the slots of the others. Each member alternates between two slots. A member
// that has seen all others publish round k knows that they have finished reading round k - 1, so it may overwrite its
// slot of round k - 1. Therefore one wait per round suffices.
//
// Large reductions are split into pieces, and every member reduces its own part of each piece. This split does not
// affect the results: each element's sum runs over the members in their order, whatever piece and part it belongs to.
#pragma once

#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "copus/comm/health/shared_health.h"
#include "copus/comm/shared_memory/shared_counter.h"
#include "copus/comm/shared_memory/shared_segment.h"
#include "copus/comm/transport.h"

namespace copus {

class SharedMemoryTransport : public Transport {
 public:
  // `ranks`: the members' world ranks; `member`: this rank's position among them. Health and policy must outlive this
  // object.
  SharedMemoryTransport(GroupArea area, std::vector<int64_t> ranks, int64_t member, SharedHealth& health,
                        const WaitPolicy& policy);

  void all_reduce(const Operation& operation) override;
  void reduce_scatter(const Operation& operation) override;
  void all_gather(const Operation& operation) override;
  void broadcast(const Operation& operation) override;
  void barrier() override;

  void send(const void* data, int64_t bytes, int64_t to) override;
  void receive(void* data, int64_t bytes, int64_t from) override;
  bool try_send(const void* data, int64_t bytes, int64_t to) override;

 private:
  // A running collective, with the properties on which all members must agree. Members check this by comparing
  // signature().
  struct Collective {
    explicit Collective(const Operation& its_operation);
    const Operation& operation;
    uint32_t signature;
  };

  int64_t size() const { return std::ssize(ranks_); }
  void reduce_whole(const Collective& collective);
  void reduce_by_shares(const Collective& collective);
  bool all_agree(const Collective& collective, bool yes);
  bool gather_from_peers(const Collective& collective);
  void gather_through_slots(const Collective& collective);
  bool reads_peers();

  // Begins a round. This member may fill its slot until publish_round(). It may read the slot of another member once it
  // has waited for that member, until the next round begins.
  void begin_round();
  void publish_round(const Collective& collective);
  void wait_for(int64_t member, const Collective& collective);
  void wait_for_all(const Collective& collective);
  // Waits until all members have published the round, whatever operation they are in. `kind` is the operation of this
  // member; empty if the member is about to begin one.
  void wait_for_round(std::optional<OperationKind> kind);
  // The address of the bytes for member k in the slot of `member`, in a round with `bytes` bytes for each member.
  std::byte* message(int64_t member, uint32_t round, int64_t k, int64_t bytes) const;

  // Waits until the member at the other end of a ring has moved `counter` to `target`.
  void wait_for_ring(SharedCounter& counter, uint32_t target, int64_t other);
  [[noreturn]] void fail(std::vector<int64_t> missing, std::string_view what);

  const GroupArea area_;
  const std::vector<int64_t> ranks_;
  const int64_t member_;
  SharedHealth& health_;
  const WaitPolicy& policy_;

  uint32_t round_;
  uint32_t all_published_;  // the last round that all members are known to have published
  // Whether every member can read every other member's memory; empty if this has not been tried. All members have the
  // same value.
  std::optional<bool> reads_peers_;
};

}  // namespace copus
