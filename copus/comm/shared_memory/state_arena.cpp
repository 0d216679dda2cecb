#include "copus/comm/shared_memory/state_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <fstream>
#include <string>
#include <utility>

#include "copus/base/available_memory.h"
#include "copus/base/error.h"
#include "copus/base/philox.h"
#include "copus/comm/descriptor.h"

namespace copus {

namespace {

constexpr int64_t huge_page = int64_t{2} << 20;
constexpr int collapse_into_huge_page = 25;  // MADV_COLLAPSE of Linux 6.1, which older headers lack
// Pages are made present in pieces of this size. Between them the threads that train get to the memory map.
constexpr int64_t piece = 4 * huge_page;
// prefault() leaves this much to the rest of the system. Without it the kernel would end a process, not the request.
constexpr int64_t spare_bytes = int64_t{128} << 20;
// All arenas together take at most so many of a process' 2^47 bytes of addresses.
constexpr int64_t most_addresses = int64_t{1} << 46;

int64_t addresses_per_rank(int64_t ranks) {
  const int64_t physical = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  return round_up(std::min(physical, most_addresses / ranks), huge_page);
}

// Tells apart machines, and the boots of one machine.
int64_t machine_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return std::bit_cast<int64_t>(stream_key(0, boot));
}

// Addresses of a file of `bytes`, aligned so that its huge pages can be mapped as such; null where that fails.
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

// What a rank tells the others so that they can open its arena, and can check that it is the right one.
struct Offer {
  int64_t machine = 0, process = 0, descriptor = -1;
  int64_t device = 0, inode = 0, bytes = 0;  // of the open file
};

bool is_file(int descriptor, const Offer& offer) {
  struct stat status{};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return false;
  const int64_t device = status.st_dev, inode = status.st_ino;
  return device == offer.device && inode == offer.inode && status.st_size == offer.bytes;
}

int create_file(int64_t bytes) {
  const int descriptor = memfd_create("copus-state", MFD_CLOEXEC);
  if (descriptor >= 0 && ftruncate(descriptor, bytes) != 0) {
    close(descriptor);
    return -1;
  }
  return descriptor;
}

Offer offer_file(int descriptor) {
  Offer offer{.machine = machine_identity(), .process = getpid()};
  struct stat status{};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return offer;
  offer.descriptor = descriptor;
  offer.device = status.st_dev;
  offer.inode = status.st_ino;
  offer.bytes = status.st_size;
  return offer;
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

StateArena::StateArena(int64_t rank, int64_t bytes, std::vector<Mapping> arenas)
    : rank_(rank), bytes_(bytes), arenas_(std::move(arenas)) {}

std::unique_ptr<StateArena> StateArena::join(World& world) {
  const Descriptor file(create_file(addresses_per_rank(world.size())));
  const Offer mine = offer_file(file.number());
  std::vector<Offer> offers(world.size());
  constexpr int64_t words = sizeof(Offer) / sizeof(int64_t);
  const std::vector<int64_t> counts(world.size(), words);
  world.everyone().all_gather(&mine, offers.data(), counts, DataType::int64);

  std::vector<Mapping> arenas;
  int64_t failures = 0;
  for (int64_t rank = 0; rank < world.size() && failures == 0; ++rank) {
    const Offer& offer = offers[rank];
    const bool own = rank == world.rank();
    const bool here = offer.descriptor >= 0 && offer.machine == mine.machine && offer.bytes == mine.bytes;
    const std::string path = concat("/proc/", offer.process, "/fd/", offer.descriptor);
    const Descriptor opened(here && !own ? open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1);
    const int descriptor = own ? file.number() : opened.number();
    Mapping& arena = arenas.emplace_back();
    if (here && is_file(descriptor, offer)) {
      arena = map_aligned(descriptor, offer.bytes, own ? PROT_READ | PROT_WRITE : PROT_READ);
    }
    if (!arena) {
      failures = 1;
    } else if (!own) {
      // If a rank's memory is dumped, its own state belongs into the dump and that of others does not.
      madvise(arena.get(), offer.bytes, MADV_DONTDUMP);
    }
  }
  // After this nobody needs the descriptors of the others any more.
  world.everyone().all_reduce(&failures, 1, DataType::int64);
  if (failures > 0) return nullptr;
  return std::unique_ptr<StateArena>(new StateArena(world.rank(), mine.bytes, std::move(arenas)));
}

std::unique_ptr<StateArena> StateArena::join(World& /*world*/, const std::vector<int64_t>& /*processes*/) {
  throw InternalError("not there yet");
}

bool StateArena::rejoin(World& /*world*/, const std::vector<int64_t>& /*processes*/) {
  throw InternalError("not there yet");
}

void StateArena::keep_only(const std::vector<int64_t>& /*processes*/) { throw InternalError("not there yet"); }

std::byte* StateArena::stand_in(int64_t /*process*/) { throw InternalError("not there yet"); }

const std::byte* StateArena::of(int64_t rank) const {
  COPUS_CHECK(rank >= 0 && rank < std::ssize(arenas_), rank);
  return arenas_[rank].get();
}

bool StateArena::prefault(int64_t end) {
  if (end > reserved_bytes()) return false;
  const int64_t last = round_up(end, huge_page);
  for (int64_t at = present_; at < last; at = present_) {
    const int64_t bytes = std::min(piece, last - at);
    if (available_memory_bytes() < bytes + spare_bytes) return false;
    // Whatever the system's setting for shared memory, a file's memory comes in huge pages only where a page of each
    // was touched and one then asks for them. It also comes twice as fast this way. Where there are none, small ones
    // do.
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

void StateArena::prefault_read(int64_t rank, int64_t begin, int64_t end) {
  const int64_t first = begin / ArenaSpace::alignment * ArenaSpace::alignment;
  if (first >= end) return;
  auto* const address = const_cast<std::byte*>(of(rank) + first);
  // Where the kernel does not know how, the copy itself makes the pages present.
  madvise(address, round_up(end - first, ArenaSpace::alignment), MADV_POPULATE_READ);
}

}  // namespace copus
