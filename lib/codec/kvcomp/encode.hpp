// Tokens into the streams of the codec `kvcomp`.
#pragma once

#include "lib/codec/kvcomp/quantizer.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/view.hpp"

namespace kvcodec::kvcomp {

/// Codec::append. Nothing is stored unless all can be.
void append_rows(const Quantizer& quantizer, MatrixView<const float> rows, StreamStore& document);

}  // namespace kvcodec::kvcomp
