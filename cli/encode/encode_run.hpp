// The work of kvcodec encode: rows of a kv file through a codec into codes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cli/encode/encode_job.hpp"
#include "cli/frame/progress.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/codec/codec.hpp"

namespace kvcodec::cli {

/// Surveys and appends all pieces of the job, for every group and side of the codes. documents_before: how many documents the
/// codes have already; the first piece may continue the last of them. budget: bytes for rows and the codec's scratch memory.
void run_codec(const KvReader& kv, const CodesInfo& info, const Codec& codec, const Job& job,
               size_t documents_before, CodesWriter& writer, uint64_t budget, ProgressBar& bar);

}  // namespace kvcodec::cli
