// A text file to train on: a byte with the length of the separator between documents, the separator, the text.
#include <vector>

#include "copus/data/text_source.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = (scratch_folder() / "corpus.txt").string();
  Pieces pieces(text_of(data, size));
  const std::string separator(pieces.take(pieces.byte() % 8));
  write_scratch(path, pieces.rest());
  accepted([&] {
    const TextSource source(path, separator);
    std::vector<int64_t> tokens(static_cast<size_t>(source.size()));
    source.read(0, source.size(), tokens.data());
    int64_t end = 0;
    for (int64_t document = 0; document < source.num_documents(); ++document) {
      expect(source.document_end(document) > end, "a document is empty");
      end = source.document_end(document);
    }
    expect(end == source.size(), "documents do not cover the text");
    return true;
  });
  return 0;
}
