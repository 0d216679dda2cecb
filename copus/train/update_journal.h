// A journal of the optimizer's update in memory that outlives its process: how far the update has come, and what the
// piece at hand was before. Whoever maps that memory when the process has died can go on with the update where it
// ended, to the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace copus {

class UpdateJournal {
 public:
  // Number of elements that an update changes at once where it may cut anywhere: enough for several threads, and so few
  // that they and their copy stay in a cache and the copy costs no pass over memory.
  static constexpr int64_t piece_elements = int64_t{32} << 10;

  // The bytes of a journal, all zero before the first use, of an optimizer that changes at most so many elements at
  // once, of up to 8 bytes each, in master weights and slots.
  static int64_t bytes(int64_t elements, size_t num_slots);
  // The journal in this memory, whose size bytes() gives, which outlives it and is aligned to 64.
  explicit UpdateJournal(std::span<std::byte> memory);

  // Tells of update `number` that it begins, or goes on where it is the journal's. Returns the pieces that are done.
  int64_t begin(int64_t number);
  // Brings memory that piece `piece` of the update at hand may have half changed into its state before it, if so, and
  // else keeps a copy of it. `parts`: the piece's memory, always the same stretches, one of the master weights and one
  // of each slot.
  void protect(int64_t piece, std::span<const std::span<std::byte>> parts);
  // Notes that the piece is changed.
  void done(int64_t piece);

  // Notes that update `number` is complete, whoever made it: the state is whole, in whatever layout it lies.
  void rest(int64_t number);

 private:
  struct Header;
  Header& header_;
  std::span<std::byte> copy_;
};

}  // namespace copus
