// A model on disk in any of the places that a user may name: a checkpoint, a run directory (its newest checkpoint), or
// a Hugging Face directory.
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
  // Opens the model. Throws UserError where `path` is none of these, where a run has no checkpoint yet, and where files
  // are damaged.
  explicit StoredModel(const std::filesystem::path& path);

  const std::filesystem::path& directory() const { return directory_; }
  const ModelDescription& description() const { return description_; }

  // Weights by name, exactly the model's parameters. The views stay valid as long as this object lives.
  const std::map<std::string, TensorView, std::less<>>& weights() const { return weights_; }

  // The training_state.json of a checkpoint; empty for other models.
  const std::optional<std::string>& training_state() const { return training_state_; }
  // The config.toml of a checkpoint; empty for other models.
  const std::optional<std::string>& run_config() const { return run_config_; }

  // The Hugging Face folder that the model is or, of a checkpoint, that its run started from; empty where there is
  // none.
  std::filesystem::path origin_directory() const;
  // The folder for the files of the model's tokenizer, as far as the model knows: its own or, of a checkpoint, that of
  // find_tokenizer; empty where it knows of none.
  std::optional<std::filesystem::path> tokenizer_directory() const;
  // Likewise the folder of the tokenizer by which text becomes tokens: that of find_text_tokenizer.
  std::optional<std::filesystem::path> text_tokenizer_directory() const;

 private:
  // Where tokenizers are looked for, of the run that has written the checkpoint.
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
