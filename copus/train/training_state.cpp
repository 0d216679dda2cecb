#include "copus/train/training_state.h"

#include <nlohmann/json.hpp>

#include "copus/base/error.h"

namespace copus {

namespace {

// Calls visit(name, field) for every field, so that writing and reading cannot disagree.
template <class State, class Visit>
void for_each_field(State& state, Visit visit) {
  visit("step", state.step);
  visit("optimizer_steps", state.optimizer_steps);
  visit("consumed_samples", state.consumed_samples);
  visit("consumed_tokens", state.consumed_tokens);
  visit("skipped_steps", state.skipped_steps);
  visit("skipped_samples", state.skipped_samples);
  visit("skipped_in_a_row", state.skipped_in_a_row);
  visit("elapsed_seconds", state.elapsed_seconds);
  visit("seed", state.seed);
  visit("sequence_length", state.sequence_length);
  visit("byte_tokens", state.byte_tokens);
  visit("data_fingerprint", state.data_fingerprint);
}

}  // namespace

std::string to_json(const TrainingState& state) {
  nlohmann::ordered_json json;
  for_each_field(state, [&](const char* name, const auto& field) { json[name] = field; });
  return json.dump(2);
}

TrainingState parse_training_state(std::string_view json_text, const std::string& source) {
  const nlohmann::json json = nlohmann::json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw UserError(
        concat(source, ": the training state is not a JSON object; the checkpoint is damaged, use another"));
  }
  TrainingState state;
  for_each_field(state, [&]<class Field>(const char* name, Field& field) {
    try {
      json.at(name).get_to(field);
    } catch (const nlohmann::json::exception&) {
      throw UserError(concat(source, ": the training state's field '", name,
                             "' is missing or of the wrong type; the checkpoint is damaged or of another version"));
    }
  });
  return state;
}

}  // namespace copus
