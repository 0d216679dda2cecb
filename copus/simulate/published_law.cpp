#include "copus/simulate/published_law.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"
#include "copus/simulate/worth.h"

namespace copus {

double published_critical_batch(PublishedLaw law, double tokens, double loss) {
  COPUS_CHECK(tokens > 0 && loss > 0, tokens, ", ", loss);
  switch (law) {
    case PublishedLaw::kaplan:
      return 2.1e8 / std::pow(loss, critical_batch_exponent);
    case PublishedLaw::bergsma:
      return 0.0471 * std::pow(tokens, 0.462) * 2048;
    case PublishedLaw::olmo:
      return olmo_critical_batch(1, tokens) * 4096 * 4096;
  }
  fail_check("a law", __FILE__, __LINE__, "");
}

double PublishedLoss::least() const { return least_loss + 406.4 / std::pow(parameters, 0.34); }

double PublishedLoss::at(double tokens) const {
  return std::min(std::log(vocabulary), least() + data_loss / std::pow(tokens, data_exponent));
}

double PublishedLoss::tokens_to(double loss) const {
  COPUS_CHECK(loss > least() && loss < std::log(vocabulary), loss);
  return std::pow(data_loss / (loss - least()), 1 / data_exponent);
}

}  // namespace copus
