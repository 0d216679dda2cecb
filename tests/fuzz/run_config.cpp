// The TOML of a run's configuration.
#include "copus/config/run_config.h"

#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = accepted([&] { return parse_run_config(text_of(data, size), "run.toml"); });
  if (!config) return 0;
  const std::string toml = to_toml(*config);
  const RunConfig again = parse_run_config(toml, "again.toml");
  expect(again == *config, "a configuration that was written is another one when it is read");
  expect(to_toml(again) == toml && differing_keys(again, *config).empty(), "it is written in another way");
  return 0;
}
