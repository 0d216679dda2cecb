// Agreements of all ranks: once a step, in two small all-reduces, so that all of them go on with the same numbers; and
// between steps, on a reason why one of them cannot go on, or on any text. No message's size grows with the number of
// ranks, and no rank has messages with more others than the logarithm of that number.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/exact_sum.h"
#include "copus/comm/world.h"
#include "copus/orchestrator/observation.h"
#include "copus/train/obstacle.h"
#include "copus/train/stop_request.h"

namespace copus {

// The share of one rank in the agreement. Where "rank 0's counts", the values of the other ranks are ignored.
struct StepReport {
  ExactSum squared_norm;               // of the gradient elements that this rank counts
  ExactSum small_squared_norms;        // of gradients of a smaller batch, likewise, added over all data-parallel ranks
  ExactSum loss;                       // of the token losses that this rank counts
  StopReason stop = StopReason::none;  // as agree_on_stop() takes it
  double begin = 0;                    // beginning of the step, on the rank's clock; rank 0's counts
  double now = 0;                      // time at which the rank has come this far
  std::optional<SwitchIntent> intent;  // switch that the others are to know of; rank 0's counts
  std::optional<double> rate_factor;   // factor on the learning rate from this step's update on; rank 0's counts
};

struct StepAgreement {
  double squared_norm = 0;
  double small_squared_norms = 0;
  int64_t loss_tokens = 0;  // of the step, that carry loss; every rank knows it, and none tells it
  double loss = 0;          // sum over all tokens
  StopReason stop = StopReason::none;
  double begin = 0;              // rank 0's
  double seconds_of_rank_0 = 0;  // from begin until rank 0 has come this far
  double now = 0;                // time at which the last rank has come this far
  double seconds = 0;            // from begin until then
  std::optional<SwitchIntent> intent;
  std::optional<double> rate_factor;

  double gradient_norm() const { return std::sqrt(squared_norm); }
  bool lacks_loss() const { return loss_tokens == 0; }
  bool is_finite() const { return std::isfinite(loss) && std::isfinite(gradient_norm()); }
};

// Agrees on the numbers of a step, in two operations that every rank calls one after the other.
// TrainingSystem::agreement_bytes is the size of their messages. Whoever has the numbers knows that all ranks have
// their gradients; whoever has the time as well, that all have the numbers. What a rank has after the first of them is
// alike on all, but for `now` and `seconds`, which are its own until the second. So no weight may depend on these two.
StepAgreement agree_on_numbers(const StepReport& report, Communicator& everyone);
void agree_on_time(StepAgreement& agreement, Communicator& everyone);

// Returns the reason to stop that counts for all ranks: that of any rank that was told to, else rank 0's.
StopReason agree_on_stop(StopReason reason, Communicator& everyone);

// The losses of tokens that were evaluated.
struct LossSum {
  ExactSum loss;
  int64_t tokens = 0;
};

// Mean losses of a token over all that the ranks have evaluated, one for each of the sums, which are each rank's own.
// Every rank calls it. Empty where there is no token.
std::vector<std::optional<double>> agree_on_mean_losses(const std::vector<LossSum>& sums, Communicator& everyone);

// The first rank's obstacle to going on, in words that name the rank; empty where no rank has one. Every rank calls it.
// A difference between the ranks' `alike` is an obstacle as well.
std::optional<Obstacle> agree_on_obstacle(const std::optional<Obstacle>& mine, uint64_t alike, Communicator& everyone);

// Returns rank `from`'s text on all ranks. Every rank calls it.
std::string broadcast_text(std::string text, int64_t from, Communicator& everyone);

// Gathers every rank's text on world rank 0, in the order of the ranks; returns nothing elsewhere. Every rank calls it.
// The texts pass through other ranks, in log2 n rounds.
std::vector<std::string> gather_bytes(const std::string& mine, World& world);

}  // namespace copus
