#include "copus/config/descriptions.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/text_distance.h"
#include "copus/config/run_config_fields.h"
#include "copus/config/shipped_files.h"

namespace copus {

namespace {

const ShippedFile* find_shipped(const std::vector<ShippedFile>& files, std::string_view name) {
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const ShippedFile& file) { return file.name == name; });
  return found != files.end() ? &*found : nullptr;
}

std::vector<std::string> names_of(const std::vector<ShippedFile>& files) {
  std::vector<std::string> names;
  for (const ShippedFile& file : files) names.emplace_back(file.name);
  return names;
}

// Returns whether a file exists; false for paths longer than the system allows. A path that may not be accessed counts
// as existing, because reading it then reports the error.
bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error == std::errc::permission_denied;
}

// Throws UserError for a text that is neither a shipped name nor a file. `what` is "cluster" or "model".
[[noreturn]] void refuse(const std::string& asked_by, const char* what, const std::string& text, const char* extension,
                         const std::vector<ShippedFile>& shipped) {
  const std::vector<std::string> names = names_of(shipped);
  auto similar = nearest(text, names);
  // Finds a shipped name that continues the text after a dash: "h100-sxm" for "h100".
  const auto longer =
      std::find_if(names.rbegin(), names.rend(), [&](const std::string& name) { return name.starts_with(text + "-"); });
  if (!similar && longer != names.rend()) similar = *longer;
  throw UserError(concat(asked_by, " ", text, ": there is no such file, and no such ", what,
                         " ships with the program; ",
                         similar ? concat("did you mean ", *similar, "? Expected") : "expected", " the path of a ",
                         extension, " file, or one of ", join(names, ", ")));
}

}  // namespace

std::vector<std::string> names_of_shipped_clusters() { return names_of(shipped_clusters()); }
std::vector<std::string> names_of_shipped_models() { return names_of(shipped_models()); }

std::string read_named_file(const std::filesystem::path& path, const std::string& asked_by,
                            const std::string& expected) {
  try {
    return read_text_file(path);
  } catch (const UserError& error) {
    throw UserError(concat(asked_by, ": ", error.what(), "; expected ", expected));
  }
}

std::vector<MeasuredCriticalBatch> read_calibration_file(const std::filesystem::path& path,
                                                         const std::string& asked_by) {
  const char* const expected = "a number, or the calibration.json that `copus calibrate` has written";
  const std::string text = read_named_file(path, asked_by, expected);
  const nlohmann::json object = parse_json(text);
  const auto refuse = [&] {
    throw UserError(concat(asked_by, ": ", path.string(), " holds no \"critical_batches\"; expected ", expected));
  };
  if (!object.is_object()) refuse();
  try {
    check_version(object, calibration_file_version);
  } catch (const UserError& error) {
    throw UserError(concat(asked_by, ": ", path.string(), ": ", error.what(), "; run `copus calibrate` again"));
  }
  const auto found = object.find("critical_batches");
  if (found == object.end() || !found->is_array() || found->empty()) refuse();
  std::vector<MeasuredCriticalBatch> measured;
  for (const nlohmann::json& point : *found) {
    const auto amount = [&](const char* name, const Range<double>& range) {
      const auto value = point.is_object() ? point.find(name) : point.end();
      if (value == point.end() || !value->is_number() || !range.contains(value->get<double>())) refuse();
      return value->get<double>();
    };
    measured.push_back({amount("tokens", amount_of_tokens), amount("noise_scale_tokens", amount_of_tokens),
                        amount("critical_batch_tokens", amount_of_tokens),
                        amount("deviation", deviation_of_measurement)});
  }
  return measured;
}

ClusterDescription read_cluster_file(const std::string& path, const std::string& asked_by) {
  if (const ShippedFile* file = find_shipped(shipped_clusters(), path)) {
    return parse_cluster(file->text, concat(path, ".toml"));
  }
  if (!exists(path)) refuse(asked_by, "cluster", path, ".toml", shipped_clusters());
  return parse_cluster(read_named_file(path, asked_by, "a description of a cluster, in TOML"), path);
}

ClusterDescription find_cluster(const std::string& name_or_path) {
  return read_cluster_file(name_or_path, "--cluster");
}

ModelText read_model_text(const std::string& path, const std::string& asked_by) {
  if (const ShippedFile* file = find_shipped(shipped_models(), path)) {
    return {std::string(file->text), concat(path, ".json")};
  }
  if (!exists(path)) refuse(asked_by, "model", path, ".json", shipped_models());
  std::filesystem::path file = path;
  std::error_code unknown;
  if (std::filesystem::is_directory(file, unknown)) file /= "config.json";
  return {read_named_file(file, asked_by, "a Hugging Face config.json, or the folder that holds it"), file.string()};
}

ModelDescription read_model_file(const std::string& path, const std::string& asked_by) {
  const ModelText config = read_model_text(path, asked_by);
  return parse_model_description(config.text, config.source);
}

ModelDescription find_model(const std::string& name_or_path) { return read_model_file(name_or_path, "--model"); }

}  // namespace copus
