#include "copus/comm/gpu/gpu_environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"

namespace copus {

namespace {

constexpr const char* connections = "CUDA_DEVICE_MAX_CONNECTIONS";
// CUDA's default of CUDA_DEVICE_MAX_CONNECTIONS. Copus itself sets 32, because a pipeline rank uses up to ten streams:
// computation, the links to its neighbours, and the collectives of its other groups. A value below 8 is reported: only
// the user can have set it.
constexpr int64_t fewest_queues = 8;
constexpr int64_t first_driver_with_launch_events = 12030;

void set_if_unset(const char* name, const char* value) { ::setenv(name, value, /*overwrite=*/0); }

}  // namespace

void set_gpu_environment() {
  set_if_unset(connections, "32");
  set_if_unset("NCCL_NVLS_ENABLE", "0");
  const bool is_decided = std::getenv("PYTORCH_ALLOC_CONF") != nullptr;  // the newer name of the variable
  if (!is_decided) set_if_unset("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
}

void order_nccl_launches(int64_t driver_version) {
  if (driver_version >= first_driver_with_launch_events) set_if_unset("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
}

std::optional<std::string> lack_of_hardware_queues() {
  const char* const text = std::getenv(connections);
  if (text == nullptr) return std::nullopt;
  const std::string_view value = text;
  int64_t queues = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), queues);
  if (error == std::errc() && end == value.data() + value.size() && queues >= fewest_queues) return std::nullopt;
  return concat(connections, " is \"", value, "\" in the environment: a pipeline over NCCL needs ", fewest_queues,
                " hardware queues at least, or its ranks can wait for each other for ever. Unset it (Copus then sets "
                "32; clusters that are set up for Megatron-LM export 1), or train with pipeline_parallel = 1");
}

std::string nccl_settings() {
  std::vector<std::string> settings;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("NCCL_")) settings.emplace_back(*variable);
  }
  std::sort(settings.begin(), settings.end());
  return join(settings, " ");
}

}  // namespace copus
