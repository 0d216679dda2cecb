#include "copus/adviser/adviser_settings.h"

#include <string_view>

#include "copus/base/error.h"

namespace copus {

namespace {

void check_concerns_adviser(const std::string& setting) {
  const std::string key = setting.substr(0, setting.find('='));
  const std::string section = key.substr(0, key.find('.'));
  if (key == "noise_scale.dual_interval") {
    throw UserError(concat(key,
                           " has no effect on a job that another program trains: leave it out and measure noise in ",
                           "dual norms with copus.DualNoise (docs/adviser.md)"));
  }
  const bool is_advised = section == "noise_scale" || section == "adapt" || section == "optimizer";
  const bool is_of_training = key == "adapt.advise" || key == "optimizer.kind";
  if ((is_advised && !is_of_training) || key == "train.clip_norm") return;
  throw UserError(concat(key,
                         " is no setting of the adviser: those are of [noise_scale], [adapt] and [optimizer], and ",
                         "train.clip_norm (docs/configuration.md)"));
}

// Removes "--set ..." from the beginning of a message, because these settings do not come from a command line.
std::string without_option(const std::string& message) {
  constexpr std::string_view option = "--set ";
  return message.starts_with(option) ? message.substr(option.size()) : message;
}

AdvisedConfig described(const AdviserSettings& settings) {
  AdvisedConfig config;
  config.train.sequence_length = settings.sequence_length;
  config.train.global_batch = settings.batch;
  config.train.micro_batch = settings.micro_batch;
  config.train.max_steps = settings.max_steps;
  config.train.max_tokens = settings.max_tokens;
  config.train.clip_norm = 0;  // another program's clipping is unknown unless it reports it
  config.optimizer.reference_batch = settings.reference_batch.value_or(settings.batch);
  config.parallel.data_parallel = settings.replicas;
  config.parallel.tensor_parallel = settings.tensor_parallel;
  config.parallel.pipeline_parallel = settings.pipeline_parallel;
  config.adapt.policy = PolicyKind::copus;
  config.adapt.advise = true;
  config.adapt.global_batches = settings.batches;
  return config;
}

}  // namespace

AdvisedConfig config_of(const AdviserSettings& settings) {
  for (const std::string& setting : settings.more) check_concerns_adviser(setting);
  try {
    return parse_advised_config(to_toml(described(settings)), "copus.Adviser", settings.more);
  } catch (const UserError& error) {
    throw UserError(without_option(error.what()));
  }
}

}  // namespace copus
