// The environment variables by which launchers tell a process which rank it is, as NAME=VALUE, one a line.
#include <map>
#include <sstream>

#include "copus/comm/job/start/launcher.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::map<std::string, std::string> variables;
  std::istringstream lines{std::string(text_of(data, size))};
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = std::min(line.find('='), line.size());
    variables[line.substr(0, equals)] = line.substr(std::min(equals + 1, line.size()));
  }
  const auto lookup = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const auto environment = accepted([&] { return read_rank_environment(lookup); });
  if (!environment || !*environment) return 0;
  const RankEnvironment& rank = **environment;
  expect(rank.rank >= 0 && rank.rank < rank.world_size && rank.local_rank >= 0 &&
             rank.local_rank < rank.local_world_size && rank.local_world_size <= rank.world_size,
         "a rank that cannot be");
  return 0;
}
