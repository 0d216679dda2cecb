#include "copus/workshop/profile/machine_bench.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/base/numbers/quantile.h"
#include "copus/base/process/available_memory.h"
#include "copus/base/process/cores.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/model/memory/device_memory.h"
#include "copus/report/progress/command_progress.h"
#include "copus/train/run/device.h"

namespace copus {

namespace {

// Parameters of the measurements on one kind of device.
struct Sizes {
  int rounds;
  double seconds_per_round;  // each round makes as many calls as this time allows
  double seconds_to_warm_up;
  double seconds_of_work_before;       // work before the measurement in each round
  int64_t reference;                   // rows, columns and depth of the reference matrix product
  std::span<const int64_t> lengths;    // values to which one of these three is changed
  std::span<const int64_t> sequences;  // of attention
  int64_t attention_tokens, attention_heads, attention_head_dim;
  int64_t elementwise_rows, elementwise_width;
  std::span<const int64_t> all_reduce_bytes;
};

constexpr int64_t cpu_lengths[] = {16, 32, 64, 128, 256, 512, 1024, 2048};
constexpr int64_t cpu_sequences[] = {32, 64, 128, 256, 512, 1024};
constexpr int64_t cpu_all_reduces[] = {8, 4 << 10, 64 << 10, 512 << 10, 4 << 20};
// Activations of a micro-batch have 512 rows. As in small models, they may stay in a cache.
constexpr Sizes cpu_sizes = {.rounds = 25,
                             .seconds_per_round = 0.006,
                             .seconds_to_warm_up = 0.3,
                             .seconds_of_work_before = 0,
                             .reference = 512,
                             .lengths = cpu_lengths,
                             .sequences = cpu_sequences,
                             .attention_tokens = 1024,
                             .attention_heads = 4,
                             .attention_head_dim = 64,
                             .elementwise_rows = 512,
                             .elementwise_width = 512,
                             .all_reduce_bytes = cpu_all_reduces};

constexpr int64_t gpu_lengths[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192};
constexpr int64_t gpu_sequences[] = {512, 1024, 2048, 4096, 8192};
constexpr int64_t gpu_all_reduces[] = {8, 64 << 10, 1 << 20, 16 << 20, 128 << 20};
// The sizes occur with micro-batches of 8192 tokens in a model with some billions of parameters, whose activations do
// not fit into any cache. Training keeps a GPU at its power limit, where its clock is lower than after a pause: on an
// H200, products in the first second are a tenth faster than within the steps of a run. Each round therefore begins
// with some work.
constexpr Sizes gpu_sizes = {.rounds = 7,
                             .seconds_per_round = 0.02,
                             .seconds_to_warm_up = 1,
                             .seconds_of_work_before = 1.5,
                             .reference = 4096,
                             .lengths = gpu_lengths,
                             .sequences = gpu_sequences,
                             .attention_tokens = 8192,
                             .attention_heads = 16,
                             .attention_head_dim = 128,
                             .elementwise_rows = 8192,
                             .elementwise_width = 4096,
                             .all_reduce_bytes = gpu_all_reduces};

double seconds_of(clockid_t clock) {
  timespec time{};
  COPUS_CHECK(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
double real_seconds() { return seconds_of(CLOCK_MONOTONIC); }
double thread_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

class MachineBench {
 public:
  // `precision` must not be automatic. `connection_bytes`: World::communicator_bytes() before any group was opened.
  MachineBench(Precision precision, at::Device device, int64_t devices, int64_t connection_bytes, World& world)
      : precision_(precision),
        dtype_(compute_dtype(precision)),
        device_(device),
        sizes_(device.is_cpu() ? cpu_sizes : gpu_sizes),
        devices_(devices),
        connection_bytes_(connection_bytes),
        world_(world) {}

  MachineMeasurements measure() {
    MachineMeasurements result;
    result.name =
        measured_device_name(concat(device_name(device_), device_.is_cpu() ? ", one core" : ""), to_string(precision_));
    result.ranks = world_.size();
    result.devices = devices_;
    result.are_shared = device_.is_cpu() || devices_ == 1;
    result.memory_bytes = memory_bytes();
    fill_operands();
    result.reference = {.rows = sizes_.reference, .columns = sizes_.reference, .depth = sizes_.reference};
    result.reference_is_sustained = sizes_.seconds_of_work_before > 0;
    for (const int64_t length : sizes_.lengths) {
      for (auto dimension : {&MachineMeasurements::Matmul::rows, &MachineMeasurements::Matmul::columns,
                             &MachineMeasurements::Matmul::depth}) {
        if (length == result.reference.*dimension) continue;
        MachineMeasurements::Matmul product = result.reference;
        product.*dimension = length;
        result.matmuls.push_back(product);
      }
    }
    add_matmul(result.reference);
    for (MachineMeasurements::Matmul& product : result.matmuls) add_matmul(product);
    result.attentions.resize(sizes_.sequences.size());
    for (size_t i = 0; i < sizes_.sequences.size(); ++i) add_attention(sizes_.sequences[i], result.attentions[i]);
    add_elementwise(result.memory_bytes_per_second);
    add_launch(result.launch_seconds);
    result.all_reduces.resize(sizes_.all_reduce_bytes.size());
    for (size_t i = 0; i < sizes_.all_reduce_bytes.size(); ++i) {
      add_all_reduce(sizes_.all_reduce_bytes[i], result.all_reduces[i]);
    }

    if (computes_here()) multiply_for(sizes_.seconds_to_warm_up);
    for (Probe& probe : probes_) calibrate(probe);
    std::optional<CommandProgress> progress;
    if (world_.rank() == 0) progress.emplace("rounds of measuring", sizes_.rounds);
    for (int round = 0; round < sizes_.rounds; ++round) {
      if (progress) progress->show(round);
      if (computes_here()) multiply_for(sizes_.seconds_of_work_before);
      for (Probe& probe : probes_) probe.seconds.push_back(time(probe));
    }
    progress.reset();
    for (const Probe& probe : probes_) {
      double median = is_active(probe) ? quantile(probe.seconds, 0.5) : 0;
      world_.everyone().all_reduce(&median, 1, DataType::float64);
      probe.store(median / static_cast<double>(probe.computes ? computing_ranks() : world_.size()));
    }
    const CommunicatorCosts costs = world_.communicator_costs();
    if (costs.are_measured() && world_.size() <= devices_) {  // ranks on one GPU measure each other
      result.communicators = costs;
      measure_context(result);
    }
    return result;
  }

 private:
  // One measurement: the function to call, and where the seconds of a call are stored. All probes take turns, so that a
  // temporary slowdown of the machine affects all of them.
  struct Probe {
    bool computes;  // otherwise it communicates
    std::function<void()> call;
    std::function<void(double)> store;
    int64_t calls = 1;  // per round
    std::vector<double> seconds = {};
  };

  // Ranks beyond the number of GPUs only communicate; on a CPU all ranks compute.
  int64_t computing_ranks() const { return device_.is_cpu() ? world_.size() : std::min(devices_, world_.size()); }
  bool computes_here() const { return world_.rank() < computing_ranks(); }
  bool is_active(const Probe& probe) const { return !probe.computes || computes_here(); }

  double memory_bytes() const {
    if (device_.is_cpu()) return static_cast<double>(usable_memory_bytes());
    return static_cast<double>(devices_ * free_memory_bytes(device_));
  }

  // Measures the memory of the device's context, that is, used memory other than tensors and communicators. Predictions
  // add the context and the communicators to a job's tensors. The connection from which communicators are split counts
  // as context, because every rank has it in any layout.
  void measure_context(MachineMeasurements& result) {
    const DeviceMemory memory = device_memory(device_);
    const int64_t communicators = world_.communicator_bytes() - connection_bytes_;
    const int64_t bytes = memory.total_bytes - memory.reserved_bytes - communicators - free_memory_bytes(device_);
    result.communicators.context_bytes = static_cast<double>(std::max<int64_t>(0, bytes));
    world_.everyone().all_reduce(&result.communicators.context_bytes, 1, DataType::float64, Reduction::maximum);
    result.memory_bytes = static_cast<double>(devices_ * memory.total_bytes);
  }

  // The result, like all operands, is undefined on ranks that do not compute.
  at::Tensor zeros(at::IntArrayRef shape) const {
    return computes_here() ? kernels::zeros(shape, dtype_, device_) : at::Tensor();
  }

  // Fills operands with values as in training, because a GPU's clock depends on how many bits change in its matrix
  // products. One tensor holds the first operands of all products, another the second operands.
  enum class Operand { first, second };
  void fill_operands() {
    if (device_.is_cpu() || !computes_here()) return;
    const int64_t longest = std::max(sizes_.reference, sizes_.lengths.back());
    const int64_t widest = std::max(sizes_.elementwise_width, 3 * sizes_.attention_heads * sizes_.attention_head_dim);
    const int64_t rows = std::max(sizes_.elementwise_rows, sizes_.attention_tokens);
    std::vector<float> values(static_cast<size_t>(std::max(longest * sizes_.reference, rows * widest)));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(static_cast<int64_t>(mix_bits(i))) * 0x1p-63F;
    }
    const auto count = static_cast<int64_t>(values.size());
    const at::Tensor in_fp32 = kernels::empty({count}, at::kFloat, device_);
    kernels::copy_from_host(values.data(), in_fp32);
    for (at::Tensor& operands : operands_) {
      operands = kernels::empty({count}, dtype_, device_);
      kernels::round_to(in_fp32, operands);
    }
  }
  at::Tensor operand(Operand which, int64_t rows, int64_t columns) const {
    if (device_.is_cpu() || !computes_here()) return zeros({rows, columns});
    return operands_[static_cast<size_t>(which)].narrow(0, 0, rows * columns).view({rows, columns});
  }

  void multiply_for(double seconds) {
    if (seconds == 0) return;
    const at::Tensor x = operand(Operand::first, sizes_.reference, sizes_.reference);
    const at::Tensor weight = operand(Operand::second, sizes_.reference, sizes_.reference);
    for (const double begin = real_seconds(); real_seconds() < begin + seconds;) {
      for (int i = 0; i < 10; ++i) kernels::linear(x, weight, {});
      kernels::synchronize(device_);
    }
  }

  // Returns the time on the clock that suits the probe. Computing on a CPU is measured by the thread's CPU time, so
  // that other processes on these cores have less influence. On a GPU, first waits until its work is done.
  double now(const Probe& probe) const {
    if (device_.is_cpu()) return probe.computes ? thread_seconds() : real_seconds();
    kernels::synchronize(device_);
    return real_seconds();
  }

  void add_computing(std::function<void()> call, std::function<void(double)> store) {
    probes_.push_back({.computes = true, .call = std::move(call), .store = std::move(store)});
  }

  void calibrate(Probe& probe) {
    if (is_active(probe)) probe.call();
    double once = std::max(time(probe), 1e-9);
    world_.everyone().all_reduce(&once, 1, DataType::float64, Reduction::maximum);
    probe.calls = static_cast<int64_t>(std::clamp(sizes_.seconds_per_round / once, 1.0, 1e5));
  }

  // Returns the seconds of one call, while all ranks make the same call.
  double time(const Probe& probe) {
    world_.everyone().barrier();
    if (!is_active(probe)) return 0;
    const double begin = now(probe);
    for (int64_t i = 0; i < probe.calls; ++i) probe.call();
    return (now(probe) - begin) / static_cast<double>(probe.calls);
  }

  void add_matmul(MachineMeasurements::Matmul& product) {
    const at::Tensor x = operand(Operand::first, product.rows, product.depth);
    const at::Tensor weight = operand(Operand::second, product.columns, product.depth);
    add_computing([x, weight] { kernels::linear(x, weight, {}); },
                  [&product](double seconds) { product.seconds = seconds; });
  }

  void add_attention(int64_t sequence, MachineMeasurements::Attention& attention) {
    const kernels::AttentionShape shape{.batch = std::max<int64_t>(1, sizes_.attention_tokens / sequence),
                                        .sequence = sequence,
                                        .heads = sizes_.attention_heads,
                                        .kv_heads = sizes_.attention_heads,
                                        .head_dim = sizes_.attention_head_dim};
    const int64_t rows = shape.batch * sequence;
    const at::Tensor qkv = operand(Operand::first, rows, shape.row());
    const at::Tensor gradient = operand(Operand::second, rows, shape.heads * shape.head_dim);
    // Two products forward and five backward (Dao 2023); causal attention needs half of each.
    const double product = static_cast<double>(rows * sequence * shape.heads * shape.head_dim);
    attention.sequence = sequence;
    const kernels::AttentionResult result =
        computes_here() ? kernels::attention(qkv, shape) : kernels::AttentionResult{};
    add_computing([=] { kernels::attention(qkv, shape); },
                  [=, &attention](double seconds) { attention.forward_flops_per_second = 2 * product / seconds; });
    add_computing([=] { kernels::attention_backward(gradient, qkv, result, shape); },
                  [=, &attention](double seconds) { attention.backward_flops_per_second = 5 * product / seconds; });
  }

  // Bytes per second of the kernels between the matrix products.
  void add_elementwise(double& bytes_per_second) {
    const at::Tensor a = operand(Operand::first, sizes_.elementwise_rows, sizes_.elementwise_width);
    const at::Tensor b = operand(Operand::second, sizes_.elementwise_rows, sizes_.elementwise_width);
    const at::Tensor weight = zeros({sizes_.elementwise_width});
    // two operands and two results
    const double bytes = 4 * static_cast<double>(sizes_.elementwise_rows * sizes_.elementwise_width) *
                         static_cast<double>(c10::elementSize(dtype_));
    add_computing([=] { kernels::add_norm(a, b, weight, {}, 1e-6); },
                  [=, &bytes_per_second](double seconds) { bytes_per_second = bytes / seconds; });
  }

  void add_launch(double& launch_seconds) {
    const at::Tensor a = zeros({1, 8});
    add_computing([a] { kernels::add(a, a); }, [&launch_seconds](double seconds) { launch_seconds = seconds; });
  }

  void add_all_reduce(int64_t bytes, MachineMeasurements::AllReduce& all_reduce) {
    all_reduce.bytes = bytes;
    const at::Tensor data = kernels::zeros({bytes / size_of(DataType::float64)}, at::kDouble, device_);
    probes_.push_back(
        {.computes = false,
         .call = [=, this] { world_.everyone().all_reduce(data.data_ptr(), data.numel(), DataType::float64); },
         .store = [&all_reduce](double seconds) { all_reduce.seconds = seconds; }});
  }

  const Precision precision_;
  const at::ScalarType dtype_;
  const at::Device device_;
  const Sizes& sizes_;
  const int64_t devices_;
  const int64_t connection_bytes_;
  World& world_;
  std::array<at::Tensor, 2> operands_;  // on a GPU
  std::vector<Probe> probes_;
};

}  // namespace

int64_t devices_of_machine(const std::string& device) { return device == "cpu" ? usable_cores() : visible_gpus(); }

MachineMeasurements measure_machine(Precision precision, const std::string& device_name, int64_t local_rank,
                                    std::unique_ptr<World> world) {
  COPUS_CHECK(world->size() >= 2, world->size());
  const at::Device device = find_device(device_name, local_rank, world->size());
  world = connect_devices(std::move(world), device, default_wait_seconds);
  install_caching_allocator();
  configure_aten(1, world->size());
  const int64_t connection_bytes = world->communicator_bytes();
  // Opens every kind of communicator to measure the cost of each. If there are too few hardware queues for messages,
  // message communicators are left out, because this machine could not train pipelines anyway.
  GroupUse everyone{.ranks = world->everyone().ranks(),
                    .messages = GroupUse::Messages::line,
                    .exchanges = true,
                    .collective_bytes = gpu_all_reduces[std::size(gpu_all_reduces) - 1]};
  if (world->prepare({everyone})) {
    everyone.messages = GroupUse::Messages::none;
    world->require({everyone});
  }
  const Precision agreed = agree_on_precision(precision, device, *world);
  return MachineBench(agreed, device, devices_of_machine(device_name), connection_bytes, *world).measure();
}

}  // namespace copus
