// Whether a cache is the one that a model computes: its first keys and values are computed again.
#pragma once

#include <optional>
#include <string>

#include "cli/frame/common.hpp"
#include "formats/interop/foreign.hpp"
#include "formats/models/model_files.hpp"

namespace kvcodec::cli {

/// Computes the first tokens of a document again, in the model's first layers, and compares. Returns why it cannot compare them;
/// std::nullopt: the cache is the model's. Throws Error(bad_input) if it is not, naming what differs, where that is known: another
/// order of pairs, Hadamard blocks, keys from before the rotary embedding.
std::optional<std::string> probe_cache(const interop::ForeignCache& cache, ModelFiles& files,
                                       const CommonOptions& common);

}  // namespace kvcodec::cli
