// Opens a model on disk: a checkpoint, a run directory (its newest checkpoint is used), or a Hugging Face directory.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/hugging_face.h"

namespace copus {

class StoredModel {
 public:
  // Opens the model. Throws UserError if `path` is no run, checkpoint or Hugging Face folder, if a run has no
  // checkpoint yet, or if files are damaged.
  explicit StoredModel(const std::filesystem::path& path);

  const std::filesystem::path& directory() const { return directory_; }
  const ModelDescription& description() const { return description_; }

  // Weights by name, exactly the model's parameters. The views stay valid as long as this object lives.
  const std::map<std::string, TensorView, std::less<>>& weights() const { return weights_; }

  // The training_state.json of a checkpoint; empty for other models.
  const std::optional<std::string>& training_state() const { return training_state_; }
  // The config.toml of a checkpoint; empty for other models.
  const std::optional<std::string>& run_config() const { return run_config_; }

  // The Hugging Face folder of the model. For a checkpoint: the folder from whose weights the checkpoint's run started.
  // Empty if there is none.
  std::filesystem::path origin_directory() const;
  // The folder with the files of the model's tokenizer. This is the model's own folder or, for a checkpoint, the result
  // of find_tokenizer. Empty if it is unknown.
  std::optional<std::filesystem::path> tokenizer_directory() const;
  // The folder of the tokenizer that turns text into tokens. This is the model's own folder or, for a checkpoint, the
  // result of find_text_tokenizer.
  std::optional<std::filesystem::path> text_tokenizer_directory() const;

 private:
  // Where to look for tokenizers, from the run that wrote the checkpoint.
  struct Sources {
    std::string init_from, data;
  };
  Sources sources_of_run() const;

  std::filesystem::path directory_;
  std::variant<std::monostate, Checkpoint, HuggingFaceModel> storage_;
  ModelDescription description_;
  std::map<std::string, TensorView, std::less<>> weights_;
  std::optional<std::string> training_state_, run_config_;
};

}  // namespace copus
