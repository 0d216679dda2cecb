#include "copus/workshop/self_test/collectives.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

// `few` is so small that some members have no elements. `many` is more than one chunk of any transport, in parts of odd
// lengths.
constexpr int64_t few = 7, many = 300'007;

struct Kind {
  DataType type;
  const char* name;
};
constexpr Kind kinds[] = {{DataType::float32, "fp32"}, {DataType::bfloat16, "bf16"}, {DataType::int64, "int64"}};

using Values = std::vector<int64_t>;

Values part(const Values& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

// Whole numbers up to 256 are exact in all types, so converting them drops only zero bits.
void encode(const Values& values, DataType type, std::byte* bytes) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DataType::int64) {
      std::memcpy(bytes + 8 * i, &values[i], 8);
      continue;
    }
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(values[i]));
    const auto upper = static_cast<uint16_t>(bits >> 16);
    if (type == DataType::float32) std::memcpy(bytes + 4 * i, &bits, 4);
    if (type == DataType::bfloat16) std::memcpy(bytes + 2 * i, &upper, 2);
  }
}

std::string decode(const std::byte* bytes, DataType type) {
  if (type == DataType::int64) {
    int64_t value = 0;
    std::memcpy(&value, bytes, 8);
    return concat(value);
  }
  uint32_t bits = 0;
  if (type == DataType::float32) std::memcpy(&bits, bytes, 4);
  if (type == DataType::bfloat16) {
    uint16_t upper = 0;
    std::memcpy(&upper, bytes, 2);
    bits = static_cast<uint32_t>(upper) << 16;
  }
  return concat(std::bit_cast<float>(bits));
}

// Elements of one type on the device.
class Buffer {
 public:
  Buffer(const Values& values, DataType type, at::Device device)
      : type_(type),
        bytes_(values.size() * static_cast<size_t>(size_of(type))),
        tensor_(kernels::empty({static_cast<int64_t>(bytes_)}, at::kByte, device)) {
    std::vector<std::byte> host(bytes_);
    encode(values, type, host.data());
    kernels::copy_from_host(host.data(), tensor_);
  }

  // Address of the element at `index`.
  void* at(int64_t index = 0) const { return static_cast<std::byte*>(tensor_.data_ptr()) + index * size_of(type_); }

  // Returns how the elements from `begin` on differ from the expected elements; empty if they do not.
  std::optional<std::string> difference(const Values& expected, int64_t begin = 0) const {
    const auto size = static_cast<size_t>(size_of(type_));
    std::vector<std::byte> found(bytes_), right(expected.size() * size);
    kernels::copy_to_host(tensor_, found.data());
    encode(expected, type_, right.data());
    const std::byte* const from = found.data() + static_cast<size_t>(begin) * size;
    int64_t wrong = 0;
    size_t first = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::memcmp(from + i * size, right.data() + i * size, size) == 0) continue;
      if (wrong++ == 0) first = i;
    }
    if (wrong == 0) return std::nullopt;
    return concat("element ", first, " is ", decode(from + first * size, type_), ", expected ", expected[first], " (",
                  wrong, " of ", expected.size(), " are wrong)");
  }

 private:
  DataType type_;
  size_t bytes_;
  at::Tensor tensor_;
};

class OperationChecks {
 public:
  OperationChecks(Communicator& group, at::Device device) : group_(group), device_(device) {}

  std::optional<std::string> run() {
    for (const int64_t count : {few, many}) {
      prepare(count);
      for (const Kind& kind : kinds) {
        kind_ = kind;
        all_reduce();
        reduce_scatter();
        all_gather();
        broadcast();
        message(+1);
        message(-1);
        exchange();
      }
    }
    return wrong_;
  }

 private:
  int64_t size() const { return group_.size(); }
  int64_t here() const { return group_.rank(); }
  int64_t count_of(int64_t member) const { return counts_[static_cast<size_t>(member)]; }
  int64_t begin_of(int64_t member) const {
    return std::accumulate(counts_.begin(), counts_.begin() + member, int64_t{0});
  }

  // Prepares parts of different sizes, some of them empty if there are more members than elements, and the expected
  // results over all members.
  void prepare(int64_t count) {
    count_ = count;
    counts_.assign(static_cast<size_t>(size()), count / size());
    counts_.back() += count % size();
    sum_ = largest_ = given_by(0);
    for (int64_t member = 1; member < size(); ++member) {
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        sum_[at] += value(member, i);
        largest_[at] = std::max(largest_[at], value(member, i));
      }
    }
  }

  // Returns the value that a member contributes. At most 64 members contribute nonzero values to an element, so that
  // sums stay within 256.
  int64_t value(int64_t member, int64_t index) const {
    const int64_t sparse = (size() + 63) / 64;
    if ((member + index) % sparse != 0) return 0;
    return 1 + static_cast<int64_t>(mix_bits(static_cast<uint64_t>(member * many + index)) % 4);
  }
  Values given_by(int64_t member, int64_t begin, int64_t count) const {
    Values values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value(member, begin + i);
    return values;
  }
  Values given_by(int64_t member) const { return given_by(member, 0, count_); }

  Buffer buffer(const Values& values) const { return {values, kind_.type, device_}; }
  Buffer zeros(int64_t count) const { return buffer(Values(static_cast<size_t>(count))); }

  // Only the first wrong result is reported; later ones may be consequences.
  void expect(const std::string& operation, const Buffer& found, const Values& values, int64_t begin = 0) {
    const std::optional<std::string> difference = found.difference(values, begin);
    if (difference && !wrong_) wrong_ = concat(operation, " of ", count_, " ", kind_.name, ": ", *difference);
  }

  // Starts two at once, as in training.
  void all_reduce() {
    const Buffer added = buffer(given_by(here())), largest = buffer(given_by(here()));
    const Work first = group_.start_all_reduce(added.at(), count_, kind_.type, Reduction::sum);
    const Work second = group_.start_all_reduce(largest.at(), count_, kind_.type, Reduction::maximum);
    first.wait();
    second.wait();
    expect("all-reduce", added, sum_);
    expect("all-reduce (maximum)", largest, largest_);
  }

  // A large vector is reduced in place, as gradients are: the output is the member's own part of the input. A small
  // vector is reduced into another buffer.
  void reduce_scatter() {
    const Buffer input = buffer(given_by(here())), apart = zeros(count_of(here()));
    const bool in_place = count_ == many;
    group_.reduce_scatter(input.at(), in_place ? input.at(begin_of(here())) : apart.at(), counts_, kind_.type);
    expect("reduce-scatter", in_place ? input : apart, part(sum_, begin_of(here()), count_of(here())),
           in_place ? begin_of(here()) : 0);
  }

  void all_gather() {
    const Values mine = given_by(here(), begin_of(here()), count_of(here()));
    Values output_before(static_cast<size_t>(count_)), expected;
    std::copy(mine.begin(), mine.end(), output_before.begin() + begin_of(here()));
    for (int64_t member = 0; member < size(); ++member) {
      const Values theirs = given_by(member, begin_of(member), count_of(member));
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    const bool in_place = count_ == many;
    const Buffer input = buffer(mine), output = in_place ? buffer(output_before) : zeros(count_);
    group_.all_gather(in_place ? output.at(begin_of(here())) : input.at(), output.at(), counts_, kind_.type);
    expect("all-gather", output, expected);
  }

  void broadcast() {
    for (const int64_t root : {int64_t{0}, size() - 1}) {
      const Buffer data = here() == root ? buffer(given_by(root)) : zeros(count_);
      group_.broadcast(data.at(), count_, kind_.type, root);
      expect(concat("broadcast from rank ", group_.ranks()[static_cast<size_t>(root)]), data, given_by(root));
    }
  }

  // All members send to the next member (or the previous one) at the same time.
  void message(int64_t direction) {
    const int64_t to = (here() + direction + size()) % size(), from = (here() - direction + size()) % size();
    const Buffer sent = buffer(given_by(here())), received = zeros(count_);
    const Work send = group_.start_send(sent.at(), count_, kind_.type, to, {.with_next_receive = true});
    group_.receive(received.at(), count_, kind_.type, from);
    send.wait();
    expect(concat("message from rank ", group_.ranks()[static_cast<size_t>(from)]), received, given_by(from));
  }

  // Part i of every member goes to member i.
  void exchange() {
    const Buffer sent = buffer(given_by(here()));
    std::vector<Communicator::Message> outgoing, incoming;
    Values expected;
    const Buffer received = zeros(count_of(here()) * size());
    const int64_t mine = count_of(here());
    for (int64_t member = 0; member < size(); ++member) {
      const Values part_of_mine = given_by(member, begin_of(here()), mine);
      if (member == here()) {
        expected.resize(expected.size() + part_of_mine.size());
        continue;
      }
      expected.insert(expected.end(), part_of_mine.begin(), part_of_mine.end());
      const int64_t bytes = size_of(kind_.type);
      if (count_of(member) > 0) {
        outgoing.push_back({.member = member, .data = sent.at(begin_of(member)), .bytes = count_of(member) * bytes});
      }
      if (mine > 0) incoming.push_back({.member = member, .data = received.at(member * mine), .bytes = mine * bytes});
    }
    group_.exchange(outgoing, incoming);
    expect("exchange", received, expected);
  }

  Communicator& group_;
  at::Device device_;
  Kind kind_{};
  int64_t count_ = 0;
  std::vector<int64_t> counts_;
  Values sum_, largest_;
  std::optional<std::string> wrong_;
};

}  // namespace

std::optional<std::string> find_wrong_result(Communicator& group, at::Device device) {
  return OperationChecks(group, device).run();
}

}  // namespace copus
