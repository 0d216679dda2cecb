#include "copus/config/setting_names.h"

#include <algorithm>
#include <array>
#include <optional>

#include "copus/base/text/text_distance.h"
#include "copus/config/run_config.h"

namespace copus {

namespace {

struct NameElsewhere {
  std::string_view name, key;
};

// Names in transformers, Megatron-LM and torchtitan of our keys.
constexpr auto names_elsewhere = std::to_array<NameElsewhere>({{"learning_rate", "lr"},
                                                               {"batch_size", "global_batch"},
                                                               {"global_batch_size", "global_batch"},
                                                               {"micro_batch_size", "micro_batch"},
                                                               {"per_device_train_batch_size", "micro_batch"},
                                                               {"steps", "max_steps"},
                                                               {"train_iters", "max_steps"},
                                                               {"context_length", "sequence_length"},
                                                               {"max_seq_len", "sequence_length"},
                                                               {"seq_len", "sequence_length"},
                                                               {"seq_length", "sequence_length"}});

// Returns the name spelled as a key.
std::string key_of(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string key(name);
  std::replace(key.begin(), key.end(), '-', '_');
  const auto known = std::find_if(names_elsewhere.begin(), names_elsewhere.end(),
                                  [&](const NameElsewhere& elsewhere) { return elsewhere.name == key; });
  return known != names_elsewhere.end() ? std::string(known->key) : key;
}

std::string key_within_section(const std::string& setting) { return setting.substr(setting.find('.') + 1); }

std::vector<std::string> settings_of_key(std::string_view key) {
  std::vector<std::string> settings;
  for (std::string& setting : run_config_keys()) {
    if (key_within_section(setting) == key) settings.push_back(std::move(setting));
  }
  return settings;
}

}  // namespace

std::vector<std::string> settings_called(std::string_view name) { return settings_of_key(key_of(name)); }

std::vector<std::string> settings_like(std::string_view name) {
  constexpr size_t fewest_letters = 3;  // shorter names resemble too many keys
  std::vector<std::string> settings = settings_called(name);
  if (!settings.empty() || key_of(name).size() < fewest_letters) return settings;
  std::vector<std::string> keys;
  for (const std::string& setting : run_config_keys()) keys.push_back(key_within_section(setting));
  const std::optional<std::string> similar = nearest(key_of(name), keys);
  return similar ? settings_of_key(*similar) : settings;
}

}  // namespace copus
