// Names of a checkpoint's folder and files, for writer and reader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace copus {

inline constexpr const char* model_config_file_name = "config.json";
inline constexpr const char* run_config_file_name = "config.toml";
inline constexpr const char* training_state_file_name = "training_state.json";
// Suffix of the names of files of tensors.
inline constexpr const char* tensors_suffix = ".safetensors";
// Prefixes of the names of files of weights and of optimizer slots.
inline constexpr const char* model_stem = "model";
inline constexpr const char* optimizer_stem = "optimizer";

// Name of the checkpoint of a step: "step-00000100", with more digits if needed.
std::string checkpoint_name(int64_t step);

// Parses such a name into its step; empty for other names, including those with suffixes.
std::optional<int64_t> parse_checkpoint_name(const std::string& name);

// Whether a name in a file is a plain file name in the same folder, and not a path, which could lead anywhere.
bool is_plain_file_name(const std::string& name);

}  // namespace copus
