// Advises a job that another program trains. The other program reports every step to the adviser, which measures the
// noise scale and learns step times. The adviser uses the controller of Copus' own runs, and recommends another batch
// when the controller expects that batch to train faster. Its logs have the format of a run, so that `copus replay` and
// `copus report` can read them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/adviser/adviser_settings.h"
#include "copus/adviser/adviser_state.h"
#include "copus/orchestrator/controller/controller.h"
#include "copus/report/logs/decision_log.h"
#include "copus/report/logs/run_log.h"

namespace copus {

// One finished step of the job. Norms are of gradients of the mean loss over the stated number of samples.
struct AdvisedStep {
  int64_t samples = 0;                        // of all ranks
  double seconds = 0;                         // on the job's clock
  double gradient_norm = 0;                   // before clipping; not finite: the step was skipped
  std::optional<double> small_batch;          // number of samples of a part of the step; empty: not measured
  std::optional<double> small_squared_norm;   // mean squared norm of gradients of `small_batch` samples
  std::optional<double> learning_rate, loss;  // empty: not reported
  std::optional<int64_t> loss_tokens;
};

// Advice to continue with another batch.
struct Advice {
  int64_t step = 0;                 // the step after which it is given
  int64_t batch = 0;                // in samples of all ranks
  int64_t micro_batches = 0;        // per rank and step
  double learning_rate_factor = 1;  // to multiply the schedule's learning rate by, which is for the reference batch
  // Relative gain in Goodput. The ends of its 95 % interval account for the uncertainty of the noise scale and step
  // times.
  double gain = 0;
  std::optional<double> gain_low, gain_high;
  std::optional<double> noise_scale, noise_scale_low, noise_scale_high, critical_batch;
  std::string reason;
};

class Adviser {
 public:
  // Where the job begins: at its first step, or after the step of a checkpoint.
  struct Start {
    std::optional<std::filesystem::path> directory = {};  // of the logs; empty: no logs
    std::optional<int64_t> after_step = {};               // a step in the logs of `directory`
    std::optional<std::string> state = {};                // the text that state() returned
  };

  // Throws UserError if settings are wrong, or if the directory contains the logs of another job or is in use by
  // another process. Also throws it if the logs or the state cannot be read, or end before the given step. Settings
  // that leave only one batch are not an error: the job is measured but never gets advice.
  Adviser(const AdviserSettings& settings, const Start& start);

  // Processes a step. Returns advice whenever the controller decides for another batch, even if the previous advice was
  // the same. If the number of samples differs from the previous step, the job has changed its batch. A step is ignored
  // if the ranks cannot divide its samples into whole micro-batches, as in the last step of an epoch. Throws UserError
  // for impossible numbers, or if the logs cannot be written.
  std::optional<Advice> step(const AdvisedStep& step);

  // Restarts the averages of the noise scale. Call this if the set of parameters with gradients has changed, or if the
  // measurements were wrong.
  void forget_noise();
  // Logs that steps can no longer be measured. Throws UserError if the log cannot be written.
  void log_unmeasured(const std::string& reason);

  std::optional<NoiseScale> noise() const { return noise_scale(state_.noise); }
  // Returns the expected seconds of a step of `samples` samples; empty until steps have been measured. Throws UserError
  // if such a step is impossible.
  std::optional<Corrected> expected_step(int64_t samples) const;

  // The number of steps so far, without ignored ones; the samples of the latest step; the samples of all steps.
  int64_t steps() const { return state_.step; }
  int64_t batch() const { return state_.configuration.global_batch; }
  int64_t consumed_samples() const { return state_.consumed_samples; }

  // Returns a text from which a job can resume after this step, once the logs so far are durable on disk.
  std::string state();
  // Closes the logs. step() must not be called afterwards.
  void close();
  // Returns the lines to show to the user since the last call.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 private:
  void check_choice() const;
  void go_on(const Start& start);
  void follow_logs(const std::vector<StepRecord>& records);
  void go_on_with(const Knowledge& known, std::optional<double> rate_factor);
  void open_logs(bool goes_on);
  void log(const DecisionEvent& event);
  void log_early_reasons();
  ControllerBegin begin_event(const Knowledge& known, std::optional<double> rate_factor) const;
  void begin_once_measured(const StepRecord& record);
  void change_batch(int64_t samples);
  void check(const AdvisedStep& step) const;
  Configuration in_batch(int64_t samples) const;
  bool is_whole(int64_t samples) const;
  std::string least_step() const;
  bool is_own_layout(const Configuration& configuration) const;
  StepRecord record_of(const AdvisedStep& step) const;
  std::optional<Advice> advice_of(const Decision& decision);

  AdvisedConfig config_;
  std::string file_;  // the text of adapt.file
  std::optional<std::filesystem::path> directory_;
  AdviserState state_;
  std::optional<Controller> controller_;  // set once a step time has been measured
  std::vector<double> seconds_;           // of steps with the current batch, until the controller exists
  std::optional<Decision> advised_;       // the latest advice
  std::optional<RunLog> run_log_;
  std::optional<DecisionLog> decision_log_;
  std::optional<DecisionEvent> first_event_;  // waits for its log to be opened
  std::vector<std::string> early_reasons_;    // from log_unmeasured, until a controller has begun the log
  std::vector<std::string> notes_;
  bool has_told_of_parts_ = false;
  bool is_closed_ = false;
};

}  // namespace copus
