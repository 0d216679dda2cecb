#include "copus/train/trainer/restore.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/checkpoint/stored_layout.h"
#include "copus/train/state/state_transfer.h"

namespace copus {

namespace {

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

void restore_training(const Checkpoint& checkpoint, bool takes_new_data, const UpdateRule& rule,
                      RankTraining& training) {
  const RunConfig& config = training.config;
  const TrainingState& now = training.state;
  const std::string source = (checkpoint.directory() / "training_state.json").string();
  TrainingState state = parse_training_state(checkpoint.training_state(), source);
  check_same(checkpoint, "train.seed", now.seed, state.seed);
  check_same(checkpoint, "train.sequence_length", now.sequence_length, state.sequence_length);
  if (now.data_fingerprint != state.data_fingerprint) {
    if (!takes_new_data) refuse_new_data(checkpoint, now.data_fingerprint, state.data_fingerprint);
    state.data_fingerprint = now.data_fingerprint;
    state.data_begin = state.consumed_samples;
  }
  state.held_out_fingerprint = now.held_out_fingerprint;
  const OptimizerKind kind = config.optimizer.kind;
  check_same(checkpoint, "optimizer.kind", to_string(kind), to_string(optimizer_of(checkpoint).value_or(kind)));
  check_known(checkpoint, config, state.optimizer, rule);
  const ParameterStore& parameters = training.whole_parameters();
  Optimizer& optimizer = *training.model->optimizer;
  StoredParameters weights(config.model,
                           [&](const std::string& name) -> const TensorView& { return checkpoint.weight(name); });
  load_state(parameters, master_weights(parameters), std::ref(weights));
  const std::vector<OptimizerSlot> slots = optimizer_slots(config.optimizer.kind);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    load_state(parameters, optimizer.slot_tensors(slot), [&](const std::string& name) -> const TensorView& {
      return checkpoint.optimizer(optimizer_tensor_name(slots[slot], name));
    });
  }
  training.model->publish_weights();
  optimizer.set_steps(state.optimizer_steps);
  // The factor belongs to the batch with which the checkpoint was written.
  if (state.configuration.global_batch != now.configuration.global_batch) state.rate_factor = now.rate_factor;
  state.configuration = now.configuration;
  training.state = std::move(state);
}

}  // namespace copus
