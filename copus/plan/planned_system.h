// The training programs that a plan can be made for, by the names of `copus plan --system`, and the abilities of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/configuration_text.h"
#include "copus/description/search_space.h"
#include "copus/performance/training_system.h"

namespace copus {

// `torchtitan` is version 0.2.
enum class PlannedSystem { copus, megatron, nanotron, torchtitan, torchtitan_0_3 };

template <>
inline constexpr auto named_values<PlannedSystem> =
    std::to_array<NamedValue<PlannedSystem>>({{PlannedSystem::copus, "copus"},
                                              {PlannedSystem::megatron, "megatron"},
                                              {PlannedSystem::nanotron, "nanotron"},
                                              {PlannedSystem::torchtitan, "torchtitan"},
                                              {PlannedSystem::torchtitan_0_3, "torchtitan-0.3"}});

// The program's own name: "Megatron-LM".
std::string full_name(PlannedSystem system);

// Returns the properties that determine time and memory of the program in bf16.
TrainingSystem describe(PlannedSystem system);

// Describes in one sentence what a plan for a program other than Copus is based on. Empty for Copus.
std::string basis_of(PlannedSystem system);

// Lists the values that the program supports for each part of a configuration, as far as its description goes.
SearchSpace abilities(PlannedSystem system);

// Explains why the program cannot run a configuration that the model allows: it does not support a value, or it raises
// an error for this combination with this model. Returns nothing if the program can run the configuration.
std::optional<std::string> unable_reason(PlannedSystem system, const ModelDescription& model,
                                         const Configuration& configuration, int64_t sequence_length);

// Explains why the program does not support the model or this variant of it. Returns nothing if it does.
std::optional<std::string> lacking_model(PlannedSystem system, const ModelDescription& model, int64_t sequence_length);

// Numbers of virtual stages into which the program may split this model, in addition to the usual numbers; empty: any.
std::vector<int64_t> possible_virtual_stages(PlannedSystem system, const ModelDescription& model);

// Describes in a clause what the program requires of every configuration. Empty for Copus, or if the program requires
// nothing.
std::string_view demands(PlannedSystem system);

// Sets the parts that `asked` does not name to the values that the program always uses, if it leaves no choice.
void take_what_is_usual(PlannedSystem system, const ConfigurationChange& asked, ParallelStrategy& strategy);

}  // namespace copus
