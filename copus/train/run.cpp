#include "copus/train/run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/comm/timed_world.h"
#include "copus/data/dataset.h"
#include "copus/model/caching_allocator.h"
#include "copus/performance/stragglers.h"
#include "copus/report/html_report.h"
#include "copus/report/progress.h"
#include "copus/report/run_log.h"
#include "copus/report/run_summary.h"
#include "copus/report/tensorboard.h"
#include "copus/report/timeline.h"
#include "copus/strategy/mesh.h"
#include "copus/train/device.h"
#include "copus/train/gather_bytes.h"
#include "copus/train/probe_plan.h"
#include "copus/train/step_time_learner.h"
#include "copus/train/stop_request.h"
#include "copus/train/trainer.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

// Of a slow disk: what a checkpoint is assumed to take before the wall clock runs out.
constexpr double assumed_bytes_per_second = 50e6;

constexpr const char* profile_name = "profile.json";

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
  // `learner`: null where nothing is predicted.
  RunOutput(const RunPlan& plan, const Trainer& trainer, StepTimeLearner* learner)
      : config_(plan.config),
        directory_(begin_run_directory(plan)),
        checkpoints_(directory_ / "checkpoints", config_.checkpoint.keep_last),
        log_(directory_, plan.resume ? std::optional(trainer.state().step) : std::nullopt),
        progress_(STDOUT_FILENO, isatty(STDOUT_FILENO) == 1, config_.log.interval, known_steps(config_.train)),
        learner_(learner) {
    if (plan.resume) write_file_durably(directory_ / "config.toml", to_toml(config_));
    if (config_.log.tensorboard) {
      tensorboard_.emplace(directory_ / "tensorboard",
                           plan.resume ? std::optional(trainer.state().step) : std::nullopt);
    }
  }

  void note(const std::string& line) { progress_.note(line); }

  void add(StepRecord record, const Trainer& trainer) {
    const bool skipped = !std::isfinite(record.loss) || !std::isfinite(record.grad_norm);
    if (learner_ != nullptr) {
      record.predicted_step_seconds = learner_->expected().seconds;
      if (!skipped) learner_->add(record.step_seconds);
    }
    log_.append(record);
    if (tensorboard_) add_to_tensorboard(record);
    const double left = trainer.seconds_left();
    if (skipped) {
      progress_.note(concat("step ", record.step, " skipped: its loss or gradient is not finite (loss ", record.loss,
                            ", gradient norm ", record.grad_norm, ")"));
    }
    progress_.step(record, trainer.share_done(), std::isfinite(left) ? left : -1);
  }

  void checkpoint(Snapshot snapshot) {
    checkpoints_.write(std::move(snapshot));
    if (learner_ != nullptr) write_profile(directory_ / profile_name, learner_->profile());
  }

  // What came of predicting steps, for people.
  std::optional<std::string> step_time() const { return learner_ ? learner_->conclusion() : std::nullopt; }

  void timeline(const std::vector<RankTimeline>& ranks) { write_timeline(directory_ / "timeline.json", ranks); }

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
    const auto add_known = [&](const char* tag, const std::optional<double>& value) {
      if (value) add(tag, *value);
    };
    add_known("noise_scale/samples", record.noise_scale);
    add_known("noise_scale/low", record.noise_scale_low);
    add_known("noise_scale/high", record.noise_scale_high);
    add_known("noise_scale/tokens", record.noise_scale_tokens);
    add_known("noise_scale/critical_batch", record.critical_batch);
    add_known("train/statistical_efficiency", record.statistical_efficiency);
    add_known("train/goodput", record.goodput);
    add_known("held_out/loss", record.held_out_loss);
    if (record.held_out_loss || is_due(record.step, config_.log.interval)) tensorboard_->flush();
  }

  const RunConfig& config_;
  fs::path directory_;
  CheckpointWriter checkpoints_;  // before the log: it makes sure that no other process writes into this run
  RunLog log_;
  std::optional<TensorBoardWriter> tensorboard_;
  Progress progress_;
  StepTimeLearner* learner_;
};

void introduce(const RunPlan& plan, const Dataset& dataset, const std::optional<StepTimeLearner>& learner,
               RunOutput& output) {
  const RunConfig& config = plan.config;
  const auto count = [](int64_t value) { return format_count(static_cast<double>(value)); };
  output.note(concat("model      ", model_type(config.model.architecture), ", ", count(count_parameters(config.model)),
                     " parameters: ", config.model.num_layers, " layers, hidden ", config.model.hidden_size,
                     ", vocabulary ", config.model.vocab_size));
  output.note(concat("data       ", count(dataset.train_tokens()), " tokens to train on, ",
                     count(dataset.held_out_tokens()), " held out"));
  output.note(concat("training   ", to_string(config.train.precision), " on ", config.train.device, ", ",
                     config.train.global_batch, " x ", config.train.sequence_length, " tokens a step"));
  const ParallelStrategy layout = strategy_of(config);
  if (layout.world_size() > 1) {
    output.note(concat("layout     ", to_string(layout), " (data x tensor x pipeline), ", to_string(layout.schedule),
                       layout.virtual_stages > 1 ? concat(" with ", layout.virtual_stages, " chunks a rank") : "",
                       layout.sequence_parallel ? ", sequence parallel" : "", ", zero ", layout.zero_stage, ", ",
                       layout.world_size(), " ranks"));
  }
  if (const auto reason = why_noise_is_not_measured(config); reason && config.noise_scale.enabled) {
    output.note(concat("noise      the gradient noise scale is not measured: ", *reason));
  }
  if (learner) output.note(concat("step time  ", learner->introduction()));
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
  if (const auto step_time = output.step_time()) output.note(concat("Step time: ", *step_time));
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

// Rank 0's notes on ranks that are slower than their peers: one when a rank falls behind, and no other until it has
// kept up for a while.
class StragglerNotes {
 public:
  explicit StragglerNotes(const ParallelStrategy& strategy) {
    const Mesh mesh(strategy);
    for (int64_t rank = 0; rank < mesh.size(); ++rank) stages_.push_back(mesh.coordinates(rank).pipeline);
  }

  void add(int64_t step, const std::vector<PartSeconds>& seconds_by_rank, RunOutput& output) {
    if (static_cast<int64_t>(steps_.size()) == straggler_window) steps_.erase(steps_.begin());
    steps_.push_back(seconds_by_rank);
    for (const Straggler& straggler : find_stragglers(steps_, stages_)) {
      const auto [last, is_new] = last_slow_.try_emplace(straggler.rank, step);
      const bool has_kept_up = step - std::exchange(last->second, step) > steps_to_keep_up;
      if (!is_new && !has_kept_up) continue;
      output.note(concat("straggler  rank ", straggler.rank, " computes ", std::round(straggler.ratio * 10) / 10,
                         " times as long as its peers, most of it in ", to_string(straggler.part)));
    }
  }

 private:
  static constexpr int64_t steps_to_keep_up = 100;
  std::vector<int64_t> stages_;                  // of each rank
  std::vector<std::vector<PartSeconds>> steps_;  // the latest, oldest first
  std::map<int64_t, int64_t> last_slow_;         // by rank, the step
};

// One rank's run: the loop and what is done alike on all ranks. Rank 0 has an output.
class Run {
 public:
  Run(const RunPlan& plan, const Dataset& dataset, Trainer& trainer, World& world, const StopRequest& stop,
      RunOutput* output, bool can_judge_speed)
      : plan_(plan), dataset_(dataset), trainer_(trainer), world_(world), stop_(stop), output_(output) {
    if (plan.checkpoint) last_checkpoint_ = trainer.state().step;
    if (output != nullptr && can_judge_speed) stragglers_.emplace(strategy_of(plan.config));
  }

  // Leaves the loop when the run is complete or has been told to stop, with a checkpoint under way.
  RunEnd until_end() {
    while (!trainer_.finished()) {
      StepRecord record = step();
      held_out_loss_.reset();
      if (trainer_.finished() || is_due(record.step, plan_.config.evaluate.interval)) {
        held_out_loss_ = record.held_out_loss = evaluate();
      }
      if (output_ != nullptr) output_->add(record, trainer_);
      if (trainer_.stop_reason() != StopReason::none) break;
      if (is_due(record.step, plan_.config.checkpoint.interval)) checkpoint();
    }
    if (traced_ < plan_.trace_steps) gather_timeline();
    checkpoint();
    if (trainer_.finished() && !held_out_loss_) held_out_loss_ = evaluate();
    return finish();
  }

 private:
  StepRecord step() {
    const bool trace = steps_ > 0 && traced_ < plan_.trace_steps;  // the first one warms up
    if (trace) trainer_.trace_next_step();
    const auto begin = std::chrono::steady_clock::now();
    StepRecord record = trainer_.step([this] { return reason_to_stop(); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    longest_step_ = std::max(longest_step_, seconds.count());
    ++steps_;
    if (stragglers_) stragglers_->add(record.step, trainer_.seconds_by_rank(), *output_);
    if (trace && ++traced_ == plan_.trace_steps) gather_timeline();
    return record;
  }

  // The next step may take longer than any before.
  StopReason reason_to_stop() const { return stop_.reason(checkpoint_seconds(plan_.config.model) + 2 * longest_step_); }

  std::optional<double> evaluate() {
    return trainer_.held_out_loss([this] { return reason_to_stop(); });
  }

  void checkpoint() {
    if (last_checkpoint_ == trainer_.state().step) return;
    std::optional<Snapshot> snapshot = trainer_.snapshot(to_toml(plan_.config));
    if (output_ != nullptr) output_->checkpoint(std::move(*snapshot));
    last_checkpoint_ = trainer_.state().step;
  }

  void gather_timeline() {
    const MeshCoordinates here = Mesh(strategy_of(plan_.config)).coordinates(world_.rank());
    const RankTimeline mine{
        concat("rank ", world_.rank(), " (dp ", here.data, ", tp ", here.tensor, ", pp ", here.pipeline, ")"),
        trainer_.events()};
    const std::vector<std::string> all = gather_bytes(to_bytes(mine), world_);
    if (output_ == nullptr) return;
    std::vector<RankTimeline> timelines;
    std::transform(all.begin(), all.end(), std::back_inserter(timelines), timeline_from_bytes);
    output_->timeline(timelines);
  }

  RunEnd finish() {
    const StopReason reason = trainer_.stop_reason();
    const bool done = trainer_.finished() && (held_out_loss_ || reason == StopReason::none);
    if (output_ != nullptr) {
      const char* const early = reason == StopReason::time_limit ? "time limit" : "interrupted";
      output_->finish(trainer_, done ? held_out_loss_ : std::nullopt, done ? "done" : early);
      if (done) {
        say_goodbye(plan_, trainer_, dataset_, held_out_loss_, *output_);
      } else {
        say_how_to_go_on(plan_, trainer_, reason, *output_);
      }
    }
    world_.everyone().barrier();  // a rank that is still writing is not left alone: it may fail
    if (done) return RunEnd::done;
    return reason == StopReason::interrupt ? RunEnd::interrupted : RunEnd::requeue;
  }

  const RunPlan& plan_;
  const Dataset& dataset_;
  Trainer& trainer_;
  World& world_;
  const StopRequest& stop_;
  RunOutput* output_;
  std::optional<StragglerNotes> stragglers_;
  std::optional<int64_t> last_checkpoint_;  // its step
  std::optional<double> held_out_loss_;     // of the weights after the latest step
  double longest_step_ = 0;                 // seconds on the real clock
  int64_t steps_ = 0, traced_ = 0;          // of this process
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Ranks on several machines may have read other files, and would wait for each other for ever or train another model.
void check_all_ranks_begin_alike(const RunPlan& plan, const Dataset& dataset, World& world) {
  const std::string mine = concat(
      to_toml(plan.config), "fingerprint of the data = ", dataset.fingerprint(),
      "\ncheckpoint to go on from = ", plan.checkpoint ? concat("step ", plan.checkpoint->step()) : "none", '\n');
  const std::vector<std::string> all = gather_bytes(mine, world);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    const std::vector<std::string> theirs = lines_of(all[rank]), ours = lines_of(mine);
    const auto [their, our] = std::mismatch(theirs.begin(), theirs.end(), ours.begin(), ours.end());
    throw UserError(concat("rank ", rank, " would not train what rank 0 does: there \"",
                           their == theirs.end() ? "" : *their, "\", here \"", our == ours.end() ? "" : *our,
                           "\"; start all ranks with the same arguments, and let them see the same files"));
  }
}

}  // namespace

RunEnd run_training(RunPlan plan, double max_seconds, std::chrono::steady_clock::time_point start, World& world,
                    int64_t local_ranks) {
  const at::Device device = find_device(plan.config.train.device);
  install_caching_allocator();
  const bool have_cores = configure_aten(plan.config.train.threads, local_ranks);
  plan.config.train.precision = agree_on_precision(plan.config.train.precision, device, world);
  const TrainConfig& train = plan.config.train;
  const Dataset dataset(plan.config.data, train.sequence_length, plan.config.model.vocab_size, train.seed);
  check_all_ranks_begin_alike(plan, dataset, world);

  auto trainer = std::make_unique<Trainer>(plan.config, dataset, device, world);
  try {
    if (plan.checkpoint) {
      trainer->restore(*plan.checkpoint);
    } else if (!plan.config.init_from.empty()) {
      load_initial_weights(plan.config, *trainer);
    }

    std::optional<StepTimeLearner> learner;
    if (world.rank() == 0) {
      learner = StepTimeLearner::of_run(plan.config, plan.resume ? plan.directory / profile_name : fs::path());
    }

    const StopRequest stop(max_seconds, start);
    world.everyone().barrier();  // all mistakes are found, and nobody reads the run directory any more
    std::optional<RunOutput> output;
    if (world.rank() == 0) {
      output.emplace(plan, *trainer, learner ? &*learner : nullptr);
      introduce(plan, dataset, learner, *output);
    }
    const bool can_judge_speed = have_cores || plan.config.cluster.clock == ClockKind::virtual_time;
    return Run(plan, dataset, *trainer, world, stop, output ? &*output : nullptr, can_judge_speed).until_end();
  } catch (...) {
    // The process ends, and communication that is still under way must not find its buffers gone.
    [[maybe_unused]] const Trainer* kept = trainer.release();
    throw;
  }
}

}  // namespace copus
