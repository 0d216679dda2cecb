// What neighbours in the tree of ranks tell one of them, with the time that passes. In front stand which rank it is and
// what it does; then each text has a byte for its sender, one for the time, one for its kind, one for its length.
#include <chrono>
#include <vector>

#include "copus/comm/health/tree_member.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t ranks = 12;
  Pieces pieces(text_of(data, size));
  const int64_t rank = pieces.byte() % ranks;
  const uint8_t deeds = pieces.byte();
  TreeMember::Time now{};
  TreeMember member(rank, ranks, 1000, 60, now);
  std::vector<int64_t> neighbours = member.tree().children();
  if (!member.tree().is_root()) neighbours.push_back(member.tree().parent());
  for (const int64_t neighbour : neighbours) member.connect(neighbour, now);
  if ((deeds & 1) != 0) member.come("10.0.0.1 4000");
  if ((deeds & 2) != 0) member.leave(now);
  if ((deeds & 4) != 0) member.report({{rank, "a step", "a cause", 7}, true}, now);

  while (!pieces.is_empty()) {
    const int64_t from = neighbours[pieces.byte() % neighbours.size()];
    now += std::chrono::milliseconds(4 * pieces.byte());
    const auto kind = static_cast<char>(pieces.byte());
    const std::string_view content = pieces.take(pieces.byte());
    member.take(from, kind, content, now);
    member.look(now);
    for (const TreeMember::Text& text : member.take_texts()) {
      expect(text.to >= 0 && text.to < ranks && text.to != rank, "a text is for no other rank");
    }
  }
  if (member.has_met()) expect(std::ssize(member.cards()) == ranks, "not every rank has a card");
  if (member.decision()) {
    const int64_t failed = member.decision()->failure.rank;
    expect(failed >= -1 && failed < ranks, "a rank has failed that the job does not have");
  }
  for (int64_t other = 0; other < ranks; ++other) member.place_of(other);
  return 0;
}
