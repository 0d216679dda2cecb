#include "copus/train/run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/data/dataset.h"
#include "copus/model/caching_allocator.h"
#include "copus/model/precision.h"
#include "copus/report/html_report.h"
#include "copus/report/progress.h"
#include "copus/report/run_log.h"
#include "copus/report/run_summary.h"
#include "copus/report/tensorboard.h"
#include "copus/train/device.h"
#include "copus/train/stop_request.h"
#include "copus/train/trainer.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

// Of a slow disk: what a checkpoint is assumed to take before the wall clock runs out.
constexpr double assumed_bytes_per_second = 50e6;

double now_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

int64_t known_steps(const TrainConfig& train) {
  const int64_t tokens_per_step = train.global_batch * train.sequence_length;
  const int64_t limit = limit_in_tokens(train);
  return limit / tokens_per_step + (limit % tokens_per_step > 0 ? 1 : 0);
}

// A directory with a config.toml is a run, and from then on can be resumed.
fs::path begin_run_directory(const RunPlan& plan) {
  if (plan.resume) return plan.directory;
  create_directories_durably(plan.directory);
  write_file_durably(plan.directory / "config.toml", to_toml(plan.config));
  return plan.directory;
}

// The run directory's files, and what a person sees.
class RunOutput {
 public:
  RunOutput(const RunPlan& plan, const Trainer& trainer)
      : config_(plan.config),
        directory_(begin_run_directory(plan)),
        checkpoints_(directory_ / "checkpoints", config_.checkpoint.keep_last),
        log_(directory_, plan.resume ? std::optional(trainer.state().step) : std::nullopt),
        progress_(STDOUT_FILENO, isatty(STDOUT_FILENO) == 1, config_.log.interval, known_steps(config_.train)) {
    if (plan.resume) write_file_durably(directory_ / "config.toml", to_toml(config_));
    if (config_.log.tensorboard) {
      tensorboard_.emplace(directory_ / "tensorboard",
                           plan.resume ? std::optional(trainer.state().step) : std::nullopt);
    }
    if (plan.checkpoint) last_checkpoint_ = trainer.state().step;
  }

  void note(const std::string& line) { progress_.note(line); }

  void add(const StepRecord& record, const Trainer& trainer) {
    log_.append(record);
    if (tensorboard_) add_to_tensorboard(record);
    const double left = trainer.seconds_left();
    if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm)) {
      progress_.note(concat("step ", record.step, " skipped: its loss or gradient is not finite (loss ", record.loss,
                            ", gradient norm ", record.grad_norm, ")"));
    }
    progress_.step(record, trainer.share_done(), std::isfinite(left) ? left : -1);
  }

  void checkpoint(const Trainer& trainer) {
    if (last_checkpoint_ == trainer.state().step) return;
    checkpoints_.write(trainer.snapshot(to_toml(config_)));
    last_checkpoint_ = trainer.state().step;
  }

  // Ends the run: waits for the checkpoint, and writes summary and report.
  void finish(const Trainer& trainer, std::optional<double> held_out_loss, const std::string& ended) {
    progress_.finish();
    checkpoints_.finish();
    if (tensorboard_) tensorboard_->flush();
    const TrainingState& state = trainer.state();
    RunSummary summary;
    summary.held_out_loss = held_out_loss;
    summary.steps = state.step;
    summary.consumed_samples = state.consumed_samples;
    summary.consumed_tokens = state.consumed_tokens;
    summary.train_seconds = state.elapsed_seconds;
    summary.tokens_per_second =
        state.elapsed_seconds > 0 ? static_cast<double>(state.consumed_tokens) / state.elapsed_seconds : 0;
    summary.skipped_steps = state.skipped_steps;
    summary.parameters = count_parameters(config_.model);
    summary.ended = ended;
    write_summary(directory_, summary);
    write_html_report(directory_);
  }

 private:
  void add_to_tensorboard(const StepRecord& record) {
    const double now = now_since_epoch();
    const auto add = [&](const char* tag, double value) {
      if (std::isfinite(value)) tensorboard_->scalar(tag, record.step, value, now);
    };
    add("train/loss", record.loss);
    add("train/learning_rate", record.lr);
    add("train/grad_norm", record.grad_norm);
    add("train/tokens_per_second", record.tokens_per_second);
    if (record.held_out_loss) add("held_out/loss", *record.held_out_loss);
    if (record.held_out_loss || is_due(record.step, config_.log.interval)) tensorboard_->flush();
  }

  const RunConfig& config_;
  fs::path directory_;
  CheckpointWriter checkpoints_;  // before the log: it makes sure that no other process writes into this run
  RunLog log_;
  std::optional<TensorBoardWriter> tensorboard_;
  Progress progress_;
  std::optional<int64_t> last_checkpoint_;  // its step
};

void introduce(const RunPlan& plan, const Dataset& dataset, RunOutput& output) {
  const RunConfig& config = plan.config;
  const auto count = [](int64_t value) { return format_count(static_cast<double>(value)); };
  output.note(concat("model      ", model_type(config.model.architecture), ", ", count(count_parameters(config.model)),
                     " parameters: ", config.model.num_layers, " layers, hidden ", config.model.hidden_size,
                     ", vocabulary ", config.model.vocab_size));
  output.note(concat("data       ", count(dataset.train_tokens()), " tokens to train on, ",
                     count(dataset.held_out_tokens()), " held out"));
  output.note(concat("training   ", to_string(config.train.precision), " on ", config.train.device, ", ",
                     config.train.global_batch, " x ", config.train.sequence_length, " tokens a step"));
  output.note(concat("run        ", plan.directory.string()));
  if (!plan.resume) return;
  output.note(plan.checkpoint ? concat("resumed    after step ", plan.checkpoint->step())
                              : "resumed    from the beginning: there was no checkpoint yet");
  for (const std::string& change : plan.changes) output.note(concat("changed    ", change));
}

void say_goodbye(const RunPlan& plan, const Trainer& trainer, const Dataset& dataset,
                 std::optional<double> held_out_loss, RunOutput& output) {
  const TrainingState& state = trainer.state();
  const std::string directory = plan.directory.string();
  output.note(concat("Done: ", state.step, " steps, ", format_count(static_cast<double>(state.consumed_tokens)),
                     " tokens in ", format_duration(state.elapsed_seconds), " of training."));
  if (state.skipped_steps > 0) {
    output.note(concat("Skipped: ", state.skipped_steps, " steps whose loss or gradient was not finite."));
  }
  if (held_out_loss) {
    output.note(concat("Held-out loss: ", *held_out_loss, dataset.bytes() ? " nats per byte" : " nats per token",
                       " (perplexity ", std::exp(*held_out_loss), ")."));
  }
  output.note(concat("Run directory: ", directory, " (open report.html there)"));
  output.note(concat("Sample text:   ", plan.program, " generate --checkpoint ", directory));
}

void say_how_to_go_on(const RunPlan& plan, const Trainer& trainer, StopReason reason, RunOutput& output) {
  const char* what = reason == StopReason::interrupt   ? "Interrupted"
                     : reason == StopReason::terminate ? "Terminated"
                                                       : "Stopped by the time limit";
  output.note(concat(what, " after step ", trainer.state().step, "; a checkpoint is written. To go on:"));
  output.note(concat("  ", plan.program, " train --resume --run-dir ", plan.directory.string()));
}

// Throws UserError where the weights are not those of the model that the configuration describes.
void load_initial_weights(const RunConfig& config, Trainer& trainer) {
  const HuggingFaceModel model = open_hugging_face(config.init_from);
  std::vector<TensorView> weights;
  for (const auto& [name, weight] : model.weights()) weights.push_back(weight);
  trainer.load(match_parameters(config.model, weights, concat("model.init_from = \"", config.init_from, "\"")));
}

// What writing weights and two moments in fp32 is assumed to take.
double checkpoint_seconds(const ModelDescription& model) {
  return 3 * sizeof(float) * static_cast<double>(count_parameters(model)) / assumed_bytes_per_second;
}

// The loop. Leaves it when the run is complete or has been told to stop, with a checkpoint under way.
RunEnd train_until_end(const RunPlan& plan, const Dataset& dataset, Trainer& trainer, const StopRequest& stop,
                       RunOutput& output) {
  const double checkpoint_reserve = checkpoint_seconds(plan.config.model);
  double longest_step = 0;
  StopReason reason = StopReason::none;
  std::optional<double> held_out_loss;  // of the weights after the latest step
  const auto must_stop = [&] {
    // The next step may take longer than any before.
    reason = stop.reason(checkpoint_reserve + 2 * longest_step);
    return reason != StopReason::none;
  };

  while (!trainer.finished()) {
    StepRecord record = trainer.step();
    longest_step = std::max(longest_step, record.step_seconds);
    held_out_loss.reset();
    if (trainer.finished() || is_due(record.step, plan.config.evaluate.interval)) {
      held_out_loss = record.held_out_loss = trainer.held_out_loss(must_stop);
    }
    output.add(record, trainer);
    if (must_stop()) break;
    if (is_due(record.step, plan.config.checkpoint.interval)) output.checkpoint(trainer);
  }

  output.checkpoint(trainer);
  if (trainer.finished() && !held_out_loss) held_out_loss = trainer.held_out_loss(must_stop);
  if (trainer.finished() && (held_out_loss || reason == StopReason::none)) {
    output.finish(trainer, held_out_loss, "done");
    say_goodbye(plan, trainer, dataset, held_out_loss, output);
    return RunEnd::done;
  }
  output.finish(trainer, std::nullopt, reason == StopReason::time_limit ? "time limit" : "interrupted");
  say_how_to_go_on(plan, trainer, reason, output);
  return reason == StopReason::interrupt ? RunEnd::interrupted : RunEnd::requeue;
}

}  // namespace

RunEnd run_training(const RunRequest& request, double max_seconds, std::chrono::steady_clock::time_point start) {
  RunPlan plan = plan_run(request);
  const at::Device device = find_device(plan.config.train.device);
  install_caching_allocator();
  configure_aten(plan.config.train.threads);
  plan.config.train.precision = resolve_precision(plan.config.train.precision, device);
  const TrainConfig& train = plan.config.train;
  const Dataset dataset(plan.config.data, train.sequence_length, plan.config.model.vocab_size, train.seed);

  Trainer trainer(plan.config, dataset, device);
  if (plan.checkpoint) {
    trainer.restore(*plan.checkpoint);
  } else if (!plan.config.init_from.empty()) {
    load_initial_weights(plan.config, trainer);
  }

  const StopRequest stop(max_seconds, start);
  RunOutput output(plan, trainer);
  introduce(plan, dataset, output);
  return train_until_end(plan, dataset, trainer, stop, output);
}

}  // namespace copus
