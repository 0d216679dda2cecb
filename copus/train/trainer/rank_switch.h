// The work of a switch on one rank: connects groups, moves the training state into the new layout, and builds the model
// there.
#pragma once

#include <optional>
#include <vector>

#include "copus/train/trainer/switcher.h"

namespace copus {

class SwitchPhases;

class RankSwitch : public SwitchMethod {
 public:
  // Keeps references to all three arguments.
  RankSwitch(RankTraining& training, StateMover& mover, Survival& survival);

  PendingSwitch prepare(const SwitchIntent& intent) override;
  double commit(PendingSwitch& pending, SwitchReport& report) override;

 private:
  std::optional<Obstacle> obstacle_to(const Configuration& configuration);
  std::optional<Obstacle> open_groups(const Configuration& configuration);
  RelayoutRequest request_to(const ParallelStrategy& strategy) const;
  void change_layout(PendingSwitch& pending, SwitchPhases& phases, SwitchReport& report);
  void move_model(const PreparedRelayout& prepared, const SwitchIntent& intent, SwitchPhases& phases,
                  SwitchReport& report);
  void move_back(RelayoutRequest request, std::vector<BucketState>& state, SwitchPhases& phases, SwitchReport& report);
  int64_t move(std::vector<BucketState>& state, const RelayoutRequest& request, const PreparedRelayout& prepared,
               SwitchPhases& phases);
  void release_model(std::vector<BucketState>& state);
  std::optional<Obstacle> assemble(const Configuration& configuration, std::vector<BucketState>& state,
                                   const std::vector<BucketOffsets>& buckets, SwitchPhases& phases);
  std::optional<Obstacle> rehearse(const Configuration& configuration) const;

  RankTraining& training_;
  const RunConfig& config_;
  World& world_;
  StateMover& mover_;
  Survival& survival_;
};

}  // namespace copus
