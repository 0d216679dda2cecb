#include "copus/workshop/doctor/link_checks.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <system_error>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/base/text/units.h"
#include "copus/comm/messages/tcp_socket.h"

namespace copus {

namespace {

constexpr double wait_seconds = 2;

// Reads the first line of a small file. Empty if it cannot be read: the kernel gives no speed for some interfaces.
std::string line_of(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) entries.push_back(entry.path());
  std::ranges::sort(entries);
  return entries;
}

}  // namespace

Finding check_port(const std::string& address) {
  const char* const subject = "ports";
  try {
    const TcpDoor door(address, make_token(), 1);
    const TcpSocket socket = start_connecting(door.address());
    if (finish_connecting(socket, wait_seconds)) {
      return {Verdict::ok, subject, concat("port ", door.address().port, " of ", address, " accepts a connection")};
    }
  } catch (const std::exception& error) {
    return {Verdict::bad, subject, error.what(), "allow this user to listen at free ports"};
  }
  return {Verdict::bad, subject, concat("a connection to a free port of ", address, " fails"),
          "allow local connections in this machine's firewall"};
}

std::string own_host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

Finding check_host_name(const std::string& name) {
  try {
    return {Verdict::ok, "host name", concat(name, " is ", own_host_towards(name, 1))};
  } catch (const std::exception&) {
    return {Verdict::warning, "host name", concat("\"", name, "\" gives no address"),
            "for jobs of several machines give MASTER_ADDR as a number, or add the name to /etc/hosts or DNS"};
  }
}

Finding check_links(const std::filesystem::path& classes) {
  std::vector<std::string> links;
  for (const auto& interface : entries_of(classes / "net")) {
    if (interface.filename() == "lo" || line_of(interface / "operstate") == "down") continue;
    const std::string speed = line_of(interface / "speed");
    const bool is_known = !speed.empty() && speed.front() != '-';
    links.push_back(interface.filename().string() + (is_known ? concat(" ", speed, " Mbit/s") : ""));
  }
  std::vector<std::string> idle;
  for (const auto& device : entries_of(classes / "infiniband")) {
    for (const auto& port : entries_of(device / "ports")) {
      const std::string name = concat(device.filename().string(), " port ", port.filename().string());
      const bool is_active = line_of(port / "state").find("ACTIVE") != std::string::npos;
      if (is_active) links.push_back(concat(name, " ", line_of(port / "rate")));
      if (!is_active) idle.push_back(name);
    }
  }
  if (!idle.empty()) {
    return {Verdict::warning, "links", concat("InfiniBand ports are not active: ", join(idle, ", ")),
            "check cables and the subnet manager (ibstat), if jobs are to use these ports"};
  }
  if (links.empty()) {
    return {Verdict::warning, "links", "no network interface beside the loopback is up",
            "jobs run on this machine alone; in a container, give it a network for jobs of several machines"};
  }
  return {Verdict::ok, "links", join(links, ", ")};
}

KernelDevices kernel_devices(const std::filesystem::path& root) {
  KernelDevices devices;
  for (const auto& file : entries_of(root / "dev")) {
    const std::string name = file.filename();
    constexpr std::string_view prefix = "nvidia";
    const bool is_numbered = name.size() > prefix.size() && name.starts_with(prefix) &&
                             name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (is_numbered) ++devices.nvidia;
    if (name == "kfd") devices.has_amd = true;
  }
  // Returns the driver's version, from "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...": the first word
  // that is a number with a point.
  std::ifstream text(root / "proc/driver/nvidia/version");
  for (std::string word; devices.driver.empty() && text >> word;) {
    const bool is_version =
        word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version) devices.driver = word;
  }
  return devices;
}

Finding check_gpus(const std::string& platform, int64_t visible, const KernelDevices& devices) {
  const char* const subject = "GPUs";
  const std::string there = concat(counted(devices.nvidia, "NVIDIA device"), ", driver ", devices.driver);
  if (visible > 0) {
    return {
        Verdict::ok, subject,
        concat(visible, " visible to ", platform, devices.driver.empty() ? "" : concat(", driver ", devices.driver))};
  }
  if (platform.empty()) {
    if (!devices.driver.empty() || devices.has_amd) {
      return {Verdict::warning, subject,
              concat(devices.has_amd ? "an AMD device" : there, ", and this build computes on CPUs alone"),
              devices.has_amd ? "build for GPUs: docs/gpu.md"
                              : "build for GPUs: make quickstart DEVICE=cuda, or docs/gpu.md"};
    }
    return {Verdict::ok, subject, "none; this build computes on CPUs alone"};
  }
  if (devices.driver.empty() && !devices.has_amd) {
    return {
        Verdict::warning, subject, "this build is for " + platform + ", and there is no driver",
        "train on CPUs (train.device = \"cpu\"), or install the driver; in a container pass the GPUs on: docker run "
        "--gpus all"};
  }
  return {Verdict::bad, subject, concat(devices.has_amd ? "an AMD device" : there, ", and ", platform, " sees none"),
          "unset CUDA_VISIBLE_DEVICES, pass the GPUs on to the container (docker run --gpus all), and compare the "
          "driver with what this PyTorch needs (nvidia-smi)"};
}

Finding check_nccl(std::optional<int64_t> version, const std::string& why_not, int64_t gpus) {
  constexpr int64_t first_with_split = 21800;
  if (!version) {
    return {gpus > 1 ? Verdict::bad : Verdict::warning, "NCCL", why_not,
            "several GPUs need it: install nvidia-nccl-cu13 (or -cu12) beside PyTorch, or the system's libnccl2"};
  }
  const std::string text = concat(*version / 10000, ".", *version / 100 % 100, ".", *version % 100);
  if (*version < first_with_split) {
    return {gpus > 1 ? Verdict::bad : Verdict::warning, "NCCL", text, "Copus needs 2.18 or newer for several GPUs"};
  }
  return {Verdict::ok, "NCCL", text};
}

}  // namespace copus
