// Makes a run configuration from settings, and refuses unknown sections and keys.
#include <algorithm>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/config/cluster_section.h"
#include "copus/config/model_section.h"
#include "copus/config/run_config_fields.h"
#include "copus/config/setting_names.h"
#include "copus/config/settings_reader.h"

namespace copus {

namespace {

struct Section {
  std::string name;
  std::vector<std::string> keys;

  bool has(const std::string& key) const { return std::find(keys.begin(), keys.end(), key) != keys.end(); }
};

std::vector<Section> sections_of(const std::vector<std::string>& paths) {
  std::vector<Section> sections;
  for (const std::string& path : paths) {
    const size_t dot = path.find('.');
    const std::string name = path.substr(0, dot);
    if (sections.empty() || sections.back().name != name) sections.push_back({name, {}});
    sections.back().keys.push_back(path.substr(dot + 1));
  }
  return sections;
}

// Returns a suggestion for an unknown key: the same key in another section, our key for another program's name, a
// similar key in the same section, or a similar key elsewhere. Without any of these, lists the keys of the section.
// `here` is null for a key outside of sections.
std::string hint(const std::vector<Section>& sections, const Section* here, const std::string& key) {
  std::vector<std::string> places;
  for (const std::string& setting : settings_called(key)) {
    const size_t dot = setting.find('.');
    places.push_back(concat("\"", setting.substr(dot + 1), "\" in [", setting.substr(0, dot), "]"));
  }
  std::vector<std::string> names;
  std::vector<std::string> other_keys;
  for (const Section& section : sections) {
    names.push_back(concat("[", section.name, "]"));
    other_keys.insert(other_keys.end(), section.keys.begin(), section.keys.end());
  }
  if (!places.empty()) return concat("did you mean ", join(places, " or "), "?");
  if (here) {
    if (const auto similar = nearest(key, here->keys)) return concat("did you mean \"", *similar, "\"?");
  }
  if (const auto similar = nearest(key, other_keys)) return hint(sections, here, *similar);
  return here ? concat("the keys of [", here->name, "] are ", join(here->keys, ", "))
              : concat("the sections are ", join(names, ", "));
}

void refuse_unknown_keys(const Setting& root, const std::vector<std::string>& known_keys) {
  const std::vector<Section> known = sections_of(known_keys);
  std::vector<std::string> names;
  for (const Section& section : known) names.push_back(section.name);

  for (const Setting& section : root.children) {
    const auto match = std::find_if(known.begin(), known.end(),
                                    [&](const Section& candidate) { return candidate.name == section.name; });
    if (section.kind != Setting::Kind::table) {
      if (match == known.end()) {
        throw UserError(concat(section.origin, ": unknown key \"", section.name, "\" outside of any section; ",
                               hint(known, nullptr, section.name)));
      }
      throw UserError(concat(section.origin, ": ", section.name, " must be a section, [", section.name, "], got ",
                             describe(section)));
    }
    if (match == known.end()) {
      const auto similar = nearest(section.name, names);
      throw UserError(concat(
          section.origin, ": unknown section [", section.name, "]; ",
          similar ? concat("did you mean [", *similar, "]?") : concat("the sections are [", join(names, "], ["), "]")));
    }
    for (const Setting& setting : section.children) {
      if (match->has(setting.name)) continue;
      throw UserError(concat(setting.origin, ": unknown key \"", setting.name, "\" in [", section.name, "]; ",
                             hint(known, &*match, setting.name)));
    }
  }
}

// Refuses settings of [optimizer] that belong to other optimizers.
template <class Job>
void refuse_other_optimizers_keys(const Setting& root, Job& job) {
  const Setting* section = root.find("optimizer");
  if (section == nullptr) return;
  FieldKeys keys(FieldKeys::Optimizers::own);
  visit_optimizer(job, keys);
  const std::vector<Section> known = sections_of(keys.keys());
  for (const Setting& setting : section->children) {
    if (known.front().has(setting.name)) continue;
    throw UserError(concat(setting.origin, ": optimizer.", setting.name, " is not a setting of optimizer.kind \"",
                           to_string(job.optimizer.kind),
                           "\"; leave it out. With this kind the keys of [optimizer] are ",
                           join(known.front().keys, ", ")));
  }
}

// Refuses the first override without a section, if a suggestion exists; read_settings refuses the others.
void refuse_key_without_section(const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const std::string key = text.substr(0, text.find('='));
    if (key.find('.') != std::string::npos) continue;
    const std::vector<std::string> meant = settings_like(key);
    if (meant.empty()) return;
    const std::string value = key.size() < text.size() ? text.substr(key.size()) : "=VALUE";
    throw UserError(concat("--set ", text, ": expected section.key=value; did you mean --set ",
                           join(meant, concat(value, " or --set ")), value, "?"));
  }
}

}  // namespace

RunConfig parse_run_config(std::string_view toml_text, const std::string& source,
                           const std::vector<std::string>& overrides) {
  refuse_key_without_section(overrides);
  const Setting root = read_settings(toml_text, source, overrides);
  refuse_unknown_keys(root, run_config_keys());
  RunConfig config;
  SettingsReader reader(root);
  visit_sections(config, reader);
  refuse_other_optimizers_keys(root, config);
  read_model_section(root, source, config);
  read_cluster_section(root, source, config);
  check_run_config(config, source);
  return config;
}

AdvisedConfig parse_advised_config(std::string_view toml_text, const std::string& source,
                                   const std::vector<std::string>& overrides) {
  refuse_key_without_section(overrides);
  const Setting root = read_settings(toml_text, source, overrides);
  AdvisedConfig config;
  FieldKeys known;
  visit_job(config, known);
  refuse_unknown_keys(root, known.keys());
  SettingsReader reader(root);
  visit_job(config, reader);
  refuse_other_optimizers_keys(root, config);
  check_advised_config(config, source);
  return config;
}

AnyConfig parse_any_config(std::string_view toml_text, const std::string& source,
                           const std::vector<std::string>& overrides) {
  if (read_settings(toml_text, source, {}).find("model")) return parse_run_config(toml_text, source, overrides);
  return parse_advised_config(toml_text, source, overrides);
}

}  // namespace copus
