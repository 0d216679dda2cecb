#include "copus/config/descriptions.h"

#include <algorithm>
#include <filesystem>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/text_distance.h"
#include "copus/config/shipped_files.h"

namespace copus {

namespace {

std::vector<std::string> names_of(const std::vector<ShippedFile>& files) {
  std::vector<std::string> names;
  for (const ShippedFile& file : files) names.emplace_back(file.name);
  return names;
}

const ShippedFile* find_shipped(const std::vector<ShippedFile>& files, std::string_view name) {
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const ShippedFile& file) { return file.name == name; });
  return found != files.end() ? &*found : nullptr;
}

// `what`: "cluster". What is neither a name nor a file may have been meant as either.
[[noreturn]] void refuse(const char* what, const std::string& text, const char* extension,
                         const std::vector<ShippedFile>& shipped) {
  const std::vector<std::string> names = names_of(shipped);
  const auto similar = nearest(text, names);
  throw UserError(concat("--", what, " ", text, ": there is no such file, and no such ", what,
                         " ships with the program; ",
                         similar ? concat("did you mean ", *similar, "? Expected") : "expected", " the path of a ",
                         extension, " file, or one of ", join(names, ", ")));
}

}  // namespace

std::vector<std::string> shipped_cluster_names() { return names_of(shipped_clusters()); }
std::vector<std::string> shipped_model_names() { return names_of(shipped_models()); }

ClusterDescription find_cluster(const std::string& name_or_path) {
  if (find_shipped(shipped_clusters(), name_or_path) == nullptr && !std::filesystem::exists(name_or_path)) {
    refuse("cluster", name_or_path, ".toml", shipped_clusters());
  }
  return read_cluster_file(name_or_path, "--cluster");
}

ModelDescription find_model(const std::string& name_or_path) {
  if (const ShippedFile* file = find_shipped(shipped_models(), name_or_path)) {
    return parse_model_description(file->text, concat(name_or_path, ".json"));
  }
  std::filesystem::path path = name_or_path;
  if (!std::filesystem::exists(path)) refuse("model", name_or_path, ".json", shipped_models());
  if (std::filesystem::is_directory(path)) path /= "config.json";
  std::string text;
  try {
    text = read_text_file(path.string());
  } catch (const UserError& error) {
    throw UserError(
        concat("--model: ", error.what(), "; expected a Hugging Face config.json, or the folder that holds it"));
  }
  return parse_model_description(text, path.string());
}

}  // namespace copus
