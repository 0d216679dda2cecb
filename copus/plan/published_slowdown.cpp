#include "copus/plan/published_slowdown.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace copus {

namespace {

// docs/performance-model.md gives the source of each number. `copus bench model` defines the sets of runs. For every
// program and GPU generation, sets with odd numbers were used for fitting, and sets with even numbers for judging.
constexpr std::array slowdowns = {
    std::pair{PlannedSystem::copus, PublishedSlowdown{.generation = "H200",
                                                      .fitted_on = "Copus' own steps on one H200",
                                                      .figures = 6,
                                                      .lower = 1.01,
                                                      .median = 1.02,
                                                      .upper = 1.03,
                                                      .judged = 0,
                                                      .judged_median = 0}},
    std::pair{PlannedSystem::megatron, PublishedSlowdown{.generation = "A100",
                                                         .fitted_on = "Megatron-LM, FlagScale and InternEvo sets",
                                                         .figures = 4,
                                                         .lower = 1.12,
                                                         .median = 1.21,
                                                         .upper = 1.28,
                                                         .judged = 3,
                                                         .judged_median = 1.32}},
    std::pair{PlannedSystem::megatron,
              PublishedSlowdown{.generation = "H100",
                                .fitted_on = "Megatron-Core 0.8 runs of 7 and 119 billion parameters",
                                .figures = 2,
                                .lower = 1.06,
                                .median = 1.09,
                                .upper = 1.13,
                                .judged = 5,
                                .judged_median = 1.18}},
    std::pair{PlannedSystem::nanotron, PublishedSlowdown{.generation = "H100",
                                                         .fitted_on = "nanotron 0.5 sets",
                                                         .figures = 14,
                                                         .lower = 1.19,
                                                         .median = 1.22,
                                                         .upper = 1.27,
                                                         .judged = 14,
                                                         .judged_median = 1.25}},
    std::pair{PlannedSystem::torchtitan, PublishedSlowdown{.generation = "A100",
                                                           .fitted_on = "torchtitan's runs of 70 billion parameters",
                                                           .figures = 2,
                                                           .lower = 1.31,
                                                           .median = 1.31,
                                                           .upper = 1.32,
                                                           .judged = 1,
                                                           .judged_median = 1.33}},
    std::pair{PlannedSystem::torchtitan, PublishedSlowdown{.generation = "H100",
                                                           .fitted_on = "torchtitan's run of 70 billion parameters",
                                                           .figures = 1,
                                                           .lower = 1.53,
                                                           .median = 1.53,
                                                           .upper = 1.53,
                                                           .judged = 1,
                                                           .judged_median = 1.71}},
};

// Returns whether the device's name has the generation as a whole word: "RTX A1000" is no A100, and "GH200" no H200.
bool is_of_generation(std::string_view device_name, std::string_view generation) {
  const auto is_in_word = [&](size_t at) {
    return at < device_name.size() && std::isalnum(static_cast<unsigned char>(device_name[at])) != 0;
  };
  for (size_t at = device_name.find(generation); at != std::string_view::npos;
       at = device_name.find(generation, at + 1)) {
    if ((at == 0 || !is_in_word(at - 1)) && !is_in_word(at + generation.size())) return true;
  }
  return false;
}

}  // namespace

std::optional<PublishedSlowdown> published_slowdown(PlannedSystem system, const std::string& device_name) {
  const auto found = std::find_if(slowdowns.begin(), slowdowns.end(), [&](const auto& one) {
    return one.first == system && is_of_generation(device_name, one.second.generation);
  });
  if (found == slowdowns.end()) return std::nullopt;
  return found->second;
}

}  // namespace copus
