// Agreements of all ranks. Once per step two small all-reduces give all ranks the same numbers. Between steps ranks
// agree on an obstacle that prevents one of them from continuing, or on any text. No message grows with the number of
// ranks n, and no rank exchanges messages with more than ceil(log2 n) others.
#pragma once

#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "copus/base/numbers/exact_sum.h"
#include "copus/comm/world.h"
#include "copus/orchestrator/observation.h"
#include "copus/train/step/dual_norms.h"
#include "copus/train/step/obstacle.h"
#include "copus/train/step/stop_request.h"

namespace copus {

// One rank's contribution to the agreement. Fields marked "from rank 0" ignore the values of other ranks.
struct StepReport {
  ExactSum squared_norm;         // of the gradient elements that this rank counts
  ExactSum small_squared_norms;  // of gradients of a smaller batch, over all data-parallel ranks; counted as above
  ExactSum loss;                 // of the token losses that this rank counts
  StopReason stop = StopReason::none;  // the argument of agree_on_stop()
  double begin = 0;                    // of the step, on the rank's clock; from rank 0
  double now = 0;                      // when the rank reached the agreement
  std::optional<SwitchIntent> intent;  // switch to announce to the other ranks; from rank 0
  std::optional<double> rate_factor;   // on the learning rate, from this step's update on; from rank 0
};

struct StepAgreement {
  double squared_norm = 0;
  double small_squared_norms = 0;
  int64_t loss_tokens = 0;  // tokens of the step that carry loss; known to all ranks, and not sent
  double loss = 0;          // sum over all tokens
  StopReason stop = StopReason::none;
  double begin = 0;              // rank 0's
  double seconds_of_rank_0 = 0;  // from begin until rank 0 reached the agreement
  double now = 0;                // when the last rank reached the agreement
  double seconds = 0;            // from begin until `now`
  std::optional<SwitchIntent> intent;
  std::optional<double> rate_factor;
  std::optional<DualNormsOfStep> dual;  // if the step measures them

  double gradient_norm() const { return std::sqrt(squared_norm); }
  bool lacks_loss() const { return loss_tokens == 0; }
  bool is_finite() const { return std::isfinite(loss) && std::isfinite(gradient_norm()); }
};

// Agrees on a step's numbers in two operations, which every rank calls one after the other. Their messages have
// TrainingSystem::agreement_bytes. A rank that has completed the first operation knows that all ranks have their
// gradients. A rank that has completed the second, which brings the time, knows that all ranks have the numbers. After
// the first operation all fields are the same on all ranks, except `now` and `seconds`, which are so only after the
// second. No weight may depend on `now` and `seconds`.
StepAgreement agree_on_numbers(const StepReport& report, Communicator& everyone);
void agree_on_time(StepAgreement& agreement, Communicator& everyone);

// Returns the sums over all ranks of this rank's parts `mine`. Every rank calls it.
std::vector<double> agree_on_sums(std::span<const ExactSum> mine, Communicator& everyone);

// Returns the reason to stop for all ranks: that of any rank that received a signal, otherwise rank 0's.
StopReason agree_on_stop(StopReason reason, Communicator& everyone);

// The sum of evaluated tokens' losses.
struct LossSum {
  ExactSum loss;
  int64_t tokens = 0;
};

// Returns the mean loss per token over all ranks' evaluations, for each of `sums`; empty for a sum without tokens.
// Every rank calls it with its own sums.
std::vector<std::optional<double>> agree_on_mean_losses(const std::vector<LossSum>& sums, Communicator& everyone);

// Returns the obstacle of the first rank that has one, and names the rank. A value of `alike` that differs between
// ranks is an obstacle too. Empty if there is none. Every rank calls this.
std::optional<Obstacle> agree_on_obstacle(const std::optional<Obstacle>& mine, uint64_t alike, Communicator& everyone);

// Returns rank `from`'s text on all ranks. Every rank calls it.
std::string broadcast_text(std::string text, int64_t from, Communicator& everyone);

// Gathers all ranks' texts on world rank 0, in the order of the ranks; returns an empty list on other ranks. Every rank
// calls it. Texts pass through other ranks, in log2 n rounds.
std::vector<std::string> gather_bytes(const std::string& mine, World& world);

}  // namespace copus
