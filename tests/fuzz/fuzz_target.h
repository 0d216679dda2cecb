// What fuzz targets share. A target is the function that libFuzzer calls with any bytes; it returns where the bytes
// were taken or refused, and throws or dies where something is wrong with us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "copus/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace copus {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Returns what `parse` returns; nothing where it refuses its input as a user's mistake.
template <class Parse>
auto accepted(const Parse& parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// Reports a finding unless `holds`.
inline void expect(bool holds, std::string_view what) {
  if (!holds) throw InternalError(concat("a finding: ", what));
}

// A folder of this process for parsers that take paths, in memory where the system has such a place. Deleted when the
// process ends in good order.
const std::filesystem::path& scratch_folder();

// Replaces the content of a file.
void write_scratch(const std::filesystem::path& path, std::string_view content);

// Takes an input apart, which has the pieces in front.
class Pieces {
 public:
  explicit Pieces(std::string_view input) : rest_(input) {}

  bool is_empty() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }
  uint8_t byte() {
    const std::string_view taken = take(1);
    return taken.empty() ? 0 : static_cast<uint8_t>(taken[0]);
  }
  size_t number() { return byte() + size_t{256} * byte(); }
  std::string_view take(size_t length) {
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view rest_;
};

}  // namespace copus
