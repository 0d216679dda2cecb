// A journal of the optimizer's update, in memory that outlives its process. It records how far the update has come, and
// the previous contents of the piece in progress. After the process has died, another process that maps this memory can
// continue the update at that point, to the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace copus {

class UpdateJournal {
 public:
  // The number of elements that an update changes at once if it may split anywhere. It is large enough to keep several
  // threads busy. It is small enough that the elements and their copy stay in a cache, so the copy needs no extra pass
  // over memory.
  static constexpr int64_t piece_elements = int64_t{32} << 10;

  // Returns the size in bytes of a journal, which must be zero before the first use. The optimizer changes at most
  // `elements` elements at once, of up to 8 bytes each, in master weights and slots.
  static int64_t bytes(int64_t elements, size_t num_slots);
  // The journal in this memory, which has the size that bytes() gives, is aligned to 64 bytes, and outlives this
  // object.
  explicit UpdateJournal(std::span<std::byte> memory);

  // Begins update `number`, or continues it if the journal holds it already. Returns the number of pieces that are
  // done.
  int64_t begin(int64_t number);
  // If piece `piece` of the current update may be half changed, restores its memory to the state before the update;
  // otherwise keeps a copy of it. `parts`: the piece's memory, one range of the master weights and one of each slot,
  // which must be the same ranges in every call.
  void protect(int64_t piece, std::span<const std::span<std::byte>> parts);
  // Records that the piece is changed.
  void done(int64_t piece);

  // Records that update `number` is complete, whoever made it. The state is whole, in whatever layout it is.
  void rest(int64_t number);

 private:
  struct Header;
  Header& header_;
  std::span<std::byte> copy_;
};

}  // namespace copus
