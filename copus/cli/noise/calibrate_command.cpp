// `copus calibrate`: measures the statistical efficiency of batch sizes for a model, its data and its learning rate. It
// trains short branches from a run's checkpoint. The result is a value for noise_scale.calibration.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/base/text/units.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/cli/commands.h"
#include "copus/cli/noise/calibration_plan.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/run_directory.h"
#include "copus/config/descriptions.h"
#include "copus/config/run_config.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/layers/decoder.h"
#include "copus/report/files/calibration_files.h"
#include "copus/statistics/noise_scale.h"
#include "copus/train/experiments/noise_reference.h"
#include "copus/train/run/device.h"
#include "copus/train/run/run.h"
#include "copus/train/state/state_transfer.h"
#include "copus/train/step/stop_request.h"
#include "copus/train/trainer/branch.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

constexpr int64_t most_repetitions = 8;

// The number of batches, and the sequences in each, with which the noise scale at the checkpoint is measured.
constexpr int64_t noise_batches = 16, noise_batch = 64;

// The smallest standard deviation of ln(critical batch) that is reported: a few branches may agree by chance.
constexpr double smallest_deviation = 0.05;

struct CalibrateOptions {
  std::string run;
  std::string time = "10m";
  double learning_rate = 0;  // 0: the highest of the run
  bool json = false;
};

std::string number(double value) { return format_number("%.3g", value); }

Checkpoint newest_checkpoint(const fs::path& run) {
  check_is_run("calibrate", run);
  std::optional<Checkpoint> checkpoint = open_latest_checkpoint(run / "checkpoints");
  if (!checkpoint) {
    throw UserError(concat("calibrate: ", run.string(), " has no checkpoint yet, which branches could leave; wait for ",
                           "one, or set checkpoint.interval"));
  }
  return std::move(*checkpoint);
}

// One calibration: its inputs, progress and messages.
class Calibration {
 public:
  explicit Calibration(const CalibrateOptions& options)
      : options_(options),
        run_(options.run),
        checkpoint_(newest_checkpoint(run_)),
        state_(parse_training_state(checkpoint_.training_state(), checkpoint_.directory().string())),
        config_(parse_run_config(checkpoint_.run_config(), (checkpoint_.directory() / "config.toml").string())),
        dataset_(config_.data, config_.train.sequence_length, config_.model.vocab_size, config_.execution.seed),
        device_(find_device("cpu")),
        reference_batch_(reference_batch_of(config_)),
        learning_rate_(options.learning_rate > 0 ? options.learning_rate : config_.optimizer.lr),
        plan_(plan_calibration(reference_batch_, most_repetitions)),
        stop_(0) {
    configure_aten(config_.execution.threads);
    config_.execution.precision = resolve_precision(config_.execution.precision, device_);
    if (config_.optimizer.batch_scaling != BatchScaling::square_root) {
      throw UserError(concat("calibrate: optimizer.batch_scaling of the run in ", run_.string(), " is \"",
                             to_string(config_.optimizer.batch_scaling), "\", and branches are fitted at the rates of ",
                             "the square-root rule alone; give noise_scale.calibration as a number"));
    }
    if (dataset_.held_out_samples() == 0) {
      throw UserError(concat("calibrate: the run in ", run_.string(),
                             " has no held-out data, by which branches are compared; it needs data.held_out or ",
                             "data.held_out_fraction"));
    }
  }

  int run() {
    const fs::path file = run_ / "calibration" / checkpoint_.directory().filename() /
                          concat("branches-", format_number("%g", learning_rate_), ".jsonl");
    done_ = read_branch_log(file);
    DurableFile{run_ / "calibration.json"};  // fails now if the file cannot be written at the end
    const double end = monotonic_seconds() + read_duration("--time", options_.time);
    std::cerr << "copus: measuring the noise scale, and how fast branches are here\n";
    const NoiseScale noise = measure_noise();
    if (stop_.reason(0) != StopReason::none) return interrupted();
    measure_speed();
    // Before the command refuses, the speed is measured again, because the machine may have been busy only for a
    // moment.
    for (int again = 0; again < 2 && needs_more_than(end - monotonic_seconds()); ++again) measure_speed();
    if (stop_.reason(0) != StopReason::none) return interrupted();
    announce(end - monotonic_seconds());
    create_directories_durably(file.parent_path());
    BranchLog log(file);
    done_ = read_branch_log(file);  // no other process can write the log from here on
    for (const BranchOutcome& planned : plan_.branches) {
      if (is_done(planned)) continue;
      const double seconds = predicted_seconds(planned.samples);
      if (monotonic_seconds() + seconds > end && done_count() >= plan_.needed) break;
      show_progress(end - monotonic_seconds());
      const std::optional<double> loss = train(planned);
      if (!loss) return interrupted();
      BranchOutcome outcome = planned;
      outcome.loss = *loss;
      log.append(outcome);
      done_.push_back(outcome);
    }
    return conclude(noise);
  }

 private:
  bool is_done(const BranchOutcome& planned) const {
    return std::any_of(done_.begin(), done_.end(), [&](const BranchOutcome& done) {
      return done.batch == planned.batch && done.rate_exponent == planned.rate_exponent &&
             done.samples == planned.samples && done.repetition == planned.repetition;
    });
  }
  int64_t done_count() const {
    return std::count_if(plan_.branches.begin(), plan_.branches.end(),
                         [this](const auto& branch) { return is_done(branch); });
  }

  std::optional<double> train(const BranchOutcome& planned) const {
    const auto batch = static_cast<int64_t>(planned.batch);
    const double kappa = planned.batch / static_cast<double>(reference_batch_);
    const double rate_factor = std::pow(kappa, planned.rate_exponent);
    const Branch branch{.global_batch = batch,
                        .learning_rate = learning_rate_ * rate_factor,
                        .rate_factor = rate_factor,
                        .samples = static_cast<int64_t>(planned.samples),
                        .skipped_samples = skipped_samples(plan_, planned.repetition)};
    return train_branch(config_, checkpoint_, branch, dataset_, device_, [this] { return stop_.reason(0); });
  }

  // Times two short branches of different lengths. The difference gives the time per sample. The remaining time is
  // overhead, which each branch has once.
  void measure_speed() {
    const auto seconds_of = [&](int64_t updates) {
      const double start = monotonic_seconds();
      train(
          {.batch = static_cast<double>(reference_batch_), .samples = static_cast<double>(updates * reference_batch_)});
      return monotonic_seconds() - start;
    };
    constexpr int64_t few = 4, more = 24;
    const double short_seconds = seconds_of(few);
    const double long_seconds = seconds_of(more);
    seconds_per_sample_ =
        std::max(1e-9, (long_seconds - short_seconds) / static_cast<double>((more - few) * reference_batch_));
    seconds_per_branch_ =
        std::max(0.0, short_seconds - seconds_per_sample_ * static_cast<double>(few * reference_batch_));
  }
  double predicted_seconds(double samples) const { return seconds_per_branch_ + samples * seconds_per_sample_; }

  // Returns the predicted time of the first `count` branches, without those that have already run.
  double predicted_seconds_of_first(int64_t count) const {
    double seconds = 0;
    for (int64_t i = 0; i < count; ++i) {
      const BranchOutcome& branch = plan_.branches[static_cast<size_t>(i)];
      if (!is_done(branch)) seconds += predicted_seconds(branch.samples);
    }
    return seconds;
  }
  bool needs_more_than(double seconds) const { return predicted_seconds_of_first(plan_.needed) > seconds; }

  void announce(double limit) const {
    const double needed = predicted_seconds_of_first(plan_.needed);
    const double all = predicted_seconds_of_first(std::ssize(plan_.branches));
    const std::string known = done_.empty() ? "" : concat(done_.size(), " branches are there already; ");
    if (needs_more_than(limit)) {
      throw UserError(concat("calibrate: ", known, "the branches that an interval needs would take about ",
                             format_duration(needed), " here, and --time leaves ", format_duration(limit),
                             ": give more (all of them would take ", format_duration(all),
                             "), or calibrate a smaller model of the same kind"));
    }
    std::cerr << "copus: branches of " << checkpoint_.directory().string() << " at batches of " << reference_batch_
              << " to " << static_cast<int64_t>(plan_.branches.back().batch) << " sequences, learning rate "
              << number(learning_rate_) << " at " << reference_batch_ << ": " << known << "about "
              << format_duration(needed) << " for the least, " << format_duration(all) << " for all; it ends after "
              << format_duration(std::min(limit, all)) << "\n";
  }

  void show_progress(double seconds_left) const {
    std::cerr << "copus: " << done_count() << " of " << plan_.branches.size() << " branches, at most "
              << format_duration(std::max(0.0, seconds_left)) << " left\n";
  }

  NoiseScale measure_noise() const {
    ParameterStore parameters(config_.model, at::kFloat, device_);
    load_weights(parameters, checkpoint_weights());
    Decoder decoder(parameters, Recompute::none);
    NoiseReference reference(parameters, decoder, dataset_);
    NoiseAverage average;
    for (int64_t batch = 0; batch < noise_batches && stop_.reason(0) == StopReason::none; ++batch) {
      const auto first = state_.data_position() + static_cast<uint64_t>(batch * noise_batch);
      average = observe_alike(average, reference.observe(first, noise_batch));
    }
    const std::optional<NoiseScale> noise = noise_scale(average);
    if (stop_.reason(0) != StopReason::none) return {};
    if (!noise || !noise->value) {
      throw UserError(concat("calibrate: the noise scale at ", checkpoint_.directory().string(), " is not significant ",
                             "in ", noise_batches * noise_batch, " sequences (`copus gns` says more), and c is ",
                             "relative to it; train a little further, or less far beyond where the loss falls"));
    }
    return *noise;
  }

  std::map<std::string, TensorView, std::less<>> checkpoint_weights() const {
    std::vector<TensorView> weights;
    for (const auto& [name, weight] : checkpoint_.weights()) weights.push_back(weight);
    return read_parameters(config_.model, weights, checkpoint_.directory().string());
  }

  int interrupted() const {
    std::cerr << "copus: interrupted after " << done_.size() << " branches; the same command goes on\n";
    return static_cast<int>(stop_.reason(0) == StopReason::terminate ? RunEnd::requeue : RunEnd::interrupted);
  }

  int conclude(const NoiseScale& noise) const {
    const auto reference = static_cast<double>(reference_batch_);
    const BranchEfficiencies efficiencies = branch_efficiencies(done_, reference);
    CalibrationReport report;
    report.step = state_.step;
    report.consumed_samples = state_.consumed_samples;
    report.noise_scale = *noise.value;
    report.noise_scale_low = noise.low;
    report.noise_scale_high = *noise.high;
    report.reference_batch = reference;
    report.learning_rate = learning_rate_;
    report.branches = std::ssize(done_);
    report.outside = efficiencies.outside;
    report.alpha = config_.adapt.alpha;
    report.updates = config_.noise_scale.critical_updates;
    const BranchPoint point{.noise_scale = report.noise_scale,
                            .consumed_samples = static_cast<double>(report.consumed_samples),
                            .updates = report.updates};
    const std::optional<BranchCalibration> fit = fit_calibration(efficiencies, reference, point, report.alpha);
    if (!fit) {
      throw UserError(concat("calibrate: ", efficiencies.outside, " of ", done_.size(),
                             " branches ended beyond the losses ",
                             "of the reference batch, so nothing can be fitted; the learning rate ",
                             number(learning_rate_), " may be too high: give a lower one by --learning-rate"));
    }
    report.fit = *fit;
    report.rate_exponent = best_rate_exponent(efficiencies);
    const fs::path file = run_ / "calibration.json";
    report.critical_batches = critical_batches_with(measured_by(report), file);
    write_file_durably(file, to_json(report) + '\n');
    std::cout << (options_.json ? to_json(report) + '\n' : describe(report, file)) << std::flush;
    return 0;
  }

  // Returns the critical batch at this checkpoint; nothing if the branches give only a bound. The limit
  // noise_scale.critical_updates is not applied to the result, because a run that reads it applies this limit itself.
  std::optional<MeasuredCriticalBatch> measured_by(const CalibrationReport& report) const {
    const std::optional<double> deviation = log_deviation(report.fit.calibration);
    if (!deviation) return std::nullopt;
    const auto sequence = static_cast<double>(config_.train.sequence_length);
    const double noise_scale = report.noise_scale * sequence;
    return MeasuredCriticalBatch{.tokens = static_cast<double>(report.consumed_samples) * sequence,
                                 .noise_scale = noise_scale,
                                 .critical_batch = report.fit.calibration.value * noise_scale,
                                 .deviation = std::max(smallest_deviation, *deviation)};
  }

  // Returns the critical batches of the run's other checkpoints, from the file, and the newly measured critical batch,
  // if there is one.
  static std::vector<MeasuredCriticalBatch> critical_batches_with(const std::optional<MeasuredCriticalBatch>& latest,
                                                                  const fs::path& file) {
    std::vector<MeasuredCriticalBatch> all;
    if (fs::exists(file)) {
      try {
        all = read_calibration_file(file, "calibrate");
      } catch (const UserError& error) {
        std::cerr << "copus: keeps no critical batches of other checkpoints: " << error.what() << '\n';
      }
    }
    if (!latest) return all;
    std::erase_if(all, [&](const MeasuredCriticalBatch& at) { return at.tokens == latest->tokens; });
    all.push_back(*latest);
    std::ranges::sort(all, {}, &MeasuredCriticalBatch::tokens);
    return all;
  }

  static std::string how_to_use(const CalibrationReport& report, const fs::path& file) {
    const std::string bounded = log_deviation(report.fit.calibration)
                                    ? ""
                                    : "The branches only bound the critical batch here, so a run cannot use it; more "
                                      "--time may narrow the interval.\n";
    if (report.critical_batches.empty()) return bounded;
    return concat(bounded, "calibrated     ", counted(std::ssize(report.critical_batches), "checkpoint"),
                  report.critical_batches.size() < 3 ? "; three or more show how the critical batch grows" : "",
                  "\nTo use it: --set noise_scale.calibration=", file.string(), "\n");
  }

  static std::string describe(const CalibrationReport& report, const fs::path& file) {
    const auto with_interval = [](const Estimate& estimate) {
      return concat(number(estimate.value), " (95 % interval: ", number(estimate.low), " to ", number(estimate.high),
                    ")");
    };
    const std::string rate =
        report.rate_exponent
            ? concat("best rate      lr x (B / ", number(report.reference_batch), ")^",
                     number(report.rate_exponent->value), "; exponents ", number(report.rate_exponent->low), " to ",
                     number(report.rate_exponent->high), " are not significantly worse\n")
            : std::string("best rate      not compared: give more --time\n");
    return concat("critical batch / noise scale   ", with_interval(report.fit.calibration),
                  " with alpha = ", number(report.alpha),
                  report.updates > 0 ? concat(" and noise_scale.critical_updates = ", number(report.updates)) : "",
                  "\n  both fitted    ", with_interval(report.fit.free_calibration), ", alpha ",
                  with_interval(report.fit.free_alpha), "\nnoise scale    ", number(report.noise_scale), " (",
                  number(report.noise_scale_low), " to ", number(report.noise_scale_high), ") after ",
                  report.consumed_samples, " sequences\n", rate, "branches       ", report.branches, ", of which ",
                  report.outside, " were beyond comparison\n", how_to_use(report, file));
  }

  CalibrateOptions options_;
  fs::path run_;
  Checkpoint checkpoint_;
  TrainingState state_;
  RunConfig config_;
  Dataset dataset_;
  at::Device device_;
  int64_t reference_batch_;
  double learning_rate_;
  CalibrationPlan plan_;
  StopRequest stop_;
  std::vector<BranchOutcome> done_;
  double seconds_per_sample_ = 0, seconds_per_branch_ = 0;
};

}  // namespace

void add_calibrate(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App& command = *program.add_subcommand("calibrate", about_calibrate);
  command.add_option("RUN_DIR", options->run, "The run directory; branches leave its newest checkpoint")->required();
  command.add_option("--time", options->time, "Begin no branch that would end later, such as 90s, 10m, 2h")
      ->capture_default_str();
  command
      .add_option("--learning-rate", options->learning_rate,
                  "Of the batch that the run's rate is for (default: optimizer.lr of the run)")
      ->check(number_in(single_precision));
  command.add_flag("--json", options->json, "Print calibration.json instead of a table");
  command.footer(
      "Branches continue from the checkpoint with other batches and learning rates, on this machine alone. The\n"
      "samples that they need to reach the same loss give the critical batch there. calibration.json in the run\n"
      "directory keeps it beside those of the run's other checkpoints; three or more show how the critical batch\n"
      "grows. The same command continues an interrupted calibration, and more --time narrows the intervals.\n"
      "Examples:\n"
      "  copus calibrate runs/r1\n"
      "  copus train my.toml --set noise_scale.calibration=runs/r1/calibration.json");
  command.callback([options, &action] { action = [options] { return Calibration(*options).run(); }; });
}

}  // namespace copus
