// Memory of each rank that the other ranks of its machine can read. It holds training state, so that a re-layout copies
// each slice once, directly from the old owner to the new one. Pages that have been touched are kept and reused: a copy
// into fresh pages takes ten times as long as a copy into touched pages.
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

// Tracks which ranges of an arena are allocated. Allocation is first-fit. An ArenaSpace is a value type, so that a
// sequence of allocations can be tried on a copy first.
class ArenaSpace {
 public:
  static constexpr int64_t alignment = 4096;

  int64_t allocate(int64_t bytes);  // returns the offset of more than 0 bytes
  void release(int64_t offset);     // offset of an allocation
  int64_t used_bytes() const { return used_; }
  int64_t end() const;  // of the allocation with the highest address
  // The highest end so far. Pages below it have been touched.
  int64_t high_water() const { return high_water_; }
  int64_t bytes_at(int64_t offset) const;  // of an allocation, rounded up to the alignment

 private:
  std::map<int64_t, int64_t> taken_;  // offset -> bytes, rounded up to the alignment
  int64_t used_ = 0, high_water_ = 0;
};

// An arena that a process other than the ranks keeps open, so that it outlives all ranks.
struct KeptArena {
  int64_t owner = 0;            // the process that the arena belongs or belonged to
  int64_t pid = 0, number = 0;  // pid and descriptor in the process that keeps it
};

// The memory has no name in the file system and is freed with the last process that has it open, so nothing is left
// behind however the ranks end. Pages that were made present stay present for the next layout of the same size.
//
// An arena belongs to a process, whose number does not change when ranks come and go (job/member/membership.h). The
// arena of an ended process can be read until keep_only() is called without this process. Each arena has a record, a
// text that describes its content.
class StateArena {
 public:
  // Makes the arena of this rank, and maps the arenas of all ranks on its machine. Every rank of `world` must call
  // this. `processes[r]` is the number of rank r's process, and `machines[r]` is its machine. Without `processes` the
  // number is the rank; without `machines` all ranks are on one machine. `kept` lists arenas of ended processes that
  // are also mapped, and must be the same on all ranks of a machine. Kept arenas that cannot be opened are skipped.
  // Joining reserves addresses, not memory.
  //
  // Returns null on all ranks if any rank cannot map an arena of its machine. This happens if a limit on addresses is
  // too low, or if `machines` is missing although there are several machines. State then travels in messages.
  static std::unique_ptr<StateArena> join(World& world);
  static std::unique_ptr<StateArena> join(World& world, const std::vector<int64_t>& processes,
                                          const std::vector<int64_t>& machines = {},
                                          const std::vector<KeptArena>& kept = {});
  // Joins the ranks of a later epoch. Ranks that have an arena call this; new processes call join() with the same
  // arguments. Afterwards every rank maps the arenas of all ranks on its machine. It also maps the arenas of ended
  // processes that are in `kept`, and the arenas that a rank on its machine still had mapped. If both offer the same
  // arena, the one in `kept` is mapped. Existing mappings do not move. If one rank cannot map another rank's arena,
  // returns false on all ranks.
  bool rejoin(World& world, const std::vector<int64_t>& processes, const std::vector<int64_t>& machines = {},
              const std::vector<KeptArena>& kept = {});
  // Unmaps all arenas except this process' own and those of `processes`.
  void keep_only(const std::vector<int64_t>& processes);

  // The machine of a process in the world that was joined last; 0 if all are on one machine.
  int64_t machine_of(int64_t process) const { return machines_.at(process); }
  // Whether these processes of the world joined last are all on one machine, so that each maps the arenas of all.
  bool are_on_one_machine(const std::vector<int64_t>& processes) const;
  // Whether this process maps the arena of `process`, which may have ended or be this process itself.
  bool is_here(int64_t process) const { return process == process_ || others_.contains(process); }

  // Used only by the rank's training thread.
  ArenaSpace& space() { return space_; }
  std::byte* mine() const { return own_.memory.get(); }  // of this process
  const std::byte* of(int64_t process) const;            // of any process whose arena is mapped here
  // The arena of another process, which must have ended. From now on this process writes into it in place of its owner.
  std::byte* stand_in(int64_t process);
  int64_t reserved_bytes() const { return bytes_; }     // the capacity of an arena
  const Descriptor& file() const { return own_.file; }  // of this process' arena and its record

  // Replaces the record of this process' arena, of at most most_record_bytes. Even if the process ends during this
  // call, readers find either the previous record or the new one.
  void write_record(std::string_view record);
  // The record of another process, which must have ended. Empty if that process wrote none or its arena is not mapped
  // here.
  std::string record_of(int64_t process) const;
  // Processes whose arenas are mapped here but which are not in the world joined last.
  std::vector<int64_t> ended() const;
  static constexpr int64_t most_record_bytes = int64_t{64} << 20;

  // Makes the first `end` bytes of this rank's arena present. One thread at a time may call this, concurrently with
  // training. Returns false if the system has no more memory, or if `end` exceeds the arena; pages that are already
  // present then stay present.
  bool prefault(int64_t end);
  // Enters pages that this rank is going to read into its page table. The owner must have written these pages, because
  // this call would allocate unwritten ones.
  void prefault_read(int64_t process, int64_t begin, int64_t end);

 private:
  // A file that this process has open, and its addresses here.
  struct Arena {
    Descriptor file;
    Mapping memory;
    Mapping record = nullptr;  // only for this process' own arena
  };

  StateArena(int64_t process, int64_t bytes, Arena own);
  // Every rank calls this when all arenas exist. Returns whether every rank could map the arenas of its machine.
  bool map_others(World& world, const std::vector<int64_t>& processes, const std::vector<int64_t>& machines,
                  const std::vector<KeptArena>& kept);
  std::set<int64_t> map_kept(const std::vector<KeptArena>& kept);  // returns the owners whose arenas are now mapped
  bool map_other(int64_t owner, Descriptor file);                  // false if it cannot be mapped

  const int64_t process_, bytes_;
  const Arena own_;
  std::map<int64_t, Arena> others_;      // by process
  std::map<int64_t, int64_t> machines_;  // by process of the world that was joined last
  std::atomic<int64_t> present_ = 0;     // this many bytes of this process' arena are present
  uint64_t records_ = 0;                 // number of records that this process has written
  ArenaSpace space_;
};

}  // namespace copus
