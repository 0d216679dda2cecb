// What a training program does that decides how much time and memory a configuration takes: the bytes it keeps for each
// parameter and activation, what it computes twice, and what it overlaps. Copus is one; others are described to compare
// predictions with their published measurements.
#pragma once

#include <string>

namespace copus {

struct TrainingSystem {
  std::string name = "copus";

  // Bytes of a parameter. Gradients are those that are accumulated; optimizer state is what ZeRO-1 shares out.
  double weight_bytes = 2;
  double gradient_bytes = 4;
  double optimizer_bytes = 12;  // fp32 master weights and two moments
  double activation_bytes = 2;  // of an element

  bool operator==(const TrainingSystem&) const = default;
};

// Copus with bf16 weights and activations, or with everything in fp32 (where weights are their own masters).
TrainingSystem copus_in_bf16();
TrainingSystem copus_in_fp32();

}  // namespace copus
