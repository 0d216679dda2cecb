// Begins a new epoch of a job. The processes find the step boundary that training has reached, and complete steps and
// moves that were decided before. Then they choose a configuration for the available ranks and move the state into it,
// in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/job/member/epoch.h"
#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/train/state/state_hash.h"
#include "copus/train/state/surviving_state.h"

namespace copus {

// A configuration and, by rank, the members of an epoch that become its ranks.
struct MannedConfiguration {
  Configuration configuration;
  std::vector<int64_t> members;
};

// The result of regroup(); the same on all members.
struct Regrouped {
  Configuration before, now;
  std::vector<int64_t> members;  // members that are ranks now
  int64_t after_step = 0;
  // The processes that know the progress of training. The first one has the record of the latest step.
  std::vector<int64_t> survivors;
  std::vector<int64_t> lost;    // processes of the previous layout that have ended
  bool completed_step = false;  // whether regroup() completed a step that no rank had finished
  double seconds = 0;           // on the slowest rank
  // Hash of the state before the move, for Trainer::check_state once compute weights are derived. Only with
  // adapt.verify, and only if a process remains on each rank's machine.
  std::optional<StateHash> hash = {};
};

// Maps the arenas of all members into each other, and also the arenas of ended processes that a member had mapped or
// that are `kept` on its machine. Every member calls it with its own state, before it writes any record. Returns false
// on all members if this is impossible.
bool join_arenas(World& members, const Epoch& epoch, const std::vector<KeptArena>& kept, SurvivingState& state);

// Thrown if the remaining processes do not have all of the training state.
class StateIsLost : public UserError {
 public:
  explicit StateIsLost(const std::string& loss)
      : UserError(loss + "; go on from the last checkpoint with --resume"), loss_(loss) {}

  const std::string& loss() const { return loss_; }  // the message without advice

 private:
  std::string loss_;
};

// Thrown if the remaining ranks cannot train in any configuration, or lack memory for the state. No state was moved.
class NoConfiguration : public UserError {
 public:
  using UserError::UserError;
};

// Moves the state into the configuration of the new epoch. Every member calls it, in the epoch's world, after
// join_arenas. On return the members selected by `choose` hold `state` at rest in the new configuration, including
// gradients and journal; other members hold none. `choose` is called on rank 0 only. Its argument `ranks` is the
// largest possible number of ranks: the number of members that stay, which come first.
//
// Returns nothing if no copy in memory is left: no member holds any of the training state, and none can read the record
// and arena of a process that held it. Throws RankFailure if a rank fails meanwhile. After RankFailure and
// NoConfiguration the next epoch can begin with `state`. Throws StateIsLost if some of the state was only on machines
// of which no process remains. Throws InternalError if the state is damaged (with adapt.verify).
std::optional<Regrouped> regroup(
    const RunConfig& config, World& members, const Epoch& epoch, bool measures_noise, SurvivingState& state,
    const std::function<std::optional<MannedConfiguration>(const Configuration& before, int64_t ranks)>& choose);

}  // namespace copus
