#include "copus/data/file_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::string_literals;

std::string format(const std::string& file, const std::string& path = "a") {
  return format_of_corpus(file, path).value_or("text");
}

TEST(FileFormat, NamesWhatAFileIsAndHowToTrainOnIt) {
  EXPECT_THAT(format("\x93NUMPY\x01\0v"s), AllOf(HasSubstr("NumPy"), HasSubstr("tools/tokens_to_pair.py")));
  EXPECT_THAT(format("\x88\xd8\x34\x01\x01\0\0\0"s), AllOf(HasSubstr("llm.c"), HasSubstr("tokens_to_pair.py")));
  EXPECT_THAT(format("\xa1\xd9\x34\x01\x07\0\0\0"s), HasSubstr("Llama 3"));
  EXPECT_THAT(format("\x9f\xc6\x01\0"s, "train.bin"), AllOf(HasSubstr("nanoGPT"), HasSubstr("tokens_to_pair.py")));
  EXPECT_THAT(format("PAR1\x15"s), AllOf(HasSubstr("parquet"), HasSubstr("tools/tokenize_corpus.py")));
  EXPECT_THAT(format("\x1f\x8b\x08"s), AllOf(HasSubstr("gzip"), HasSubstr("tokenize_corpus.py")));
  EXPECT_THAT(format("\x28\xb5\x2f\xfd\x04"s), HasSubstr("zstd"));
  EXPECT_THAT(format("ARROW1\0\0"s), HasSubstr("Arrow"));
  EXPECT_THAT(format("\xff\xff\xff\xff\x10\0\0\0"s), HasSubstr("datasets.save_to_disk"));
  EXPECT_THAT(format("PK\x03\x04"s), HasSubstr("zip archive"));
  EXPECT_THAT(format(std::string(257, 'a') + "ustar\0"s), HasSubstr("tar archive"));
  EXPECT_THAT(format(std::string(257, 'a') + "ustar  \0"s), HasSubstr("tar archive"));
  EXPECT_THAT(format("\x02\0\0\0\0\0\0\0{\"__metadata__\":{}}"s), HasSubstr("safetensors"));
  EXPECT_THAT(format("GGUF\x03"s), HasSubstr("model.init_from"));
  EXPECT_THAT(format("\n\x0e\n\x05<unk>\x15\0\0\x80\xff"s), HasSubstr("SentencePiece"));
  EXPECT_THAT(format("\xff\xfeh\0i\0"s), HasSubstr("iconv -f UTF-16"));
  EXPECT_THAT(format("\x80\x04\x95"s), HasSubstr("pickled"));
  EXPECT_THAT(format("%PDF-1.7"), HasSubstr("PDF"));
  EXPECT_THAT(format("TNTIDX\0\0\x01"s), HasSubstr("old pair of Megatron"));
  EXPECT_THAT(format("\0\0\xfe\xff\0\0\0h"s), HasSubstr("UTF-32"));
  EXPECT_THAT(format("ORC\x08"s), HasSubstr("save it as parquet"));
}

TEST(FileFormat, NamesTokenIdsWhoseBytesAreUtf8) {
  const std::string shorts = "\x01\0\x41\0\x02\0"s;
  EXPECT_THAT(format(shorts, "train.bin"), AllOf(HasSubstr("nanoGPT"), HasSubstr("tokens_to_pair.py")));
  EXPECT_THAT(format("\x01\0\0\0\0\0\0\0"s, "ids.dat"), HasSubstr("nanoGPT")) << "int64";
  EXPECT_THAT(format("\x52\xc4\x01\x02"s, "part-0.npy"), HasSubstr("nanoGPT")) << "np.memmap of such a name";
  EXPECT_THAT(format(shorts, "train.txt"), AllOf(HasSubstr("iconv -f UTF-16LE"), HasSubstr("tokens_to_pair.py")));
  EXPECT_EQ(format("a text with one \0 in it"s, "a.txt"), "text");
}

TEST(FileFormat, NamesJsonByItsName) {
  EXPECT_THAT(format("{\"text\": \"a\"}\n", "A.JSONL"), HasSubstr("is JSON"));
  EXPECT_THAT(format("{\"text\": \"a\"}\n", "a.ndjson"), HasSubstr("is JSON"));
  EXPECT_THAT(format("[{\"text\": \"a\"}]", "a.json"), AllOf(HasSubstr("one JSON array"), HasSubstr("jq -c '.[]'")));
  EXPECT_THAT(format("{\"text\": \"a\"}\n", "a.jsonl"), AllOf(HasSubstr("is JSON"), HasSubstr("tokenize_corpus.py")));
  EXPECT_THAT(format("{\"version\": \"1.0\", \"added_tokens\": []}", "tokenizer.json"), HasSubstr("is a tokenizer"));
  EXPECT_EQ(format("{\"text\": \"a\"}\n", "a.txt"), "text");
}

TEST(FileFormat, TextIsText) {
  EXPECT_EQ(format("once upon a time"), "text");
  EXPECT_EQ(format("ORCHIDS and other flowers\n"), "text");
  EXPECT_EQ(format(std::string(256, 'a') + "gustar  a todos"), "text");
  EXPECT_EQ(format("once upon a time.", "a.bin"), "text");
  EXPECT_EQ(format("12345678{\"a\": 1}"), "text") << "no length of a header";
  EXPECT_EQ(format("caf\xE9 au lait!!"), "text") << "Latin-1, of which nothing can be told";
  EXPECT_EQ(format(""), "text");
}

}  // namespace
}  // namespace copus
