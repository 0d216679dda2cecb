// decisions.jsonl.
#include "copus/report/logs/decision_log.h"

#include "copus/report/files/run_summary.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path = scratch_folder() / "decisions.jsonl";
  write_scratch(path, text_of(data, size));
  const auto events = accepted([&] { return read_decision_log(path); });
  if (!events) return 0;
  for (const DecisionEvent& event : *events) {
    step_of(event);
    const std::string line = to_line(event);
    expect(to_line(decision_event_from_line(line)) == line, "an event reads back as another one");
  }
  RunSummary summary;
  count_switches(*events, summary);
  return 0;
}
