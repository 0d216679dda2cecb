#include "copus/comm/gpu/nccl_interface.h"

#include <dlfcn.h>

#include <string_view>

#include "copus/base/error.h"
#include "copus/comm/gpu/device_runtime.h"

namespace copus {

namespace {

bool is_hip() { return std::string_view(gpu_platform()) == "hip"; }

std::string last_error() {
  const char* const error = dlerror();
  return error == nullptr ? "" : error;
}

// A library that stays loaded until the process ends, because its threads run that long.
class Library {
 public:
  explicit Library(const std::string& name) : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
    if (handle_ == nullptr) handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
    throw UserError(concat("ranks with a GPU each need ", name, ", which cannot be loaded (", last_error(),
                           "): install it (pip install nvidia-nccl-cu13; on AMD's GPUs ROCm's rccl) and name its "
                           "folder in LD_LIBRARY_PATH"));
  }

  template <class Return, class... Arguments>
  void find(const char* symbol, std::function<Return(Arguments...)>& function) const {
    void* const address = dlsym(handle_, symbol);
    if (address == nullptr) {
      throw UserError(
          concat(name_, " has no ", symbol, " (", last_error(), "): NCCL of version 2.18 or later is needed"));
    }
    function = reinterpret_cast<Return (*)(Arguments...)>(address);
  }
  // The same for a function that older versions lack.
  template <class Function>
  void find_if_there(const char* symbol, Function& function) const {
    if (dlsym(handle_, symbol) != nullptr) find(symbol, function);
  }

 private:
  const std::string name_;
  void* handle_;
};

}  // namespace

NcclType nccl_type(DataType type) {
  switch (type) {
    case DataType::byte:
      return NcclType::uint8;
    case DataType::int64:
      return NcclType::int64;
    case DataType::float32:
      return NcclType::float32;
    case DataType::float64:
      return NcclType::float64;
    case DataType::bfloat16:
      return NcclType::bfloat16;
  }
  fail_check("known type", __FILE__, __LINE__, "");
}

NcclReduction nccl_reduction(Reduction reduction) {
  return reduction == Reduction::sum ? NcclReduction::sum : NcclReduction::maximum;
}

NcclInterface load_nccl() { return load_nccl(is_hip() ? "librccl.so.1" : "libnccl.so.2"); }

NcclInterface load_nccl(const std::string& library) {
  const Library found(library);
  NcclInterface nccl;
  found.find("ncclGetVersion", nccl.get_version);
  found.find("ncclGetUniqueId", nccl.get_unique_id);
  found.find("ncclCommInitRankConfig", nccl.comm_init_rank_config);
  found.find("ncclCommSplit", nccl.comm_split);
  found.find("ncclCommFinalize", nccl.comm_finalize);
  found.find("ncclCommDestroy", nccl.comm_destroy);
  found.find("ncclCommAbort", nccl.comm_abort);
  found.find_if_there("ncclCommRevoke", nccl.comm_revoke);
  found.find("ncclCommGetAsyncError", nccl.comm_get_async_error);
  found.find("ncclGetErrorString", nccl.get_error_string);
  found.find("ncclGetLastError", nccl.get_last_error);
  found.find("ncclGroupStart", nccl.group_start);
  found.find("ncclGroupEnd", nccl.group_end);
  found.find("ncclAllReduce", nccl.all_reduce);
  found.find("ncclReduce", nccl.reduce);
  found.find("ncclReduceScatter", nccl.reduce_scatter);
  found.find("ncclAllGather", nccl.all_gather);
  found.find("ncclBroadcast", nccl.broadcast);
  found.find("ncclSend", nccl.send);
  found.find("ncclRecv", nccl.recv);
  return nccl;
}

}  // namespace copus
