// The layout of the segment that the ranks of one machine share. It holds the time at which the job began, the health
// of its ranks, and an area for each group, allocated when the group is first used.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "copus/comm/shared_memory/shared_counter.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

// What one member passes to the others in one round of a collective.
struct alignas(64) SharedSlot {
  SharedCounter round;  // the last round for which the slot was filled
  uint32_t operation;   // signature of the collective in which its owner takes part
  // A short message shares a cache line with its round counter, so that its reader has only one cache miss.
  static constexpr int64_t short_bytes = 48;
  alignas(8) std::byte short_message[short_bytes];  // elements of any type

  std::byte* message() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(SharedSlot) == 64);

// Carries the messages from one member to another as a stream of bytes. The counters count bytes.
struct SharedRing {
  alignas(64) SharedCounter written;
  alignas(64) SharedCounter read;

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(SharedRing) == 128);

// The memory of one group. Each member has two slots, which it uses alternately, and a ring to each other member.
class GroupArea {
 public:
  GroupArea(std::byte* address, int64_t members) : address_(address), members_(members) {}

  static int64_t slot_capacity(int64_t members);  // bytes of message()
  static int64_t ring_capacity(int64_t members);  // bytes of data(), a power of two
  static int64_t bytes(int64_t members);

  SharedSlot& slot(int64_t member, uint32_t round) const;
  SharedRing& ring(int64_t from, int64_t to) const;

 private:
  static int64_t slot_stride(int64_t members);
  static int64_t ring_stride(int64_t members);

  std::byte* address_;
  int64_t members_;
};

// The table at the beginning of the segment, as one rank uses it.
class SegmentTable {
 public:
  // Turns memory that is all zero into a segment for `size` ranks.
  static void initialize(std::byte* address, int64_t size, std::chrono::steady_clock::time_point start);
  // Whether the memory holds a completely initialized segment.
  static bool is_made(const std::byte* address);
  explicit SegmentTable(std::byte* address);

  int64_t size() const;
  std::byte* health() const;
  std::chrono::steady_clock::time_point start() const;

  // Returns the area of an ordered list of ranks, which is the same for every caller. Does not wait: groups are
  // appended to a log by compare-and-swap, and each group's area begins where the area of the previous group ends.
  GroupArea find_or_add_group(const std::vector<int64_t>& ranks);

 private:
  struct Header;
  Header& header() const;
  std::atomic<uint32_t>* entries() const;     // 0: unused; otherwise 1 + the number of a rank list
  int64_t* rank_list(uint32_t number) const;  // its length, then the ranks

  std::byte* address_;
};

}  // namespace copus
