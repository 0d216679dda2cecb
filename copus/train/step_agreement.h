// What all ranks tell each other: once a step, in one small all-reduce, so that all of them go on with the same
// numbers; and beside steps, why one of them cannot go on, or any text.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/exact_sum.h"
#include "copus/comm/world.h"
#include "copus/orchestrator/observation.h"
#include "copus/performance/stragglers.h"
#include "copus/train/stop_request.h"

namespace copus {

// One rank's share.
struct StepReport {
  ExactSum squared_norm;               // of the gradient elements that this rank counts
  ExactSum small_squared_norms;        // of those of a smaller batch, likewise, and of all data-parallel ranks
  ExactSum loss;                       // of the token losses that this rank counts
  StopReason stop = StopReason::none;  // rank 0's counts
  double begin = 0;                    // of the step, on the rank's clock; rank 0's counts
  double now = 0;                      // when the rank has come this far
  PartSeconds seconds{};               // of computing, since the last report
  std::optional<SwitchIntent> intent;  // that the others are to know of; rank 0's counts
};

struct StepAgreement {
  double squared_norm = 0;
  double small_squared_norms = 0;
  double loss = 0;  // of all tokens together
  StopReason stop = StopReason::none;
  double seconds = 0;  // from rank 0's begin until the last rank had come this far
  double now = 0;      // when that was
  std::optional<SwitchIntent> intent;
  std::vector<PartSeconds> by_rank;  // in the order of the world's ranks

  double gradient_norm() const { return std::sqrt(squared_norm); }
  bool is_finite() const { return std::isfinite(loss) && std::isfinite(gradient_norm()); }
};

// Every rank calls it.
StepAgreement agree(const StepReport& report, Communicator& everyone);

// Rank 0's reason to stop, at all ranks.
StopReason agree_on_stop(StopReason reason, Communicator& everyone);

// The mean loss of a token over what the ranks have evaluated: `loss` over `tokens` tokens on each, which all ranks
// call alike. Empty where there is no token.
std::optional<double> agree_on_mean_loss(const ExactSum& loss, int64_t tokens, Communicator& everyone);

// The first rank's reason against going on, in words that name the rank; nothing where no rank has one. Every rank
// calls it. A number that `alike` differs in is a reason as well.
std::optional<std::string> agree_on_obstacle(const std::optional<std::string>& mine, uint64_t alike,
                                             Communicator& everyone);

// On world rank 0: what every rank gives, in the order of the ranks; nothing elsewhere. Every rank calls it.
std::vector<std::string> gather_bytes(const std::string& mine, World& world);

}  // namespace copus
