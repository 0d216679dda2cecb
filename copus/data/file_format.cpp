#include "copus/data/file_format.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include "copus/base/error.h"
#include "copus/base/text/lower_case.h"
#include "copus/base/text/utf8.h"

namespace copus {
namespace {

using namespace std::string_view_literals;

constexpr const char* by_tokenizing = "tools/tokenize_corpus.py reads it and makes a tokenized pair";
constexpr const char* by_pairing = "tools/tokens_to_pair.py makes a tokenized pair of its token ids";
constexpr const char* by_unpacking = "unpack it, and give the files in it";
constexpr const char* no_corpus = "it holds no text to train on";
constexpr const char* as_weights = "to begin with its weights: model.init_from, a Hugging Face folder";

struct Format {
  std::string_view mark;
  size_t offset;
  const char *what, *remedy;
};

constexpr std::array formats = std::to_array<Format>({
    {"\x93NUMPY"sv, 0, "a NumPy array (.npy)", by_pairing},
    {"\x88\xd8\x34\x01"sv, 0, "a token file of llm.c", by_pairing},                   // 20240520: uint16
    {"\xa1\xd9\x34\x01"sv, 0, "a token file of llm.c (Llama 3)", by_pairing},         // 20240801: uint32
    {"\xc6\xd7\x34\x01"sv, 0, "a model's weights as llm.c writes them", as_weights},  // 20240326
    {"MMIDIDX\0\0"sv, 0, "the index of a tokenized pair", "give the prefix of both files, without .bin and .idx"},
    {"TNTIDX\0\0"sv, 0, "the index of an old pair of Megatron", "make a pair of the texts by tools/tokenize_corpus.py"},
    {"PAR1"sv, 0, "a parquet file", by_tokenizing},
    {"\x1f\x8b"sv, 0, "compressed by gzip", by_tokenizing},
    {"\x28\xb5\x2f\xfd"sv, 0, "compressed by zstd", by_tokenizing},
    {"ARROW1"sv, 0, "an Arrow (Feather) file", "save it as parquet, which tools/tokenize_corpus.py reads"},
    {"\xff\xff\xff\xff"sv, 0, "a stream of Arrow",
     "tools/tokenize_corpus.py reads the folder of datasets.save_to_disk that it is in"},
    {"ORC"sv, 0, "an ORC file", "save it as parquet, which tools/tokenize_corpus.py reads"},
    {"Obj\x01"sv, 0, "an Avro file", "save its texts as JSONL"},
    {"BZh"sv, 0, "compressed by bzip2", by_unpacking},
    {"\xfd\x37zXZ"sv, 0, "compressed by xz", by_unpacking},
    {"\x04\x22\x4d\x18"sv, 0, "compressed by lz4", by_unpacking},
    {"7z\xbc\xaf\x27\x1c"sv, 0, "a 7-zip archive", by_unpacking},
    {"PK\x03\x04"sv, 0, "a zip archive (.zip, .npz, .docx, or what torch.save wrote)", by_unpacking},
    {"ustar\0"sv, 257, "a tar archive", by_unpacking},    // POSIX
    {"ustar  \0"sv, 257, "a tar archive", by_unpacking},  // GNU
    {"GGUF"sv, 0, "a model's weights (GGUF)", as_weights},
    {"{\""sv, 8, "a model's weights (safetensors)", as_weights},
    {"\x89HDF\r\n"sv, 0, "an HDF5 file", "save its texts as JSONL, or its token ids as .npy"},
    {"SQLite format 3"sv, 0, "an SQLite database", "save its texts as JSONL"},
    {"%PDF"sv, 0, "a PDF document", "extract its text first"},
    {"\x89PNG"sv, 0, "an image", no_corpus},
    {"\xff\xd8\xff"sv, 0, "an image", no_corpus},
    {"\x7f"
     "ELF"sv,
     0, "a program", no_corpus},
    {"\xff\xfe\0\0"sv, 0, "text in UTF-32", "iconv -f UTF-32 -t UTF-8 converts it"},
    {"\0\0\xfe\xff"sv, 0, "text in UTF-32", "iconv -f UTF-32 -t UTF-8 converts it"},
    {"\xff\xfe"sv, 0, "text in UTF-16", "iconv -f UTF-16 -t UTF-8 converts it"},
    {"\xfe\xff"sv, 0, "text in UTF-16", "iconv -f UTF-16 -t UTF-8 converts it"},
    {"\x80\x02"sv, 0, "a pickled object of Python", "save its token ids as .npy, or its texts as JSONL"},
    {"\x80\x03"sv, 0, "a pickled object of Python", "save its token ids as .npy, or its texts as JSONL"},
    {"\x80\x04"sv, 0, "a pickled object of Python", "save its token ids as .npy, or its texts as JSONL"},
    {"\x80\x05"sv, 0, "a pickled object of Python", "save its token ids as .npy, or its texts as JSONL"},
});

bool has_mark(std::string_view file, const Format& format) {
  return file.size() >= format.offset && file.substr(format.offset).starts_with(format.mark);
}

// Whether the beginning contains bytes that no text has.
bool has_control_bytes(std::string_view file) {
  constexpr size_t beginning = 64;
  const std::string_view head = file.substr(0, beginning);
  return std::any_of(head.begin(), head.end(), [](unsigned char byte) { return byte < '\t'; });
}

// Whether the first eight bytes are the length of a JSON header, as in safetensors.
bool has_header_length(std::string_view file) {
  uint64_t length = 0;
  if (file.size() < sizeof length) return false;
  std::memcpy(&length, file.data(), sizeof length);
  return length > 0 && length < file.size();
}

// Returns whether the file is a protobuf message that begins with a piece of a vocabulary.
bool is_sentencepiece(std::string_view file) {
  constexpr size_t beginning = 64;
  return file.starts_with('\n') && file.substr(0, beginning).find("<unk>") != std::string_view::npos &&
         find_invalid_utf8(file);
}

// Returns whether at least half of the first bytes are 0, as in token ids below 256 and in UTF-16 without a byte order
// mark. Both are valid UTF-8.
bool is_half_zeros(std::string_view file) {
  constexpr size_t beginning = 4096;
  const std::string_view head = file.substr(0, beginning);
  const auto zeros = static_cast<size_t>(std::count(head.begin(), head.end(), '\0'));
  return zeros >= std::max<size_t>(2, head.size() / 2);
}

// Whether files of bare token ids have this extension: nanoGPT's .bin, dolma's .npy without a header, np.memmap's any.
bool may_be_token_ids(const std::string& extension) {
  constexpr std::array endings = {".bin", ".npy", ".dat", ".u16", ".u32"};
  return std::find(endings.begin(), endings.end(), extension) != endings.end();
}

std::optional<std::string> json_by_name(std::string_view file, const std::string& extension) {
  if (extension != ".json" && extension != ".jsonl" && extension != ".ndjson") return std::nullopt;
  const size_t first = file.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || (file[first] != '{' && file[first] != '[')) return std::nullopt;
  constexpr size_t beginning = 4096;
  const std::string_view head = file.substr(0, beginning);
  if (head.find("\"added_tokens\"") != std::string_view::npos) {
    return concat("is a tokenizer; name it by --tokenizer of tools/tokenize_corpus.py, and the text as its input");
  }
  constexpr const char* as_bytes = ". To train on its bytes as they are, give it a name that ends in .txt";
  if (file[first] == '[') {
    return concat(
        "is one JSON array; jq -c '.[]' FILE.json > FILE.jsonl makes one object a line of it, which "
        "tools/tokenize_corpus.py reads",
        as_bytes);
  }
  return concat("is JSON; tools/tokenize_corpus.py reads one object a line and makes a tokenized pair", as_bytes);
}

}  // namespace

std::optional<std::string> format_of_corpus(std::string_view file, const std::string& path) {
  for (const Format& format : formats) {
    if (!has_mark(file, format)) continue;
    if (format.offset == 8 && !has_header_length(file)) continue;
    if (format.mark == "ORC" && !has_control_bytes(file)) continue;  // a text may begin with ORCHID
    return concat("is ", format.what, "; ", format.remedy);
  }
  if (is_sentencepiece(file)) {
    return "is a tokenizer of SentencePiece; name its folder by --tokenizer of tools/tokenize_corpus.py";
  }
  const std::string extension = lower_case(std::filesystem::path(path).extension().string());
  if (auto json = json_by_name(file, extension)) return json;
  const bool has_zeros = is_half_zeros(file);
  if (may_be_token_ids(extension) && (has_zeros || (file.size() % 2 == 0 && find_invalid_utf8(file)))) {
    return concat("looks like bare token ids, as nanoGPT writes them (uint16); ", by_pairing,
                  ", as --dtype says where they are of another type");
  }
  if (has_zeros) {
    return concat(
        "is no UTF-8 text: half of its bytes are 0; iconv -f UTF-16LE -t UTF-8 converts UTF-16, and of token ",
        "ids tools/tokens_to_pair.py makes a tokenized pair");
  }
  return std::nullopt;
}

}  // namespace copus
