// Checks whether the loss stays above its forecast after the batch has grown.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/orchestrator/state_values.h"

namespace copus {

class LossSentinel {
 public:
  // Adds the loss of a step, which must be finite, in nats per token. `place` is the progress of the run, in seconds or
  // in samples; it must be > 0 and ascend.
  void add(double place, double loss);

  // Begins a watch; call this when the batch has grown. Later losses are compared with a forecast from the losses so
  // far. If the previous watch began fewer than 64 steps ago, its forecast stays in use, and this returns false.
  bool begin_watch();
  // Forgets all losses and ends the watch.
  void restart() { *this = {}; }

  // How far the loss is above its forecast.
  struct Excess {
    double nats = 0;
    double deviation = 0;  // one standard deviation of `nats`
  };
  // Returns the mean of loss minus forecast since the watch began. The mean leaves out the first quarter of these
  // steps, in which the loss may jump and recover (Merrill et al. 2025, arXiv 2505.23971). Empty if the watch has fewer
  // than 32 steps, or if the forecast rests on fewer than 64 steps or 16 bins. Also empty once the forecast is too old:
  // it is valid up to 1.25 times the place of the last loss from which it was made. (If begin_watch() kept the previous
  // forecast, that loss is earlier than the beginning of the watch.)
  //
  // A forecast is a least-squares line of the loss over place^-a (`place` as in add()), through the second half of the
  // losses before it. The exponent a of a run is unknown; the law of Hoffmann et al. 2022 (arXiv 2203.15556) has 0.28
  // for the tokens. Several exponents are tried. Of the exponents that fit the earlier losses within two standard
  // deviations, the one with the highest forecast is used.
  std::optional<Excess> excess() const;

  void visit_state(StateValues& values) { values(before_, since_, is_watching_); }

 private:
  // Means over consecutive steps.
  struct Bin {
    int64_t steps = 0;
    double place = 0, loss = 0;
    void visit_state(StateValues& values) { values(steps, place, loss); }
  };
  // Consecutive steps in at most 256 bins of equal width. If there are more, neighbouring bins are merged.
  struct Stretch {
    int64_t steps_of_a_bin = 1;
    std::vector<Bin> bins;
    void add(double place, double loss);
    int64_t steps() const;
    void visit_state(StateValues& values) { values(steps_of_a_bin, bins); }
  };

  // The excess over one line, and the sum of the squared residuals of all steps, which shows how badly the line fits.
  struct LineExcess {
    Excess excess;
    double residuals = 0;
  };
  static LineExcess excess_over_line(const std::vector<Bin>& before, const std::vector<Bin>& since, double exponent);

  Stretch before_, since_;  // steps before and since the beginning of the watch
  bool is_watching_ = false;
};

}  // namespace copus
