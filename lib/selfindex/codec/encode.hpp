// Tokens into the streams of the codec `selfindex`.
#pragma once

#include "lib/codec/group_shape.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/view.hpp"
#include "lib/engine/engine.hpp"
#include "lib/selfindex/codec/options.hpp"

namespace kvcodec::selfindex {

/// Codec::append. engine: or nullptr.
void append_rows(const Form& form, Engine* engine, const GroupShape& shape, MatrixView<const float> rows,
                 StreamStore& document);

}  // namespace kvcodec::selfindex
