#include "copus/workshop/doctor/trainer_checks.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/cli/with_libtorch.h"
#include "copus/comm/gpu/nccl_interface.h"
#include "copus/model/kernels/kernels.h"
#include "copus/train/run/device.h"
#include "copus/workshop/doctor/link_checks.h"

namespace copus {

namespace {

Finding check_libtorch() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<void*>(&at::globalContext), &info);
  const std::filesystem::path library = info.dli_fname == nullptr ? "" : info.dli_fname;
  const std::string version = version_of_pytorch(library.parent_path().parent_path());
  const std::string built_for = TORCH_VERSION;
  const std::string from = concat(" from ", library.parent_path().lexically_normal().string());
  // A local part such as "+cpu" names a build of the same version.
  if (version.empty() || version.substr(0, version.find('+')) == built_for.substr(0, built_for.find('+'))) {
    return {Verdict::ok, "libtorch", concat(version.empty() ? built_for : version, from)};
  }
  return {Verdict::bad, "libtorch", concat(version, from, ", and this program was built for ", built_for),
          "build the program again beside this libtorch, or install the version it was built for"};
}

// Computes a product and a normalization with known results: rows of equal numbers have norm 1.
Finding check_device(at::Device device) {
  const std::string subject = device.is_cpu() ? "CPU" : concat("GPU ", device.index());
  constexpr int64_t rows = 8, width = 64;
  try {
    use_device(device);
    const std::string name = device_name(device);
    const std::vector<double> ones(static_cast<size_t>(width * width), 1.0);
    const auto matrix = [&](at::IntArrayRef shape) {
      return kernels::from_host(ones.data(), shape, at::kFloat, device);
    };
    const at::Tensor product = kernels::linear(matrix({rows, width}), matrix({width, width}), {});
    const at::Tensor normed = kernels::add_norm(product, {}, matrix({width}), {}, 1e-6).normed;
    std::vector<float> result(static_cast<size_t>(rows * width));
    kernels::copy_to_host(normed, result.data());
    const bool is_right = std::ranges::all_of(result, [](float one) { return std::abs(one - 1) < 1e-3; });
    if (!is_right) {
      return {Verdict::bad, subject, name + " computes wrongly", "run the tests (make test), and test its memory"};
    }
    if (device.is_cpu()) return {Verdict::ok, subject, concat(name, ", ", at::get_cpu_capability(), ", computes")};
    return {Verdict::ok, subject,
            concat(name, ", ", format_bytes(static_cast<double>(free_memory_bytes(device))), " free, computes")};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {Verdict::bad, subject, text.substr(0, text.find('\n')),
            device.is_cpu() ? "compare the processor with what this libtorch needs"
                            : "look at nvidia-smi; the build may lack machine code for this GPU "
                              "(-DCMAKE_CUDA_ARCHITECTURES=native)"};
  }
}

Finding check_nccl_library(int64_t gpus) {
  std::optional<int64_t> version;
  std::string why_not;
  try {
    int number = 0;
    if (load_nccl().get_version(&number) == NcclResult::success) version = number;
  } catch (const std::exception& error) {
    why_not = error.what();
  }
  return check_nccl(version, why_not, gpus);
}

}  // namespace

void check_trainer(const std::function<void(const Finding&)>& found) {
  configure_aten(1);
  found(check_libtorch());
  found(check_device(at::kCPU));
  const std::string platform = gpu_platform();
  const int64_t gpus = platform.empty() ? 0 : visible_gpus();
  found(check_gpus(platform, gpus, kernel_devices()));
  for (int64_t gpu = 0; gpu < gpus; ++gpu) {
    found(check_device({at::kCUDA, static_cast<c10::DeviceIndex>(gpu)}));
  }
  if (!platform.empty()) found(check_nccl_library(gpus));
}

}  // namespace copus
