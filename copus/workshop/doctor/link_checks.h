// Checks of how ranks reach each other, and of the devices that the kernel reports without any library for them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "copus/workshop/doctor/finding.h"

namespace copus {

// Listens at a free port of `address`, a numeric address, and connects to it.
Finding check_port(const std::string& address);
// Whether this machine's name resolves to one of its addresses.
Finding check_host_name(const std::string& name);
std::string own_host_name();

// Network interfaces that are up, with their speeds, and InfiniBand ports, in a folder such as /sys/class.
Finding check_links(const std::filesystem::path& classes);

// The GPUs that the kernel reports, whether or not this program can use them.
struct KernelDevices {
  int64_t nvidia = 0;       // device files
  std::string driver = {};  // version of NVIDIA's kernel module; empty if it is not loaded
  bool has_amd = false;
};
KernelDevices kernel_devices(const std::filesystem::path& root = "/");

// `platform`: the platform of this build (gpu_platform()); `visible`: the number of GPUs that the build sees.
Finding check_gpus(const std::string& platform, int64_t visible, const KernelDevices& devices);
// `version` is the version of the NCCL library (22703 for 2.27.3). If no library was found, `version` is empty, and
// `why_not` gives the reason.
Finding check_nccl(std::optional<int64_t> version, const std::string& why_not, int64_t gpus);

}  // namespace copus
