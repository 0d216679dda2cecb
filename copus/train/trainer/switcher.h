// One rank's part in switches. Rank 0 announces a switch, and the next step passes it to all ranks. They prepare it
// while training continues, and commit it together at its step boundary.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <variant>

#include "copus/orchestrator/observation.h"
#include "copus/train/state/survival.h"
#include "copus/train/step/obstacle.h"
#include "copus/train/switch/relayout.h"
#include "copus/train/trainer/rank_training.h"

namespace copus {

// A switch that all ranks have heard of.
struct PendingSwitch {
  SwitchIntent intent;
  std::optional<Obstacle> refusal = {};            // by every rank
  double opening_seconds = 0;                      // seconds for which training paused to connect groups
  std::future<PreparedRelayout> preparation = {};  // only for a change of layout
};

// The work of a switch. Every rank calls these functions.
class SwitchMethod {
 public:
  virtual ~SwitchMethod() = default;

  // Prepares a switch, or refuses it.
  virtual PendingSwitch prepare(const SwitchIntent& intent) = 0;

  // Makes a switch that was not refused, and completes the report. If the layout changes, it also sets
  // RankTraining::state, from which the remaining ranks continue after a failure; otherwise the caller sets it
  // afterwards. Returns the seconds that the switch takes on the run's clock.
  virtual double commit(PendingSwitch& pending, SwitchReport& report) = 0;
};

class Switcher {
 public:
  // Keeps references to `training` and `survival`.
  Switcher(std::unique_ptr<SwitchMethod> method, RankTraining& training, Survival& survival);

  // As the functions of Trainer.
  void announce(const SwitchIntent& intent);
  void withdraw();
  std::optional<SwitchReport> commit_if_due();

  // The switch that was announced and that no step has passed to the other ranks yet.
  std::optional<SwitchIntent> announced() const;
  // Prepares a switch that a step has passed to all ranks, each of which calls it.
  void prepare(const SwitchIntent& intent);
  // Waits until no preparation uses the training state.
  void await_preparation() const;

 private:
  std::unique_ptr<SwitchMethod> method_;
  RankTraining& training_;
  Survival& survival_;
  // The switch under way: none, announced on rank 0, or heard of by all ranks.
  std::variant<std::monostate, SwitchIntent, PendingSwitch> state_;
};

// Reports that a switch was not made.
void refuse(SwitchReport& report, SwitchReport::Outcome outcome, const Obstacle& obstacle);

// The progress of training after a switch.
TrainingState after_switch(TrainingState state, const SwitchIntent& intent);

}  // namespace copus
