// Whether a model can go on with the codes that kvcodec encode wrote.
#pragma once

#include <cstddef>
#include <vector>

#include "cli/frame/common.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/codec/codec.hpp"

namespace kvcodec::cli {

/// Notes layers in which queries of the cache weigh decoded keys so differently that the model loses much. Judged by a few queries
/// of the first of these documents that has any, and up to a thousand of its tokens, in up to eight layers, for a few percent of the
/// time; not at all without queries. codes: those of the cache, made by that codec.
void note_attention(const KvReader& kv, const std::vector<size_t>& documents, const CodesReader& codes,
                    const Codec& codec, const CommonOptions& common);

}  // namespace kvcodec::cli
