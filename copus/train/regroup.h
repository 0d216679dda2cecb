// The meeting of a job's processes in a new epoch: they find out at which step boundary training stands, complete what
// was decided before, choose a configuration for the ranks that there are now, and move the state into it, in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/job/epoch.h"
#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/train/state_hash.h"
#include "copus/train/surviving_state.h"

namespace copus {

// A configuration, and the members of an epoch that become its ranks, by rank.
struct MannedConfiguration {
  Configuration configuration;
  std::vector<int64_t> members;
};

// What came of it, alike on all members.
struct Regrouped {
  Configuration before, now;
  std::vector<int64_t> members;  // that are the ranks now
  int64_t after_step = 0;
  // The processes that know where training stood; the first of them has the record of the latest step.
  std::vector<int64_t> survivors;
  std::vector<int64_t> lost;    // processes of the layout before that have ended
  bool completed_step = false;  // whether a step was completed that no rank had ended
  double seconds = 0;           // on the rank that took longest
  // With adapt.verify, and where a process of each rank's machine is left: of the state before it was moved, as
  // Trainer::check_state takes it once weights are published.
  std::optional<StateHash> hash = {};
};

// Makes the members of an epoch read each other's arenas, and those of ended processes that one of them had or that
// are `kept` on its machine. Every member calls it, with the state that it comes with, and writes no record before.
// False on all where that cannot be had.
bool join_arenas(World& members, const Epoch& epoch, const std::vector<KeptArena>& kept, SurvivingState& state);

// What is left of the training state is not all of it.
class StateIsLost : public UserError {
 public:
  explicit StateIsLost(const std::string& loss)
      : UserError(loss + "; go on from the last checkpoint with --resume"), loss_(loss) {}

  const std::string& loss() const { return loss_; }  // without what to do

 private:
  std::string loss_;
};

// The ranks that stay cannot train in any configuration, or lack memory for the state. Nothing of it was moved.
class NoConfiguration : public UserError {
 public:
  using UserError::UserError;
};

// Every member of the epoch calls it, in its world, after join_arenas. Returns nothing where no member holds any of the
// training state, or has the record and arena of a process that did: its last copy in memory is gone. Otherwise `state`
// is at rest in the new configuration, gradients and journal included, on the members that `choose` says; the others
// hold none. It is asked on rank 0 alone, for at most so many ranks, the first members, which are those that stay. If a
// rank fails meanwhile, RankFailure is thrown and `state` is what the next epoch begins with, as it is where
// NoConfiguration is thrown. Throws StateIsLost where some of the state was on machines alone of which nothing is left,
// and InternalError where the state is damaged (with adapt.verify).
std::optional<Regrouped> regroup(
    const RunConfig& config, World& members, const Epoch& epoch, bool measures_noise, SurvivingState& state,
    const std::function<std::optional<MannedConfiguration>(const Configuration& before, int64_t ranks)>& choose);

}  // namespace copus
