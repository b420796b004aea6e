#include "cuda/kmeans/nearest.hpp"

#include <algorithm>
#include <vector>

#include "cuda/kmeans/nearest.cuh"
#include "cuda/runtime/packed.hpp"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cuda {

struct DeviceMatrix::Impl {
  size_t count = 0, d = 0;
  DeviceBuffer<float> exact, factors, norms, errors;
  DeviceBuffer<uint16_t> rough;

  RoughRows rows(size_t first, size_t some) const {
    const size_t padded = round_up(d, kRoughStep);
    // The launchers' structs say which pointers a kernel writes through; only run_make_rough does.
    return {exact.data() + first * d,
            const_cast<uint16_t*>(rough.data()) + first * padded,
            const_cast<float*>(factors.data()) + first,
            const_cast<float*>(norms.data()) + first,
            const_cast<float*>(errors.data()) + first,
            static_cast<uint32_t>(some),
            static_cast<uint32_t>(d),
            static_cast<uint32_t>(padded)};
  }
  RoughRows rows() const { return rows(0, count); }
};

namespace {

/// Rows searched at a time: a grid has a row of blocks for each tile of them, and their peaks take room.
constexpr size_t kPeakBytes = size_t{256} << 20;
constexpr size_t kMostRows = kMostGridRows * kPeakTile;

/// Up to which the sums of norms are within kSlack (nearest.cu), and 32-bit ids of whole tiles are.
constexpr size_t kMostDimensions = size_t{1} << 15, kMostIds = size_t{1} << 31;

}  // namespace

DeviceMatrix::DeviceMatrix(MatrixView<const float> rows) : impl_(std::make_unique<Impl>()) {
  if (rows.cols() == 0 || rows.cols() > kMostDimensions || rows.rows() > kMostIds)
    throw failed("{} rows of {} dimensions for a search on a device, which takes up to {} of 1 to {}",
                 rows.rows(), rows.cols(), kMostIds, kMostDimensions);
  Impl& own = *impl_;
  own.count = rows.rows(), own.d = rows.cols();
  const Stream stream;
  own.exact.resize(checked_mul(own.count, own.d));
  const PackedRows packed(rows);
  own.exact.upload(packed.values(), stream);
  own.rough.resize(checked_mul(own.count, round_up(own.d, kRoughStep)));
  own.factors.resize(own.count), own.norms.resize(own.count), own.errors.resize(own.count);
  check(run_make_rough(own.rows(), stream.handle()), "rounding rows");
  stream.synchronize();
}
DeviceMatrix::~DeviceMatrix() = default;
DeviceMatrix::DeviceMatrix(DeviceMatrix&&) noexcept = default;
DeviceMatrix& DeviceMatrix::operator=(DeviceMatrix&&) noexcept = default;
size_t DeviceMatrix::rows() const { return impl_->count; }
size_t DeviceMatrix::cols() const { return impl_->d; }
const float* DeviceMatrix::data() const { return impl_->exact.data(); }

void best_products(const DeviceMatrix& rows, const DeviceMatrix& entries, std::span<const float> bias,
                   std::span<uint32_t> ids, std::span<float> scores) {
  if (entries.rows() == 0 || entries.cols() != rows.cols() ||
      (!bias.empty() && bias.size() != entries.rows()) || ids.size() != rows.rows() ||
      (!scores.empty() && scores.size() != rows.rows()))
    throw failed("{} ids and {} scores of {} rows of {} dimensions with {} entries of {} and {} biases",
                 ids.size(), scores.size(), rows.rows(), rows.cols(), entries.rows(), entries.cols(),
                 bias.size());
  const Stream stream;
  const DeviceBuffer<float> device_bias(bias, stream);
  DeviceBuffer<float> largest(3);
  largest.fill(0, stream);
  const RoughRows all_entries = entries.impl().rows();
  check(run_largest(all_entries, device_bias.data(), largest.data(), stream.handle()), "norms of entries");
  const size_t tiles = (entries.rows() + kPeakTile - 1) / kPeakTile;
  const size_t at_once = std::clamp<size_t>(kPeakBytes / (tiles * sizeof(Peak)), kPeakTile, kMostRows);
  DeviceBuffer<Peak> peaks(std::min(at_once, rows.rows()) * tiles);
  DeviceBuffer<uint32_t> device_ids(rows.rows());
  DeviceBuffer<float> device_scores(rows.rows());
  for (size_t first = 0; first < rows.rows(); first += at_once) {
    const RoughRows some = rows.impl().rows(first, std::min(at_once, rows.rows() - first));
    check(run_peaks(some, all_entries, device_bias.data(), peaks.data(), stream.handle()), "rough products");
    check(run_settle(some, all_entries, device_bias.data(), largest.data(), peaks.data(),
                     device_ids.data() + first, device_scores.data() + first, stream.handle()),
          "nearest entries");
  }
  device_ids.download(ids, stream);
  if (!scores.empty()) device_scores.download(scores, stream);
  stream.synchronize();
}

void best_products(MatrixView<const float> rows, MatrixView<const float> entries, std::span<const float> bias,
                   std::span<uint32_t> ids, std::span<float> scores) {
  best_products(DeviceMatrix(rows), DeviceMatrix(entries), bias, ids, scores);
}

void means_of(const DeviceMatrix& rows, std::span<const uint64_t> offsets, std::span<const uint32_t> ids,
              MatrixView<float> out) {
  if (offsets.size() != out.rows() + 1 || out.cols() != rows.cols() || !out.contiguous() ||
      !std::ranges::is_sorted(offsets) || offsets.back() > ids.size())
    throw failed("means ({}, {}) of rows of {} dimensions by {} offsets of {} ids", out.rows(), out.cols(),
                 rows.cols(), offsets.size(), ids.size());
  for (const uint32_t id : ids)
    if (id >= rows.rows()) throw failed("row {} of {}", id, rows.rows());
  const Stream stream;
  const DeviceBuffer<uint64_t> device_offsets(offsets, stream);
  const DeviceBuffer<uint32_t> device_ids(ids, stream);
  const std::span<float> host(out.data(), out.rows() * out.cols());
  DeviceBuffer<float> means(host, stream);
  check(run_means(rows.impl().exact.data(), static_cast<uint32_t>(rows.cols()), device_offsets.data(),
                  device_ids.data(), static_cast<uint32_t>(out.rows()), means.data(), stream.handle()),
        "means of rows");
  means.download(host, stream);
  stream.synchronize();
}

}  // namespace kvcodec::cuda
