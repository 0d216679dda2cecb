// The TOML of an experiment, and whether its arms can be compared.
#include "copus/config/experiment.h"

#include "copus/config/testing/experiment_base.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto experiment = accepted([&] { return parse_experiment(text_of(data, size), "experiment.toml"); });
  if (!experiment) return 0;
  expect(experiment->contenders().size() >= 2, "an experiment compares nothing");
  accepted([&] {
    check_arms_are_comparable(*experiment, experiment_base, "experiment.toml");
    return true;
  });
  return 0;
}
