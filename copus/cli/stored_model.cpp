#include "copus/cli/stored_model.h"

#include <optional>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/checkpoint/manifest.h"
#include "copus/cli/run_directory.h"
#include "copus/config/settings.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

using Storage = std::variant<std::monostate, Checkpoint, HuggingFaceModel>;

Storage open_model(const fs::path& path) {
  if (!fs::is_directory(path)) {
    throw UserError(concat(path.string(),
                           " is not a directory; expected a run directory, a checkpoint, or a Hugging "
                           "Face directory"));
  }
  if (fs::exists(path / manifest_file_name)) return Checkpoint(path);
  if (fs::exists(path / model_config_file_name)) return open_hugging_face(path);
  for (const fs::path& root : {path / "checkpoints", path}) {
    std::optional<Checkpoint> newest = open_latest_checkpoint(root);
    if (newest) return std::move(*newest);
  }
  throw UserError(concat(
      "there is no model in ", path.string(), hint_at_runs_in(path, "config.toml"),
      ": expected a run directory with a checkpoint (one is written at the end of a run, every "
      "checkpoint.interval_seconds, and on Ctrl-C), a checkpoint, or a Hugging Face directory (with a config.json)"));
}

// Returns the path in a setting that is a text or a list of data sources (then the first source's path). Empty if there
// is none.
std::string first_path(const Setting* setting) {
  while (setting && setting->kind != Setting::Kind::text) {
    const bool is_list = setting->kind == Setting::Kind::list && !setting->children.empty();
    setting = is_list ? &setting->children.front() : setting->find("path");
  }
  return setting ? std::get<std::string>(setting->value) : "";
}

}  // namespace

StoredModel::StoredModel(const fs::path& path) : directory_(path), storage_(open_model(path)) {
  if (const auto* const model = std::get_if<HuggingFaceModel>(&storage_)) {
    description_ = model->description();
    weights_ = model->weights();
    return;
  }
  const Checkpoint& checkpoint = std::get<Checkpoint>(storage_);
  directory_ = checkpoint.directory();
  description_ = parse_model_description(checkpoint.model_config(), (directory_ / model_config_file_name).string());
  std::vector<TensorView> weights;
  for (const auto& [name, weight] : checkpoint.weights()) weights.push_back(weight);
  weights_ = read_parameters(description_, weights, directory_.string());
  training_state_ = checkpoint.training_state();
  run_config_ = checkpoint.run_config();
}

// Reads only the two settings it needs. So a model can be exported even if folders that other settings name are gone.
StoredModel::Sources StoredModel::sources_of_run() const {
  const Setting root = read_settings(*run_config_, (directory_ / run_config_file_name).string(), {});
  const auto path_in = [&](const char* section, const char* key) {
    const Setting* found = root.find(section);
    return first_path(found ? found->find(key) : nullptr);
  };
  return {path_in("model", "init_from"), path_in("data", "train")};
}

fs::path StoredModel::origin_directory() const {
  return run_config_ ? fs::path(sources_of_run().init_from) : directory_;
}

std::optional<fs::path> StoredModel::tokenizer_directory() const {
  if (!run_config_) return directory_;
  const auto [init_from, data] = sources_of_run();
  return find_tokenizer(init_from, data);
}

std::optional<fs::path> StoredModel::text_tokenizer_directory() const {
  if (!run_config_) return directory_;
  const auto [init_from, data] = sources_of_run();
  return find_text_tokenizer(init_from, data);
}

}  // namespace copus
