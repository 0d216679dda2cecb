// The training programs that a plan can be made for, by the names of `copus plan --system`, and what each can do.
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

// torchtitan: its version 0.2.
enum class PlannedSystem { copus, megatron, nanotron, torchtitan, torchtitan_0_3 };

template <>
inline constexpr auto named_values<PlannedSystem> =
    std::to_array<NamedValue<PlannedSystem>>({{PlannedSystem::copus, "copus"},
                                              {PlannedSystem::megatron, "megatron"},
                                              {PlannedSystem::nanotron, "nanotron"},
                                              {PlannedSystem::torchtitan, "torchtitan"},
                                              {PlannedSystem::torchtitan_0_3, "torchtitan-0.3"}});

// What a program calls itself: "Megatron-LM".
std::string full_name(PlannedSystem system);

// Returns what decides time and memory of the program in bf16.
TrainingSystem describe(PlannedSystem system);

// Says what a plan for another program than Copus rests on, in one sentence. Empty for Copus.
std::string what_it_rests_on(PlannedSystem system);

// Lists the values of each part of a configuration that the program knows, as far as it is described.
SearchSpace abilities(PlannedSystem system);

// Says why the program cannot run the configuration, which the model allows: it does not know a value, or refuses such
// numbers for this model. Empty where it can.
std::optional<std::string> unable_reason(PlannedSystem system, const ModelDescription& model,
                                         const Configuration& configuration, int64_t sequence_length);

// Says why the program does not have the model, or not this version of it. Empty where it has.
std::optional<std::string> lacking_model(PlannedSystem system, const ModelDescription& model, int64_t sequence_length);

// Virtual stages that the program may cut this model into, beside the usual ones; empty: any.
std::vector<int64_t> possible_virtual_stages(PlannedSystem system, const ModelDescription& model);

// Says in a sentence's part what the program asks of every configuration. Empty for Copus, and where it asks nothing.
std::string_view demands(PlannedSystem system);

// Gives the parts that `asked` does not name the values that the program takes where it has no choice.
void take_what_is_usual(PlannedSystem system, const ConfigurationChange& asked, ParallelStrategy& strategy);

}  // namespace copus
