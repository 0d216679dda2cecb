// Two texts for policies: the true noise scale by consumed samples, and batches by consumed samples or tokens.
#include "copus/config/step_schedule.h"
#include "copus/orchestrator/policies/policies.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = text_of(data, size);
  const auto ascends = [](const auto& pairs) {
    for (size_t i = 1; i < pairs.size(); ++i) {
      if (!(pairs[i].first > pairs[i - 1].first)) return false;
    }
    return !pairs.empty();
  };
  if (const auto trace = accepted([&] { return parse_noise_trace(text, "trace.txt"); })) {
    expect(ascends(*trace), "a trace does not ascend");
  }
  if (const auto schedule = accepted([&] { return parse_step_schedule(text, 2048); })) {
    expect(ascends(*schedule) && schedule->front().first == 0, "a schedule does not ascend from 0");
  }
  return 0;
}
