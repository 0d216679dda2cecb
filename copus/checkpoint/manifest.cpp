#include "copus/checkpoint/manifest.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/mapped_file.h"
#include "copus/base/text/json_text.h"
#include "copus/checkpoint/checkpoint_files.h"

namespace copus {
namespace {

using Json = nlohmann::json;

constexpr const char* format_name = "copus-checkpoint";
constexpr int64_t format_version = 1;

std::string checksum_of(const Json& manifest) {
  const std::string text = manifest.dump();
  return hash_hex(std::as_bytes(std::span(text)));
}

bool is_manifest(const Json& json) { return json.is_object() && json.value("format", Json()) == format_name; }

void verify_sizes(const std::filesystem::path& directory, const Manifest& manifest) {
  for (const auto& [name, expected] : manifest.files) {
    std::error_code error;
    const uint64_t bytes = std::filesystem::file_size(directory / name, error);
    if (error) {
      fail_damaged(directory,
                   concat(name, error == std::errc::no_such_file_or_directory ? " is missing" : " is no file"));
    }
    if (bytes == expected.bytes) continue;
    fail_damaged(directory, concat(name, " has ", bytes, " bytes instead of ", expected.bytes));
  }
}

}  // namespace

CheckpointDamage::CheckpointDamage(const std::filesystem::path& directory, const std::string& reason)
    : UserError(
          concat(reason, ". Restore ", directory.string(), " from a copy, or move it away to use an older checkpoint")),
      reason_(reason) {}

void fail_damaged(const std::filesystem::path& directory, const std::string& reason) {
  throw CheckpointDamage(directory, concat("the checkpoint ", directory.string(), " is damaged: ", reason));
}

std::string to_json(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, digest] : manifest.files) {
    files[name] = {{"bytes", digest.bytes}, {"xxh3_128", digest.checksum}};
  }
  Json json{{"format", format_name}, {"version", format_version}, {"step", manifest.step}, {"files", files}};
  json["xxh3_128"] = checksum_of(json);
  return json.dump(2) + "\n";
}

Manifest read_manifest(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / manifest_file_name;
  if (!std::filesystem::exists(path)) {
    throw CheckpointDamage(directory,
                           concat(directory.string(), " is not a complete checkpoint: it has no ", manifest_file_name));
  }
  Json json = parse_json(read_text_file(path));
  if (!is_manifest(json)) fail_damaged(directory, concat(manifest_file_name, " is not a manifest"));
  if (json.value("version", Json()) != format_version) {
    throw UserError(concat("the checkpoint ", directory.string(), " has format version ",
                           json.value("version", Json()).dump(), "; this program reads version ", format_version,
                           ". Use the program that wrote it"));
  }
  const Json checksum = json.value("xxh3_128", Json());
  json.erase("xxh3_128");
  if (checksum != checksum_of(json)) fail_damaged(directory, concat(manifest_file_name, " has a wrong checksum"));

  const auto count = [&](const Json& object, const char* name) {
    const std::optional<int64_t> number = integer_of(object.at(name));
    if (!number || *number < 0) {
      fail_damaged(directory, concat(manifest_file_name, " has a \"", name, "\" that is no whole number from 0 on"));
    }
    return *number;
  };
  Manifest manifest;
  try {
    manifest.step = count(json, "step");
    for (const auto& [name, digest] : json.at("files").items()) {
      manifest.files[name] = {static_cast<uint64_t>(count(digest, "bytes")), digest.at("xxh3_128").get<std::string>()};
    }
  } catch (const Json::exception& error) {
    fail_damaged(directory, concat(manifest_file_name, " lacks a field (", error.what(), ")"));
  }
  for (const auto& [name, digest] : manifest.files) {
    if (is_plain_file_name(name)) continue;
    fail_damaged(directory, concat(manifest_file_name, " names \"", name, "\"; expected names of files beside it"));
  }
  return manifest;
}

Manifest read_named_manifest(const std::filesystem::path& directory) {
  Manifest manifest = read_manifest(directory);
  if (checkpoint_name(manifest.step) != directory.filename()) {
    fail_damaged(directory, concat("its ", manifest_file_name, " is of step ", manifest.step));
  }
  return manifest;
}

void verify_files(const std::filesystem::path& directory, const Manifest& manifest,
                  std::span<const std::string> names) {
  verify_sizes(directory, manifest);
  for (const std::string& name : names) {
    const MappedFile file((directory / name).string());
    if (hash_hex(file.bytes()) == manifest.files.at(name).checksum) continue;
    fail_damaged(directory, concat("the checksum of ", name, " is wrong"));
  }
}

void verify_files(const std::filesystem::path& directory, const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, digest] : manifest.files) names.push_back(name);
  verify_files(directory, manifest, names);
}

}  // namespace copus
