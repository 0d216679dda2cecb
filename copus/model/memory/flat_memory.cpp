#include "copus/model/memory/flat_memory.h"

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

at::Tensor flat_without_memory(int64_t count, at::ScalarType dtype, at::Device device) {
  const auto bytes = static_cast<int64_t>(count * c10::elementSize(dtype));
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device));
  at::Tensor flat = kernels::empty({0}, dtype, device);
  flat.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  flat.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return flat;
}

void give_memory(const at::Tensor& flat) {
  COPUS_CHECK(!has_memory(flat), "a bucket is given memory twice");
  const at::Tensor fresh = kernels::empty({flat.numel()}, flat.scalar_type(), flat.device());
  flat.storage().set_data_ptr_noswap(fresh.storage().set_data_ptr(at::DataPtr(nullptr, flat.device())));
}

void take_memory(const at::Tensor& flat) { flat.storage().set_data_ptr_noswap(at::DataPtr(nullptr, flat.device())); }

bool has_memory(const at::Tensor& flat) { return flat.storage().data() != nullptr; }

}  // namespace copus
