// Watches the loss after the batch has grown: whether it stays above what the steps before had promised.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/orchestrator/state_values.h"

namespace copus {

class LossSentinel {
 public:
  // Adds the finite loss of a step, in nats per token, at a place in the run: seconds or samples so far, > 0 and
  // ascending.
  void add(double place, double loss);

  // Compares losses from here on with a forecast from those so far, because the batch has grown. Where it had grown
  // fewer than 64 steps ago, the forecast stays the one from before that; returns false then.
  bool begin_watch();
  // Forgets all losses and ends the watch.
  void restart() { *this = {}; }

  // How far the loss is above its forecast.
  struct Excess {
    double nats = 0;
    double deviation = 0;  // one standard deviation of `nats`
  };
  // Returns the mean excess since the watch began, without the first quarter of the steps, in which the loss may jump
  // and recover (Merrill et al. 2025, arXiv 2505.23971). Empty where there are fewer than 32 steps since then or 64
  // before, and where the run is a quarter further than it was then: the forecast has lost its worth.
  //
  // A forecast is a straight line, by least squares, of the loss over place^-a, through the second half of the way
  // before. The loss of a run falls with an exponent a that nobody knows; the law of Hoffmann et al. 2022 (arXiv
  // 2203.15556) has 0.28 for the tokens. Of the exponents under which the losses before are likely, within two standard
  // deviations, the one with the highest forecast counts.
  std::optional<Excess> excess() const;

  void visit_state(StateValues& values) { values(before_, since_, is_watching_); }

 private:
  // Means over neighbouring steps.
  struct Bin {
    int64_t steps = 0;
    double place = 0, loss = 0;
    void visit_state(StateValues& values) { values(steps, place, loss); }
  };
  // Steps in their order, in at most 256 bins of one width: where there are more, neighbours become one.
  struct Stretch {
    int64_t steps_of_a_bin = 1;
    std::vector<Bin> bins;
    void add(double place, double loss);
    int64_t steps() const;
    void visit_state(StateValues& values) { values(steps_of_a_bin, bins); }
  };

  // The excess over one line, and how badly the line fits: the sum of squared residuals, each of one step.
  struct LineExcess {
    Excess excess;
    double residuals = 0;
  };
  static LineExcess excess_over_line(const std::vector<Bin>& before, const std::vector<Bin>& since, double exponent);

  Stretch before_, since_;  // the watch began
  bool is_watching_ = false;
};

}  // namespace copus
