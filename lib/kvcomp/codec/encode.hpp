// Encodes tokens into the streams of the codec `kvcomp`.
#pragma once

#include "lib/codec/stream.hpp"
#include "lib/core/view.hpp"
#include "lib/kvcomp/codec/quantizer.hpp"

namespace kvcodec::kvcomp {

/// Codec::append: rows (n, width). If a value cannot be represented, it throws before anything is stored.
void append_rows(const Quantizer& quantizer, MatrixView<const float> rows, StreamStore& document);

}  // namespace kvcodec::kvcomp
