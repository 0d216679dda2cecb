#include "copus/workshop/bench/step_bench.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/description/layer_blocks.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/part_timer.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/layers/decoder.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/model/memory/device_memory.h"
#include "copus/train/optimizer/adamw.h"
#include "copus/train/run/device.h"
#include "copus/train/step/gradient_reduction.h"

namespace copus {
namespace {

// Returns the bytes per second that a copy much larger than any cache reads and writes. On a GPU several copies run in
// a row, so that the time of waiting for the last copy is negligible.
double measure_bandwidth(at::Device device) {
  const int64_t elements = int64_t{1} << (device.is_cpu() ? 26 : 28);
  const int copies = device.is_cpu() ? 1 : 8;
  const at::Tensor from = kernels::zeros({elements}, at::kFloat, device);
  const at::Tensor to = kernels::zeros({elements}, at::kFloat, device);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    kernels::synchronize(device);
    const double start = monotonic_seconds();
    for (int i = 0; i < copies; ++i) kernels::round_to(from, to);
    kernels::synchronize(device);
    best = std::max(best, copies * 2.0 * static_cast<double>(from.nbytes()) / (monotonic_seconds() - start));
  }
  return best;
}

// The number of activation elements that a step's element-wise kernels must read or write per token, each operand once.
double elementwise_elements_per_token(const ModelDescription& m) {
  const auto hidden = static_cast<double>(m.hidden_size);
  const double rotated = static_cast<double>((m.num_heads + m.num_kv_heads) * m.head_dim);
  // The tensors that a block's norms access, as reads + writes:
  // - norm of the input, in one kernel with the addition to the residual stream: forward 2 + 2, backward 3 + 1;
  // - norm of the output: forward 1 + 1 for the norm and 2 + 1 for the addition, backward 2 + 1 for each of the two;
  // - both: the norm of the input as above, and a norm of the output without an addition of its own.
  const double norms = (m.block_norm == BlockNorm::input    ? 4 + 4
                        : m.block_norm == BlockNorm::output ? 5 + 6
                                                            : 6 + 7) *
                       hidden;
  const double multiplied = m.residual_multiplier != 1 ? 4 * hidden : 0;  // one in, one out, forward and backward
  // In place, forward and backward.
  const double rotary = 2 * 2 * static_cast<double>((m.num_heads + m.num_kv_heads) * m.rotary_dim());
  // Forward, and again in the backward pass: one in, one out, including values; then the gradient: two in, one out.
  const double values = static_cast<double>(m.num_kv_heads * m.head_dim);
  double normed_heads = m.qk_norm == QkNorm::none ? 0 : 2 * 2 * (rotated + values) + 3 * rotated;
  if (m.qk_norm == QkNorm::projection) normed_heads += 3 * rotated;  // squares: one in; their gradient: two in
  double of_layers = 0;
  for (int64_t layer = 0; layer < m.num_layers; ++layer) {
    const std::vector<BlockDescription> blocks = describe_layer(m, layer);
    for (const BlockDescription& block : blocks) {
      of_layers += norms + multiplied;
      // The tensors that the activation function accesses: forward it reads gate and up and writes one; backward it
      // reads three and writes three. Without a gate each number is one less.
      of_layers += block.kind == BlockKind::attention ? rotary + normed_heads
                                                      : 3 * (block.input_width(1) + block.output_width(1));
    }
    // A sum apart from a norm: two in, one out, then one in, one out.
    if (m.parallel_residual && blocks.size() > 1) of_layers += hidden;
  }
  // Elements that the ends of the model access: the embedding and its gradient, the final norm (without a residual
  // gradient), and the loss. The first norm adds no residual.
  const double multiplied_ends = (m.embedding_multiplier != 1 ? 4 : 0) + (m.logits_scaling != 1 ? 4 : 0);
  const double ends = (2 + 2 + 4 + 3 - 2 + multiplied_ends) * hidden + 2 * static_cast<double>(m.vocab_size);
  return of_layers + ends;
}

// Fills the weights with random numbers on the device, which is good enough for measurements.
// ParameterStore::initialize computes its numbers on the host, which takes some seconds for billions of weights;
// programs that take turns on a GPU would lose these seconds in every turn.
void fill_on_device(ParameterStore& store, double standard_deviation) {
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.tied_copy) continue;
    const at::Tensor master = store.master(parameter);
    if (parameter.info.kind == ParameterKind::embedding || parameter.info.kind == ParameterKind::linear) {
      master.normal_(0, standard_deviation);
    } else {
      master.fill_(parameter.info.kind == ParameterKind::norm ? initial_norm_weight(store.model()) : 0);
    }
  }
  store.publish_weights();
}

}  // namespace

struct StepBench::Implementation {
  StepBenchOptions options;
  at::Device device;
  Precision precision;
  std::vector<BucketState> state;
  ParameterStore store;
  Decoder decoder;
  AdamW optimizer;
  at::Tensor tokens, targets;

  void add_floors(StepBenchResult& result) const;

  explicit Implementation(const StepBenchOptions& o)
      : options(o),
        device(find_device(o.device)),
        precision((use_device(device), configure_aten(o.threads), resolve_precision(o.precision, device))),
        state(allocate_zeros(o.model, whole_model(o.model), compute_dtype(precision),
                             optimizer_slots(OptimizerKind::adamw).size(), *allocator_memory(device))),
        store(o.model, compute_dtype(precision), whole_model(o.model), state),
        decoder(store, o.recompute),
        optimizer(store, OptimizerConfig{}, state) {
    if (device.is_cpu()) {
      store.initialize(1);
    } else {
      fill_on_device(store, o.model.initializer_range);
    }
    const int64_t count = o.micro_batch * o.sequence_length;
    std::vector<int64_t> ids(static_cast<size_t>(count + 1));
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int64_t>(philox(1, 0, i)[0] % static_cast<uint64_t>(o.model.vocab_size));
    }
    tokens = kernels::from_host(ids.data(), {o.micro_batch, o.sequence_length}, device);
    targets = kernels::from_host(ids.data() + 1, {o.micro_batch, o.sequence_length}, device);
  }

  int64_t tokens_per_step() const { return options.micro_batches * options.micro_batch * options.sequence_length; }

  double step() {
    kernels::synchronize(device);
    const double start = monotonic_seconds();
    const double loss_scale = 1.0 / static_cast<double>(tokens_per_step());
    store.zero_gradients();
    for (int64_t i = 0; i < options.micro_batches; ++i) decoder.forward_backward(tokens, targets, loss_scale);
    add_tied_gradient(store);
    const double norm = std::sqrt(optimizer.squared_gradient_norm().value());
    optimizer.step({.number = optimizer.steps() + 1, .learning_rate = 1e-4, .gradient_factor = clip_factor(norm, 1.0)});
    kernels::synchronize(device);
    return monotonic_seconds() - start;
  }
};

StepBench::StepBench(const StepBenchOptions& options) {
  install_caching_allocator();
  implementation_ = std::make_unique<Implementation>(options);
}

StepBench::~StepBench() {
  const at::Device device = implementation_->device;
  implementation_.reset();
  // Returns the memory to the device, because programs that take turns on one GPU need it. Otherwise the allocator
  // would keep it for later tensors.
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
}

double StepBench::run(int64_t steps) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < steps; ++i) seconds.push_back(implementation_->step());
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// The least seconds that each part of a step could take, given the machine's measured peaks in `result`.
void StepBench::Implementation::add_floors(StepBenchResult& result) const {
  const ModelDescription& model = options.model;
  const double trained_tokens = static_cast<double>(tokens_per_step());
  // The attention term of training_flops_per_token counts the whole score matrix. Only the causal half of the matrix is
  // needed, and the backward pass computes the scores again. Each visible score thus takes (2 + 5) / 6 of the
  // convention's operations.
  double score_width = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const BlockDescription& block : describe_layer(model, layer))
      score_width += static_cast<double>(block.score_width);
  }
  const double attention_convention = 24.0 * score_width * attended_tokens(model, options.sequence_length);
  const double peak = result.matmul_peak_gflops * 1e9;
  const double all = training_flops_per_token(model, options.sequence_length);
  result.matmul.floor_seconds = trained_tokens * (all - attention_convention) / peak;
  result.attention.floor_seconds = trained_tokens * attention_convention * (7.0 / 6.0) / 2 / peak;
  const double element = precision == Precision::bf16 ? 2 : 4;
  result.elementwise.floor_seconds =
      trained_tokens * elementwise_elements_per_token(model) * element / result.memory_bandwidth;
  // AdamW reads weight, gradient and moments, and writes weight and moments. The norm and zeroing each need one more
  // pass over the gradients. bf16 weights are rounded from the fp32 weights.
  const double optimizer_bytes = 4 * (7 + 2) + (precision == Precision::bf16 ? 4 + 2 : 0);
  result.optimizer.floor_seconds =
      static_cast<double>(count_parameters(model)) * optimizer_bytes / result.memory_bandwidth;
}

StepBenchResult StepBench::measure(int64_t steps) {
  COPUS_CHECK(steps > 0);
  Implementation& bench = *implementation_;
  bench.step();
  reset_peak_device_memory(bench.device);

  std::vector<double> seconds;
  const auto run_steps = [&] {
    seconds.clear();
    for (int64_t i = 0; i < steps; ++i) seconds.push_back(bench.step());
  };
  StepBenchResult result{};
  {
    const PartTimes times(bench.device);
    run_steps();
    const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    const double n = static_cast<double>(steps);
    result.matmul.seconds = times.seconds(Part::matmul) / n;
    result.attention.seconds = times.seconds(Part::attention) / n;
    result.elementwise.seconds = times.seconds(Part::elementwise) / n;
    result.optimizer.seconds = times.seconds(Part::optimizer) / n;
    result.other_seconds = total / n - result.matmul.seconds - result.attention.seconds - result.elementwise.seconds -
                           result.optimizer.seconds;
  }
  if (!bench.device.is_cpu()) run_steps();  // without the events, which take time themselves
  std::sort(seconds.begin(), seconds.end());
  result.steps = steps;
  result.seconds_per_step = seconds[seconds.size() / 2];
  result.fastest_seconds = seconds.front();
  result.slowest_seconds = seconds.back();
  result.peak_memory_bytes = device_memory(bench.device).peak_used_bytes;

  const ModelDescription& model = bench.options.model;
  const double tokens = static_cast<double>(bench.tokens_per_step());
  result.tokens_per_second = tokens / result.seconds_per_step;
  result.gflops = result.tokens_per_second * training_flops_per_token(model, bench.options.sequence_length) / 1e9;
  const int64_t n = bench.device.is_cpu() ? 2048 : 8192;
  const double product = 2.0 * static_cast<double>(n * n * n);
  result.matmul_peak_gflops = product / kernels::time_matmul(n, compute_dtype(bench.precision), bench.device) / 1e9;
  result.mfu = result.gflops / result.matmul_peak_gflops;
  const double data_sheet = bench.options.device_peak_flops_per_second;
  result.mfu_uniform = data_sheet > 0 ? result.gflops * 1e9 / data_sheet : std::numeric_limits<double>::quiet_NaN();
  result.memory_bandwidth = measure_bandwidth(bench.device);
  result.precision = to_string(bench.precision);
  bench.add_floors(result);
  return result;
}

}  // namespace copus
