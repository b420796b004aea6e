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

/// The rows that run_codec() codes, the codec, and where the streams go.
struct CodecWork {
  const KvReader& kv;
  const CodesInfo& info;
  const Codec& codec;
  const Job& job;
  CodesWriter& writer;
  ProgressBar& bar;
  size_t documents_before =
      0;                ///< that the codes have already; the first piece may continue the last of them
  uint64_t budget = 0;  ///< bytes for rows and the codec's scratch memory
};

/// Surveys and appends all pieces of the job, for every group and side of the codes.
void run_codec(const CodecWork& work);

}  // namespace kvcodec::cli
