#include "copus/train/trainer/trainer.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/checkpoint/stored_layout.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/memory/device_memory.h"
#include "copus/orchestrator/learning_rate/rate_rule.h"
#include "copus/train/state/state_record.h"
#include "copus/train/state/state_transfer.h"

namespace copus {

namespace {

at::Tensor to_device(const std::vector<int64_t>& values, int64_t sequences, at::Device device) {
  const int64_t length = std::ssize(values) / sequences;
  return kernels::from_host(values.data(), {sequences, length}, device);
}

kernels::Documents documents_of(const Batch& batch, int64_t sequences, at::Device device) {
  if (batch.document_starts.empty()) return {};
  const int64_t length = std::ssize(batch.document_starts) / sequences;
  return kernels::documents_from_host(batch.document_starts.data(), sequences, length, device);
}

Schedule schedule_of(const ParallelStrategy& strategy, const ProbePlan& plan) {
  return make_schedule(strategy.schedule, strategy.pipeline_parallel, strategy.virtual_stages,
                       std::ssize(plan.micro_batches));
}

// Returns the number of held-out sequences. It includes sequences without loss that pad the last samples, if these are
// too few for sequence-parallel ranks to share their tokens evenly.
int64_t fill_up(Batch& batch, int64_t sequences, const Configuration& configuration, int64_t sequence_length) {
  const ParallelStrategy& strategy = configuration.strategy;
  if (!strategy.sequence_parallel || sequences * sequence_length % strategy.tensor_parallel == 0) return sequences;
  batch.tokens.resize(configuration.micro_batch * sequence_length, 0);
  batch.targets.resize(batch.tokens.size(), ignored_target);
  if (!batch.document_starts.empty()) batch.document_starts.resize(batch.tokens.size(), 0);
  return configuration.micro_batch;
}

// A micro-batch of an evaluation.
struct EvaluationBatch {
  size_t part;
  int64_t first, count;  // samples of the part's source
};

std::vector<EvaluationBatch> batches_of(const std::vector<HeldOutPart>& parts, int64_t micro_batch) {
  std::vector<EvaluationBatch> batches;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (int64_t first = 0; first < parts[part].samples; first += micro_batch) {
      batches.push_back({part, first, std::min(micro_batch, parts[part].samples - first)});
    }
  }
  return batches;
}

// Weights the sources' losses. A source without tokens that carry loss does not count.
std::optional<HeldOutLoss> mean_of(const std::vector<HeldOutPart>& parts,
                                   const std::vector<std::optional<double>>& losses, const Dataset& dataset) {
  HeldOutLoss result;
  double sum = 0, weights = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!losses[i]) continue;
    sum += parts[i].weight * *losses[i];
    weights += parts[i].weight;
    result.sources.push_back({dataset.held_out_sources()[static_cast<size_t>(parts[i].source)].name, *losses[i]});
  }
  if (weights == 0) return std::nullopt;
  result.mean = sum / weights;
  const size_t sources = dataset.held_out_sources().size();
  if (sources < 2 || sources > most_logged_sources) result.sources.clear();
  return result;
}

// Connects the ranks for the layout, and makes this rank's part of the model, all zero.
std::unique_ptr<RankModel> make_model(const RunConfig& config, const Configuration& configuration, World& world,
                                      StepRecorder& recorder, StateMemory& memory) {
  const ParallelStrategy& strategy = configuration.strategy;
  world.require(groups_of(config, configuration));
  const Placement placement = place(config.model, strategy, config.train.sequence_length, world.rank());
  return std::make_unique<RankModel>(config, strategy, world, recorder,
                                     allocate_zeros(config.model, placement, compute_dtype(config.execution.precision),
                                                    optimizer_slots(config.optimizer.kind).size(), memory));
}

// Throws UserError if the checkpoint contains optimizer state that this version does not know, or lacks required state.
void check_known(const Checkpoint& checkpoint, const RunConfig& config, const OptimizerScalars& scalars,
                 const UpdateRule& rule) {
  const auto refuse = [&](std::string_view name) {
    throw UserError(concat("cannot resume from ", checkpoint.directory().string(), ": its optimizer has \"", name,
                           "\", which this Copus does not know; use the Copus that wrote it"));
  };
  std::set<std::string, std::less<>> known;
  for (const CheckpointTensor& tensor : list_checkpoint_tensors(config.model, optimizer_slots(config.optimizer.kind))) {
    if (!tensor.is_weight) known.insert(tensor.name);
  }
  for (const auto& [name, tensor] : checkpoint.optimizer()) {
    if (!known.contains(name)) refuse(name);
  }
  const std::vector<std::string_view> names = rule.scalar_names();
  for (const OptimizerScalars::Scalar& scalar : scalars.all()) {
    if (std::ranges::find(names, scalar.name()) == names.end()) refuse(scalar.name());
  }
  const OptimizerScalars needed = rule.begin(1);
  for (const OptimizerScalars::Scalar& scalar : needed.all()) {
    if (scalars.find(scalar.name())) continue;
    throw UserError(concat("cannot resume from ", checkpoint.directory().string(), ": its optimizer lacks \"",
                           scalar.name(), "\"; the checkpoint is damaged or of another version, use another"));
  }
}

// The optimizer that wrote a checkpoint, by its slots; empty if it is none of ours.
std::optional<OptimizerKind> optimizer_of(const Checkpoint& checkpoint) {
  for (const auto& [kind, name] : named_values<OptimizerKind>) {
    const std::string first_slot = concat(optimizer_slots(kind).front().name, ".");
    const auto found = checkpoint.optimizer().lower_bound(first_slot);
    if (found != checkpoint.optimizer().end() && found->first.starts_with(first_slot)) return kind;
  }
  return std::nullopt;
}

[[noreturn]] void refuse_new_data(const Checkpoint& checkpoint, const std::string& now, const std::string& then) {
  throw UserError(concat("cannot resume from ", checkpoint.directory().string(),
                         ": it was written with other data or weights in data.train (fingerprint ", then, ", and now ",
                         now,
                         "); give the run what it began with, or say that the change is meant with --new-data: "
                         "then it reads the new data from their beginning and keeps the optimizer's moments"));
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
                 World& world, const std::vector<int64_t>& processes, const std::vector<int64_t>& machines)
    : config_(config),
      dataset_(dataset),
      device_(device),
      world_(world),
      recorder_(world),
      clock_(world),
      completion_(config),
      modelled_(config.cluster.is_modelled() ? std::optional<ModelledJob>(config) : std::nullopt),
      executed_(executed_configuration(config, configuration)),
      mover_(world, device, (config.adapt.policy != PolicyKind::none && world.size() > 1) || !processes.empty(),
             processes.empty() ? ranks_as_processes(world) : processes, machines),
      model_(make_model(config, executed_, world, recorder_, mover_.memory())),
      measures_noise_(config.noise_scale.enabled) {
  if (!processes.empty() && mover_.has_arena()) {
    survives_.emplace();
    survives_->arena = mover_.arena();
    survives_->journal = mover_.memory().allocate(journal_bytes(config.optimizer, config.model), at::kByte).zero_();
    survives_->at_rest.mine = model_->state();
  }
  settle(model_->state(), processes.empty() ? ranks_as_processes(world) : processes);
  if (survives_) survives_->at_rest.all = mover_.state_in_arenas();
  model_->parameters.initialize(config.execution.seed);
  model_->gather_weights();
  state_.seed = config.execution.seed;
  state_.sequence_length = config.train.sequence_length;
  state_.byte_tokens = dataset.bytes();
  state_.data_fingerprint = dataset.fingerprint();
  state_.held_out_fingerprint = dataset.held_out_fingerprint(samples_of_evaluation(config, dataset));
  state_.configuration = configuration;
  state_.rate_factor = initial_rate_factor(config, configuration.global_batch);
  state_.optimizer = completion_.rule().begin(static_cast<double>(configuration.global_batch));
  plan_steps();
}

Trainer::Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world, SurvivingState state)
    : config_(config),
      dataset_(dataset),
      device_(device),
      world_(world),
      recorder_(world),
      clock_(world),
      completion_(config),
      state_(state.at_rest.training),
      mover_(world, state.arena, state.at_rest.all, state.at_rest.all.processes),
      measures_noise_(config.noise_scale.enabled),
      survives_(std::move(state)) {
  plan_steps();
  world.require(groups_of(config, executed_));
  model_ = std::make_unique<RankModel>(config, executed_.strategy, world, recorder_, survives_->at_rest.mine);
  model_->optimizer->set_steps(state_.optimizer_steps);
}

int64_t samples_of_evaluation(const RunConfig& config, const Dataset& dataset) {
  const int64_t all = dataset.held_out_samples();
  if (config.evaluate.max_batches == 0) return all;
  // Using the configuration file's micro-batch keeps the samples the same when the current micro-batch changes.
  return std::min(all, config.evaluate.max_batches * config.train.micro_batch);
}

void Trainer::publish_weights() {
  if (model_->parameters.compute_dtype() != model_->parameters.master_dtype()) model_->publish_weights();
}

ParameterStore& Trainer::whole_parameters() const {
  model_->weights.finish();
  return model_->parameters;
}

void Trainer::keep_record(int64_t epoch) {
  if (!survives_) return;
  survives_->loaded_in = epoch;
  write_record();
}

void Trainer::write_record() const {
  if (survives_) copus::write_record(*survives_, state_);
}

std::optional<SurvivingState> Trainer::leave() {
  if (pending_ && pending_->preparation.valid()) pending_->preparation.wait();
  model_.reset();
  if (survives_) survives_->at_rest.training = state_;
  return std::exchange(survives_, std::nullopt);
}

void Trainer::settle(const std::vector<BucketState>& state, const std::vector<int64_t>& processes) {
  mover_.settle(state, processes, survives_ ? offset_of_journal(*survives_) : -1);
}

void Trainer::plan_steps() {
  executed_ = executed_configuration(config_, configuration());
  const ParallelStrategy& strategy = executed_.strategy;
  schedule_ = schedule_of(strategy, plan_probe(config_, executed_, 1, false));
  split_schedule_ = schedule_of(strategy, plan_probe(config_, executed_, config_.noise_scale.split_interval, true));
}

void Trainer::load(const std::map<std::string, TensorView, std::less<>>& weights) {
  load_weights(whole_parameters(), weights);
  model_->gather_weights();
}

void Trainer::restore(const Checkpoint& checkpoint, bool takes_new_data) {
  const std::string source = (checkpoint.directory() / "training_state.json").string();
  TrainingState state = parse_training_state(checkpoint.training_state(), source);
  check_same(checkpoint, "train.seed", state_.seed, state.seed);
  check_same(checkpoint, "train.sequence_length", state_.sequence_length, state.sequence_length);
  if (state_.data_fingerprint != state.data_fingerprint) {
    if (!takes_new_data) refuse_new_data(checkpoint, state_.data_fingerprint, state.data_fingerprint);
    state.data_fingerprint = state_.data_fingerprint;
    state.data_begin = state.consumed_samples;
  }
  state.held_out_fingerprint = state_.held_out_fingerprint;
  const OptimizerKind kind = config_.optimizer.kind;
  check_same(checkpoint, "optimizer.kind", to_string(kind), to_string(optimizer_of(checkpoint).value_or(kind)));
  check_known(checkpoint, config_, state.optimizer, completion_.rule());
  const ParameterStore& parameters = whole_parameters();
  Optimizer& optimizer = *model_->optimizer;
  StoredParameters weights(config_.model,
                           [&](const std::string& name) -> const TensorView& { return checkpoint.weight(name); });
  load_state(parameters, master_weights(parameters), std::ref(weights));
  const std::vector<OptimizerSlot> slots = optimizer_slots(config_.optimizer.kind);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    load_state(parameters, optimizer.slot_tensors(slot), [&](const std::string& name) -> const TensorView& {
      return checkpoint.optimizer(optimizer_tensor_name(slots[slot], name));
    });
  }
  model_->publish_weights();
  optimizer.set_steps(state.optimizer_steps);
  if (survives_) journal_in(survives_->journal).rest(state.optimizer_steps);
  // The factor belongs to the batch with which the checkpoint was written.
  const int64_t batch = state.configuration.global_batch;
  if (batch != configuration().global_batch) state.rate_factor = state_.rate_factor;
  state.configuration = configuration();
  state_ = std::move(state);
}

void Trainer::branch_from(const Checkpoint& checkpoint, int64_t skipped_samples) {
  restore(checkpoint);
  state_.consumed_samples += skipped_samples;
  state_.rate_factor = 1;
}

void Trainer::branch_from(const Trainer& trunk, int64_t skipped_samples) {
  COPUS_CHECK(configuration().strategy == trunk.configuration().strategy, to_string(configuration()), " from ",
              to_string(trunk.configuration()));
  whole_parameters();
  trunk.whole_parameters();
  const std::vector<BucketState> to = model_->state(), from = trunk.model_->state();
  COPUS_CHECK(to.size() == from.size(), to.size(), ", ", from.size());
  const auto copy = [](const at::Tensor& target, const at::Tensor& source) {
    if (target.defined()) target.copy_(source);
  };
  for (size_t bucket = 0; bucket < to.size(); ++bucket) {
    copy(to[bucket].weight, from[bucket].weight);
    copy(to[bucket].master, from[bucket].master);
    for (size_t slot = 0; slot < to[bucket].slots.size(); ++slot)
      copy(to[bucket].slots[slot], from[bucket].slots[slot]);
  }
  model_->optimizer->set_steps(trunk.state_.optimizer_steps);
  const Configuration own = configuration();
  state_ = trunk.state_;
  state_.configuration = own;
  state_.consumed_samples += skipped_samples;
  state_.rate_factor = 1;
}

void Trainer::spend(double seconds) {
  state_.elapsed_seconds += seconds;
  clock_.add_pause(seconds);
  write_record();
}

StepRecord Trainer::step(const StopQuestion& stop) {
  StepRecord record;
  if (!fits_into_memory([&] { record = compute_step(stop); })) throw UserError(needs_too_much_memory());
  return record;
}

int64_t Trainer::shards_of_next_step() const {
  return dataset_.num_shards_of(state_.data_position(), configuration().global_batch);
}

int64_t Trainer::missing_shard_bytes() const {
  return dataset_.missing_shard_bytes(state_.data_position(), configuration().global_batch);
}

std::optional<std::string> Trainer::missing_shard() const {
  return dataset_.missing_shard(state_.data_position(), configuration().global_batch);
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
  const int64_t step = state_.step + 1;
  const bool measures = measures_noise_ || measures_dual_norms(config_, step);
  const ProbePlan plan = plan_probe(config_, configuration(), step, measures);
  const StepAgreement agreed = accumulate_gradients(plan, stop);
  const std::optional<WeightUpdate> update = completion_.update_of(agreed, state_);
  if (update) {
    update_weights(*update);
  } else {
    model_->optimizer->discard_directions();
  }
  StepRecord record = completion_.complete(agreed, update, measures_noise_, state_);
  record.switch_seconds = clock_.take_pause();
  if (survives_) survives_->record = record;
  write_record();
  clock_.end(agreed.now);
  if (agreed.intent) prepare_switch(*agreed.intent);
  return record;
}

void Trainer::update_weights(const WeightUpdate& update) {
  recorder_.begin({.category = "optimizer", .name = "update", .part = StepPart::optimizer}, "update of the weights");
  if (survives_) {
    survives_->update = update;
    UpdateJournal journal = journal_in(survives_->journal);
    model_->optimizer->step(update, &journal);
  } else {
    model_->optimizer->step(update);
  }
  recorder_.wait_at("gathering the weights");
  model_->weights.start();  // the next forward pass waits for them
}

// Leaves the gradient of the mean loss over the global batch in the store's main gradients. Returns the ranks'
// agreement on the step, which includes the mean loss.
StepAgreement Trainer::accumulate_gradients(const ProbePlan& plan, const StopQuestion& stop) {
  const int64_t loss_tokens = dataset_.loss_tokens(state_.data_position(), configuration().global_batch);
  const double loss_scale = loss_tokens > 0 ? 1 / static_cast<double>(loss_tokens) : 0;
  model_->begin_gradients(plan, state_.step + 1);
  StepReport report;
  const StepGradients gradients =
      modelled_ ? compute_modelled_gradients(plan, loss_scale) : compute_gradients(plan, loss_scale);
  recorder_.begin({.category = "optimizer", .name = "norm", .part = StepPart::optimizer}, "the gradient's norm");
  // Only here does the host wait for a GPU. Every rank must do so before the ranks agree. The norm is the last of the
  // device's work, so all earlier work is done as well.
  report.squared_norm = model_->optimizer->squared_gradient_norm();
  std::optional<DualNormsOfStep> dual;
  if (loss_tokens > 0) {
    // Ranks differ in how many matrices they own, so this time is not compared between them.
    recorder_.begin({.category = "optimizer", .name = "whole matrices", .part = std::nullopt}, "whole matrices");
    dual = model_->prepare_update(report.squared_norm, plan, state_.step + 1, configuration().global_batch);
  }
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
  StepAgreement agreed = agree_on_numbers(report, model_->groups.everyone());
  agreed.dual = dual;
  agreed.loss_tokens = loss_tokens;
  agreed.loss /= static_cast<double>(loss_tokens);  // without tokens there is no mean: NaN
  if (survives_) survives_->decided = {state_.step + 1, agreed};
  agree_on_time(agreed, model_->groups.everyone());
  if (survives_) survives_->decided.agreed = agreed;
  write_record();  // before any weight changes
  if (modelled_) agreed.seconds = agreed.seconds_of_rank_0 = modelled_->step_seconds(configuration());
  stop_reason_ = agreed.stop;
  // Right after the agreement no rank has to wait for a late one.
  const PartSeconds seconds = recorder_.take_seconds();
  if (gathers_seconds_) clock_.leave_out([&] { seconds_.add(state_.step + 1, seconds, world_); });
  return agreed;
}

// Adds this rank's gradients and those of the other ranks to the main gradients.
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

// Reads this rank's slice of the global batch. The global batch is the samples after those consumed so far, in any
// layout.
std::vector<MicroBatch> Trainer::read_micro_batches(const ProbePlan& plan, double loss_scale) const {
  auto first =
      static_cast<int64_t>(state_.data_position()) + model_->groups.here().data * samples_per_rank(configuration());
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
          .host_tokens = batch.tokens,
          .documents = documents_of(batch, sequences, device_)};
}

// Evaluates the held-out data. A micro-batch has samples of one source only. Micro-batches are dealt to the
// data-parallel ranks in rounds.
std::optional<HeldOutLoss> Trainer::evaluate(const StopQuestion& stop) {
  recorder_.be_at(concat("evaluation after step ", state_.step));
  const ParallelStrategy& strategy = executed_.strategy;
  RankGroups& groups = model_->groups;
  const std::vector<HeldOutPart> parts = dataset_.held_out_parts(samples_of_evaluation(config_, dataset_));
  const std::vector<EvaluationBatch> batches = batches_of(parts, executed_.micro_batch);
  std::vector<LossSum> sums(parts.size());
  for (int64_t round = 0; round < std::ssize(batches); round += strategy.data_parallel) {
    stop_reason_ = agree_on_stop(stop(), groups.everyone());
    if (stop_reason_ != StopReason::none) return std::nullopt;
    const int64_t own = round + groups.here().data;
    // If the ranks gather weights together, a rank without samples repeats the round's first micro-batch, to take part
    // in the gathers.
    const bool has_samples = own < std::ssize(batches);
    if (!has_samples && !strategy.cuts_weights()) continue;
    const auto& [part, first, count] = batches[static_cast<size_t>(has_samples ? own : round)];
    Batch batch = dataset_.held_out_batch(parts[part].source, first, count);
    const int64_t sequences = fill_up(batch, count, executed_, config_.train.sequence_length);
    const ExactSum of_batch = model_->executor.evaluate(to_micro_batch(batch, sequences, 1));
    if (!has_samples) continue;
    sums[part].tokens += batch.loss_tokens;
    sums[part].loss.add(of_batch);
  }
  // Among the ranks that have processed a micro-batch, one counts it.
  const bool counts = groups.here().tensor == 0 && groups.here().pipeline + 1 == strategy.pipeline_parallel;
  if (!counts) sums.assign(parts.size(), {});
  return mean_of(parts, agree_on_mean_losses(sums, groups.everyone()), dataset_);
}

std::optional<double> Trainer::held_out_loss(const StopQuestion& stop) {
  const std::optional<HeldOutLoss> loss = evaluate(stop);
  return loss ? std::optional(loss->mean) : std::nullopt;
}

CheckpointPlan Trainer::plan_checkpoint(const CheckpointLimits& limits) const {
  return plan_checkpoint_of(*model_, limits);
}

void Trainer::hand_over_state(const CheckpointPlan& plan, const TensorSink& sink) {
  model_->weights.finish();
  recorder_.be_at(concat("checkpoint after step ", state_.step));
  copus::hand_over_state(*model_, plan, sink);
}

bool Trainer::finished() const {
  const int64_t limit = limit_in_tokens(config_.train);
  if (limit > 0 && state_.consumed_tokens >= limit) return true;
  return config_.train.max_seconds > 0 && state_.elapsed_seconds >= config_.train.max_seconds;
}

double Trainer::share_done() const {
  return copus::share_done(config_.train, state_.consumed_tokens, state_.elapsed_seconds);
}

double Trainer::seconds_left() const {
  return copus::seconds_left(config_.train, state_.consumed_tokens, state_.elapsed_seconds);
}

}  // namespace copus
