// run.jsonl.
#include "copus/report/logs/run_log.h"

#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path = scratch_folder() / "run.jsonl";
  write_scratch(path, text_of(data, size));
  const auto records = accepted([&] { return read_run_log(path); });
  if (!records) return 0;
  for (const StepRecord& record : *records) {
    const std::string line = to_line(record);
    expect(to_line(step_record_from_line(line)) == line, "a step reads back as another one");
  }
  return 0;
}
