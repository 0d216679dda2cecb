#include "copus/train/run/run_output.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/regular_file.h"
#include "copus/base/text/shell_word.h"
#include "copus/base/text/units.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/performance/measured/machine.h"
#include "copus/report/logs/decision_log.h"
#include "copus/train/run/run_data.h"
#include "copus/train/run/source_notes.h"
#include "copus/train/step/probe_plan.h"
#include "copus/train/trainer/evaluation.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

// Seconds for which a new rank 0 waits for the previous one to release the directory.
constexpr double longest_wait_for_lock = 30;

double now_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool adapts(const RunConfig& config) { return config.adapt.policy != PolicyKind::none; }

// Returns the number of steps of a run that keeps this step's batch; 0 if unknown, because time limits the run or a
// policy may change the batch.
int64_t known_steps(const RunConfig& config, const StepRecord& record) {
  const int64_t limit = limit_in_tokens(config.train);
  if (adapts(config) || limit == 0) return 0;
  const int64_t tokens_per_step = record.global_batch * config.train.sequence_length;
  const int64_t left = std::max<int64_t>(0, limit - record.consumed_tokens);
  return record.step + left / tokens_per_step + (left % tokens_per_step > 0 ? 1 : 0);
}

// Returns the run's configuration when it wrote the checkpoint.
RunConfig config_of(const Checkpoint& checkpoint) {
  return parse_run_config(checkpoint.run_config(), (checkpoint.directory() / "config.toml").string());
}

// Creates the run directory. With its config.toml it is a run that can be resumed.
fs::path begin_run_directory(const RunPlan& plan) {
  if (plan.resume) return plan.directory;
  create_directories_durably(plan.directory);
  write_file_durably(plan.directory / "config.toml", to_toml(plan.config));
  return plan.directory;
}

}  // namespace

fs::path profile_path(const RunPlan& plan) { return plan.directory / "profile.json"; }
fs::path checkpoints_path(const RunPlan& plan) { return plan.directory / "checkpoints"; }

RunOutput::RunOutput(const RunPlan& plan, std::optional<int64_t> resumed_after)
    : plan_(plan),
      config_(plan.config),
      directory_(begin_run_directory(plan)),
      checkpoints_(checkpoints_path(plan), config_.checkpoint.keep_last, plan.takes_over ? longest_wait_for_lock : 0),
      told_step_(plan.state_is_in_memory ? latest_logged_step(directory_ / "run.jsonl") : 0),
      log_(directory_, first_unless_more_is_there(resumed_after)),
      progress_(STDOUT_FILENO, isatty(STDOUT_FILENO) == 1, config_.log.interval) {
  if (plan.resume) write_file_durably(directory_ / "config.toml", to_toml(config_));
  if (config_.log.tensorboard) tensorboard_.emplace(directory_ / "tensorboard", resumed_after);
  tell_of_missing_lines();
}

// Returns `resumed_after`. Throws UserError if a later checkpoint would be overwritten, or if a step that was logged
// since the run was planned would be removed from the log.
std::optional<int64_t> RunOutput::first_unless_more_is_there(std::optional<int64_t> resumed_after) const {
  const int64_t step = resumed_after.value_or(0);
  if (!plan_.state_is_in_memory) checkpoints_.check_none_is_later_than(step);
  const int64_t logged = latest_logged_step(directory_ / "run.jsonl");
  if (!resumed_after || logged <= std::max(step, plan_.logged_step)) return resumed_after;
  throw UserError(concat((directory_ / "run.jsonl").string(), " has steps up to ", logged,
                         ", which this run would train again from step ", step + 1,
                         "; go on with that run by --resume, or give another --run-dir"));
}

bool RunOutput::keep_directory(bool has_more, const std::function<void()>& put_back_more) {
  if (has_more && log_.is_in_place() && checkpoints_.is_in_place() && fs::exists(directory_ / "config.toml")) {
    return false;
  }
  try {
    check_directory_is_ours();
    create_directories_durably(directory_);
    checkpoints_.put_back();  // first, because its lock keeps other processes out
    const fs::path config = directory_ / "config.toml";
    if (!fs::exists(config)) write_file_durably(config, to_toml(config_));
    put_back_more();
    log_.put_back();  // last: with the log the directory counts as complete
  } catch (const std::runtime_error& error) {
    if (!std::exchange(has_told_of_loss_, true)) {
      note(concat("the run directory ", directory_.string(), " is gone and cannot be made again: ", error.what(),
                  ". The run goes on and keeps its state in memory until it can"));
    }
    return false;
  }
  has_told_of_loss_ = false;
  note(concat("the run directory ", directory_.string(), " was deleted or moved, or a part of it: it is made again, ",
              "with the log so far; a checkpoint follows after the next step"));
  try {
    if (tensorboard_) tensorboard_.emplace(directory_ / "tensorboard", logged_step_);
  } catch (const UserError& error) {
    note(error.what());
  }
  return true;
}

// Throws UserError if the directory is now another run's.
void RunOutput::check_directory_is_ours() const {
  if (log_.is_in_place() || checkpoints_.is_in_place()) return;
  const fs::path config = directory_ / "config.toml";
  if (!fs::exists(directory_ / "run.jsonl") && (!fs::exists(config) || read_text_file(config) == to_toml(config_))) {
    return;
  }
  throw UserError("another run is in it now");
}

void RunOutput::unless_gone(const std::function<void()>& write) const {
  try {
    write();
  } catch (const UserError&) {
    if (log_.is_in_place()) throw;
  }
}

void RunOutput::note_undeleted_checkpoint() {
  const std::string& failure = checkpoints_.deletion_failure();
  const bool is_told = std::exchange(has_told_of_undeleted_, !failure.empty());
  if (failure.empty() || is_told) return;
  note(concat(failure, ", an old checkpoint; the run continues and tries again after the next checkpoint"));
}

void RunOutput::add(const PerformanceProfile& profile) {
  unless_gone([&] { write_profile(profile_path(plan_), profile); });
}

void RunOutput::timeline(const std::vector<RankTimeline>& ranks) {
  unless_gone([&] { write_timeline(directory_ / "timeline.json", ranks); });
}

void RunOutput::list_shards(const std::vector<std::string>& shards, int64_t needed) {
  std::string text = concat("# The next step needs the first ", needed, ".\n");
  for (const std::string& shard : shards) text += shard + '\n';
  if (text == shard_list_) return;
  unless_gone([&] { write_file_durably(directory_ / "shards.txt", text); });
  shard_list_ = text;
}

void RunOutput::introduce(const Dataset& dataset, const World& world, const std::optional<std::string>& step_time) {
  const auto count = [](int64_t value) { return format_count(static_cast<double>(value)); };
  note(concat("model      ", to_string(config_.model.architecture), ", ", count(count_parameters(config_.model)),
              " parameters: ", config_.model.num_layers, " layers, hidden ", config_.model.hidden_size, ", vocabulary ",
              config_.model.vocab_size));
  note(concat("data       ", count(dataset.train_tokens()), " tokens to train on, ", count(dataset.held_out_tokens()),
              " held out", dataset.bytes() ? "; a token is a byte" : "", "; losses are nats per token"));
  const double limit =
      static_cast<double>(limit_in_tokens(config_.train)) / static_cast<double>(config_.train.sequence_length);
  const double of_these_data = limit - static_cast<double>(samples_before(dataset));
  if (const auto documents = note_on_documents(config_, dataset)) note(concat("documents  ", *documents));
  for (const std::string& line : describe_sources(dataset.training_sources(), std::max(0.0, of_these_data))) note(line);
  const std::vector<HeldOutPart> read = dataset.held_out_parts(samples_of_evaluation(config_, dataset));
  for (const std::string& line : describe_evaluation(dataset.held_out_sources(), read)) note(line);
  note(concat("training   ", to_string(config_.execution.precision), " on ", config_.execution.device, ", ",
              plan_.start.global_batch, " x ", config_.train.sequence_length, " tokens a step"));
  const int64_t ranks = plan_.start.strategy.world_size();
  note(concat("runs in    ", to_string(plan_.start), " on ", counted(ranks, "rank")));
  if (const std::string connection = world.device_connection(); !connection.empty()) {
    note(concat("connects   ", connection));
  }
  if (config_.cluster.is_modelled()) {
    const PredictedJob job = predicted_job(config_);
    note(concat("stands for ", to_string(job.model.architecture), ", ", count(count_parameters(job.model)),
                " parameters in ", to_string(job.precision), ", sequences of ", job.sequence_length,
                " tokens: one process trains, and all times are those of this job on its cluster"));
  }
  if (adapts(config_)) {
    note(concat("adapting   policy ", to_string(config_.adapt.policy),
                config_.adapt.advise ? ", which advises and moves nothing" : ""));
  }
  const bool measures_any_noise = config_.noise_scale.enabled || config_.noise_scale.dual_interval > 0;
  if (const auto reason = why_noise_is_not_measured(config_, plan_.start); reason && measures_any_noise) {
    note(concat("noise      the gradient noise scale is not measured: ", *reason));
  }
  if (step_time) note(concat("step time  ", *step_time));
  const Precision precision = predicted_job(config_).precision;
  if (const auto warning = warning_of_precision(config_.cluster.description.device, to_string(precision))) {
    note(concat("warning    ", *warning));
  }
  if (config_.checkpoint.interval_seconds > 0 && config_.cluster.clock != ClockKind::virtual_time) {
    const double bytes = 3 * sizeof(float) * static_cast<double>(count_parameters(config_.model));
    note(concat("saves      a checkpoint of ", format_bytes(bytes), " every ",
                format_duration(static_cast<double>(config_.checkpoint.interval_seconds)), " at least; keeps ",
                config_.checkpoint.keep_last));
  }
  note(concat("run        ", directory_.string()));
  // On file systems with locks, this process locks the log.
  if (log_.is_in_place() && !is_file_locked(directory_ / "run.jsonl")) {
    note(
        "warning    this file system has no file locks: nothing keeps a second job out of the run directory; start one "
        "at a time");
  }
  if (!plan_.resume) return;
  note(plan_.checkpoint ? concat("resumed    after step ", plan_.checkpoint->step())
                        : "resumed    from the beginning: there was no checkpoint yet");
  for (const std::string& damage : plan_.damage) note(concat("warning    not resumed from: ", damage));
  for (const std::string& change : plan_.changes) note(concat("changed    ", change));
  for (const std::string& effect : plan_.effects) note(concat("           so that ", effect));
  if (plan_.checkpoint) note_new_data(dataset);
}

// Returns the state from which the run resumes. Requires plan_.checkpoint.
TrainingState RunOutput::resumed_state() const {
  return parse_training_state(plan_.checkpoint->training_state(),
                              (plan_.checkpoint->directory() / "training_state.json").string());
}

// Returns the number of samples that the run consumed from earlier data (--new-data).
int64_t RunOutput::samples_before(const Dataset& dataset) const {
  if (!plan_.checkpoint) return 0;
  const TrainingState then = resumed_state();
  return then.data_fingerprint == dataset.fingerprint() ? then.data_begin : then.consumed_samples;
}

// Reports what changes with the data: the order of training, and the data behind losses.
void RunOutput::note_new_data(const Dataset& dataset) {
  const TrainingState then = resumed_state();
  if (then.data_fingerprint != dataset.fingerprint()) {
    note(concat("new data   from sample ", then.consumed_samples,
                " on (--new-data): they are read from their beginning, ", "and the optimizer's moments stay"));
  }
  if (then.held_out_fingerprint != dataset.held_out_fingerprint(samples_of_evaluation(config_, dataset))) {
    note("held out   other text is evaluated than before: held-out losses before and after cannot be compared");
  }
}

// Reports missing lines of the log. Training does not depend on the log, so the run continues.
void RunOutput::tell_of_missing_lines() {
  if (log_.missing().empty()) return;
  note(
      concat("warning    run.jsonl has no line of ", describe(log_.missing()),
             ": they were trained, and are missing from the log, the report and what `copus replay` can judge; put the "
             "lines back if there is a copy of them"));
}

void RunOutput::say_goodbye(const RunSummary& summary, const Trainer& trainer, const Dataset& dataset,
                            const std::optional<std::string>& step_time) {
  note(concat("Done: ", counted(summary.steps, "step"), ", ",
              format_count(static_cast<double>(summary.consumed_tokens)), " tokens in ",
              format_duration(summary.train_seconds), " of training."));
  if (summary.skipped_steps > 0) {
    note(concat("Skipped: ", counted(summary.skipped_steps, "step"), " whose loss or gradient was not finite."));
  }
  if (step_time) note(concat("Step time: ", *step_time));
  if (adapts(config_) || summary.relayouts + summary.batch_changes > 0) {
    note(concat(adapts(config_) ? "Adapted: " : "Changed on the way: ", counted(summary.relayouts, "re-layout"), ", ",
                counted(summary.batch_changes, "batch change"), "; ended with ", to_string(trainer.configuration()),
                "."));
  }
  if (summary.held_out_loss) {
    note(concat("Held-out loss: ", *summary.held_out_loss, " nats per token (", dataset.bytes() ? "a byte; " : "",
                "perplexity ", std::exp(*summary.held_out_loss), ")."));
  }
  note(concat("Run directory: ", directory_.string(), " (open report.html there)"));
  const auto tokenizer = find_text_tokenizer(config_.init_from, config_.data.train.front().path);
  const bool is_text = dataset.bytes() || (tokenizer && holds_text_tokenizer(*tokenizer));
  note(concat("Sample text:   ", shell_word(plan_.program), " generate --checkpoint ", shell_word(directory_.string()),
              is_text ? "" : " --tokenizer DIR, with the folder of your tokenizer"));
}

void RunOutput::say_how_to_go_on(const Trainer& trainer, StopReason reason) {
  const char* what = reason == StopReason::interrupt   ? "Interrupted"
                     : reason == StopReason::terminate ? "Terminated"
                                                       : "Stopped by the time limit";
  note(concat(what, " after step ", trainer.state().step, "; a checkpoint is written. To go on:"));
  note(concat("  ", shell_word(plan_.program), " train --resume --run-dir ", shell_word(directory_.string())));
}

void RunOutput::add(const StepRecord& record, const Trainer& trainer) {
  log_.append(record);
  logged_step_ = record.step;
  if (tensorboard_) add_to_tensorboard(record);
  const double left = trainer.seconds_left();
  if (record.lacks_loss()) {
    note(concat("step ", record.step, " learned nothing: every one of its tokens ends a document, and carries no loss ",
                "(data.mask_document_ends)"));
  }
  if (record.skipped()) {
    note(concat("step ", record.step, " skipped: its loss or gradient is not finite (loss ", record.loss,
                ", gradient norm ", record.grad_norm, ")"));
  }
  progress_.step(record, trainer.share_done(), std::isfinite(left) ? left : -1, known_steps(config_, record),
                 /*has_line=*/record.step <= told_step_);
}

bool RunOutput::owes_evaluation(bool is_last) const {
  const std::optional<StepRecord>& step = log_.resumed_step();
  if (!step || step->held_out_loss) return false;
  return is_last || (plan_.checkpoint && is_evaluation_due(*step, config_of(*plan_.checkpoint)));
}

void RunOutput::add_owed_evaluation(const HeldOutLoss& loss) {
  log_.add_to_resumed_step(loss);
  const int64_t step = log_.resumed_step()->step;
  add_held_out_losses(step, loss);
  note(concat("step ", step, ": held-out loss ", format_number("%.4f", loss.mean),
              ", which was due when the run was stopped"));
}

void RunOutput::add(const Decision& decision) {
  add_scalar("adaptation/predicted_gain", decision.step, decision.choice.predicted_gain);
}

void RunOutput::add(const SwitchReport& report) {
  add_scalar("adaptation/pause_seconds", report.after_step, report.pause_seconds);
}

double RunOutput::page_share() const {
  return std::min(1.0, static_cast<double>(log_.bytes()) / static_cast<double>(most_bytes_read_whole));
}

RunSummary RunOutput::finish(const Trainer& trainer, const std::optional<HeldOutLoss>& loss, const std::string& ended,
                             bool draws_page) {
  progress_.finish();
  if (tensorboard_) tensorboard_->flush();
  const TrainingState& state = trainer.state();
  RunSummary summary;
  if (loss) summary.held_out_loss = loss->mean;
  summary.steps = state.step;
  summary.consumed_samples = state.consumed_samples;
  summary.consumed_tokens = state.consumed_tokens;
  summary.train_seconds = state.elapsed_seconds;
  summary.tokens_per_second =
      state.elapsed_seconds > 0 ? static_cast<double>(state.consumed_tokens) / state.elapsed_seconds : 0;
  summary.skipped_steps = state.skipped_steps;
  summary.missing_steps = count_steps(log_.missing());
  summary.parameters = count_parameters(config_.model);
  summary.ended = ended;
  std::vector<DecisionEvent> events = read_decisions_to_show(directory_ / "decisions.jsonl");
  count_switches(events, summary);
  write_summary(directory_, summary);
  if (draws_page && plan_.write_page) plan_.write_page(directory_, std::move(events));
  if (!draws_page) {
    note(concat("report.html is not drawn, since the time limit is near; to draw it: ", shell_word(plan_.program),
                " report ", shell_word(directory_.string())));
  }
  return summary;
}

void RunOutput::add_scalar(const char* tag, int64_t step, double value) {
  if (tensorboard_ && std::isfinite(value)) tensorboard_->scalar(tag, step, value, now_since_epoch());
}

void RunOutput::add_held_out_losses(int64_t step, const HeldOutLoss& loss) {
  add_scalar("held_out/loss", step, loss.mean);
  for (const auto& [source, of_source] : loss.sources) {
    add_scalar(concat("held_out/loss/", source).c_str(), step, of_source);
  }
}

void RunOutput::add_to_tensorboard(const StepRecord& record) {
  const auto add = [&](const char* tag, double value) { add_scalar(tag, record.step, value); };
  add("train/loss", record.loss);
  add("train/learning_rate", record.lr);
  add("train/grad_norm", record.grad_norm);
  add("train/tokens_per_second", record.tokens_per_second);
  add("train/global_batch", static_cast<double>(record.global_batch));
  add("train/micro_batch", static_cast<double>(record.micro_batch));
  const auto add_known = [&](const char* tag, const std::optional<double>& value) {
    if (value) add(tag, *value);
  };
  add_known("noise_scale/samples", record.noise_scale);
  add_known("noise_scale/low", record.noise_scale_low);
  add_known("noise_scale/high", record.noise_scale_high);
  add_known("noise_scale/tokens", record.noise_scale_tokens);
  add_known("noise_scale/critical_batch", record.critical_batch);
  add_known("noise_scale/sign", record.sign_noise_scale);
  add_known("noise_scale/spectral", record.spectral_noise_scale);
  add_known("noise_scale/preconditioned", record.preconditioned_noise_scale);
  add_known("train/statistical_efficiency", record.statistical_efficiency);
  add_known("train/goodput", record.goodput);
  if (record.held_out_loss) add_held_out_losses(record.step, {*record.held_out_loss, record.held_out_losses});
  tensorboard_->flush();  // leaves no gap in the curves if another rank takes over
}

}  // namespace copus
