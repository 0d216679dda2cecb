#include "copus/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "copus/base/error.h"
#include "copus/model/kernels.h"
#include "copus/model/precision.h"
#include "copus/train/state_transfer.h"

namespace copus {

namespace {

at::Tensor to_device(const std::vector<int64_t>& values, int64_t sequences, at::Device device) {
  const int64_t length = static_cast<int64_t>(values.size()) / sequences;
  return kernels::from_host(values.data(), {sequences, length}, device);
}

template <class Value>
void check_same(const Checkpoint& checkpoint, const char* field, const Value& now, const Value& then) {
  if (now == then) return;
  throw UserError(concat("cannot resume from ", checkpoint.directory().string(), ": it was written with ", field, " = ",
                         then, ", and now it is ", now,
                         "; give the run what it began with, or start a new run (another run directory)"));
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const Dataset& dataset, at::Device device)
    : config_(config),
      dataset_(dataset),
      device_(device),
      learning_rate_(config.optimizer, config.train),
      parameters_(config.model, compute_dtype(config.train.precision), device),
      decoder_(parameters_, config.train.recompute),
      optimizer_(parameters_, config.optimizer) {
  parameters_.initialize(config.train.seed);
  state_.seed = config.train.seed;
  state_.sequence_length = config.train.sequence_length;
  state_.byte_tokens = dataset.bytes();
  state_.data_fingerprint = dataset.fingerprint();
}

void Trainer::load(const std::map<std::string, TensorView, std::less<>>& weights) {
  load_weights(parameters_, weights);
}

void Trainer::restore(const Checkpoint& checkpoint) {
  const std::string source = (checkpoint.directory() / "training_state.json").string();
  const TrainingState state = parse_training_state(checkpoint.training_state(), source);
  check_same(checkpoint, "train.seed", state_.seed, state.seed);
  check_same(checkpoint, "train.sequence_length", state_.sequence_length, state.sequence_length);
  check_same(checkpoint, "data.train (fingerprint of the contents)", state_.data_fingerprint, state.data_fingerprint);
  for (const Parameter& parameter : parameters_.parameters()) {
    if (parameter.tied_copy) continue;
    copy_from_host(checkpoint.weight(parameter.info.name), parameters_.master(parameter));
    copy_from_host(checkpoint.optimizer("exp_avg." + parameter.info.name), optimizer_.exp_avg(parameter));
    copy_from_host(checkpoint.optimizer("exp_avg_sq." + parameter.info.name), optimizer_.exp_avg_sq(parameter));
  }
  parameters_.publish_weights();
  optimizer_.set_steps(state.optimizer_steps);
  state_ = state;
}

StepRecord Trainer::step() {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds_so_far = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const int64_t samples = config_.train.global_batch;
  const int64_t tokens = samples * config_.train.sequence_length;

  const double loss = accumulate_gradients();
  const double gradient_norm = optimizer_.gradient_norm();
  const double lr = learning_rate_.at({state_.consumed_tokens + tokens, state_.elapsed_seconds + seconds_so_far()});
  const bool finite = std::isfinite(loss) && std::isfinite(gradient_norm);
  if (finite) {
    optimizer_.step(lr, clip_factor(gradient_norm, config_.train.clip_norm));
    state_.optimizer_steps = optimizer_.steps();
    state_.skipped_in_a_row = 0;
  } else {
    skip_step(loss, gradient_norm, lr);
  }
  state_.step += 1;
  state_.consumed_samples += samples;
  state_.consumed_tokens += tokens;
  const double seconds = seconds_so_far();
  state_.elapsed_seconds += seconds;

  StepRecord record;
  record.step = state_.step;
  record.consumed_samples = state_.consumed_samples;
  record.consumed_tokens = state_.consumed_tokens;
  record.loss = loss;
  record.lr = lr;
  record.grad_norm = gradient_norm;
  record.step_seconds = seconds;
  record.tokens_per_second = static_cast<double>(tokens) / seconds;
  record.global_batch = samples;
  record.micro_batch = config_.train.micro_batch;
  record.skipped_samples = state_.skipped_samples;
  record.elapsed_seconds = state_.elapsed_seconds;
  return record;
}

// The gradient of the mean loss over the global batch, in the store's main gradients, and that loss.
double Trainer::accumulate_gradients() {
  const int64_t samples = config_.train.global_batch;
  const auto first = static_cast<uint64_t>(state_.consumed_samples);
  const auto loss_tokens = static_cast<double>(dataset_.loss_tokens(first, samples));
  parameters_.zero_gradients();
  at::Tensor loss_sum;
  for (int64_t done = 0; done < samples; done += config_.train.micro_batch) {
    const int64_t count = std::min(config_.train.micro_batch, samples - done);
    const Batch batch = dataset_.train_batch(first + static_cast<uint64_t>(done), count);
    const at::Tensor loss = decoder_.forward_backward(to_device(batch.tokens, count, device_),
                                                      to_device(batch.targets, count, device_), 1 / loss_tokens);
    loss_sum = loss_sum.defined() ? loss_sum.add(loss) : loss;
  }
  add_tied_gradient(parameters_);
  return loss_sum.item<double>() / loss_tokens;
}

void Trainer::skip_step(double loss, double gradient_norm, double learning_rate) {
  state_.skipped_steps += 1;
  state_.skipped_samples += config_.train.global_batch;
  state_.skipped_in_a_row += 1;
  if (state_.skipped_in_a_row < max_skipped_in_a_row) return;
  throw UserError(concat("training has diverged: the last ", max_skipped_in_a_row, " steps up to step ",
                         state_.step + 1, " had a loss or gradient that is not finite (loss ", loss, ", gradient norm ",
                         gradient_norm, ", learning rate ", learning_rate,
                         "); try a lower optimizer.lr, a longer optimizer.warmup_tokens or a smaller train.clip_norm, "
                         "and check the data"));
}

std::optional<double> Trainer::held_out_loss(const std::function<bool()>& stop) {
  const int64_t batch_size = config_.train.micro_batch;
  int64_t samples = dataset_.held_out_samples();
  if (config_.evaluate.max_batches > 0) samples = std::min(samples, config_.evaluate.max_batches * batch_size);
  double loss = 0;
  int64_t loss_tokens = 0;
  for (int64_t first = 0; first < samples; first += batch_size) {
    if (stop()) return std::nullopt;
    const int64_t count = std::min(batch_size, samples - first);
    const Batch batch = dataset_.held_out_batch(first, count);
    loss +=
        decoder_.loss(to_device(batch.tokens, count, device_), to_device(batch.targets, count, device_)).item<double>();
    loss_tokens += batch.loss_tokens;
  }
  if (loss_tokens == 0) return std::nullopt;
  return loss / static_cast<double>(loss_tokens);
}

Snapshot Trainer::snapshot(std::string run_config) const {
  Snapshot snapshot;
  snapshot.step = state_.step;
  snapshot.model_config = to_hugging_face_config(config_.model, "float32");
  snapshot.run_config = std::move(run_config);
  snapshot.training_state = to_json(state_);
  for (const Parameter& parameter : parameters_.parameters()) {
    if (parameter.tied_copy) continue;
    const std::string& name = parameter.info.name;
    snapshot.weights.push_back(copy_to_host_tensor(parameters_.master(parameter), name));
    snapshot.optimizer.push_back(copy_to_host_tensor(optimizer_.exp_avg(parameter), "exp_avg." + name));
    snapshot.optimizer.push_back(copy_to_host_tensor(optimizer_.exp_avg_sq(parameter), "exp_avg_sq." + name));
  }
  return snapshot;
}

bool Trainer::finished() const {
  const int64_t limit = limit_in_tokens(config_.train);
  if (limit > 0 && state_.consumed_tokens >= limit) return true;
  return config_.train.max_seconds > 0 && state_.elapsed_seconds >= config_.train.max_seconds;
}

double Trainer::share_done() const {
  const auto limit = static_cast<double>(limit_in_tokens(config_.train));
  const double by_tokens = limit > 0 ? static_cast<double>(state_.consumed_tokens) / limit : 0;
  const double by_time = config_.train.max_seconds > 0 ? state_.elapsed_seconds / config_.train.max_seconds : 0;
  return std::min(1.0, std::max(by_tokens, by_time));
}

double Trainer::seconds_left() const {
  double left = std::numeric_limits<double>::infinity();
  const auto limit = static_cast<double>(limit_in_tokens(config_.train));
  const auto tokens = static_cast<double>(state_.consumed_tokens);
  if (limit > 0 && tokens > 0) left = (limit - tokens) * state_.elapsed_seconds / tokens;
  if (config_.train.max_seconds > 0) left = std::min(left, config_.train.max_seconds - state_.elapsed_seconds);
  return std::max(0.0, left);
}

}  // namespace copus
