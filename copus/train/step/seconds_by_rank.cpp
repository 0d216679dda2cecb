#include "copus/train/step/seconds_by_rank.h"

#include <cstring>
#include <string>

#include "copus/base/error.h"
#include "copus/train/step/step_agreement.h"

namespace copus {

void SecondsByRank::add(int64_t step, const PartSeconds& mine, World& world) {
  steps_.push_back(step);
  mine_.push_back(mine);
  if (std::ssize(steps_) == straggler_window) gather(world);
}

void SecondsByRank::gather(World& world) {
  if (steps_.empty()) return;  // the same on all ranks
  const std::string bytes(reinterpret_cast<const char*>(mine_.data()), mine_.size() * sizeof(PartSeconds));
  const std::vector<std::string> all = gather_bytes(bytes, world);
  const size_t first = gathered_.size();
  if (!all.empty()) {
    for (const int64_t step : steps_) gathered_.push_back({step, std::vector<PartSeconds>(all.size())});
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    COPUS_CHECK(all[rank].size() == bytes.size(), "rank ", rank, " keeps ", all[rank].size(), " bytes");
    for (size_t i = 0; i < steps_.size(); ++i) {
      std::memcpy(&gathered_[first + i].by_rank[rank], all[rank].data() + i * sizeof(PartSeconds), sizeof(PartSeconds));
    }
  }
  steps_.clear();
  mine_.clear();
}

}  // namespace copus
