// results.json of an experiment, as its page shows it.
#include "copus/report/drawn/page_comparison.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path = scratch_folder() / "results.json";
  write_scratch(path, text_of(data, size));
  accepted([&] { return read_comparison(path); });
  return 0;
}
