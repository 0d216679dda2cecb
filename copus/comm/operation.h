// Represents one operation of a group of ranks as a value. Communicators use the value to queue the operation, to time
// it, or to copy its buffers to and from a device, mostly without looking at its kind.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "copus/comm/data_type.h"

namespace copus {

enum class OperationKind { all_reduce, reduce_scatter, all_gather, broadcast, barrier, send, receive, exchange };

// "all_reduce", "reduce_scatter", ...
const char* to_string(OperationKind kind);

// A message to or from one member of the group.
struct Message {
  int64_t member;
  void* data;
  int64_t bytes;
};

// How a message travels if it waits for its receiver on the device (NCCL). Other connections ignore the route.
struct Route {
  // The link that carries the message. The n members form a ring: link i connects member i and the next member, and
  // link n - 1 the last and the first member. Link n + i is a second link, parallel to link i. -1 means the first link
  // between the two members. Messages on different links do not wait for each other.
  int64_t link = -1;
  // Whether the sender's next operation in this group is a receive that may be joined with this send into one
  // operation. Without this, two neighbours in a pipeline that both send before they receive would deadlock.
  bool with_next_receive = false;
};

// A part of an operation's vector, in bytes.
struct VectorPart {
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const VectorPart&) const = default;
};

// One member's part in an operation. Every operation except a barrier and an exchange works on one vector of `count`
// elements of `type`. The functions of Communicator describe each kind.
struct Operation {
  OperationKind kind;
  const void* input = nullptr;  // what this member contributes
  void* output = nullptr;       // where the result goes; may be `input`, or the member's part of it
  int64_t count = 0;
  std::vector<int64_t> counts = {};  // reduce_scatter, all_gather: number of elements in each member's part
  DataType type = DataType::byte;
  Reduction reduction = Reduction::sum;
  int64_t peer = -1;                                  // broadcast: the root; send, receive: the other member
  std::vector<Message> outgoing = {}, incoming = {};  // exchange
  Route route = {};                                   // send, receive

  static Operation all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
    return {OperationKind::all_reduce, data, data, count, {}, type, reduction};
  }
  static Operation reduce_scatter(const void* input, void* output, std::span<const int64_t> counts, DataType type,
                                  Reduction reduction);
  static Operation all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type);
  static Operation broadcast(void* data, int64_t count, DataType type, int64_t root) {
    return {OperationKind::broadcast, data, data, count, {}, type, Reduction::sum, root};
  }
  static Operation send(const void* data, int64_t count, DataType type, int64_t to, Route route = {}) {
    return {OperationKind::send, data, nullptr, count, {}, type, Reduction::sum, to, {}, {}, route};
  }
  static Operation receive(void* data, int64_t count, DataType type, int64_t from, Route route = {}) {
    return {OperationKind::receive, nullptr, data, count, {}, type, Reduction::sum, from, {}, {}, route};
  }

  // Whether the operation can be started and waited for later. Operations of other kinds can only be run.
  bool can_be_started() const;
  bool is_message() const;  // a message, as opposed to a collective, in which every member takes part

  // Bytes of the whole vector.
  int64_t bytes() const { return count * size_of(type); }
  // The part that `counts` assigns to a member.
  VectorPart part_of(int64_t member) const;
  // The part of the vector that a member's `input` and `output` hold: nothing, the member's part, or all of it.
  VectorPart input_of(int64_t member) const;
  VectorPart output_of(int64_t member) const;
  // The buffer that holds the whole vector. Its address shows whether the data are in host or device memory; the other
  // buffer may be empty.
  const void* whole() const { return kind == OperationKind::reduce_scatter || output == nullptr ? input : output; }
};

}  // namespace copus
