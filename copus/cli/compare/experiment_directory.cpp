#include "copus/cli/compare/experiment_directory.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/text_distance.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/directory_lock.h"
#include "copus/config/document_mask.h"
#include "copus/report/files/run_summary.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

// How long to wait for the end of a process whose parent has died.
constexpr std::chrono::seconds patience(10);
constexpr std::chrono::milliseconds between_looks(20);

constexpr const char* record_name = "experiment.toml";
constexpr const char* wall_seconds_key = "wall_seconds";

template <class Item>
bool contains(const std::vector<Item>& items, const Item& item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

// Returns whether an interrupted run may be resumed. Runs on the modelled clock may, because an interruption does not
// change their times. Runs on this machine's clock may, because their times vary anyway.
bool may_go_on(const RunConfig& config) {
  return config.cluster.clock == ClockKind::real || config.cluster.clock == ClockKind::wall ||
         config.cluster.is_modelled();
}

// Lists the entries of a directory; empty if it does not exist.
std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  if (!fs::is_directory(directory)) return entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

// Reads the seed from the name of a run's directory; empty for any other name.
std::optional<int64_t> seed_of(const fs::path& directory) {
  constexpr std::string_view prefix = "seed-";
  const std::string name = directory.filename().string();
  if (!name.starts_with(prefix) || name.find_first_not_of("0123456789", prefix.size()) != std::string::npos ||
      name.size() == prefix.size() || name.size() > prefix.size() + 18) {
    return std::nullopt;
  }
  return std::stoll(name.substr(prefix.size()));
}

std::vector<std::string> names_of(const std::vector<ExperimentArm>& arms) {
  std::vector<std::string> names;
  for (const ExperimentArm& arm : arms) names.push_back(arm.name);
  return names;
}

const char* to_word(const RunConfig& config) { return config.data.masks_across_documents() ? "true" : "false"; }

std::string name_of(const ExperimentRun& run) { return concat("arm \"", run.arm, "\", seed ", run.seed); }

}  // namespace

ExperimentDirectory::ExperimentDirectory(fs::path directory, std::string source, std::string text,
                                         std::string base_text)
    : directory_(std::move(directory)),
      source_(std::move(source)),
      text_(std::move(text)),
      base_text_(std::move(base_text)),
      experiment_(parse_experiment(text_, source_)) {}

fs::path ExperimentDirectory::run_directory(const ExperimentRun& run) const {
  return directory_ / "runs" / run.arm / concat("seed-", run.seed);
}

fs::path ExperimentDirectory::log(const ExperimentRun& run) const { return run_directory(run).string() + ".log"; }

ExperimentRunState ExperimentDirectory::state(const ExperimentRun& run) const {
  if (!fs::exists(run_directory(run) / "config.toml")) return ExperimentRunState::to_do;
  const std::optional<RunSummary> summary = read_summary(run_directory(run));
  return summary && summary->ended == "done" ? ExperimentRunState::done : ExperimentRunState::interrupted;
}

const ExperimentArm* ExperimentDirectory::find_arm(const std::string& name) const {
  const auto found = std::find_if(experiment_.arms.begin(), experiment_.arms.end(),
                                  [&](const ExperimentArm& arm) { return arm.name == name; });
  return found != experiment_.arms.end() ? &*found : nullptr;
}

RunConfig ExperimentDirectory::config_of(const ExperimentRun& run) const {
  const ExperimentArm* const arm = find_arm(run.arm);
  COPUS_CHECK(arm != nullptr, run.arm);
  return run_config_of(experiment_, base_text_, *arm, run.seed);
}

RunConfig ExperimentDirectory::begun_config(const ExperimentRun& run) const {
  const fs::path path = run_directory(run) / "config.toml";
  return parse_run_config(read_text_file(path), path.string());
}

std::vector<std::string> ExperimentDirectory::changes_of(const ExperimentRun& run, RunConfig wanted) const {
  RunConfig begun = begun_config(run);
  keep_document_mask(begun, begun);
  if (wanted.execution.precision == Precision::automatic) wanted.execution.precision = begun.execution.precision;
  keep_document_mask(begun, wanted);
  if (wanted.data.document_length == 0) wanted.data.document_length = begun.data.document_length;
  return differing_keys(begun, wanted);
}

bool ExperimentDirectory::has(const ExperimentRun& run) const {
  return find_arm(run.arm) != nullptr &&
         (contains(experiment_.seeds, run.seed) || contains(experiment_.screening_seeds, run.seed));
}

std::vector<ExperimentRun> ExperimentDirectory::runs_in(ExperimentRunState wanted) const {
  std::vector<ExperimentRun> runs;
  for (const fs::path& arm : entries_of(directory_ / "runs")) {
    for (const fs::path& directory : entries_of(arm)) {
      const std::optional<int64_t> seed = seed_of(directory);
      if (!seed) continue;
      const ExperimentRun run{arm.filename().string(), *seed};
      if (state(run) == wanted) runs.push_back(run);
    }
  }
  return runs;
}

void ExperimentDirectory::keep_mask_of_earlier_runs(RunConfig& config) const {
  if (config.data.mask_across_documents) return;
  std::vector<ExperimentRun> earlier = runs_in(ExperimentRunState::done);
  if (earlier.empty()) earlier = runs_in(ExperimentRunState::interrupted);
  std::erase_if(earlier, [&](const ExperimentRun& run) { return !has(run); });
  for (const ExperimentRun& run : earlier) {
    const RunConfig begun = begun_config(run);
    keep_document_mask(begun, config);
    if (begun.data.masks_across_documents() == config.data.masks_across_documents()) continue;
    throw UserError(concat(source_, ": data.mask_across_documents is ", to_word(config), " in ",
                           name_of(earlier.front()), ", and ", to_word(begun), " in ", name_of(run), ", both in ",
                           directory_.string(), "; their held-out losses cannot be compared: set it in the experiment ",
                           "and delete the folders of the runs with the other value, or give another --dir"));
  }
}

void ExperimentDirectory::check_what_was_written_down(const Experiment& then) const {
  const auto complain = [&](const std::string& what) {
    throw UserError(concat(source_, ": ", what, " since runs in ", directory_.string(),
                           " have finished; what is compared is written down before it is known: set it back, or give ",
                           "another --dir"));
  };
  if (then.targets != experiment_.targets) complain("targets has changed");
  if (then.final_loss != experiment_.final_loss) complain("final_loss has changed");
  if (then.reference != experiment_.reference) complain("reference has changed");
  if (then.screening_seeds != experiment_.screening_seeds) complain("screening_seeds has changed");
  for (const ExperimentArm& arm : then.arms) {
    const ExperimentArm* const now = find_arm(arm.name);
    if (now != nullptr && now->group != arm.group) complain(concat("the group of arm \"", arm.name, "\" has changed"));
  }
}

void ExperimentDirectory::check_groups(const Experiment& then, const std::vector<ExperimentRun>& done) const {
  for (const ExperimentArm& arm : experiment_.arms) {
    if (arm.group.empty() || contains(names_of(then.arms), arm.name)) continue;
    const std::vector<std::string> members = names_of(then.arms_of(arm.group));
    const auto run = std::find_if(done.begin(), done.end(), [&](const ExperimentRun& candidate) {
      return contains(members, candidate.arm) && !contains(then.screening_seeds, candidate.seed);
    });
    if (run == done.end()) continue;
    throw UserError(concat(source_, ": arm \"", arm.name, "\" is new in the group \"", arm.group, "\", of which ",
                           name_of(*run), " has finished in ", directory_.string(),
                           "; if another arm were chosen now, the results would no longer tell of that run: take the ",
                           "new arm out of the group, so that it is compared by itself, or give another --dir"));
  }
}

void ExperimentDirectory::check_place() const {
  if (!fs::exists(directory_) || fs::exists(directory_ / record_name)) return;
  const std::vector<fs::path> entries = entries_of(directory_);
  const bool is_new =
      fs::is_directory(directory_) && std::all_of(entries.begin(), entries.end(), [](const auto& entry) {
        return entry.filename() == ".lock" || entry.extension() == partial_suffix;
      });
  if (!is_new) {
    throw UserError(concat(directory_.string(), " holds something else than an experiment; give another --dir"));
  }
}

void ExperimentDirectory::check_runs() const {
  RunConfig to_do = config_of({experiment_.arms.front().name, experiment_.seeds.front()});
  keep_mask_of_earlier_runs(to_do);
  const std::vector<ExperimentRun> done = runs_in(ExperimentRunState::done);
  if (done.empty()) return;
  const fs::path record = directory_ / record_name;
  const Experiment then = parse_experiment(read_text_file(record), record.string());
  check_what_was_written_down(then);
  check_groups(then, done);
  for (const ExperimentRun& run : done) {
    if (!has(run)) {
      throw UserError(concat(source_, ": it no longer has ", name_of(run), ", a run that has finished in ",
                             directory_.string(), "; a comparison tells of all its runs: put it back, or give another ",
                             "--dir"));
    }
    const std::vector<std::string> changes = changes_of(run, config_of(run));
    if (changes.empty()) continue;
    throw UserError(concat(source_, ": the settings of ", name_of(run), " have changed since that run has finished in ",
                           directory_.string(), ": ", join(changes, ", "),
                           "; set them back, add the new settings as another arm, or give another --dir"));
  }
}

void ExperimentDirectory::record() const { write_file_durably(directory_ / record_name, text_); }

std::vector<std::string> ExperimentDirectory::prepare(const ExperimentRun& run) const {
  const fs::path directory = run_directory(run);
  const auto until = std::chrono::steady_clock::now() + patience;
  while (is_locked(directory / "checkpoints") && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(between_looks);
  }
  if (is_locked(directory / "checkpoints")) {
    throw UserError(concat("another process is writing into ", directory.string(), "; wait for it to end, or end it"));
  }
  RunConfig config = config_of(run);
  keep_mask_of_earlier_runs(config);
  if (state(run) == ExperimentRunState::interrupted && may_go_on(config) && changes_of(run, config).empty()) {
    // If all checkpoints of a run are damaged, the run is not restarted, because a restart would overwrite them.
    // Instead `copus train` refuses to start and names the checkpoints.
    const UsableCheckpoint newest = open_newest_usable(directory / "checkpoints");
    if (newest.checkpoint || !newest.damage.empty()) return {"train", "--resume", "--run-dir", directory.string()};
  }
  fs::remove_all(directory);
  create_directories_durably(directory.parent_path());
  const fs::path config_path = directory.string() + ".toml";
  write_file_durably(config_path, to_toml(config));
  return {"train", config_path.string(), "--run-dir", directory.string()};
}

void ExperimentDirectory::conclude(const ExperimentRun& run, std::optional<double> wall_seconds) const {
  if (wall_seconds) {
    const nlohmann::json object{{wall_seconds_key, *wall_seconds}};
    write_file_durably(run_directory(run).string() + ".json", json_text(object) + '\n');
  }
  fs::remove_all(run_directory(run) / "checkpoints");
}

std::optional<double> ExperimentDirectory::wall_seconds(const ExperimentRun& run) const {
  const fs::path path = run_directory(run).string() + ".json";
  if (!fs::exists(path)) return std::nullopt;
  const nlohmann::json object = parse_json(read_text_file(path));
  if (!object.is_object()) return std::nullopt;
  const auto seconds = object.find(wall_seconds_key);
  if (seconds == object.end() || !seconds->is_number()) return std::nullopt;
  return seconds->get<double>();
}

}  // namespace copus
