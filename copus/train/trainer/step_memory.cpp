#include "copus/train/trainer/step_memory.h"

#include "copus/base/error.h"
#include "copus/base/process/available_memory.h"
#include "copus/base/text/units.h"
#include "copus/description/mesh.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/device_memory.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/memory.h"
#include "copus/performance/training_system.h"

namespace copus {

double step_bytes(const RunConfig& config, const Configuration& configuration, int64_t rank) {
  const MeshCoordinates here = Mesh(configuration.strategy).coordinates(rank);
  const PredictedJob job = predicted_job(config);
  TrainingSystem system = training_system_of(config);
  // The device's context and the communicators are allocated already.
  system.memory.fixed_bytes = 0;
  system.memory.communicators = {};
  MemoryModel model(job.model, job.sequence_length, system);
  const MemoryParts parts = model.predict_every_rank(configuration)[here.pipeline];
  return parts.activations + parts.logits + parts.workspace;
}

std::optional<Obstacle> lack_of_memory(double bytes, const char* what, at::Device device) {
  // Linux grants more host memory than exists, and a lack shows only when the memory is used. So the needed bytes,
  // minus the bytes in this process's cache, are compared with the available memory.
  const DeviceMemory memory = device_memory(device);
  const double fresh = bytes - static_cast<double>(memory.reserved_bytes - memory.used_bytes);
  const bool is_promised = !device.is_cpu() || fresh <= static_cast<double>(available_memory_bytes());
  const auto take = [&] { kernels::empty({static_cast<int64_t>(bytes)}, at::kByte, device); };
  if (is_promised && fits_into_memory(take)) return std::nullopt;
  return Obstacle{concat("there is no memory for the ", format_bytes(bytes), " of ", what), true};
}

}  // namespace copus
