// Compares the declarations of nccl_interface.h with the header of NCCL or RCCL. A build with a path to that header
// (COPUS_NCCL_INCLUDE_DIR) compiles this file to an object that is never linked. Two declarations match if every
// argument is passed in the same way.
#if __has_include(<nccl.h>)
#include <nccl.h>
#else
#include <rccl/rccl.h>
#endif

#include <type_traits>

#include "copus/comm/gpu/nccl_interface.h"

namespace copus {
namespace {

template <class Theirs, class Ours>
constexpr bool is_passed_alike() {
  if constexpr (std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> &&
           std::is_const_v<std::remove_pointer_t<Theirs>> == std::is_const_v<std::remove_pointer_t<Ours>>;
  } else if constexpr (std::is_class_v<Theirs>) {
    return std::is_class_v<Ours> && sizeof(Theirs) == sizeof(Ours) && alignof(Theirs) == alignof(Ours);
  } else {
    return !std::is_pointer_v<Ours> && !std::is_class_v<Ours> && sizeof(Theirs) == sizeof(Ours) &&
           (std::is_enum_v<Theirs> == std::is_enum_v<Ours>);
  }
}

template <class... TheirArguments, class TheirReturn, class... Arguments, class Return>
constexpr bool agrees(TheirReturn (*)(TheirArguments...), std::function<Return(Arguments...)> NcclInterface::*) {
  if constexpr (sizeof...(TheirArguments) != sizeof...(Arguments)) {
    return false;
  } else {
    return is_passed_alike<TheirReturn, Return>() && (is_passed_alike<TheirArguments, Arguments>() && ...);
  }
}

static_assert(agrees(&ncclGetVersion, &NcclInterface::get_version));
static_assert(agrees(&ncclGetUniqueId, &NcclInterface::get_unique_id));
static_assert(agrees(&ncclCommInitRankConfig, &NcclInterface::comm_init_rank_config));
static_assert(agrees(&ncclCommSplit, &NcclInterface::comm_split));
static_assert(agrees(&ncclCommFinalize, &NcclInterface::comm_finalize));
static_assert(agrees(&ncclCommDestroy, &NcclInterface::comm_destroy));
static_assert(agrees(&ncclCommAbort, &NcclInterface::comm_abort));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7)
static_assert(agrees(&ncclCommRevoke, &NcclInterface::comm_revoke));
#endif
static_assert(agrees(&ncclCommGetAsyncError, &NcclInterface::comm_get_async_error));
static_assert(agrees(&ncclGetErrorString, &NcclInterface::get_error_string));
static_assert(agrees(&ncclGetLastError, &NcclInterface::get_last_error));
static_assert(agrees(&ncclGroupStart, &NcclInterface::group_start));
static_assert(agrees(&ncclGroupEnd, &NcclInterface::group_end));
static_assert(agrees(&ncclAllReduce, &NcclInterface::all_reduce));
static_assert(agrees(&ncclReduce, &NcclInterface::reduce));
static_assert(agrees(&ncclReduceScatter, &NcclInterface::reduce_scatter));
static_assert(agrees(&ncclAllGather, &NcclInterface::all_gather));
static_assert(agrees(&ncclBroadcast, &NcclInterface::broadcast));
static_assert(agrees(&ncclSend, &NcclInterface::send));
static_assert(agrees(&ncclRecv, &NcclInterface::recv));

template <class Theirs, class Ours>
constexpr bool equals(Theirs theirs, Ours ours) {
  return sizeof(Theirs) == sizeof(Ours) && static_cast<int>(theirs) == static_cast<int>(ours);
}

static_assert(equals(ncclSuccess, NcclResult::success));
static_assert(equals(ncclUnhandledCudaError, NcclResult::unhandled_device_error));
static_assert(equals(ncclSystemError, NcclResult::system_error));
static_assert(equals(ncclInternalError, NcclResult::internal_error));
static_assert(equals(ncclInvalidArgument, NcclResult::invalid_argument));
static_assert(equals(ncclInvalidUsage, NcclResult::invalid_usage));
static_assert(equals(ncclRemoteError, NcclResult::remote_error));
static_assert(equals(ncclInProgress, NcclResult::in_progress));
static_assert(equals(ncclUint8, NcclType::uint8));
static_assert(equals(ncclInt64, NcclType::int64));
static_assert(equals(ncclFloat32, NcclType::float32));
static_assert(equals(ncclFloat64, NcclType::float64));
static_assert(equals(ncclBfloat16, NcclType::bfloat16));
static_assert(equals(ncclSum, NcclReduction::sum));
static_assert(equals(ncclMax, NcclReduction::maximum));
static_assert(NCCL_SPLIT_NOCOLOR == nccl_no_color);
static_assert(NCCL_CONFIG_UNDEF_INT == NcclConfig::undefined);
static_assert(sizeof(ncclUniqueId) == sizeof(NcclUniqueId) && alignof(ncclUniqueId) == alignof(NcclUniqueId));

// NcclConfig is the beginning of NCCL's struct.
static_assert(offsetof(ncclConfig_t, size) == offsetof(NcclConfig, size));
static_assert(offsetof(ncclConfig_t, magic) == offsetof(NcclConfig, magic));
static_assert(offsetof(ncclConfig_t, version) == offsetof(NcclConfig, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(NcclConfig, blocking));
static_assert(offsetof(ncclConfig_t, cgaClusterSize) == offsetof(NcclConfig, cga_cluster_size));
static_assert(offsetof(ncclConfig_t, minCTAs) == offsetof(NcclConfig, min_ctas));
static_assert(offsetof(ncclConfig_t, maxCTAs) == offsetof(NcclConfig, max_ctas));
static_assert(offsetof(ncclConfig_t, netName) == offsetof(NcclConfig, net_name));
static_assert(offsetof(ncclConfig_t, splitShare) == offsetof(NcclConfig, split_share));
static_assert(sizeof(ncclConfig_t) >= sizeof(NcclConfig));
constexpr ncclConfig_t their_config = NCCL_CONFIG_INITIALIZER;
static_assert(their_config.magic == NcclConfig{}.magic && their_config.version >= NcclConfig{}.version);
static_assert(NCCL_VERSION(2, 18, 0) == NcclConfig{}.version);

}  // namespace
}  // namespace copus
