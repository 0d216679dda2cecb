#include "copus/comm/shared_memory/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/write_error.h"
#include "copus/base/numbers/round_up.h"
#include "copus/comm/health/shared_health.h"

namespace copus {

namespace {

constexpr uint64_t magic = 0x31304d4d4f435043;  // "CPCOMM01", little-endian
// Reserved addresses, not memory: enough for some hundred groups of 16 ranks.
constexpr int64_t segment_bytes = int64_t{1} << 37;
constexpr int64_t max_groups = 8192;
// There may be more lists than groups, because ranks that add the same group at the same time write one list each.
constexpr int64_t max_rank_lists = 8 * max_groups;

}  // namespace

int64_t GroupArea::slot_capacity(int64_t members) {
  // All slots in use should fit into the caches. Each member's part is a multiple of a page.
  return std::max<int64_t>(round_up((256 << 10) / members, 4096), 4096) * members;
}

int64_t GroupArea::ring_capacity(int64_t members) {
  // A ring buffer should hold a micro-batch's activations, so that their sender need not wait. Ring buffers are smaller
  // in large groups, which have many of them.
  const auto share = static_cast<uint64_t>((int64_t{512} << 20) / (members * members));
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(share)), 64 << 10, 2 << 20);
}

int64_t GroupArea::slot_stride(int64_t members) { return int64_t{sizeof(SharedSlot)} + slot_capacity(members); }
int64_t GroupArea::ring_stride(int64_t members) { return int64_t{sizeof(SharedRing)} + ring_capacity(members); }

int64_t GroupArea::bytes(int64_t members) {
  return round_up(members * 2 * slot_stride(members) + members * members * ring_stride(members), 4096);
}

SharedSlot& GroupArea::slot(int64_t member, uint32_t round) const {
  return *reinterpret_cast<SharedSlot*>(address_ + (member * 2 + round % 2) * slot_stride(members_));
}

SharedRing& GroupArea::ring(int64_t from, int64_t to) const {
  std::byte* const rings = address_ + members_ * 2 * slot_stride(members_);
  return *reinterpret_cast<SharedRing*>(rings + (from * members_ + to) * ring_stride(members_));
}

struct SegmentTable::Header {
  std::atomic<uint64_t> magic;  // written last
  int64_t size;
  std::chrono::steady_clock::rep start;  // of the monotonic clock, which all processes of a machine share
  std::atomic<uint32_t> rank_lists;
};

SegmentTable::SegmentTable(std::byte* address) : address_(address) {
  COPUS_CHECK(is_made(address), "not a segment of ranks");
}

bool SegmentTable::is_made(const std::byte* address) {
  return reinterpret_cast<const Header*>(address)->magic.load(std::memory_order_acquire) == magic;
}

void SegmentTable::initialize(std::byte* address, int64_t size, std::chrono::steady_clock::time_point start) {
  COPUS_CHECK(size > 0, size);
  Header& header = *reinterpret_cast<Header*>(address);
  header.size = size;
  header.start = start.time_since_epoch().count();
  header.magic.store(magic, std::memory_order_release);
}

int64_t SegmentTable::size() const { return header().size; }

SegmentTable::Header& SegmentTable::header() const { return *reinterpret_cast<Header*>(address_); }

std::byte* SegmentTable::health() const { return address_ + round_up(sizeof(Header), 64); }

std::atomic<uint32_t>* SegmentTable::entries() const {
  return reinterpret_cast<std::atomic<uint32_t>*>(health() + round_up(health_bytes(size()), 64));
}

int64_t* SegmentTable::rank_list(uint32_t number) const {
  return reinterpret_cast<int64_t*>(entries() + max_groups) + number * (size() + 1);
}

std::chrono::steady_clock::time_point SegmentTable::start() const {
  return std::chrono::steady_clock::time_point(std::chrono::steady_clock::duration(header().start));
}

GroupArea SegmentTable::find_or_add_group(const std::vector<int64_t>& ranks) {
  const int64_t members = std::ssize(ranks);
  std::byte* const areas =
      address_ + round_up(reinterpret_cast<std::byte*>(rank_list(max_rank_lists)) - address_, 4096);
  int64_t offset = 0;
  uint32_t own = 0;  // entry that names this rank's list; 0 until it is written
  for (int64_t i = 0; i < max_groups; ++i) {
    uint32_t entry = entries()[i].load(std::memory_order_acquire);
    if (entry == 0) {
      if (own == 0) {
        const uint32_t number = header().rank_lists.fetch_add(1, std::memory_order_relaxed);
        COPUS_CHECK(number < max_rank_lists, "too many groups of ranks");
        rank_list(number)[0] = members;
        std::copy(ranks.begin(), ranks.end(), rank_list(number) + 1);
        own = number + 1;
      }
      if (entries()[i].compare_exchange_strong(entry, own, std::memory_order_acq_rel)) entry = own;
    }
    const int64_t* const list = rank_list(entry - 1);
    if (list[0] == members && std::equal(ranks.begin(), ranks.end(), list + 1)) {
      COPUS_CHECK(areas + offset + GroupArea::bytes(members) <= address_ + segment_bytes, "too many groups of ranks");
      return {areas + offset, members};
    }
    offset += GroupArea::bytes(list[0]);
  }
  COPUS_CHECK(false, "more than ", max_groups, " groups of ranks");
}

SharedSegment::SharedSegment(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  void* const address =
      ::mmap(nullptr, segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_.number(), 0);
  if (address == MAP_FAILED && errno == ENOMEM) throw std::bad_alloc();  // memory or addresses are limited
  if (address == MAP_FAILED) throw InternalError(concat("could not map shared memory: ", std::strerror(errno)));
  mapping_ = Mapping(static_cast<std::byte*>(address), {segment_bytes});
}

SharedSegment SharedSegment::create(int64_t size, std::chrono::steady_clock::time_point start) {
  Descriptor descriptor(::memfd_create("copus", MFD_CLOEXEC));
  if (!descriptor.is_open()) throw InternalError(concat("could not create shared memory: ", std::strerror(errno)));
  if (::ftruncate(descriptor.number(), segment_bytes) != 0) {
    // Linux applies the limit on file sizes to shared memory too.
    if (errno == EFBIG)
      throw UserError(concat("the memory that ranks share: ", write_error_text(errno, segment_bytes, "")));
    throw InternalError(concat("could not size shared memory: ", std::strerror(errno)));
  }
  SharedSegment segment(std::move(descriptor));
  SegmentTable::initialize(segment.address(), size, start);
  return segment;
}

SharedSegment SharedSegment::open(Descriptor descriptor, int64_t size) {
  struct stat status{};
  if (::fstat(descriptor.number(), &status) != 0 || status.st_size != segment_bytes) {
    throw InternalError("the descriptor given is not a segment of ranks");
  }
  SharedSegment segment(std::move(descriptor));
  const int64_t made_for = segment.size();
  COPUS_CHECK(made_for == size, "a segment for ", made_for, " ranks, not ", size);
  return segment;
}

SharedSegment SharedSegment::open(int64_t process, int descriptor, int64_t size) {
  const std::string path = concat("/proc/", process, "/fd/", descriptor);
  Descriptor opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (opened.is_open()) return open(std::move(opened), size);
  throw UserError(concat("cannot open the shared memory of rank 0 (", path, ": ", std::strerror(errno),
                         "); ranks on one machine must belong to one user and, in containers, to one container"));
}

std::optional<SharedSegment> SharedSegment::find(int64_t launcher, const std::vector<uint64_t>& known) {
  std::error_code ignored;  // the process may end meanwhile
  for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", launcher, "/fd"), ignored)) {
    if (std::filesystem::read_symlink(entry.path(), ignored).string() != "/memfd:copus (deleted)") continue;
    Descriptor opened(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    struct stat status{};
    if (!opened.is_open() || ::fstat(opened.number(), &status) != 0) continue;
    if (std::ranges::count(known, status.st_ino) > 0 || status.st_size != segment_bytes) continue;
    SharedSegment segment(std::move(opened));
    if (SegmentTable::is_made(segment.address())) return segment;
  }
  return std::nullopt;
}

std::byte* SharedSegment::health() const { return SegmentTable(address()).health(); }

std::chrono::steady_clock::time_point SharedSegment::start() const { return SegmentTable(address()).start(); }

int64_t SharedSegment::size() const { return SegmentTable(address()).size(); }

uint64_t SharedSegment::number() const {
  struct stat status{};
  COPUS_CHECK(::fstat(descriptor(), &status) == 0, std::strerror(errno));
  return status.st_ino;
}

}  // namespace copus
