#include "copus/comm/solo_transport.h"

#include <cstring>

#include "copus/base/error.h"

namespace copus {

namespace {

void copy(void* to, const void* from, int64_t count, DataType type) {
  if (count > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(count * size_of(type)));
}

}  // namespace

void SoloTransport::all_reduce(void* /*data*/, int64_t /*count*/, DataType /*type*/, Reduction /*reduction*/) {}

void SoloTransport::reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                                   Reduction /*reduction*/) {
  copy(output, input, counts[0], type);
}

void SoloTransport::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  copy(output, input, counts[0], type);
}

void SoloTransport::broadcast(void* /*data*/, int64_t /*count*/, DataType /*type*/, int64_t /*root*/) {}

void SoloTransport::barrier() {}

void SoloTransport::send(const void* /*data*/, int64_t /*bytes*/, int64_t to) {
  COPUS_CHECK(false, "a message to member ", to, " of a group of one");
}

void SoloTransport::receive(void* /*data*/, int64_t /*bytes*/, int64_t from) {
  COPUS_CHECK(false, "a message from member ", from, " of a group of one");
}

bool SoloTransport::try_send(const void* /*data*/, int64_t /*bytes*/, int64_t to) {
  COPUS_CHECK(false, "a message to member ", to, " of a group of one");
}

}  // namespace copus
