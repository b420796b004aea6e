// `sensitivity` files: how much a model suffers from errors in its cache, by layer and side (FORMAT.md,
// "sensitivity").
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
#include "lib/core/record.hpp"
#include "lib/pipeline/fisher.hpp"
#include "lib/pipeline/sensitivity.hpp"

namespace kvcodec {

struct SensitivityInfo {
  ModelInfo model;
  Record parameters;                               ///< how it was measured
  std::vector<std::array<Sensitivity, 2>> layers;  ///< keys, values; of all layers of the model
  std::optional<Fisher> fisher;                    ///< where it was measured; of all layers and heads
};

/// Throws Error(failed) for other numbers of layers, heads and dimensions than the model's.
void write_sensitivities(OutputFile& output, const SensitivityInfo& info, const Provenance& provenance);

struct SensitivityFile {
  FileType type;
  SensitivityInfo info;
};

/// Throws Error(bad_input) for shapes that do not fit together, for numbers that are not finite or are negative where
/// they cannot be (half widths may be infinite, as for one document), and for matrices that are not symmetric.
SensitivityFile read_sensitivities(const std::string& file);

}  // namespace kvcodec
