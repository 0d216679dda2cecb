#include "copus/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"

namespace copus {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr size_t length_bytes = 8;
constexpr uint64_t max_header_bytes = 100'000'000;  // the reference implementation's limit

// Reads the header of one file. Its messages all start with the file's path.
class HeaderParser {
 public:
  HeaderParser(const std::filesystem::path& path, std::span<const std::byte> file) : path_(path), file_(file) {}

  void parse() {
    parse_json();
    for (const auto& [name, entry] : header_.items()) {
      if (name == "__metadata__") {
        parse_metadata(entry);
      } else {
        parse_tensor(name, entry);
      }
    }
    check_coverage();
  }

  std::map<std::string, std::string> metadata;
  std::vector<TensorView> tensors;

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;
  };

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InvalidSafetensors(concat(path_.string(), " is not a valid safetensors file: ", parts...));
  }

  void parse_json() {
    if (file_.size() < length_bytes) {
      fail("it has ", file_.size(), " bytes, too few for the header's length. Was it copied completely?");
    }
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file_.data(), length_bytes);
    if (header_bytes > max_header_bytes) {
      fail("its header claims ", header_bytes, " bytes, more than the format's limit of ", max_header_bytes);
    }
    if (header_bytes > file_.size() - length_bytes) {
      fail("it is truncated: its header has ", header_bytes, " bytes, the file only ", file_.size(),
           ". Copy or download it again");
    }
    const auto text = file_.subspan(length_bytes, header_bytes);
    data_ = file_.subspan(length_bytes + header_bytes);
    const std::string_view json(reinterpret_cast<const char*>(text.data()), text.size());
    if (nests_too_deeply(json)) fail("its header is nested too deeply");
    try {
      header_ = Json::parse(json);
    } catch (const Json::exception& error) {
      fail("its header is not JSON (", error.what(), ")");
    }
    if (repeats_names(json, header_)) {
      fail("the name ", json_text(Json(*repeated_name(json))), " appears twice in its header");
    }
    if (!header_.is_object()) fail("its header is not a JSON object");
  }

  void parse_metadata(const Json& entry) {
    if (!entry.is_object()) fail("__metadata__ is not a JSON object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail("__metadata__ holds something other than text under \"", key, "\"");
      metadata.emplace(key, value.get<std::string>());
    }
  }

  void parse_tensor(const std::string& name, const Json& entry) {
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
      fail("tensor ", name, " needs dtype, shape and data_offsets");
    }
    TensorView tensor;
    tensor.name = name;
    tensor.dtype = parse_dtype(name, entry["dtype"]);
    tensor.shape = parse_shape(name, entry["shape"]);
    const Range range = parse_offsets(name, entry["data_offsets"]);
    const uint64_t expected = checked_bytes(name, tensor);
    if (range.end - range.begin != expected) {
      fail("tensor ", name, " has ", range.end - range.begin, " bytes, but ", safetensors_name(tensor.dtype), " ",
           shape_text(tensor.shape), " needs ", expected);
    }
    tensor.bytes = data_.subspan(range.begin, expected);
    tensors.push_back(std::move(tensor));
  }

  DType parse_dtype(const std::string& name, const Json& entry) const {
    const auto dtype = entry.is_string() ? parse_safetensors_dtype(entry.get<std::string>()) : std::nullopt;
    if (!dtype) {
      fail("tensor ", name, " has the unknown dtype ", entry.dump(),
           "; known are F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL");
    }
    return *dtype;
  }

  std::vector<int64_t> parse_shape(const std::string& name, const Json& entry) const {
    std::vector<int64_t> shape;
    const auto is_dimension = [](const Json& item) {
      return item.is_number_unsigned() &&
             item.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    };
    if (!entry.is_array() || !std::ranges::all_of(entry, is_dimension)) {
      fail("tensor ", name, " has the shape ", entry.dump(), "; expected a list of sizes");
    }
    for (const Json& item : entry) shape.push_back(item.get<int64_t>());
    return shape;
  }

  Range parse_offsets(const std::string& name, const Json& entry) const {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned() || !entry[1].is_number_unsigned()) {
      fail("tensor ", name, " has data_offsets ", entry.dump(), "; expected [begin, end]");
    }
    const Range range{entry[0].get<uint64_t>(), entry[1].get<uint64_t>()};
    if (range.begin > range.end) fail("tensor ", name, " ends at ", range.end, ", before it begins at ", range.begin);
    if (range.end > data_.size()) {
      fail("tensor ", name, " ends at byte ", range.end, ", out of range: the file holds ", data_.size(),
           " bytes of tensors. It is truncated or damaged; copy or download it again");
    }
    return range;
  }

  uint64_t checked_bytes(const std::string& name, const TensorView& tensor) const {
    int64_t bytes = size_of(tensor.dtype);
    bool overflow = false;
    for (int64_t size : tensor.shape) {
      // A dimension of zero is treated as one here, because a zero would hide an overflow of the other dimensions. No
      // valid file has dimensions that overflow.
      overflow |= __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes);
    }
    if (overflow) fail("tensor ", name, " has the shape ", shape_text(tensor.shape), ", too large for any file");
    return std::ranges::count(tensor.shape, 0) > 0 ? 0 : static_cast<uint64_t>(bytes);
  }

  // Sorts the tensors by position and checks that they cover the data exactly once.
  void check_coverage() {
    const auto begin_of = [this](const TensorView& tensor) {
      return static_cast<uint64_t>(tensor.bytes.data() - data_.data());
    };
    // A tensor without elements sorts before the one that begins at the same place.
    std::ranges::sort(tensors, {}, [&](const TensorView& tensor) {
      return std::make_pair(begin_of(tensor), begin_of(tensor) + tensor.bytes.size());
    });
    uint64_t covered = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const uint64_t begin = begin_of(tensors[i]);
      if (begin < covered) fail("tensors ", tensors[i - 1].name, " and ", tensors[i].name, " overlap");
      if (begin > covered) fail("bytes ", covered, " to ", begin, ", before tensor ", tensors[i].name, ", are a hole");
      covered = begin + tensors[i].bytes.size();
    }
    if (covered != data_.size()) {
      fail("its last ", data_.size() - covered, " bytes belong to no tensor");
    }
  }

  const std::filesystem::path& path_;
  std::span<const std::byte> file_;
  std::span<const std::byte> data_;
  Json header_;
};

void check_floating_point(const TensorView& tensor) {
  if (!is_floating_point(tensor.dtype)) {
    throw UserError(
        concat("tensor ", tensor.name, " holds ", printed_name(tensor.dtype), "; expected fp32, bf16, fp16 or fp64"));
  }
}

}  // namespace

int64_t TensorView::num_elements() const { return count_elements(shape); }

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += concat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

int64_t count_elements(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (int64_t size : shape) {
    COPUS_CHECK(size >= 0 && !__builtin_mul_overflow(count, size, &count), "shape ", shape_text(shape));
  }
  return count;
}

std::vector<float> to_float(const TensorView& tensor) {
  check_floating_point(tensor);
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  to_float(tensor.dtype, tensor.bytes, values);
  return values;
}

void to_float(const TensorView& tensor, std::span<float> destination) {
  check_floating_point(tensor);
  to_float(tensor.dtype, tensor.bytes, destination);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), mapping_(path.string()) {
  HeaderParser parser(path_, mapping_.bytes());
  parser.parse();
  tensors_ = std::move(parser.tensors);
  metadata_ = std::move(parser.metadata);
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::string safetensors_header(std::span<const TensorView> tensors,
                               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const TensorView& tensor : tensors) {
    const int64_t begin = end;
    end += tensor.num_elements() * size_of(tensor.dtype);
    COPUS_CHECK(!header.contains(tensor.name), "two tensors are called ", tensor.name);
    header[tensor.name] = {
        {"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(length_bytes, '\0');
  std::memcpy(bytes.data(), &length, length_bytes);
  return bytes + text;
}

FileDigest write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                             const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header(tensors, metadata);
  uint64_t total = header.size();
  for (const TensorView& tensor : tensors) {
    COPUS_CHECK(tensor.bytes.size() == static_cast<size_t>(tensor.num_elements() * size_of(tensor.dtype)), tensor.name,
                " has ", tensor.bytes.size(), " bytes for ", shape_text(tensor.shape));
    total += tensor.bytes.size();
  }
  DurableFile file(path, total);
  file.write(header);
  for (const TensorView& tensor : tensors) file.write(tensor.bytes);
  return file.commit();
}

}  // namespace copus
