// A point in a run, from which a share of the run has to pass.
#pragma once

#include <algorithm>
#include <optional>

namespace copus {

class RunMark {
 public:
  // The beginning of a run.
  RunMark() = default;
  // The point at which the run has completed this fraction. If the fraction is unknown, the mark is set where it first
  // becomes known, for example when a run resumes from the log of an earlier version.
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
