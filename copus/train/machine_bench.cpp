#include "copus/train/machine_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/cores.h"
#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/quantile.h"
#include "copus/model/caching_allocator.h"
#include "copus/model/kernels.h"
#include "copus/model/precision.h"
#include "copus/train/device.h"

namespace copus {

namespace {

constexpr int rounds = 25;
constexpr double seconds_per_round = 0.006;  // that are made of as many calls as it takes
constexpr double seconds_to_warm_up = 0.3;

constexpr MachineMeasurements::Matmul reference{.rows = 512, .columns = 512, .depth = 512};
constexpr int64_t lengths[] = {16, 32, 64, 128, 256, 512, 1024, 2048};  // of one dimension, the others as there
constexpr int64_t sequences[] = {32, 64, 128, 256, 512, 1024};
constexpr int64_t attention_tokens = 1024, attention_heads = 4, attention_head_dim = 64;
constexpr int64_t all_reduce_bytes[] = {8, 4 << 10, 64 << 10, 512 << 10, 4 << 20};
// Activations of a micro-batch: they may stay in a cache, as those of small models do.
constexpr int64_t elementwise_rows = 512, elementwise_width = 512;

double seconds_of(clockid_t clock) {
  timespec time{};
  COPUS_CHECK(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
double real_seconds() { return seconds_of(CLOCK_MONOTONIC); }
double thread_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

std::string processor_name() {
  std::istringstream lines(read_text_file("/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

class MachineBench {
 public:
  // `precision` is not automatic.
  MachineBench(Precision precision, World& world)
      : precision_(precision), dtype_(compute_dtype(precision)), world_(world) {}

  MachineMeasurements measure() {
    MachineMeasurements result;
    result.name = concat(processor_name(), ", one core, ", to_string(precision_));
    result.ranks = world_.size();
    result.devices = usable_cores();
    result.memory_bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
    result.reference = reference;
    for (const int64_t length : lengths) {
      for (auto dimension : {&MachineMeasurements::Matmul::rows, &MachineMeasurements::Matmul::columns,
                             &MachineMeasurements::Matmul::depth}) {
        if (length == reference.*dimension) continue;
        MachineMeasurements::Matmul product = reference;
        product.*dimension = length;
        result.matmuls.push_back(product);
      }
    }
    add_matmul(result.reference);
    for (MachineMeasurements::Matmul& product : result.matmuls) add_matmul(product);
    result.attentions.resize(std::size(sequences));
    for (size_t i = 0; i < std::size(sequences); ++i) add_attention(sequences[i], result.attentions[i]);
    add_elementwise(result.memory_bytes_per_second);
    add_launch(result.launch_seconds);
    result.all_reduces.resize(std::size(all_reduce_bytes));
    for (size_t i = 0; i < std::size(all_reduce_bytes); ++i) add_all_reduce(all_reduce_bytes[i], result.all_reduces[i]);

    warm_up();
    for (Probe& probe : probes_) calibrate(probe);
    for (int round = 0; round < rounds; ++round) {
      for (Probe& probe : probes_) probe.seconds.push_back(time(probe));
    }
    for (const Probe& probe : probes_) {
      double median = quantile(probe.seconds, 0.5);
      world_.everyone().all_reduce(&median, 1, DataType::float64);
      probe.store(median / static_cast<double>(world_.size()));
    }
    return result;
  }

 private:
  at::Tensor zeros(at::IntArrayRef shape) const { return kernels::zeros(shape, dtype_, at::kCPU); }

  void warm_up() {
    const at::Tensor x = zeros({reference.rows, reference.depth}), weight = zeros({reference.columns, reference.depth});
    for (const double begin = real_seconds(); real_seconds() < begin + seconds_to_warm_up;)
      kernels::linear(x, weight, {});
  }

  // One figure: what is called, on which clock, and where the seconds of a call go. All are measured in turns, so that
  // a machine that is slower for a while is so for all of them.
  struct Probe {
    double (*now)();
    std::function<void()> call;
    std::function<void(double)> store;
    int64_t calls = 1;  // of a round
    std::vector<double> seconds = {};
  };

  // Computing is timed by what the thread itself needs, so that others who share the cores count less.
  void add_computing(std::function<void()> call, std::function<void(double)> store) {
    probes_.push_back({thread_seconds, std::move(call), std::move(store)});
  }

  void calibrate(Probe& probe) {
    probe.call();
    double once = std::max(time(probe), 1e-9);
    world_.everyone().all_reduce(&once, 1, DataType::float64, Reduction::maximum);
    probe.calls = static_cast<int64_t>(std::clamp(seconds_per_round / once, 1.0, 1e5));
  }

  // Seconds of a call, while all ranks call it.
  double time(const Probe& probe) {
    world_.everyone().barrier();
    const double begin = probe.now();
    for (int64_t i = 0; i < probe.calls; ++i) probe.call();
    return (probe.now() - begin) / static_cast<double>(probe.calls);
  }

  void add_matmul(MachineMeasurements::Matmul& product) {
    const at::Tensor x = zeros({product.rows, product.depth}), weight = zeros({product.columns, product.depth});
    add_computing([x, weight] { kernels::linear(x, weight, {}); },
                  [&product](double seconds) { product.seconds = seconds; });
  }

  void add_attention(int64_t sequence, MachineMeasurements::Attention& attention) {
    const kernels::AttentionShape shape{.batch = std::max<int64_t>(1, attention_tokens / sequence),
                                        .sequence = sequence,
                                        .heads = attention_heads,
                                        .kv_heads = attention_heads,
                                        .head_dim = attention_head_dim};
    const int64_t rows = shape.batch * sequence;
    const at::Tensor qkv = zeros({rows, shape.row()});
    const at::Tensor gradient = zeros({rows, shape.heads * shape.head_dim});
    const kernels::AttentionResult result = kernels::attention(qkv, shape);
    // Two products forward and five backward (Dao 2023), of which causal attention needs half.
    const double product = static_cast<double>(rows * sequence * shape.heads * shape.head_dim);
    attention.sequence = sequence;
    add_computing([=] { kernels::attention(qkv, shape); },
                  [=, &attention](double seconds) { attention.forward_flops_per_second = 2 * product / seconds; });
    add_computing([=] { kernels::attention_backward(gradient, qkv, result, shape); },
                  [=, &attention](double seconds) { attention.backward_flops_per_second = 5 * product / seconds; });
  }

  // Bytes per second of the kernels between the matrix products.
  void add_elementwise(double& bytes_per_second) {
    const at::Tensor a = zeros({elementwise_rows, elementwise_width}), b = zeros({elementwise_rows, elementwise_width});
    const at::Tensor weight = zeros({elementwise_width});
    const double bytes = 4 * static_cast<double>(a.nbytes());  // two operands, two results
    add_computing([=] { kernels::add_rms_norm(a, b, weight, 1e-6); },
                  [=, &bytes_per_second](double seconds) { bytes_per_second = bytes / seconds; });
  }

  void add_launch(double& launch_seconds) {
    const at::Tensor a = zeros({1, 8});
    add_computing([a] { kernels::add(a, a); }, [&launch_seconds](double seconds) { launch_seconds = seconds; });
  }

  void add_all_reduce(int64_t bytes, MachineMeasurements::AllReduce& all_reduce) {
    all_reduce.bytes = bytes;
    const auto data = std::make_shared<std::vector<double>>(static_cast<size_t>(bytes) / sizeof(double));
    const auto count = static_cast<int64_t>(data->size());
    probes_.push_back({real_seconds,
                       [this, data, count] { world_.everyone().all_reduce(data->data(), count, DataType::float64); },
                       [&all_reduce](double seconds) { all_reduce.seconds = seconds; }});
  }

  const Precision precision_;
  const at::ScalarType dtype_;
  World& world_;
  std::vector<Probe> probes_;
};

}  // namespace

MachineMeasurements measure_machine(Precision precision, World& world) {
  COPUS_CHECK(world.size() >= 2, world.size());
  install_caching_allocator();
  configure_aten(1, world.size());
  return MachineBench(agree_on_precision(precision, at::kCPU, world), world).measure();
}

}  // namespace copus
