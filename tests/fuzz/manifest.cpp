// A checkpoint's manifest.json. Its checksum would keep all changes out, so each is read with a right one too.
#include "copus/checkpoint/manifest.h"

#include <span>

#include "copus/base/text/json_text.h"
#include "fuzz_target.h"

using namespace copus;

namespace {

void read_and_write(const std::filesystem::path& folder, std::string_view text) {
  write_scratch(folder / manifest_file_name, text);
  const auto manifest = accepted([&] { return read_manifest(folder); });
  if (!manifest) return;
  write_scratch(folder / manifest_file_name, to_json(*manifest));
  expect(read_manifest(folder) == *manifest, "a manifest reads back as another one");
  accepted([&] {
    verify_files(folder, *manifest, {});
    return true;
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path folder = scratch_folder();
  read_and_write(folder, text_of(data, size));
  nlohmann::json json = parse_json(text_of(data, size));
  if (!json.is_object()) return 0;
  json.erase("xxh3_128");
  const std::string text = json.dump();
  json["xxh3_128"] = hash_hex(std::as_bytes(std::span(text)));
  read_and_write(folder, json.dump());
  return 0;
}
