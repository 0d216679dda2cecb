// `copus gns`: measures the gradient noise scale of a stored model. It is the reference for the noise scale that
// training logs.
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "copus/base/error.h"
#include "copus/base/process/cores.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/cli/commands.h"
#include "copus/cli/noise/gns_report.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/stored_model.h"
#include "copus/config/run_config.h"
#include "copus/data/dataset.h"
#include "copus/description/configuration_fields.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/layers/decoder.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/report/progress/command_progress.h"
#include "copus/statistics/noise_scale.h"
#include "copus/train/experiments/noise_reference.h"
#include "copus/train/run/device.h"
#include "copus/train/state/state_transfer.h"
#include "copus/train/step/training_state.h"

namespace copus {

namespace {

struct GnsOptions {
  std::string checkpoint;
  std::string model;
  std::string data;
  int64_t sequence_length = 0;  // 0: that of the run
  std::optional<uint64_t> seed;
  int64_t batches = 32;
  int64_t large_batch = 64;
  Precision precision = Precision::fp32;
  std::string device = "cpu";
  int64_t threads = 0;
  bool json = false;
};

// The largest vocabulary of a byte model: 256 bytes, a few special tokens, and padding. A larger one needs a tokenizer.
constexpr int64_t largest_byte_vocabulary = 512;

// The samples on which the noise scale is measured.
struct Samples {
  Dataset dataset;
  int64_t sequence_length;
  uint64_t first;
};

void check_options(const GnsOptions& options) {
  if (options.checkpoint.empty() == options.model.empty()) {
    throw UserError("gns: give one model: --checkpoint DIR (of a run), or --model DIR (a Hugging Face directory)");
  }
  if (options.model.empty()) return;
  if (options.data.empty()) throw UserError("gns: --model needs --data: the text, or .bin/.idx pair, to measure on");
  if (options.sequence_length == 0) throw UserError("gns: --model needs --sequence-length: tokens of a sample");
}

void check_sequence_length(int64_t sequence_length, const ModelDescription& model) {
  if (sequence_length <= model.max_position_embeddings) return;
  throw UserError(concat("--sequence-length ", sequence_length, " exceeds the model's max_position_embeddings (",
                         model.max_position_embeddings, "); give shorter sequences"));
}

// Opens the samples of --data, shuffled independently of any run.
Samples open_samples_of_model(const GnsOptions& options, const StoredModel& model) {
  DataConfig data;
  data.train = {{.path = options.data, .weight = 1}};
  data.held_out_fraction = 0;
  const uint64_t seed = options.seed.value_or(ExecutionConfig{}.seed);
  check_sequence_length(options.sequence_length, model.description());
  Dataset dataset(data, options.sequence_length, model.description().vocab_size, seed);
  if (dataset.bytes() && model.description().vocab_size > largest_byte_vocabulary) {
    throw UserError(concat("--data ", options.data, " is text, whose tokens are bytes, and the ",
                           model.description().vocab_size, " tokens of the model in ", options.model,
                           " are those of a tokenizer; tokenize the text with it (tools/tokenize_corpus.py) and give "
                           "the prefix of the .bin/.idx pair"));
  }
  return {std::move(dataset), options.sequence_length, 0};
}

// Opens the samples that the run would train on next, or the samples of --data.
Samples open_samples_of_run(const GnsOptions& options, const StoredModel& model, const TrainingState& state) {
  const std::string source = (model.directory() / "config.toml").string();
  const RunConfig config = parse_run_config(*model.run_config(), source);
  const int64_t sequence_length = options.sequence_length > 0 ? options.sequence_length : state.sequence_length;
  const uint64_t seed = options.seed.value_or(state.seed);
  const int64_t vocab_size = model.description().vocab_size;
  check_sequence_length(sequence_length, model.description());
  if (!options.data.empty()) {
    DataConfig data = config.data;
    data.train = {{.path = options.data, .weight = 1}};
    data.held_out.clear();
    data.held_out_fraction = 0;
    Dataset dataset(data, sequence_length, vocab_size, seed);
    if (dataset.bytes() != state.byte_tokens) {
      const char* const text = "text, whose tokens are bytes";
      const char* const ids = "tokenized";
      throw UserError(concat("--data ", options.data, " is ", dataset.bytes() ? text : ids, ", and the run in ",
                             options.checkpoint, " was trained on data that are ", state.byte_tokens ? text : ids,
                             "; give data of the same kind"));
    }
    return {std::move(dataset), sequence_length, 0};
  }
  Dataset dataset = [&] {
    try {
      return Dataset(config.data, sequence_length, vocab_size, seed);
    } catch (const UserError& error) {
      throw UserError(concat(error.what(), " (named by ", source,
                             "; relative paths begin where the run was started; --data names other data)"));
    }
  }();
  const bool as_the_run = sequence_length == state.sequence_length && seed == state.seed;
  if (as_the_run && dataset.fingerprint() != state.data_fingerprint) {
    throw UserError(concat("the contents of data.train are no longer those that the run in ", options.checkpoint,
                           " was trained on, so what it would take next is not known; name the data by --data"));
  }
  return {std::move(dataset), sequence_length, as_the_run ? state.data_position() : 0};
}

struct MeasuredNoise {
  NoiseAverage average;
  int64_t without_loss = 0;  // batches without any token that has a loss; they carry no information
};

MeasuredNoise measure(const GnsOptions& options, NoiseReference& reference, const Samples& samples) {
  CommandProgress progress("batches", options.batches);
  MeasuredNoise measured;
  for (int64_t batch = 0; batch < options.batches; ++batch) {
    progress.show(batch);
    const uint64_t first = samples.first + static_cast<uint64_t>(batch * options.large_batch);
    if (samples.dataset.loss_tokens(first, options.large_batch) == 0) {
      ++measured.without_loss;
      continue;
    }
    measured.average = observe_alike(measured.average, reference.observe(first, options.large_batch));
  }
  return measured;
}

// Reads the training state of a run's checkpoint. A model without a run has none.
std::optional<TrainingState> find_training_state(const GnsOptions& options, const StoredModel& model) {
  if (options.checkpoint.empty()) return std::nullopt;
  if (!model.training_state()) {
    throw UserError(concat(options.checkpoint,
                           " holds a model and no training state; give it by --model, with --data and "
                           "--sequence-length"));
  }
  return parse_training_state(*model.training_state(), (model.directory() / "training_state.json").string());
}

void note_repetition(const GnsOptions& options, const Samples& samples) {
  const int64_t available = samples.dataset.train_tokens() / samples.sequence_length;
  if (options.batches * options.large_batch <= available) return;
  std::cerr << "copus: note: " << options.batches << " batches of " << options.large_batch
            << " sequences are more than the " << available
            << " that the data have; some count more than once, which makes the interval too narrow\n";
}

int gns(const GnsOptions& options) {
  check_options(options);
  const StoredModel model(options.checkpoint.empty() ? options.model : options.checkpoint);
  const std::optional<TrainingState> state = find_training_state(options, model);
  const at::Device device = find_device(options.device);
  use_device(device);
  install_caching_allocator();
  configure_aten(options.threads);
  const Samples samples = state ? open_samples_of_run(options, model, *state) : open_samples_of_model(options, model);
  note_repetition(options, samples);

  const Precision precision = resolve_precision(options.precision, device);
  ParameterStore parameters(model.description(), compute_dtype(precision), device);
  load_weights(parameters, model.weights());
  Decoder decoder(parameters, Recompute::none);
  NoiseReference reference(parameters, decoder, samples.dataset);

  const double start = monotonic_seconds();
  const auto [average, without_loss] = measure(options, reference, samples);
  const std::optional<NoiseScale> noise = noise_scale(average);
  if (!noise) {
    throw UserError(concat("the gradients of ", options.batches - without_loss - average.steps, " of ", options.batches,
                           " batches are not finite: this model has diverged",
                           without_loss > 0 ? concat("; ", without_loss, " others carry no loss") : ""));
  }
  GnsReport report;
  report.noise = *noise;
  report.batches = average.steps;
  report.large_batch = options.large_batch;
  report.sequence_length = samples.sequence_length;
  if (state) {
    report.step = state->step;
    report.consumed_samples = state->consumed_samples;
  }
  report.seconds = monotonic_seconds() - start;
  std::cout << (options.json ? to_json(report) + '\n' : to_table(report)) << std::flush;
  return 0;
}

}  // namespace

void add_gns(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<GnsOptions>();
  CLI::App& command = *program.add_subcommand("gns", about_gns);
  command
      .add_option("--checkpoint", options->checkpoint,
                  "A run directory (its newest checkpoint), or a checkpoint; the run may still be going on")
      ->type_name("DIR");
  command.add_option("--model", options->model, "A Hugging Face directory; needs --data and --sequence-length")
      ->type_name("DIR");
  command
      .add_option("--data", options->data,
                  "A text file or the prefix of a .bin/.idx pair (default: what the run would train on next)")
      ->type_name("PATH");
  add_sequence_length(command, options->sequence_length, "Tokens of a sample (default: the run's)");
  command
      .add_option("--seed", options->seed,
                  "Take samples from the beginning of another shuffle (default: the run's seed, or 1234)")
      ->check(at_least(0));
  command.add_option("--batches", options->batches, "Batches to measure; an error bar needs some")
      ->check(number_in(Range<int64_t>{2, int64_t{1} << 30}))
      ->capture_default_str();
  command.add_option("--large-batch", options->large_batch, "Sequences of a batch")
      ->check(number_in(Range<int64_t>{2, allowed_batches.high}))
      ->capture_default_str();
  add_named_option(command, "--precision", options->precision, "auto, fp32 or bf16");
  command.add_option("--device", options->device, "cpu or cuda[:N]")->capture_default_str();
  command.add_option("--threads", options->threads, "Threads; 0: all cores")->check(number_in(allowed_threads));
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "The noise scale, tr(Sigma)/|G|^2, is the batch, in sequences, at which the gradient's noise is as large as\n"
      "the gradient. It is measured at fixed weights, from gradients of single sequences and of whole batches.\n"
      "Examples:\n"
      "  copus gns --checkpoint runs/r1\n"
      "  copus gns --model my-model --data data/my --sequence-length 1024 --batches 128 --json");
  command.callback([options, &action] { action = [options] { return gns(*options); }; });
}

}  // namespace copus
