#include "copus/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/model/device_memory.h"
#include "copus/model/kernels.h"
#include "copus/model/precision.h"
#include "copus/orchestrator/rate_rule.h"
#include "copus/statistics/efficiency.h"
#include "copus/statistics/learning_rate_scaling.h"
#include "copus/train/state_transfer.h"

namespace copus {

namespace {

at::Tensor to_device(const std::vector<int64_t>& values, int64_t sequences, at::Device device) {
  const int64_t length = std::ssize(values) / sequences;
  return kernels::from_host(values.data(), {sequences, length}, device);
}

Schedule schedule_of(const ParallelStrategy& strategy, const ProbePlan& plan) {
  return make_schedule(strategy.schedule, strategy.pipeline_parallel, strategy.virtual_stages,
                       std::ssize(plan.micro_batches));
}

// Fills up the last held-out samples with sequences without loss, if they are too few for sequence-parallel ranks to
// share their tokens evenly. Returns how many sequences there are then.
int64_t fill_up(Batch& batch, int64_t sequences, const Configuration& configuration, int64_t sequence_length) {
  const ParallelStrategy& strategy = configuration.strategy;
  if (!strategy.sequence_parallel || sequences * sequence_length % strategy.tensor_parallel == 0) return sequences;
  batch.tokens.resize(configuration.micro_batch * sequence_length, 0);
  batch.targets.resize(batch.tokens.size(), ignored_target);
  return configuration.micro_batch;
}

// Connects the ranks as the layout needs it, and makes this rank's part of the model, all zero.
std::unique_ptr<RankModel> make_model(const RunConfig& config, const ParallelStrategy& strategy, World& world,
                                      StepRecorder& recorder, StateMemory& memory) {
  world.prepare(groups_of(config.model, strategy));
  const Placement placement = place(config.model, strategy, config.train.sequence_length, world.rank());
  return std::make_unique<RankModel>(
      config, strategy, world, recorder,
      allocate_zeros(config.model, placement, compute_dtype(config.train.precision), memory, /*moments=*/true));
}

// Adds the averages' noise scale to a step's record, whether or not this step has measured anything itself.
void add_noise_scale(const RunConfig& config, const NoiseAverage& average, StepRecord& record) {
  const std::optional<NoiseScale> noise = noise_scale(average);
  if (!noise) return;
  record.noise_scale = noise->value;
  record.noise_scale_low = noise->low;
  record.noise_scale_high = noise->high;
  if (!noise->value) return;
  constexpr double reference_batch = 1;
  const auto batch = static_cast<double>(record.global_batch);
  const double critical =
      critical_batch(critical_batch_rule_of(config), *noise->value, static_cast<double>(record.consumed_samples));
  record.noise_scale_tokens = *noise->value * static_cast<double>(config.train.sequence_length);
  record.critical_batch = critical;
  record.statistical_efficiency = statistical_efficiency(batch, critical, reference_batch);
  record.goodput = batch / record.step_seconds * *record.statistical_efficiency;
}

// The factor on the learning rate that a checkpoint has in its batch; empty where it tells nothing of it. Earlier
// versions followed the square-root rule up to the critical batch of the latest switch, whatever the policy.
std::optional<double> kept_rate_factor(const RunConfig& config, const TrainingState& state) {
  if (state.rate_factor || !state.critical_batch || !state.configuration) return state.rate_factor;
  const RateRule rule{.exponent = 0.5,
                      .reference_batch = static_cast<double>(reference_batch_of(config)),
                      .is_capped = *state.critical_batch > 0};
  return rate_factor(rule, static_cast<double>(state.configuration->global_batch), *state.critical_batch);
}

// The product of beta2 that a run goes on with; in a checkpoint that has none every update had the configuration's.
std::optional<double> kept_beta2_product(const OptimizerConfig& optimizer, const TrainingState& state) {
  if (!optimizer.scale_beta2) return std::nullopt;
  return state.beta2_product.value_or(std::pow(optimizer.beta2, static_cast<double>(state.optimizer_steps)));
}

template <class Value>
void check_same(const Checkpoint& checkpoint, const char* field, const Value& now, const Value& then) {
  if (now == then) return;
  throw UserError(concat("cannot resume from ", checkpoint.directory().string(), ": it was written with ", field, " = ",
                         then, ", and now it is ", now,
                         "; give the run what it began with, or start a new run (another run directory)"));
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world)
    : Trainer(config, configuration_of(config), dataset, device, world) {}

Trainer::Trainer(const RunConfig& config, const Configuration& configuration, const Dataset& dataset, at::Device device,
                 World& world)
    : config_(config),
      dataset_(dataset),
      device_(device),
      world_(world),
      recorder_(world),
      clock_(world),
      learning_rate_(config.optimizer, config.train),
      modelled_(config.cluster.is_modelled() ? std::optional<ModelledJob>(config) : std::nullopt),
      executed_(executed_configuration(config, configuration)),
      mover_(world, device, config.adapt.policy != PolicyKind::none && world.size() > 1),
      model_(make_model(config, executed_.strategy, world, recorder_, mover_.memory())),
      measures_noise_(config.noise_scale.enabled) {
  mover_.settle(model_->state());
  model_->parameters.initialize(config.train.seed);
  gather_weights(model_->parameters, model_->groups);
  state_.seed = config.train.seed;
  state_.sequence_length = config.train.sequence_length;
  state_.byte_tokens = dataset.bytes();
  state_.data_fingerprint = dataset.fingerprint();
  state_.configuration = configuration;
  state_.rate_factor = initial_rate_factor(config, configuration.global_batch);
  if (config.optimizer.scale_beta2) state_.beta2_product = 1;
  plan_steps();
}

void Trainer::plan_steps() {
  executed_ = executed_configuration(config_, configuration());
  const ParallelStrategy& strategy = executed_.strategy;
  schedule_ = schedule_of(strategy, plan_probe(config_, executed_, 1, false));
  split_schedule_ = schedule_of(strategy, plan_probe(config_, executed_, config_.noise_scale.split_interval, true));
}

void Trainer::load(const std::map<std::string, TensorView, std::less<>>& weights) {
  load_weights(model_->parameters, weights);
  gather_weights(model_->parameters, model_->groups);
}

void Trainer::restore(const Checkpoint& checkpoint) {
  const std::string source = (checkpoint.directory() / "training_state.json").string();
  TrainingState state = parse_training_state(checkpoint.training_state(), source);
  check_same(checkpoint, "train.seed", state_.seed, state.seed);
  check_same(checkpoint, "train.sequence_length", state_.sequence_length, state.sequence_length);
  check_same(checkpoint, "data.train (fingerprint of the contents)", state_.data_fingerprint, state.data_fingerprint);
  const ParameterStore& parameters = model_->parameters;
  AdamW& optimizer = model_->optimizer;
  load_state(parameters, master_weights(parameters),
             [&](const std::string& name) -> const TensorView& { return checkpoint.weight(name); });
  load_state(parameters, optimizer.exp_avg(),
             [&](const std::string& name) -> const TensorView& { return checkpoint.optimizer("exp_avg." + name); });
  load_state(parameters, optimizer.exp_avg_sq(),
             [&](const std::string& name) -> const TensorView& { return checkpoint.optimizer("exp_avg_sq." + name); });
  model_->publish_weights();
  optimizer.set_steps(state.optimizer_steps);
  // A factor is that of the batch which the checkpoint was written in.
  const bool has_its_batch = state.configuration && state.configuration->global_batch == configuration().global_batch;
  const std::optional<double> kept = has_its_batch ? kept_rate_factor(config_, state) : std::nullopt;
  state.rate_factor = kept ? kept : state_.rate_factor;
  state.critical_batch.reset();
  state.beta2_product = kept_beta2_product(config_.optimizer, state);
  state.configuration = configuration();
  state_ = std::move(state);
}

void Trainer::branch_from(const Checkpoint& checkpoint, int64_t skipped_samples) {
  const std::string source = (checkpoint.directory() / "training_state.json").string();
  const std::optional<Configuration> before = parse_training_state(checkpoint.training_state(), source).configuration;
  restore(checkpoint);
  state_.consumed_samples += skipped_samples;
  state_.rate_factor = 1;
  if (before) {
    state_.variance_ratio =
        variance_ratio_after_switch(state_.variance_ratio, static_cast<double>(before->global_batch),
                                    static_cast<double>(configuration().global_batch));
  }
}

// The schedule's rate at the batch that it is tuned for, times the factor for the current batch (the one that Goodput
// counts with), and lower for a while after the batch has shrunk.
double Trainer::learning_rate(int64_t tokens, double seconds) const {
  return learning_rate_.at({tokens, seconds}) * *state_.rate_factor * shrink_ramp();
}

// Part of the next update's rate: below 1 for a while after the batch has shrunk.
double Trainer::shrink_ramp() const {
  return shrink_ramp_factor(variance_ratio_after_update(state_.variance_ratio, beta2()));
}

// The beta2 of the next update.
double Trainer::beta2() const {
  const double beta2 = config_.optimizer.beta2;
  return config_.optimizer.scale_beta2 ? scaled_beta2(beta2, batch(), reference_batch()) : beta2;
}

// What follows the batch in the next update, beside its rate.
UpdateScaling Trainer::update_scaling() const {
  UpdateScaling scaling;
  if (state_.beta2_product) scaling.beta2 = {.value = beta2(), .product = *state_.beta2_product * beta2()};
  if (config_.optimizer.scale_weight_decay) {
    scaling.weight_decay_factor = weight_decay_factor(batch(), reference_batch(), *state_.rate_factor * shrink_ramp());
  }
  return scaling;
}

StepRecord Trainer::step(const StopQuestion& stop) {
  StepRecord record;
  if (!fits_into_memory([&] { record = compute_step(stop); })) throw UserError(needs_too_much_memory());
  return record;
}

std::string Trainer::needs_too_much_memory() const {
  const DeviceMemory memory = device_memory(device_);
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  return concat("step ", state_.step + 1, " does not fit into the memory of ", device_.str(),
                memory.total_bytes > 0 ? concat(" (", bytes(memory.total_bytes), ")") : "",
                ": with train.micro_batch = ", configuration().micro_batch, " in the layout ",
                to_string(layout_of(configuration().strategy)), ", tensors took up to ", bytes(memory.peak_used_bytes),
                " and ", bytes(memory.reserved_bytes), " were reserved",
                world_.communicator_bytes() > 0
                    ? concat(", beside ", bytes(world_.communicator_bytes()), " of connections between GPUs")
                    : "",
                "; lower train.micro_batch, set train.recompute = \"full\", or share the model out over "
                "more ranks");
}

StepRecord Trainer::compute_step(const StopQuestion& stop) {
  clock_.begin();
  recorder_.begin_step(state_.step + 1, std::exchange(trace_next_step_, false));
  const ProbePlan plan = plan_probe(config_, configuration(), state_.step + 1, measures_noise_);
  const StepAgreement agreed = accumulate_gradients(plan, stop);
  if (agreed.rate_factor) state_.rate_factor = agreed.rate_factor;
  const double lr = learning_rate(state_.consumed_tokens + tokens_per_step(), state_.elapsed_seconds + agreed.seconds);
  std::optional<NormObservation> norms;
  if (agreed.is_finite()) {
    update_weights(agreed, lr);
    norms = observe_noise(plan, agreed);
  } else {
    skip_step(agreed, lr);
  }
  advance(agreed.seconds);
  if (agreed.intent) prepare_switch(*agreed.intent);
  clock_.end(agreed.now);
  return record_of(agreed, lr, norms);
}

void Trainer::update_weights(const StepAgreement& agreed, double learning_rate) {
  recorder_.begin({.category = "optimizer", .name = "AdamW", .part = StepPart::optimizer}, "update of the weights");
  const UpdateScaling scaling = update_scaling();
  model_->optimizer.step(learning_rate, clip_factor(agreed.gradient_norm(), config_.train.clip_norm), scaling);
  recorder_.wait_at("gathering the weights");
  gather_weights(model_->parameters, model_->groups);
  state_.optimizer_steps = model_->optimizer.steps();
  if (scaling.beta2) state_.beta2_product = scaling.beta2->product;
  state_.variance_ratio = variance_ratio_after_update(state_.variance_ratio, beta2());
  state_.skipped_in_a_row = 0;
}

void Trainer::skip_step(const StepAgreement& agreed, double learning_rate) {
  state_.skipped_steps += 1;
  state_.skipped_samples += configuration().global_batch;
  state_.skipped_in_a_row += 1;
  if (state_.skipped_in_a_row < max_skipped_in_a_row) return;
  throw UserError(concat("training has diverged: the last ", max_skipped_in_a_row, " steps up to step ",
                         state_.step + 1, " had a loss or gradient that is not finite (loss ", agreed.loss,
                         ", gradient norm ", agreed.gradient_norm(), ", learning rate ", learning_rate,
                         "); try a lower optimizer.lr, a longer optimizer.warmup_tokens or a smaller train.clip_norm, "
                         "and check the data"));
}

void Trainer::advance(double step_seconds) {
  state_.step += 1;
  state_.consumed_samples += configuration().global_batch;
  state_.consumed_tokens += tokens_per_step();
  state_.elapsed_seconds += step_seconds;
}

StepRecord Trainer::record_of(const StepAgreement& agreed, double learning_rate,
                              const std::optional<NormObservation>& norms) {
  StepRecord record;
  record.step = state_.step;
  record.consumed_samples = state_.consumed_samples;
  record.consumed_tokens = state_.consumed_tokens;
  record.loss = agreed.loss;
  record.lr = learning_rate;
  record.rate_factor = state_.rate_factor;
  record.phase = learning_rate_.phase({state_.consumed_tokens, state_.elapsed_seconds});
  record.grad_norm = agreed.gradient_norm();
  if (agreed.is_finite()) record.clipped = is_clipped(record.grad_norm, config_.train.clip_norm);
  record.step_seconds = agreed.seconds;
  record.tokens_per_second = static_cast<double>(tokens_per_step()) / agreed.seconds;
  record.strategy = layout_in_run_log(configuration().strategy);
  record.global_batch = configuration().global_batch;
  record.micro_batch = configuration().micro_batch;
  record.switch_seconds = clock_.take_pause();
  record.skipped_samples = state_.skipped_samples;
  record.elapsed_seconds = state_.elapsed_seconds;
  if (norms) {
    record.small_batch = norms->small_batch;
    record.small_batch_squared_norm = norms->small_squared_norm;
  }
  if (measures_noise_) add_noise_scale(config_, state_.noise_average, record);
  return record;
}

// Computes the norms per sample. The gradients are those of the sum of token losses over the tokens of the whole global
// batch of B samples. So a sample's own gradient is B times what it adds to them, however many of its tokens carry
// loss: the mean of B such gradients is the step's. The mean over a small batch of b samples is B / b times what it has
// added.
std::optional<NormObservation> Trainer::observe_noise(const ProbePlan& plan, const StepAgreement& agreed) {
  if (plan.source == ProbeSource::none) return std::nullopt;
  NormObservation observation;
  observation.small_batch = static_cast<double>(plan.small_batch);
  observation.large_batch = static_cast<double>(configuration().global_batch);
  const double factor = observation.large_batch / observation.small_batch;
  observation.small_squared_norm =
      agreed.small_squared_norms / static_cast<double>(configuration().strategy.data_parallel) * factor * factor;
  observation.large_squared_norm = agreed.squared_norm;
  const NoiseWindow window{.samples = config_.noise_scale.window_samples};
  // Samples of unmeasured steps before this one count with it, except for those of skipped steps.
  const int64_t used = state_.consumed_samples + configuration().global_batch - state_.skipped_samples;
  const auto samples = static_cast<double>(used - std::exchange(state_.observed_samples, used));
  state_.noise_average = observe(state_.noise_average, observation, samples, window);
  return observation;
}

// Leaves the gradient of the mean loss over the global batch in the store's main gradients. Returns the ranks'
// agreement on the step, which includes the mean loss.
StepAgreement Trainer::accumulate_gradients(const ProbePlan& plan, const StopQuestion& stop) {
  const auto loss_tokens = static_cast<double>(
      dataset_.loss_tokens(static_cast<uint64_t>(state_.consumed_samples), configuration().global_batch));
  model_->parameters.zero_gradients();
  StepReport report;
  const StepGradients gradients =
      modelled_ ? compute_modelled_gradients(plan, 1 / loss_tokens) : compute_gradients(plan, 1 / loss_tokens);
  recorder_.begin({.category = "optimizer", .name = "norm", .part = StepPart::optimizer}, "the gradient's norm");
  // The only place at which the host waits for a GPU, as every rank has to before the ranks agree: the norm is the last
  // of the device's work, so everything before it is done as well.
  report.squared_norm = model_->optimizer.squared_gradient_norm();
  report.small_squared_norms = gradients.small_squared_norms;
  report.small_squared_norms.add(model_->probe.take());
  if (model_->groups.here().tensor == 0) {
    for (const at::Tensor& losses : gradients.losses) report.loss.add(add_up(losses));
  }
  recorder_.wait_at("waiting for all ranks");
  report.stop = stop ? stop() : StopReason::none;
  report.begin = clock_.begun_at();
  report.now = world_.clock().now();
  report.intent = announced_;
  report.rate_factor = std::exchange(announced_rate_factor_, std::nullopt);
  StepAgreement agreed = agree(report, model_->groups.everyone());
  agreed.loss /= loss_tokens;
  if (modelled_) agreed.seconds = modelled_->step_seconds(configuration());
  stop_reason_ = agreed.stop;
  // Right after the ranks have agreed none of them has to wait for another one that is late.
  const PartSeconds seconds = recorder_.take_seconds();
  if (gathers_seconds_) clock_.leave_out([&] { seconds_.add(state_.step + 1, seconds, world_); });
  return agreed;
}

// Adds this rank's gradients to the main ones, and those of the other ranks.
Trainer::StepGradients Trainer::compute_gradients(const ProbePlan& plan, double loss_scale) {
  recorder_.begin({.category = "data", .name = "data", .part = {}}, "reading data");
  const std::vector<MicroBatch> micro_batches = read_micro_batches(plan, loss_scale);
  const bool is_split = std::ssize(micro_batches) != schedule_.num_microbatches;
  model_->probe.begin(plan.source, micro_batches.front());
  const at::Tensor losses = model_->executor.run(is_split ? split_schedule_ : schedule_, micro_batches,
                                                 model_->reduction, model_->probe, recorder_);
  recorder_.wait_at("adding up gradients");
  model_->reduction.finish();
  model_->probe.finish();
  return {{losses}, {}};
}

// Reads this rank's slice of the global batch, which is the samples after those consumed so far, whatever the layout.
std::vector<MicroBatch> Trainer::read_micro_batches(const ProbePlan& plan, double loss_scale) const {
  int64_t first = state_.consumed_samples + model_->groups.here().data * samples_per_rank(configuration());
  std::vector<MicroBatch> micro_batches;
  for (const int64_t count : plan.micro_batches) {
    micro_batches.push_back(
        to_micro_batch(dataset_.train_batch(static_cast<uint64_t>(first), count), count, loss_scale));
    first += count;
  }
  return micro_batches;
}

MicroBatch Trainer::to_micro_batch(const Batch& batch, int64_t sequences, double loss_scale) const {
  return {.tokens = to_device(batch.tokens, sequences, device_),
          .targets = to_device(batch.targets, sequences, device_),
          .loss_scale = loss_scale,
          .host_tokens = batch.tokens};
}

// Evaluates the held-out data. Micro-batches are dealt to the data-parallel ranks in rounds.
std::optional<double> Trainer::held_out_loss(const StopQuestion& stop) {
  world_.health().set_place(concat("evaluation after step ", state_.step));
  const ParallelStrategy& strategy = executed_.strategy;
  RankGroups& groups = model_->groups;
  const int64_t batch_size = executed_.micro_batch;
  int64_t samples = dataset_.held_out_samples();
  if (config_.evaluate.max_batches > 0) {  // keeps the samples the same after the micro-batch has changed
    samples = std::min(samples, config_.evaluate.max_batches * config_.train.micro_batch);
  }
  ExactSum loss;
  int64_t loss_tokens = 0;
  for (int64_t round = 0; round < samples; round += batch_size * strategy.data_parallel) {
    stop_reason_ = agree_on_stop(stop(), groups.everyone());
    if (stop_reason_ != StopReason::none) return std::nullopt;
    const int64_t own = round + groups.here().data * batch_size;
    // Where the ranks gather weights together, one that has no samples left repeats the round's first, for the others.
    const bool has_samples = own < samples;
    if (!has_samples && !strategy.cuts_weights()) continue;
    const int64_t first = has_samples ? own : round;
    const int64_t count = std::min(batch_size, samples - first);
    Batch batch = dataset_.held_out_batch(first, count);
    const int64_t sequences = fill_up(batch, count, executed_, config_.train.sequence_length);
    const ExactSum of_batch = model_->executor.evaluate(to_micro_batch(batch, sequences, 1));
    if (!has_samples) continue;
    loss_tokens += batch.loss_tokens;
    loss.add(of_batch);
  }
  // One rank of those that have seen a micro-batch counts it.
  const bool counts = groups.here().tensor == 0 && groups.here().pipeline + 1 == strategy.pipeline_parallel;
  return agree_on_mean_loss(counts ? loss : ExactSum(), counts ? loss_tokens : 0, groups.everyone());
}

CheckpointPlan Trainer::plan_checkpoint(const CheckpointLimits& limits) const {
  return plan_checkpoint_of(*model_, limits);
}

void Trainer::hand_over_state(const CheckpointPlan& plan, const TensorSink& sink) {
  world_.health().set_place(concat("checkpoint after step ", state_.step));
  copus::hand_over_state(*model_, plan, sink);
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
  return copus::seconds_left(config_.train, state_.consumed_tokens, state_.elapsed_seconds);
}

}  // namespace copus
