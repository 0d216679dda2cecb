#include "copus/config/experiment.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/config/document_mask.h"
#include "copus/config/run_config_fields.h"
#include "copus/config/settings.h"

namespace copus {

namespace {

template <class Item>
bool holds(const std::vector<Item>& items, const Item& item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

template <class... Parts>
[[noreturn]] void reject(const Setting& setting, const Parts&... parts) {
  throw UserError(concat(setting.origin, ": ", parts...));
}

void reject_other_keys(const Setting& table, const std::string& where, const std::vector<std::string>& keys) {
  for (const Setting& setting : table.children) {
    if (holds(keys, setting.name)) continue;
    reject(setting, "unknown key \"", setting.name, "\" ", where, "; ",
           suggest(setting.name, keys, concat("the keys ", where, " are")));
  }
}

const Setting& needed(const Setting& table, const char* key, const std::string& source, const char* meaning) {
  if (const Setting* setting = table.find(key)) return *setting;
  throw UserError(concat(table.origin.empty() ? source : table.origin, ": ", key, " is missing: ", meaning));
}

const std::vector<Setting>& items_of(const Setting& setting, const char* expected) {
  if (setting.kind != Setting::Kind::list) {
    reject(setting, setting.name, " must be a list of ", expected, ", got ", describe(setting));
  }
  return setting.children;
}

std::string text_of(const Setting& setting) {
  if (setting.kind != Setting::Kind::text || std::get<std::string>(setting.value).empty()) {
    reject(setting, setting.name, " must be a string that is not empty, got ", describe(setting));
  }
  return std::get<std::string>(setting.value);
}

// Reads the name of an arm or group, which serves as a folder name and in tables.
std::string name_of(const Setting& setting) {
  std::string name = text_of(setting);
  const auto is_fit = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
           letter == '-' || letter == '_' || letter == '.';
  };
  if (!std::all_of(name.begin(), name.end(), is_fit) || name.front() == '.' || name.size() > 100) {
    reject(setting, "names of arms and groups have letters, digits, \"-\", \"_\" and \".\", which is not the first; ",
           "got ", quote(name));
  }
  return name;
}

std::vector<std::string> settings_of(const Setting& table) {
  std::vector<std::string> settings;
  const Setting* set = table.find("set");
  if (!set) return settings;
  for (const Setting& item : items_of(*set, "strings such as \"train.global_batch=64\"")) {
    if (item.kind != Setting::Kind::text) {
      reject(item, "set must be a list of strings such as \"train.global_batch=64\", got ", describe(item));
    }
    settings.push_back(std::get<std::string>(item.value));
    if (settings.back().starts_with("train.seed=")) {
      reject(item, "train.seed is set by seeds and screening_seeds, which all arms share; leave it out of set");
    }
  }
  return settings;
}

std::vector<int64_t> seeds_of(const Setting& setting) {
  std::vector<int64_t> seeds;
  for (const Setting& item : items_of(setting, "whole numbers")) {
    if (item.kind != Setting::Kind::integer || std::get<int64_t>(item.value) < 0) {
      reject(item, setting.name, " must be a list of whole numbers of at least 0, got ", describe(item));
    }
    const int64_t seed = std::get<int64_t>(item.value);
    if (holds(seeds, seed)) reject(item, setting.name, " has the seed ", seed, " twice");
    seeds.push_back(seed);
  }
  return seeds;
}

std::vector<double> targets_of(const Setting& setting) {
  std::vector<double> targets;
  for (const Setting& item : items_of(setting, "held-out losses")) {
    double target = 0;
    if (item.kind == Setting::Kind::integer) target = static_cast<double>(std::get<int64_t>(item.value));
    if (item.kind == Setting::Kind::number) target = std::get<double>(item.value);
    if (!(target > 0) || !std::isfinite(target)) {
      reject(item, "targets must be a list of held-out losses, numbers greater than 0, got ", describe(item));
    }
    if (holds(targets, target)) reject(item, "targets has ", target, " twice");
    targets.push_back(target);
  }
  return targets;
}

// Reads a key that is true or false; false if it is not given.
bool switch_of(const Setting& root, const char* key) {
  const Setting* const setting = root.find(key);
  if (!setting) return false;
  if (setting->kind != Setting::Kind::boolean) {
    reject(*setting, key, " must be true or false, got ", describe(*setting));
  }
  return std::get<bool>(setting->value);
}

ExperimentArm arm_of(const Setting& table, const std::string& source) {
  if (table.kind != Setting::Kind::table) {
    reject(table, "arm must be a table, [[arm]], got ", describe(table));
  }
  reject_other_keys(table, "in [[arm]]", {"name", "group", "set"});
  ExperimentArm arm;
  arm.name = name_of(needed(table, "name", source, "each [[arm]] has one, by which it is listed"));
  if (const Setting* group = table.find("group")) arm.group = name_of(*group);
  arm.set = settings_of(table);
  return arm;
}

void check_seeds(const Experiment& experiment, const std::string& source) {
  if (experiment.seeds.size() < 2) {
    throw UserError(concat(source, ": seeds has ", experiment.seeds.size(), "; give two at least (better five or ",
                           "more), since error bars come from the differences between seeds"));
  }
  for (const int64_t seed : experiment.screening_seeds) {
    if (!holds(experiment.seeds, seed)) continue;
    throw UserError(concat(source, ": the seed ", seed,
                           " is in both seeds and screening_seeds; an arm that was chosen ",
                           "on a seed looks too good on it: give others"));
  }
}

void check_draws(const Experiment& experiment, const std::string& source) {
  if (!experiment.draw_per_seed) return;
  std::vector<std::string> settings = experiment.set;
  for (const ExperimentArm& arm : experiment.arms) settings.insert(settings.end(), arm.set.begin(), arm.set.end());
  const bool is_set = std::any_of(settings.begin(), settings.end(),
                                  [](const std::string& one) { return one.starts_with("cluster.truth_seed="); });
  if (!is_set) return;
  throw UserError(concat(source, ": set has cluster.truth_seed, and with draw_per_seed = true it is the seed of each ",
                         "run; leave one of them out"));
}

void check_names(const Experiment& experiment, const std::string& source) {
  std::set<std::string> names, groups;
  for (const ExperimentArm& arm : experiment.arms) {
    if (!names.insert(arm.name).second) throw UserError(concat(source, ": two arms are called \"", arm.name, "\""));
    if (!arm.group.empty()) groups.insert(arm.group);
  }
  for (const std::string& group : groups) {
    if (names.contains(group)) {
      throw UserError(concat(source, ": \"", group, "\" is the name of an arm and of a group; give them two names"));
    }
    if (experiment.arms_of(group).size() < 2) {
      throw UserError(concat(source, ": the group \"", group, "\" has one arm, so that there is nothing to choose; ",
                             "leave the group out, or give it more arms"));
    }
  }
  if (groups.empty() != experiment.screening_seeds.empty()) {
    throw UserError(
        groups.empty() ? concat(source, ": screening_seeds are for choosing the fastest arm of a group, and no arm ",
                                "has a group; leave them out, or give arms a group")
                       : concat(source, ": arms have a group, of which the fastest is compared; give screening_seeds, ",
                                "the seeds on which it is chosen (others than seeds)"));
  }
}

void check_reference(const Experiment& experiment, const std::string& source) {
  const std::vector<std::string> contenders = experiment.contenders();
  if (contenders.size() < 2) {
    throw UserError(
        concat(source, ": there is nothing to compare; give two [[arm]] at least that are not of one group"));
  }
  if (holds(contenders, experiment.reference)) return;
  for (const ExperimentArm& arm : experiment.arms) {
    if (arm.name != experiment.reference) continue;
    throw UserError(concat(source, ": reference is \"", arm.name, "\", one arm of the group \"", arm.group,
                           "\"; give the group, whose fastest arm is then the reference"));
  }
  throw UserError(concat(source, ": reference is \"", experiment.reference, "\", which is no arm or group; ",
                         suggest(experiment.reference, contenders, "there are")));
}

// Returns the first of `keys` that is in `wanted`. An item of `wanted` that ends with a dot matches every key that
// begins with it.
std::string first_of(const std::vector<std::string>& keys, const std::vector<std::string>& wanted) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const std::string& key) {
    return std::any_of(wanted.begin(), wanted.end(), [&](const std::string& one) {
      return key == one || (one.ends_with('.') && key.starts_with(one));
    });
  });
  COPUS_CHECK(found != keys.end(), join(wanted, ", "));
  return *found;
}

// Compares the keys of two runs. Returns the first difference that makes their clocks measure different jobs or
// clusters; empty if there is no such difference. On the modelled clock with cluster.truth, [cluster] itself may
// differ, because only controllers use it.
std::string find_other_times(RunConfig one, RunConfig other) {
  for (RunConfig* run : {&one, &other}) run->cluster.description = run->cluster.as_timed();
  const std::vector<std::string> keys = differing_keys(one, other);
  FieldKeys described;
  described.section("cluster");
  described.cluster({});
  const ClusterConfig &our = one.cluster, &their = other.cluster;
  if (our.clock == ClockKind::real) return "";
  if (!our.is_modelled()) return our.description == their.description ? "" : first_of(keys, described.keys());

  if (our.true_cluster() != their.true_cluster()) {
    return our.truth || their.truth ? "cluster.truth" : first_of(keys, described.keys());
  }
  const PredictedJob ours = predicted_job(one), theirs = predicted_job(other);
  if (ours.model != theirs.model) return first_of(keys, {"cluster.stands_for", "model."});
  if (ours.sequence_length != theirs.sequence_length) return "cluster.stands_for_sequence_length";
  if (ours.precision != theirs.precision) return first_of(keys, {"cluster.stands_for_precision", "train.precision"});
  if (one.parallel.world_size() != other.parallel.world_size()) return "number of ranks in [parallel]";
  if (our.truth_layout_error != their.truth_layout_error) return "cluster.truth_layout_error";
  return our.truth_seed == their.truth_seed ? "" : "cluster.truth_seed";
}

}  // namespace

std::vector<std::string> Experiment::contenders() const {
  std::vector<std::string> names;
  for (const ExperimentArm& arm : arms) {
    const std::string& name = arm.group.empty() ? arm.name : arm.group;
    if (!holds(names, name)) names.push_back(name);
  }
  return names;
}

std::vector<ExperimentArm> Experiment::arms_of(std::string_view group) const {
  std::vector<ExperimentArm> members;
  std::copy_if(arms.begin(), arms.end(), std::back_inserter(members),
               [&](const ExperimentArm& arm) { return arm.group == group; });
  return members;
}

Experiment parse_experiment(std::string_view toml_text, const std::string& source) {
  const Setting root = read_settings(toml_text, source, {});
  reject_other_keys(
      root, "of an experiment",
      {"base", "set", "seeds", "screening_seeds", "draw_per_seed", "targets", "final_loss", "reference", "arm"});
  Experiment experiment;
  experiment.base = text_of(needed(root, "base", source, "the run configuration that all arms begin with"));
  experiment.set = settings_of(root);
  experiment.seeds = seeds_of(needed(root, "seeds", source, "the seeds that each arm runs with, such as [1, 2, 3]"));
  if (const Setting* screening = root.find("screening_seeds")) experiment.screening_seeds = seeds_of(*screening);
  if (const Setting* targets = root.find("targets")) experiment.targets = targets_of(*targets);
  experiment.draw_per_seed = switch_of(root, "draw_per_seed");
  experiment.final_loss = switch_of(root, "final_loss");
  experiment.reference =
      text_of(needed(root, "reference", source, "the arm or group that the others are compared with"));
  const Setting& arms = needed(root, "arm", source, "what is compared, each arm as a table [[arm]]");
  for (const Setting& arm : items_of(arms, "tables, [[arm]]")) experiment.arms.push_back(arm_of(arm, source));

  if (experiment.targets.empty() && !experiment.final_loss) {
    throw UserError(concat(source, ": nothing says what to compare; give targets, held-out losses to reach, or ",
                           "final_loss = true"));
  }
  check_seeds(experiment, source);
  check_draws(experiment, source);
  check_names(experiment, source);
  check_reference(experiment, source);
  return experiment;
}

RunConfig run_config_of(const Experiment& experiment, std::string_view base_text, const ExperimentArm& arm,
                        int64_t seed) {
  std::vector<std::string> overrides = experiment.set;
  overrides.insert(overrides.end(), arm.set.begin(), arm.set.end());
  overrides.push_back(concat("train.seed=", seed));
  if (experiment.draw_per_seed) overrides.push_back(concat("cluster.truth_seed=", seed));
  try {
    return parse_run_config(base_text, experiment.base, overrides);
  } catch (const UserError& error) {
    throw UserError(concat("arm \"", arm.name, "\": ", error.what()));
  }
}

void check_arms_are_comparable(const Experiment& experiment, std::string_view base_text, const std::string& source) {
  std::optional<RunConfig> first;
  for (const ExperimentArm& arm : experiment.arms) {
    const RunConfig config = run_config_of(experiment, base_text, arm, experiment.seeds.front());
    const auto complain = [&](const auto&... parts) {
      throw UserError(concat(source, ": arm \"", arm.name, "\" ", parts...));
    };
    if (config.data.held_out.empty() && config.data.held_out_fraction == 0) {
      complain("holds no text out, and held-out losses are compared; set data.held_out or data.held_out_fraction");
    }
    if (!experiment.targets.empty() && config.evaluate.interval == 0 && config.evaluate.interval_tokens == 0) {
      complain("is only evaluated at its end, so that nobody knows when it reaches a target; set ",
               "evaluate.interval_tokens");
    }
    if (experiment.draw_per_seed && (!config.cluster.is_modelled() || config.cluster.truth_layout_error == 0)) {
      complain("has no layout errors that each seed could draw, and draw_per_seed is true; leave it out, or set ",
               "cluster.clock=modelled and cluster.truth_layout_error for all arms");
    }
    if (!first) first = config;
    for (const std::string& key : differing_keys(*first, config)) {
      if (!key.starts_with("data.") && key != "train.sequence_length" && key != "cluster.clock") continue;
      complain("has another ", key, " than arm \"", experiment.arms.front().name, "\"; their ",
               key == "cluster.clock" ? "times" : "held-out losses", " cannot be compared");
    }
    if (!config.data.mask_across_documents &&
        masks_documents_by_default(config) != masks_documents_by_default(*first)) {
      complain("has another train.device than arm \"", experiment.arms.front().name, "\", and documents stay apart by ",
               "default on a CPU only, so that their held-out losses cannot be compared; set ",
               "data.mask_across_documents for all arms");
    }
    if (const std::string other = find_other_times(*first, config); !other.empty()) {
      complain(
          "has another ", other, " than arm \"", experiment.arms.front().name, "\", so that their clocks show the ",
          "times of different jobs or clusters; set it alike for all arms (on the modelled clock arms may believe ",
          "other clusters, where cluster.truth gives all of them the same one)");
    }
    const auto evaluated = [](const RunConfig& run) { return run.evaluate.max_batches * run.train.micro_batch; };
    if (evaluated(config) != evaluated(*first)) {
      complain("is evaluated on another part of the held-out text than arm \"", experiment.arms.front().name,
               "\": evaluate.max_batches x train.micro_batch is ", evaluated(config), " and ", evaluated(*first),
               " (0: all of it); make them equal");
    }
  }
}

}  // namespace copus
