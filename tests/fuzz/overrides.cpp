// What stands behind --set, one a line.
#include <sstream>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/config/testing/experiment_base.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream lines{std::string(text_of(data, size))};
  std::vector<std::string> overrides;
  for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  const auto config = accepted([&] { return parse_run_config(experiment_base, "run.toml", overrides); });
  if (!config) return 0;
  expect(parse_run_config(to_toml(*config), "again.toml") == *config, "what --set has made reads back as another one");
  return 0;
}
