#include "copus/train/run/run_plan.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <functional>
#include <map>
#include <sstream>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/config/descriptions.h"
#include "copus/config/document_mask.h"
#include "copus/config/settings.h"
#include "copus/config/step_schedule.h"
#include "copus/description/configuration_text.h"
#include "copus/report/logs/run_log.h"
#include "copus/train/run/resume_effects.h"
#include "copus/train/step/training_state.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

// Lists every "section.key" of a configuration with its value as TOML.
std::map<std::string, std::string> settings_of(const RunConfig& config) {
  std::map<std::string, std::string> settings;
  const toml::table document = toml::parse(to_toml(config));
  for (const auto& [section, entries] : document) {
    COPUS_CHECK(entries.is_table(), std::string(section.str()));
    for (const auto& [key, value] : *entries.as_table()) {
      std::ostringstream text;
      value.visit([&](const auto& node) {
        if constexpr (toml::is_floating_point<decltype(node)>) {
          text << write_number(node.get());  // for people: 0.3 instead of 0.29999999999999999
        } else {
          text << toml::toml_formatter(node);
        }
      });
      settings[concat(section.str(), ".", key.str())] = text.str();
    }
  }
  return settings;
}

bool is_overridden(const std::string& key, const std::vector<std::string>& overrides) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [&](const std::string& text) { return text.starts_with(key + "="); });
}

std::string default_name(const std::string& config_path) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> date{};
  std::strftime(date.data(), date.size(), "%Y%m%d-%H%M%S", &local);
  return concat(fs::path(config_path).stem().string(), "-", date.data());
}

// Returns whether a run may begin in the directory. Ignores remains of writers that died.
bool is_empty_or_missing(const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(directory, error)) return true;
  if (!fs::is_directory(directory, error)) {
    throw UserError(concat("run directory ", directory.string(), " is not a directory; give another --run-dir"));
  }
  const fs::directory_iterator entries(directory);
  return std::all_of(fs::begin(entries), fs::end(entries),
                     [](const auto& entry) { return entry.path().extension() == partial_suffix; });
}

// Returns the first of the folders NAME, NAME-2, NAME-3, ... for which can_take() is true.
fs::path first_free(const fs::path& name, const std::function<bool(const fs::path&)>& can_take) {
  fs::path candidate = name;
  for (int64_t number = 2; !can_take(candidate); ++number) candidate = concat(name.string(), "-", number);
  return candidate;
}

RunConfig read_config(const fs::path& path, const std::vector<std::string>& overrides) {
  const char* const expected =
      "a run's configuration, a TOML file such as configs/runs/quickstart.toml (see 'copus train --help')";
  std::error_code unknown;
  if (fs::is_directory(path, unknown)) {
    throw UserError(concat("copus train: ", path.string(), " is a folder",
                           fs::exists(path / "config.json", unknown)
                               ? concat(" of a model, which a run begins with by --init-from ", path.string())
                               : "",
                           "; expected ", expected));
  }
  const std::string text = read_named_file(path, "copus train", expected);
  return parse_run_config(text, path.string(), overrides);
}

// Returns whether the user requests a layout or batch, even if it equals the run's.
bool overrides_configuration(const std::vector<std::string>& overrides) {
  static const std::array keys = {"parallel.", "train.global_batch=", "train.micro_batch=", "train.recompute="};
  return std::any_of(overrides.begin(), overrides.end(), [](const std::string& text) {
    return !text.starts_with("parallel.wait_limit") &&
           std::any_of(keys.begin(), keys.end(), [&](const char* key) { return text.starts_with(key); });
  });
}

// Settings of batches may be 0, which means train.global_batch. If `now` and `then` differ in train.global_batch, such
// a setting is replaced by the old batch. It is replaced in `then` too, so that no change is reported.
void keep_batch(RunConfig& then, RunConfig& now, const std::function<int64_t&(RunConfig&)>& batch) {
  const auto resolved = [&](RunConfig& config) {
    return batch(config) > 0 ? batch(config) : config.train.global_batch;
  };
  const int64_t before = resolved(then);
  if (batch(now) == 0 && now.train.global_batch != before) batch(now) = before;
  batch(then) = resolved(now) == before ? batch(now) : before;
}

// Keeps the reference batches of a run that continues with a different batch. So the learning rate is still scaled from
// the first batch, and the run ends after the same number of tokens.
void keep_batches(RunConfig& then, RunConfig& now) {
  keep_batch(then, now, [](RunConfig& config) -> int64_t& { return config.optimizer.reference_batch; });
  keep_batch(then, now, [](RunConfig& config) -> int64_t& { return config.train.step_batch; });
}

// Returns whether the run resumes with a batch schedule that it did not have before.
bool begins_schedule(const RunConfig& then, const RunConfig& now) {
  if (now.adapt.policy != PolicyKind::steps || now.adapt.advise) return false;
  return then.adapt.policy != PolicyKind::steps || then.adapt.advise || then.adapt.schedule != now.adapt.schedule;
}

// Sets the batch to the schedule's batch at this point. Throws UserError if the schedule changes the batch again after
// the first step, because ranks need an earlier announcement.
void begin_schedule(int64_t consumed_samples, RunPlan& plan) {
  const StepSchedule schedule = parse_step_schedule(plan.config.adapt.schedule, plan.config.train.sequence_length);
  const int64_t batch = plan.start.global_batch = scheduled_batch(schedule, consumed_samples);
  const int64_t next = scheduled_batch(schedule, consumed_samples + batch);
  if (next == batch) return;
  throw UserError(concat("cannot resume: after the checkpoint, at ", consumed_samples, " consumed samples, ",
                         "adapt.schedule has batch ", batch, " for one step and then ", next,
                         "; a batch stays for two steps at least: let the next piece begin at ",
                         consumed_samples + 2 * batch, " samples or later, or leave this piece out"));
}

// Resumes in the checkpoint's configuration, into which a policy or a command may have moved the run. Does nothing if
// the user changes the number of ranks, or settings of the run (`before`: the earlier settings).
void go_on_in_its_configuration(const RunRequest& request, const RunConfig& before, RunPlan& plan) {
  const std::string source = (plan.checkpoint->directory() / "training_state.json").string();
  const TrainingState state = parse_training_state(plan.checkpoint->training_state(), source);
  const Configuration& then = state.configuration;
  if (begins_schedule(before, plan.config)) begin_schedule(state.consumed_samples, plan);
  const bool asks_for_another =
      overrides_configuration(request.overrides) || configuration_of(before) != configuration_of(plan.config);
  if (!begins_schedule(before, plan.config) && then.strategy.world_size() == plan.start.strategy.world_size() &&
      !asks_for_another) {
    plan.start = then;
  } else if (then != plan.start && then != configuration_of(before)) {  // otherwise the changed settings show it
    plan.changes.push_back(describe_change(then, plan.start));
  }
  plan.effects = describe_resume_effects(before, plan.config, state, plan.start);
}

[[noreturn]] void refuse_change(const std::string& key, const std::string& old, const std::string& value) {
  throw UserError(concat("cannot resume: ", key, " was ", old, " when the run began, and now it is ", value,
                         "; this cannot change within a run: set it back, or start a new run (another --run-dir)"));
}

// Throws UserError if the user gives a different optimizer. Called first, because otherwise the message would be that
// settings of the run's optimizer are unknown to the other optimizer.
void refuse_other_optimizer(const RunConfig& then, const std::vector<std::string>& overrides) {
  constexpr std::string_view key = "optimizer.kind";
  for (const std::string& text : overrides) {
    if (!text.starts_with(concat(key, "="))) continue;
    std::string value = text.substr(key.size() + 1);
    std::erase_if(value, [](char c) { return c == '"' || c == '\''; });
    for (const auto& [kind, name] : named_values<OptimizerKind>) {
      if (value != name || kind == then.optimizer.kind) continue;
      refuse_change(std::string(key), quote(to_string(then.optimizer.kind)), quote(value));
    }
  }
}

}  // namespace

ChangeOnResume change_on_resume(const std::string& key) {
  static const std::array free_keys = {"model.init_from",    "data.train",          "data.held_out",
                                       "train.max_steps",    "train.max_tokens",    "train.max_seconds",
                                       "train.threads",      "train.device",        "train.recompute",
                                       "data.shard_timeout", "data.document_length"};
  static const std::array free_sections = {"parallel.", "heal.",       "adapt.", "cluster.",
                                           "evaluate.", "checkpoint.", "log."};
  static const std::array fixed = {"model.",
                                   "data.",
                                   "train.seed",
                                   "train.sequence_length",
                                   "optimizer.kind",
                                   "optimizer.batch_scaling",
                                   "optimizer.reference_batch",
                                   "optimizer.scale_"};
  const auto begins = [&](const char* prefix) { return key.starts_with(prefix); };
  if (std::find(free_keys.begin(), free_keys.end(), key) != free_keys.end()) return ChangeOnResume::free;
  if (std::any_of(free_sections.begin(), free_sections.end(), begins)) return ChangeOnResume::free;
  if (std::any_of(fixed.begin(), fixed.end(), begins)) return ChangeOnResume::never;
  return ChangeOnResume::by_override;
}

std::vector<std::string> check_changes(const RunConfig& then, const RunConfig& now,
                                       const std::vector<std::string>& overrides) {
  RunConfig begun = then, resolved = now;
  keep_document_mask(then, begun);
  if (now.execution.precision == Precision::automatic) resolved.execution.precision = then.execution.precision;
  keep_document_mask(then, resolved);
  if (now.data.document_length == 0) resolved.data.document_length = then.data.document_length;
  const auto before = settings_of(begun);
  const auto after = settings_of(resolved);
  const auto value_in = [](const auto& settings, const std::string& key) {
    const auto found = settings.find(key);
    return found == settings.end() ? std::string("unset") : found->second;
  };

  std::vector<std::string> changes;
  for (const std::string& key : run_config_keys()) {
    const std::string old = value_in(before, key);
    const std::string value = value_in(after, key);
    if (value == old) continue;
    const ChangeOnResume rule = change_on_resume(key);
    if (rule == ChangeOnResume::never) refuse_change(key, old, value);
    if (rule == ChangeOnResume::by_override && !is_overridden(key, overrides)) {
      throw UserError(concat("cannot resume: ", key, " was ", old, " when the run began, and now it is ", value,
                             "; set it back, or say that the change is meant with --set ", key, "=", value));
    }
    changes.push_back(concat(key, ": ", old, " -> ", value));
  }
  return changes;
}

void take_newest_checkpoint(RunPlan& plan, bool has_memory) {
  UsableCheckpoint newest = open_newest_usable(plan.directory / "checkpoints");
  if (!newest.checkpoint && !newest.damage.empty() && !has_memory) {
    throw UserError(concat("cannot resume: ", newest.damage.front(),
                           "; the run has no other checkpoint, and it is not trained again from its beginning over "
                           "this one. Restore the folder from a copy, or start a new run (another --run-dir)"));
  }
  plan.checkpoint = std::move(newest.checkpoint);
  plan.damage = std::move(newest.damage);
  plan.logged_step = latest_logged_step(plan.directory / "run.jsonl");
}

ClaimedDirectory::ClaimedDirectory(const fs::path& wanted) {
  made_parent_ = !fs::exists(wanted.parent_path());
  create_directories_durably(wanted.parent_path());
  directory_ = first_free(wanted, [](const fs::path& candidate) {
    std::error_code error;
    const bool is_made = fs::create_directory(candidate, error);
    if (error) throw UserError(concat("cannot create the folder ", candidate.string(), ": ", error.message()));
    return is_made;
  });
}

ClaimedDirectory::~ClaimedDirectory() {
  std::error_code error;
  if (!fs::is_empty(directory_, error) || error) return;
  fs::remove(directory_, error);
  if (made_parent_ && fs::is_empty(directory_.parent_path(), error) && !error) {
    fs::remove(directory_.parent_path(), error);
  }
}

RunPlan plan_without_run(const RunRequest& request) {
  RunPlan plan;
  plan.program = request.program;
  plan.trace_steps = request.trace_steps;
  plan.write_page = request.write_page;
  plan.new_data = request.new_data;
  return plan;
}

RunPlan plan_run(const RunRequest& request) {
  RunPlan plan = plan_without_run(request);
  if (request.config_path.empty() && !request.resume) throw UserError("train: give the CONFIG.toml of the run");
  if (request.new_data && !request.resume) throw UserError("--new-data is for a run that goes on: give --resume too");
  if (request.resume && request.run_directory.empty()) {
    throw UserError("--resume needs to know which run: give --run-dir DIR");
  }
  const bool names_directory = !request.run_directory.empty();
  plan.directory = names_directory
                       ? fs::path(request.run_directory)
                       : first_free(fs::path("runs") / default_name(request.config_path), is_empty_or_missing);
  // If another job has taken the folder meanwhile, this job takes the next free one (ClaimedDirectory).
  const bool empty = !names_directory || is_empty_or_missing(plan.directory);
  if (!request.resume && !empty) {
    throw UserError(concat("run directory ", plan.directory.string(),
                           " exists and is not empty; go on with that run by --resume, or give another --run-dir"));
  }
  const fs::path own_config = plan.directory / "config.toml";
  if (request.resume && !fs::exists(own_config) && (request.config_path.empty() || !empty)) {
    throw UserError(concat("nothing to resume: there is no run in ", plan.directory.string(),
                           " (no config.toml); check --run-dir, or start a run without --resume"));
  }
  plan.resume = request.resume && !empty;

  if (plan.resume) take_newest_checkpoint(plan, request.has_memory);
  if (!request.config_path.empty()) {
    plan.config = read_config(request.config_path, request.overrides);
  } else if (plan.checkpoint) {
    const std::string source = (plan.checkpoint->directory() / "config.toml").string();
    refuse_other_optimizer(parse_run_config(plan.checkpoint->run_config(), source), request.overrides);
    plan.config = parse_run_config(plan.checkpoint->run_config(), source, request.overrides);
  } else {
    plan.config = read_config(own_config, request.overrides);
  }
  plan.start = configuration_of(plan.config);
  if (plan.checkpoint) {
    const std::string source = (plan.checkpoint->directory() / "config.toml").string();
    RunConfig then = parse_run_config(plan.checkpoint->run_config(), source);
    keep_batches(then, plan.config);
    plan.changes = check_changes(then, plan.config, request.overrides);
    if (plan.config.execution.precision == Precision::automatic)
      plan.config.execution.precision = then.execution.precision;
    if (plan.config.data.document_length == 0 && !request.new_data)
      plan.config.data.document_length = then.data.document_length;
    keep_document_mask(then, plan.config);
    go_on_in_its_configuration(request, then, plan);
  } else if (plan.resume) {
    keep_document_mask(read_config(own_config, {}), plan.config);
  }
  return plan;
}

}  // namespace copus
