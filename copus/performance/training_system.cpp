#include "copus/performance/training_system.h"

namespace copus {

TrainingSystem copus_in_bf16() { return {}; }

TrainingSystem copus_in_fp32() {
  TrainingSystem system;
  system.weight_bytes = 4;
  system.optimizer_bytes = 8;
  system.activation_bytes = 4;
  return system;
}

}  // namespace copus
