#include "copus/train/step/training_state.h"

#include <set>
#include <string>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/description/configuration_text.h"

namespace copus {

namespace {

// Calls visit(name, field) for each field, so that writer and reader have the same fields.
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
  visit("paused_seconds", state.paused_seconds);
  visit("seed", state.seed);
  visit("sequence_length", state.sequence_length);
  visit("byte_tokens", state.byte_tokens);
  visit("data_fingerprint", state.data_fingerprint);
  visit("data_begin", state.data_begin);
  visit("held_out_fingerprint", state.held_out_fingerprint);
  visit("observed_samples", state.observed_samples);
  visit("rate_factor", state.rate_factor);
}

constexpr const char* noise_average = "noise_average";

// Calls visit(name, average) for the averages in dual norms.
template <class State, class Visit>
void for_each_dual_average(State& state, Visit visit) {
  visit("sign_noise", state.sign_noise);
  visit("spectral_noise", state.spectral_noise);
  visit("preconditioned_noise", state.preconditioned_noise);
}

// Each reads a value of its type, and returns whether it found one. Integers are counts >= 0.
bool read_value(const nlohmann::json& json, int64_t& value) {
  const std::optional<int64_t> integer = integer_of(json);
  if (!integer || *integer < 0) return false;
  value = *integer;
  return true;
}
bool read_value(const nlohmann::json& json, uint64_t& value) {
  if (json.is_number_unsigned()) value = json.get<uint64_t>();
  return json.is_number_unsigned();
}
bool read_value(const nlohmann::json& json, double& value) {
  if (json.is_number()) value = json.get<double>();
  return json.is_number();
}
bool read_value(const nlohmann::json& json, bool& value) {
  if (json.is_boolean()) value = json.get<bool>();
  return json.is_boolean();
}
bool read_value(const nlohmann::json& json, std::string& value) {
  if (json.is_string()) value = json.get<std::string>();
  return json.is_string();
}

constexpr const char* configuration_name = "configuration";
constexpr const char* optimizer_name = "optimizer";

}  // namespace

std::string to_json(const TrainingState& state) {
  nlohmann::ordered_json json;
  for_each_field(state, [&](const char* name, const auto& field) { json[name] = field; });
  visit_noise_average(state.noise_average,
                      [&](const char* name, const auto& field, NoiseSum) { json[noise_average][name] = field; });
  for_each_dual_average(state, [&](const char* name, const DualNoiseAverage& average) {
    visit_dual_noise_average(average, [&](const char* member, double value) { json[name][member] = value; });
  });
  nlohmann::ordered_json& scalars = json[optimizer_name] = nlohmann::ordered_json::object();
  for (const OptimizerScalars::Scalar& scalar : state.optimizer.all())
    scalars[std::string(scalar.name())] = scalar.value();
  json[configuration_name] = to_string(state.configuration);
  return json.dump(2);
}

TrainingState parse_training_state(std::string_view json_text, const std::string& source) {
  const nlohmann::json json = parse_json(json_text);
  if (!json.is_object()) {
    throw UserError(
        concat(source, ": the training state is not a JSON object; the checkpoint is damaged, use another"));
  }
  const auto refuse = [&](const char* name) {
    throw UserError(concat(source, ": the training state's field '", name,
                           "' is missing or of the wrong type; the checkpoint is damaged or of another version"));
  };
  const auto read = [&](const nlohmann::json& object, const char* name, auto& field) {
    const auto found = object.is_object() ? object.find(name) : object.end();
    if (found == object.end() || !read_value(*found, field)) refuse(name);
  };
  std::set<std::string> unknown;
  for (const auto& [name, value] : json.items()) unknown.insert(name);
  TrainingState state;
  for_each_field(state, [&](const char* name, auto& field) {
    read(json, name, field);
    unknown.erase(name);
  });
  const auto average = json.find(noise_average);
  if (average == json.end()) refuse(noise_average);
  visit_noise_average(state.noise_average,
                      [&](const char* name, auto& field, NoiseSum) { read(*average, name, field); });
  for_each_dual_average(state, [&](const char* name, DualNoiseAverage& dual) {
    const auto object = json.find(name);
    if (object == json.end()) refuse(name);
    visit_dual_noise_average(dual, [&](const char* member, double& value) { read(*object, member, value); });
    unknown.erase(name);
  });
  const auto optimizer = json.find(optimizer_name);
  if (optimizer == json.end() || !optimizer->is_object()) refuse(optimizer_name);
  for (const auto& [name, value] : optimizer->items()) {
    if (!value.is_number() || !state.optimizer.can_hold(name)) refuse(name.c_str());
    state.optimizer.set(name, value.get<double>());
  }
  std::string configuration;
  read(json, configuration_name, configuration);
  try {
    state.configuration = parse_configuration(configuration);
  } catch (const UserError& error) {
    throw UserError(concat(source, ": the training state's configuration: ", error.what(),
                           "; the checkpoint is damaged or of another version"));
  }
  for (const char* name : {noise_average, optimizer_name, configuration_name}) unknown.erase(name);
  if (unknown.empty()) return state;
  throw UserError(concat(source, ": the training state has a field '", *unknown.begin(),
                         "', which this Copus does not know; use the Copus that wrote the checkpoint"));
}

}  // namespace copus
