// Sensitivities of layers as people read them: what sensitivity and info print.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "cli/frame/json.hpp"
#include "lib/pipeline/fisher.hpp"
#include "lib/pipeline/sensitivity.hpp"

namespace kvcodec::cli {

/// By layer, keys and values: nats for each unit of variance with their 95% interval, the same from Fisher matrices
/// where there are, and the noise that costs 0.01 nats as a share of the values' own deviation.
std::string sensitivity_table(std::span<const std::array<Sensitivity, 2>> layers,
                              const std::optional<Fisher>& fisher);
Json sensitivity_json(std::span<const std::array<Sensitivity, 2>> layers,
                      const std::optional<Fisher>& fisher);

}  // namespace kvcodec::cli
