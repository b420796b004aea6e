#include "lib/codec/stream.hpp"

namespace kvcodec {}  // namespace kvcodec
