// The CSV of published training runs.
#include "copus/workshop/published/runs.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const PublishedTable table : {PublishedTable::throughput, PublishedTable::failures}) {
    const auto runs = accepted([&] { return parse_published_runs(text_of(data, size), table, "runs.csv"); });
    if (!runs) continue;
    for (const PublishedRun& run : *runs) {
      if (!run.unusable.empty()) continue;
      expect(!infeasible_reason(run.model, run.configuration, run.sequence_length), "a run is impossible");
      expect(count_parameters(run.gated_model()) > 0, "a model has no parameters");
    }
  }
  return 0;
}
