// The TOML that describes a cluster.
#include "copus/config/descriptions.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto cluster = accepted([&] { return parse_cluster(text_of(data, size), "cluster.toml"); });
  if (!cluster) return 0;
  const std::string toml = to_toml(*cluster);
  const ClusterDescription again = parse_cluster(toml, "again.toml");
  expect(again == *cluster && to_toml(again) == toml, "a cluster that was written is another one when it is read");
  return 0;
}
