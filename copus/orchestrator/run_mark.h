// A point in a run, from which a share of the run has to pass.
#pragma once

#include <algorithm>
#include <optional>

namespace copus {

class RunMark {
 public:
  // The beginning of a run.
  RunMark() = default;
  // Marks the point at which the run has completed the fraction `share_done`. If the fraction is unknown, as in logs of
  // earlier versions, the mark is set when the fraction first becomes known.
  explicit RunMark(std::optional<double> share_done) : share_(share_done) {}

  // Updates the mark with the completed fraction. If the run was made longer, the completed fraction may be smaller
  // than the mark. The mark then falls to this fraction.
  void see(std::optional<double> share_done) {
    if (share_done) share_ = std::min(share_.value_or(*share_done), *share_done);
  }

  // Whether this share of the run has passed since the mark; false if unknown.
  bool has_passed(double share, std::optional<double> share_done) const {
    return share_ && share_done && *share_done - *share_ >= share;
  }

  void visit_state(auto& values) { values(share_); }

 private:
  std::optional<double> share_ = 0;
};

}  // namespace copus
