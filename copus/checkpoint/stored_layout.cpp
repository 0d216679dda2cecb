#include "copus/checkpoint/stored_layout.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

// Copies the rows x columns matrix `from` into `to`, transposed. Strides are between rows, in elements.
template <class Element>
void transpose(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t rows,
               int64_t columns) {
  constexpr int64_t block = 32;  // keeps a block's rows and columns in the cache
  for (int64_t first = 0; first < rows; first += block) {
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = first; row < std::min(rows, first + block); ++row) {
        std::memcpy(to + (column * to_stride + row) * static_cast<int64_t>(sizeof(Element)),
                    from + (row * from_stride + column) * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
      }
    }
  }
}

void transpose(DType dtype, const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t rows,
               int64_t columns) {
  const auto kernel = size_of(dtype) == 2   ? transpose<uint16_t>
                      : size_of(dtype) == 4 ? transpose<uint32_t>
                                            : transpose<uint64_t>;
  kernel(from, from_stride, to, to_stride, rows, columns);
}

// Allocates separate memory for a tensor, and returns it.
std::byte* allocate(TensorView& tensor) {
  const auto bytes = static_cast<size_t>(tensor.num_elements() * size_of(tensor.dtype));
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  tensor.bytes = *memory;
  tensor.memory = memory;
  return memory->data();
}

}  // namespace

namespace {

// Calls copy(parameter, first byte in the parameter, first byte in the stack, bytes) for each contiguous range of a
// stack. A stack is a tensor in which groups of outputs of several parameters alternate.
template <class Copy>
void for_turns(const StoredTensor& stored, DType dtype, Copy copy) {
  const int64_t row = (stored.shape.size() == 2 ? stored.shape.back() : 1) * size_of(dtype);
  const int64_t stretch = stored.outputs_in_turn * row;
  const int64_t turns = stored.shape.front() / (stored.outputs_in_turn * std::ssize(stored.parameters));
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (int64_t i = 0; i < std::ssize(stored.parameters); ++i) {
      copy(static_cast<size_t>(i), turn * stretch, (turn * std::ssize(stored.parameters) + i) * stretch, stretch);
    }
  }
}

}  // namespace

std::vector<TensorView> unpack(const StoredTensor& stored, const TensorView& tensor) {
  const int64_t size = size_of(tensor.dtype), outputs = stored.shape.back();
  std::vector<TensorView> parameters;
  std::vector<std::byte*> turns;
  int64_t first = 0;  // element of a plain stack, or output of a transposed one
  for (const ParameterInfo& info : stored.parameters) {
    TensorView& parameter = parameters.emplace_back(TensorView{
        .name = info.name, .dtype = tensor.dtype, .shape = info.shape, .bytes = {}, .memory = tensor.memory});
    if (stored.outputs_in_turn > 0) {
      turns.push_back(allocate(parameter));
    } else if (stored.is_transposed) {
      const int64_t out = info.shape[0], in = info.shape[1];
      transpose(tensor.dtype, tensor.bytes.data() + first * size, outputs, allocate(parameter), in, in, out);
      first += out;
    } else {
      parameter.bytes = tensor.bytes.subspan(first * size, parameter.num_elements() * size);
      first += parameter.num_elements();
    }
  }
  if (stored.outputs_in_turn > 0) {
    for_turns(stored, tensor.dtype, [&](size_t i, int64_t of_parameter, int64_t of_stack, int64_t bytes) {
      std::memcpy(turns[i] + of_parameter, tensor.bytes.data() + of_stack, static_cast<size_t>(bytes));
    });
  }
  return parameters;
}

TensorView pack(const StoredTensor& stored, std::span<const TensorView> parameters) {
  COPUS_CHECK(parameters.size() == stored.parameters.size(), stored.name, " of ", parameters.size());
  TensorView tensor = parameters.front();
  tensor.name = stored.name;
  if (stored.is_plain()) return tensor;
  tensor.shape = stored.shape;
  std::byte* to = allocate(tensor);
  if (stored.outputs_in_turn > 0) {
    for_turns(stored, tensor.dtype, [&](size_t i, int64_t of_parameter, int64_t of_stack, int64_t bytes) {
      std::memcpy(to + of_stack, parameters[i].bytes.data() + of_parameter, static_cast<size_t>(bytes));
    });
    return tensor;
  }
  for (const TensorView& parameter : parameters) {
    COPUS_CHECK(parameter.dtype == tensor.dtype, parameter.name, " in ", stored.name);
    if (stored.is_transposed) {
      const int64_t out = parameter.shape[0], in = parameter.shape[1];
      transpose(tensor.dtype, parameter.bytes.data(), in, to, stored.shape.back(), out, in);
      to += out * size_of(tensor.dtype);
    } else {
      to = std::ranges::copy(parameter.bytes, to).out;
    }
  }
  return tensor;
}

StoredParameters::StoredParameters(const ModelDescription& model, Find find)
    : find_(std::move(find)), stored_(list_stored_tensors(model)) {
  for (size_t i = 0; i < stored_.size(); ++i) {
    for (const ParameterInfo& parameter : stored_[i].parameters) holder_.emplace(parameter.name, i);
  }
}

const TensorView& StoredParameters::operator()(const std::string& name) {
  const auto holder = holder_.find(name);
  COPUS_CHECK(holder != holder_.end(), "no parameter ", name);
  if (unpacked_.empty() || open_ != holder->second) {
    unpacked_ = unpack(stored_[holder->second], find_(stored_[holder->second].name));
    open_ = holder->second;
  }
  return *std::ranges::find(unpacked_, name, &TensorView::name);
}

}  // namespace copus
