// A request to a running job.
#include "copus/report/files/control_files.h"

#include "copus/base/files/durable_file.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ControlFiles control(scratch_folder(), [](const std::string& /*line*/) {});
  static const std::filesystem::path folder = scratch_folder() / "control";
  write_scratch(folder / "1.json", text_of(data, size));
  const auto received = control.take();
  expect(received.size() <= 1, "one file is several requests");
  for (const ControlFiles::Received& one : received) {
    expect(one.name == "1", "a request has another name");
    control.reply(one.name, {true, one.request.command + one.request.target});
  }
  expect(!read_text_file(folder / "1.reply").empty(), "a request has no answer");
  std::filesystem::remove(folder / "1.reply");
  expect(std::filesystem::is_empty(folder), "something is left of a request");
  return 0;
}
