#include "copus/comm/shared_memory/shared_memory_transport.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/base/numbers/round_up.h"
#include "copus/comm/reduce_elements.h"
#include "copus/comm/shared_memory/peer_memory.h"

namespace copus {

namespace {

// Up to this size, reducing everything on every member is faster than a second round.
constexpr int64_t whole_reduction_bytes = 16 << 10;

// If a member's part has at least this size, reading it in place is faster than copying it through a slot.
constexpr int64_t least_peer_bytes = 16 << 10;

constexpr int64_t line = 64;

// A message passes through its ring in steps, so that both ends copy at the same time.
constexpr int64_t ring_step = 32 << 10;
constexpr int64_t message_header_bytes = 8;

constexpr int64_t ring_bytes(int64_t bytes) { return message_header_bytes + round_up(bytes, 8); }

// Either address may be null if there are no bytes.
void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

void copy_into_ring(SharedRing& ring, int64_t capacity, uint32_t position, const std::byte* from, int64_t bytes) {
  const int64_t offset = position % capacity;
  const int64_t until_wrap = std::min(bytes, capacity - offset);
  copy_bytes(ring.data() + offset, from, until_wrap);
  copy_bytes(ring.data(), from + until_wrap, bytes - until_wrap);
}

void copy_from_ring(SharedRing& ring, int64_t capacity, uint32_t position, std::byte* to, int64_t bytes) {
  const int64_t offset = position % capacity;
  const int64_t until_wrap = std::min(bytes, capacity - offset);
  copy_bytes(to, ring.data() + offset, until_wrap);
  copy_bytes(to + until_wrap, ring.data(), bytes - until_wrap);
}

// Offsets and sizes, in bytes, of each member's part of a buffer.
struct Parts {
  std::vector<int64_t> offsets;  // of each member, and the end
  int64_t longest = 0;

  Parts(std::span<const int64_t> counts, DataType type) : offsets{0} {
    for (const int64_t count : counts) {
      offsets.push_back(offsets.back() + count * size_of(type));
      longest = std::max(longest, count * size_of(type));
    }
  }

  int64_t bytes(int64_t member) const { return offsets[member + 1] - offsets[member]; }
  // The number of bytes of the member's part within the `piece` bytes from `begin` on.
  int64_t bytes_of_piece(int64_t member, int64_t begin, int64_t piece) const {
    return std::clamp<int64_t>(bytes(member) - begin, 0, piece);
  }
};

// "an all-reduce"
std::string in_words(OperationKind kind) {
  std::string name = to_string(kind);
  std::replace(name.begin(), name.end(), '_', '-');
  return (name.starts_with('a') ? "an " : "a ") + name;
}

}  // namespace

SharedMemoryTransport::Collective::Collective(const Operation& its_operation) : operation(its_operation) {
  uint64_t hash = mix_bits(static_cast<uint64_t>(operation.kind) * 64 + static_cast<uint64_t>(operation.type) * 8 +
                           static_cast<uint64_t>(operation.reduction));
  hash = extend_hash(hash, operation.peer);
  hash = extend_hash(hash, operation.count);
  for (const int64_t count : operation.counts) hash = extend_hash(hash, count);
  signature = static_cast<uint32_t>(hash);
}

SharedMemoryTransport::SharedMemoryTransport(GroupArea area, std::vector<int64_t> ranks, int64_t member,
                                             SharedHealth& health, const WaitPolicy& policy)
    : area_(area), ranks_(std::move(ranks)), member_(member), health_(health), policy_(policy) {
  // Continues from the round at which an earlier communicator of this rank stopped.
  const uint32_t even = area_.slot(member_, 0).round.value();
  const uint32_t odd = area_.slot(member_, 1).round.value();
  round_ = static_cast<int32_t>(odd - even) > 0 ? odd : even;
  all_published_ = round_ - 1;
}

void SharedMemoryTransport::begin_round() {
  wait_for_round(std::nullopt);
  ++round_;
}

void SharedMemoryTransport::publish_round(const Collective& collective) {
  SharedSlot& slot = area_.slot(member_, round_);
  slot.operation = collective.signature;
  slot.round.publish(round_);
}

void SharedMemoryTransport::wait_for(int64_t member, const Collective& collective) {
  SharedSlot& slot = area_.slot(member, round_);
  const OperationKind kind = collective.operation.kind;
  if (!slot.round.reached(round_) && !Wait(policy_).until(slot.round, round_)) fail({member}, in_words(kind));
  COPUS_CHECK(slot.operation == collective.signature, "rank ", ranks_[member],
              " takes part in something else than rank ", ranks_[member_], ", in ", in_words(kind));
}

void SharedMemoryTransport::wait_for_all(const Collective& collective) {
  wait_for_round(collective.operation.kind);
  for (int64_t member = 0; member < size(); ++member) wait_for(member, collective);
}

void SharedMemoryTransport::wait_for_round(std::optional<OperationKind> kind) {
  if (all_published_ == round_) return;
  Wait wait(policy_);
  for (int64_t member = 0; member < size(); ++member) {
    if (wait.until(area_.slot(member, round_).round, round_)) continue;
    std::vector<int64_t> missing;
    for (int64_t other = member; other < size(); ++other) {
      if (!area_.slot(other, round_).round.reached(round_)) missing.push_back(other);
    }
    if (!missing.empty()) fail(missing, kind ? in_words(*kind) : "the next collective");
  }
  all_published_ = round_;
}

std::byte* SharedMemoryTransport::message(int64_t member, uint32_t round, int64_t k, int64_t bytes) const {
  SharedSlot& slot = area_.slot(member, round);
  if (bytes * size() <= SharedSlot::short_bytes) return slot.short_message + k * bytes;
  return slot.message() + k * round_up(bytes, line);
}

void SharedMemoryTransport::all_reduce(const Operation& operation) {
  if (operation.count == 0) return;
  const Collective collective(operation);
  if (operation.bytes() <= whole_reduction_bytes) {
    reduce_whole(collective);
  } else {
    reduce_by_shares(collective);
  }
}

void SharedMemoryTransport::reduce_whole(const Collective& collective) {
  const Operation& operation = collective.operation;
  const int64_t bytes = operation.bytes();
  auto* const data = static_cast<std::byte*>(operation.output);
  begin_round();
  copy_bytes(message(member_, round_, 0, bytes), data, bytes);
  publish_round(collective);
  wait_for_all(collective);
  std::vector<const std::byte*> inputs(ranks_.size());
  for (int64_t member = 0; member < size(); ++member) inputs[member] = message(member, round_, 0, bytes);
  reduce_elements(inputs, {&data, 1}, operation.count, operation.type, operation.reduction);
}

// In round p, a member writes piece p of every other member's part of the vector into its slot, reduces piece p - 1 of
// its own part, and gives the result to all members.
void SharedMemoryTransport::reduce_by_shares(const Collective& collective) {
  const auto [count, type, reduction] =
      std::tuple(collective.operation.count, collective.operation.type, collective.operation.reduction);
  auto* const data = static_cast<std::byte*>(collective.operation.output);
  const int64_t share = round_up((count * size_of(type) + size() - 1) / size(), line);
  std::vector<int64_t> counts(ranks_.size());
  for (int64_t member = 0, left = count; member < size(); ++member) {
    counts[member] = std::min(left, share / size_of(type));
    left -= counts[member];
  }
  const Parts shares(counts, type);
  const int64_t piece = std::min(share, GroupArea::slot_capacity(size()) / size());
  const int64_t pieces = (share + piece - 1) / piece;
  std::vector<const std::byte*> inputs(ranks_.size());
  for (int64_t p = 0; p <= pieces; ++p) {
    begin_round();
    for (int64_t k = 0; p < pieces && k < size(); ++k) {
      if (k == member_) continue;
      copy_bytes(message(member_, round_, k, piece), data + shares.offsets[k] + p * piece,
                 shares.bytes_of_piece(k, p * piece, piece));
    }
    const int64_t previous = (p - 1) * piece;
    if (p > 0) {
      std::byte* const own = data + shares.offsets[member_] + previous;
      for (int64_t member = 0; member < size(); ++member) {
        inputs[member] = member == member_ ? own : message(member, round_ - 1, member_, piece);
      }
      const std::array<std::byte*, 2> outputs{own, message(member_, round_, member_, piece)};
      reduce_elements(inputs, outputs, shares.bytes_of_piece(member_, previous, piece) / size_of(type), type,
                      reduction);
    }
    publish_round(collective);
    wait_for_all(collective);
    for (int64_t k = 0; p > 0 && k < size(); ++k) {
      if (k == member_) continue;
      copy_bytes(data + shares.offsets[k] + previous, message(k, round_, k, piece),
                 shares.bytes_of_piece(k, previous, piece));
    }
  }
}

void SharedMemoryTransport::reduce_scatter(const Operation& operation) {
  const Collective collective(operation);
  const Parts parts(operation.counts, operation.type);
  const auto* const from = static_cast<const std::byte*>(operation.input);
  const int64_t piece = std::min(parts.longest, GroupArea::slot_capacity(size()) / size());
  std::vector<const std::byte*> inputs(ranks_.size());
  for (int64_t begin = 0; begin < parts.longest; begin += piece) {
    begin_round();
    for (int64_t k = 0; k < size(); ++k) {
      if (k == member_) continue;
      copy_bytes(message(member_, round_, k, piece), from + parts.offsets[k] + begin,
                 parts.bytes_of_piece(k, begin, piece));
    }
    publish_round(collective);
    wait_for_all(collective);
    for (int64_t member = 0; member < size(); ++member) {
      inputs[member] =
          member == member_ ? from + parts.offsets[member_] + begin : message(member, round_, member_, piece);
    }
    const int64_t bytes = parts.bytes_of_piece(member_, begin, piece);
    // A member with an empty part may have no buffer.
    std::byte* const to = bytes > 0 ? static_cast<std::byte*>(operation.output) + begin : nullptr;
    reduce_elements(inputs, {&to, 1}, bytes / size_of(operation.type), operation.type, operation.reduction);
  }
}

// Each member tries to read a word of every other member's memory. This is done once per group, and all members get the
// same result.
bool SharedMemoryTransport::reads_peers() {
  if (reads_peers_) return *reads_peers_;
  struct Word {
    PeerAddress place;
    uint64_t value;
  };
  static_assert(sizeof(Word) <= SharedSlot::short_bytes);
  const Operation nothing{.kind = OperationKind::barrier};
  const Collective collective(nothing);
  allow_peers_to_read();
  const PeerAddress here = peer_address(this);
  const uint64_t mine = mix_bits(here.token + static_cast<uint64_t>(member_));
  begin_round();
  const Word word{peer_address(&mine), mine};
  std::memcpy(area_.slot(member_, round_).short_message, &word, sizeof(word));
  publish_round(collective);
  wait_for_all(collective);
  bool reads_all = true;
  for (int64_t member = 0; member < size(); ++member) {
    Word other;
    uint64_t read = 0;
    std::memcpy(&other, area_.slot(member, round_).short_message, sizeof(other));
    reads_all &= read_peer(other.place, reinterpret_cast<std::byte*>(&read), sizeof(read)) && read == other.value;
  }
  reads_peers_ = all_agree(collective, reads_all);
  return *reads_peers_;
}

// Returns whether every member passed `yes`. No member returns before all have answered.
bool SharedMemoryTransport::all_agree(const Collective& collective, bool yes) {
  begin_round();
  area_.slot(member_, round_).short_message[0] = std::byte{yes};
  publish_round(collective);
  wait_for_all(collective);
  for (int64_t member = 0; member < size(); ++member) {
    if (area_.slot(member, round_).short_message[0] == std::byte{0}) return false;
  }
  return true;
}

// Gathers without slots. Every member announces the address of its part, and each member copies the other parts from
// these addresses. No member returns before all have copied. If a member could not copy, because only the owner can
// read some part's memory, returns false on all members.
bool SharedMemoryTransport::gather_from_peers(const Collective& collective) {
  const Operation& operation = collective.operation;
  const Parts parts(operation.counts, operation.type);
  auto* const to = static_cast<std::byte*>(operation.output);
  begin_round();
  const PeerAddress own = peer_address(operation.input);
  std::memcpy(area_.slot(member_, round_).short_message, &own, sizeof(own));
  publish_round(collective);
  copy_bytes(to + parts.offsets[member_], static_cast<const std::byte*>(operation.input), parts.bytes(member_));
  wait_for_all(collective);
  bool reads_all = true;
  // Each member starts with its successor, so that not all members read from the same one.
  for (int64_t distance = 1; distance < size() && reads_all; ++distance) {
    const int64_t member = (member_ + distance) % size();
    PeerAddress other;
    std::memcpy(&other, area_.slot(member, round_).short_message, sizeof(other));
    reads_all = read_peer(other, to + parts.offsets[member], parts.bytes(member));
  }
  return all_agree(collective, reads_all);
}

void SharedMemoryTransport::all_gather(const Operation& operation) {
  const Collective collective(operation);
  const Parts parts(operation.counts, operation.type);
  if (parts.longest >= least_peer_bytes && reads_peers()) {
    if (gather_from_peers(collective)) return;
    reads_peers_ = false;
  }
  gather_through_slots(collective);
}

void SharedMemoryTransport::gather_through_slots(const Collective& collective) {
  const Operation& operation = collective.operation;
  const Parts parts(operation.counts, operation.type);
  const auto* const from = static_cast<const std::byte*>(operation.input);
  auto* const to = static_cast<std::byte*>(operation.output);
  const int64_t piece = std::min(parts.longest, GroupArea::slot_capacity(size()));
  for (int64_t begin = 0; begin < parts.longest; begin += piece) {
    const int64_t own = parts.bytes_of_piece(member_, begin, piece);
    begin_round();
    copy_bytes(message(member_, round_, 0, piece), from + begin, own);
    publish_round(collective);
    copy_bytes(to + parts.offsets[member_] + begin, from + begin, own);
    wait_for_all(collective);
    for (int64_t k = 0; k < size(); ++k) {
      if (k == member_) continue;
      copy_bytes(to + parts.offsets[k] + begin, message(k, round_, 0, piece), parts.bytes_of_piece(k, begin, piece));
    }
  }
}

void SharedMemoryTransport::broadcast(const Operation& operation) {
  const Collective collective(operation);
  const int64_t root = operation.peer, bytes = operation.bytes();
  const int64_t piece = std::min(bytes, GroupArea::slot_capacity(size()));
  auto* const address = static_cast<std::byte*>(operation.output);
  for (int64_t begin = 0; begin < bytes; begin += piece) {
    std::byte* const part = address + begin;
    const int64_t length = std::min(piece, bytes - begin);
    begin_round();
    if (member_ == root) copy_bytes(message(root, round_, 0, piece), part, length);
    publish_round(collective);
    if (member_ == root) continue;
    wait_for(root, collective);
    copy_bytes(part, message(root, round_, 0, piece), length);
  }
}

void SharedMemoryTransport::barrier() {
  const Operation operation{.kind = OperationKind::barrier};
  const Collective collective(operation);
  begin_round();
  publish_round(collective);
  wait_for_all(collective);
}

// In the ring, a message is its length in eight bytes, its bytes, and padding to a multiple of eight.
void SharedMemoryTransport::send(const void* data, int64_t bytes, int64_t to) {
  SharedRing& ring = area_.ring(member_, to);
  const int64_t capacity = GroupArea::ring_capacity(size());
  const auto* const from = static_cast<const std::byte*>(data);
  uint32_t written = ring.written.value();
  int64_t done = 0;  // bytes of the message already in the ring, including its header
  const int64_t total = ring_bytes(bytes);
  while (done < total) {
    const int64_t wanted = std::min(total - done, ring_step);
    wait_for_ring(ring.read, written + static_cast<uint32_t>(wanted - capacity), to);
    if (done == 0) std::memcpy(ring.data() + written % capacity, &bytes, message_header_bytes);
    const int64_t begin = std::max<int64_t>(done - message_header_bytes, 0);
    const int64_t end = std::min(done + wanted - message_header_bytes, bytes);
    const uint32_t position = written + static_cast<uint32_t>(begin + message_header_bytes - done);
    copy_into_ring(ring, capacity, position, from + begin, end - begin);
    written += static_cast<uint32_t>(wanted);
    done += wanted;
    ring.written.publish(written);
  }
}

bool SharedMemoryTransport::try_send(const void* data, int64_t bytes, int64_t to) {
  SharedRing& ring = area_.ring(member_, to);
  const auto in_ring = static_cast<int64_t>(ring.written.value() - ring.read.value());
  if (in_ring + ring_bytes(bytes) > GroupArea::ring_capacity(size())) return false;
  send(data, bytes, to);
  return true;
}

void SharedMemoryTransport::receive(void* data, int64_t bytes, int64_t from) {
  SharedRing& ring = area_.ring(from, member_);
  const int64_t capacity = GroupArea::ring_capacity(size());
  auto* const to = static_cast<std::byte*>(data);
  uint32_t read = ring.read.value();
  int64_t done = 0;
  const int64_t total = ring_bytes(bytes);
  while (done < total) {
    const int64_t wanted = std::min(total - done, ring_step);
    wait_for_ring(ring.written, read + static_cast<uint32_t>(done == 0 ? message_header_bytes : wanted), from);
    if (done == 0) {
      int64_t sent = 0;
      std::memcpy(&sent, ring.data() + read % capacity, message_header_bytes);
      COPUS_CHECK(sent == bytes, "rank ", ranks_[from], " sent ", sent, " bytes, rank ", ranks_[member_], " expects ",
                  bytes);
      wait_for_ring(ring.written, read + static_cast<uint32_t>(wanted), from);
    }
    const int64_t begin = std::max<int64_t>(done - message_header_bytes, 0);
    const int64_t end = std::min(done + wanted - message_header_bytes, bytes);
    const uint32_t position = read + static_cast<uint32_t>(begin + message_header_bytes - done);
    copy_from_ring(ring, capacity, position, to + begin, end - begin);
    read += static_cast<uint32_t>(wanted);
    done += wanted;
    ring.read.publish(read);
  }
}

void SharedMemoryTransport::wait_for_ring(SharedCounter& counter, uint32_t target, int64_t other) {
  if (!counter.reached(target) && !Wait(policy_).until(counter, target)) fail({other}, "a message");
}

void SharedMemoryTransport::fail(std::vector<int64_t> missing, std::string_view what) {
  // A rank that never joined the job is named first: the other missing ranks may be waiting for it in another group.
  std::ranges::stable_partition(missing, [&](int64_t member) { return health_.signs_of(ranks_[member]).pid == 0; });
  const auto with_place = [&](int64_t member) {
    const std::string place = health_.place_of(ranks_[member]);
    return place.empty() ? concat(ranks_[member]) : concat(ranks_[member], " (", place, ")");
  };
  std::string also;
  for (size_t i = 1; i < missing.size(); ++i) also += (i == 1 ? "; nor did rank " : ", ") + with_place(missing[i]);
  std::string group;
  for (const int64_t rank : ranks_) group += concat(group.empty() ? "" : ", ", rank);
  const int64_t first = ranks_[missing.front()];
  health_.report({first, health_.place_of(first),
                  concat("did not come to ", what, " of ranks ", group, ", for which rank ", ranks_[member_],
                         " waited ", policy_.deadline_seconds, " s", also)});
  health_.check();
  COPUS_CHECK(false, "a failure was reported and not kept");
}

}  // namespace copus
