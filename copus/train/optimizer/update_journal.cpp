#include "copus/train/optimizer/update_journal.h"

#include <atomic>
#include <cstring>
#include <limits>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr int64_t complete = std::numeric_limits<int64_t>::max();

}  // namespace

// Each word is written after the data that it describes, so it is true whenever the process dies.
struct alignas(64) UpdateJournal::Header {
  std::atomic<int64_t> number;  // of the update
  std::atomic<int64_t> done;    // number of changed pieces, from the first on
  std::atomic<int64_t> copied;  // 1 + index of the piece whose copy is complete
};

int64_t UpdateJournal::bytes(int64_t elements, size_t num_slots) {
  return static_cast<int64_t>(sizeof(Header)) + (1 + static_cast<int64_t>(num_slots)) * 8 * elements;
}

UpdateJournal::UpdateJournal(std::span<std::byte> memory)
    : header_(*reinterpret_cast<Header*>(memory.data())), copy_(memory.subspan(sizeof(Header))) {}

int64_t UpdateJournal::begin(int64_t number) {
  if (header_.number.load(std::memory_order_acquire) != number) {
    header_.copied.store(0, std::memory_order_release);
    header_.done.store(0, std::memory_order_release);
    header_.number.store(number, std::memory_order_release);
  }
  return header_.done.load(std::memory_order_acquire);
}

void UpdateJournal::protect(int64_t piece, std::span<const std::span<std::byte>> parts) {
  size_t bytes = 0;
  for (const std::span<std::byte> part : parts) bytes += part.size();
  COPUS_CHECK(bytes <= copy_.size(), bytes, " bytes in a piece");
  const bool is_torn = header_.copied.load(std::memory_order_acquire) == piece + 1;
  std::byte* copy = copy_.data();
  for (const std::span<std::byte> part : parts) {
    if (is_torn) {
      std::memcpy(part.data(), copy, part.size());
    } else {
      std::memcpy(copy, part.data(), part.size());
    }
    copy += part.size();
  }
  if (!is_torn) header_.copied.store(piece + 1, std::memory_order_release);
}

void UpdateJournal::done(int64_t piece) { header_.done.store(piece + 1, std::memory_order_release); }

void UpdateJournal::mark_complete(int64_t number) {
  // This order never lets a completed update look incomplete.
  header_.done.store(complete, std::memory_order_release);
  header_.copied.store(0, std::memory_order_release);
  header_.number.store(number, std::memory_order_release);
}

}  // namespace copus
