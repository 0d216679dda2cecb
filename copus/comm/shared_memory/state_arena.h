// Memory of each rank that the other ranks of the machine can read: training state lies in it, so that in a re-layout a
// slice is copied once, from owner to owner. Pages that were touched are kept and used again, since fresh ones cost ten
// times a warm copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "copus/comm/descriptor.h"
#include "copus/comm/shared_memory/mapping.h"
#include "copus/comm/world.h"

namespace copus {

// Which stretches of an arena are taken. It is a value, so that a sequence of allocations can be tried on a copy
// beforehand. An allocation goes into the first gap that it fits into.
class ArenaSpace {
 public:
  static constexpr int64_t alignment = 4096;

  int64_t allocate(int64_t bytes);  // gives the offset of more than 0 bytes
  void release(int64_t offset);     // of an allocation
  int64_t used_bytes() const { return used_; }
  int64_t end() const;  // of the last allocation
  // The highest end so far. Pages below it have been touched.
  int64_t high_water() const { return high_water_; }
  int64_t bytes_at(int64_t offset) const;  // of an allocation, rounded up to the alignment

 private:
  std::map<int64_t, int64_t> taken_;  // offset -> bytes, rounded up to the alignment
  int64_t used_ = 0, high_water_ = 0;
};

// An arena that a process outside of the ranks' world keeps open, so that it outlives all of them.
struct KeptArena {
  int64_t owner = 0;            // the process that the arena belongs or belonged to
  int64_t pid = 0, number = 0;  // the process that keeps it, as the system knows it, and its descriptor there
};

// Nothing is left behind however the ranks end, since the memory has no name and is gone with the last process that
// has it open. Pages that were made present stay so, and the next layout that is as large finds them warm.
//
// Arenas are those of processes, which keep their numbers where ranks come and go (job/membership.h). That of a process
// that has ended can be read until keep_only() is called without it. With an arena comes a record, which says what
// lies in it.
class StateArena {
 public:
  // Every rank of `world` calls it. Each maps the arenas of the ranks on its machine: `machines` tells by rank which
  // that is; where it is empty, all are on one. Null on all ranks where one of them cannot map such an arena (ranks on
  // several machines of which nothing is told, a limit on addresses); state then travels as messages. Addresses are
  // reserved, memory is not. Without `processes`, which gives the number of each rank's process, that is its rank.
  // `kept`: alike on all ranks of a machine; those that cannot be opened are passed over.
  static std::unique_ptr<StateArena> join(World& world);
  static std::unique_ptr<StateArena> join(World& world, const std::vector<int64_t>& processes,
                                          const std::vector<int64_t>& machines = {},
                                          const std::vector<KeptArena>& kept = {});
  // For ranks that have arenas, in the world of a later epoch: each calls it, while those that have none, the
  // newcomers, call join with the same. Afterwards every rank maps the arenas of all on its machine, and those of ended
  // processes that are kept or that one of these ranks still had; of two the kept one. What was mapped stays where it
  // is. False on all ranks where one of them cannot map another's.
  bool rejoin(World& world, const std::vector<int64_t>& processes, const std::vector<int64_t>& machines = {},
              const std::vector<KeptArena>& kept = {});
  // Gives up the arenas of all others than these and this process.
  void keep_only(const std::vector<int64_t>& processes);

  // The machine of a process of the world that was joined last; 0 where all are on one.
  int64_t machine_of(int64_t process) const { return machines_.at(process); }
  // Whether these processes of that world are all on one machine, and so each maps the arenas of all.
  bool are_on_one_machine(const std::vector<int64_t>& processes) const;
  // Whether this process maps the arena of that one, which may have ended, or be itself.
  bool is_here(int64_t process) const { return process == process_ || others_.contains(process); }

  // For the thread that the rank trains on.
  ArenaSpace& space() { return space_; }
  std::byte* mine() const { return own_.memory.get(); }  // of this process
  const std::byte* of(int64_t process) const;            // of any process whose arena is here
  // That of another process that has ended: this process writes into it from now on, in place of the other.
  std::byte* stand_in(int64_t process);
  int64_t reserved_bytes() const { return bytes_; }     // that an arena can hold at most
  const Descriptor& file() const { return own_.file; }  // of this process' arena and its record

  // Replaces the record of this process' arena, of at most most_record_bytes. Readers find the record before or this
  // one, wherever the process ends.
  void write_record(std::string_view record);
  // The record of another process that has ended; empty: it has written none, or its arena is not here.
  std::string record_of(int64_t process) const;
  // Processes whose arenas are here and that are not of the world that was joined last.
  std::vector<int64_t> ended() const;
  static constexpr int64_t most_record_bytes = int64_t{64} << 20;

  // Makes the first `end` bytes of this rank's arena present. One thread at a time calls it, beside training. False
  // where the system has no more memory or the arena ends before; what was made present until then stays so.
  bool prefault(int64_t end);
  // Makes what this rank is going to read present in its page table. The owner must have written it: other pages would
  // become memory here.
  void prefault_read(int64_t process, int64_t begin, int64_t end);

 private:
  // A file that this process has open, and its addresses here.
  struct Arena {
    Descriptor file;
    Mapping memory;
    Mapping record = nullptr;  // of this process' own
  };

  StateArena(int64_t process, int64_t bytes, Arena own);
  // Every rank calls it, once all arenas that there will be are there. Whether all have come to map those of their
  // machines.
  bool map_others(World& world, const std::vector<int64_t>& processes, const std::vector<int64_t>& machines,
                  const std::vector<KeptArena>& kept);
  std::set<int64_t> map_kept(const std::vector<KeptArena>& kept);  // gives whose are here then
  bool map_other(int64_t owner, Descriptor file);                  // false where there are no addresses for it

  const int64_t process_, bytes_;
  const Arena own_;
  std::map<int64_t, Arena> others_;      // by process
  std::map<int64_t, int64_t> machines_;  // by process of the world that was joined last
  std::atomic<int64_t> present_ = 0;     // pages of this process' below it have been made so
  uint64_t records_ = 0;                 // that this process has written
  ArenaSpace space_;
};

}  // namespace copus
