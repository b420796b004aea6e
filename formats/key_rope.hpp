// How the keys of a cache were turned, by what its file says of the model (FORMAT.md, "Keys before the rotary
// embedding").
#pragma once

#include "formats/header.hpp"
#include "lib/model/key_rope.hpp"

namespace kvcodec {

/// Unknown, with the reason, for keys that were not turned, for files that do not say how they were, and for what
/// no embedding could be: files can be read all the same.
KeyRope key_rope_of(const ModelInfo& model);

}  // namespace kvcodec
