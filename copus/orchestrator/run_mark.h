// A moment in the course of a run, from which on a share of the run has to pass.
#pragma once

#include <algorithm>
#include <optional>

namespace copus {

class RunMark {
 public:
  // The beginning of a run.
  RunMark() = default;
  // The moment at which this share of the run is done. Empty, where that is not known: the mark stands then where it
  // first becomes known, as where a run goes on from the log of an earlier version.
  explicit RunMark(std::optional<double> share_done) : share_(share_done) {}

  // Notes how much of the run is done by now. A run that is made longer has done less of it than at the mark.
  void see(std::optional<double> share_done) {
    if (share_done) share_ = std::min(share_.value_or(*share_done), *share_done);
  }

  // Tells whether so much of the run has passed since the mark; it has not where that is not known.
  bool has_passed(double share, std::optional<double> share_done) const {
    return share_ && share_done && *share_done - *share_ >= share;
  }

  void visit_state(auto& values) { values(share_); }

 private:
  std::optional<double> share_ = 0;
};

}  // namespace copus
