// Watches the loss after the batch has grown: whether it stays above what the steps before had promised.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/orchestrator/state_values.h"

namespace copus {

class LossSentinel {
 public:
  // Notes the finite loss of a step in nats per token, at a place in the run: seconds or samples so far, whichever the
  // run spares, > 0 and ascending.
  void observe(double place, double loss);

  // Notes that the batch has grown: from here on losses are compared with a forecast from those in the batch before.
  // Where it had grown into that one too few steps ago, the forecast stays the one from before; returns false then.
  bool batch_grew();
  // Notes that the batch has become smaller, or the job another one: losses are noted anew and compared with nothing.
  void restart() { *this = {}; }

  // How far the loss is above its forecast.
  struct Excess {
    double nats = 0;
    double deviation = 0;  // one standard deviation of `nats`
  };
  // Returns the mean excess since the batch grew, without the first quarter of the steps, in which the loss may jump
  // and recover (Merrill et al. 2025, arXiv 2505.23971). Empty where 32 steps in the new batch and 64 in the one before
  // are not there yet, and where the run has come so far that the forecast has lost its worth.
  //
  // The forecast is the straight line, by least squares, of the loss over place^-0.28, through the steps since half of
  // the way to where the batch grew: the law of Hoffmann et al. 2022 (arXiv 2203.15556) is such a line.
  std::optional<Excess> excess() const;

  void visit_state(StateValues& values) { values(before_, since_, is_watching_); }

 private:
  // Means over neighbouring steps.
  struct Bin {
    int64_t steps = 0;
    double fall = 0, loss = 0;  // place^-0.28, and nats
    void visit_state(StateValues& values) { values(steps, fall, loss); }
  };
  // Steps in their order, in at most so many bins of one width: where there are more, neighbours become one.
  struct Stretch {
    int64_t steps_of_a_bin = 1;
    std::vector<Bin> bins;
    void add(double fall, double loss);
    int64_t steps() const;
    void visit_state(StateValues& values) { values(steps_of_a_bin, bins); }
  };

  Stretch before_, since_;  // the batch grew; `since_` is empty where it did not
  bool is_watching_ = false;
};

}  // namespace copus
