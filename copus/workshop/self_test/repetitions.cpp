#include "copus/workshop/self_test/repetitions.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/base/text/units.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

constexpr int repetitions = 3;
// NCCL chooses its algorithm by size. For large vectors it may choose NVLS, whose sums do not repeat. On a GPU, sizes
// therefore range from 1 KiB to 16 MiB of fp32.
constexpr int64_t counts_on_host[] = {257, 30'007};
constexpr int64_t counts_on_device[] = {257, 300'007, int64_t{1} << 22};

using RawBytes = std::vector<std::byte>;

class RepetitionChecks {
 public:
  RepetitionChecks(Communicator& group, at::Device device, uint64_t seed)
      : group_(group), device_(device), seed_(extend_hash(seed, static_cast<uint64_t>(group.rank()))) {}

  std::optional<std::string> run() {
    using Counts = std::span<const int64_t>;
    const Counts counts = device_.is_cpu() ? Counts(counts_on_host) : Counts(counts_on_device);
    // Each round makes all calls before the next round repeats them, so that members arrive with different timing.
    for (int round = 0; round < repetitions; ++round) {
      for (const int64_t count : counts) {
        for (const DataType type : {DataType::float32, DataType::bfloat16}) all_collectives(count, type, round);
      }
    }
    return difference_;
  }

 private:
  void all_collectives(int64_t count, DataType type, int round) {
    const int64_t member = group_.rank();
    std::vector<int64_t> counts(static_cast<size_t>(group_.size()), count / group_.size());
    counts.back() += count % group_.size();
    const at::Tensor whole = on_device(random_numbers(count, type));
    const int64_t bytes = size_of(type), begin = member * (count / group_.size());

    const at::Tensor added = whole.clone();
    group_.all_reduce(added.data_ptr(), count, type);
    compare("all-reduce", added, count, type, round);

    const at::Tensor gathered = on_device(RawBytes(static_cast<size_t>(count * bytes)));
    const auto* const own = static_cast<const std::byte*>(whole.const_data_ptr()) + begin * bytes;
    group_.all_gather(own, gathered.data_ptr(), counts, type);
    compare("all-gather", gathered, count, type, round);

    const at::Tensor sent = whole.clone();
    group_.broadcast(sent.data_ptr(), count, type, group_.size() - 1);
    compare("broadcast", sent, count, type, round);

    const at::Tensor part = on_device(RawBytes(static_cast<size_t>(counts[static_cast<size_t>(member)] * bytes)));
    group_.reduce_scatter(whole.data_ptr(), part.data_ptr(), counts, type);
    compare("reduce-scatter", part, count, type, round);
  }

  // Numbers in (-256, 256) of many magnitudes, so that sums have to be rounded.
  RawBytes random_numbers(int64_t count, DataType type) const {
    const auto size = static_cast<size_t>(size_of(type));
    RawBytes bytes(static_cast<size_t>(count) * size);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t drawn = extend_hash(seed_, static_cast<uint64_t>(i));
      const auto value = static_cast<float>(static_cast<int32_t>(drawn >> 32)) * 0x1p-31F;
      uint32_t bits = std::bit_cast<uint32_t>(value * static_cast<float>(1U << drawn % 9));
      if (type == DataType::bfloat16) bits >>= 16;
      std::memcpy(bytes.data() + static_cast<size_t>(i) * size, &bits, size);
    }
    return bytes;
  }

  at::Tensor on_device(const RawBytes& bytes) const {
    at::Tensor tensor = kernels::empty({std::ssize(bytes)}, at::kByte, device_);
    kernels::copy_from_host(bytes.data(), tensor);
    return tensor;
  }

  void compare(const char* operation, const at::Tensor& result, int64_t count, DataType type, int round) {
    RawBytes found(static_cast<size_t>(result.numel()));
    kernels::copy_to_host(result, found.data());
    const std::string what = concat(operation, " of ", count, type == DataType::float32 ? " fp32" : " bf16");
    const RawBytes& expected = first_.try_emplace(what, found).first->second;
    if (difference_ || found == expected) return;
    const auto at = std::mismatch(found.begin(), found.end(), expected.begin()).first - found.begin();
    const int64_t element = at / size_of(type);
    difference_ = concat(what, ": element ", element, " is ", describe(found, element, type), " in repetition ",
                         round + 1, " and was ", describe(expected, element, type));
  }

  // Nine digits distinguish all fp32 numbers.
  static std::string describe(const RawBytes& bytes, int64_t element, DataType type) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + element * size_of(type), static_cast<size_t>(size_of(type)));
    if (type == DataType::bfloat16) bits <<= 16;
    return format_number("%.9g", std::bit_cast<float>(bits));
  }

  Communicator& group_;
  const at::Device device_;
  const uint64_t seed_;                    // of this member's numbers
  std::map<std::string, RawBytes> first_;  // results of the first round, by call
  std::optional<std::string> difference_;
};

}  // namespace

std::optional<std::string> find_unrepeated_result(Communicator& group, at::Device device, uint64_t seed) {
  return RepetitionChecks(group, device, seed).run();
}

}  // namespace copus
