// The TOML of a configuration: of a job that Copus trains, or of one that another program trains.
#include "copus/config/run_config.h"

#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = accepted([&] { return parse_any_config(text_of(data, size), "run.toml"); });
  if (!config) return 0;
  const auto written = [](const auto& one) { return to_toml(one); };
  const std::string toml = std::visit(written, *config);
  const AnyConfig again = parse_any_config(toml, "again.toml");
  expect(again == *config, "a configuration that was written is another one when it is read");
  expect(std::visit(written, again) == toml, "it is written in another way");
  if (const auto* run = std::get_if<RunConfig>(&again)) {
    expect(differing_keys(*run, std::get<RunConfig>(*config)).empty(), "keys of equal configurations differ");
  }
  return 0;
}
