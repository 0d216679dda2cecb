// Advises a job that another program trains: it is told of every step, measures the noise scale, learns how long steps
// take, and says by the controller of Copus' own runs when another batch pays. It keeps the logs of such runs, so that
// `copus replay` and `copus report` read them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/adviser/adviser_settings.h"
#include "copus/adviser/adviser_state.h"
#include "copus/orchestrator/controller.h"
#include "copus/report/decision_log.h"
#include "copus/report/run_log.h"

namespace copus {

// One finished step of the job. Norms are of gradients of the mean loss, over so many samples.
struct AdvisedStep {
  int64_t samples = 0;                        // of all ranks
  double seconds = 0;                         // on the job's clock
  double gradient_norm = 0;                   // before clipping; not finite: the step was skipped
  std::optional<double> small_batch;          // samples of a part of the step; empty: not measured
  std::optional<double> small_squared_norm;   // mean squared norm of gradients of so many samples
  std::optional<double> learning_rate, loss;  // empty: not told
  std::optional<int64_t> loss_tokens;
};

// Advice to go on in another batch.
struct Advice {
  int64_t step = 0;                 // after which it is given
  int64_t batch = 0;                // in samples of all ranks
  int64_t micro_batches = 0;        // of each rank in a step
  double learning_rate_factor = 1;  // on the schedule that the reference batch's learning rate has
  // Relative gain of Goodput, with the ends of a 95 % interval over what is not known of noise scale and step time.
  double gain = 0;
  std::optional<double> gain_low, gain_high;
  std::optional<double> noise_scale, noise_scale_low, noise_scale_high, critical_batch;
  std::string reason;
};

class Adviser {
 public:
  // Where the job begins: at its first step, or behind one that a checkpoint has.
  struct Start {
    std::optional<std::filesystem::path> directory = {};  // of the logs; empty: none are kept
    std::optional<int64_t> after_step = {};               // a step of the logs in `directory`
    std::optional<std::string> state = {};                // the text of state()
  };

  // Throws UserError for wrong settings, a directory with the logs of another job or with another writer, and logs or a
  // state that do not reach that step or cannot be read. Settings that leave nothing to choose among are no mistake:
  // the job is measured and never advised.
  Adviser(const AdviserSettings& settings, const Start& start);

  // Tells of a step. A step whose samples the ranks cannot share in whole micro-batches, the last of an epoch, is left
  // out of everything. One with another number of samples than before is a change that the job has made. Advice comes
  // from every decision that wants another batch, also where the one before it said the same. Throws UserError for
  // numbers that no step has, and where the logs cannot be written.
  std::optional<Advice> step(const AdvisedStep& step);

  // Begins the averages of the noise scale anew: other parameters have gradients now, or what was measured was wrong.
  void forget_noise();
  // Logs that the steps from here on cannot be measured. Throws UserError where the log cannot be written.
  void log_unmeasured(const std::string& reason);

  std::optional<NoiseScale> noise() const { return noise_scale(state_.noise); }
  // Expected seconds of a step of so many samples; empty until steps were measured. Throws UserError where there is no
  // such step.
  std::optional<Corrected> expected_step(int64_t samples) const;

  // Steps so far, the ones left out not counted; the latest one's samples; and all samples.
  int64_t steps() const { return state_.step; }
  int64_t batch() const { return state_.configuration.global_batch; }
  int64_t consumed_samples() const { return state_.consumed_samples; }

  // A text to go on from after this step, once the disk has the logs so far.
  std::string state();
  // Closes the logs, after which there is no further step.
  void close();
  // Lines for the user since the last call.
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
  std::optional<Controller> controller_;  // once a step time was measured
  std::vector<double> seconds_;           // of the steps in this batch, until then
  std::optional<Decision> advised_;       // the latest advice
  std::optional<RunLog> run_log_;
  std::optional<DecisionLog> decision_log_;
  std::optional<DecisionEvent> first_event_;  // that waits for its log to be opened
  std::vector<std::string> early_reasons_;    // of log_unmeasured, until a controller has begun the log
  std::vector<std::string> notes_;
  bool has_told_of_parts_ = false;
  bool is_closed_ = false;
};

}  // namespace copus
