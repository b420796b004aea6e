#include "formats/cache/protection.hpp"

#include "formats/cache/codes_io.hpp"
#include "lib/core/fault.hpp"

namespace kvcodec {
namespace {

/// The datasets whose rows kvcodec could read. Other datasets are not its own and are ignored; but if they are marked as having
/// digests, they are damaged.
struct Guarded {
  std::vector<h5::Dataset> datasets = {};
  std::vector<std::string> faults = {};
};

Guarded guarded_datasets(const h5::File& file) {
  const bool codes = read_file_type(file).type == "codes";
  Guarded found;
  for (const std::string& path : file.datasets()) {
    if (codes && (path == kDataPath || path == kPartsPath)) continue;
    const auto fault = bad_input_of([&] { found.datasets.push_back(file.dataset(path)); });
    if (fault && file.has_digests(path)) found.faults.emplace_back(fault->what());
  }
  return found;
}

template <class Has>
Coverage coverage(const std::vector<h5::Dataset>& datasets, const Has& has) {
  const auto covered = static_cast<size_t>(std::ranges::count_if(datasets, has));
  return covered == datasets.size() ? Coverage::all : covered == 0 ? Coverage::none : Coverage::some;
}

}  // namespace

Protection protection_of(const std::string& file) {
  const auto datasets = guarded_datasets(h5::File::open(file)).datasets;
  return {coverage(datasets, [](const h5::Dataset& dataset) { return dataset.has_checksums(); }),
          coverage(datasets, [](const h5::Dataset& dataset) { return dataset.has_digests(); })};
}

std::vector<std::string> find_damage(const std::string& name,
                                     const std::function<void(uint64_t done, uint64_t total)>& progress) {
  const h5::File file = h5::File::open(name);
  auto [datasets, faults] = guarded_datasets(file);
  uint64_t done = 0, total = 0;
  for (const h5::Dataset& dataset : datasets) total += dataset.size_bytes();
  const bool codes = read_file_type(file).type == "codes";
  const uint64_t parts = codes && file.is_dataset(kDataPath) ? file.dataset(kDataPath).size_bytes() : 0;
  for (const h5::Dataset& dataset : datasets) {
    if (const auto fault = bad_input_of([&] { dataset.verify(); })) faults.emplace_back(fault->what());
    done += dataset.size_bytes();
    progress(done, total + parts);
  }
  if (!codes) return faults;
  const CodesReader reader(name);
  reader.check_parts([&](uint64_t bytes) { progress(done + std::min(bytes, parts), total + parts); },
                     [&, &faults = faults](const Error& fault) { faults.emplace_back(fault.what()); });
  return faults;
}

}  // namespace kvcodec
