// The two files of a corpus in Megatron-LM's indexed format: two bytes with the length of the .idx, the .idx, the .bin.
#include <vector>

#include "copus/data/megatron_source.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string prefix = (scratch_folder() / "corpus").string();
  Pieces pieces(text_of(data, size));
  const size_t length = pieces.number();
  write_scratch(prefix + ".idx", pieces.take(length));
  write_scratch(prefix + ".bin", pieces.rest());
  accepted([&] {
    const MegatronSource source(prefix, 32000);
    int64_t end = 0;
    for (int64_t document = 0; document < source.num_documents(); ++document) {
      expect(source.document_end(document) >= end, "a document ends before it begins");
      end = source.document_end(document);
    }
    expect(end == source.size(), "documents do not cover the corpus");
    std::vector<int64_t> tokens(static_cast<size_t>(source.size()));
    source.read(0, source.size(), tokens.data());
    return true;
  });
  return 0;
}
