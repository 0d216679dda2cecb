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
// What names of files of tensors end with.
inline constexpr const char* tensors_suffix = ".safetensors";
// What the names of files of weights and of moments begin with.
inline constexpr const char* model_stem = "model";
inline constexpr const char* optimizer_stem = "optimizer";

// Name of the checkpoint of a step: "step-00000100"; more digits where needed.
std::string checkpoint_name(int64_t step);

// Parses such a name into its step; nothing for other names, those with suffixes included.
std::optional<int64_t> parse_checkpoint_name(const std::string& name);

// Tells whether a name that a file gives is that of a file beside it: no path, which could lead anywhere.
bool is_plain_file_name(const std::string& name);

}  // namespace copus
