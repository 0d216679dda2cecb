// profile.json: measured step times, and what is learned from them.
#include <cmath>

#include "copus/report/files/performance_profile.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path = scratch_folder() / "profile.json";
  static const std::filesystem::path path_again = scratch_folder() / "again.json";
  write_scratch(path, text_of(data, size));
  const auto profile = accepted([&] { return read_profile(path); });
  if (!profile) return 0;
  write_profile(path_again, *profile);
  expect(read_profile(path_again) == *profile, "a profile reads back as another one");
  for (const auto& [configuration, cell] : profile->knowledge.cells()) {
    const Corrected corrected = profile->knowledge.correct(configuration, cell.parts);
    expect(std::isfinite(corrected.seconds) && corrected.seconds > 0 && std::isfinite(corrected.relative_deviation),
           "what was learned predicts no time");
  }
  return 0;
}
