// How the keys of a cache were turned, by what its file says of the model (FORMAT.md, "Keys before the rotary
// embedding").
#pragma once

#include "formats/cache/header.hpp"
#include "lib/model/key_rope.hpp"

namespace kvcodec {

/// The rotary embedding of the cache's keys. It is not known(), and says why, if the keys are from before the
/// embedding, if the file does not describe the embedding, or if its description is invalid; such files can
/// still be read.
KeyRope key_rope_of(const ModelInfo& model);

}  // namespace kvcodec
