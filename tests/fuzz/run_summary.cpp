// summary.json of a run.
#include "copus/report/files/run_summary.h"

#include "copus/base/files/durable_file.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path = scratch_folder() / "summary.json";
  write_scratch(path, text_of(data, size));
  const auto summary = accepted([&] { return read_summary(scratch_folder()); });
  if (!summary) return 0;
  write_summary(scratch_folder(), **summary);
  const std::string written = read_text_file(path);
  write_summary(scratch_folder(), *read_summary(scratch_folder()));
  expect(read_text_file(path) == written, "a summary reads back as another one");
  return 0;
}
