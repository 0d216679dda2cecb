// A journal of the optimizer's update, in memory that outlives its process. It records the progress of the update, and
// the previous contents of the piece in progress. If the process dies, another process that maps this memory can
// continue the update, with the same result bitwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace copus {

class UpdateJournal {
 public:
  // Elements per piece, if pieces may end anywhere: enough to keep several threads busy, and few enough that a piece
  // and its copy stay in a cache.
  static constexpr int64_t piece_elements = int64_t{32} << 10;

  // Returns the bytes of a journal for pieces of at most `elements` elements of up to 8 bytes each, in master weights
  // and slots. A journal must be zeroed before its first use.
  static int64_t bytes(int64_t elements, size_t num_slots);
  // Uses `memory` of the size that bytes() gives, aligned to 64 bytes. It must outlive this object.
  explicit UpdateJournal(std::span<std::byte> memory);

  // Begins update `number`, or continues it if the journal has begun it. Returns the number of completed pieces.
  int64_t begin(int64_t number);
  // Call this before a piece is changed. If the piece may be half changed already, restores the piece's contents from
  // before the update. Otherwise keeps a copy of the contents. `parts` is the piece's memory: one range of the master
  // weights and one of each slot, the same in every call.
  void protect(int64_t piece, std::span<const std::span<std::byte>> parts);
  // Records that the piece is changed.
  void done(int64_t piece);

  // Records that update `number` is complete, by whichever process. The state is complete in any layout.
  void mark_complete(int64_t number);

 private:
  struct Header;
  Header& header_;
  std::span<std::byte> copy_;
};

}  // namespace copus
