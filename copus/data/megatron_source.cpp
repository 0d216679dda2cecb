#include "copus/data/megatron_source.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "copus/base/error.h"

namespace copus {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian and read in place");

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr int64_t version_offset = 9;
constexpr int64_t dtype_offset = 17;
constexpr int64_t num_sequences_offset = 18;
constexpr int64_t document_list_length_offset = 26;
constexpr int64_t header_size = 34;

// Reads a value that may be unaligned: the header has 34 bytes, so the values after it are not aligned.
template <class Value>
Value load(const MappedFile& file, int64_t offset) {
  Value value;
  std::memcpy(&value, file.bytes().data() + offset, sizeof(value));
  return value;
}

int64_t file_size(const MappedFile& file) { return static_cast<int64_t>(file.bytes().size()); }

// Calls `action` with a value of the C++ type of a Megatron dtype code.
template <class Action>
auto with_token_type(int dtype, const Action& action) {
  switch (dtype) {
    case 1:
      return action(uint8_t{});
    case 2:
      return action(int8_t{});
    case 3:
      return action(int16_t{});
    case 4:
      return action(int32_t{});
    case 5:
      return action(int64_t{});
    case 8:
      return action(uint16_t{});
    default:
      throw InternalError(concat("dtype ", dtype));
  }
}

std::string disagreement(const std::string& path, int64_t bytes, int64_t expected) {
  return concat(path, ": disagrees with its .idx: it has ", bytes, " bytes, the sequences of the .idx need ", expected,
                "; give the two files that were written together");
}

bool is_integer_dtype(int dtype) { return (dtype >= 1 && dtype <= 5) || dtype == 8; }

}  // namespace

MegatronSource::MegatronSource(const std::string& prefix, int64_t vocab_size)
    : prefix_(prefix),
      index_(prefix + ".idx"),
      tokens_path_(prefix + ".bin"),
      tokens_(std::make_shared<const MappedFile>(tokens_path_)),
      vocab_size_(vocab_size) {
  read_header();
  check_size_of_tokens();
  check_sequences();
  check_documents();
}

MegatronSource::MegatronSource(const std::string& prefix, int64_t vocab_size, std::shared_ptr<FilePool> tokens)
    : prefix_(prefix),
      index_(prefix + ".idx"),
      tokens_path_(prefix + ".bin"),
      pool_(std::move(tokens)),
      vocab_size_(vocab_size) {
  read_header();
  check_sequences();
  check_documents();
}

void MegatronSource::read_header() {
  const int64_t index_size = file_size(index_);
  const std::string& index_path = index_.path();
  const auto magic_size = std::min(magic.size(), index_.bytes().size());
  if (magic_size > 0 && std::memcmp(index_.bytes().data(), magic.data(), magic_size) != 0)
    throw UserError(concat(index_path,
                           ": is not a Megatron index: it does not start with the magic MMIDIDX; expected "
                           "the .idx that was written together with ",
                           tokens_path_));
  if (index_size < header_size)
    throw UserError(concat(index_path, ": is truncated: ", index_size, " bytes, less than the header's ", header_size,
                           "; tokenize the corpus again"));
  const auto version = load<uint64_t>(index_, version_offset);
  if (version != 1) throw UserError(concat(index_path, ": has format version ", version, "; only version 1 is known"));
  dtype_ = load<uint8_t>(index_, dtype_offset);
  if (!is_integer_dtype(dtype_))
    throw UserError(concat(index_path, ": has tokens of dtype code ", dtype_,
                           dtype_ == 6 || dtype_ == 7 ? " (floating point)" : " (unknown)",
                           "; expected an integer type: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64 or 8 uint16"));
  bytes_per_token_ = with_token_type(dtype_, [](auto id) { return static_cast<int64_t>(sizeof(id)); });

  const auto sequences = load<uint64_t>(index_, num_sequences_offset);
  const auto document_list_length = load<uint64_t>(index_, document_list_length_offset);
  // Bounds counts by the file's size before multiplying them, so that a damaged count cannot overflow.
  const auto bound = static_cast<uint64_t>(index_size);
  const bool fits = sequences <= bound && document_list_length <= bound;
  const uint64_t expected = header_size + 12 * sequences + 8 * document_list_length;
  if (!fits || expected > bound)
    throw UserError(concat(index_path, ": is truncated: ", index_size, " bytes are too few for the ", sequences,
                           " sequences and ", document_list_length,
                           " document marks that it announces; tokenize the "
                           "corpus again"));
  if (expected < bound)
    throw UserError(concat(index_path, ": has ", bound - expected, " bytes more than its ", sequences,
                           " sequences and ", document_list_length, " document marks need; expected exactly ", expected,
                           " bytes"));
  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(document_list_length) - 1;
  if (num_sequences_ == 0)
    throw UserError(concat(prefix_, ".bin/.idx: is empty; expected at least one sequence of tokens"));
}

void MegatronSource::check_size_of_tokens() const {
  const int64_t bytes = file_size(*tokens_);
  if (bytes == 0) throw UserError(concat(prefix_, ".bin/.idx: is empty; expected at least one sequence of tokens"));
  if (bytes % bytes_per_token_ != 0)
    throw UserError(concat(tokens_path_, ": disagrees with its .idx: ", bytes, " bytes are not a multiple of ",
                           bytes_per_token_, ", the size of a token"));
}

void MegatronSource::check_sequences() {
  int64_t offset = 0;  // in bytes of the .bin: the end of the sequences so far
  for (int64_t sequence = 0; sequence < num_sequences_; ++sequence) {
    const auto length = load<int32_t>(index_, header_size + 4 * sequence);
    const auto pointer = load<int64_t>(index_, header_size + 4 * num_sequences_ + 8 * sequence);
    if (length < 0) throw UserError(concat(index_.path(), ": sequence ", sequence, " has the length ", length));
    if (pointer < 0 || (tokens_ && pointer > file_size(*tokens_)))
      throw UserError(concat(index_.path(), ": the pointer of sequence ", sequence, " is out of range: byte ", pointer,
                             tokens_ ? concat(", but ", tokens_path_, " has ", file_size(*tokens_), " bytes") : ""));
    if (pointer != offset)
      throw UserError(concat(index_.path(), ": sequence ", sequence, " starts at byte ", pointer, "; expected byte ",
                             offset, ", where the sequence before it ends"));
    offset += length * bytes_per_token_;
  }
  if (tokens_ && offset != file_size(*tokens_))
    throw UserError(disagreement(tokens_path_, file_size(*tokens_), offset));
  size_ = offset / bytes_per_token_;
  if (size_ == 0) throw UserError(concat(prefix_, ".bin/.idx: is empty; expected at least one sequence of tokens"));
}

std::optional<std::string> MegatronSource::gap() const {
  if (tokens_ || pool_->find(tokens_path_)) return std::nullopt;
  std::error_code missing;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(tokens_path_, missing));
  if (missing) return concat(tokens_path_, " is missing");
  const int64_t expected = size_ * bytes_per_token_;
  if (bytes > expected) throw UserError(disagreement(tokens_path_, bytes, expected));
  if (bytes == expected) {
    try {
      pool_->open(tokens_path_, static_cast<std::size_t>(bytes));
      return std::nullopt;
    } catch (const UserError& error) {  // the file has changed since, or cannot be read
      return error.what();
    }
  }
  return concat(tokens_path_, " has ", bytes, " of the ", expected, " bytes that its .idx says");
}

int64_t MegatronSource::missing_bytes() const {
  if (tokens_ || pool_->find(tokens_path_)) return 0;
  std::error_code missing;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(tokens_path_, missing));
  const int64_t expected = size_ * bytes_per_token_;
  return missing ? expected : std::max<int64_t>(0, expected - bytes);
}

std::shared_ptr<const MappedFile> MegatronSource::tokens() const {
  if (tokens_) return tokens_;
  if (const auto what = gap()) {
    throw UserError(
        concat(*what, "; with data.shuffle_shards only `copus train` waits for shards: bring this one here"));
  }
  return pool_->open(tokens_path_, static_cast<std::size_t>(size_ * bytes_per_token_));
}

void MegatronSource::check_documents() const {
  const auto refuse = [&](const auto&... what) {
    throw UserError(concat(index_.path(), ": the document list ", what...,
                           "; expected increasing sequence numbers from 0 to ", num_sequences_));
  };
  if (num_documents_ < 1) refuse("has ", num_documents_ + 1, " entries");
  if (document_start(0) != 0) refuse("starts with ", document_start(0));
  for (int64_t document = 0; document < num_documents_; ++document) {
    if (document_start(document + 1) < document_start(document))
      refuse("is not monotonic: ", document_start(document + 1), " follows ", document_start(document), " at entry ",
             document + 1);
  }
  if (document_start(num_documents_) != num_sequences_) refuse("ends with ", document_start(num_documents_));
}

int64_t MegatronSource::document_start(int64_t index) const {
  return load<int64_t>(index_, header_size + 12 * num_sequences_ + 8 * index);
}

int64_t MegatronSource::sequence_begin(int64_t sequence) const {
  if (sequence == num_sequences_) return size_;
  return load<int64_t>(index_, header_size + 4 * num_sequences_ + 8 * sequence) / bytes_per_token_;
}

int64_t MegatronSource::document_end(int64_t document) const { return sequence_begin(document_start(document + 1)); }

void MegatronSource::read(int64_t begin, int64_t count, int64_t* out) const {
  COPUS_CHECK(begin >= 0 && count >= 0 && begin + count <= size_, "tokens ", begin, " + ", count, " of ", size_);
  const std::shared_ptr<const MappedFile> tokens = this->tokens();
  with_token_type(dtype_, [&](auto type) {
    for (int64_t position = begin; position < begin + count; ++position) {
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 id keeps its sign, to be refused below
      const auto id = static_cast<int64_t>(load<decltype(type)>(*tokens, position * bytes_per_token_));
      if (id < 0 || id >= vocab_size_)
        throw UserError(concat(tokens_path_, ": the token at position ", position, " has id ", id,
                               ", outside the vocabulary of ", vocab_size_, " (ids 0 .. ", vocab_size_ - 1,
                               "); set model.vocab_size to that of the tokenizer which wrote the file"));
      *out++ = id;
    }
  });
}

}  // namespace copus
