// Declares the part of NCCL's C interface that Copus calls. The library is loaded at run time, so a build needs no
// NCCL, and a job uses the library that comes with libtorch. RCCL has the same interface. nccl_header_check.cpp
// compares these declarations with the library's header.
#pragma once

#include <climits>
#include <cstddef>
#include <functional>
#include <string>

#include "copus/comm/data_type.h"

namespace copus {

struct NcclComm;  // one rank's end of a communicator, created by the library

enum class NcclResult : int {
  success = 0,
  unhandled_device_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum class NcclType : int { uint8 = 1, int64 = 4, float32 = 7, float64 = 8, bfloat16 = 9 };
enum class NcclReduction : int { sum = 0, maximum = 2 };

NcclType nccl_type(DataType type);
NcclReduction nccl_reduction(Reduction reduction);

struct NcclUniqueId {
  char bytes[128];
};

// The structure of NCCL 2.18, the first version with ncclCommSplit. Later versions accept this structure: they copy
// `size` bytes, and use their defaults for settings that are newer than `version` (NCCL, init.cc, parseCommConfig).
struct NcclConfig {
  static constexpr int undefined = INT_MIN;  // the library decides

  size_t size = offsetof(NcclConfig, split_share) + sizeof(int);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = undefined;
  int cga_cluster_size = undefined;
  int min_ctas = undefined;
  int max_ctas = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;
};

inline constexpr int nccl_no_color = -1;  // for a rank that a split leaves out

// See NCCL's documentation, which uses the same names. Streams are streams of DeviceRuntime.
struct NcclInterface {
  std::function<NcclResult(int* version)> get_version;
  std::function<NcclResult(NcclUniqueId* id)> get_unique_id;
  std::function<NcclResult(NcclComm** comm, int size, NcclUniqueId id, int rank, NcclConfig* config)>
      comm_init_rank_config;
  std::function<NcclResult(NcclComm* comm, int color, int key, NcclComm** made, NcclConfig* config)> comm_split;
  std::function<NcclResult(NcclComm* comm)> comm_finalize;
  std::function<NcclResult(NcclComm* comm)> comm_destroy;
  std::function<NcclResult(NcclComm* comm)> comm_abort;
  // Ends what is under way without freeing anything. Empty before 2.28.7.
  std::function<NcclResult(NcclComm* comm, int flags)> comm_revoke;
  std::function<NcclResult(NcclComm* comm, NcclResult* error)> comm_get_async_error;
  std::function<const char*(NcclResult result)> get_error_string;
  std::function<const char*(NcclComm* comm)> get_last_error;
  std::function<NcclResult()> group_start;
  std::function<NcclResult()> group_end;
  std::function<NcclResult(const void* input, void* output, size_t count, NcclType type, NcclReduction reduction,
                           NcclComm* comm, void* stream)>
      all_reduce;
  std::function<NcclResult(const void* input, void* output, size_t count, NcclType type, NcclReduction reduction,
                           int root, NcclComm* comm, void* stream)>
      reduce;
  std::function<NcclResult(const void* input, void* output, size_t count_of_one, NcclType type, NcclReduction reduction,
                           NcclComm* comm, void* stream)>
      reduce_scatter;
  std::function<NcclResult(const void* input, void* output, size_t count_of_one, NcclType type, NcclComm* comm,
                           void* stream)>
      all_gather;
  std::function<NcclResult(const void* input, void* output, size_t count, NcclType type, int root, NcclComm* comm,
                           void* stream)>
      broadcast;
  std::function<NcclResult(const void* data, size_t count, NcclType type, int to, NcclComm* comm, void* stream)> send;
  std::function<NcclResult(void* data, size_t count, NcclType type, int from, NcclComm* comm, void* stream)> recv;
};

// Joins NCCL calls into one operation (ncclGroupStart). After a failed call, later calls are skipped.
class NcclGroup {
 public:
  explicit NcclGroup(const NcclInterface& nccl) : nccl_(nccl), result_(nccl.group_start()) {}

  template <class Call>
  void add(const Call& call) {
    if (result_ == NcclResult::success || result_ == NcclResult::in_progress) result_ = call();
  }

  NcclResult end() {
    const NcclResult ended = nccl_.group_end();
    return result_ == NcclResult::success || result_ == NcclResult::in_progress ? ended : result_;
  }

 private:
  const NcclInterface& nccl_;
  NcclResult result_;
};

// Returns the functions of the library that this process has already loaded. If there is none, loads the library that
// the system finds by name: libnccl.so.2, or librccl.so.1 in a HIP build. Throws UserError if no library is found or if
// it lacks a function.
NcclInterface load_nccl();
NcclInterface load_nccl(const std::string& library);

}  // namespace copus
