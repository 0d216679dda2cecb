#include "copus/train/run/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/process/cores.h"
#include "copus/comm/gpu/device_world.h"
#include "copus/comm/gpu/nccl_world.h"
#include "copus/model/kernels/device_stream.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/precision.h"

namespace copus {

at::Device find_device(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  const std::string prefix = "cuda";
  int index = 0;
  bool understood = name == prefix;
  if (name.starts_with(prefix + ":")) {
    const char* end = name.data() + name.size();
    const auto [stopped, error] = std::from_chars(name.data() + prefix.size() + 1, end, index);
    understood = error == std::errc() && stopped == end && index >= 0;
  }
  if (!understood) {
    throw UserError(concat("train.device = \"", name, "\": expected \"cpu\", \"cuda\" or \"cuda:N\""));
  }
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
    throw UserError(concat("train.device = \"", name,
                           "\": this program computes on CPUs alone, since it was built without a libtorch for GPUs or "
                           "without nvcc; build it with both (docs/gpu.md), or set train.device = \"cpu\""));
  }
  const int64_t devices = visible_gpus();
  if (index >= devices) {
    throw UserError(concat("train.device = \"", name, "\": ", devices,
                           " CUDA devices are visible on this machine; set train.device = \"",
                           devices > 0 ? concat("cuda:", devices - 1) : "cpu", "\""));
  }
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

at::Device find_device(const std::string& name, int64_t local_rank, int64_t num_ranks) {
  const at::Device device = find_device(name);
  if (device.is_cpu() || num_ranks == 1) return device;
  if (name != "cuda") {
    throw UserError(concat("train.device = \"", name,
                           "\" is one GPU, and the job has several ranks; set train.device = ",
                           "\"cuda\": the ranks of a machine then take its GPUs in turn (CUDA_VISIBLE_DEVICES says ",
                           "which), or set all degrees of [parallel] to 1"));
  }
  return {device.type(), static_cast<c10::DeviceIndex>(local_rank % visible_gpus())};
}

void use_device(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

void check_may_stage(const DevicePlaces& places) {
  if (places.machines == 1) return;
  throw UserError(concat("ranks ", places.sharing->first, " and ", places.sharing->second, " share a GPU, in a job of ",
                         places.machines,
                         " machines: NCCL allows one rank a GPU, and without it all GPUs of the job would communicate "
                         "through the memory of their hosts, ten times slower or worse. Start as many ranks on each "
                         "machine as it has GPUs, and check CUDA_VISIBLE_DEVICES"));
}

namespace {

// Returns whether several ranks may share a GPU over NCCL, for experiments. NCCL supports this since version 2.30
// (NCCL_MULTI_RANK_GPU_ENABLE=1); older versions do if each rank looks like a separate node (NCCL_HOSTID).
bool uses_nccl_on_shared_gpus() {
  const char* const wanted = std::getenv("COPUS_NCCL_ON_SHARED_GPUS");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

}  // namespace

std::unique_ptr<World> connect_devices(std::unique_ptr<World> world, at::Device device, double wait_seconds) {
  use_device(device);
  if (device.is_cpu() || world->size() == 1) return world;
  std::shared_ptr<DeviceRuntime> runtime = gpu_runtime(device);
  const DevicePlaces places = find_device_places(*world, *runtime);
  if (!places.sharing || uses_nccl_on_shared_gpus()) {
    return over_nccl(std::move(world), std::move(runtime), wait_seconds);
  }
  check_may_stage(places);
  return stage_through_host(std::move(world), std::move(runtime));
}

Precision agree_on_precision(Precision wanted, at::Device device, World& world) {
  int64_t chosen = 0;
  if (world.rank() == 0) chosen = static_cast<int64_t>(resolve_precision(wanted, device));
  world.everyone().broadcast(&chosen, 1, DataType::int64, 0);
  return static_cast<Precision>(chosen);
}

bool configure_aten(int64_t threads, int64_t local_ranks) {
  const int64_t cores = usable_cores();
  const int64_t threads_per_rank = threads > 0 ? threads : default_threads(local_ranks);
  require_threads(threads_per_rank);
  kernels::set_num_threads(threads_per_rank);
  // cuBLAS results repeat only with a workspace of fixed size. cuBLAS reads the size from the environment at its first
  // matrix product, so this must come earlier.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  // fp32 products keep full precision, even on GPUs whose fastest fp32 products keep only ten bits of the mantissa. If
  // a bf16 product is split into several sums, they are added in fp32; ATen's default first rounds each sum to bf16.
  at::globalContext().setFloat32MatmulPrecision("highest");
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
  // With warn_only, CUDA's flash attention would keep its backward pass whose order of additions varies.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Deterministic mode would also fill every new tensor with NaN, at the cost of a pass over memory.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  return threads_per_rank * local_ranks <= cores;
}

std::shared_ptr<DeviceRuntime> gpu_runtime(at::Device gpu) {
  return make_gpu_runtime(gpu.index(), [gpu] { return current_stream_handle(gpu); });
}

int64_t visible_gpus() {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return 0;
  return c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
}

std::string device_name(at::Device device) {
  if (!device.is_cpu()) return gpu_runtime(device)->name();
  std::istringstream lines(read_text_file("/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

int64_t free_memory_bytes(at::Device device) { return gpu_runtime(device)->memory().free_bytes; }

}  // namespace copus
