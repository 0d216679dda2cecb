#include "copus/comm/shared_memory/state_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"
#include "copus/base/process/available_memory.h"
#include "copus/base/process/standard_descriptors.h"
#include "copus/comm/descriptor.h"

namespace copus {

namespace {

constexpr int64_t huge_page = int64_t{2} << 20;
constexpr int collapse_into_huge_page = 25;  // MADV_COLLAPSE of Linux 6.1, missing in older headers
// Pages are made present in pieces of this size, because training threads can change the process' memory map only
// between two pieces.
constexpr int64_t piece = 4 * huge_page;
// The free memory that prefault() leaves to other processes. Without this reserve, the kernel would kill a process
// instead of failing the request.
constexpr int64_t spare_bytes = int64_t{128} << 20;
// A process has 2^47 bytes of addresses. All arenas of a machine together use at most this many.
constexpr int64_t most_addresses = int64_t{1} << 46;

int64_t addresses_per_rank(int64_t ranks) {
  const int64_t physical = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  return round_up(std::min(physical, most_addresses / ranks), huge_page);
}

// Distinguishes machines, and different boots of one machine.
int64_t machine_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return std::bit_cast<int64_t>(stream_key(0, boot));
}

// Maps a file of `bytes` at an alignment that allows huge pages. Returns null if that fails.
Mapping map_aligned(int descriptor, int64_t bytes, int protection) {
  const int64_t with_slack = bytes + huge_page;
  void* const reserved = mmap(nullptr, with_slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(reserved);
  const int64_t before = -reinterpret_cast<intptr_t>(begin) & (huge_page - 1);
  void* const mapped = mmap(begin + before, bytes, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    munmap(begin, with_slack);
    return nullptr;
  }
  Mapping mapping(static_cast<std::byte*>(mapped), {static_cast<size_t>(bytes)});
  if (before > 0) munmap(begin, before);
  if (const int64_t behind = with_slack - before - bytes; behind > 0) munmap(mapping.get() + bytes, behind);
  return mapping;
}

// An arena's record follows the arena's own bytes in the arena's file. First comes the number of records written, which
// shows which of two slots holds the latest record. The two slots begin at this offset; each holds a record's length
// and the record. Only the written parts of the file take memory.
constexpr int64_t slots_at = 4096;
constexpr int64_t slot_bytes = StateArena::most_record_bytes + slots_at;
constexpr int64_t record_place_bytes = slots_at + 2 * slot_bytes;

int64_t slot_of(uint64_t record) { return slots_at + static_cast<int64_t>(record % 2) * slot_bytes; }

// Maps the record of this process' own file. The process writes the record through this mapping, because a write call
// would be subject to the limit on file sizes.
Mapping map_record(int descriptor, int64_t arena_bytes) {
  void* const mapped =
      mmap(nullptr, record_place_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, arena_bytes);
  if (mapped == MAP_FAILED) return nullptr;
  return Mapping(static_cast<std::byte*>(mapped), {static_cast<size_t>(record_place_bytes)});
}

bool read_at(int descriptor, int64_t offset, void* bytes, size_t count) {
  return pread(descriptor, bytes, count, offset) == static_cast<ssize_t>(count);
}

// A rank's offer of an arena that it has open. Other ranks use these values to open the arena and to check that they
// opened the right file.
struct Offer {
  int64_t owner = 0;  // the process that owns the arena
  int64_t machine = 0, pid = 0, descriptor = -1;
  int64_t device = 0, inode = 0, bytes = 0;  // of the open file
};

bool same_file(const Offer& one, const Offer& other) { return one.device == other.device && one.inode == other.inode; }

bool is_file(int descriptor, const Offer& offer) {
  struct stat status{};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return false;
  const int64_t device = status.st_dev, inode = status.st_ino;
  return device == offer.device && inode == offer.inode && status.st_size == offer.bytes;
}

int create_file(int64_t bytes) {
  const int descriptor = checked_descriptor(memfd_create("copus-state", MFD_CLOEXEC));
  if (descriptor >= 0 && ftruncate(descriptor, bytes + record_place_bytes) != 0) {
    close(descriptor);
    return -1;
  }
  return descriptor;
}

Offer offer_file(int64_t owner, int descriptor) {
  Offer offer{.owner = owner, .machine = machine_identity(), .pid = getpid()};
  struct stat status{};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return offer;
  offer.descriptor = descriptor;
  offer.device = status.st_dev;
  offer.inode = status.st_ino;
  offer.bytes = status.st_size;
  return offer;
}

std::string path_of(int64_t pid, int64_t descriptor) { return concat("/proc/", pid, "/fd/", descriptor); }

// Opens an offered arena. It needs write access because this rank may later stand in for the arena's owner.
Descriptor open_offered(const Offer& offer) {
  const std::string path = path_of(offer.pid, offer.descriptor);
  Descriptor opened(offer.descriptor < 0 ? -1 : open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  return is_file(opened.number(), offer) ? std::move(opened) : Descriptor();
}

int64_t machine_of_rank(const std::vector<int64_t>& machines, int64_t rank) {
  return machines.empty() ? 0 : machines[rank];
}

// Returns the offers of this machine's ranks, by owner. An owner's own offer comes first, then the offers of other
// ranks in rank order.
std::map<int64_t, std::vector<Offer>> exchange_offers(World& world, const std::vector<int64_t>& processes,
                                                      const std::vector<int64_t>& machines,
                                                      const std::vector<Offer>& mine) {
  constexpr int64_t words = sizeof(Offer) / sizeof(int64_t);
  std::vector<int64_t> counts(world.size());
  const int64_t count = std::ssize(mine);
  world.everyone().all_gather(&count, counts.data(), std::vector<int64_t>(world.size(), 1), DataType::int64);
  std::vector<Offer> all(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<int64_t> word_counts;
  for (const int64_t offers : counts) word_counts.push_back(offers * words);
  world.everyone().all_gather(mine.data(), all.data(), word_counts, DataType::int64);

  std::map<int64_t, std::vector<Offer>> by_owner;
  auto offer = all.begin();
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const bool is_here = machine_of_rank(machines, rank) == machine_of_rank(machines, world.rank());
    for (int64_t i = 0; i < counts[rank]; ++i, ++offer) {
      if (!is_here) continue;
      std::vector<Offer>& offers = by_owner[offer->owner];
      offers.insert(offer->owner == processes[rank] ? offers.begin() : offers.end(), *offer);
    }
  }
  return by_owner;
}

int64_t most_ranks_of_a_machine(const std::vector<int64_t>& machines, int64_t ranks) {
  if (machines.empty()) return ranks;
  std::map<int64_t, int64_t> counts;
  int64_t most = 0;
  for (const int64_t machine : machines) most = std::max(most, ++counts[machine]);
  return most;
}

// The size of kept arenas; 0 if there are none.
int64_t bytes_of_kept(const std::vector<KeptArena>& kept) {
  int64_t bytes = 0;
  for (const KeptArena& one : kept) {
    struct stat status{};
    if (stat(path_of(one.pid, one.number).c_str(), &status) != 0) continue;
    bytes = std::max<int64_t>(bytes, status.st_size - record_place_bytes);
  }
  return bytes;
}

// Returns the size of an arena, which is the same on all ranks. It is the first of these values that exists: the size
// of the ranks' own arenas, the size of the kept arenas, the largest addresses_per_rank() of any machine. `bytes` is
// the size of this rank's arena (0 if it has none yet). Kept arenas of a different size are not used.
int64_t agree_on_bytes(World& world, const std::vector<int64_t>& machines, int64_t bytes,
                       const std::vector<KeptArena>& kept) {
  std::array<int64_t, 3> largest{bytes, bytes_of_kept(kept),
                                 addresses_per_rank(most_ranks_of_a_machine(machines, world.size()))};
  world.everyone().all_reduce(largest.data(), std::ssize(largest), DataType::int64, Reduction::maximum);
  return *std::ranges::find_if(largest, [](int64_t one) { return one > 0; });
}

void touch(std::byte* page) { std::atomic_ref(*reinterpret_cast<uint8_t*>(page)).fetch_or(0); }

}  // namespace

int64_t ArenaSpace::allocate(int64_t bytes) {
  COPUS_CHECK(bytes > 0, bytes);
  const int64_t needed = round_up(bytes, alignment);
  int64_t offset = 0;
  for (const auto& [begin, length] : taken_) {
    if (begin - offset >= needed) break;
    offset = begin + length;
  }
  taken_.emplace(offset, needed);
  used_ += needed;
  high_water_ = std::max(high_water_, offset + needed);
  return offset;
}

void ArenaSpace::release(int64_t offset) {
  used_ -= bytes_at(offset);
  taken_.erase(offset);
}

int64_t ArenaSpace::end() const { return taken_.empty() ? 0 : taken_.rbegin()->first + taken_.rbegin()->second; }

int64_t ArenaSpace::bytes_at(int64_t offset) const {
  const auto found = taken_.find(offset);
  COPUS_CHECK(found != taken_.end(), "nothing is allocated at ", offset);
  return found->second;
}

StateArena::StateArena(int64_t process, int64_t bytes, Arena own)
    : process_(process), bytes_(bytes), own_(std::move(own)) {}

std::unique_ptr<StateArena> StateArena::join(World& world) {
  std::vector<int64_t> processes(world.size());
  std::iota(processes.begin(), processes.end(), 0);
  return join(world, processes);
}

std::unique_ptr<StateArena> StateArena::join(World& world, const std::vector<int64_t>& processes,
                                             const std::vector<int64_t>& machines, const std::vector<KeptArena>& kept) {
  const int64_t bytes = agree_on_bytes(world, machines, 0, kept);
  Arena own{Descriptor(create_file(bytes)), nullptr};
  if (own.file.is_open()) {
    own.memory = map_aligned(own.file.number(), bytes, PROT_READ | PROT_WRITE);
    own.record = map_record(own.file.number(), bytes);
  }
  std::unique_ptr<StateArena> arena(new StateArena(processes[world.rank()], bytes, std::move(own)));
  return arena->map_others(world, processes, machines, kept) ? std::move(arena) : nullptr;
}

bool StateArena::rejoin(World& world, const std::vector<int64_t>& processes, const std::vector<int64_t>& machines,
                        const std::vector<KeptArena>& kept) {
  COPUS_CHECK(processes[world.rank()] == process_, "process ", process_, " has become ", processes[world.rank()]);
  const int64_t bytes = agree_on_bytes(world, machines, bytes_, kept);
  COPUS_CHECK(bytes == bytes_, "arenas of ", bytes, " and of ", bytes_, " bytes");
  return map_others(world, processes, machines, kept);
}

bool StateArena::map_others(World& world, const std::vector<int64_t>& processes, const std::vector<int64_t>& machines,
                            const std::vector<KeptArena>& kept) {
  machines_.clear();
  for (int64_t rank = 0; rank < world.size(); ++rank) machines_[processes[rank]] = machine_of_rank(machines, rank);
  std::vector<Offer> mine{offer_file(process_, own_.file.number())};
  for (const auto& [owner, arena] : others_) mine.push_back(offer_file(owner, arena.file.number()));
  int64_t failures = own_.memory && own_.record ? 0 : 1;
  const std::set<int64_t> known_by_keeper = map_kept(kept);
  for (const auto& [owner, offers] : exchange_offers(world, processes, machines, mine)) {
    const Offer& right = offers.front();
    if (owner == process_ || failures > 0 || known_by_keeper.contains(owner)) continue;
    // A new process whose first attempt to join was interrupted may have made a new arena since.
    if (const auto known = others_.find(owner); known != others_.end() && is_file(known->second.file.number(), right)) {
      continue;
    }
    Descriptor file;
    for (const Offer& offer : offers) {
      const bool usable = same_file(offer, right) && offer.machine == mine.front().machine &&
                          offer.bytes == bytes_ + record_place_bytes;
      if (!file.is_open() && usable) file = open_offered(offer);
    }
    if (!map_other(owner, std::move(file))) failures = 1;
  }
  // An owner must not exit before all have mapped its arena.
  world.everyone().all_reduce(&failures, 1, DataType::int64);
  return failures == 0;
}

// Maps the arenas of ended processes. If this rank already maps a different arena of such a process, replaces the
// mapping: the process made a new arena when it loaded its state again, before it ended.
std::set<int64_t> StateArena::map_kept(const std::vector<KeptArena>& kept) {
  std::set<int64_t> owners;
  for (const KeptArena& one : kept) {
    if (machines_.contains(one.owner)) continue;
    Descriptor file(open(path_of(one.pid, one.number).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    const Offer found = offer_file(one.owner, file.number());
    if (found.bytes != bytes_ + record_place_bytes) continue;
    const auto known = others_.find(one.owner);
    const bool is_known = known != others_.end() && is_file(known->second.file.number(), found);
    if (is_known || map_other(one.owner, std::move(file))) owners.insert(one.owner);
  }
  return owners;
}

bool StateArena::map_other(int64_t owner, Descriptor file) {
  Arena arena{std::move(file), nullptr};
  if (arena.file.is_open()) arena.memory = map_aligned(arena.file.number(), bytes_, PROT_READ);
  if (!arena.memory) return false;
  // A core dump should contain this rank's own state but not that of other ranks.
  madvise(arena.memory.get(), bytes_, MADV_DONTDUMP);
  others_[owner] = std::move(arena);
  return true;
}

void StateArena::write_record(std::string_view record) {
  COPUS_CHECK(std::ssize(record) <= most_record_bytes, std::ssize(record));
  const uint64_t length = record.size(), number = records_ + 1;
  std::byte* const slot = own_.record.get() + slot_of(number);
  std::memcpy(slot, &length, sizeof length);
  std::memcpy(slot + sizeof length, record.data(), record.size());
  std::atomic_ref(*reinterpret_cast<uint64_t*>(own_.record.get())).store(number, std::memory_order_release);
  records_ = number;
}

std::string StateArena::record_of(int64_t process) const {
  const auto found = others_.find(process);
  if (found == others_.end()) return {};
  const int file = found->second.file.number();
  uint64_t number = 0, length = 0;
  if (!read_at(file, bytes_, &number, sizeof number) || number == 0) return {};
  const int64_t slot = bytes_ + slot_of(number);
  if (!read_at(file, slot, &length, sizeof length)) return {};
  COPUS_CHECK(length <= static_cast<uint64_t>(most_record_bytes), length);
  std::string record(length, '\0');
  return read_at(file, slot + static_cast<int64_t>(sizeof length), record.data(), record.size()) ? record : "";
}

std::vector<int64_t> StateArena::ended() const {
  std::vector<int64_t> processes;
  for (const auto& [process, arena] : others_) {
    if (!machines_.contains(process)) processes.push_back(process);
  }
  return processes;
}

void StateArena::keep_only(const std::vector<int64_t>& processes) {
  std::erase_if(others_,
                [&](const auto& other) { return std::ranges::find(processes, other.first) == processes.end(); });
}

bool StateArena::are_on_one_machine(const std::vector<int64_t>& processes) const {
  return std::ranges::all_of(processes,
                             [&](int64_t process) { return machine_of(process) == machine_of(processes.front()); });
}

const std::byte* StateArena::of(int64_t process) const {
  if (process == process_) return mine();
  const auto found = others_.find(process);
  COPUS_CHECK(found != others_.end(), "the arena of process ", process, " is not here");
  return found->second.memory.get();
}

std::byte* StateArena::stand_in(int64_t process) {
  COPUS_CHECK(process != process_, process);
  auto* const address = const_cast<std::byte*>(of(process));
  COPUS_CHECK(mprotect(address, bytes_, PROT_READ | PROT_WRITE) == 0, std::strerror(errno));
  return address;
}

bool StateArena::prefault(int64_t end) {
  if (end > reserved_bytes()) return false;
  const int64_t last = round_up(end, huge_page);
  for (int64_t at = present_; at < last; at = present_) {
    const int64_t bytes = std::min(piece, last - at);
    if (available_memory_bytes() < bytes + spare_bytes) return false;
    // Touches one page of each huge page, then requests huge pages. Only in this order does a file's memory get huge
    // pages under any system setting for shared memory. It is also twice as fast. If the system provides no huge pages,
    // small pages are used.
    for (int64_t page = at; page < at + bytes; page += huge_page) touch(mine() + page);
    madvise(mine() + at, bytes, collapse_into_huge_page);
    if (madvise(mine() + at, bytes, MADV_POPULATE_WRITE) != 0) {
      if (errno == ENOMEM) return false;
      for (int64_t page = at; page < at + bytes; page += ArenaSpace::alignment) touch(mine() + page);
    }
    present_ = at + bytes;
  }
  return true;
}

void StateArena::prefault_read(int64_t process, int64_t begin, int64_t end) {
  const int64_t first = begin / ArenaSpace::alignment * ArenaSpace::alignment;
  if (first >= end) return;
  auto* const address = const_cast<std::byte*>(of(process) + first);
  // If the kernel does not support this, the copy itself makes the pages present.
  madvise(address, round_up(end - first, ArenaSpace::alignment), MADV_POPULATE_READ);
}

}  // namespace copus
