// Attention by cuDNN, forward and backward. If results must repeat bitwise, its kernels are about twice as fast on GPUs
// of compute capability 9.0 as the flash attention that ATen selects (docs/gpu.md). cuDNN has a bitwise repeatable
// backward pass too, which ATen's front end does not request. This pass keeps d(softmax) of whole rows in memory, so it
// runs for a few sequences at a time.
//
// Building this file needs the headers of cuDNN and cudnn-frontend (CMakeLists.txt). At run time it uses the cuDNN
// library that libtorch has loaded.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <cudnn.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels/device_stream.h"
#include "copus/model/kernels/kernel_implementations.h"
#include "copus/placement/attention_workspace.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the library in which cudnn-frontend looks up functions
}

namespace copus::kernels::on_cudnn {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;

enum Operand : int64_t {
  query,
  key,
  value,
  output,
  log_sum_exp,
  output_gradient,
  query_gradient,
  key_gradient,
  value_gradient
};

// Runs `call`, which allocates device memory outside of ATen's allocator. If memory is lacking, empties ATen's cache
// and tries again. If memory is still lacking, throws as the allocator does. Returns other errors.
fe::error_t with_memory(at::Device device, const std::function<fe::error_t()>& call) {
  fe::error_t error = call();
  if (error.is_good()) return error;
  c10::getDeviceAllocator(device.type())->emptyCache();
  error = call();
  if (error.is_good()) return error;
  constexpr size_t least_bytes = size_t{64} << 20;  // partly for a kernel's code and local memory
  size_t free_bytes = 0, total_bytes = 0;
  const bool is_full = cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess && free_bytes < least_bytes;
  TORCH_CHECK_WITH(OutOfMemoryError, !is_full, "cuDNN: ", error.get_message());
  return error;
}

void succeed(at::Device device, const std::function<fe::error_t()>& call) {
  fe::error_t error = with_memory(device, call);
  COPUS_CHECK(error.is_good(), "cuDNN: ", error.get_message());
}

fe::error_t as_error(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  return {fe::error_code_t::HANDLE_ERROR, fe::detail::get_error_string(status)};
}

// A cuDNN handle. Each thread needs its own.
class Handle {
 public:
  explicit Handle(at::Device device) {
    succeed(device, [this] { return as_error(fe::detail::create_handle(&handle_)); });
  }
  ~Handle() { fe::detail::destroy_handle(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // Returns the handle, for work on the device's current stream.
  cudnnHandle_t on_stream_of(at::Device device) const {
    auto* const stream = static_cast<cudaStream_t>(current_stream_handle(device));
    succeed(device, [&] { return as_error(fe::detail::set_stream(handle_, stream)); });
    return handle_;
  }

 private:
  cudnnHandle_t handle_ = nullptr;
};

// Describes a tensor as [batch, heads, sequence, head_dim] within rows of `row` elements.
void place(Tensor_attributes& tensor, Operand operand, const AttentionShape& shape, int64_t heads, int64_t row) {
  tensor.set_uid(operand)
      .set_dim({shape.batch, heads, shape.sequence, shape.head_dim})
      .set_stride({shape.sequence * row, shape.head_dim, row, 1});
}

void place_log_sum_exp(Tensor_attributes& tensor, const AttentionShape& shape) {
  tensor.set_uid(log_sum_exp)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({shape.batch, shape.heads, shape.sequence, 1})
      .set_stride({shape.heads * shape.sequence, shape.sequence, 1, 1});
}

std::shared_ptr<Tensor_attributes> input(Graph& graph, Operand operand, const AttentionShape& shape, int64_t heads,
                                         int64_t row) {
  Tensor_attributes tensor;
  place(tensor, operand, shape, heads, row);
  return graph.tensor(tensor);
}

std::unique_ptr<Graph> new_graph() {
  auto graph = std::make_unique<Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

float scale_of(const AttentionShape& shape) { return static_cast<float>(shape.scale()); }

int64_t output_row(const AttentionShape& shape) { return shape.heads * shape.head_dim; }

std::unique_ptr<Graph> forward_graph(const AttentionShape& shape) {
  std::unique_ptr<Graph> graph = new_graph();
  auto [result, statistics] = graph->sdpa(input(*graph, query, shape, shape.heads, shape.row()),
                                          input(*graph, key, shape, shape.kv_heads, shape.row()),
                                          input(*graph, value, shape, shape.kv_heads, shape.row()),
                                          fe::graph::SDPA_attributes()
                                              .set_name("attention")
                                              .set_generate_stats(true)
                                              .set_causal_mask(true)
                                              .set_attn_scale(scale_of(shape)));
  place(result->set_output(true), output, shape, shape.heads, output_row(shape));
  place_log_sum_exp(statistics->set_output(true), shape);
  return graph;
}

std::unique_ptr<Graph> backward_graph(const AttentionShape& shape) {
  std::unique_ptr<Graph> graph = new_graph();
  Tensor_attributes statistics;
  place_log_sum_exp(statistics, shape);
  auto [d_query, d_key, d_value] = graph->sdpa_backward(
      input(*graph, query, shape, shape.heads, shape.row()), input(*graph, key, shape, shape.kv_heads, shape.row()),
      input(*graph, value, shape, shape.kv_heads, shape.row()),
      input(*graph, output, shape, shape.heads, output_row(shape)),
      input(*graph, output_gradient, shape, shape.heads, output_row(shape)), graph->tensor(statistics),
      fe::graph::SDPA_backward_attributes()
          .set_name("attention backward")
          .set_causal_mask(true)
          .set_attn_scale(scale_of(shape))
          .set_deterministic_algorithm(true));
  place(d_query->set_output(true), query_gradient, shape, shape.heads, shape.row());
  place(d_key->set_output(true), key_gradient, shape, shape.kv_heads, shape.row());
  place(d_value->set_output(true), value_gradient, shape, shape.kv_heads, shape.row());
  return graph;
}

// Prepares a graph's kernels. Returns false if cuDNN has none.
bool prepare(Graph& graph, cudnnHandle_t handle, at::Device device) {
  const bool is_supported = graph.validate().is_good() && graph.build_operation_graph(handle).is_good() &&
                            graph.create_execution_plans({fe::HeurMode_t::A}).is_good() &&
                            graph.check_support().is_good();
  return is_supported && with_memory(device, [&] { return graph.build_plans(); }).is_good();
}

// The prepared graphs of one attention shape.
struct Plans {
  std::unique_ptr<Graph> forward;   // of all sequences
  std::unique_ptr<Graph> backward;  // of `sequences_at_once` sequences
  int64_t sequences_at_once;
};

// Prepares a shape. Returns null unless cuDNN supports both directions.
std::unique_ptr<Plans> prepare_plans(const AttentionShape& shape, cudnnHandle_t handle, at::Device device) {
  AttentionShape at_once = shape;
  at_once.batch = sequences_of_attention_backward(shape.batch, shape.heads, shape.sequence);
  if (at_once.batch == 0) return nullptr;
  auto plans = std::make_unique<Plans>(Plans{forward_graph(shape), backward_graph(at_once), at_once.batch});
  if (!prepare(*plans->forward, handle, device) || !prepare(*plans->backward, handle, device)) return nullptr;
  return plans;
}

// A thread's handle and plans; in some tests ranks are threads.
struct ThreadState {
  explicit ThreadState(at::Device device) : handle(device) {}
  Handle handle;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, double>, std::unique_ptr<Plans>> plans;
};

// Each thread uses only one device.
ThreadState& thread_state(at::Device device) {
  thread_local ThreadState state(device);
  return state;
}

// Returns whether libtorch has loaded cuDNN, and passes the library to cudnn-frontend.
bool has_library() {
  static const bool is_loaded = [] {
    fe::cudnn_dlhandle = dlopen(concat("libcudnn.so.", CUDNN_MAJOR).c_str(), RTLD_NOW | RTLD_NOLOAD);
    // Without this, cudnn-frontend opens any CUDA runtime that it finds, perhaps of another version.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", concat("libcudart.so.", CUDART_VERSION / 1000).c_str(), /*overwrite=*/0);
    return fe::cudnn_dlhandle != nullptr;
  }();
  return is_loaded;
}

const Plans* find_plans(const at::Tensor& qkv, const AttentionShape& shape) {
  ThreadState& state = thread_state(qkv.device());
  const std::tuple name(shape.batch, shape.sequence, shape.heads, shape.kv_heads, shape.head_dim, shape.scale());
  auto found = state.plans.find(name);
  if (found == state.plans.end()) {
    auto plans = prepare_plans(shape, state.handle.on_stream_of(qkv.device()), qkv.device());
    found = state.plans.emplace(name, std::move(plans)).first;
  }
  return found->second.get();
}

const Plans& plans_of(const at::Tensor& qkv, const AttentionShape& shape) {
  const Plans* const plans = find_plans(qkv, shape);
  COPUS_CHECK(plans != nullptr, "attention that cuDNN does not take");
  return *plans;
}

void execute(const Graph& graph, std::unordered_map<int64_t, void*> operands, at::Device device) {
  int64_t bytes = 0;
  succeed(device, [&] { return graph.get_workspace_size(bytes); });
  const at::Tensor workspace = empty({bytes}, at::kByte, device);
  const cudnnHandle_t handle = thread_state(device).handle.on_stream_of(device);
  succeed(device, [&] { return graph.execute(handle, operands, workspace.data_ptr()); });
}

// Returns the address of column `columns` in the first row of sequence `first`.
char* at_sequence(const at::Tensor& rows, const AttentionShape& shape, int64_t first, int64_t columns) {
  COPUS_CHECK(rows.is_contiguous());
  return static_cast<char*>(rows.data_ptr()) +
         (first * shape.sequence * rows.size(1) + columns) * static_cast<int64_t>(rows.element_size());
}

}  // namespace

bool is_for(at::Device device) {
  if (!device.is_cuda() || !has_library()) return false;
  int major = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
  COPUS_CHECK(error == cudaSuccess, cudaGetErrorString(error));
  return major == 9;
}

bool takes_attention(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.scalar_type() == at::kBFloat16 && qkv.is_contiguous() && !shape.has_window() &&
         !shape.documents.defined() && shape.softcap == 0 && shape.head_dim % 8 == 0 && shape.head_dim <= 128 &&
         is_for(qkv.device()) && find_plans(qkv, shape) != nullptr;
}

AttentionResult attention(const at::Tensor& qkv, const AttentionShape& shape) {
  const Plans& plans = plans_of(qkv, shape);
  const int64_t keys = output_row(shape), values = keys + shape.kv_heads * shape.head_dim;
  AttentionResult result{empty({shape.batch * shape.sequence, output_row(shape)}, qkv.scalar_type(), qkv.device()),
                         empty({shape.batch, shape.heads, shape.sequence}, at::kFloat, qkv.device())};
  execute(*plans.forward,
          {{query, at_sequence(qkv, shape, 0, 0)},
           {key, at_sequence(qkv, shape, 0, keys)},
           {value, at_sequence(qkv, shape, 0, values)},
           {output, result.output.data_ptr()},
           {log_sum_exp, result.log_sum_exp.data_ptr()}},
          qkv.device());
  return result;
}

at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionResult& forward,
                              const AttentionShape& shape) {
  const Plans& plans = plans_of(qkv, shape);
  const int64_t keys = output_row(shape), values = keys + shape.kv_heads * shape.head_dim;
  const at::Tensor dy = gradient.contiguous();
  at::Tensor qkv_gradient = empty(qkv.sizes(), qkv.scalar_type(), qkv.device());
  for (int64_t first = 0; first < shape.batch; first += plans.sequences_at_once) {
    execute(*plans.backward,
            {{query, at_sequence(qkv, shape, first, 0)},
             {key, at_sequence(qkv, shape, first, keys)},
             {value, at_sequence(qkv, shape, first, values)},
             {output, at_sequence(forward.output, shape, first, 0)},
             {output_gradient, at_sequence(dy, shape, first, 0)},
             {log_sum_exp, forward.log_sum_exp.select(0, first).data_ptr()},
             {query_gradient, at_sequence(qkv_gradient, shape, first, 0)},
             {key_gradient, at_sequence(qkv_gradient, shape, first, keys)},
             {value_gradient, at_sequence(qkv_gradient, shape, first, values)}},
            qkv.device());
  }
  return qkv_gradient;
}

}  // namespace copus::kernels::on_cudnn
